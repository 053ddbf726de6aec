//! Check status: what became of a transaction? Ask its primary.
//!
//! This is the seed document's `cps`, the commit-point status. It is not stored as a field of its own: the primary's row
//! is the answer. Its lock is there: pending. A status record or a version with this `start_ts`: committed. A
//! rollback record: rolled back. No trace: the transaction never reached its primary; whoever asks writes the rollback
//! record first, so that the answer cannot change later. No trace of a transaction below the safe point: its records were
//! collected, which happens only when none of its locks is left, so the lock in question is gone by now.
//!
//! Whether a pending transaction is still alive is not for the row to say. Where one process owns the engine, that process
//! knows, and tells by [`Asker::Orphan`]. Where several share it, the lock's time to live is measured on the oracle's
//! timestamps, never on anybody's clock. A reader that must not wait for a live transaction pushes it: the owner may
//! then commit only above the reader's timestamp.

use smallvec::smallvec;

use super::roll_back::roll_back_for_another;
use super::{Refusal, RollBack, Step, lock_of, outcome_of};
use crate::row::{Edit, Guard, Lock, Row, RowChange, RowKey, Status, TxnId};
use crate::timestamp::Timestamp;

/// The verdict on a transaction, read from its primary's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitPoint {
    /// Not decided: the primary is locked.
    Pending,
    /// Committed at this timestamp: roll forward.
    Committed(Timestamp),
    /// Rolled back, or never begun: roll back.
    RolledBack,
}

/// Who asks, and on what grounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// Knows that the owner is gone.
    Orphan,
    /// Goes by the lock's time to live at this timestamp of the oracle, and pushes a live owner above `push_above`.
    Shared {
        /// Handed out by the oracle after the asker met the lock.
        current_ts: Timestamp,
        /// The asker's `read_ts`, if it reads.
        push_above: Option<Timestamp>,
    },
}

/// A question to a transaction's primary.
#[derive(Clone, Debug)]
pub struct CheckStatus {
    /// The primary.
    pub row: RowKey,
    /// Which transaction.
    pub txn: TxnId,
    /// Who asks.
    pub asker: Asker,
}

/// What the primary's row says to somebody who has met one of the transaction's locks, without changing anything.
pub fn commit_point(primary: &Row, txn: TxnId) -> CommitPoint {
    trace(primary, txn).unwrap_or(CommitPoint::RolledBack)
}

/// What the primary's row says, if it says anything. Without a trace the transaction has not come to its primary yet, was
/// rolled back before it did, or ended so long ago that its records are gone: a lock elsewhere would tell which.
pub fn trace(primary: &Row, txn: TxnId) -> Option<CommitPoint> {
    match outcome_of(primary, txn) {
        Some(Status::Committed(commit_ts)) => Some(CommitPoint::Committed(commit_ts)),
        Some(Status::RolledBack) => Some(CommitPoint::RolledBack),
        None => lock_of(primary, txn).map(|_| CommitPoint::Pending),
    }
}

/// Asks the primary, and makes the answer final where the owner is gone.
pub fn check_status(primary: &Row, request: &CheckStatus) -> Result<Step<CommitPoint>, Refusal> {
    let txn = request.txn;
    match outcome_of(primary, txn) {
        Some(Status::Committed(commit_ts)) => return Ok(Step::Done(CommitPoint::Committed(commit_ts))),
        Some(Status::RolledBack) => return Ok(Step::Done(CommitPoint::RolledBack)),
        None => {}
    }
    let Some(lock) = lock_of(primary, txn) else {
        // Its records may have been collected. All its locks are gone then, so there is nothing to give a verdict for.
        if txn.start_ts < primary.safe_point {
            return Err(Refusal::BelowSafePoint(primary.safe_point));
        }
        return end(primary, request);
    };
    if lock.primary != request.row {
        return Err(Refusal::PrimaryMismatch(Box::new(lock.clone())));
    }
    match request.asker {
        Asker::Orphan => end(primary, request),
        Asker::Shared { current_ts, .. } if expired(txn, lock.ttl_ms, current_ts) => end(primary, request),
        Asker::Shared { push_above: None, .. } => Ok(Step::Done(CommitPoint::Pending)),
        Asker::Shared { current_ts, push_above: Some(read_ts) } => {
            if read_ts > current_ts {
                return Err(Refusal::FromTheFuture(read_ts));
            }
            if lock.min_commit_ts > read_ts {
                return Ok(Step::Done(CommitPoint::Pending));
            }
            let mut change = RowChange::new(request.row.clone(), txn.start_ts);
            change.guards = smallvec![Guard::LockIs(lock.stamp())];
            // Not just above the reader: of all timestamps this one alone is nobody's start.
            change.lock = Edit::Put(Lock { min_commit_ts: current_ts.max(read_ts.next()), ..lock.clone() });
            Ok(Step::Apply(change, CommitPoint::Pending))
        }
    }
}

/// Whether the lock's time to live is over at `current_ts`.
fn expired(txn: TxnId, ttl_ms: u64, current_ts: Timestamp) -> bool {
    txn.start_ts.millis().saturating_add(ttl_ms) < current_ts.millis()
}

fn end(primary: &Row, request: &CheckStatus) -> Result<Step<CommitPoint>, Refusal> {
    if mutated!(StaleStatus) {
        return Ok(Step::Done(CommitPoint::RolledBack));
    }
    let request = RollBack { row: request.row.clone(), txn: request.txn };
    Ok(match roll_back_for_another(primary, &request)? {
        Step::Apply(change, ()) => Step::Apply(change, CommitPoint::RolledBack),
        Step::Done(()) => Step::Done(CommitPoint::RolledBack),
    })
}
