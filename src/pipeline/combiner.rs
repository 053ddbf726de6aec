//! The combiner: one thread at a time decides, stamps, writes and publishes for everybody.
//!
//! Committers put their submission into a queue. Whoever finds no leader becomes it: it takes the whole queue, checks every
//! guard from memory in the queue's order, gives out commit timestamps in that order, merges all winners into *one*
//! write without sync, and publishes a new view. So the order of commits, of the log and of timestamps is the same order:
//! there is no latch, no set of commits in flight, and a crash leaves a prefix by timestamp. Guard check and publication
//! lie microseconds apart, which is why hot rows rarely abort. A committer that comes alone leads itself: no other
//! thread is involved. A durable commit then [waits for a sync](super::durability).
//!
//! A guard that memory cannot decide stays with its group, and the engine checks it by reading the row; such a group is
//! applied by itself, so that its outcome is known before the next one is decided.

use std::sync::Arc;
use std::time::Duration;

use super::decide::{Conditions, Core, Decision, Refused};
use super::entrance::Held;
use super::queue::Entry;
use super::reply::{Reply, Slot};
use super::{Pipeline, undetermined};
use crate::engine::{ApplyResult, RowBatch};
use crate::error::{Error, ErrorKind, Result};
use crate::locking::Entered;
use crate::observe::{Part, Spent};
use crate::row::RowChange;
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
    /// Commits the primary, and perhaps others, while some rows stay locked; the leader gives the timestamp.
    CommitPoint,
    /// Turns locks of a committed transaction into versions.
    RollForward {
        commit_ts: Timestamp,
        /// Whether no lock of the transaction is left afterwards.
        finishes: bool,
    },
    /// Locks rows of a transaction that has too many to remember each.
    Stream,
    /// Such a transaction has no lock left.
    StreamEnds { start_ts: Timestamp },
    /// Removes records that no snapshot needs; the engine is asked whether they are still what they were.
    Collect,
    /// Anything else that commits nothing.
    Other,
}

/// Row changes of one transaction, to be made together.
pub struct Submission {
    pub group: RowBatch,
    pub purpose: Purpose,
    /// Whether a commit is answered only when it is durable.
    pub durable: bool,
    pub conditions: Arc<Conditions>,
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

/// Gives up the lead. A panic of the engine closes the pipeline instead of leaving everybody waiting.
struct Leading<'a> {
    pipeline: &'a Pipeline,
    /// A caller may commit while it unwinds for reasons of its own.
    was_panicking: bool,
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.was_panicking {
            self.pipeline.poison(ErrorKind::Io("the engine panicked".into()).into());
            let unanswered = self.pipeline.queue.lock().clear();
            drop(unanswered);
        }
    }
}

/// What is to be written together.
#[derive(Default)]
pub(super) struct Batch {
    bytes: usize,
    groups: Vec<RowBatch>,
    members: Vec<Member>,
}

struct Member {
    reply: Reply,
    purpose: Purpose,
    start_ts: Option<Timestamp>,
    commit_ts: Option<Timestamp>,
    guarded: bool,
    held: Option<Held>,
    entered: Entered,
}

impl Pipeline {
    /// Makes changes that belong to no commit under way: they depend on nothing but their guards.
    pub fn submit_own(&self, changes: Vec<RowChange>, purpose: Purpose) -> Result<Settled> {
        let (group, conditions) = (changes.into(), Arc::default());
        self.submit(Submission { group, purpose, durable: false, conditions, held: None }, &Spent::default())
    }

    /// Makes the changes, or says why not. Returns when they are visible or, if so asked, durable. What that took is added to
    /// `spent`, whose last lap ended when the caller began with it.
    pub fn submit(&self, submission: Submission, spent: &Spent) -> Result<Settled> {
        self.check_alive()?;
        let durable = submission.durable && !mutated!(AcknowledgeBeforeSync);
        let commits = matches!(submission.purpose, Purpose::Commit | Purpose::CommitPoint);
        let slot = Slot::new(self.runtime());
        // Before it can be decided: a fence that ends from here on finds it.
        let entered = Entered::new(&submission.conditions.fences);
        let mut leads = self.queue.lock().push(Entry { submission, entered, reply: Reply::new(&slot) });
        let answer = loop {
            if leads {
                // What it has handed in itself is among the first that it decides.
                self.lead();
            }
            match slot.wait(self.runtime()) {
                Some(answer) => break answer,
                None => leads = true,
            }
        };
        let confirmed = match answer {
            Ok(Settled::Applied(Some(commit_ts))) if durable => self.wait_durable(commit_ts),
            _ => Ok(()),
        };
        let now = self.runtime().elapsed();
        let combining = spent.lap(Part::Combining, slot.applied_at().unwrap_or(now));
        spent.lap(if durable { Part::Syncing } else { Part::Combining }, now);
        if commits && slot.applied_at().is_some() {
            self.counters.combining.record(combining);
        }
        confirmed.and(answer)
    }

    /// Decides what is queued, and for some rounds what is queued meanwhile.
    fn lead(&self) {
        let _leading = Leading { pipeline: self, was_panicking: std::thread::panicking() };
        for round in 0.. {
            let mut core = self.core.lock();
            {
                let mut queue = self.queue.lock();
                if round == ROUNDS_MAX
                    && let Some(next) = queue.first()
                {
                    next.reply.hand_over_lead();
                    return;
                }
                if !queue.take(&mut core.entries) {
                    return;
                }
            }
            self.process(&mut core);
        }
    }

    fn process(&self, core: &mut Core) {
        let (mut entries, mut batch) = (std::mem::take(&mut core.entries), std::mem::take(&mut core.batch));
        for entry in entries.drain(..) {
            let Entry { mut submission, entered, reply } = entry;
            if let Some(why) = self.failure() {
                drop(submission.held);
                reply.fail(Error::closed(why));
                continue;
            }
            let guarded = match self.decide(core, &mut submission, &entered) {
                Decision::Refuse(refused) => {
                    // A caller that has its answer may end what it is fenced by, and leaves nothing under way then.
                    drop((submission.held, entered));
                    reply.answer(Ok(Settled::Refused(refused)));
                    continue;
                }
                Decision::Proven => false,
                Decision::AskEngine => true,
            };
            if guarded {
                self.flush(core, &mut batch);
            }
            match self.stage(core, Entry { submission, entered, reply }, guarded, &mut batch) {
                Ok(()) if guarded || batch.bytes >= BATCH_MAX_BYTES => self.flush(core, &mut batch),
                Ok(()) => {}
                Err((reply, why)) => reply.fail(why),
            }
        }
        self.flush(core, &mut batch);
        (core.entries, core.batch) = (entries, batch);
    }

    fn stage(
        &self,
        core: &mut Core,
        Entry { submission, entered, reply }: Entry,
        guarded: bool,
        batch: &mut Batch,
    ) -> Result<(), (Reply, Error)> {
        let Submission { mut group, purpose, held, .. } = submission;
        // A fence that was found to hold may end before the commit has its timestamp.
        may_switch!(if entered.any());
        let commit_ts = match purpose {
            Purpose::CommitPoint if mutated!(EarlyCommitTs) => group.start_ts().map(Timestamp::next),
            Purpose::Commit | Purpose::CommitPoint => match self.timestamp() {
                Ok(ts) => Some(ts),
                Err(why) => return Err((reply, why)),
            },
            Purpose::RollForward { commit_ts, .. } => Some(commit_ts),
            Purpose::Stream | Purpose::StreamEnds { .. } | Purpose::Collect | Purpose::Other => None,
        };
        let start_ts = group.start_ts();
        if let (Purpose::Commit | Purpose::CommitPoint, Some(ts)) = (purpose, commit_ts) {
            crash_point!(CommitTs);
            group.set_commit_ts(ts);
        }
        // What is proven will be applied, and the next submission is judged on it; the engine's verdict is waited for.
        if !guarded {
            core.remember(&group, purpose, commit_ts);
        }
        if let (Purpose::CommitPoint, Some(start_ts), Some(commit_ts)) = (purpose, start_ts, commit_ts) {
            self.unapplied.lock().insert(start_ts, commit_ts);
        }
        batch.bytes += group.size_bytes();
        batch.groups.push(group);
        batch.members.push(Member { reply, purpose, start_ts, commit_ts, guarded, held, entered });
        Ok(())
    }

    fn flush(&self, core: &mut Core, batch: &mut Batch) {
        let Batch { groups, members, bytes } = batch;
        *bytes = 0;
        if groups.is_empty() {
            return;
        }
        crash_point!(BatchBefore);
        let applied = self.engine().apply(groups).map_err(Error::from).and_then(|outcomes| {
            crash_point!(BatchWritten);
            let mut newest = None;
            for ((group, member), outcome) in groups.iter().zip(&*members).zip(&outcomes) {
                match (outcome, member.purpose, member.start_ts) {
                    (ApplyResult::Applied, Purpose::Commit | Purpose::CommitPoint, _) => {
                        newest = newest.max(member.commit_ts);
                    }
                    (ApplyResult::Applied, Purpose::RollForward { finishes: true, .. }, Some(start_ts))
                    | (ApplyResult::PreconditionFailed { .. }, Purpose::CommitPoint, Some(start_ts)) => {
                        self.unapplied.lock().remove(&start_ts);
                    }
                    _ => {}
                }
                if *outcome == ApplyResult::Applied {
                    if member.guarded {
                        core.remember(group, member.purpose, member.commit_ts);
                    }
                    self.unlocked.notify(group);
                }
            }
            let now = self.runtime().elapsed();
            self.publish(core, newest, now)?;
            crash_point!(BatchPublished);
            Ok((outcomes, now))
        });
        match applied {
            Ok((outcomes, now)) => self.answer(groups, members, outcomes, now),
            Err(why) => {
                let closed = self.poison(why);
                let failure = self.failure().unwrap_or_default();
                groups.clear();
                for member in members.drain(..) {
                    member.reply.fail(match member.purpose {
                        _ if mutated!(UndeterminedAsConflict) => ErrorKind::InvalidArgument(failure.into()).into(),
                        Purpose::Commit | Purpose::CommitPoint => undetermined(failure),
                        _ => closed.kind().clone().into(),
                    });
                }
            }
        }
    }

    fn answer(&self, groups: &mut Vec<RowBatch>, members: &mut Vec<Member>, outcomes: Vec<ApplyResult>, now: Duration) {
        for ((group, member), outcome) in groups.drain(..).zip(members.drain(..)).zip(outcomes) {
            let Member { reply, purpose, commit_ts, held, entered, .. } = member;
            drop(held);
            let applied = outcome == ApplyResult::Applied;
            if applied {
                reply.note_applied(now);
            }
            match (purpose, commit_ts) {
                (Purpose::Commit | Purpose::CommitPoint, Some(ts)) if applied => {
                    if entered.is_buffered() {
                        // The next holder's snapshots show it, though its own caller may not have been told yet.
                        self.acknowledge(ts);
                    }
                    entered.published(ts);
                }
                _ => drop(entered),
            }
            match outcome {
                ApplyResult::Applied => reply.answer(Ok(Settled::Applied(commit_ts))),
                ApplyResult::PreconditionFailed { index, row } => {
                    let refused = group.row_keys().nth(index).map(|asked| Refused::Found(asked.clone(), row));
                    reply.answer(match refused {
                        Some(refused) => Ok(Settled::Refused(refused)),
                        None => {
                            Err(ErrorKind::Corruption("the engine refused a row that was not asked for".into()).into())
                        }
                    });
                }
            }
        }
    }
}
