//! Heartbeat: a live owner pushes the end of its primary lock's life further out.
//!
//! A heartbeat never shortens a life, and it fails once the transaction has ended, so that its owner learns in time
//! that there is nothing left to commit. Only the primary needs one: everybody asks there.

use smallvec::smallvec;

use super::{Step, StepError, own_lock, recorded_status};
use crate::row::{CellChange, Lock, Precondition, Row, RowChange, RowKey, TxnId, TxnRecord};

/// A sign of life.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    /// The primary.
    pub row: RowKey,
    /// Whose lock it is.
    pub txn: TxnId,
    /// Milliseconds after `start_ts` that the lock shall live at least.
    pub ttl_ms: u64,
}

/// Extends the lock's life; the answer is its time to live from now on.
pub fn heartbeat(row: &Row, request: &Heartbeat) -> Result<Step<u64>, StepError> {
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
    change.preconditions = smallvec![Precondition::LockUnchanged(lock.version())];
    change.lock = CellChange::Put(Lock { ttl_ms: request.ttl_ms, ..lock.clone() });
    Ok(Step::Apply(change, request.ttl_ms))
}
