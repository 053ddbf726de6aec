//! Collect: take a deleted row's record away once nobody can need it.
//!
//! The record of a deletion tells an older transaction that the row was written after its snapshot. When no transaction
//! that reads below the deletion is left, the record says nothing that the row's absence does not say. A row that was
//! written again since, or is locked, keeps what it has; only the entry in the collector's work list goes.

use super::lock_as_read;
use crate::row::{Edit, Guard, Row, RowChange, RowKey};
use crate::timestamp::Timestamp;

/// A deletion that lies below every live snapshot.
#[derive(Clone, Debug)]
pub struct Collect {
    /// The row.
    pub row: RowKey,
    /// When it was deleted.
    pub deleted_at: Timestamp,
}

/// Removes the record of the deletion, if it is still the row's newest version.
pub fn collect(row: &Row, request: &Collect) -> RowChange {
    let mut change = RowChange::new(request.row.clone(), Timestamp::ZERO);
    let deletion = row
        .write
        .as_ref()
        .filter(|w| mutated!(CollectsLiveVersion) || (w.value.is_none() && w.commit_ts == request.deleted_at));
    if row.lock.is_some() {
        return change;
    }
    if deletion.is_some() {
        change.guards = vec![lock_as_read(row), Guard::NoCommitAfter(request.deleted_at)];
        if mutated!(CollectsLiveVersion) {
            change.guards.clear();
        }
        change.write = Edit::Delete;
    }
    change.collected = Some(request.deleted_at);
    change
}

/// Removes the record of how a transaction ended at its primary, once no lock of the transaction is left anywhere.
pub fn forget(primary: RowKey, start_ts: Timestamp) -> RowChange {
    let mut change = RowChange::new(primary, start_ts);
    change.status = Edit::Delete;
    change
}
