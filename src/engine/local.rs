//! An engine over any ordered store in this process: checks guards, turns row changes into cells.
//!
//! Groups are collected into one batch. A group without guards is simply added; one with guards reads its rows, and where
//! an earlier group of the same call has touched one of them, the batch so far is written first, so that each group
//! sees what came before it. The commit pipeline proves most guards from memory and removes them, and then a call is one
//! write and no reads.

use std::collections::HashSet;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use super::storage::{Batch, Column, Reader, Storage};
use super::{
    Bookmark, Capabilities, Cells, Engine, EngineError, EngineFigures, Group, LostLog, NextVersions, Outcome,
    PAGE_BYTES, Page, RowRange, See, SeeEach, View, Visit, WriteStalls,
};
use crate::codec::{CodecError, History, Put, Record};
use crate::keys::{after_prefix, data_key, history_key, keyspace_bounds, split_history_key};
use crate::row::{Edit, Guard, KeyspaceId, Mutation, Row, RowChange, RowKey, Status, WriteRecord};
use crate::timestamp::Timestamp;

/// The name of the safe point in the bookkeeping.
pub(crate) const SAFE_POINT: &str = "safe point";
/// What the names of the collector's work list begin with. They had only deletions at first.
pub(crate) const SUPERSEDED: &str = "deleted/";

/// What most cells take in a batch besides their key and value.
const CELL_OVERHEAD_BYTES: usize = 32;

/// See the [module](self).
#[derive(Debug)]
pub struct LocalEngine<S> {
    storage: S,
    exclusive: bool,
    group_rows_max: usize,
    pages: PageSize,
}

/// When a page ends, whatever limit was asked for.
#[derive(Clone, Copy, Debug)]
struct PageSize {
    cells: usize,
    bytes: usize,
}

impl PageSize {
    /// Tests of crashes have few rows, and are to meet the ends of pages.
    const DEFAULT: Self = if cfg!(feature = "crashtest") {
        Self { cells: 2, bytes: 64 }
    } else {
        Self { cells: usize::MAX, bytes: PAGE_BYTES }
    };
}

impl<S: Storage> LocalEngine<S> {
    /// An engine over `storage`. `exclusive` says that nobody else can change it while this handle lives.
    pub fn new(storage: S, exclusive: bool) -> Self {
        Self { storage, exclusive, group_rows_max: usize::MAX, pages: PageSize::DEFAULT }
    }

    /// The same, changing no more than so many rows together, as other engines do; at least two, if one process is to open a
    /// store on it. A commit of more takes two phases, and one that is cut off in the second leaves locks to be rolled forward.
    #[must_use]
    pub fn with_group_rows_max(self, rows: usize) -> Self {
        Self { group_rows_max: rows, ..self }
    }

    /// The same, ending a page after so many cells, at least one, or with the cell with which it reaches so many bytes.
    #[must_use]
    pub fn with_pages_of(self, cells: usize, bytes: usize) -> Self {
        Self { pages: PageSize { cells: cells.max(1), bytes }, ..self }
    }

    /// What lies beneath.
    pub fn storage(&self) -> &S {
        &self.storage
    }

    fn check_limits(&self, group: &Group) -> Result<(), EngineError> {
        let limit = self.capabilities().group_rows_max;
        let asked = group.rows();
        if asked > limit { Err(EngineError::Limit { what: "a group's rows", asked, limit }) } else { Ok(()) }
    }

    fn refusal(&self, changes: &[RowChange]) -> Result<Option<Outcome>, EngineError> {
        for (index, change) in changes.iter().enumerate().filter(|(_, change)| !change.guards.is_empty()) {
            let row = read_guarded(&self.storage, change)?;
            if !change.guards.iter().all(|guard| guard.holds(&row)) {
                let row = read_row(&self.storage, &change.row, change.start_ts)?;
                return Ok(Some(Outcome::Refused { index, row: Box::new(row) }));
            }
        }
        Ok(None)
    }
}

impl<S: Storage> Engine for LocalEngine<S> {
    fn capabilities(&self) -> Capabilities {
        Capabilities { group_rows_max: self.group_rows_max, group_bytes_max: usize::MAX, exclusive: self.exclusive }
    }

    fn view(&self) -> Result<Arc<dyn View>, EngineError> {
        Ok(Arc::new(LocalView { reader: self.storage.view()?, pages: self.pages }))
    }

    fn row(&self, row: &RowKey, start_ts: Timestamp) -> Result<Row, EngineError> {
        read_row(&self.storage.view()?, row, start_ts)
    }

    fn apply(&self, groups: &[Group]) -> Result<Vec<Outcome>, EngineError> {
        groups.iter().try_for_each(|group| self.check_limits(group))?;
        let _in_turn = self.storage.writing().lock();
        let reads = groups.iter().any(Group::is_guarded);
        let mut outcomes = Vec::with_capacity(groups.len());
        let mut cells = Changes { batch: self.storage.batch(batch_bytes(groups)), buffer: Vec::new() };
        let mut touched: HashSet<&RowKey> = HashSet::new();
        for group in groups {
            if group.is_guarded() {
                let changes = group.changes();
                if changes.iter().any(|change| touched.contains(&change.row)) {
                    self.storage.write(std::mem::replace(&mut cells.batch, self.storage.batch(0)))?;
                    touched.clear();
                }
                if let Some(refused) = self.refusal(&changes)? {
                    outcomes.push(refused);
                    continue;
                }
            }
            let changes = match group {
                Group::Changes(changes) => changes.as_slice(),
                Group::NextVersions(versions) => {
                    cells.add_versions(versions);
                    &[]
                }
            };
            for change in changes {
                if mutated!(SplitColumns) {
                    let lock = change.lock.clone();
                    cells.add(&RowChange { lock, ..RowChange::new(change.row.clone(), change.start_ts) });
                    self.storage.write(std::mem::replace(&mut cells.batch, self.storage.batch(0)))?;
                }
                if mutated!(ReplacedGoesEarly) {
                    let gone = change.data.iter().filter(|(ts, edit)| *ts != change.start_ts && *edit == Edit::Delete);
                    let data = gone.cloned().collect();
                    cells.add(&RowChange { data, ..RowChange::new(change.row.clone(), change.start_ts) });
                    self.storage.write(std::mem::replace(&mut cells.batch, self.storage.batch(0)))?;
                }
                cells.add(change);
            }
            if reads {
                touched.extend(group.keys());
            }
            outcomes.push(Outcome::Applied);
        }
        self.storage.write(cells.batch)?;
        Ok(outcomes)
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.storage.sync()
    }

    fn meta(&self, name: &str) -> Result<Option<Vec<u8>>, EngineError> {
        self.storage.get(Column::Meta, name.as_bytes(), <[u8]>::to_vec)
    }

    fn metas(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, EngineError> {
        let mut found = Vec::new();
        self.storage.scan(Column::Meta, &prefix_range(prefix.as_bytes()), false, |key, value| {
            found.push((String::from_utf8_lossy(key).into_owned(), value.to_vec()));
            true
        })?;
        Ok(found)
    }

    fn set_meta(&self, entries: &[(String, Option<Vec<u8>>)]) -> Result<(), EngineError> {
        let mut batch = self.storage.batch(0);
        for (name, value) in entries {
            match value {
                Some(value) => batch.put(Column::Meta, name.as_bytes(), value),
                None => batch.delete(Column::Meta, name.as_bytes()),
            }
        }
        self.storage.write(batch)
    }

    fn safe_point(&self) -> Result<Timestamp, EngineError> {
        read_safe_point(&self.storage)
    }

    fn advance_safe_point(&self, to: Timestamp) -> Result<(), EngineError> {
        let _in_turn = self.storage.writing().lock();
        if to <= read_safe_point(&self.storage)? {
            return Ok(());
        }
        self.set_meta(&[(SAFE_POINT.into(), Some(to.to_u64().to_be_bytes().to_vec()))])
    }

    fn superseded(&self, upto: Timestamp, limit: usize) -> Result<Vec<(Timestamp, RowKey)>, EngineError> {
        let mut found = Vec::new();
        if limit == 0 {
            return Ok(found);
        }
        let mut malformed = None;
        self.storage.scan(Column::Meta, &prefix_range(SUPERSEDED.as_bytes()), false, |key, _| {
            match split_superseded(key) {
                Some((ts, row)) if ts <= upto => found.push((ts, row)),
                Some(_) => return false,
                None => malformed = Some(key.escape_ascii().to_string()),
            }
            malformed.is_none() && found.len() < limit
        })?;
        match malformed {
            Some(key) => Err(EngineError::Corruption(format!("the collector's work list has an entry {key:?}"))),
            None => Ok(found),
        }
    }

    fn statuses(&self, before: Timestamp, limit: usize) -> Result<Vec<(RowKey, Timestamp)>, EngineError> {
        let mut found = Vec::new();
        if limit == 0 {
            return Ok(found);
        }
        let mut failed = None;
        self.storage.scan(Column::History, &RowRange::all(), false, |key, bytes| {
            match (split_history_key(key), decode::<History>(Column::History, key, bytes)) {
                (Some((row, ts)), Ok(History::Ended(_))) if ts < before => found.push((row, ts)),
                (Some(_), Ok(_)) => {}
                (None, _) => failed = Some(EngineError::Corruption(format!("History column: {key:?} is no key"))),
                (_, Err(why)) => failed = Some(why),
            }
            failed.is_none() && found.len() < limit
        })?;
        failed.map_or(Ok(found), Err)
    }

    fn erase(&self, keyspace: KeyspaceId) -> Result<(), EngineError> {
        let (start, end) = keyspace_bounds(keyspace);
        let mut batch = self.storage.batch(0);
        for column in [Column::Data, Column::Lock, Column::Write, Column::History] {
            batch.delete_range(column, &start, &end);
        }
        self.storage.write(batch)
    }

    fn checkpoint(&self, folder: &Path) -> Result<(), EngineError> {
        self.storage.checkpoint(folder)
    }

    fn figures(&self) -> Result<EngineFigures, EngineError> {
        self.storage.figures()
    }

    fn stored_between(&self, column: Column, start: &[u8], end: &[u8]) -> Option<u64> {
        self.storage.stored_between(column, start, end)
    }

    fn stalls(&self) -> WriteStalls {
        self.storage.stalls()
    }

    fn is_copy(&self) -> bool {
        self.storage.is_copy()
    }

    fn adopt(&self) -> Result<(), EngineError> {
        self.storage.adopt()
    }

    fn lost_logs(&self) -> Vec<LostLog> {
        self.storage.lost_logs()
    }

    fn publish(&self, document: Option<&[u8]>) -> Result<(), EngineError> {
        self.storage.publish(document)
    }
}

/// About what a batch of the groups takes. Growing costs as much as filling.
fn batch_bytes(groups: &[Group]) -> usize {
    groups.iter().map(|group| group.size_bytes() + group.rows() * CELL_OVERHEAD_BYTES).sum()
}

struct Changes<B> {
    batch: B,
    buffer: Vec<u8>,
}

impl<B: Batch> Changes<B> {
    /// What [`Changes::add`] would make of each change. A load is little else than this.
    fn add_versions(&mut self, versions: &NextVersions) {
        let NextVersions { txn, commit_ts, .. } = *versions;
        for (row, mutation) in versions.writes.iter() {
            if let Mutation::Put(value) = mutation {
                self.buffer.clear();
                Put { commit_ts, start_ts: txn.start_ts, owner: txn.owner, value }.encode(&mut self.buffer);
                self.batch.put(Column::Write, row.as_bytes(), &self.buffer);
            } else {
                self.add(&versions.change(row, mutation));
            }
        }
    }

    fn add(&mut self, change: &RowChange) {
        let row = change.row.as_bytes();
        self.edit(Column::Lock, row, &change.lock);
        self.edit(Column::Write, row, &change.write);
        for (start_ts, edit) in &change.data {
            let key = data_key(&change.row, *start_ts);
            match edit {
                Edit::Keep => {}
                Edit::Put(value) => self.batch.put(Column::Data, &key, value),
                Edit::Delete => self.batch.delete(Column::Data, &key),
            }
        }
        match &change.status {
            Edit::Keep => {}
            Edit::Put(status) => {
                let key = history_key(&change.row, change.start_ts);
                self.put(Column::History, &key, &History::Ended(*status));
            }
            Edit::Delete => self.batch.delete(Column::History, &history_key(&change.row, change.start_ts)),
        }
        if let Some(version) = &change.version {
            let key = history_key(&change.row, version.commit_ts);
            self.put(Column::History, &key, &History::Version(version.clone()));
        }
        for commit_ts in &change.dropped {
            self.batch.delete(Column::History, &history_key(&change.row, *commit_ts));
        }
        if let Edit::Put(written) = &change.write
            && (written.value.is_none() || change.version.is_some())
        {
            self.batch.put(Column::Meta, &superseded_key(written.commit_ts, &change.row), &[]);
        }
        for ts in &change.collected {
            self.batch.delete(Column::Meta, &superseded_key(*ts, &change.row));
        }
    }

    fn edit<T: Record>(&mut self, column: Column, key: &[u8], edit: &Edit<T>) {
        match edit {
            Edit::Keep => {}
            Edit::Put(record) => self.put(column, key, record),
            Edit::Delete => self.batch.delete(column, key),
        }
    }

    fn put<T: Record>(&mut self, column: Column, key: &[u8], record: &T) {
        self.buffer.clear();
        record.encode(&mut self.buffer);
        self.batch.put(column, key, &self.buffer);
    }
}

struct LocalView<R> {
    reader: R,
    pages: PageSize,
}

impl<R: Reader> View for LocalView<R> {
    fn cell(&self, column: Column, row: &RowKey, see: See<'_>) -> Result<(), EngineError> {
        self.reader.get(column, row.as_bytes(), see).map(drop)
    }

    fn each_cell(&self, column: Column, rows: &[&RowKey], see: SeeEach<'_>) -> Result<(), EngineError> {
        let keys: Vec<&[u8]> = rows.iter().map(|row| row.as_bytes()).collect();
        self.reader.get_each(column, &keys, see)
    }

    fn status(&self, row: &RowKey, start_ts: Timestamp) -> Result<Option<Status>, EngineError> {
        read_status(&self.reader, row, start_ts)
    }

    fn data(&self, row: &RowKey, start_ts: Timestamp) -> Result<Option<Vec<u8>>, EngineError> {
        self.reader.get(Column::Data, &data_key(row, start_ts), <[u8]>::to_vec)
    }

    fn version(&self, row: &RowKey, upto: Timestamp) -> Result<Option<WriteRecord>, EngineError> {
        let range = RowRange {
            start: Bound::Included(history_key(row, upto)),
            end: Bound::Included(history_key(row, Timestamp::ZERO)),
        };
        let mut found = Ok(None);
        self.reader.scan(Column::History, &range, false, |key, bytes| {
            match decode::<History>(Column::History, key, bytes) {
                Ok(History::Ended(_)) => return true,
                Ok(History::Version(version)) => found = Ok(Some(version)),
                Err(why) => found = Err(why),
            }
            false
        })?;
        found
    }

    fn page(&self, column: Column, page: &Page<'_>, cells: &mut Cells) -> Result<bool, EngineError> {
        cells.clear();
        if page.limit == 0 {
            return Ok(true);
        }
        let limit = page.limit.min(self.pages.cells);
        let mut is_full = false;
        let visit = |row: &[u8], content: &[u8]| {
            cells.push(row, content);
            is_full = cells.len() >= limit || cells.size_bytes() >= self.pages.bytes;
            !is_full
        };
        match page.bookmark {
            Some(bookmark) => self.reader.scan_on(bookmark, column, page.range, page.backwards, visit)?,
            None => self.reader.scan(column, page.range, page.backwards, visit)?,
        }
        Ok(is_full)
    }

    fn lend(
        &self,
        column: Column,
        range: &RowRange,
        bookmark: &Bookmark,
        visit: Visit<'_>,
    ) -> Result<bool, EngineError> {
        if R::LENDS {
            self.reader.scan_on(bookmark, column, range, false, visit)?;
        }
        Ok(R::LENDS)
    }

    fn cells(&self, column: Column, range: &RowRange, visit: Visit<'_>) -> Result<(), EngineError> {
        self.reader.scan(column, range, false, visit)
    }
}

fn read_row(reader: &impl Reader, row: &RowKey, start_ts: Timestamp) -> Result<Row, EngineError> {
    Ok(Row {
        lock: read_record(reader, Column::Lock, row.as_bytes())?,
        write: read_record(reader, Column::Write, row.as_bytes())?,
        status: read_status(reader, row, start_ts)?,
        safe_point: read_safe_point(reader)?,
    })
}

/// As much of a row as the change's guards ask about.
fn read_guarded(reader: &impl Reader, change: &RowChange) -> Result<Row, EngineError> {
    let (mut found, row) = (Row::default(), &change.row);
    for guard in &change.guards {
        match guard {
            Guard::LockAbsent | Guard::LockIs(_) => found.lock = read_record(reader, Column::Lock, row.as_bytes())?,
            Guard::NoCommitAfter(_) => found.write = read_record(reader, Column::Write, row.as_bytes())?,
            Guard::NoRecordOf(start_ts) => {
                found.write = read_record(reader, Column::Write, row.as_bytes())?;
                found.status = read_status(reader, row, *start_ts)?;
            }
            Guard::SafePointBelow(_) => found.safe_point = read_safe_point(reader)?,
        }
    }
    Ok(found)
}

fn read_status(reader: &impl Reader, row: &RowKey, start_ts: Timestamp) -> Result<Option<Status>, EngineError> {
    match read_record(reader, Column::History, &history_key(row, start_ts))? {
        Some(History::Ended(status)) => Ok(Some(status)),
        Some(History::Version(version)) => Err(EngineError::Corruption(format!(
            "row {row:?}: a version stands where the status of a transaction that began at {start_ts:#} belongs: {version:?}"
        ))),
        None => Ok(None),
    }
}

fn read_safe_point(reader: &impl Reader) -> Result<Timestamp, EngineError> {
    let read = |bytes: &[u8]| <[u8; 8]>::try_from(bytes).map(u64::from_be_bytes);
    match reader.get(Column::Meta, SAFE_POINT.as_bytes(), read)? {
        Some(Ok(number)) => Ok(Timestamp::from_u64(number)),
        Some(Err(_)) => Err(EngineError::Corruption("the safe point is not a timestamp".into())),
        None => Ok(Timestamp::ZERO),
    }
}

fn read_record<T: Record>(reader: &impl Reader, column: Column, key: &[u8]) -> Result<Option<T>, EngineError> {
    reader.get(column, key, |bytes| decode(column, key, bytes))?.transpose()
}

pub(super) fn decode<T: Record>(column: Column, key: &[u8], bytes: &[u8]) -> Result<T, EngineError> {
    T::decode(bytes).map_err(|why: CodecError| {
        EngineError::Corruption(format!("{column:?} column, key {}: {why}", key.escape_ascii()))
    })
}

fn prefix_range(prefix: &[u8]) -> RowRange {
    let end = after_prefix(prefix).map_or(Bound::Unbounded, Bound::Excluded);
    RowRange { start: Bound::Included(prefix.to_vec()), end }
}

/// Where the collector's work list has a row that was deleted at `ts`, or in which a version was replaced then.
pub(crate) fn superseded_key(ts: Timestamp, row: &RowKey) -> Vec<u8> {
    [SUPERSEDED.as_bytes(), &ts.to_u64().to_be_bytes(), row.as_bytes()].concat()
}

/// Splits such a key; `None` when it is none.
pub(crate) fn split_superseded(key: &[u8]) -> Option<(Timestamp, RowKey)> {
    let (ts, row) = key.strip_prefix(SUPERSEDED.as_bytes())?.split_first_chunk()?;
    Some((Timestamp::from_u64(u64::from_be_bytes(*ts)), RowKey::from_bytes(row)?))
}
