//! How large transactions end: their locks are turned into versions, or taken away, in the background and page by page.
//!
//! The verdict stands before an ending begins, in the primary's record or in the pipeline's memory of who gave up. So
//! anybody may do a part of the work: writers that meet such a lock do. A process that dies in the middle leaves the rest
//! to the [sweep](super::housekeeping) of the next, which reads the same verdict.

use std::ops::Bound;

use super::EmbeddedCoordinator;
use crate::engine::{PageRequest, RowRange};
use crate::error::Result;
use crate::pipeline::{Rejection, SubmissionKind, SubmitResult};
use crate::protocol::{Rollback, TransactionStatus, delete_txn_record, release_lock};
use crate::row::{Lock, Row, RowChange, RowKey, TxnId};
use crate::timestamp::Timestamp;

/// A transaction whose verdict stands while rows are still locked.
#[derive(Clone)]
pub struct LockCleanup {
    txn: TxnId,
    primary: RowKey,
    /// Where locks of it may be left.
    remaining: RowRange,
    status: TransactionStatus,
}

impl LockCleanup {
    /// The end of a transaction that has locked rows from `lowest` to `highest`: committed, or else rolled back.
    pub fn new(txn: TxnId, primary: &RowKey, lowest: &RowKey, highest: &RowKey, committed: Option<Timestamp>) -> Self {
        let bound = |row: &RowKey| Bound::Included(row.as_bytes().to_vec());
        let rest = RowRange { start: bound(lowest), end: bound(highest) };
        let verdict = committed.map_or(TransactionStatus::RolledBack, TransactionStatus::Committed);
        Self { txn, primary: primary.clone(), remaining: rest, status: verdict }
    }
}

impl EmbeddedCoordinator {
    pub(super) fn schedule_cleanup(&self, ending: LockCleanup) {
        self.cleanups.lock().push_back(ending);
        self.wake_background();
    }

    /// How many large transactions are over with rows still locked.
    pub fn pending_cleanups(&self) -> usize {
        self.cleanups.lock().len()
    }

    /// Does the next page of the oldest ending; the answer is whether there is more to do.
    pub fn cleanup_page(&self) -> Result<bool> {
        let Some(ending) = self.cleanups.lock().front().cloned() else { return Ok(false) };
        let txn = ending.txn;
        let (next, failed) = match self.cleanup_page_of(ending) {
            Ok(next) => (next, None),
            Err(why) => (None, Some(why)),
        };
        // Whoever has done the same page meanwhile has come to the same.
        let mut endings = self.cleanups.lock();
        let position = endings.iter().position(|other| other.txn == txn);
        if let Some(done) = position.and_then(|position| endings.remove(position)) {
            match (next, &failed) {
                (Some(next), _) => endings.push_front(next),
                // The others must not wait for one that fails.
                (None, Some(_)) => endings.push_back(done),
                (None, None) => {}
            }
        }
        failed.map_or(Ok(!endings.is_empty()), Err)
    }

    /// What is left to do after the page.
    fn cleanup_page_of(&self, mut ending: LockCleanup) -> Result<Option<LockCleanup>> {
        let limit = self.group_rows_max();
        let page = PageRequest { range: &ending.remaining, backwards: false, limit, cursor: None };
        let found = self.pipeline.engine().snapshot()?.scan_locks(&page)?;
        let ends_here = mutated!(ShortPageEndsCleanup) && found.len() < limit;
        let last = found.last().map(|(row, _)| Bound::Excluded(row.as_bytes().to_vec()));
        let own: Vec<_> = found.into_iter().filter(|(_, lock)| lock.txn == ending.txn).collect();
        self.resolve_locks(ending.txn, &ending.primary, &own, ending.status, false)?;
        self.metrics.cleanup_rows.add(own.len() as u64);
        if let Some(last) = last.filter(|_| !mutated!(CleanupEndsEarly)).filter(|_| !ends_here) {
            ending.remaining.start = last;
            crash_point!(CleanupForward if ending.status != TransactionStatus::RolledBack);
            crash_point!(CleanupBack if ending.status == TransactionStatus::RolledBack);
            return Ok(Some(ending));
        }
        crash_point!(CleanupDone);
        self.finish_cleanup(&ending)?;
        event!(DEBUG, start_ts = %ending.txn.start_ts, "large transaction ended");
        Ok(None)
    }

    /// Takes the record of the end away: there is nobody left to tell.
    fn finish_cleanup(&self, ending: &LockCleanup) -> Result<()> {
        self.resolve_locks(ending.txn, &ending.primary, &[], ending.status, true)?;
        self.pipeline.forget_large_txn(ending.txn.start_ts)
    }

    /// Carries a verdict that stands out on many rows, on as many at once as the engine can change. Those that somebody else has
    /// done are left alone. With the last rows of a committed transaction its record goes, too: that `finishes` it.
    pub(super) fn resolve_locks(
        &self,
        txn: TxnId,
        primary: &RowKey,
        locks: &[(RowKey, Lock)],
        verdict: TransactionStatus,
        finishes: bool,
    ) -> Result<()> {
        let mut locks = locks;
        while let Some((some, others)) = locks.split_at_checked(self.group_rows_max())
            && !others.is_empty()
        {
            self.resolve_locks(txn, primary, some, verdict, false)?;
            locks = others;
        }
        let mut left: Vec<&(RowKey, Lock)> = locks.iter().collect();
        loop {
            let done = match verdict {
                TransactionStatus::Committed(commit_ts) if finishes || !left.is_empty() => {
                    let record = finishes.then(|| delete_txn_record(primary.clone(), txn.start_ts));
                    self.roll_forward(txn, &left, commit_ts, record)?
                }
                TransactionStatus::RolledBack if !left.is_empty() => self.release_locks(txn, &left)?,
                _ => None,
            };
            let Some(done) = done else { return Ok(()) };
            // Whoever has done this one is at work on the others, too.
            let view = self.pipeline.engine().snapshot()?;
            let mut still = Vec::with_capacity(left.len());
            for locked in left {
                if locked.0 != done && view.lock(&locked.0)?.is_some_and(|lock| lock.txn == txn) {
                    still.push(locked);
                }
            }
            left = still;
        }
    }

    /// Turns locks of a committed transaction into versions together, or names one that is gone. With the last of them
    /// goes the `record` of the commit.
    fn roll_forward(
        &self,
        txn: TxnId,
        locks: &[&(RowKey, Lock)],
        commit_ts: Timestamp,
        record: Option<RowChange>,
    ) -> Result<Option<RowKey>> {
        let purpose = SubmissionKind::RollForward { commit_ts, finishes: record.is_some() };
        let mut changes = Vec::with_capacity(locks.len() + 1);
        for (row, lock) in locks {
            changes.push(self.commit_change(txn, row, lock, commit_ts, false)?);
        }
        changes.extend(record);
        self.submit_resolution(txn, changes, purpose)
    }

    /// Takes locks of a transaction that is rolled back away together, or names one that is gone.
    pub(super) fn release_locks(&self, txn: TxnId, locks: &[&(RowKey, Lock)]) -> Result<Option<RowKey>> {
        let change = |(row, lock): &&(RowKey, Lock)| -> Option<RowChange> {
            let as_locked = Row { lock: Some(lock.clone()), ..Row::default() };
            release_lock(&as_locked, &Rollback { row: row.clone(), txn })
        };
        self.submit_resolution(txn, locks.iter().filter_map(change).collect(), SubmissionKind::NoCommit)
    }

    fn submit_resolution(
        &self,
        txn: TxnId,
        changes: Vec<RowChange>,
        purpose: SubmissionKind,
    ) -> Result<Option<RowKey>> {
        match self.pipeline.submit_internal(changes, purpose)? {
            SubmitResult::Applied(_) => Ok(None),
            SubmitResult::Rejected(Rejection::LockConflict(row, _) | Rejection::PreconditionFailed(row, _)) => {
                Ok(Some(row))
            }
            SubmitResult::Rejected(obstacle) => Err(self.rejection_error(obstacle, txn, txn.start_ts)),
        }
    }
}
