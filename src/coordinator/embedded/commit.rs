//! Committing, in one phase or two.
//!
//! Both hand row changes to the pipeline and listen to what it refuses. A refusal is either an obstacle that can be cleared
//! (an orphan's lock, or the lock of a transaction that is committed and not yet applied everywhere), after which the
//! same changes are handed in again, or a conflict.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::{CommitRequest, refused};
use super::Embedded;
use super::resolve::Resolved;
use super::stream::own_lock;
use crate::engine::{OnePhaseWrites, RowBatch};
use crate::error::{Conflict, ConflictReason, Error, ErrorKind, Result};
use crate::observe::{Part, Spent};
use crate::pipeline::{Conditions, Held, Purpose, Refused, Settled, Submission};
use crate::protocol::{Commit, CommitPoint, OnePhase, Prewrite, Step, commit, one_phase, prewrite};
use crate::row::{Edit, Lock, Mutation, Row, RowChange, RowKey, SHORT_VALUE_MAX_BYTES, TxnId};
use crate::timestamp::Timestamp;
use crate::writes::Writes;

/// The most rows that a two-phase commit changes at once; others get their turn in between.
const GROUP_ROWS: usize = 1024;

/// What stays the same throughout a two-phase commit.
pub(super) struct TwoPhase<'a> {
    pub txn: TxnId,
    pub read_ts: Timestamp,
    pub primary: &'a RowKey,
    pub conditions: &'a Arc<Conditions>,
    pub spent: &'a Spent,
}

impl Embedded {
    pub(super) fn commit_one_phase(&self, request: CommitRequest<'_>) -> Result<Timestamp> {
        let CommitRequest { txn, read_ts, writes, durable, conditions, mut held, spent, .. } = request;
        loop {
            let group = self.next_versions(txn, read_ts, writes)?;
            crash_point!(OnePhaseBefore);
            let (purpose, conditions) = (Purpose::Commit, Arc::clone(&conditions));
            let submission = Submission { group, purpose, durable, conditions, held: held.take() };
            match self.pipeline.submit(submission, spent)? {
                Settled::Applied(Some(commit_ts)) => {
                    self.counters.commits_one_phase.add(1);
                    return Ok(commit_ts);
                }
                Settled::Applied(None) => return Err(self.unstamped(txn)),
                Settled::Refused(obstacle) => self.clear_among(writes.keys(), obstacle, txn, read_ts)?,
            }
        }
    }

    fn next_versions(&self, txn: TxnId, read_ts: Timestamp, writes: &Arc<Writes>) -> Result<RowBatch> {
        // Stamped by the pipeline.
        let commit_ts = txn.start_ts;
        if !self.needs_replaced() {
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
            self.one_phase_change(&OnePhase { row, txn, read_ts, commit_ts, mutation, keep_replaced })
        };
        writes.iter().map(change).collect::<Result<_>>().map(RowBatch::Changes)
    }

    pub(super) fn commit_two_phase(&self, request: CommitRequest<'_>) -> Result<Timestamp> {
        let CommitRequest { txn, read_ts, writes, durable, conditions, held, spent, .. } = request;
        let Some(primary) = primary_of(writes) else { return Err(nothing_to_commit(txn)) };
        let long = |mutation: &Mutation| mutation.value_bytes() > SHORT_VALUE_MAX_BYTES;
        if writes.values().any(long) {
            self.note_long_values()?;
        }
        let this = TwoPhase { txn, read_ts, primary, conditions: &conditions, spent };

        let secondaries = writes.iter().filter(|(row, _)| *row != primary);
        let rows: Vec<(&RowKey, &Mutation)> = writes.get_key_value(primary).into_iter().chain(secondaries).collect();
        let mut locks: Vec<(RowKey, Lock)> = Vec::with_capacity(rows.len());
        crash_point!(PrewriteBefore);
        let prewritten = rows.chunks(self.group_rows()).try_for_each(|some| {
            locks.extend(self.prewrite_group(&this, some, Purpose::Other)?);
            crash_point!(PrewritePrimary if locks.len() <= some.len());
            crash_point!(PrewriteBetween if locks.len() > some.len());
            Ok(())
        });
        let (first, left) = locks.split_at(self.rows_with_primary(txn).min(locks.len()));
        let finishes = left.is_empty();
        if mutated!(SecondariesFirst) && prewritten.is_ok() && !finishes {
            self.commit_secondaries(&this, left, self.pipeline.timestamp()?)?;
        }
        let committed = prewritten.and_then(|()| self.commit_first(&this, first, finishes, held));
        let commit_ts = match committed {
            Ok(commit_ts) => commit_ts,
            Err(why) => {
                // A failed pipeline takes no changes any more; the locks are resolved in the store's next life.
                if self.pipeline.failure().is_none() {
                    crash_point!(PrewriteConflict if !locks.is_empty());
                    self.release(&locks, txn)?;
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
            spent.lap(Part::Combining, self.pipeline.runtime().elapsed());
            self.pipeline.confirm(commit_ts, spent)?;
        }
        self.counters.commits_two_phase.add(1);
        Ok(commit_ts)
    }

    /// How many rows the change with the commit point commits. What the engine can change together need not be told apart.
    fn rows_with_primary(&self, txn: TxnId) -> usize {
        // Tests of crashes are to meet both: commits of one change, and rows that are still locked behind the commit point.
        let alone = cfg!(feature = "crashtest") && txn.owner.to_u64().is_multiple_of(2);
        if alone { 1 } else { self.group_rows() }
    }

    /// How many rows go in one group. One is left free: with the last rows of a transaction the status goes from its primary.
    pub(super) fn group_rows(&self) -> usize {
        (self.pipeline.engine().capabilities().batch_rows_max - 1).clamp(1, GROUP_ROWS)
    }

    /// Locks rows together. The answer is what was locked, except for a streaming transaction, which forgets it. Only such
    /// a one may have locked rows of the group before.
    pub(super) fn prewrite_group(
        &self,
        this: &TwoPhase<'_>,
        rows: &[(&RowKey, &Mutation)],
        purpose: Purpose,
    ) -> Result<Vec<(RowKey, Lock)>> {
        let TwoPhase { txn, read_ts, .. } = *this;
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
                    sequence: own.map_or(1, |own| own.sequence.saturating_add(1)),
                    ttl_ms: 0,
                    min_commit_ts: txn.start_ts.next(),
                };
                // Apart from an own lock nothing of the row is known: the guards say what it must look like.
                let as_read = Row { lock: own.cloned(), ..Row::default() };
                match prewrite(&as_read, &request).map_err(|why| refused(row, why, read_ts))? {
                    Step::Apply(change, _) => changes.push(change),
                    Step::Done(_) => {}
                }
            }
            let remembers = purpose != Purpose::Stream;
            let locked = if remembers { changes.iter().filter_map(lock_put).collect() } else { Vec::new() };
            let conditions = Arc::clone(this.conditions);
            let submission = Submission { group: changes.into(), purpose, durable: false, conditions, held: None };
            match self.pipeline.submit(submission, this.spent)? {
                Settled::Applied(_) => return Ok(locked),
                Settled::Refused(Refused::Found(_, found))
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
                Settled::Refused(obstacle) => {
                    self.clear_among(rows.iter().map(|(row, _)| *row), obstacle, txn, read_ts)?;
                }
            }
        }
    }

    /// Commits the primary, which comes first, and others together with it; `finishes` says that no more are locked. Then there
    /// is nobody who might ask the primary, and no status is left for them.
    fn commit_first(
        &self,
        this: &TwoPhase<'_>,
        locks: &[(RowKey, Lock)],
        finishes: bool,
        held: Option<Held>,
    ) -> Result<Timestamp> {
        if locks.is_empty() {
            return Err(nothing_to_commit(this.txn));
        }
        crash_point!(PrewriteAll);
        // The pipeline stamps the changes; what it stamps lies above every timestamp handed out before.
        let change = |(index, (row, lock)): (usize, &(RowKey, Lock))| {
            self.commit_change(this.txn, row, lock, lock.min_commit_ts, index == 0 && !finishes)
        };
        let changes: Vec<RowChange> = locks.iter().enumerate().map(change).collect::<Result<_>>()?;
        let purpose = if finishes { Purpose::Commit } else { Purpose::CommitPoint };
        let conditions = Arc::clone(this.conditions);
        let submission = Submission { group: changes.into(), purpose, durable: false, conditions, held };
        match self.pipeline.submit(submission, this.spent)? {
            Settled::Applied(Some(commit_ts)) => Ok(commit_ts),
            Settled::Applied(None) => Err(self.unstamped(this.txn)),
            Settled::Refused(obstacle) => Err(self.explain(obstacle, this.txn, this.read_ts)),
        }
    }

    /// Turns the other locks into versions, and at last drops the status that would have told a resolver to.
    fn commit_secondaries(&self, this: &TwoPhase<'_>, locks: &[(RowKey, Lock)], commit_ts: Timestamp) -> Result<()> {
        let groups = locks.chunks(self.group_rows());
        let last = groups.len();
        for (index, some) in groups.enumerate() {
            let finishes = index + 1 == last;
            self.carry_out_together(this.txn, this.primary, some, CommitPoint::Committed(commit_ts), finishes)?;
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
        let keep_replaced = self.history.is_some() && !mutated!(ReplacedNotKept);
        let request = Commit { row: row.clone(), txn, commit_ts, keep_status, keep_replaced, record_holds: false };
        let as_locked = Row { lock: Some(lock.clone()), ..self.replaced(row, txn)? };
        commit(&as_locked, &request).map(|step| changes(step, row, txn)).map_err(|why| refused(row, why, commit_ts))
    }

    /// Lets go of locks that were taken in vain.
    fn release(&self, locks: &[(RowKey, Lock)], txn: TxnId) -> Result<()> {
        crash_point!(RollBackBefore);
        let Some((primary, _)) = locks.first() else { return Ok(()) };
        for some in locks.chunks(self.group_rows()) {
            self.carry_out_together(txn, primary, some, CommitPoint::RolledBack, false)?;
            crash_point!(RollBackBetween);
        }
        crash_point!(RollBackWritten);
        self.counters.rolled_back.add(1);
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
                    let obstacle = Refused::Found(row.clone(), Box::new(as_read));
                    // An obstacle that stays is a conflict that names who is in the way; anything else is the step's own word.
                    self.clear(obstacle, txn, read_ts)
                        .map_err(|other| if other.is_retryable() { other } else { refused(row, why, read_ts) })?;
                }
            }
        }
    }

    /// The row, with the version that a commit replaces. Without long values and history nothing of it has to be read: the guards
    /// say what it must look like.
    fn replaced(&self, row: &RowKey, txn: TxnId) -> Result<Row> {
        Ok(if self.needs_replaced() { self.pipeline.engine().read_row(row, txn.start_ts)? } else { Row::default() })
    }

    /// Whether something becomes of the version that a commit replaces.
    fn needs_replaced(&self) -> bool {
        self.has_long_values() || self.history.is_some()
    }

    /// Clears what is in the way, or says why it stays there; if that is a lock with a verdict, those of the same transaction
    /// on the next of `rows` go with it. A large transaction leaves many, and each would cost another attempt.
    pub(super) fn clear_among<'a>(
        &self,
        rows: impl Iterator<Item = &'a RowKey>,
        obstacle: Refused,
        txn: TxnId,
        read_ts: Timestamp,
    ) -> Result<()> {
        let in_the_way = match &obstacle {
            Refused::Found(row, found) => found.lock.clone().map(|lock| (row.clone(), lock)),
            _ => None,
        };
        let (verdict, Some((row, lock))) = (self.clear(obstacle, txn, read_ts)?, in_the_way) else { return Ok(()) };
        let Some(verdict) = verdict else { return Ok(()) };
        let view = self.pipeline.engine().snapshot()?;
        let mut same = Vec::new();
        for next in rows.skip_while(|next| **next != row).skip(1).take(self.group_rows()) {
            let found = view.lock(next)?.filter(|found| (found.txn, &found.primary) == (lock.txn, &lock.primary));
            same.extend(found.map(|found| (next.clone(), found)));
        }
        self.carry_out_together(lock.txn, &lock.primary, &same, verdict, false)
    }

    /// Clears what is in the way, or says why it stays there. The answer is the verdict on a lock that was resolved.
    fn clear(&self, obstacle: Refused, txn: TxnId, read_ts: Timestamp) -> Result<Option<CommitPoint>> {
        let (row, lock) = match &obstacle {
            Refused::Lock(row, Some(stamp)) => {
                let found = self.pipeline.engine().read_row(row, txn.start_ts)?.lock;
                match found {
                    Some(lock) if lock.txn == stamp.txn => (row, lock),
                    _ => return Ok(None),
                }
            }
            Refused::Found(row, found) => match &found.lock {
                Some(lock) if lock.txn != txn => (row, lock.clone()),
                _ if found.write.as_ref().is_some_and(|write| write.last_commit() > read_ts) => {
                    return Err(self.explain(obstacle, txn, read_ts));
                }
                _ => return Ok(None),
            },
            _ => return Err(self.explain(obstacle, txn, read_ts)),
        };
        match self.resolve_lock(row, &lock)? {
            Resolved::Alive => Err(self.explain(obstacle, txn, read_ts)),
            Resolved::Verdict(verdict) => Ok(Some(verdict)),
            Resolved::Gone => Ok(None),
        }
    }

    /// For a commit that the pipeline has made and not stamped: what the store holds now is unknown.
    pub(super) fn unstamped(&self, txn: TxnId) -> Error {
        let TxnId { start_ts, owner } = txn;
        let what = format!("defect: the transaction {start_ts} of owner {owner} was committed without a timestamp");
        self.pipeline.poison_undetermined(ErrorKind::Corruption(what).into())
    }

    /// The error for something that stays in the way, with whatever can be found out about who put it there.
    pub(super) fn explain(&self, obstacle: Refused, txn: TxnId, read_ts: Timestamp) -> Error {
        let (row, mut reason) = match obstacle {
            Refused::Dropped(keyspace) => return ErrorKind::NoSuchKeyspace(keyspace).into(),
            Refused::Expired => {
                let what = "what it has read was replaced longer ago than the store's age limit";
                return ErrorKind::SnapshotTooOld(what.into()).into();
            }
            Refused::LockLost(lost) => return ErrorKind::LockLost(lost).into(),
            Refused::CommittedAt(row, ts) => (row, ConflictReason::CommittedAt(ts)),
            Refused::Lock(row, _) => (row, ConflictReason::Locked),
            Refused::Found(row, found) => match (&found.lock, &found.write) {
                (Some(lock), _) if lock.txn != txn => (row, ConflictReason::Locked),
                (_, Some(write)) => (row, ConflictReason::CommittedAt(write.commit_ts)),
                _ => (row, ConflictReason::RolledBack),
            },
        };
        if let ConflictReason::CommittedAt(ts) = reason {
            // Whoever tries again must see it, or would meet it once more. A failure will be heard of soon enough.
            let _ = self.pipeline.wait_visible(ts);
        }
        let found = self.pipeline.engine().read_row(&row, txn.start_ts).unwrap_or_default();
        let their = match reason {
            // Written again meanwhile, it says nothing of that commit any more, and the later one is as much in the way.
            ConflictReason::CommittedAt(ts) => found.write.filter(|write| write.commit_ts >= ts).map(|write| {
                if write.commit_ts > ts {
                    reason = ConflictReason::CommittedAt(write.commit_ts);
                    let _ = self.pipeline.wait_visible(write.commit_ts);
                }
                write.txn
            }),
            ConflictReason::Locked => found.lock.map(|lock| lock.txn),
            ConflictReason::RolledBack => None,
        };
        ErrorKind::Conflict(Box::new(Conflict {
            row,
            keyspace: None,
            reason,
            label: None,
            owner: their.map(|txn| txn.owner),
            their_start_ts: their.map(|txn| txn.start_ts),
            our_read_ts: read_ts,
        }))
        .into()
    }
}

/// The first row that is really written, else the first: it holds the transaction's commit point.
pub(super) fn primary_of(writes: &Writes) -> Option<&RowKey> {
    let written = writes.iter().find(|(_, mutation)| **mutation != Mutation::Hold);
    written.or_else(|| writes.iter().next()).map(|(row, _)| row)
}

fn changes<T>(step: Step<T>, row: &RowKey, txn: TxnId) -> RowChange {
    match step {
        Step::Apply(change, _) => change,
        Step::Done(_) => RowChange::new(row.clone(), txn.start_ts),
    }
}

fn lock_put(change: &RowChange) -> Option<(RowKey, Lock)> {
    match &change.lock {
        Edit::Put(lock) => Some((change.row.clone(), lock.clone())),
        Edit::Keep | Edit::Delete => None,
    }
}

fn nothing_to_commit(txn: TxnId) -> Error {
    Error::invalid(format!("the transaction {} of owner {} has written nothing to commit", txn.start_ts, txn.owner))
}
