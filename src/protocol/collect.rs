//! Collect: take away what nobody can need any more.
//!
//! Two things stay behind where a row is written. The record of a deletion tells an older transaction that the row was
//! written after its snapshot; when no transaction that reads below the deletion is left, it says nothing that the row's
//! absence does not say. A replaced version, where history is kept, is what readers of the past see from its commit until
//! the commit that replaced it; when no reader can ask for that time any more, it goes, and a value stored apart with it.
//!
//! Both are *superseded* at the timestamp of a write, and the collector's work list names them by row and that timestamp.
//! A deleted row that was written again since, or is locked, keeps what it has.

use smallvec::smallvec;

use super::lock_unchanged;
use crate::row::{CellChange, Precondition, Row, RowChange, RowKey, Value, WriteRecord};
use crate::timestamp::Timestamp;

/// What was superseded at a row, all of it below everything that is still read.
#[derive(Clone, Debug)]
pub struct GcRequest {
    /// The row.
    pub row: RowKey,
    /// When it was deleted, or written over with the replaced version kept.
    pub superseded_at: Vec<Timestamp>,
    /// The versions that were replaced then.
    pub old_versions: Vec<OldVersion>,
}

/// What is needed of a replaced version to take it away: without its value, of which there may be many and each be large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldVersion {
    /// When it was committed.
    pub commit_ts: Timestamp,
    /// The transaction that wrote a value which stands apart.
    pub data_start_ts: Option<Timestamp>,
}

impl From<&WriteRecord> for OldVersion {
    fn from(version: &WriteRecord) -> Self {
        let stands_apart = version.value == Some(Value::OutOfLine);
        Self { commit_ts: version.commit_ts, data_start_ts: stands_apart.then_some(version.txn.start_ts) }
    }
}

/// Removes the replaced versions, and the record of the deletion if it is still the row's newest version.
pub fn gc_row(row: &Row, request: &GcRequest) -> RowChange {
    let mut change = RowChange::new(request.row.clone(), Timestamp::ZERO);
    change.gc_done.clone_from(&request.superseded_at);
    let superseded = |version: &&WriteRecord| version.value.is_none() && change.gc_done.contains(&version.commit_ts);
    let deletion = row.write.as_ref().filter(|version| mutated!(GcTakesLiveVersion) || superseded(version));
    if let Some(deletion) = deletion {
        let deleted_at = deletion.commit_ts;
        if row.lock.is_some() {
            change.gc_done.retain(|ts| *ts != deleted_at);
        } else {
            change.preconditions = smallvec![lock_unchanged(row), Precondition::NoCommitAfter(deleted_at)];
            if mutated!(GcTakesLiveVersion) {
                change.preconditions.clear();
            }
            change.write = CellChange::Delete;
        }
    }
    for version in &request.old_versions {
        change.deleted_versions.push(version.commit_ts);
        change.data.extend(version.data_start_ts.map(|start_ts| (start_ts, CellChange::Delete)));
    }
    change
}

/// Removes the record of how a transaction ended at its primary, once no lock of the transaction is left anywhere.
pub fn delete_txn_record(primary: RowKey, start_ts: Timestamp) -> RowChange {
    let mut change = RowChange::new(primary, start_ts);
    change.txn_record = CellChange::Delete;
    change
}
