//! Transaction status: pending, committed or rolled back, read from the primary's row.
//!
//! In TiKV the check of the status is `CheckTxnStatus`. The status is not a field of its own; it
//! follows from the primary's row:
//!
//! | at the primary | status |
//! |---|---|
//! | the transaction's lock | pending |
//! | a transaction record or a version with its `start_ts` | as recorded |
//! | none of these | it never prewrote its primary: rolled back |
//! | none of these, and `start_ts` is below the safe point | unknown: its records are deleted |
//!
//! In the third case of the table the check stores a rollback record, so that the status cannot
//! change later. In the fourth case the lock that led to the check is already resolved, because
//! records are deleted only after all locks of their transaction are resolved.
//!
//! The row does not show whether the owner of a pending transaction still runs. On an exclusive
//! engine the process itself has that information and passes [`OwnerLiveness::Ended`]. On a shared
//! engine the check compares the lock's time to live with the oracle's timestamps, never with a
//! local clock.
//!
//! On a shared engine a reader does not wait for a running transaction. It pushes the lock's
//! `min_commit_ts`, so the owner can commit only above the reader's timestamp.

use super::rollback::rollback_by_resolver;
use super::{Rollback, Step, StepError, own_lock, recorded_status};
use crate::row::{CellChange, Lock, Precondition, RowChange, RowKey, RowState, TxnId, TxnRecord};
use crate::timestamp::Timestamp;

/// The status of a transaction, read from its primary's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxnStatus {
    /// Undecided: the primary is locked. The commit is in progress, or its process has ended before
    /// the commit point.
    Pending,
    /// Committed at this timestamp: roll forward.
    Committed(Timestamp),
    /// Rolled back, or never prewritten at its primary: roll back.
    RolledBack,
}

/// How the check decides whether the transaction's owner still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerLiveness {
    /// The owner has ended.
    Ended,
    /// The owner counts as ended if the lock's time to live has expired at `current_ts`. If not,
    /// the check raises the lock's `min_commit_ts` above `push_above`, if that is set.
    ByTtl {
        /// A timestamp that the oracle handed out after the caller found the lock.
        current_ts: Timestamp,
        /// The caller's `read_ts`, if it reads.
        push_above: Option<Timestamp>,
    },
}

/// A request for a transaction's status at its primary.
#[derive(Clone, Debug)]
pub struct CheckTxnStatus {
    /// The primary.
    pub row: RowKey,
    /// The transaction.
    pub txn: TxnId,
    /// How the check decides whether the owner still runs.
    pub liveness: OwnerLiveness,
}

/// The status at the primary; changes nothing. The caller must have found one of the transaction's
/// locks in the same snapshot, so that a primary without a status means *rolled back*.
pub fn txn_status_or_rolled_back(primary: &RowState, txn: TxnId) -> TxnStatus {
    txn_status(primary, txn).unwrap_or(TxnStatus::RolledBack)
}

/// The status at the primary, if the row records one. `None`: the transaction has not prewritten
/// its primary yet, was rolled back without a record, or its records were deleted. The primary's
/// row alone does not distinguish these cases.
pub fn txn_status(primary: &RowState, txn: TxnId) -> Option<TxnStatus> {
    match recorded_status(primary, txn) {
        Some(TxnRecord::Committed(commit_ts)) => Some(TxnStatus::Committed(commit_ts)),
        Some(TxnRecord::RolledBack) => Some(TxnStatus::RolledBack),
        None => own_lock(primary, txn).map(|_| TxnStatus::Pending),
    }
}

/// Reads the status at the primary; rolls the transaction back if its owner has ended.
pub fn check_txn_status(primary: &RowState, request: &CheckTxnStatus) -> Result<Step<TxnStatus>, StepError> {
    let txn = request.txn;
    match recorded_status(primary, txn) {
        Some(TxnRecord::Committed(commit_ts)) => return Ok(Step::Done(TxnStatus::Committed(commit_ts))),
        Some(TxnRecord::RolledBack) => return Ok(Step::Done(TxnStatus::RolledBack)),
        None => {}
    }
    let Some(lock) = own_lock(primary, txn) else {
        // Below the safe point, a transaction's locks are all resolved and its records may be
        // deleted, so the row need not show its status any more.
        if txn.start_ts < primary.safe_point {
            return Err(StepError::BelowSafePoint(primary.safe_point));
        }
        return roll_back_primary(primary, request);
    };
    if lock.primary != request.row {
        return Err(StepError::PrimaryMismatch(Box::new(lock.clone())));
    }
    match request.liveness {
        OwnerLiveness::Ended => roll_back_primary(primary, request),
        OwnerLiveness::ByTtl { current_ts, .. } if ttl_expired(txn, lock.ttl_ms, current_ts) => {
            roll_back_primary(primary, request)
        }
        OwnerLiveness::ByTtl { push_above: None, .. } => Ok(Step::Done(TxnStatus::Pending)),
        OwnerLiveness::ByTtl { current_ts, push_above: Some(read_ts) } => {
            if read_ts > current_ts {
                return Err(StepError::FutureTimestamp(read_ts));
            }
            if lock.min_commit_ts > read_ts {
                return Ok(Step::Done(TxnStatus::Pending));
            }
            let mut change = RowChange::new(request.row.clone(), txn.start_ts);
            change.preconditions = [Precondition::LockUnchanged(lock.version())].into();
            // The owner may commit exactly at its `min_commit_ts`, so this must not be another
            // transaction's timestamp. It is `current_ts`, which was drawn for this check alone.
            // Even if a caller reuses its `read_ts` for it, the push must be above `read_ts`.
            change.lock = CellChange::Put(Lock { min_commit_ts: current_ts.max(read_ts.next()), ..lock.clone() });
            Ok(Step::Apply(change, TxnStatus::Pending))
        }
    }
}

/// Whether the lock's time to live has expired at `current_ts`.
fn ttl_expired(txn: TxnId, ttl_ms: u64, current_ts: Timestamp) -> bool {
    txn.start_ts.millis().saturating_add(ttl_ms) < current_ts.millis()
}

fn roll_back_primary(primary: &RowState, request: &CheckTxnStatus) -> Result<Step<TxnStatus>, StepError> {
    let request = Rollback { row: request.row.clone(), txn: request.txn };
    Ok(match rollback_by_resolver(primary, &request)? {
        Step::Apply(change, ()) => Step::Apply(change, TxnStatus::RolledBack),
        Step::Done(()) => Step::Done(TxnStatus::RolledBack),
    })
}
