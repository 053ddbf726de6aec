//! Heartbeat: the owner extends the time to live of its primary lock.
//!
//! A heartbeat never shortens the time to live. It fails once the transaction has ended, so the
//! owner learns early that it cannot commit. Only the primary needs heartbeats: a transaction's
//! status is always read at the primary.

use super::{Step, StepError, own_lock, recorded_status};
use crate::row::{CellChange, Lock, Precondition, RowChange, RowKey, RowState, TxnId, TxnRecord};

/// A request to extend the primary lock's time to live.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    /// The primary.
    pub row: RowKey,
    /// The transaction whose lock it is.
    pub txn: TxnId,
    /// The lock's time to live becomes at least this, in milliseconds after `start_ts`.
    pub ttl_ms: u64,
}

/// Extends the lock's time to live, and never shortens it. Returns the resulting time to live, in
/// milliseconds after `start_ts`.
pub fn heartbeat(row: &RowState, request: &Heartbeat) -> Result<Step<u64>, StepError> {
    let Some(lock) = own_lock(row, request.txn) else {
        return Err(match recorded_status(row, request.txn) {
            Some(TxnRecord::Committed(commit_ts)) => StepError::AlreadyCommitted(commit_ts),
            _ => StepError::AlreadyRolledBack,
        });
    };
    if request.ttl_ms <= lock.ttl_ms {
        return Ok(Step::Done(lock.ttl_ms));
    }
    let mut change = RowChange::new(request.row.clone(), request.txn.start_ts);
    change.preconditions = [Precondition::LockUnchanged(lock.version())].into();
    change.lock = CellChange::Put(Lock { ttl_ms: request.ttl_ms, ..lock.clone() });
    Ok(Step::Apply(change, request.ttl_ms))
}
