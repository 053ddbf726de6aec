//! One phase: where one atomic call can hold the whole transaction, its versions are written straight.
//!
//! The guards are those of a prewrite, the result that of a commit, and nothing is ever in between: no lock, no status
//! record, nothing to resolve. TiKV calls it 1PC. It is sound only where the commit timestamp is taken, and the change
//! made, before any reader can open a view at or above that timestamp; the commit pipeline sees to that.

use super::commit::retire_old_version;
use super::{Step, StepError, recorded_status};
use crate::row::{CellChange, Mutation, Precondition, Row, RowChange, RowKey, TxnId, TxnRecord};
use crate::timestamp::Timestamp;

/// A request to write a version without locking first.
#[derive(Clone, Debug)]
pub struct OnePhase<'a> {
    /// The row.
    pub row: &'a RowKey,
    /// Who asks.
    pub txn: TxnId,
    /// What the transaction has seen; any newer version is a conflict.
    pub read_ts: Timestamp,
    /// When the transaction commits. A pipeline that learns it later stamps the change.
    pub commit_ts: Timestamp,
    /// What becomes of the row.
    pub mutation: &'a Mutation,
    /// Whether the replaced version is kept as history.
    pub keep_old_version: bool,
}

/// Writes the row's next version; the answer is the timestamp at which it is committed.
pub fn one_phase(row: &Row, request: &OnePhase<'_>) -> Result<Step<Timestamp>, StepError> {
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
