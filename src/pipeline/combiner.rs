//! The combiner: one thread at a time decides, stamps, writes and publishes for everybody.
//!
//! Committers put their submission into a queue. Whoever finds no leader becomes it: it takes the whole queue, checks every
//! guard from memory in the queue's order, gives out commit timestamps in that order, merges all winners into *one*
//! write without sync, and publishes a new view. So the order of commits, of the log and of timestamps is the same order:
//! there is no latch, no set of commits in flight, and a crash leaves a prefix by timestamp. Guard check and publication
//! lie microseconds apart, which is why hot rows rarely abort. A committer that comes alone leads itself: no other
//! thread is involved.
//!
//! A guard that memory cannot decide stays with its group, and the engine checks it by reading the row; such a group is
//! applied by itself, so that its outcome is known before the next one is decided.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::conflicts::LastCommit;
use super::turns::Held;
use super::waiter::Waiter;
use super::{Core, Pipeline};
use crate::engine::{Group, Outcome};
use crate::error::{Error, ErrorKind, Result};
use crate::row::{Edit, Guard, LockStamp, Row, RowChange, RowKey};
use crate::runtime::Runtime;
use crate::timestamp::Timestamp;

/// How often a leader goes on for others before it hands over: enough to make handing over rare, few enough not to
/// keep its own caller for long.
const ROUNDS_MAX: usize = 32;

/// A batch that has grown to this is written before more is added.
const BATCH_MAX_BYTES: usize = 8 << 20;

/// What a submission is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Commits everything that the transaction wrote; the leader gives the timestamp.
    Commit,
    /// Commits the primary while other rows stay locked; the leader gives the timestamp.
    CommitPoint,
    /// Turns locks of a committed transaction into versions.
    RollForward {
        commit_ts: Timestamp,
        /// Whether no lock of the transaction is left afterwards.
        finishes: bool,
    },
    /// Anything that commits nothing.
    Other,
}

/// Row changes of one transaction, to be made together.
pub struct Submission {
    pub changes: Vec<RowChange>,
    pub purpose: Purpose,
    /// Whether a commit is answered only when it is durable.
    pub durable: bool,
    /// All must be true when the changes are made, or they are refused.
    pub alive: Vec<Arc<AtomicBool>>,
    /// Dropped as soon as the changes are visible or refused, before any wait for durability.
    pub held: Option<Held>,
}

/// The answer to a submission.
#[derive(Debug)]
pub enum Settled {
    /// The changes are made; commits have this timestamp.
    Applied(Option<Timestamp>),
    /// None is.
    Refused(Refused),
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
    /// Something that the submission needs is gone.
    NotAlive,
}

#[derive(Default)]
pub struct Queue {
    entries: Vec<Entry>,
    leading: bool,
}

struct Entry {
    submission: Submission,
    slot: Arc<Slot>,
}

/// Where a submission's answer appears.
pub struct Slot {
    answer: Mutex<Option<Result<Settled>>>,
    lead: AtomicBool,
    waiter: Arc<Waiter>,
}

impl Slot {
    fn new(runtime: &dyn Runtime) -> Arc<Self> {
        Arc::new(Self { answer: Mutex::new(None), lead: AtomicBool::new(false), waiter: Waiter::new(runtime) })
    }

    /// A slot for something applied that now waits to be durable.
    pub fn applied(runtime: &dyn Runtime, ts: Timestamp) -> Arc<Self> {
        let slot = Self::new(runtime);
        slot.answer_quietly(Ok(Settled::Applied(Some(ts))));
        slot
    }

    fn answer_quietly(&self, answer: Result<Settled>) {
        *self.answer.lock() = Some(answer);
    }

    fn answer(&self, answer: Result<Settled>) {
        self.answer_quietly(answer);
        self.wake();
    }

    /// Lets the waiting thread take the answer that is there.
    pub fn wake(&self) {
        self.waiter.notify();
    }

    /// Replaces whatever the answer was by a failure.
    pub fn fail(&self, why: Error) {
        self.answer(Err(why));
    }

    /// Waits for the answer.
    pub fn wait(&self) -> Result<Settled> {
        loop {
            self.waiter.wait();
            if let Some(answer) = self.answer.lock().take() {
                return answer;
            }
        }
    }
}

/// What the leader makes of one submission before anything is written.
enum Decision {
    Proven,
    AskEngine,
    Refuse(Refused),
}

#[derive(Default)]
struct Batch {
    bytes: usize,
    groups: Vec<Group>,
    members: Vec<Member>,
}

struct Member {
    slot: Arc<Slot>,
    purpose: Purpose,
    start_ts: Option<Timestamp>,
    commit_ts: Option<Timestamp>,
    durable: bool,
    guarded: bool,
    held: Option<Held>,
}

impl Pipeline {
    /// Makes the changes, or says why not. Returns when they are visible or, if so asked, durable.
    pub fn submit(&self, submission: Submission) -> Result<Settled> {
        self.check_alive()?;
        let durable = submission.durable;
        let slot = Slot::new(self.runtime());
        let lead = {
            let mut queue = self.queue.lock();
            queue.entries.push(Entry { submission, slot: Arc::clone(&slot) });
            !std::mem::replace(&mut queue.leading, true)
        };
        if lead {
            self.lead(&slot);
        }
        let mut led = lead;
        let answer = loop {
            slot.waiter.wait();
            if slot.lead.swap(false, Ordering::AcqRel) {
                led = true;
                self.lead(&slot);
            }
            if let Some(answer) = slot.answer.lock().take() {
                break answer;
            }
        };
        let confirmed = match answer {
            Ok(Settled::Applied(Some(commit_ts))) if durable => self.wait_durable(commit_ts),
            _ => Ok(()),
        };
        if led {
            // Those whom this thread led may wait for a sync that nobody has begun.
            self.durability.kick();
        }
        confirmed.and(answer)
    }

    fn lead(&self, own: &Arc<Slot>) {
        for round in 0.. {
            let mut core = self.core.lock();
            let entries = {
                let mut queue = self.queue.lock();
                match queue.entries.first() {
                    None => {
                        queue.leading = false;
                        return;
                    }
                    Some(next) if round == ROUNDS_MAX => {
                        next.slot.lead.store(true, Ordering::Release);
                        next.slot.wake();
                        return;
                    }
                    Some(_) => std::mem::take(&mut queue.entries),
                }
            };
            if round > 0 {
                // The leader is busy with others; their sync must not wait for it.
                self.durability.kick();
            }
            self.process(&mut core, entries, own);
        }
    }

    fn process(&self, core: &mut Core, entries: Vec<Entry>, own: &Arc<Slot>) {
        let mut batch = Batch::default();
        for entry in entries {
            let Entry { mut submission, slot } = entry;
            if let Some(why) = self.failure() {
                drop(submission.held);
                slot.fail(Error::closed(why));
                continue;
            }
            let guarded = match self.decide(core, &mut submission) {
                Decision::Refuse(refused) => {
                    drop(submission.held);
                    slot.answer(Ok(Settled::Refused(refused)));
                    continue;
                }
                Decision::Proven => false,
                Decision::AskEngine => true,
            };
            if guarded {
                self.flush(core, &mut batch, own);
            }
            match self.stage(core, submission, Arc::clone(&slot), guarded, &mut batch) {
                Ok(()) if guarded || batch.bytes >= BATCH_MAX_BYTES => self.flush(core, &mut batch, own),
                Ok(()) => {}
                Err(why) => slot.fail(why),
            }
        }
        self.flush(core, &mut batch, own);
    }

    /// Proves what memory can prove and removes those guards.
    fn decide(&self, core: &Core, submission: &mut Submission) -> Decision {
        if !submission.alive.iter().all(|alive| alive.load(Ordering::Acquire)) {
            return Decision::Refuse(Refused::NotAlive);
        }
        let orphans = self.orphans.load(Ordering::Acquire);
        let mut ask_engine = false;
        for change in &mut submission.changes {
            let row = &change.row;
            let mut refused = None;
            change.guards.retain(|guard| {
                let unknown = match *guard {
                    Guard::LockAbsent => match core.locks.get(row) {
                        Some(stamp) => {
                            refused = Some(Refused::Lock(row.clone(), Some(*stamp)));
                            false
                        }
                        None => orphans,
                    },
                    Guard::LockIs(stamp) => match core.locks.get(row) {
                        Some(held) if *held == stamp => false,
                        Some(held) => {
                            refused = Some(Refused::Lock(row.clone(), Some(*held)));
                            false
                        }
                        // Not this process's lock: an orphan, or gone.
                        None => true,
                    },
                    Guard::NoCommitAfter(ts) => match core.conflicts.check(row, ts) {
                        LastCommit::NotAfter => false,
                        LastCommit::After(committed) => {
                            refused = Some(Refused::CommittedAt(row.clone(), committed));
                            false
                        }
                        LastCommit::Unknown => true,
                    },
                    // Nobody but its owner ends a transaction of this process, and requests are never late.
                    Guard::NoRecordOf(start_ts) | Guard::SafePointBelow(start_ts) => start_ts < self.opened_at,
                };
                ask_engine |= unknown;
                unknown
            });
            if let Some(refused) = refused {
                return Decision::Refuse(refused);
            }
        }
        if ask_engine { Decision::AskEngine } else { Decision::Proven }
    }

    fn stage(
        &self,
        core: &mut Core,
        submission: Submission,
        slot: Arc<Slot>,
        guarded: bool,
        batch: &mut Batch,
    ) -> Result<()> {
        let Submission { mut changes, purpose, durable, held, .. } = submission;
        let commit_ts = match purpose {
            Purpose::Commit | Purpose::CommitPoint => Some(self.timestamp()?),
            Purpose::RollForward { commit_ts, .. } => Some(commit_ts),
            Purpose::Other => None,
        };
        let start_ts = changes.first().map(|change| change.start_ts);
        if let (Purpose::Commit | Purpose::CommitPoint, Some(ts)) = (purpose, commit_ts) {
            for change in &mut changes {
                change.stamp(ts);
            }
        }
        // What is proven will be applied, and the next submission is judged on it; the engine's verdict is waited for.
        if !guarded {
            core.remember(&changes, commit_ts);
        }
        if let (Purpose::CommitPoint, Some(start_ts), Some(commit_ts)) = (purpose, start_ts, commit_ts) {
            self.unapplied.lock().insert(start_ts, commit_ts);
        }
        batch.bytes += changes.iter().map(RowChange::size_bytes).sum::<usize>();
        batch.groups.push(Group { changes });
        batch.members.push(Member { slot, purpose, start_ts, commit_ts, durable, guarded, held });
        Ok(())
    }

    fn flush(&self, core: &mut Core, batch: &mut Batch, own: &Arc<Slot>) {
        let Batch { groups, members, .. } = std::mem::take(batch);
        if groups.is_empty() {
            return;
        }
        let applied = self.engine().apply(&groups).map_err(Error::from).and_then(|outcomes| {
            let mut newest = None;
            for ((group, member), outcome) in groups.iter().zip(&members).zip(&outcomes) {
                match (outcome, member.purpose, member.start_ts) {
                    (Outcome::Applied, Purpose::Commit | Purpose::CommitPoint, _) => {
                        newest = newest.max(member.commit_ts);
                    }
                    (Outcome::Applied, Purpose::RollForward { finishes: true, .. }, Some(start_ts))
                    | (Outcome::Refused { .. }, Purpose::CommitPoint, Some(start_ts)) => {
                        self.unapplied.lock().remove(&start_ts);
                    }
                    _ => {}
                }
                if *outcome == Outcome::Applied {
                    if member.guarded {
                        core.remember(&group.changes, member.commit_ts);
                    }
                    self.unlocked.notify(&group.changes);
                }
            }
            self.publish(core, newest)?;
            Ok(outcomes)
        });
        match applied {
            Ok(outcomes) => self.answer(groups, members, outcomes, own),
            Err(why) => {
                let why = self.poison(why).to_string();
                for member in members {
                    member.slot.fail(match member.purpose {
                        Purpose::Commit | Purpose::CommitPoint => ErrorKind::Undetermined(why.clone()).into(),
                        Purpose::RollForward { .. } | Purpose::Other => ErrorKind::Io(why.clone()).into(),
                    });
                }
            }
        }
    }

    fn answer(&self, groups: Vec<Group>, members: Vec<Member>, outcomes: Vec<Outcome>, own: &Arc<Slot>) {
        let mut waiting = Vec::new();
        for ((group, member), outcome) in groups.into_iter().zip(members).zip(outcomes) {
            let Member { slot, commit_ts, durable, held, .. } = member;
            drop(held);
            match (outcome, commit_ts) {
                (Outcome::Applied, Some(ts)) if durable && !Arc::ptr_eq(&slot, own) => {
                    slot.answer_quietly(Ok(Settled::Applied(commit_ts)));
                    waiting.push((ts, slot));
                }
                (Outcome::Applied, _) => slot.answer(Ok(Settled::Applied(commit_ts))),
                (Outcome::Refused { index, row }, _) => {
                    let refused = group.changes.into_iter().nth(index).map(|change| Refused::Found(change.row, row));
                    slot.answer(match refused {
                        Some(refused) => Ok(Settled::Refused(refused)),
                        None => {
                            Err(ErrorKind::Corruption("the engine refused a row that was not asked for".into()).into())
                        }
                    });
                }
            }
        }
        self.durability.leave(waiting);
        self.refuse_waiting_if_failed();
    }
}

impl Core {
    /// Keeps locks and last commits in step with what the engine was told.
    fn remember(&mut self, changes: &[RowChange], commit_ts: Option<Timestamp>) {
        for change in changes {
            match &change.lock {
                Edit::Keep => {}
                Edit::Put(lock) => {
                    self.locks.insert(change.row.clone(), lock.stamp());
                }
                Edit::Delete => {
                    self.locks.remove(&change.row);
                }
            }
            // Dropping the status of a transaction is no commit of the row where it was kept.
            if let Some(ts) = commit_ts
                && change.status != Edit::Delete
            {
                self.conflicts.record(&change.row, ts, change.write == Edit::Keep);
            }
        }
    }
}
