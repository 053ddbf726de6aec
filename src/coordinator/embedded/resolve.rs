//! Resolving locks whose owner cannot be waited for.
//!
//! Embedded there are three sorts of locks. One of an earlier life of the store is an orphan: its owner is gone, because the
//! engine admits one process. One of a transaction of this process that has passed its commit point is only waiting to
//! become a version, and anybody in a hurry may do that. Any other lock is alive and left alone.

use super::super::refused;
use super::Embedded;
use crate::error::{ErrorKind, Result};
use crate::pipeline::{Purpose, Settled};
use crate::protocol::{Asker, CheckStatus, CommitPoint, Refusal, Resolve, Step, check_status, forget, resolve};
use crate::row::{Lock, Row, RowKey, TxnId};
use crate::timestamp::Timestamp;

/// Each refusal means that somebody else has made progress on the row; so many in a row mean that something is wrong.
const TRIES_MAX: usize = 1000;

/// What became of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resolved {
    /// It was rolled forward or back.
    Verdict(CommitPoint),
    /// It was gone before.
    Gone,
    /// Its owner lives, and it stays.
    Alive,
}

impl Embedded {
    /// Gives the verdict on the lock and carries it out; a live owner's lock stays.
    pub(super) fn resolve_lock(&self, row: &RowKey, lock: &Lock) -> Result<Resolved> {
        let txn = lock.txn;
        crash_point!(ResolveLockSeen);
        // Asked before the lock is: it is forgotten when the last lock is gone, and would then be taken for alive.
        let abandoned = self.pipeline.is_abandoned(txn.start_ts);
        let verdict = match self.pipeline.unapplied(txn.start_ts) {
            Some(commit_ts) => CommitPoint::Committed(commit_ts),
            // It may have ended since its lock was read; then somebody has resolved it.
            None if !self.is_locked_by(row, txn)? => return Ok(Resolved::Gone),
            None if abandoned => {
                self.let_go_of(txn, &[&(row.clone(), lock.clone())])?;
                return Ok(Resolved::Verdict(CommitPoint::RolledBack));
            }
            None if !self.pipeline.is_orphan(txn.start_ts) => return Ok(Resolved::Alive),
            None => {
                let primary = lock.primary.clone();
                let request = CheckStatus { row: primary.clone(), txn, asker: Asker::Orphan };
                crash_point!(ResolveBeforeBack);
                let asked = if mutated!(BackWithoutAsking) {
                    Ok(CommitPoint::RolledBack)
                } else {
                    self.drive(&primary, txn.start_ts, Purpose::Other, |as_read| check_status(as_read, &request))?
                };
                match asked {
                    Ok(verdict) => verdict,
                    // The sweep has come to its end meanwhile.
                    Err(Refusal::BelowSafePoint(_)) if !self.is_locked_by(row, txn)? => return Ok(Resolved::Gone),
                    Err(why) => return Err(refused(&primary, why, txn.start_ts)),
                }
            }
        };
        crash_point!(ResolveVerdict);
        let verdict = match verdict {
            CommitPoint::Committed(ts) if mutated!(ForwardAtWrongTs) => CommitPoint::Committed(ts.next()),
            verdict => verdict,
        };
        crash_point!(ResolveBeforeForward if matches!(verdict, CommitPoint::Committed(_)));
        crash_point!(ResolvePrimaryBack if verdict == CommitPoint::RolledBack);
        let purpose = match verdict {
            CommitPoint::Committed(commit_ts) => Purpose::RollForward { commit_ts, finishes: false },
            CommitPoint::Pending | CommitPoint::RolledBack => Purpose::Other,
        };
        let request =
            Resolve { row: row.clone(), txn, verdict, keep_replaced: self.history.is_some(), record_holds: false };
        let done = self.drive(row, txn.start_ts, purpose, |as_read| resolve(as_read, &request))?;
        done.map_err(|why| refused(row, why, txn.start_ts))?;
        if mutated!(RecoveryForgets) {
            let forgotten = forget(lock.primary.clone(), txn.start_ts);
            self.drive(row, txn.start_ts, Purpose::Other, |_| Ok(Step::Apply(forgotten.clone(), ())))?.ok();
        }
        crash_point!(ResolveDone);
        match verdict {
            CommitPoint::Committed(_) => self.counters.rolled_forward.add(1),
            CommitPoint::RolledBack => self.counters.rolled_back.add(1),
            CommitPoint::Pending => {}
        }
        Ok(Resolved::Verdict(verdict))
    }

    fn is_locked_by(&self, row: &RowKey, txn: TxnId) -> Result<bool> {
        Ok(self.pipeline.engine().read_row(row, txn.start_ts)?.lock.is_some_and(|found| found.txn == txn))
    }

    /// Runs a step on a row that others may be changing: reads, decides, submits, until one of its changes is made.
    pub(super) fn drive<T>(
        &self,
        row: &RowKey,
        start_ts: Timestamp,
        purpose: Purpose,
        step: impl Fn(&Row) -> Result<Step<T>, Refusal>,
    ) -> Result<Result<T, Refusal>> {
        for _ in 0..TRIES_MAX {
            let as_read = self.pipeline.engine().read_row(row, start_ts)?;
            let (change, answer) = match step(&as_read) {
                Ok(Step::Apply(change, answer)) => (change, answer),
                Ok(Step::Done(answer)) => return Ok(Ok(answer)),
                Err(why) => return Ok(Err(why)),
            };
            if let Settled::Applied(_) = self.pipeline.submit_own(vec![change], purpose)? {
                return Ok(Ok(answer));
            }
        }
        Err(ErrorKind::Io(format!("row {row:?} kept changing under {TRIES_MAX} attempts to resolve it")).into())
    }
}
