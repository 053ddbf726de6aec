//! Rows without an engine: plain columns, changed by the protocol's changes under the protocol's
//! preconditions.
//!
//! They replace `LocalEngine`. As there, only the protocol decides: the rows return a `RowState` as
//! read, check `Precondition::is_met`, and apply each `CellChange`. The states of an exploration
//! share their rows, so a step copies only the row that it changes.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock};

use percolite::RowKey;
use percolite::Timestamp;
use percolite::internal::codec::{HistoryEntry, Record};
use percolite::row::{CellChange, KeyspaceId, Lock, Precondition, RowChange, RowState, TxnRecord, WriteRecord};

/// The maximum number of rows of a model.
pub const ROWS_MAX: usize = 3;

static KEYS: LazyLock<[RowKey; ROWS_MAX]> =
    LazyLock::new(|| [b"a", b"b", b"c"].map(|key| RowKey::new(KeyspaceId(1), key)));

/// The key of a row: `a`, `b`, `c`.
pub fn key(row: usize) -> RowKey {
    KEYS[row].clone()
}

/// The inverse of [`key`].
pub fn index(key: &RowKey) -> usize {
    usize::from(key.user_key()[0] - b'a')
}

/// A row in all columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cells {
    pub lock: Option<Lock>,
    pub write: Option<WriteRecord>,
    /// Sorted by `start_ts`.
    pub txn_records: Vec<(Timestamp, TxnRecord)>,
    /// Replaced versions, oldest first.
    pub versions: Vec<WriteRecord>,
    /// The transactions that have an entry in the data column.
    pub data: Vec<Timestamp>,
}

impl Cells {
    fn change(&mut self, change: &RowChange) {
        edit(&mut self.lock, &change.lock);
        edit(&mut self.write, &change.write);
        let at = self.txn_records.partition_point(|(start_ts, _)| *start_ts < change.start_ts);
        let found = self.txn_records.get(at).is_some_and(|(start_ts, _)| *start_ts == change.start_ts);
        match change.txn_record {
            CellChange::Keep => {}
            CellChange::Put(status) if found => self.txn_records[at].1 = status,
            CellChange::Put(status) => self.txn_records.insert(at, (change.start_ts, status)),
            CellChange::Delete if found => drop(self.txn_records.remove(at)),
            CellChange::Delete => {}
        }
        if let Some(version) = &change.archived_version {
            // An entry with the same timestamp is replaced, as in the engine.
            self.versions.retain(|kept| kept.commit_ts != version.commit_ts);
            self.versions.push(version.clone());
            self.versions.sort_by_key(|kept| kept.commit_ts);
        }
        for (start_ts, edit) in &change.data {
            if *edit != CellChange::Keep {
                self.data.retain(|kept| kept != start_ts);
            }
            if let CellChange::Put(_) = edit {
                self.data.push(*start_ts);
                self.data.sort();
            }
        }
    }
}

fn edit<T: Clone>(cell: &mut Option<T>, edit: &CellChange<T>) {
    match edit {
        CellChange::Keep => {}
        CellChange::Put(content) => *cell = Some(content.clone()),
        CellChange::Delete => *cell = None,
    }
}

/// All rows, and the safe point.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    pub cells: Vec<Arc<Cells>>,
    pub safe_point: Timestamp,
}

impl Rows {
    pub fn new(count: usize) -> Self {
        Self { cells: vec![Arc::default(); count], safe_point: Timestamp::ZERO }
    }

    /// The row as read for the transaction with this `start_ts`.
    pub fn read(&self, row: usize, start_ts: Timestamp) -> RowState {
        let cells = &self.cells[row];
        let status = cells.txn_records.iter().find(|(ts, _)| *ts == start_ts).map(|(_, status)| *status);
        RowState {
            lock: cells.lock.clone(),
            write: cells.write.clone(),
            txn_record: status,
            safe_point: self.safe_point,
        }
    }

    /// The first row whose preconditions are not met.
    pub fn refusal(&self, changes: &[RowChange]) -> Option<usize> {
        let refused = changes.iter().find(|change| {
            let row = self.read(index(&change.row), change.start_ts);
            !change.preconditions.iter().all(|precondition| precondition.is_met(&row))
        });
        refused.map(|change| index(&change.row))
    }

    /// Applies a change whose preconditions are met.
    pub fn change(&mut self, change: &RowChange) {
        Arc::make_mut(&mut self.cells[index(&change.row)]).change(change);
    }

    /// Every column, one a line.
    pub fn dump(&self) -> String {
        let mut lines = format!("safe point {}\n", self.safe_point);
        for (row, cells) in self.cells.iter().enumerate() {
            let Cells { lock, write, txn_records: records, versions, data } = &**cells;
            let columns = format!("lock {lock:?}\n  write {write:?}\n  replaced {versions:?}\n  data {data:?}");
            lines += &format!("{:?}\n  {columns}\n  records {records:?}\n", key(row));
        }
        lines
    }

    pub fn locks(&self) -> impl Iterator<Item = (usize, &Lock)> {
        self.cells.iter().enumerate().filter_map(|(row, cells)| Some((row, cells.lock.as_ref()?)))
    }
}

// The types of `percolite::row` have no `Hash`, and a test alone is no reason to add it.

impl Hash for Cells {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut bytes = Vec::with_capacity(128);
        if let Some(lock) = &self.lock {
            lock.encode(&mut bytes);
        }
        bytes.push(u8::MAX);
        if let Some(write) = &self.write {
            write.encode(&mut bytes);
        }
        for (start_ts, status) in &self.txn_records {
            bytes.extend(start_ts.to_u64().to_le_bytes());
            HistoryEntry::Ended(*status).encode(&mut bytes);
        }
        for version in &self.versions {
            version.encode(&mut bytes);
        }
        state.write(&bytes);
        self.data.hash(state);
    }
}

impl Hash for Rows {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.cells.hash(state);
        self.safe_point.hash(state);
    }
}

/// A change in flight. Changes are ordered, so that a set of changes has only one representation.
#[derive(Clone)]
pub struct Sent {
    pub change: Arc<RowChange>,
    digest: Vec<u8>,
}

impl Sent {
    pub fn new(change: RowChange) -> Self {
        let mut digest = Vec::with_capacity(96);
        digest.extend(change.row.as_bytes());
        digest.extend(change.start_ts.to_u64().to_le_bytes());
        for precondition in &change.preconditions {
            digest_precondition(*precondition, &mut digest);
        }
        put(&change.lock, &mut digest, Record::encode);
        put(&change.write, &mut digest, Record::encode);
        put(&change.txn_record, &mut digest, |status, digest| HistoryEntry::Ended(*status).encode(digest));
        change.archived_version.iter().for_each(|version| version.encode(&mut digest));
        for (start_ts, edit) in &change.data {
            digest.extend(start_ts.to_u64().to_le_bytes());
            put(edit, &mut digest, |_, _| {});
        }
        Self { change: Arc::new(change), digest }
    }
}

fn digest_precondition(precondition: Precondition, digest: &mut Vec<u8>) {
    let (kind, ts) = match precondition {
        Precondition::LockAbsent => (0, Timestamp::ZERO),
        Precondition::LockUnchanged(stamp) => {
            digest.extend(stamp.txn.start_ts.to_u64().to_le_bytes());
            digest.extend(stamp.write_seq.to_le_bytes());
            digest.extend(stamp.ttl_ms.to_le_bytes());
            (1, stamp.min_commit_ts)
        }
        Precondition::NoCommitAfter(ts) => (2, ts),
        Precondition::NoTxnRecord(ts) => (3, ts),
        Precondition::SafePointAtMost(ts) => (4, ts),
    };
    digest.push(kind);
    digest.extend(ts.to_u64().to_le_bytes());
}

fn put<T>(edit: &CellChange<T>, digest: &mut Vec<u8>, encode: impl Fn(&T, &mut Vec<u8>)) {
    match edit {
        CellChange::Keep => digest.push(0),
        CellChange::Delete => digest.push(1),
        CellChange::Put(content) => {
            digest.push(2);
            encode(content, digest);
        }
    }
}

impl fmt::Debug for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RowChange { row, start_ts, preconditions, lock, write, txn_record: record, .. } = &*self.change;
        write!(
            f,
            "change of {row:?} for the transaction {start_ts}: lock {lock:?}, write {write:?}, record {record:?}, if {preconditions:?}"
        )
    }
}

impl PartialEq for Sent {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for Sent {}

impl PartialOrd for Sent {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Sent {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.digest.cmp(&other.digest)
    }
}

impl Hash for Sent {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}
