//! Large transactions, whose writes need not fit the memory of the process (TiDB: pipelined DML).
//!
//! The rows are locked while the transaction is still running. Each batch of writes is prewritten
//! and dropped from memory; the transaction reads it back from its own locks. If a row is written
//! again, its lock is replaced by one with a higher write sequence.
//!
//! The commit is one small change of the primary, whatever the size of the transaction. After the
//! commit, a reader treats each lock as the version that the lock will become, and a writer rolls
//! forward the locks that it finds. The other locks are [cleaned up](super::cleanup) in the
//! background.
//!
//! There is no list of the locks. The cleanup scans the lock column from the lowest to the highest
//! row that the transaction has locked. The leader has a Bloom filter of the locked rows, which
//! shows for most other rows, without reading them, that they have no such lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::LargeTxn;
use super::super::step_error::step_error;
use super::prewrite::{TwoPhaseTxn, choose_primary, prewrite_rows};
use super::rows::Rows;
use super::waker::BackgroundWaker;
use crate::commit_conditions::CommitConditions;
use crate::contention::AttemptGuard;
use crate::engine::RowRange;
use crate::error::{Error, ErrorKind, Result};
use crate::observe::TxnTimer;
use crate::pipeline::{LockCleanup, Rejection, Submission, SubmissionKind, SubmitResult};
use crate::protocol::StepError;
use crate::row::{MAX_SHORT_VALUE_BYTES, RowKey, TxnId};
use crate::timestamp::Timestamp;
use crate::write_set::WriteSet;

/// See the [module](self).
pub struct EmbeddedLargeTxn {
    rows: Arc<Rows>,
    background: Arc<BackgroundWaker>,
    txn: TxnId,
    /// A commit of another transaction above this timestamp is a conflict.
    read_ts: Timestamp,
    /// The range of the locked rows; `None` before the first lock.
    span: Option<LockSpan>,
    writes: u64,
    /// Whether the commit has succeeded or is undetermined, so that the transaction must not be
    /// rolled back.
    is_decided: bool,
}

#[derive(Clone)]
struct LockSpan {
    primary: RowKey,
    lowest: RowKey,
    highest: RowKey,
}

impl EmbeddedLargeTxn {
    pub fn new(rows: &Arc<Rows>, background: &Arc<BackgroundWaker>, txn: TxnId, read_ts: Timestamp) -> Self {
        let (rows, background) = (Arc::clone(rows), Arc::clone(background));
        Self { rows, background, txn, read_ts, span: None, writes: 0, is_decided: false }
    }

    fn schedule_cleanup(&self, committed: Option<Timestamp>) {
        let Some(LockSpan { primary, lowest, highest }) = self.span.clone() else { return };
        let bound = |row: RowKey| std::ops::Bound::Included(row.as_bytes().to_vec());
        let remaining = RowRange { start: bound(lowest), end: bound(highest) };
        self.rows.pipeline.fates().schedule_cleanup(LockCleanup { txn: self.txn, primary, remaining, committed });
        self.background.wake();
    }

    /// The error if the lock on the primary has disappeared: the keyspace was dropped, the view has
    /// expired, or the transaction was rolled back.
    fn primary_lock_missing_error(&self, primary: &RowKey, conditions: &CommitConditions) -> Error {
        let CommitConditions { keyspaces, read_view, .. } = conditions;
        let rejection = match keyspaces.iter().find(|keyspace| keyspace.is_dropped()) {
            Some(dropped) => Rejection::KeyspaceDropped(dropped.name().to_string()),
            None if read_view.as_ref().is_some_and(|view| view.expired.load(Ordering::Acquire)) => {
                Rejection::SnapshotTooOld
            }
            None => return step_error(primary, StepError::AlreadyRolledBack, self.read_ts),
        };
        self.rows.rejection_error(rejection, self.txn, self.read_ts)
    }

    fn commit_primary(
        &self,
        conditions: &Arc<CommitConditions>,
        attempt: Option<AttemptGuard>,
        timer: &TxnTimer,
    ) -> Result<Timestamp> {
        let Some(LockSpan { primary, .. }) = &self.span else {
            return Err(Error::invalid("the large transaction has locked no row"));
        };
        let found = self.rows.engine().read_row(primary, self.txn.start_ts)?;
        let Some(lock) = found.lock.filter(|lock| lock.txn == self.txn) else {
            return Err(self.primary_lock_missing_error(primary, conditions));
        };
        crash_point!(LargeAllLocked);
        let change = self.rows.commit_change(self.txn, primary, &lock, lock.min_commit_ts, true)?;
        let (kind, conditions) = (SubmissionKind::CommitPrimary, Arc::clone(conditions));
        let submission = Submission { batch: vec![change].into(), kind, durable: false, conditions, attempt };
        match self.rows.pipeline.submit(submission, timer)? {
            SubmitResult::Applied(Some(commit_ts)) => Ok(commit_ts),
            SubmitResult::Applied(None) => Err(self.rows.missing_commit_ts_error(self.txn)),
            SubmitResult::Rejected(rejection) => Err(self.rows.rejection_error(rejection, self.txn, self.read_ts)),
        }
    }
}

impl LargeTxn for EmbeddedLargeTxn {
    fn lock_rows(&mut self, writes: &WriteSet, conditions: &Arc<CommitConditions>, timer: &TxnTimer) -> Result<()> {
        timer.start(self.rows.pipeline.env().elapsed());
        let (Some(first), Some(last)) = (writes.keys().next(), writes.keys().next_back()) else {
            return Ok(());
        };
        let span = if let Some(LockSpan { primary, lowest, highest }) = self.span.take() {
            LockSpan { primary, lowest: lowest.min(first.clone()), highest: highest.max(last.clone()) }
        } else {
            let primary = choose_primary(writes).unwrap_or(first).clone();
            LockSpan { primary, lowest: first.clone(), highest: last.clone() }
        };
        let primary = self.span.insert(span).primary.clone();
        if writes.values().any(|mutation| mutation.value_bytes() > MAX_SHORT_VALUE_BYTES) {
            self.rows.note_data_column_use()?;
        }
        self.writes += writes.len() as u64;
        let this = TwoPhaseTxn { txn: self.txn, read_ts: self.read_ts, primary: &primary, conditions, timer };
        // The primary is locked first, so that no lock names a primary that was never locked.
        let others = writes.iter().filter(|(row, _)| **row != primary);
        let ordered = writes.get_key_value(&primary).into_iter().chain(others);
        prewrite_rows(&self.rows, &this, ordered, SubmissionKind::PrewriteLarge, |count, _| {
            crash_point!(LargeBetween);
            self.rows.metrics.large_rows_locked.add(count as u64);
        })
    }

    fn skip_conflict_check(&mut self) {
        self.read_ts = Timestamp::MAX;
    }

    fn writes(&self) -> u64 {
        self.writes
    }

    fn commit(
        &mut self,
        conditions: &Arc<CommitConditions>,
        durable: bool,
        attempt: Option<AttemptGuard>,
        timer: &TxnTimer,
    ) -> Result<Timestamp> {
        let committed = self.commit_primary(conditions, attempt, timer);
        self.is_decided =
            committed.as_ref().map_or_else(|error| matches!(error.kind(), ErrorKind::Undetermined(_)), |_| true);
        let commit_ts = committed?;
        crash_point!(LargeCommitted);
        self.schedule_cleanup(Some(commit_ts));
        if durable {
            self.rows.pipeline.sync().wait_durable_timed(commit_ts, timer)?;
        }
        self.rows.pipeline.views().note_acked(commit_ts);
        self.rows.metrics.commits_large.add(1);
        Ok(commit_ts)
    }
}

impl Drop for EmbeddedLargeTxn {
    fn drop(&mut self) {
        if !self.is_decided {
            self.schedule_cleanup(None);
        }
    }
}
