//! The checks of a cell, by column: see the table in [`verify`](super).

use std::collections::HashMap;
use std::ops::Bound;

use crate::codec::{HistoryEntry, Record};
use crate::coordinator::{RETENTION_KEY, Retention};
use crate::engine::local::{GC_PREFIX, SAFE_POINT, gc_key, parse_gc_key};
use crate::engine::storage::Column;
use crate::engine::{EngineError, EngineSnapshot, RowRange};
use crate::error::Result as StoreResult;
use crate::keys::{data_key, decode_data_key, decode_history_key, history_key};
use crate::local_oracle::HIGH_WATER_KEY;
use crate::protocol::{TxnStatus, txn_status};
use crate::row::{KeyspaceId, Lock, LockType, RowKey, StoredValue, WriteRecord};
use crate::store::catalog::entries::{CATALOG_ID, LOCK_PREFIX};
use crate::store::maintenance::verify::report::{ISSUES_MAX, IntegrityIssue, VerifyReport, row_text};
use crate::store::named_locks::lease_row::decode_leases;
use crate::store_id::STORE_ID_KEY;
use crate::timestamp::Timestamp;
use crate::value::Value;

const PAGE_CELLS: usize = 1024;
const PAGE_BYTES: usize = 4 << 20;

pub struct Verifier<'a> {
    view: &'a dyn EngineSnapshot,
    /// The high-water mark: the oracle has handed out no timestamp above it. `None` if the store
    /// has no high-water mark, or the mark cannot be read.
    high_water: Option<Timestamp>,
    safe_point: Timestamp,
    /// All keyspaces, with their names if they have one; `None` if the catalog cannot be read.
    pub keyspaces: Option<HashMap<KeyspaceId, Option<String>>>,
    /// Row and commit timestamp of the version that the scan of the history visited last. The
    /// versions of a row are visited newest first. So if the next version is of the same row, it
    /// was replaced by the version in this field.
    newer: Option<(RowKey, Timestamp)>,
    pub report: VerifyReport,
    progress: &'a mut dyn FnMut(&VerifyReport) -> StoreResult<()>,
}

impl<'a> Verifier<'a> {
    pub fn new(view: &'a dyn EngineSnapshot, progress: &'a mut dyn FnMut(&VerifyReport) -> StoreResult<()>) -> Self {
        Self {
            view,
            high_water: None,
            safe_point: Timestamp::ZERO,
            keyspaces: None,
            newer: None,
            report: VerifyReport::default(),
            progress,
        }
    }

    pub fn add_issue(&mut self, column: Column, row: Option<&RowKey>, what: impl Into<String>) {
        self.report.issue_count += 1;
        if self.report.issues.len() < ISSUES_MAX {
            let keyspace = row.and_then(|row| self.name_of(row)).map(Into::into);
            self.report.issues.push(IntegrityIssue { column, row: row.cloned(), keyspace, message: what.into() });
        }
    }

    /// Checks every cell of a column. Damage and read errors become issues. Fails only if
    /// `progress` fails, because the verification is cancelled or the store closed.
    pub fn check_column(
        &mut self,
        column: Column,
        check: impl Fn(&mut Self, &[u8], &[u8]) -> Result<(), EngineError>,
    ) -> StoreResult<()> {
        let mut range = RowRange::all();
        loop {
            let mut page = Vec::new();
            let mut bytes = 0;
            let read = self.view.scan_raw(column, &range, &mut |key, value| {
                bytes += key.len() + value.len();
                // Large values are not copied: only their keys are checked, because the content is
                // the user's.
                let value = if column == Column::Data { Vec::new() } else { value.to_vec() };
                page.push((key.to_vec(), value));
                page.len() < PAGE_CELLS && bytes < PAGE_BYTES
            });
            self.report.bytes += bytes as u64;
            *self.counter(column) += page.len() as u64;
            for (key, value) in &page {
                if let Err(error) = check(self, key, value) {
                    self.add_issue(column, row_of(column, key).as_ref(), error_text(error));
                }
            }
            (self.progress)(&self.report)?;
            let last = page.pop().map(|(key, _)| key);
            if let Err(error) = read {
                let position = last.map_or_else(|| "its start".into(), |key| self.position_text(column, &key));
                self.add_issue(column, None, format!("cannot be read after {position}: {}", error_text(error)));
                return Ok(());
            }
            match last {
                Some(last) => range.start = Bound::Excluded(last),
                None => return Ok(()),
            }
        }
    }

    /// The position of a cell as text: its row or, if its key is not that of a row, the key.
    fn position_text(&self, column: Column, key: &[u8]) -> String {
        let Some(row) = row_of(column, key) else { return format!("\"{}\"", key.escape_ascii()) };
        format!("the row {}", row_text(&row, self.name_of(&row)))
    }

    fn name_of(&self, row: &RowKey) -> Option<&str> {
        self.keyspaces.as_ref()?.get(&row.keyspace_id())?.as_deref()
    }

    fn counter(&mut self, column: Column) -> &mut u64 {
        match column {
            Column::Meta => &mut self.report.meta_entries,
            Column::Data => &mut self.report.out_of_line_values,
            Column::Lock => &mut self.report.row_locks,
            Column::Write => &mut self.report.versions,
            Column::History => &mut self.report.history_entries,
        }
    }

    /// Reads the high-water mark and the safe point, which the checks of other columns need.
    pub fn load_meta(&mut self) {
        let timestamp = |name: &str| {
            let mut found = None;
            // The error is ignored here, because the check of the meta column reports it.
            let _ = self.view.scan_raw(Column::Meta, &single_key(name.as_bytes()), &mut |_, value| {
                found = value.try_into().ok().map(u64::from_be_bytes).map(Timestamp::from_u64);
                false
            });
            found
        };
        (self.high_water, self.safe_point) = (timestamp(HIGH_WATER_KEY), timestamp(SAFE_POINT).unwrap_or_default());
    }

    pub fn check_meta(&mut self, key: &[u8], value: &[u8]) {
        let is_timestamp = value.len() == size_of::<u64>();
        if [HIGH_WATER_KEY, SAFE_POINT].iter().any(|name| name.as_bytes() == key) && !is_timestamp {
            self.add_issue(Column::Meta, None, format!("\"{}\" is not a timestamp", key.escape_ascii()));
        }
        if key == STORE_ID_KEY.as_bytes() && !is_timestamp {
            self.add_issue(Column::Meta, None, "corrupt store id");
        }
        if key == RETENTION_KEY.as_bytes() && Retention::decode(value).is_none() {
            self.add_issue(Column::Meta, None, "corrupt history retention record");
        }
        if key.starts_with(GC_PREFIX.as_bytes()) && parse_gc_key(key).is_none() {
            self.add_issue(Column::Meta, None, format!("\"{}\" is not a GC queue entry", key.escape_ascii()));
        }
    }

    pub fn check_version_cell(&mut self, key: &[u8], bytes: &[u8]) -> Result<(), EngineError> {
        let Some(row) = self.row(Column::Write, key) else { return Ok(()) };
        let Some(version) = self.decode::<WriteRecord>(Column::Write, &row, bytes) else { return Ok(()) };
        self.check_version(Column::Write, &row, &version)?;
        self.check_leases(&row, &version)?;
        if version.value.is_none() && !self.has(Column::Meta, &gc_key(version.commit_ts, &row))? {
            self.add_issue(Column::Write, Some(&row), "the tombstone is missing from the GC queue");
        }
        Ok(())
    }

    /// Checks that the lease row of a named lock decodes.
    fn check_leases(&mut self, row: &RowKey, version: &WriteRecord) -> Result<(), EngineError> {
        if row.keyspace_id() != CATALOG_ID || !row.user_key().starts_with(LOCK_PREFIX.as_bytes()) {
            return Ok(());
        }
        let stored = match &version.value {
            Some(StoredValue::OutOfLine) => self.view.data(row, version.txn.start_ts)?,
            Some(StoredValue::Inline(value)) => Some(value.clone()),
            None => None,
        };
        if let Some(Err(error)) = stored.map(|value: Value| decode_leases(row.user_key(), &value)) {
            self.add_issue(Column::Write, Some(row), error.to_string());
        }
        Ok(())
    }

    fn check_version(&mut self, column: Column, row: &RowKey, version: &WriteRecord) -> Result<(), EngineError> {
        let (start_ts, commit_ts) = (version.txn.start_ts, version.commit_ts);
        if commit_ts <= start_ts {
            let what = format!("the commit timestamp {commit_ts:#} is not above the start timestamp {start_ts:#}");
            self.add_issue(column, Some(row), what);
        }
        if self.high_water.is_some_and(|mark| version.last_commit_ts() > mark) {
            let what = format!("the commit timestamp {commit_ts:#} is above the high-water mark");
            self.add_issue(column, Some(row), what);
        }
        if version.value == Some(StoredValue::OutOfLine) && !self.has(Column::Data, &data_key(row, start_ts))? {
            self.add_issue(column, Some(row), format!("the value of transaction {start_ts:#} is missing"));
        }
        Ok(())
    }

    pub fn check_lock(&mut self, key: &[u8], bytes: &[u8]) -> Result<(), EngineError> {
        let Some(row) = self.row(Column::Lock, key) else { return Ok(()) };
        let Some(lock) = self.decode::<Lock>(Column::Lock, &row, bytes) else { return Ok(()) };
        let (txn, start_ts) = (lock.txn, lock.txn.start_ts);
        let mut issues = Vec::new();
        if self.high_water.is_some_and(|mark| start_ts > mark) {
            issues.push(format!("the start timestamp {start_ts:#} of its lock is above the high-water mark"));
        }
        if lock.lock_type == LockType::Put(StoredValue::OutOfLine)
            && !self.has(Column::Data, &data_key(&row, start_ts))?
        {
            issues.push(format!("the value of its lock, by transaction {start_ts:#}, is missing"));
        }
        if self.keyspaces.as_ref().is_some_and(|all| !all.contains_key(&lock.primary.keyspace_id())) {
            issues.push(format!("the primary {:?} of its lock is in an unknown keyspace", lock.primary));
        }
        let primary = self.view.row(&lock.primary, start_ts)?;
        match txn_status(&primary, txn) {
            Some(TxnStatus::Pending) => {
                if let Some(other) = primary.lock.filter(|found| found.primary != lock.primary) {
                    issues.push(format!("the primary of its lock names another primary, {:?}", other.primary));
                }
            }
            Some(TxnStatus::Committed(commit_ts)) if commit_ts <= start_ts => {
                issues.push(format!(
                    "the transaction of its lock was committed at {commit_ts:#}, not above its start timestamp"
                ));
            }
            Some(TxnStatus::Committed(_) | TxnStatus::RolledBack) if row == lock.primary => {
                issues.push(format!("locked by transaction {start_ts:#}, which has ended according to this row"));
            }
            Some(_) => {}
            None if start_ts < self.safe_point => {
                issues
                    .push(format!("locked by transaction {start_ts:#} below the safe point, whose record is deleted"));
            }
            None => {}
        }
        issues.into_iter().for_each(|what| self.add_issue(Column::Lock, Some(&row), what));
        Ok(())
    }

    pub fn check_value(&mut self, key: &[u8], _bytes: &[u8]) -> Result<(), EngineError> {
        let Some((row, start_ts)) = decode_data_key(key) else {
            self.add_issue(Column::Data, None, format!("invalid key \"{}\"", key.escape_ascii()));
            return Ok(());
        };
        self.check_keyspace_of(Column::Data, &row);
        let owns =
            |txn_start, value: Option<&StoredValue>| txn_start == start_ts && value == Some(&StoredValue::OutOfLine);
        // A version or lock that cannot be read may refer to the value. So the value is then not
        // reported as unused; the check of the write or lock column reports what cannot be read.
        let by_version =
            self.view.write(&row).map(|version| version.is_some_and(|w| owns(w.txn.start_ts, w.value.as_ref())));
        let by_lock = self.view.lock(&row).map(|lock| {
            lock.is_some_and(
                |lock| matches!(&lock.lock_type, LockType::Put(value) if owns(lock.txn.start_ts, Some(value))),
            )
        });
        if by_version.unwrap_or(true) || by_lock.unwrap_or(true) {
            return Ok(());
        }
        let range = RowRange {
            start: Bound::Included(history_key(&row, Timestamp::MAX)),
            end: Bound::Included(history_key(&row, Timestamp::ZERO)),
        };
        let mut owned = false;
        self.view.scan_raw(Column::History, &range, &mut |_, bytes| {
            owned = match HistoryEntry::decode(bytes) {
                Ok(HistoryEntry::Version(version)) => owns(version.txn.start_ts, version.value.as_ref()),
                Ok(HistoryEntry::Ended(_)) | Err(_) => false,
            };
            !owned
        })?;
        if !owned {
            let what = format!("no version or lock refers to the value of transaction {start_ts:#}");
            self.add_issue(Column::Data, Some(&row), what);
        }
        Ok(())
    }

    pub fn check_history(&mut self, key: &[u8], bytes: &[u8]) -> Result<(), EngineError> {
        let Some((row, ts)) = decode_history_key(key) else {
            self.add_issue(Column::History, None, format!("invalid key \"{}\"", key.escape_ascii()));
            return Ok(());
        };
        self.check_keyspace_of(Column::History, &row);
        match self.decode::<HistoryEntry>(Column::History, &row, bytes) {
            Some(HistoryEntry::Version(version)) => {
                self.check_version(Column::History, &row, &version)?;
                if version.commit_ts != ts {
                    let what = format!("the version of {:#} is stored under {ts:#}", version.commit_ts);
                    self.add_issue(Column::History, Some(&row), what);
                }
                self.check_replaced(row, ts)?;
            }
            Some(HistoryEntry::Ended(crate::row::TxnRecord::Committed(commit_ts))) if commit_ts <= ts => {
                let what = format!(
                    "the record of transaction {ts:#} has commit timestamp {commit_ts:#}, not above its start timestamp"
                );
                self.add_issue(Column::History, Some(&row), what);
            }
            Some(HistoryEntry::Ended(_)) | None => {}
        }
        Ok(())
    }

    fn check_replaced(&mut self, row: RowKey, ts: Timestamp) -> Result<(), EngineError> {
        let replaced_at = match self.newer.take() {
            Some((same, newer)) if same == row => Some(newer),
            _ => self.view.write(&row)?.map(|newest| newest.commit_ts),
        };
        match replaced_at {
            Some(newer) if newer <= ts => {
                let what = format!("the replaced version of {ts:#} is not older than the one that replaced it");
                self.add_issue(Column::History, Some(&row), what);
            }
            Some(newer) if !self.has(Column::Meta, &gc_key(newer, &row))? => {
                let what = format!("the version of {ts:#}, replaced at {newer:#}, is missing from the GC queue");
                self.add_issue(Column::History, Some(&row), what);
            }
            Some(_) => {}
            None => {
                let what = format!("the replaced version of {ts:#} has no newer version");
                self.add_issue(Column::History, Some(&row), what);
            }
        }
        self.newer = Some((row, ts));
        Ok(())
    }

    fn row(&mut self, column: Column, key: &[u8]) -> Option<RowKey> {
        let row = RowKey::from_bytes(key).filter(|row| !row.user_key().is_empty());
        match &row {
            Some(row) => self.check_keyspace_of(column, row),
            None => self.add_issue(column, None, format!("invalid row key \"{}\"", key.escape_ascii())),
        }
        row
    }

    fn check_keyspace_of(&mut self, column: Column, row: &RowKey) {
        if self.keyspaces.as_ref().is_some_and(|all| !all.contains_key(&row.keyspace_id())) {
            self.add_issue(column, Some(row), "the keyspace is not in the catalog");
        }
    }

    fn decode<T: Record>(&mut self, column: Column, row: &RowKey, bytes: &[u8]) -> Option<T> {
        T::decode(bytes).map_err(|error| self.add_issue(column, Some(row), error.to_string())).ok()
    }

    fn has(&self, column: Column, key: &[u8]) -> Result<bool, EngineError> {
        let mut found = false;
        self.view.scan_raw(column, &single_key(key), &mut |_, _| {
            found = true;
            false
        })?;
        Ok(found)
    }
}

/// The row of a cell.
fn row_of(column: Column, key: &[u8]) -> Option<RowKey> {
    match column {
        Column::Meta => None,
        Column::Data => decode_data_key(key).map(|(row, _)| row),
        Column::History => decode_history_key(key).map(|(row, _)| row),
        Column::Lock | Column::Write => RowKey::from_bytes(key),
    }
}

fn single_key(key: &[u8]) -> RowRange {
    RowRange { start: Bound::Included(key.to_vec()), end: Bound::Included(key.to_vec()) }
}

/// The text of a read error. Of an *undetermined* error only the cause is shown, because a read has
/// no undetermined effect.
fn error_text(error: EngineError) -> String {
    match error {
        EngineError::Undetermined(text) => text,
        other => other.to_string(),
    }
}
