//! Transactions too large to be kept in memory.
//!
//! Such a transaction locks its rows while it is still being written: each batch of writes is prewritten and forgotten, and
//! what it has written is read back from its own locks. A row written again replaces its lock's intent, under a higher
//! sequence number. Committing is one small change of the primary; from there on every reader that meets one of the locks
//! takes it for the version that it will become, and every writer rolls it forward. The rest is done in the background
//! ([`endings`](super::endings)).
//!
//! Nobody keeps a list of the locks. Their transaction is known by the lowest and highest row, and the pipeline by a filter
//! that says which rows need a look at the lock column.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::step_error;
use super::EmbeddedCoordinator;
use super::commit::{TwoPhaseCommit, choose_primary};
use super::endings::LockCleanup;
use crate::engine::EngineSnapshot;
use crate::error::{Error, ErrorKind, Result};
use crate::observe::TxnTimer;
use crate::pipeline::{AttemptGuard, CommitConditions, Rejection, Submission, SubmissionKind, SubmitResult};
use crate::protocol::StepError;
use crate::row::{Lock, LockType, Mutation, RowKey, SHORT_VALUE_MAX_BYTES, TxnId, Value};
use crate::timestamp::Timestamp;
use crate::writes::WriteSet;

/// The most bytes of keys and values that are locked at once, unless a single row has more.
const LARGE_GROUP_BYTES: usize = 1 << 20;

/// A transaction that has locked rows already.
pub struct LargeTxn {
    txn: TxnId,
    /// Commits after this are conflicts.
    pub read_ts: Timestamp,
    primary: RowKey,
    min_row: RowKey,
    max_row: RowKey,
    /// How many writes were streamed; a row that is written again counts again.
    pub writes: u64,
}

impl LargeTxn {
    /// A transaction of which nothing is locked yet. `None` when there is nothing to lock.
    pub fn new(txn: TxnId, read_ts: Timestamp, writes: &WriteSet) -> Option<Self> {
        let primary = choose_primary(writes)?.clone();
        Some(Self { txn, read_ts, min_row: primary.clone(), max_row: primary.clone(), primary, writes: 0 })
    }

    fn two_phase<'a>(&'a self, conditions: &'a Arc<CommitConditions>, spent: &'a TxnTimer) -> TwoPhaseCommit<'a> {
        TwoPhaseCommit { txn: self.txn, read_ts: self.read_ts, primary: &self.primary, conditions, spent }
    }

    fn cleanup(&self, verdict: Option<Timestamp>) -> LockCleanup {
        LockCleanup::new(self.txn, &self.primary, &self.min_row, &self.max_row, verdict)
    }
}

impl EmbeddedCoordinator {
    /// Locks rows for a transaction that goes on being written. After an error it must be [abandoned](Self::roll_back_large).
    pub fn prewrite_large(
        &self,
        stream: &mut LargeTxn,
        writes: &WriteSet,
        conditions: &Arc<CommitConditions>,
        spent: &TxnTimer,
    ) -> Result<()> {
        spent.start(self.pipeline.runtime().elapsed());
        let (Some(lowest), Some(highest)) = (writes.keys().next(), writes.keys().next_back()) else {
            return Ok(());
        };
        stream.min_row = stream.min_row.clone().min(lowest.clone());
        stream.max_row = stream.max_row.clone().max(highest.clone());
        if writes.values().any(|mutation| mutation.value_bytes() > SHORT_VALUE_MAX_BYTES) {
            self.note_data_column_use()?;
        }
        // The primary first: no lock is ever without one.
        stream.writes += writes.len() as u64;
        let this = stream.two_phase(conditions, spent);
        let others = writes.iter().filter(|(row, _)| *row != this.primary);
        let rows = writes.get_key_value(this.primary).into_iter().chain(others);
        let (mut group, mut bytes) = (Vec::new(), 0);
        for (row, mutation) in rows {
            bytes += row.as_bytes().len() + mutation.value_bytes();
            group.push((row, mutation));
            if group.len() >= self.group_rows_max() || bytes >= LARGE_GROUP_BYTES {
                self.prewrite_large_group(&this, &group)?;
                (group, bytes) = (Vec::new(), 0);
            }
        }
        if group.is_empty() { Ok(()) } else { self.prewrite_large_group(&this, &group) }
    }

    fn prewrite_large_group(&self, this: &TwoPhaseCommit<'_>, rows: &[(&RowKey, &Mutation)]) -> Result<()> {
        self.prewrite_group(this, rows, SubmissionKind::PrewriteLarge)?;
        crash_point!(LargeBetween);
        self.metrics.large_rows_locked.add(rows.len() as u64);
        Ok(())
    }

    /// Commits a transaction all of whose rows are locked. After an error that is not *undetermined* it must be
    /// [abandoned](Self::roll_back_large).
    pub fn commit_large(
        &self,
        stream: &LargeTxn,
        conditions: &Arc<CommitConditions>,
        durable: bool,
        held: Option<AttemptGuard>,
        spent: &TxnTimer,
    ) -> Result<Timestamp> {
        let this = stream.two_phase(conditions, spent);
        let primary = self.pipeline.engine().read_row(this.primary, this.txn.start_ts)?;
        let Some(lock) = primary.lock.filter(|lock| lock.txn == this.txn) else {
            return Err(self.primary_lock_missing_error(&this));
        };
        crash_point!(LargeAllLocked);
        let change = self.commit_change(this.txn, this.primary, &lock, lock.min_commit_ts, true)?;
        let (purpose, conditions) = (SubmissionKind::CommitPrimary, Arc::clone(conditions));
        let group = vec![change].into();
        let submission = Submission { group, kind: purpose, durable: false, conditions, attempt: held };
        let commit_ts = match self.pipeline.submit(submission, spent)? {
            SubmitResult::Applied(Some(commit_ts)) => commit_ts,
            SubmitResult::Applied(None) => return Err(self.missing_commit_ts_error(this.txn)),
            SubmitResult::Rejected(obstacle) => return Err(self.rejection_error(obstacle, this.txn, this.read_ts)),
        };
        crash_point!(LargeCommitted);
        self.schedule_cleanup(stream.cleanup(Some(commit_ts)));
        if durable {
            self.pipeline.wait_durable_timed(commit_ts, spent)?;
        }
        self.pipeline.note_acked(commit_ts);
        self.metrics.commits_large.add(1);
        Ok(commit_ts)
    }

    /// Why the primary of a transaction that has locked all of its rows is not locked by it: its keyspace is gone, its view has expired
    /// and what it read was collected, or it was rolled back.
    fn primary_lock_missing_error(&self, this: &TwoPhaseCommit<'_>) -> Error {
        let CommitConditions { keyspaces: lives, read_view: view, .. } = &**this.conditions;
        let obstacle = match lives.iter().find(|life| life.is_dropped()) {
            Some(dropped) => Rejection::KeyspaceDropped(dropped.name().to_string()),
            None if view.as_ref().is_some_and(|view| view.expired.load(Ordering::Acquire)) => Rejection::SnapshotTooOld,
            None => return step_error(this.primary, StepError::AlreadyRolledBack, this.read_ts),
        };
        self.rejection_error(obstacle, this.txn, this.read_ts)
    }

    /// Gives a transaction up. Its locks go in the background; a transaction with one in its way removes it first.
    pub fn roll_back_large(&self, stream: &LargeTxn) {
        self.pipeline.abandon(stream.txn.start_ts);
        self.schedule_cleanup(stream.cleanup(None));
    }
}

/// The transaction's lock on the row.
pub(super) fn own_lock(view: &dyn EngineSnapshot, txn: TxnId, row: &RowKey) -> Result<Option<Lock>> {
    Ok(view.lock(row)?.filter(|lock| lock.txn == txn))
}

/// What the transaction has written to the row and streamed out, as the view shows it.
pub fn read_own_lock(view: &dyn EngineSnapshot, txn: TxnId, row: &RowKey) -> Result<Option<Mutation>> {
    own_lock(view, txn, row)?.map(|lock| lock_mutation(view, row, lock)).transpose()
}

/// What a lock will do to its row.
pub fn lock_mutation(view: &dyn EngineSnapshot, row: &RowKey, lock: Lock) -> Result<Mutation> {
    Ok(match lock.lock_type {
        LockType::Put(Value::Inline(bytes)) => Mutation::Put(bytes),
        LockType::Put(Value::OutOfLine) => {
            let value = view.data(row, lock.txn.start_ts)?.ok_or_else(|| {
                let what =
                    format!("row {row:?}: the value written by the transaction {:#} is missing", lock.txn.start_ts);
                Error::from(ErrorKind::Corruption(what))
            })?;
            Mutation::Put(value.into())
        }
        LockType::Delete => Mutation::Delete,
        LockType::LockOnly => Mutation::LockOnly,
    })
}
