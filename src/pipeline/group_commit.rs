//! Group commit: one leader at a time checks and writes all queued commits.
//!
//! A committer appends its submission to the queue. If there is no leader, the committer becomes
//! the leader and runs rounds until the queue is empty. A round takes the whole queue. For each
//! submission, in order, the leader
//!
//! 1. [checks](super::precheck) its preconditions against everything that was decided earlier;
//! 2. [refuses](super::space) it if a full disk has no space for it;
//! 3. allocates its commit timestamp, if it passed.
//!
//! Then the leader writes all that passed, usually as *one* log frame, without a sync, publishes a
//! view that shows them, and sends the replies. A durable commit [waits for a
//! sync](super::group_sync) after its reply, outside the leader.
//!
//! ```text
//! submit(s)  push s to the queue; lead if there is no leader
//!            wait for the reply; if s is durable, wait for a sync
//! lead       until the queue is empty, at most 32 rounds: take all; for each
//!              memory rejects it            reply
//!              memory cannot decide         write the group, then this one by itself
//!              it passes                    commit_ts; record it in memory; add it to the group
//!            write the group: one frame, one view; reply to its members
//! ```
//!
//! # Why one leader
//!
//! In the obvious design each committer checks and writes for itself. Under one mutex, every commit
//! then costs a write of the log, for which all other commits wait. Without the mutex, two
//! conflicting commits can both pass their checks before either is written; to prevent this, rows
//! need latches, or commits need a second check in log order.
//!
//! With one leader, queue, timestamps and log have the same order, so a crash leaves a prefix by
//! timestamp. All that was decided is in the leader's memory, so a check needs no latches and no
//! set of commits in flight. Only the leader publishes views, so no view at or above a commit
//! timestamp exists before that commit is applied. One-phase commit depends on this order.
//!
//! A commit is visible microseconds after its check, so transactions on hot rows rarely conflict. A
//! committer without competition is its own leader, so no other thread is involved.
//!
//! A round is like a write group of RocksDB, but has the conflict check inside. RocksDB's leader
//! writes batches that were validated before, so a conflict check there needs a latch or a second
//! pass.
//!
//! # A check that needs a read
//!
//! A precondition that memory cannot decide stays in its batch, and the engine checks it by reading
//! the row. Such a batch is written by itself, so that its result is recorded before the next
//! submission is checked.
//!
//! # Failures
//!
//! If the write fails, the [pipeline fails](super::failure). Commits of the group get the error
//! *undetermined*: they may or may not be in the log. The other submissions of the group, and all
//! later ones, get the error *closed*.
//!
//! If the engine panics, the pipeline fails as well. What the leader had taken gets *undetermined*,
//! what was still queued *closed*, and the panic goes on in the leader's caller.

use std::sync::Arc;

use super::failure::{Failure, undetermined};
use super::fates::TxnFates;
use super::group_sync::GroupSync;
use super::precheck::{Facts, LeaderMemory, Precheck};
use super::queue::{CommitQueue, QueuedSubmission};
use super::reply::{ReplySender, ReplySlot};
use super::space::check_space;
use super::submission::{Submission, SubmissionKind, SubmitResult};
use super::timestamps::Timestamps;
use super::views::Views;
use super::write_group::{GroupMember, WriteGroup};
use crate::contention::UnlockWaiters;
use crate::crashtest::leader_rounds_max;
use crate::engine::{ApplyResult, Engine, RowBatch};
use crate::env::Env;
use crate::error::{Error, ErrorKind, Result};
use crate::lock_manager::InFlightFences;
use crate::observe::{Metrics, TxnPhase, TxnTimer};
use crate::panic_guard::PanicGuard;
use crate::sync::Mutex;
use crate::timestamp::Timestamp;

/// The maximum size of a group, in bytes. A larger batch is written by itself.
const GROUP_BYTES_MAX: usize = 8 << 20;

/// The parts of the pipeline that group commit uses.
pub struct CommitParts {
    pub engine: Arc<dyn Engine>,
    pub env: Arc<dyn Env>,
    pub metrics: Arc<Metrics>,
    pub failure: Arc<Failure>,
    pub fates: Arc<TxnFates>,
    pub views: Arc<Views>,
    pub timestamps: Arc<Timestamps>,
    pub sync: Arc<GroupSync>,
    pub unlock_waiters: Arc<UnlockWaiters>,
}

/// The commit queue, and the state of its leader.
pub struct GroupCommit {
    parts: CommitParts,
    queue: Mutex<CommitQueue>,
    leader: Mutex<LeaderState>,
}

/// State that only the leader uses.
struct LeaderState {
    memory: LeaderMemory,
    /// Empty between rounds, as is `taken`; both keep their capacity.
    group: WriteGroup,
    taken: Vec<QueuedSubmission>,
}

impl GroupCommit {
    pub fn new(parts: CommitParts, memory: LeaderMemory) -> Self {
        let leader = LeaderState { memory, group: WriteGroup::default(), taken: Vec::new() };
        Self { parts, queue: Mutex::default(), leader: Mutex::new(leader) }
    }

    /// Fails the pipeline if the leader panics, so that queued committers do not wait forever. The
    /// guard must be dropped before the replies and fences of the group: a caller that gets its
    /// reply, or finds its fenced commit no longer in flight, must find that the pipeline has
    /// failed.
    fn panic_guard(&self) -> PanicGuard<impl Fn()> {
        PanicGuard::new(|| {
            let closed = self.parts.failure.poison(ErrorKind::Io("the engine panicked".into()).into());
            let queued = self.queue.lock().abort();
            for entry in queued {
                entry.answer(Err(closed.kind().clone().into()));
            }
        })
    }

    /// Applies the changes, or returns why they were rejected. Returns when the changes are visible
    /// or, if the submission is `durable`, when they survive a power cut. Charges the time since
    /// the timer's last lap to the phases `Apply` and `Sync`.
    ///
    /// # Errors
    /// `Undetermined`: the commit may or may not have taken effect. After any other error nothing
    /// was committed.
    pub fn submit(&self, submission: Submission, timer: &TxnTimer) -> Result<SubmitResult> {
        let CommitParts { env, failure, sync, metrics, .. } = &self.parts;
        failure.check_open()?;
        let durable = submission.durable;
        let commits = submission.kind.commits();
        let slot = ReplySlot::new(&**env);
        // The fences are registered before the check, so that a grant that ends from here on counts
        // this commit as in flight.
        let fences = InFlightFences::new(&submission.conditions.fences);
        let entry = QueuedSubmission { submission, fences, reply: ReplySender::new(&slot) };
        let mut leads = self.queue.lock().push(entry);
        let answer = loop {
            if leads {
                // The first round replies to this committer, too.
                self.run_leader();
            }
            match slot.wait(&**env) {
                Some(answer) => break answer,
                None => leads = true,
            }
        };
        let synced = match answer {
            Ok(SubmitResult::Applied(Some(commit_ts))) if durable => sync.wait_durable(commit_ts),
            _ => Ok(()),
        };
        let now = env.elapsed();
        let apply = timer.lap(TxnPhase::Apply, slot.applied_at().unwrap_or(now));
        timer.lap(if durable { TxnPhase::Sync } else { TxnPhase::Apply }, now);
        if commits && slot.applied_at().is_some() {
            metrics.commit_apply.record(apply);
        }
        synced.and(answer)
    }

    /// Runs rounds until the queue is empty, at most [`leader_rounds_max`].
    fn run_leader(&self) {
        let _guard = self.panic_guard();
        for round in 0.. {
            let mut leader = self.leader.lock();
            {
                let mut queue = self.queue.lock();
                if round == leader_rounds_max()
                    && let Some(next) = queue.front()
                {
                    next.reply.transfer_leadership();
                    return;
                }
                if !queue.take_all(&mut leader.taken) {
                    return;
                }
            }
            self.run_round(&mut leader);
        }
    }

    fn run_round(&self, leader: &mut LeaderState) {
        // The group and the submissions are moved out of `leader`, so that a panic of the engine
        // drops them. A reply that is dropped unsent sends an error to its committer.
        let (mut group, mut taken) = (std::mem::take(&mut leader.group), std::mem::take(&mut leader.taken));
        self.write_taken(&mut leader.memory, &mut taken, &mut group);
        (leader.group, leader.taken) = (group, taken);
    }

    fn write_taken(&self, memory: &mut LeaderMemory, taken: &mut Vec<QueuedSubmission>, group: &mut WriteGroup) {
        for mut entry in taken.drain(..) {
            if let Some(reason) = self.parts.failure.reason() {
                entry.answer(Err(Error::closed(reason)));
                continue;
            }
            let bytes = entry.submission.batch.size_bytes();
            let limit = self.parts.engine.capabilities().batch_bytes_max;
            if bytes > limit {
                entry.answer(Err(ErrorKind::TooLarge { what: "a batch", bytes, limit }.into()));
                continue;
            }
            let needs_read = match memory.precheck(&mut entry.submission, &entry.fences, self.facts()) {
                Precheck::Reject(rejection) => {
                    entry.answer(Ok(SubmitResult::Rejected(rejection)));
                    continue;
                }
                Precheck::Proven => false,
                Precheck::NeedsRead => true,
            };
            if needs_read || group.bytes + bytes > GROUP_BYTES_MAX {
                self.write_group(memory, group);
            }
            if let Err(refused) = check_space(&*self.parts.engine, &entry.submission, (bytes, group.bytes)) {
                entry.answer(Err(refused));
                continue;
            }
            match self.stage(memory, entry, bytes, needs_read, group) {
                Ok(()) if needs_read => self.write_group(memory, group),
                Ok(()) => {}
                Err((reply, error)) => reply.send_error(error),
            }
        }
        self.write_group(memory, group);
    }

    fn facts(&self) -> Facts {
        let CommitParts { fates, .. } = &self.parts;
        Facts { first_ts: fates.first_ts(), may_have_orphans: fates.may_have_orphans() }
    }

    /// Allocates the commit timestamp of a submission that passed its check, and adds it to the
    /// group.
    fn stage(
        &self,
        memory: &mut LeaderMemory,
        entry: QueuedSubmission,
        bytes: usize,
        needs_read: bool,
        group: &mut WriteGroup,
    ) -> Result<(), (ReplySender, Error)> {
        let QueuedSubmission { submission, fences, reply } = entry;
        let Submission { mut batch, kind, attempt, .. } = submission;
        // Lets the harness end the grant of a fence here: after the check has passed, and before
        // the commit has its timestamp.
        yield_point!(if fences.is_any());
        let start_ts = batch.start_ts();
        let commit_ts = match kind {
            SubmissionKind::Commit | SubmissionKind::CommitPrimary => match self.parts.timestamps.next() {
                Ok(ts) => Some(ts),
                Err(error) => return Err((reply, error)),
            },
            SubmissionKind::RollForward { commit_ts, .. } => Some(commit_ts),
            SubmissionKind::PrewriteLarge
            | SubmissionKind::FinishRollback { .. }
            | SubmissionKind::Gc
            | SubmissionKind::NoCommit => None,
        };
        if let Some(ts) = commit_ts.filter(|_| kind.commits()) {
            crash_point!(CommitTs);
            batch.set_commit_ts(ts);
        }
        // If the engine has nothing left to check, the batch will be applied. So it is recorded
        // now, and the next submission is checked against it. A batch that needs a read is recorded
        // once it is applied.
        if !needs_read {
            memory.note_written(&batch, kind, commit_ts);
        }
        group.bytes += bytes;
        group.batches.push(batch);
        group.members.push(GroupMember { reply, kind, start_ts, commit_ts, needs_read, attempt, fences });
        Ok(())
    }

    /// Writes the group, publishes a view that shows it, and sends the replies.
    fn write_group(&self, memory: &mut LeaderMemory, group: &mut WriteGroup) {
        group.bytes = 0;
        if group.batches.is_empty() {
            return;
        }
        let _guard = self.panic_guard();
        crash_point!(GroupBefore);
        let applied = self.parts.engine.apply(&group.batches).map_err(Error::from).and_then(|results| {
            crash_point!(GroupWritten);
            let newest = self.note_results(memory, group, &results);
            let now = self.parts.env.elapsed();
            // A group without commits mostly publishes no view. It has used no timestamps, so it
            // does not request the sync that extends the reservation of timestamps.
            if self.parts.views.publish(newest, now)? {
                self.parts.timestamps.request_reservation();
            }
            crash_point!(GroupPublished);
            // After a close or a failure no later sync makes these commits durable, so they are not
            // acknowledged. If the pipeline is open here, the sync at the end of a close covers
            // them.
            match self.parts.failure.reason() {
                Some(reason) => Err(undetermined(reason)),
                None => Ok((results, now)),
            }
        });
        match applied {
            Ok((results, now)) => group.send_replies(results, now, &self.parts.views),
            Err(error) => group.fail(&self.parts.failure, error),
        }
    }

    /// Records the batches that the engine has applied, before a view shows them. Returns the
    /// timestamp of the newest commit.
    fn note_results(
        &self,
        memory: &mut LeaderMemory,
        group: &WriteGroup,
        results: &[ApplyResult],
    ) -> Option<Timestamp> {
        let CommitParts { fates, unlock_waiters, .. } = &self.parts;
        // A batch without a result would be applied, and neither recorded nor shown.
        assert_eq!(results.len(), group.batches.len(), "invariant: each batch that is written has a result");
        let mut newest = None;
        for ((batch, member), result) in group.batches.iter().zip(&group.members).zip(results) {
            if *result != ApplyResult::Applied {
                continue;
            }
            if member.kind.commits() {
                assert!(member.commit_ts.is_some(), "invariant: a commit that is written has its timestamp");
                newest = newest.max(member.commit_ts);
            }
            match (member.kind, member.start_ts, member.commit_ts) {
                (SubmissionKind::CommitPrimary, Some(start_ts), Some(commit_ts)) => {
                    fates.committed(start_ts, commit_ts);
                }
                (SubmissionKind::RollForward { finishes: true, .. }, Some(start_ts), _)
                | (SubmissionKind::FinishRollback { start_ts }, ..) => fates.finished(start_ts),
                // Without a fate, readers would not look for the commit in the locks that are left.
                (SubmissionKind::CommitPrimary | SubmissionKind::RollForward { finishes: true, .. }, ..) => {
                    unreachable!("invariant: a transaction whose fate changes has its timestamps")
                }
                _ => {}
            }
            if member.needs_read {
                memory.note_written(batch, member.kind, member.commit_ts);
            }
            if let RowBatch::Changes(changes) = batch {
                unlock_waiters.notify(changes);
            }
        }
        newest
    }
}
