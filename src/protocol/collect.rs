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

use super::lock_as_read;
use crate::row::{Edit, Guard, Row, RowChange, RowKey, Value, WriteRecord};
use crate::timestamp::Timestamp;

/// What was superseded at a row, all of it below everything that is still read.
#[derive(Clone, Debug)]
pub struct Collect {
    /// The row.
    pub row: RowKey,
    /// When it was deleted, or written over with the replaced version kept.
    pub superseded_at: Vec<Timestamp>,
    /// The versions that were replaced then.
    pub replaced: Vec<Replaced>,
}

/// What is needed of a replaced version to take it away: without its value, of which there may be many and each be large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// When it was committed.
    pub commit_ts: Timestamp,
    /// The transaction that wrote a value which stands apart.
    pub value_of: Option<Timestamp>,
}

impl From<&WriteRecord> for Replaced {
    fn from(version: &WriteRecord) -> Self {
        let stands_apart = version.value == Some(Value::InData);
        Self { commit_ts: version.commit_ts, value_of: stands_apart.then_some(version.txn.start_ts) }
    }
}

/// Removes the replaced versions, and the record of the deletion if it is still the row's newest version.
pub fn collect(row: &Row, request: &Collect) -> RowChange {
    let mut change = RowChange::new(request.row.clone(), Timestamp::ZERO);
    change.collected.clone_from(&request.superseded_at);
    let superseded = |version: &&WriteRecord| version.value.is_none() && change.collected.contains(&version.commit_ts);
    let deletion = row.write.as_ref().filter(|version| mutated!(CollectsLiveVersion) || superseded(version));
    if let Some(deletion) = deletion {
        let deleted_at = deletion.commit_ts;
        if row.lock.is_some() {
            change.collected.retain(|ts| *ts != deleted_at);
        } else {
            change.guards = smallvec![lock_as_read(row), Guard::NoCommitAfter(deleted_at)];
            if mutated!(CollectsLiveVersion) {
                change.guards.clear();
            }
            change.write = Edit::Delete;
        }
    }
    for version in &request.replaced {
        change.dropped.push(version.commit_ts);
        change.data.extend(version.value_of.map(|start_ts| (start_ts, Edit::Delete)));
    }
    change
}

/// Removes the record of how a transaction ended at its primary, once no lock of the transaction is left anywhere.
pub fn forget(primary: RowKey, start_ts: Timestamp) -> RowChange {
    let mut change = RowChange::new(primary, start_ts);
    change.status = Edit::Delete;
    change
}
