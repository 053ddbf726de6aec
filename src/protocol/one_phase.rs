//! One-phase commit (TiKV: 1PC): one atomic batch writes all versions of the transaction.
//!
//! Two preconditions detect conflicts, as in a prewrite: the row has no lock, and no commit after
//! `read_ts`. Afterwards the row is as if it had been prewritten and committed. But no intermediate
//! state exists: no lock, no transaction record, nothing to resolve. A commit without locks is
//! sound only if the commit timestamp is allocated, and the change applied, before any reader can
//! open a view at or above that timestamp. The commit pipeline ensures this order.

use super::commit::retire_old_version;
use super::{Step, StepError, recorded_status};
use crate::row::{CellChange, Mutation, Precondition, RowChange, RowKey, RowState, TxnId, TxnRecord};
use crate::timestamp::Timestamp;

/// A request to write a version without locking the row first.
#[derive(Clone, Debug)]
pub struct OnePhase<'a> {
    /// The row.
    pub row: &'a RowKey,
    /// The transaction.
    pub txn: TxnId,
    /// The transaction's snapshot; any newer version is a conflict.
    pub read_ts: Timestamp,
    /// The commit timestamp, or a placeholder that the pipeline later replaces in the change.
    pub commit_ts: Timestamp,
    /// What the transaction does to the row.
    pub mutation: &'a Mutation,
    /// Whether the replaced version is kept as history.
    pub keep_old_version: bool,
}

/// Writes the row's next version; returns the timestamp at which it is committed.
pub fn one_phase(row: &RowState, request: &OnePhase<'_>) -> Result<Step<Timestamp>, StepError> {
    let txn = request.txn;
    match recorded_status(row, txn) {
        Some(TxnRecord::RolledBack) => return Err(StepError::AlreadyRolledBack),
        Some(TxnRecord::Committed(commit_ts)) => return Ok(Step::Done(commit_ts)),
        None => {}
    }
    if let Some(lock) = &row.lock {
        return Err(StepError::KeyIsLocked(Box::new(lock.clone())));
    }
    if let Some(newer) = row.write.as_ref().filter(|write| write.last_commit_ts() > request.read_ts) {
        return Err(StepError::WriteConflict(Box::new(newer.clone())));
    }
    let mut change = RowChange::next_version(request.row, txn, request.commit_ts, request.mutation);
    change.preconditions = Precondition::for_next_version(request.read_ts).into();
    if change.write != CellChange::Keep {
        retire_old_version(row, request.keep_old_version, &mut change);
    }
    Ok(Step::Apply(change, request.commit_ts))
}
