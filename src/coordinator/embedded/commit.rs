//! Committing, in one phase or two.
//!
//! Both hand row changes to the pipeline and listen to what it refuses. A refusal is either an obstacle that can be cleared
//! (an orphan's lock, or the lock of a transaction that is committed and not yet applied everywhere), after which the
//! same changes are handed in again, or a conflict.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::{CommitRequest, step_error};
use super::EmbeddedCoordinator;
use super::resolve::LockResolution;
use super::stream::own_lock;
use crate::engine::{OnePhaseWrites, RowBatch};
use crate::error::{Conflict, ConflictReason, Error, ErrorKind, Result};
use crate::observe::{TxnPhase, TxnTimer};
use crate::pipeline::{AttemptGuard, CommitConditions, Rejection, Submission, SubmissionKind, SubmitResult};
use crate::protocol::{CommitRow, OnePhase, Prewrite, Step, TransactionStatus, commit, one_phase, prewrite};
use crate::row::{CellChange, Lock, Mutation, Row, RowChange, RowKey, SHORT_VALUE_MAX_BYTES, TxnId};
use crate::timestamp::Timestamp;
use crate::writes::WriteSet;

/// The most rows that a two-phase commit changes at once; others get their turn in between.
const GROUP_ROWS_MAX: usize = 1024;

/// What stays the same throughout a two-phase commit.
pub(super) struct TwoPhaseCommit<'a> {
    pub txn: TxnId,
    pub read_ts: Timestamp,
    pub primary: &'a RowKey,
    pub conditions: &'a Arc<CommitConditions>,
    pub spent: &'a TxnTimer,
}

impl EmbeddedCoordinator {
    pub(super) fn commit_one_phase(&self, request: CommitRequest<'_>) -> Result<Timestamp> {
        let CommitRequest { txn, read_ts, writes, durable, conditions, attempt: mut held, timer: spent, .. } = request;
        loop {
            let group = self.one_phase_writes(txn, read_ts, writes)?;
            crash_point!(OnePhaseBefore);
            let (purpose, conditions) = (SubmissionKind::Commit, Arc::clone(&conditions));
            let submission = Submission { group, kind: purpose, durable, conditions, attempt: held.take() };
            match self.pipeline.submit(submission, spent)? {
                SubmitResult::Applied(Some(commit_ts)) => {
                    self.metrics.commits_one_phase.add(1);
                    return Ok(commit_ts);
                }
                SubmitResult::Applied(None) => return Err(self.missing_commit_ts_error(txn)),
                SubmitResult::Rejected(obstacle) => self.resolve_blockers(writes.keys(), obstacle, txn, read_ts)?,
            }
        }
    }

    fn one_phase_writes(&self, txn: TxnId, read_ts: Timestamp, writes: &Arc<WriteSet>) -> Result<RowBatch> {
        // Stamped by the pipeline.
        let commit_ts = txn.start_ts;
        if !self.needs_old_version() {
            let (unchanged_since, writes) = (Some(read_ts), Arc::clone(writes));
            return Ok(RowBatch::OnePhaseWrites(OnePhaseWrites {
                txn,
                commit_ts,
                no_commit_after: unchanged_since,
                writes,
            }));
        }
        let keep_replaced = self.history.is_some();
        let change = |(row, mutation)| {
            self.one_phase_change(&OnePhase { row, txn, read_ts, commit_ts, mutation, keep_old_version: keep_replaced })
        };
        writes.iter().map(change).collect::<Result<_>>().map(RowBatch::Changes)
    }

    pub(super) fn commit_two_phase(&self, request: CommitRequest<'_>) -> Result<Timestamp> {
        let CommitRequest { txn, read_ts, writes, durable, conditions, attempt: held, timer: spent, .. } = request;
        let Some(primary) = choose_primary(writes) else { return Err(empty_txn_error(txn)) };
        let long = |mutation: &Mutation| mutation.value_bytes() > SHORT_VALUE_MAX_BYTES;
        if writes.values().any(long) {
            self.note_data_column_use()?;
        }
        let this = TwoPhaseCommit { txn, read_ts, primary, conditions: &conditions, spent };

        let secondaries = writes.iter().filter(|(row, _)| *row != primary);
        let rows: Vec<(&RowKey, &Mutation)> = writes.get_key_value(primary).into_iter().chain(secondaries).collect();
        let mut locks: Vec<(RowKey, Lock)> = Vec::with_capacity(rows.len());
        crash_point!(PrewriteBefore);
        let prewritten = rows.chunks(self.group_rows_max()).try_for_each(|some| {
            locks.extend(self.prewrite_group(&this, some, SubmissionKind::NoCommit)?);
            crash_point!(PrewritePrimary if locks.len() <= some.len());
            crash_point!(PrewriteBetween if locks.len() > some.len());
            Ok(())
        });
        let (first, left) = locks.split_at(self.primary_group_rows(txn).min(locks.len()));
        let finishes = left.is_empty();
        if mutated!(SecondariesFirst) && prewritten.is_ok() && !finishes {
            self.commit_secondaries(&this, left, self.pipeline.next_timestamp()?)?;
        }
        let committed = prewritten.and_then(|()| self.commit_primary_group(&this, first, finishes, held));
        let commit_ts = match committed {
            Ok(commit_ts) => commit_ts,
            Err(why) => {
                // A failed pipeline takes no changes any more; the locks are resolved in the store's next life.
                if self.pipeline.failure().is_none() {
                    crash_point!(PrewriteConflict if !locks.is_empty());
                    self.roll_back_prewrites(&locks, txn)?;
                }
                return Err(why);
            }
        };
        if !finishes {
            // The commit point is behind: whatever fails from here on, nobody may be told that nothing was committed, and
            // this life of the store cannot finish what it has begun.
            crash_point!(CommitPrimary);
            self.commit_secondaries(&this, left, commit_ts).map_err(|why| self.pipeline.poison_undetermined(why))?;
        }
        crash_point!(CommitSecondaries);
        if durable {
            spent.lap(TxnPhase::Apply, self.pipeline.runtime().elapsed());
            self.pipeline.wait_durable_timed(commit_ts, spent)?;
        }
        self.metrics.commits_two_phase.add(1);
        Ok(commit_ts)
    }

    /// How many rows the change with the commit point commits. What the engine can change together need not be told apart.
    fn primary_group_rows(&self, txn: TxnId) -> usize {
        // Tests of crashes are to meet both: commits of one change, and rows that are still locked behind the commit point.
        let alone = cfg!(feature = "crashtest") && txn.owner.to_u64().is_multiple_of(2);
        if alone { 1 } else { self.group_rows_max() }
    }

    /// How many rows go in one group. One is left free: with the last rows of a transaction the status goes from its primary.
    pub(super) fn group_rows_max(&self) -> usize {
        (self.pipeline.engine().capabilities().batch_rows_max - 1).clamp(1, GROUP_ROWS_MAX)
    }

    /// Locks rows together. The answer is what was locked, except for a streaming transaction, which forgets it. Only such
    /// a one may have locked rows of the group before.
    pub(super) fn prewrite_group(
        &self,
        this: &TwoPhaseCommit<'_>,
        rows: &[(&RowKey, &Mutation)],
        purpose: SubmissionKind,
    ) -> Result<Vec<(RowKey, Lock)>> {
        let TwoPhaseCommit { txn, read_ts, .. } = *this;
        let mut own: HashMap<&RowKey, Lock> = HashMap::new();
        loop {
            let mut changes = Vec::with_capacity(rows.len());
            for (row, mutation) in rows {
                let own = own.get(row);
                let request = Prewrite {
                    row: (*row).clone(),
                    txn,
                    read_ts,
                    primary: this.primary.clone(),
                    mutation: (*mutation).clone(),
                    write_seq: own.map_or(1, |own| own.write_seq.saturating_add(1)),
                    ttl_ms: 0,
                    min_commit_ts: txn.start_ts.next(),
                };
                // Apart from an own lock nothing of the row is known: the guards say what it must look like.
                let as_read = Row { lock: own.cloned(), ..Row::default() };
                match prewrite(&as_read, &request).map_err(|why| step_error(row, why, read_ts))? {
                    Step::Apply(change, _) => changes.push(change),
                    Step::Done(_) => {}
                }
            }
            let remembers = purpose != SubmissionKind::PrewriteLarge;
            let locked = if remembers { changes.iter().filter_map(written_lock).collect() } else { Vec::new() };
            let conditions = Arc::clone(this.conditions);
            let submission =
                Submission { group: changes.into(), kind: purpose, durable: false, conditions, attempt: None };
            match self.pipeline.submit(submission, this.spent)? {
                SubmitResult::Applied(_) => return Ok(locked),
                SubmitResult::Rejected(Rejection::PreconditionFailed(_, found))
                    if found.lock.as_ref().is_some_and(|lock| lock.txn == txn) =>
                {
                    // Where one row was written before, others may have been.
                    let view = self.pipeline.engine().snapshot()?;
                    for (row, _) in rows {
                        if let Some(lock) = own_lock(&*view, txn, row)? {
                            own.insert(row, lock);
                        }
                    }
                }
                SubmitResult::Rejected(obstacle) => {
                    self.resolve_blockers(rows.iter().map(|(row, _)| *row), obstacle, txn, read_ts)?;
                }
            }
        }
    }

    /// Commits the primary, which comes first, and others together with it; `finishes` says that no more are locked. Then there
    /// is nobody who might ask the primary, and no status is left for them.
    fn commit_primary_group(
        &self,
        this: &TwoPhaseCommit<'_>,
        locks: &[(RowKey, Lock)],
        finishes: bool,
        held: Option<AttemptGuard>,
    ) -> Result<Timestamp> {
        if locks.is_empty() {
            return Err(empty_txn_error(this.txn));
        }
        crash_point!(PrewriteAll);
        // The pipeline stamps the changes; what it stamps lies above every timestamp handed out before.
        let change = |(index, (row, lock)): (usize, &(RowKey, Lock))| {
            self.commit_change(this.txn, row, lock, lock.min_commit_ts, index == 0 && !finishes)
        };
        let changes: Vec<RowChange> = locks.iter().enumerate().map(change).collect::<Result<_>>()?;
        let purpose = if finishes { SubmissionKind::Commit } else { SubmissionKind::CommitPrimary };
        let conditions = Arc::clone(this.conditions);
        let submission = Submission { group: changes.into(), kind: purpose, durable: false, conditions, attempt: held };
        match self.pipeline.submit(submission, this.spent)? {
            SubmitResult::Applied(Some(commit_ts)) => Ok(commit_ts),
            SubmitResult::Applied(None) => Err(self.missing_commit_ts_error(this.txn)),
            SubmitResult::Rejected(obstacle) => Err(self.rejection_error(obstacle, this.txn, this.read_ts)),
        }
    }

    /// Turns the other locks into versions, and at last drops the status that would have told a resolver to.
    fn commit_secondaries(
        &self,
        this: &TwoPhaseCommit<'_>,
        locks: &[(RowKey, Lock)],
        commit_ts: Timestamp,
    ) -> Result<()> {
        let groups = locks.chunks(self.group_rows_max());
        let last = groups.len();
        for (index, some) in groups.enumerate() {
            let finishes = index + 1 == last;
            self.resolve_locks(this.txn, this.primary, some, TransactionStatus::Committed(commit_ts), finishes)?;
            crash_point!(CommitBetween if !finishes);
        }
        Ok(())
    }

    /// The change that commits a row which the transaction has locked with `lock`. A refusal is final: the transaction was ended
    /// by another, or the records contradict each other.
    pub(super) fn commit_change(
        &self,
        txn: TxnId,
        row: &RowKey,
        lock: &Lock,
        commit_ts: Timestamp,
        keep_status: bool,
    ) -> Result<RowChange> {
        let keep_replaced = self.history.is_some() && !mutated!(ReplacedVersionNotKept);
        let request = CommitRow {
            row: row.clone(),
            txn,
            commit_ts,
            keep_txn_record: keep_status,
            keep_old_version: keep_replaced,
            record_lock_only: false,
        };
        let as_locked = Row { lock: Some(lock.clone()), ..self.replaced(row, txn)? };
        commit(&as_locked, &request).map(|step| changes(step, row, txn)).map_err(|why| step_error(row, why, commit_ts))
    }

    /// Lets go of locks that were taken in vain.
    fn roll_back_prewrites(&self, locks: &[(RowKey, Lock)], txn: TxnId) -> Result<()> {
        crash_point!(RollbackBefore);
        let Some((primary, _)) = locks.first() else { return Ok(()) };
        for some in locks.chunks(self.group_rows_max()) {
            self.resolve_locks(txn, primary, some, TransactionStatus::RolledBack, false)?;
            crash_point!(RollbackBetween);
        }
        crash_point!(RollbackWritten);
        self.metrics.locks_rolled_back.add(1);
        Ok(())
    }

    /// The change of a commit in one phase. A lock of a finished transaction is resolved first.
    fn one_phase_change(&self, request: &OnePhase<'_>) -> Result<RowChange> {
        let OnePhase { row, txn, read_ts, .. } = *request;
        loop {
            let as_read = self.replaced(row, txn)?;
            match one_phase(&as_read, request) {
                Ok(step) => return Ok(changes(step, row, txn)),
                Err(why) => {
                    let obstacle = Rejection::PreconditionFailed(row.clone(), Box::new(as_read));
                    // An obstacle that stays is a conflict that names who is in the way; anything else is the step's own word.
                    self.resolve_blocker(obstacle, txn, read_ts)
                        .map_err(|other| if other.is_retryable() { other } else { step_error(row, why, read_ts) })?;
                }
            }
        }
    }

    /// The row, with the version that a commit replaces. Without long values and history nothing of it has to be read: the guards
    /// say what it must look like.
    fn replaced(&self, row: &RowKey, txn: TxnId) -> Result<Row> {
        Ok(if self.needs_old_version() { self.pipeline.engine().read_row(row, txn.start_ts)? } else { Row::default() })
    }

    /// Whether something becomes of the version that a commit replaces.
    fn needs_old_version(&self) -> bool {
        self.uses_data_column() || self.history.is_some()
    }

    /// Clears what is in the way, or says why it stays there; if that is a lock with a verdict, those of the same transaction
    /// on the next of `rows` go with it. A large transaction leaves many, and each would cost another attempt.
    pub(super) fn resolve_blockers<'a>(
        &self,
        rows: impl Iterator<Item = &'a RowKey>,
        obstacle: Rejection,
        txn: TxnId,
        read_ts: Timestamp,
    ) -> Result<()> {
        let in_the_way = match &obstacle {
            Rejection::PreconditionFailed(row, found) => found.lock.clone().map(|lock| (row.clone(), lock)),
            _ => None,
        };
        let (verdict, Some((row, lock))) = (self.resolve_blocker(obstacle, txn, read_ts)?, in_the_way) else {
            return Ok(());
        };
        let Some(verdict) = verdict else { return Ok(()) };
        let view = self.pipeline.engine().snapshot()?;
        let mut same = Vec::new();
        for next in rows.skip_while(|next| **next != row).skip(1).take(self.group_rows_max()) {
            let found = view.lock(next)?.filter(|found| (found.txn, &found.primary) == (lock.txn, &lock.primary));
            same.extend(found.map(|found| (next.clone(), found)));
        }
        self.resolve_locks(lock.txn, &lock.primary, &same, verdict, false)
    }

    /// Clears what is in the way, or says why it stays there. The answer is the verdict on a lock that was resolved.
    fn resolve_blocker(
        &self,
        obstacle: Rejection,
        txn: TxnId,
        read_ts: Timestamp,
    ) -> Result<Option<TransactionStatus>> {
        let (row, lock) = match &obstacle {
            Rejection::LockConflict(row, Some(stamp)) => {
                let found = self.pipeline.engine().read_row(row, txn.start_ts)?.lock;
                match found {
                    Some(lock) if lock.txn == stamp.txn => (row, lock),
                    _ => return Ok(None),
                }
            }
            Rejection::PreconditionFailed(row, found) => match &found.lock {
                Some(lock) if lock.txn != txn => (row, lock.clone()),
                _ if found.write.as_ref().is_some_and(|write| write.last_commit_ts() > read_ts) => {
                    return Err(self.rejection_error(obstacle, txn, read_ts));
                }
                _ => return Ok(None),
            },
            _ => return Err(self.rejection_error(obstacle, txn, read_ts)),
        };
        match self.resolve_lock(row, &lock)? {
            LockResolution::OwnerAlive => Err(self.rejection_error(obstacle, txn, read_ts)),
            LockResolution::Resolved(verdict) => Ok(Some(verdict)),
            LockResolution::AlreadyGone => Ok(None),
        }
    }

    /// For a commit that the pipeline has made and not stamped: what the store holds now is unknown.
    pub(super) fn missing_commit_ts_error(&self, txn: TxnId) -> Error {
        let TxnId { start_ts, owner } = txn;
        let what = format!("defect: the transaction {start_ts} of owner {owner} was committed without a timestamp");
        self.pipeline.poison_undetermined(ErrorKind::Corruption(what).into())
    }

    /// The error for something that stays in the way, with whatever can be found out about who put it there.
    pub(super) fn rejection_error(&self, obstacle: Rejection, txn: TxnId, read_ts: Timestamp) -> Error {
        let (row, mut reason) = match obstacle {
            Rejection::KeyspaceDropped(keyspace) => return ErrorKind::KeyspaceNotFound(keyspace).into(),
            Rejection::SnapshotTooOld => {
                let what = "what it has read was replaced longer ago than the store's age limit";
                return ErrorKind::SnapshotTooOld(what.into()).into();
            }
            Rejection::FenceLost(lost) => return ErrorKind::LockLost(lost).into(),
            Rejection::WriteConflict(row, ts) => (row, ConflictReason::NewerVersion(ts)),
            Rejection::LockConflict(row, _) => (row, ConflictReason::Locked),
            Rejection::PreconditionFailed(row, found) => match (&found.lock, &found.write) {
                (Some(lock), _) if lock.txn != txn => (row, ConflictReason::Locked),
                (_, Some(write)) => (row, ConflictReason::NewerVersion(write.commit_ts)),
                _ => (row, ConflictReason::RolledBackByOther),
            },
        };
        if let ConflictReason::NewerVersion(ts) = reason {
            // Whoever tries again must see it, or would meet it once more. A failure will be heard of soon enough.
            let _ = self.pipeline.wait_visible(ts);
        }
        let found = self.pipeline.engine().read_row(&row, txn.start_ts).unwrap_or_default();
        let their = match reason {
            // Written again meanwhile, it says nothing of that commit any more, and the later one is as much in the way.
            ConflictReason::NewerVersion(ts) => found.write.filter(|write| write.commit_ts >= ts).map(|write| {
                if write.commit_ts > ts {
                    reason = ConflictReason::NewerVersion(write.commit_ts);
                    let _ = self.pipeline.wait_visible(write.commit_ts);
                }
                write.txn
            }),
            ConflictReason::Locked => found.lock.map(|lock| lock.txn),
            ConflictReason::RolledBackByOther => None,
        };
        ErrorKind::Conflict(Box::new(Conflict {
            row,
            keyspace: None,
            reason,
            conflicting_label: None,
            conflicting_owner: their.map(|txn| txn.owner),
            conflicting_start_ts: their.map(|txn| txn.start_ts),
            read_ts,
        }))
        .into()
    }
}

/// The first row that is really written, else the first: it holds the transaction's commit point.
pub(super) fn choose_primary(writes: &WriteSet) -> Option<&RowKey> {
    let written = writes.iter().find(|(_, mutation)| **mutation != Mutation::LockOnly);
    written.or_else(|| writes.iter().next()).map(|(row, _)| row)
}

fn changes<T>(step: Step<T>, row: &RowKey, txn: TxnId) -> RowChange {
    match step {
        Step::Apply(change, _) => change,
        Step::Done(_) => RowChange::new(row.clone(), txn.start_ts),
    }
}

fn written_lock(change: &RowChange) -> Option<(RowKey, Lock)> {
    match &change.lock {
        CellChange::Put(lock) => Some((change.row.clone(), lock.clone())),
        CellChange::Keep | CellChange::Delete => None,
    }
}

fn empty_txn_error(txn: TxnId) -> Error {
    Error::invalid(format!("the transaction {} of owner {} has written nothing to commit", txn.start_ts, txn.owner))
}
