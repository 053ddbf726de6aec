//! Check status: what became of a transaction? Ask its primary.
//!
//! This is the seed document's `cps`, the commit-point status. It is not stored as a field of its own: the primary's row
//! is the answer. Its lock is there: pending. A status record or a version with this `start_ts`: committed. A
//! rollback record: rolled back. No trace: the transaction never reached its primary; whoever asks writes the rollback
//! record first, so that the answer cannot change later. No trace of a transaction below the safe point: its records were
//! collected, which happens only when none of its locks is left, so the lock in question is gone by now.
//!
//! Whether a pending transaction is still alive is not for the row to say. Where one process owns the engine, that process
//! knows, and tells by [`OwnerLiveness::Dead`]. Where several share it, the lock's time to live is measured on the oracle's
//! timestamps, never on anybody's clock. A reader that must not wait for a live transaction pushes it: the owner may
//! then commit only above the reader's timestamp.

use smallvec::smallvec;

use super::roll_back::rollback_by_resolver;
use super::{Rollback, Step, StepError, own_lock, recorded_status};
use crate::row::{CellChange, Lock, Precondition, Row, RowChange, RowKey, TxnId, TxnRecord};
use crate::timestamp::Timestamp;

/// The verdict on a transaction, read from its primary's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionStatus {
    /// Not decided: the primary is locked.
    Pending,
    /// Committed at this timestamp: roll forward.
    Committed(Timestamp),
    /// Rolled back, or never begun: roll back.
    RolledBack,
}

/// Who asks, and on what grounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerLiveness {
    /// Knows that the owner is gone.
    Dead,
    /// Goes by the lock's time to live at this timestamp of the oracle, and pushes a live owner above `push_above`.
    ByTtl {
        /// Handed out by the oracle after the asker met the lock.
        current_ts: Timestamp,
        /// The asker's `read_ts`, if it reads.
        push_above: Option<Timestamp>,
    },
}

/// A question to a transaction's primary.
#[derive(Clone, Debug)]
pub struct CheckTxnStatus {
    /// The primary.
    pub row: RowKey,
    /// Which transaction.
    pub txn: TxnId,
    /// Who asks.
    pub liveness: OwnerLiveness,
}

/// What the primary's row says to somebody who has met one of the transaction's locks, without changing anything.
pub fn txn_status_or_rolled_back(primary: &Row, txn: TxnId) -> TransactionStatus {
    txn_status(primary, txn).unwrap_or(TransactionStatus::RolledBack)
}

/// What the primary's row says, if it says anything. Without a trace the transaction has not come to its primary yet, was
/// rolled back before it did, or ended so long ago that its records are gone: a lock elsewhere would tell which.
pub fn txn_status(primary: &Row, txn: TxnId) -> Option<TransactionStatus> {
    match recorded_status(primary, txn) {
        Some(TxnRecord::Committed(commit_ts)) => Some(TransactionStatus::Committed(commit_ts)),
        Some(TxnRecord::RolledBack) => Some(TransactionStatus::RolledBack),
        None => own_lock(primary, txn).map(|_| TransactionStatus::Pending),
    }
}

/// Asks the primary, and makes the answer final where the owner is gone.
pub fn check_txn_status(primary: &Row, request: &CheckTxnStatus) -> Result<Step<TransactionStatus>, StepError> {
    let txn = request.txn;
    match recorded_status(primary, txn) {
        Some(TxnRecord::Committed(commit_ts)) => return Ok(Step::Done(TransactionStatus::Committed(commit_ts))),
        Some(TxnRecord::RolledBack) => return Ok(Step::Done(TransactionStatus::RolledBack)),
        None => {}
    }
    let Some(lock) = own_lock(primary, txn) else {
        // Its records may have been collected. All its locks are gone then, so there is nothing to give a verdict for.
        if txn.start_ts < primary.safe_point {
            return Err(StepError::BelowSafePoint(primary.safe_point));
        }
        return roll_back_primary(primary, request);
    };
    if lock.primary != request.row {
        return Err(StepError::PrimaryMismatch(Box::new(lock.clone())));
    }
    match request.liveness {
        OwnerLiveness::Dead => roll_back_primary(primary, request),
        OwnerLiveness::ByTtl { current_ts, .. } if ttl_expired(txn, lock.ttl_ms, current_ts) => {
            roll_back_primary(primary, request)
        }
        OwnerLiveness::ByTtl { push_above: None, .. } => Ok(Step::Done(TransactionStatus::Pending)),
        OwnerLiveness::ByTtl { current_ts, push_above: Some(read_ts) } => {
            if read_ts > current_ts {
                return Err(StepError::FutureTimestamp(read_ts));
            }
            if lock.min_commit_ts > read_ts {
                return Ok(Step::Done(TransactionStatus::Pending));
            }
            let mut change = RowChange::new(request.row.clone(), txn.start_ts);
            change.preconditions = smallvec![Precondition::LockUnchanged(lock.version())];
            // Not just above the reader: of all timestamps this one alone is nobody's start.
            change.lock = CellChange::Put(Lock { min_commit_ts: current_ts.max(read_ts.next()), ..lock.clone() });
            Ok(Step::Apply(change, TransactionStatus::Pending))
        }
    }
}

/// Whether the lock's time to live is over at `current_ts`.
fn ttl_expired(txn: TxnId, ttl_ms: u64, current_ts: Timestamp) -> bool {
    txn.start_ts.millis().saturating_add(ttl_ms) < current_ts.millis()
}

fn roll_back_primary(primary: &Row, request: &CheckTxnStatus) -> Result<Step<TransactionStatus>, StepError> {
    if mutated!(StaleStatus) {
        return Ok(Step::Done(TransactionStatus::RolledBack));
    }
    let request = Rollback { row: request.row.clone(), txn: request.txn };
    Ok(match rollback_by_resolver(primary, &request)? {
        Step::Apply(change, ()) => Step::Apply(change, TransactionStatus::RolledBack),
        Step::Done(()) => Step::Done(TransactionStatus::RolledBack),
    })
}
