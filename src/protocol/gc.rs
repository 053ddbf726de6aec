//! Garbage collection of one row: removes tombstones and replaced versions that no reader needs.
//!
//! From a tombstone, a transaction with an older snapshot detects that the row was deleted after
//! this snapshot. Once no transaction reads below the tombstone, the tombstone means the same as an
//! absent row, and GC deletes it.
//!
//! With history, a replaced version is visible to historical reads from its commit until the commit
//! that replaced it. Once the replacing commit is at or below the GC horizon, GC deletes the
//! version and its out-of-line value.
//!
//! The GC queue has an entry for each tombstone and each replaced version. The entry names the row
//! and the commit timestamp of the deletion or of the replacing write. If a deleted row was written
//! again, its newest version stays. If a deleted row is locked, the tombstone and its entry stay
//! for a later pass.

use super::lock_unchanged;
use crate::row::{CellChange, Precondition, RowChange, RowKey, RowState, StoredValue, WriteRecord};
use crate::timestamp::Timestamp;

/// The GC queue's entries of one row, all of them at or below the GC horizon.
#[derive(Clone, Debug)]
pub struct GcRequest {
    /// The row.
    pub row: RowKey,
    /// The commit timestamps at which the row was deleted, or was overwritten and the old version
    /// kept as history.
    pub replaced_at: Vec<Timestamp>,
    /// The versions that were replaced at these timestamps.
    pub old_versions: Vec<OldVersion>,
}

/// What GC needs of a replaced version. The value is left out, because there may be many versions,
/// each with a large value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldVersion {
    /// Its commit timestamp.
    pub commit_ts: Timestamp,
    /// The `start_ts` in the key of its data cell, if the value is out of line.
    pub data_start_ts: Option<Timestamp>,
}

impl From<&WriteRecord> for OldVersion {
    fn from(version: &WriteRecord) -> Self {
        let is_out_of_line = version.value == Some(StoredValue::OutOfLine);
        Self { commit_ts: version.commit_ts, data_start_ts: is_out_of_line.then_some(version.txn.start_ts) }
    }
}

/// Removes the replaced versions, and the tombstone if it is still the row's newest version and the
/// row has no lock.
pub fn gc_row(row: &RowState, request: &GcRequest) -> RowChange {
    let mut change = RowChange::new(request.row.clone(), Timestamp::ZERO);
    change.gc_done.clone_from(&request.replaced_at);
    let is_removable_tombstone =
        |version: &&WriteRecord| version.value.is_none() && change.gc_done.contains(&version.commit_ts);
    let deletion = row.write.as_ref().filter(is_removable_tombstone);
    if let Some(deletion) = deletion {
        let deleted_at = deletion.commit_ts;
        if row.lock.is_some() {
            change.gc_done.retain(|ts| *ts != deleted_at);
        } else {
            change.preconditions = [lock_unchanged(row), Precondition::NoCommitAfter(deleted_at)].into();
            change.write = CellChange::Delete;
        }
    }
    for version in &request.old_versions {
        change.deleted_versions.push(version.commit_ts);
        change.data.extend(version.data_start_ts.map(|start_ts| (start_ts, CellChange::Delete)));
    }
    change
}

/// Deletes the transaction record at the primary; to be called once all of the transaction's locks
/// are resolved.
pub fn delete_txn_record(primary: RowKey, start_ts: Timestamp) -> RowChange {
    let mut change = RowChange::new(primary, start_ts);
    change.txn_record = CellChange::Delete;
    change
}
