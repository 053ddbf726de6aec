//! Resolving a lock: finds its transaction's status, and brings the row to that status.
//!
//! The engine is exclusive to this process, so the [fate](crate::pipeline::Fate) of the lock's
//! transaction is available without waiting:
//!
//! - *committed*: the lock becomes a version;
//! - *rolled back*: the lock is removed;
//! - *orphan*: the transaction began in an earlier incarnation, whose process has ended. The
//!   primary determines the status;
//! - *alive*: the lock stays.
//!
//! For an orphan lock on row `b` whose primary is row `a`:
//!
//! | row `a` | change of `a` | change of `b` |
//! |---|---|---|
//! | still locked | rolled back, with a rollback record | the lock is removed |
//! | commit record or version of the transaction | none | the lock becomes a version |
//! | rollback record | none | the lock is removed |
//! | none of these | a rollback record is stored | the lock is removed |
//!
//! When the lock on `b` is removed, `b` gets a rollback record as well.
//!
//! Row `a` is changed first, and the status is final from then on. So a crash in between is
//! harmless, and resolvers may run concurrently: each finds the same status. The
//! [sweep](super::sweep) deletes the records after the last orphan lock is resolved.

use super::super::step_error::step_error;
use super::resolve_locks::release_locks;
use super::rows::Rows;
use crate::error::Result;
use crate::pipeline::{Fate, SubmissionKind};
use crate::protocol::{CheckTxnStatus, OwnerLiveness, Resolve, StepError, TxnStatus, check_txn_status, resolve};
use crate::row::{Lock, RowKey};

/// The result of resolving a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockResolution {
    /// The lock was rolled forward or back.
    Resolved(TxnStatus),
    /// Another caller has already resolved the lock.
    AlreadyGone,
    /// The lock's transaction is running, so the lock stays.
    OwnerAlive,
}

/// Resolves the lock unless its transaction is running.
pub fn resolve_lock(rows: &Rows, row: &RowKey, lock: &Lock) -> Result<LockResolution> {
    crash_point!(ResolveLockSeen);
    let status = match rows.pipeline.fates().fate(lock.txn.start_ts) {
        Fate::Committed(commit_ts) => TxnStatus::Committed(commit_ts),
        // A transaction of this incarnation without an entry in the table of fates counts as alive.
        // An entry is deleted after the transaction's last lock. So the row is read after the fate:
        // if it is still locked, the fate was not read too late.
        _ if !rows.is_locked_by(row, lock.txn)? => return Ok(LockResolution::AlreadyGone),
        Fate::RolledBack => {
            release_locks(rows, lock.txn, &[&(row.clone(), lock.clone())])?;
            return Ok(LockResolution::Resolved(TxnStatus::RolledBack));
        }
        Fate::Alive => return Ok(LockResolution::OwnerAlive),
        Fate::Orphan => match status_of_orphan(rows, row, lock)? {
            Some(status) => status,
            None => return Ok(LockResolution::AlreadyGone),
        },
    };
    crash_point!(ResolveStatusKnown);
    apply_status(rows, row, lock, status)?;
    Ok(LockResolution::Resolved(status))
}

/// Reads the primary of an orphan lock; if the primary is not committed, rolls it back. The
/// returned status is final. `None`: the row is not locked any more.
fn status_of_orphan(rows: &Rows, row: &RowKey, lock: &Lock) -> Result<Option<TxnStatus>> {
    let (primary, txn) = (lock.primary.clone(), lock.txn);
    crash_point!(ResolveBeforeRollback);
    let request = CheckTxnStatus { row: primary.clone(), txn, liveness: OwnerLiveness::Ended };
    let checked =
        rows.run_step(&primary, txn.start_ts, SubmissionKind::NoCommit, |as_read| check_txn_status(as_read, &request))?;
    match checked {
        Ok(status) => Ok(Some(status)),
        // The sweep has resolved the lock in the meantime, and deleted the transaction's record.
        Err(StepError::BelowSafePoint(_)) if !rows.is_locked_by(row, txn)? => Ok(None),
        Err(error) => Err(step_error(&primary, error, txn.start_ts)),
    }
}

fn apply_status(rows: &Rows, row: &RowKey, lock: &Lock, status: TxnStatus) -> Result<()> {
    let txn = lock.txn;
    crash_point!(ResolveBeforeRollForward if matches!(status, TxnStatus::Committed(_)));
    crash_point!(ResolvePrimaryRolledBack if status == TxnStatus::RolledBack);
    let kind = match status {
        TxnStatus::Committed(commit_ts) => SubmissionKind::RollForward { commit_ts, finishes: false },
        TxnStatus::Pending | TxnStatus::RolledBack => SubmissionKind::NoCommit,
    };
    let keep_old_version = rows.keep_old_versions;
    let request = Resolve { row: row.clone(), txn, status, keep_old_version, on_shared_engine: false };
    let done = rows.run_step(row, txn.start_ts, kind, |as_read| resolve(as_read, &request))?;
    done.map_err(|error| step_error(row, error, txn.start_ts))?;
    crash_point!(ResolveDone);
    match status {
        TxnStatus::Committed(_) => rows.metrics.locks_rolled_forward.add(1),
        TxnStatus::RolledBack => rows.metrics.locks_rolled_back.add(1),
        TxnStatus::Pending => {}
    }
    Ok(())
}
