//! Resolving locks whose owner cannot be waited for.
//!
//! Embedded there are three sorts of locks. One of an earlier life of the store is an orphan: its owner is gone, because the
//! engine admits one process. One of a transaction of this process that has passed its commit point is only waiting to
//! become a version, and anybody in a hurry may do that. Any other lock is alive and left alone.

use super::super::step_error;
use super::EmbeddedCoordinator;
use crate::error::{ErrorKind, Result};
use crate::pipeline::{SubmissionKind, SubmitResult};
use crate::protocol::{
    CheckTxnStatus, OwnerLiveness, Resolve, Step, StepError, TransactionStatus, check_txn_status, delete_txn_record,
    resolve,
};
use crate::row::{Lock, Row, RowKey, TxnId};
use crate::timestamp::Timestamp;

/// Each refusal means that somebody else has made progress on the row; so many in a row mean that something is wrong.
const RESOLVE_RETRIES_MAX: usize = 1000;

/// What became of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockResolution {
    /// It was rolled forward or back.
    Resolved(TransactionStatus),
    /// It was gone before.
    AlreadyGone,
    /// Its owner lives, and it stays.
    OwnerAlive,
}

impl EmbeddedCoordinator {
    /// Gives the verdict on the lock and carries it out; a live owner's lock stays.
    pub(super) fn resolve_lock(&self, row: &RowKey, lock: &Lock) -> Result<LockResolution> {
        let txn = lock.txn;
        crash_point!(ResolveLockSeen);
        // Asked before the lock is: it is forgotten when the last lock is gone, and would then be taken for alive.
        let abandoned = self.pipeline.is_abandoned(txn.start_ts);
        let verdict = match self.pipeline.unapplied(txn.start_ts) {
            Some(commit_ts) => TransactionStatus::Committed(commit_ts),
            // It may have ended since its lock was read; then somebody has resolved it.
            None if !self.is_locked_by(row, txn)? => return Ok(LockResolution::AlreadyGone),
            None if abandoned => {
                self.release_locks(txn, &[&(row.clone(), lock.clone())])?;
                return Ok(LockResolution::Resolved(TransactionStatus::RolledBack));
            }
            None if !self.pipeline.is_orphan(txn.start_ts) => return Ok(LockResolution::OwnerAlive),
            None => {
                let primary = lock.primary.clone();
                let request = CheckTxnStatus { row: primary.clone(), txn, liveness: OwnerLiveness::Dead };
                crash_point!(ResolveBeforeRollback);
                let asked = if mutated!(RollbackWithoutPrimary) {
                    Ok(TransactionStatus::RolledBack)
                } else {
                    self.run_step(&primary, txn.start_ts, SubmissionKind::NoCommit, |as_read| {
                        check_txn_status(as_read, &request)
                    })?
                };
                match asked {
                    Ok(verdict) => verdict,
                    // The sweep has come to its end meanwhile.
                    Err(StepError::BelowSafePoint(_)) if !self.is_locked_by(row, txn)? => {
                        return Ok(LockResolution::AlreadyGone);
                    }
                    Err(why) => return Err(step_error(&primary, why, txn.start_ts)),
                }
            }
        };
        crash_point!(ResolveStatusKnown);
        let verdict = match verdict {
            TransactionStatus::Committed(ts) if mutated!(ForwardAtWrongTs) => TransactionStatus::Committed(ts.next()),
            verdict => verdict,
        };
        crash_point!(ResolveBeforeRollForward if matches!(verdict, TransactionStatus::Committed(_)));
        crash_point!(ResolvePrimaryRolledBack if verdict == TransactionStatus::RolledBack);
        let purpose = match verdict {
            TransactionStatus::Committed(commit_ts) => SubmissionKind::RollForward { commit_ts, finishes: false },
            TransactionStatus::Pending | TransactionStatus::RolledBack => SubmissionKind::NoCommit,
        };
        let request = Resolve {
            row: row.clone(),
            txn,
            status: verdict,
            keep_old_version: self.history.is_some(),
            record_lock_only: false,
        };
        let done = self.run_step(row, txn.start_ts, purpose, |as_read| resolve(as_read, &request))?;
        done.map_err(|why| step_error(row, why, txn.start_ts))?;
        if mutated!(ResolveDropsStatus) {
            let forgotten = delete_txn_record(lock.primary.clone(), txn.start_ts);
            self.run_step(row, txn.start_ts, SubmissionKind::NoCommit, |_| Ok(Step::Apply(forgotten.clone(), ())))?
                .ok();
        }
        crash_point!(ResolveDone);
        match verdict {
            TransactionStatus::Committed(_) => self.metrics.locks_rolled_forward.add(1),
            TransactionStatus::RolledBack => self.metrics.locks_rolled_back.add(1),
            TransactionStatus::Pending => {}
        }
        Ok(LockResolution::Resolved(verdict))
    }

    fn is_locked_by(&self, row: &RowKey, txn: TxnId) -> Result<bool> {
        Ok(self.pipeline.engine().read_row(row, txn.start_ts)?.lock.is_some_and(|found| found.txn == txn))
    }

    /// Runs a step on a row that others may be changing: reads, decides, submits, until one of its changes is made.
    pub(super) fn run_step<T>(
        &self,
        row: &RowKey,
        start_ts: Timestamp,
        purpose: SubmissionKind,
        step: impl Fn(&Row) -> Result<Step<T>, StepError>,
    ) -> Result<Result<T, StepError>> {
        for _ in 0..RESOLVE_RETRIES_MAX {
            let as_read = self.pipeline.engine().read_row(row, start_ts)?;
            let (change, answer) = match step(&as_read) {
                Ok(Step::Apply(change, answer)) => (change, answer),
                Ok(Step::Done(answer)) => return Ok(Ok(answer)),
                Err(why) => return Ok(Err(why)),
            };
            if let SubmitResult::Applied(_) = self.pipeline.submit_internal(vec![change], purpose)? {
                return Ok(Ok(answer));
            }
        }
        Err(ErrorKind::Io(format!("row {row:?} kept changing under {RESOLVE_RETRIES_MAX} attempts to resolve it"))
            .into())
    }
}
