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

use super::decide::{CommitConditions, LeaderState, Precheck, Rejection};
use super::entrance::AttemptGuard;
use super::queue::QueuedSubmission;
use super::reply::{ReplySender, ReplySlot};
use super::{Pipeline, undetermined};
use crate::engine::{ApplyResult, RowBatch};
use crate::error::{Error, ErrorKind, Result};
use crate::locking::InFlightFences;
use crate::observe::{TxnPhase, TxnTimer};
use crate::row::RowChange;
use crate::timestamp::Timestamp;

/// How often a leader goes on for others before it hands over: enough to make handing over rare, few enough not to
/// keep its own caller for long.
const LEADER_ROUNDS_MAX: usize = 32;

/// A batch that has grown to this is written before more is added.
const GROUP_BYTES_MAX: usize = 8 << 20;

/// What a submission is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmissionKind {
    /// Commits everything that the transaction wrote; the leader gives the timestamp.
    Commit,
    /// Commits the primary, and perhaps others, while some rows stay locked; the leader gives the timestamp.
    CommitPrimary,
    /// Turns locks of a committed transaction into versions.
    RollForward {
        commit_ts: Timestamp,
        /// Whether no lock of the transaction is left afterwards.
        finishes: bool,
    },
    /// Locks rows of a transaction that has too many to remember each.
    PrewriteLarge,
    /// Such a transaction has no lock left.
    ForgetLarge { start_ts: Timestamp },
    /// Removes records that no snapshot needs; the engine is asked whether they are still what they were.
    Gc,
    /// Anything else that commits nothing.
    NoCommit,
}

/// Row changes of one transaction, to be made together.
pub struct Submission {
    pub group: RowBatch,
    pub kind: SubmissionKind,
    /// Whether a commit is answered only when it is durable.
    pub durable: bool,
    pub conditions: Arc<CommitConditions>,
    /// Dropped as soon as the changes are visible or refused, before any wait for durability.
    pub attempt: Option<AttemptGuard>,
}

/// The answer to a submission.
#[derive(Debug)]
pub enum SubmitResult {
    /// The changes are made; commits have this timestamp.
    Applied(Option<Timestamp>),
    /// None is.
    Rejected(Rejection),
}

/// Gives up the lead. A panic of the engine closes the pipeline instead of leaving everybody waiting.
struct LeaderPanicGuard<'a> {
    pipeline: &'a Pipeline,
    /// A caller may commit while it unwinds for reasons of its own.
    was_panicking: bool,
}

impl Drop for LeaderPanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.was_panicking {
            self.pipeline.poison(ErrorKind::Io("the engine panicked".into()).into());
            let unanswered = self.pipeline.queue.lock().abort();
            drop(unanswered);
        }
    }
}

/// What is to be written together.
#[derive(Default)]
pub(super) struct WriteGroup {
    bytes: usize,
    groups: Vec<RowBatch>,
    members: Vec<GroupMember>,
}

struct GroupMember {
    reply: ReplySender,
    kind: SubmissionKind,
    start_ts: Option<Timestamp>,
    commit_ts: Option<Timestamp>,
    needs_read: bool,
    attempt: Option<AttemptGuard>,
    in_flight_fences: InFlightFences,
}

impl Pipeline {
    /// Makes changes that belong to no commit under way: they depend on nothing but their guards.
    pub fn submit_internal(&self, changes: Vec<RowChange>, purpose: SubmissionKind) -> Result<SubmitResult> {
        let (group, conditions) = (changes.into(), Arc::default());
        self.submit(
            Submission { group, kind: purpose, durable: false, conditions, attempt: None },
            &TxnTimer::default(),
        )
    }

    /// Makes the changes, or says why not. Returns when they are visible or, if so asked, durable. What that took is added to
    /// `spent`, whose last lap ended when the caller began with it.
    pub fn submit(&self, submission: Submission, spent: &TxnTimer) -> Result<SubmitResult> {
        self.check_open()?;
        let durable = submission.durable && !mutated!(AcknowledgeBeforeSync);
        let commits = matches!(submission.kind, SubmissionKind::Commit | SubmissionKind::CommitPrimary);
        let slot = ReplySlot::new(self.runtime());
        // Before it can be decided: a fence that ends from here on finds it.
        let entered = InFlightFences::new(&submission.conditions.fences);
        let mut leads = self.queue.lock().push(QueuedSubmission {
            submission,
            in_flight_fences: entered,
            reply: ReplySender::new(&slot),
        });
        let answer = loop {
            if leads {
                // What it has handed in itself is among the first that it decides.
                self.run_leader();
            }
            match slot.wait(self.runtime()) {
                Some(answer) => break answer,
                None => leads = true,
            }
        };
        let confirmed = match answer {
            Ok(SubmitResult::Applied(Some(commit_ts))) if durable => self.wait_durable(commit_ts),
            _ => Ok(()),
        };
        let now = self.runtime().elapsed();
        let combining = spent.lap(TxnPhase::Apply, slot.applied_at().unwrap_or(now));
        spent.lap(if durable { TxnPhase::Sync } else { TxnPhase::Apply }, now);
        if commits && slot.applied_at().is_some() {
            self.metrics.commit_apply.record(combining);
        }
        confirmed.and(answer)
    }

    /// Decides what is queued, and for some rounds what is queued meanwhile.
    fn run_leader(&self) {
        let _leading = LeaderPanicGuard { pipeline: self, was_panicking: std::thread::panicking() };
        for round in 0.. {
            let mut core = self.leader_state.lock();
            {
                let mut queue = self.queue.lock();
                if round == LEADER_ROUNDS_MAX
                    && let Some(next) = queue.front()
                {
                    next.reply.transfer_leadership();
                    return;
                }
                if !queue.take_all(&mut core.queue_buffer) {
                    return;
                }
            }
            self.run_round(&mut core);
        }
    }

    fn run_round(&self, core: &mut LeaderState) {
        let (mut entries, mut batch) = (std::mem::take(&mut core.queue_buffer), std::mem::take(&mut core.group));
        for entry in entries.drain(..) {
            let QueuedSubmission { mut submission, in_flight_fences: entered, reply } = entry;
            if let Some(why) = self.failure() {
                drop(submission.attempt);
                reply.send_error(Error::closed(why));
                continue;
            }
            let guarded = match self.precheck(core, &mut submission, &entered) {
                Precheck::Reject(refused) => {
                    // A caller that has its answer may end what it is fenced by, and leaves nothing under way then.
                    drop((submission.attempt, entered));
                    reply.send(Ok(SubmitResult::Rejected(refused)));
                    continue;
                }
                Precheck::Proven => false,
                Precheck::NeedsRead => true,
            };
            if guarded {
                self.write_group(core, &mut batch);
            }
            match self.stage(
                core,
                QueuedSubmission { submission, in_flight_fences: entered, reply },
                guarded,
                &mut batch,
            ) {
                Ok(()) if guarded || batch.bytes >= GROUP_BYTES_MAX => self.write_group(core, &mut batch),
                Ok(()) => {}
                Err((reply, why)) => reply.send_error(why),
            }
        }
        self.write_group(core, &mut batch);
        (core.queue_buffer, core.group) = (entries, batch);
    }

    fn stage(
        &self,
        core: &mut LeaderState,
        QueuedSubmission { submission, in_flight_fences: entered, reply }: QueuedSubmission,
        guarded: bool,
        batch: &mut WriteGroup,
    ) -> Result<(), (ReplySender, Error)> {
        let Submission { mut group, kind: purpose, attempt: held, .. } = submission;
        // A fence that was found to hold may end before the commit has its timestamp.
        yield_point!(if entered.is_any());
        let commit_ts = match purpose {
            SubmissionKind::CommitPrimary if mutated!(EarlyCommitTs) => group.start_ts().map(Timestamp::next),
            SubmissionKind::Commit | SubmissionKind::CommitPrimary => match self.next_timestamp() {
                Ok(ts) => Some(ts),
                Err(why) => return Err((reply, why)),
            },
            SubmissionKind::RollForward { commit_ts, .. } => Some(commit_ts),
            SubmissionKind::PrewriteLarge
            | SubmissionKind::ForgetLarge { .. }
            | SubmissionKind::Gc
            | SubmissionKind::NoCommit => None,
        };
        let start_ts = group.start_ts();
        if let (SubmissionKind::Commit | SubmissionKind::CommitPrimary, Some(ts)) = (purpose, commit_ts) {
            crash_point!(CommitTs);
            group.set_commit_ts(ts);
        }
        // What is proven will be applied, and the next submission is judged on it; the engine's verdict is waited for.
        if !guarded {
            core.note_written(&group, purpose, commit_ts);
        }
        if let (SubmissionKind::CommitPrimary, Some(start_ts), Some(commit_ts)) = (purpose, start_ts, commit_ts) {
            self.unapplied.lock().insert(start_ts, commit_ts);
        }
        batch.bytes += group.size_bytes();
        batch.groups.push(group);
        batch.members.push(GroupMember {
            reply,
            kind: purpose,
            start_ts,
            commit_ts,
            needs_read: guarded,
            attempt: held,
            in_flight_fences: entered,
        });
        Ok(())
    }

    fn write_group(&self, core: &mut LeaderState, batch: &mut WriteGroup) {
        let WriteGroup { groups, members, bytes } = batch;
        *bytes = 0;
        if groups.is_empty() {
            return;
        }
        crash_point!(GroupBefore);
        let applied = self.engine().apply(groups).map_err(Error::from).and_then(|outcomes| {
            crash_point!(GroupWritten);
            let mut newest = None;
            for ((group, member), outcome) in groups.iter().zip(&*members).zip(&outcomes) {
                match (outcome, member.kind, member.start_ts) {
                    (ApplyResult::Applied, SubmissionKind::Commit | SubmissionKind::CommitPrimary, _) => {
                        newest = newest.max(member.commit_ts);
                    }
                    (ApplyResult::Applied, SubmissionKind::RollForward { finishes: true, .. }, Some(start_ts))
                    | (ApplyResult::PreconditionFailed { .. }, SubmissionKind::CommitPrimary, Some(start_ts)) => {
                        self.unapplied.lock().remove(&start_ts);
                    }
                    _ => {}
                }
                if *outcome == ApplyResult::Applied {
                    if member.needs_read {
                        core.note_written(group, member.kind, member.commit_ts);
                    }
                    self.unlock_waiters.notify(group);
                }
            }
            let now = self.runtime().elapsed();
            self.publish(core, newest, now)?;
            crash_point!(GroupPublished);
            Ok((outcomes, now))
        });
        match applied {
            Ok((outcomes, now)) => self.send_replies(groups, members, outcomes, now),
            Err(why) => {
                let closed = self.poison(why);
                let failure = self.failure().unwrap_or_default();
                groups.clear();
                for member in members.drain(..) {
                    member.reply.send_error(match member.kind {
                        _ if mutated!(UndeterminedAsConflict) => ErrorKind::InvalidArgument(failure.into()).into(),
                        SubmissionKind::Commit | SubmissionKind::CommitPrimary => undetermined(failure),
                        _ => closed.kind().clone().into(),
                    });
                }
            }
        }
    }

    fn send_replies(
        &self,
        groups: &mut Vec<RowBatch>,
        members: &mut Vec<GroupMember>,
        outcomes: Vec<ApplyResult>,
        now: Duration,
    ) {
        for ((group, member), outcome) in groups.drain(..).zip(members.drain(..)).zip(outcomes) {
            let GroupMember { reply, kind: purpose, commit_ts, attempt: held, in_flight_fences: entered, .. } = member;
            drop(held);
            let applied = outcome == ApplyResult::Applied;
            if applied {
                reply.note_applied(now);
            }
            match (purpose, commit_ts) {
                (SubmissionKind::Commit | SubmissionKind::CommitPrimary, Some(ts)) if applied => {
                    if entered.any_buffered() {
                        // The next holder's snapshots show it, though its own caller may not have been told yet.
                        self.note_acked(ts);
                    }
                    entered.on_visible(ts);
                }
                _ => drop(entered),
            }
            match outcome {
                ApplyResult::Applied => reply.send(Ok(SubmitResult::Applied(commit_ts))),
                ApplyResult::PreconditionFailed { index, row } => {
                    let refused =
                        group.row_keys().nth(index).map(|asked| Rejection::PreconditionFailed(asked.clone(), row));
                    reply.send(match refused {
                        Some(refused) => Ok(SubmitResult::Rejected(refused)),
                        None => {
                            Err(ErrorKind::Corruption("the engine refused a row that was not asked for".into()).into())
                        }
                    });
                }
            }
        }
    }
}
