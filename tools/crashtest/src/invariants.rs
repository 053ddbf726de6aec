//! Structural invariants, checked on the columns below the store.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ops::Bound;

use percolite::engine::storage::{CellReader, Column};
use percolite::engine::{EngineError, RowRange};
use percolite::internal::codec::{HistoryEntry, Record as _};
use percolite::internal::keys::{data_key, decode_data_key, decode_history_key, keyspace_range};
use percolite::row::{Lock, RowKey, StoredValue, WriteRecord};
use percolite::{Error, Keyspace, KeyspaceId, Store, Timestamp};

use crate::violation::{STRUCTURE, Violation};

/// Checks that no lock is left, that each `commit_ts` is above its `start_ts`, that every value to
/// which a version refers exists, and that no other value exists.
///
/// # Errors
/// Errors of the reads.
pub fn check_structure(reader: &impl CellReader) -> Result<Vec<Violation>, EngineError> {
    let mut violations = Vec::new();
    reader.scan(Column::Lock, &RowRange::all(), false, |key, bytes| {
        let lock = match Lock::decode(bytes) {
            Ok(lock) => format!("of the transaction {} with primary {:?}", lock.txn.start_ts, lock.primary),
            Err(error) => error.to_string(),
        };
        violations
            .push(Violation::new("no locks left", format!("row {:?} has a lock {lock}", RowKey::from_bytes(key))));
        true
    })?;
    let mut referenced = HashSet::new();
    reader.scan(Column::Write, &RowRange::all(), false, |key, bytes| {
        let row = RowKey::from_bytes(key);
        match (row, WriteRecord::decode(bytes)) {
            (Some(row), Ok(write)) => {
                if write.commit_ts <= write.txn.start_ts {
                    let what =
                        format!("row {row:?} has commit_ts {} and start_ts {}", write.commit_ts, write.txn.start_ts);
                    violations.push(Violation::new(STRUCTURE, what));
                }
                if write.value == Some(StoredValue::OutOfLine) {
                    referenced.insert(data_key(&row, write.txn.start_ts));
                }
            }
            (row, write) => violations.push(Violation::new(STRUCTURE, format!("write column, {row:?}: {write:?}"))),
        }
        true
    })?;
    reader.scan(Column::History, &RowRange::all(), false, |key, bytes| {
        match (decode_history_key(key), HistoryEntry::decode(bytes)) {
            (Some(_), Ok(HistoryEntry::Ended(_))) => {}
            (Some((row, _)), Ok(HistoryEntry::Version(kept))) => {
                if kept.value == Some(StoredValue::OutOfLine) {
                    referenced.insert(data_key(&row, kept.txn.start_ts));
                }
            }
            (_, kept) => {
                let what = format!("history column, {}: {kept:?}", key.escape_ascii());
                violations.push(Violation::new(STRUCTURE, what));
            }
        }
        true
    })?;
    let mut present = HashSet::new();
    reader.scan(Column::Data, &RowRange::all(), false, |key, _| present.insert(key.to_vec()))?;
    for missing in referenced.difference(&present) {
        violations.push(Violation::new(STRUCTURE, format!("{} is missing", describe_value(missing))));
    }
    for stray in present.difference(&referenced) {
        violations.push(Violation::new(STRUCTURE, format!("{} belongs to no version", describe_value(stray))));
    }
    Ok(violations)
}

/// Describes a value by the row and the transaction in its key.
fn describe_value(key: &[u8]) -> String {
    match decode_data_key(key) {
        Some((row, start_ts)) => format!("row {row:?}: the value that the transaction {start_ts:#} wrote"),
        None => format!("the value at the invalid key {}", key.escape_ascii()),
    }
}

/// The ids of all keyspaces.
///
/// # Errors
/// Errors of the store.
pub fn keyspace_ids(store: &Store) -> Result<Vec<KeyspaceId>, Error> {
    Ok(store.snapshot()?.keyspaces()?.iter().map(Keyspace::id).collect())
}

/// A digest of the given keyspaces: newest versions, locks, and the values of both. It excludes
/// tombstones and replaced versions, which GC may remove at any time, and rows of dropped
/// keyspaces.
///
/// # Errors
/// Errors of the reads.
pub fn digest(reader: &impl CellReader, keyspaces: &[KeyspaceId]) -> Result<u64, EngineError> {
    let mut hasher = DefaultHasher::new();
    for keyspace in keyspaces {
        let (start, end) = keyspace_range(*keyspace);
        let range = RowRange { start: Bound::Included(start), end: Bound::Excluded(end) };
        keyspace.0.hash(&mut hasher);
        let mut values = HashSet::new();
        reader.scan(Column::Write, &range, false, |key, bytes| {
            let version = WriteRecord::decode(bytes);
            if !version.as_ref().is_ok_and(|version| version.value.is_none()) {
                ("version", key, bytes).hash(&mut hasher);
            }
            let txn =
                version.ok().filter(|version| version.value == Some(StoredValue::OutOfLine)).map(|version| version.txn);
            values.extend(txn.zip(RowKey::from_bytes(key)).map(|(txn, row)| data_key(&row, txn.start_ts)));
            true
        })?;
        reader.scan(Column::Lock, &range, false, |key, bytes| {
            ("lock", key, bytes).hash(&mut hasher);
            let txn = Lock::decode(bytes).ok().map(|lock| lock.txn);
            values.extend(txn.zip(RowKey::from_bytes(key)).map(|(txn, row)| data_key(&row, txn.start_ts)));
            true
        })?;
        reader.scan(Column::Data, &range, false, |key, bytes| {
            if values.contains(key) {
                ("value", key, bytes).hash(&mut hasher);
            }
            true
        })?;
    }
    Ok(hasher.finish())
}

/// The largest commit timestamp of any version.
///
/// # Errors
/// Errors of the reads.
pub fn newest_commit(reader: &impl CellReader) -> Result<Timestamp, EngineError> {
    let mut newest = Timestamp::ZERO;
    reader.scan(Column::Write, &RowRange::all(), false, |_, bytes| {
        if let Ok(write) = WriteRecord::decode(bytes) {
            newest = newest.max(write.commit_ts);
        }
        true
    })?;
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use percolite::engine::Engine as _;
    use percolite::engine::sim::SimStorage;
    use percolite::row::{CellChange, RowChange};

    use super::*;

    #[test]
    fn value_without_version_is_named_by_row_and_txn() {
        let (memory, row, start_ts) =
            (SimStorage::new(), RowKey::new(KeyspaceId(7), b"stray"), Timestamp::from_millis(5));
        let mut change = RowChange::new(row.clone(), start_ts);
        change.data.push((start_ts, CellChange::Put(b"value".into())));
        let engine = memory.exclusive_engine();
        engine.apply(&[vec![change].into()]).unwrap();
        let violations = check_structure(engine.storage()).unwrap();
        let details = format!("row {row:?}: the value that the transaction {start_ts:#} wrote belongs to no version");
        assert_eq!(violations, [Violation::new(STRUCTURE, details)]);
    }
}
