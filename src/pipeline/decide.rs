//! What the leader knows without asking the engine: which rows this process has locked, and when rows were committed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;

use super::Pipeline;
use super::combiner::{Batch, Purpose, Submission};
use super::conflicts::{ConflictMemory, LastCommit};
use super::filter::RowFilter;
use super::queue::Entry;
use crate::engine::{OnePhaseWrites, RowBatch};
use crate::locking::{Entered, Fences, LockLost};
use crate::row::{Edit, Guard, LockStamp, Mutation, Row, RowChange, RowKey};
use crate::sync::Mutex;
use crate::timestamp::Timestamp;
use crate::view::PinnedView;

/// Commits of more rows are not remembered row by row. A group of a two-phase commit has fewer.
// Tests of crashes have few rows, and are to meet both sorts, groups included.
const REMEMBERED_MAX: usize = if cfg!(feature = "crashtest") { 4 } else { 2048 };

/// The leader's memory.
pub struct Core {
    pub locks: HashMap<RowKey, LockStamp>,
    /// What transactions that stream have locked, by their `start_ts`.
    pub streams: HashMap<Timestamp, RowFilter>,
    pub conflicts: ConflictMemory,
    /// Empty between rounds; kept for its capacity.
    pub batch: Batch,
    /// What the leader took from the queue; empty between rounds, and kept for its capacity.
    pub entries: Vec<Entry>,
}

/// Whether a keyspace is still there. What is submitted for one is made only while it is.
pub struct Life {
    /// What it is called now.
    name: Mutex<Arc<str>>,
    over: AtomicBool,
}

impl Life {
    pub fn new(name: &str) -> Arc<Self> {
        Arc::new(Self { name: Mutex::new(name.into()), over: AtomicBool::new(false) })
    }

    pub fn name(&self) -> Arc<str> {
        Arc::clone(&self.name.lock())
    }

    pub fn rename(&self, name: &str) {
        *self.name.lock() = name.into();
    }

    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Whether it was this call that ended it.
    pub fn end(&self) -> bool {
        !self.over.swap(true, Ordering::AcqRel)
    }

    /// Takes its end back.
    pub fn go_on(&self) {
        self.over.store(false, Ordering::Release);
    }
}

/// What must hold when changes are made, or they are refused. The leader looks, so nothing comes in between.
#[derive(Default)]
pub struct Conditions {
    /// Of the keyspaces that are written: none is over.
    pub lives: SmallVec<[Arc<Life>; 1]>,
    /// What the transaction has read: it has not expired. What was collected since might be the delete that it never saw.
    pub view: Option<Arc<PinnedView>>,
    /// The grants that the transaction is fenced by: all of them stand.
    pub fences: Fences,
}

/// Why changes were not made.
#[derive(Debug)]
pub enum Refused {
    /// The row was committed at this timestamp, after the snapshot of whoever asked.
    CommittedAt(RowKey, Timestamp),
    /// A live transaction holds the row's lock, or the lock is not the one that the change is about.
    Lock(RowKey, Option<LockStamp>),
    /// A guard did not hold for the row as the engine found it.
    Found(RowKey, Box<Row>),
    /// The keyspace of this name was dropped.
    Dropped(String),
    /// What was read is older than the store allows.
    Expired,
    /// The grant of a lock by which it is fenced is over.
    LockLost(Box<LockLost>),
}

/// What the leader makes of one submission before anything is written.
pub enum Decision {
    Proven,
    AskEngine,
    Refuse(Refused),
}

impl Pipeline {
    /// Proves what memory can prove and removes those guards.
    pub(super) fn decide(&self, core: &Core, submission: &mut Submission, entered: &Entered) -> Decision {
        let Conditions { lives, view, .. } = &*submission.conditions;
        if let Some(dropped) = lives.iter().find(|life| life.is_over()) {
            return Decision::Refuse(Refused::Dropped(dropped.name().to_string()));
        }
        let has_expired = view.as_ref().is_some_and(|view| view.expired.load(Ordering::Acquire));
        if has_expired && !mutated!(ExpiredWriterCommits) {
            return Decision::Refuse(Refused::Expired);
        }
        if let Some(lost) = entered.lost().filter(|_| !mutated!(FenceAtBegin)) {
            return Decision::Refuse(Refused::LockLost(Box::new(lost)));
        }
        let proof =
            Proof { pipeline: self, core, purpose: submission.purpose, orphans: self.orphans.load(Ordering::Acquire) };
        match &mut submission.group {
            RowBatch::Changes(changes) => proof.of_changes(changes),
            RowBatch::OnePhaseWrites(versions) => match proof.of_versions(versions) {
                Decision::AskEngine => {
                    // The engine is to read no more rows than it has to.
                    let mut changes = submission.group.changes().into_owned();
                    let decision = proof.of_changes(&mut changes);
                    submission.group = RowBatch::Changes(changes);
                    decision
                }
                decided => decided,
            },
        }
    }
}

/// What becomes of a guard.
enum Verdict {
    Holds,
    Unknown,
    Refuted(Refused),
}

/// What memory proves of the guards of one submission.
struct Proof<'a> {
    pipeline: &'a Pipeline,
    core: &'a Core,
    purpose: Purpose,
    orphans: bool,
}

impl Proof<'_> {
    /// All of it or nothing.
    fn of_versions(&self, versions: &mut OnePhaseWrites) -> Decision {
        let Some(ts) = versions.no_commit_after else { return Decision::Proven };
        // Of whoever comes alone, with a load above all, the rows need not be looked at.
        if !self.orphans && self.core.has_nothing_since(ts) {
            versions.no_commit_after = None;
            return Decision::Proven;
        }
        for row in versions.writes.keys() {
            for guard in Guard::of_next_version(ts) {
                match self.of(row, guard) {
                    Verdict::Holds => {}
                    Verdict::Unknown => return Decision::AskEngine,
                    Verdict::Refuted(refused) => return Decision::Refuse(refused),
                }
            }
        }
        versions.no_commit_after = None;
        Decision::Proven
    }

    /// What is proven is removed.
    fn of_changes(&self, changes: &mut [RowChange]) -> Decision {
        let mut decision = Decision::Proven;
        for change in changes {
            let mut refused = None;
            change.guards.retain(|guard| match self.of(&change.row, *guard) {
                Verdict::Holds => false,
                Verdict::Unknown => {
                    decision = Decision::AskEngine;
                    true
                }
                Verdict::Refuted(why) => {
                    refused = Some(why);
                    false
                }
            });
            if let Some(refused) = refused {
                return Decision::Refuse(refused);
            }
        }
        decision
    }

    fn of(&self, row: &RowKey, guard: Guard) -> Verdict {
        let Self { pipeline, core, purpose, orphans } = *self;
        let unless = |unknown| if unknown { Verdict::Unknown } else { Verdict::Holds };
        match guard {
            Guard::LockAbsent => match core.locks.get(row) {
                Some(stamp) => Verdict::Refuted(Refused::Lock(row.clone(), Some(*stamp))),
                None => unless(orphans || core.may_be_streamed(row)),
            },
            Guard::LockIs(stamp) => match core.locks.get(row) {
                Some(held) if *held == stamp => Verdict::Holds,
                Some(held) => Verdict::Refuted(Refused::Lock(row.clone(), Some(*held))),
                // An orphan's lock, one of a transaction that streams, or gone.
                None => Verdict::Unknown,
            },
            // Memory also knows of holds, which leave nothing that could be collected.
            Guard::NoCommitAfter(_) if mutated!(SkipConflictCheck) => Verdict::Holds,
            Guard::NoCommitAfter(_) if purpose == Purpose::Collect => Verdict::Unknown,
            Guard::NoCommitAfter(ts) if mutated!(NewestIsVisible) && pipeline.current_view().read_ts <= ts => {
                Verdict::Holds
            }
            Guard::NoCommitAfter(ts) => match core.conflicts.check(row, ts) {
                LastCommit::NotAfter => Verdict::Holds,
                LastCommit::After(committed) => Verdict::Refuted(Refused::CommittedAt(row.clone(), committed)),
                LastCommit::Unknown => Verdict::Unknown,
            },
            // Nobody but its owner ends a transaction of this process, and requests are never late.
            Guard::NoRecordOf(start_ts) | Guard::SafePointBelow(start_ts) => unless(start_ts < pipeline.opened_at),
        }
    }
}

impl Core {
    /// Whether there are no locks, nor any commit after this, whichever row is asked for.
    fn has_nothing_since(&self, ts: Timestamp) -> bool {
        self.locks.is_empty() && self.streams.is_empty() && self.conflicts.newest() <= ts
    }

    fn may_be_streamed(&self, row: &RowKey) -> bool {
        !mutated!(StreamedLocksUnseen) && self.streams.values().any(|rows| rows.may_have(row))
    }

    /// Keeps locks and last commits in step with what the engine was told.
    pub fn remember(&mut self, group: &RowBatch, purpose: Purpose, commit_ts: Option<Timestamp>) {
        if let Purpose::StreamEnds { start_ts } = purpose {
            self.streams.remove(&start_ts);
        }
        match group {
            RowBatch::Changes(changes) => self.remember_changes(changes, purpose, commit_ts),
            RowBatch::OnePhaseWrites(versions) => self.remember_versions(versions),
        }
    }

    fn remember_versions(&mut self, OnePhaseWrites { writes, commit_ts, .. }: &OnePhaseWrites) {
        let many = writes.len() > REMEMBERED_MAX;
        if many && let (Some(lowest), Some(highest)) = (writes.keys().next(), writes.keys().next_back()) {
            self.conflicts.record_many(lowest, highest, *commit_ts);
        }
        for (row, mutation) in writes.iter() {
            let held = *mutation == Mutation::Hold;
            if held || !many {
                self.conflicts.record(row, *commit_ts, held);
            }
        }
    }

    fn remember_changes(&mut self, changes: &[RowChange], purpose: Purpose, commit_ts: Option<Timestamp>) {
        let many = changes.len() > REMEMBERED_MAX;
        let rows = changes.iter().map(|change| &change.row);
        if many && let (Some(ts), Some(lowest), Some(highest)) = (commit_ts, rows.clone().min(), rows.max()) {
            self.conflicts.record_many(lowest, highest, ts);
        }
        for change in changes {
            match &change.lock {
                Edit::Keep => {}
                Edit::Put(lock) if purpose == Purpose::Stream => {
                    self.streams.entry(lock.txn.start_ts).or_default().add(&change.row);
                }
                Edit::Put(lock) => {
                    self.locks.insert(change.row.clone(), lock.stamp());
                }
                Edit::Delete => {
                    self.locks.remove(&change.row);
                }
            }
            // Dropping the status of a transaction is no commit of the row where it was kept.
            let held = change.write == Edit::Keep;
            if let Some(ts) = commit_ts
                && change.status != Edit::Delete
                && (held || !many)
            {
                self.conflicts.record(&change.row, ts, held);
            }
        }
    }
}
