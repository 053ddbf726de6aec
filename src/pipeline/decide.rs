//! What the leader knows without asking the engine: which rows this process has locked, and when rows were committed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;

use super::Pipeline;
use super::combiner::{Submission, SubmissionKind, WriteGroup};
use super::conflicts::{ConflictSet, LastCommit};
use super::filter::RowBloomFilter;
use super::queue::QueuedSubmission;
use crate::engine::{OnePhaseWrites, RowBatch};
use crate::locking::{Fences, InFlightFences, LockLost};
use crate::row::{CellChange, LockVersion, Mutation, Precondition, Row, RowChange, RowKey};
use crate::sync::Mutex;
use crate::timestamp::Timestamp;
use crate::view::ReadView;

/// Commits of more rows are not remembered row by row. A group of a two-phase commit has fewer.
// Tests of crashes have few rows, and are to meet both sorts, groups included.
const ROW_ENTRIES_MAX: usize = if cfg!(feature = "crashtest") { 4 } else { 2048 };

/// The leader's memory.
pub struct LeaderState {
    pub row_locks: HashMap<RowKey, LockVersion>,
    /// What transactions that stream have locked, by their `start_ts`.
    pub large_txns: HashMap<Timestamp, RowBloomFilter>,
    pub conflict_set: ConflictSet,
    /// Empty between rounds; kept for its capacity.
    pub group: WriteGroup,
    /// What the leader took from the queue; empty between rounds, and kept for its capacity.
    pub queue_buffer: Vec<QueuedSubmission>,
}

/// Whether a keyspace is still there. What is submitted for one is made only while it is.
pub struct KeyspaceDescriptor {
    /// What it is called now.
    name: Mutex<Arc<str>>,
    dropped: AtomicBool,
}

impl KeyspaceDescriptor {
    pub fn new(name: &str) -> Arc<Self> {
        Arc::new(Self { name: Mutex::new(name.into()), dropped: AtomicBool::new(false) })
    }

    pub fn name(&self) -> Arc<str> {
        Arc::clone(&self.name.lock())
    }

    pub fn rename(&self, name: &str) {
        *self.name.lock() = name.into();
    }

    pub fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

    /// Whether it was this call that ended it.
    pub fn mark_dropped(&self) -> bool {
        !self.dropped.swap(true, Ordering::AcqRel)
    }

    /// Takes its end back.
    pub fn undrop(&self) {
        self.dropped.store(false, Ordering::Release);
    }
}

/// What must hold when changes are made, or they are refused. The leader looks, so nothing comes in between.
#[derive(Default)]
pub struct CommitConditions {
    /// Of the keyspaces that are written: none is over.
    pub keyspaces: SmallVec<[Arc<KeyspaceDescriptor>; 1]>,
    /// What the transaction has read: it has not expired. What was collected since might be the delete that it never saw.
    pub read_view: Option<Arc<ReadView>>,
    /// The grants that the transaction is fenced by: all of them stand.
    pub fences: Fences,
}

/// Why changes were not made.
#[derive(Debug)]
pub enum Rejection {
    /// The row was committed at this timestamp, after the snapshot of whoever asked.
    WriteConflict(RowKey, Timestamp),
    /// A live transaction holds the row's lock, or the lock is not the one that the change is about.
    LockConflict(RowKey, Option<LockVersion>),
    /// A guard did not hold for the row as the engine found it.
    PreconditionFailed(RowKey, Box<Row>),
    /// The keyspace of this name was dropped.
    KeyspaceDropped(String),
    /// What was read is older than the store allows.
    SnapshotTooOld,
    /// The grant of a lock by which it is fenced is over.
    FenceLost(Box<LockLost>),
}

/// What the leader makes of one submission before anything is written.
pub enum Precheck {
    Proven,
    NeedsRead,
    Reject(Rejection),
}

impl Pipeline {
    /// Proves what memory can prove and removes those guards.
    pub(super) fn precheck(
        &self,
        core: &LeaderState,
        submission: &mut Submission,
        entered: &InFlightFences,
    ) -> Precheck {
        let CommitConditions { keyspaces: lives, read_view: view, .. } = &*submission.conditions;
        if let Some(dropped) = lives.iter().find(|life| life.is_dropped()) {
            return Precheck::Reject(Rejection::KeyspaceDropped(dropped.name().to_string()));
        }
        let has_expired = view.as_ref().is_some_and(|view| view.expired.load(Ordering::Acquire));
        if has_expired && !mutated!(ExpiredWriterCommits) {
            return Precheck::Reject(Rejection::SnapshotTooOld);
        }
        if let Some(lost) = entered.first_lost().filter(|_| !mutated!(FenceAtBegin)) {
            return Precheck::Reject(Rejection::FenceLost(Box::new(lost)));
        }
        let proof = Prechecker {
            pipeline: self,
            core,
            purpose: submission.kind,
            may_have_orphans: self.may_have_orphans.load(Ordering::Acquire),
        };
        match &mut submission.group {
            RowBatch::Changes(changes) => proof.check_changes(changes),
            RowBatch::OnePhaseWrites(versions) => match proof.check_one_phase(versions) {
                Precheck::NeedsRead => {
                    // The engine is to read no more rows than it has to.
                    let mut changes = submission.group.changes().into_owned();
                    let decision = proof.check_changes(&mut changes);
                    submission.group = RowBatch::Changes(changes);
                    decision
                }
                decided => decided,
            },
        }
    }
}

/// What becomes of a guard.
enum GuardCheck {
    Holds,
    Unknown,
    Fails(Rejection),
}

/// What memory proves of the guards of one submission.
struct Prechecker<'a> {
    pipeline: &'a Pipeline,
    core: &'a LeaderState,
    purpose: SubmissionKind,
    may_have_orphans: bool,
}

impl Prechecker<'_> {
    /// All of it or nothing.
    fn check_one_phase(&self, versions: &mut OnePhaseWrites) -> Precheck {
        let Some(ts) = versions.no_commit_after else { return Precheck::Proven };
        // Of whoever comes alone, with a load above all, the rows need not be looked at.
        if !self.may_have_orphans && self.core.unchanged_since(ts) {
            versions.no_commit_after = None;
            return Precheck::Proven;
        }
        for row in versions.writes.keys() {
            for guard in Precondition::for_next_version(ts) {
                match self.check(row, guard) {
                    GuardCheck::Holds => {}
                    GuardCheck::Unknown => return Precheck::NeedsRead,
                    GuardCheck::Fails(refused) => return Precheck::Reject(refused),
                }
            }
        }
        versions.no_commit_after = None;
        Precheck::Proven
    }

    /// What is proven is removed.
    fn check_changes(&self, changes: &mut [RowChange]) -> Precheck {
        let mut decision = Precheck::Proven;
        for change in changes {
            let mut refused = None;
            change.preconditions.retain(|guard| match self.check(&change.row, *guard) {
                GuardCheck::Holds => false,
                GuardCheck::Unknown => {
                    decision = Precheck::NeedsRead;
                    true
                }
                GuardCheck::Fails(why) => {
                    refused = Some(why);
                    false
                }
            });
            if let Some(refused) = refused {
                return Precheck::Reject(refused);
            }
        }
        decision
    }

    fn check(&self, row: &RowKey, guard: Precondition) -> GuardCheck {
        let Self { pipeline, core, purpose, may_have_orphans: orphans } = *self;
        let unless = |unknown| if unknown { GuardCheck::Unknown } else { GuardCheck::Holds };
        match guard {
            Precondition::LockAbsent => match core.row_locks.get(row) {
                Some(stamp) => GuardCheck::Fails(Rejection::LockConflict(row.clone(), Some(*stamp))),
                None => unless(orphans || core.may_be_locked_by_large_txn(row)),
            },
            Precondition::LockUnchanged(stamp) => match core.row_locks.get(row) {
                Some(held) if *held == stamp => GuardCheck::Holds,
                Some(held) => GuardCheck::Fails(Rejection::LockConflict(row.clone(), Some(*held))),
                // An orphan's lock, one of a transaction that streams, or gone.
                None => GuardCheck::Unknown,
            },
            // Memory also knows of holds, which leave nothing that could be collected.
            Precondition::NoCommitAfter(_) if mutated!(SkipConflictCheck) => GuardCheck::Holds,
            Precondition::NoCommitAfter(_) if purpose == SubmissionKind::Gc => GuardCheck::Unknown,
            Precondition::NoCommitAfter(ts)
                if mutated!(VisibleTakenForNewest) && pipeline.visible_view().read_ts <= ts =>
            {
                GuardCheck::Holds
            }
            Precondition::NoCommitAfter(ts) => match core.conflict_set.check(row, ts) {
                LastCommit::NotAfter => GuardCheck::Holds,
                LastCommit::After(committed) => GuardCheck::Fails(Rejection::WriteConflict(row.clone(), committed)),
                LastCommit::Unknown => GuardCheck::Unknown,
            },
            // Nobody but its owner ends a transaction of this process, and requests are never late.
            Precondition::NoTxnRecord(start_ts) | Precondition::SafePointAtMost(start_ts) => {
                unless(start_ts < pipeline.first_ts)
            }
        }
    }
}

impl LeaderState {
    /// Whether there are no locks, nor any commit after this, whichever row is asked for.
    fn unchanged_since(&self, ts: Timestamp) -> bool {
        self.row_locks.is_empty() && self.large_txns.is_empty() && self.conflict_set.max_commit_ts() <= ts
    }

    fn may_be_locked_by_large_txn(&self, row: &RowKey) -> bool {
        !mutated!(LargeLocksUnseen) && self.large_txns.values().any(|rows| rows.may_contain(row))
    }

    /// Keeps locks and last commits in step with what the engine was told.
    pub fn note_written(&mut self, group: &RowBatch, purpose: SubmissionKind, commit_ts: Option<Timestamp>) {
        if let SubmissionKind::ForgetLarge { start_ts } = purpose {
            self.large_txns.remove(&start_ts);
        }
        match group {
            RowBatch::Changes(changes) => self.note_changes(changes, purpose, commit_ts),
            RowBatch::OnePhaseWrites(versions) => self.note_one_phase(versions),
        }
    }

    fn note_one_phase(&mut self, OnePhaseWrites { writes, commit_ts, .. }: &OnePhaseWrites) {
        let many = writes.len() > ROW_ENTRIES_MAX;
        if many && let (Some(lowest), Some(highest)) = (writes.keys().next(), writes.keys().next_back()) {
            self.conflict_set.insert_range(lowest, highest, *commit_ts);
        }
        for (row, mutation) in writes.iter() {
            let held = *mutation == Mutation::LockOnly;
            if held || !many {
                self.conflict_set.insert(row, *commit_ts, held);
            }
        }
    }

    fn note_changes(&mut self, changes: &[RowChange], purpose: SubmissionKind, commit_ts: Option<Timestamp>) {
        let many = changes.len() > ROW_ENTRIES_MAX;
        let rows = changes.iter().map(|change| &change.row);
        if many && let (Some(ts), Some(lowest), Some(highest)) = (commit_ts, rows.clone().min(), rows.max()) {
            self.conflict_set.insert_range(lowest, highest, ts);
        }
        for change in changes {
            match &change.lock {
                CellChange::Keep => {}
                CellChange::Put(lock) if purpose == SubmissionKind::PrewriteLarge => {
                    self.large_txns.entry(lock.txn.start_ts).or_default().insert(&change.row);
                }
                CellChange::Put(lock) => {
                    self.row_locks.insert(change.row.clone(), lock.version());
                }
                CellChange::Delete => {
                    self.row_locks.remove(&change.row);
                }
            }
            // Dropping the status of a transaction is no commit of the row where it was kept.
            let held = change.write == CellChange::Keep;
            if let Some(ts) = commit_ts
                && change.txn_record != CellChange::Delete
                && (held || !many)
            {
                self.conflict_set.insert(&change.row, ts, held);
            }
        }
    }
}
