//! The precheck: how the leader finds conflicts without reading rows.
//!
//! Each change comes with preconditions on its row: no lock, no commit after `read_ts`, and so on.
//! All changes pass through the leader, since only this process has the store open. So the leader
//! can record every lock and commit of this incarnation in memory:
//!
//! | recorded | as | size |
//! |---|---|---|
//! | locks of two-phase transactions | a map by row, exact | the rows of running commits |
//! | locks of large transactions | a [Bloom filter](super::bloom) each | 2 to 4 bytes a row |
//! | last commits | a [conflict set](super::conflict_set) | a fixed number of slots |
//!
//! Commits of earlier incarnations are at or below every `read_ts` of this one, so they conflict
//! with nothing. But locks of earlier incarnations may be left. Until the sweep has resolved all of
//! them, memory cannot prove that a row has no lock.
//!
//! | precondition | then |
//! |---|---|
//! | holds | it is removed; a batch without preconditions is applied without a read |
//! | fails | the submission is rejected, and nothing is written |
//! | unknown | it stays in the batch, and the engine checks it by reading the row |
//!
//! The memory errs on one side: it never reports a changed row as unchanged.
//!
//! FoundationDB's resolvers check commits in the same way, from the recent commits in memory, but
//! reject a transaction that is older than what they remember.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use super::bloom::RowBloomFilter;
use super::conflict_set::{ConflictSet, LastCommit};
use super::submission::{Rejection, Submission, SubmissionKind};
use crate::commit_conditions::CommitConditions;
use crate::engine::{OnePhaseWrites, RowBatch};
use crate::lock_manager::InFlightFences;
use crate::row::{CellChange, LockVersion, Mutation, Precondition, RowChange, RowKey};
use crate::timestamp::Timestamp;
use crate::tunables::ROW_ENTRIES_MAX;

/// The locks and last commits of rows in this incarnation. Only the leader uses it.
pub struct LeaderMemory {
    /// Rows that two-phase transactions have locked.
    row_locks: HashMap<RowKey, LockVersion>,
    /// For each large transaction, by its `start_ts`: the rows that it may have locked.
    large_txns: HashMap<Timestamp, RowBloomFilter>,
    conflict_set: ConflictSet,
}

/// What the check depends on besides the leader's memory.
#[derive(Clone, Copy)]
pub struct Facts {
    /// Transactions with an earlier `start_ts` belong to an earlier incarnation.
    pub first_ts: Timestamp,
    /// Whether locks of an earlier incarnation may be left.
    pub may_have_orphans: bool,
}

/// The result for a submission, before anything is written.
pub enum Precheck {
    /// All preconditions hold, and are removed.
    Proven,
    /// The engine must check the preconditions that are left.
    NeedsRead,
    /// A precondition does not hold, or one of the transaction's [`CommitConditions`] does not.
    Reject(Rejection),
}

impl LeaderMemory {
    /// An empty memory whose conflict set has at least `rows` slots. `seed` must be secret: see
    /// [`ConflictSet::new`].
    pub fn new(rows: usize, seed: u64) -> Self {
        Self { row_locks: HashMap::new(), large_txns: HashMap::new(), conflict_set: ConflictSet::new(rows, seed) }
    }

    /// Checks the transaction's [`CommitConditions`], then the submission's preconditions on rows.
    /// Removes the preconditions that are proven.
    pub fn precheck(&self, submission: &mut Submission, fences: &InFlightFences, facts: Facts) -> Precheck {
        let CommitConditions { keyspaces, read_view, .. } = &*submission.conditions;
        if let Some(dropped) = keyspaces.iter().find(|keyspace| keyspace.is_dropped()) {
            return Precheck::Reject(Rejection::KeyspaceDropped(dropped.name().to_string()));
        }
        let has_expired = read_view.as_ref().is_some_and(|view| view.expired.load(Ordering::Acquire));
        if has_expired {
            return Precheck::Reject(Rejection::SnapshotTooOld);
        }
        if let Some(lost) = fences.first_lost() {
            return Precheck::Reject(Rejection::FenceLost(Box::new(lost)));
        }
        let checker = Prechecker { memory: self, kind: submission.kind, facts };
        match &mut submission.batch {
            RowBatch::Changes(changes) => checker.check_changes(changes),
            RowBatch::OnePhaseWrites(writes) => match checker.check_one_phase(writes) {
                Precheck::NeedsRead => {
                    // Memory cannot decide some of the rows. So each row gets a copy of the
                    // preconditions, and is checked again: then the engine reads only the undecided
                    // rows.
                    let mut changes = submission.batch.changes().into_owned();
                    let checked = checker.check_changes(&mut changes);
                    submission.batch = RowBatch::Changes(changes);
                    checked
                }
                checked => checked,
            },
        }
    }

    fn may_be_locked_by_large_txn(&self, row: &RowKey) -> bool {
        self.large_txns.values().any(|rows| rows.may_contain(row))
    }

    /// Records the locks and commits of a batch that the engine has applied, or will apply because
    /// its preconditions are proven.
    pub fn note_written(&mut self, batch: &RowBatch, kind: SubmissionKind, commit_ts: Option<Timestamp>) {
        let finished = match kind {
            SubmissionKind::FinishRollback { start_ts } => Some(start_ts),
            SubmissionKind::RollForward { finishes: true, .. } => batch.start_ts(),
            _ => None,
        };
        if let Some(start_ts) = finished {
            self.large_txns.remove(&start_ts);
        }
        match batch {
            RowBatch::Changes(changes) => self.note_changes(changes, kind, commit_ts),
            RowBatch::OnePhaseWrites(writes) => self.note_one_phase(writes),
        }
    }

    fn note_one_phase(&mut self, OnePhaseWrites { writes, commit_ts, .. }: &OnePhaseWrites) {
        let many = writes.len() > ROW_ENTRIES_MAX;
        if many && let (Some(lowest), Some(highest)) = (writes.keys().next(), writes.keys().next_back()) {
            self.conflict_set.insert_range(lowest, highest, *commit_ts);
        }
        for (row, mutation) in writes.iter() {
            let lock_only = *mutation == Mutation::LockOnly;
            if lock_only || !many {
                self.conflict_set.insert(row, *commit_ts, lock_only);
            }
        }
    }

    fn note_changes(&mut self, changes: &[RowChange], kind: SubmissionKind, commit_ts: Option<Timestamp>) {
        let many = changes.len() > ROW_ENTRIES_MAX;
        let rows = changes.iter().map(|change| &change.row);
        if many && let (Some(ts), Some(lowest), Some(highest)) = (commit_ts, rows.clone().min(), rows.max()) {
            self.conflict_set.insert_range(lowest, highest, ts);
        }
        for change in changes {
            match &change.lock {
                CellChange::Keep => {}
                CellChange::Put(lock) if kind == SubmissionKind::PrewriteLarge => {
                    self.large_txns.entry(lock.txn.start_ts).or_default().insert(&change.row);
                }
                CellChange::Put(lock) => {
                    self.row_locks.insert(change.row.clone(), lock.version());
                }
                CellChange::Delete => {
                    self.row_locks.remove(&change.row);
                }
            }
            // A change that writes no version is a lock-only commit, with one exception, which is
            // not recorded: the change in the last roll-forward that deletes the transaction record
            // at the primary.
            let lock_only = change.write == CellChange::Keep;
            if let Some(ts) = commit_ts
                && change.txn_record != CellChange::Delete
                && (lock_only || !many)
            {
                self.conflict_set.insert(&change.row, ts, lock_only);
            }
        }
    }
}

/// The result for one precondition.
enum PreconditionCheck {
    Holds,
    Unknown,
    Fails(Rejection),
}

/// Checks the preconditions of one submission.
struct Prechecker<'a> {
    memory: &'a LeaderMemory,
    kind: SubmissionKind,
    facts: Facts,
}

impl Prechecker<'_> {
    /// Checks the two preconditions that every row of a one-phase commit has. Removes them if they
    /// are proven for all rows; otherwise removes none.
    fn check_one_phase(&self, versions: &mut OnePhaseWrites) -> Precheck {
        let Some(ts) = versions.no_commit_after else { return Precheck::Proven };
        for row in versions.writes.keys() {
            for precondition in Precondition::for_next_version(ts) {
                match self.check(row, precondition) {
                    PreconditionCheck::Holds => {}
                    PreconditionCheck::Unknown => return Precheck::NeedsRead,
                    PreconditionCheck::Fails(rejected) => return Precheck::Reject(rejected),
                }
            }
        }
        versions.no_commit_after = None;
        Precheck::Proven
    }

    /// Removes the preconditions that are proven.
    fn check_changes(&self, changes: &mut [RowChange]) -> Precheck {
        let mut checked = Precheck::Proven;
        for change in changes {
            let mut rejected = None;
            change.preconditions.retain(|precondition| match self.check(&change.row, precondition) {
                PreconditionCheck::Holds => false,
                PreconditionCheck::Unknown => {
                    checked = Precheck::NeedsRead;
                    true
                }
                PreconditionCheck::Fails(rejection) => {
                    rejected = Some(rejection);
                    false
                }
            });
            if let Some(rejected) = rejected {
                return Precheck::Reject(rejected);
            }
        }
        checked
    }

    fn check(&self, row: &RowKey, precondition: Precondition) -> PreconditionCheck {
        let Self { memory, kind, facts } = *self;
        let unless = |unknown| if unknown { PreconditionCheck::Unknown } else { PreconditionCheck::Holds };
        match precondition {
            Precondition::LockAbsent => match memory.row_locks.get(row) {
                Some(version) => PreconditionCheck::Fails(Rejection::LockConflict(row.clone(), Some(*version))),
                None => unless(facts.may_have_orphans || memory.may_be_locked_by_large_txn(row)),
            },
            Precondition::LockUnchanged(version) => match memory.row_locks.get(row) {
                Some(found) if *found == version => PreconditionCheck::Holds,
                Some(found) => PreconditionCheck::Fails(Rejection::LockConflict(row.clone(), Some(*found))),
                // Not in `row_locks`: the row has an orphan lock, the lock of a large transaction,
                // or none.
                None => PreconditionCheck::Unknown,
            },
            // For GC the engine reads the row: the conflict set also reports lock-only commits,
            // which must not keep GC from removing a tombstone.
            Precondition::NoCommitAfter(_) if kind == SubmissionKind::Gc => PreconditionCheck::Unknown,
            Precondition::NoCommitAfter(ts) => match memory.conflict_set.check(row, ts) {
                LastCommit::NotAfter => PreconditionCheck::Holds,
                LastCommit::After(commit_ts) => {
                    PreconditionCheck::Fails(Rejection::WriteConflict(row.clone(), commit_ts))
                }
                LastCommit::Unknown => PreconditionCheck::Unknown,
            },
            // If the transaction is of this incarnation, both preconditions hold. The safe point is
            // never above `first_ts`. Only the owner ends the transaction, and sends no request for
            // it afterwards, so it has no record yet.
            Precondition::NoTxnRecord(start_ts) | Precondition::SafePointAtMost(start_ts) => {
                unless(start_ts < facts.first_ts)
            }
        }
    }
}
