//! The batches that a leader writes together, and the replies to their members.

use std::time::Duration;

use super::failure::{Failure, undetermined};
use super::reply::ReplySender;
use super::submission::{Rejection, SubmissionKind, SubmitResult};
use super::views::Views;
use crate::contention::AttemptGuard;
use crate::engine::{ApplyResult, RowBatch};
use crate::error::{Error, ErrorKind};
use crate::lock_manager::InFlightFences;
use crate::timestamp::Timestamp;

/// The batches that are written together, and their members.
#[derive(Default)]
pub struct WriteGroup {
    pub bytes: usize,
    pub batches: Vec<RowBatch>,
    pub members: Vec<GroupMember>,
}

pub struct GroupMember {
    pub reply: ReplySender,
    pub kind: SubmissionKind,
    pub start_ts: Option<Timestamp>,
    pub commit_ts: Option<Timestamp>,
    /// A precondition is left for the engine to check.
    pub needs_read: bool,
    pub attempt: Option<AttemptGuard>,
    pub fences: InFlightFences,
}

impl WriteGroup {
    /// Replies to each member with the result of its batch. `now`: when the batches were applied.
    pub fn send_replies(&mut self, results: Vec<ApplyResult>, now: Duration, views: &Views) {
        let (batches, members) = (self.batches.len(), self.members.len());
        assert!(
            batches == members && batches == results.len(),
            "invariant: each of {members} members has one of {batches} batches and one of {} results",
            results.len()
        );
        for ((batch, member), result) in self.batches.drain(..).zip(self.members.drain(..)).zip(results) {
            let GroupMember { reply, kind, commit_ts, attempt, fences, .. } = member;
            drop(attempt);
            let applied = result == ApplyResult::Applied;
            if applied {
                reply.note_applied(now);
            }
            match commit_ts.filter(|_| applied && kind.commits()) {
                Some(ts) => {
                    if fences.any_buffered() {
                        // `on_visible` lets the next holder of the named lock use its grant. That
                        // holder may depend on this commit before a sync covers it, and before its
                        // committer gets a reply. So from here on durable snapshots must include
                        // the commit.
                        views.note_acked(ts);
                    }
                    fences.on_visible(ts);
                }
                None => drop(fences),
            }
            match result {
                ApplyResult::Applied => reply.send(Ok(SubmitResult::Applied(commit_ts))),
                ApplyResult::PreconditionFailed { index, row } => {
                    let changed = batch.row_keys().nth(index).cloned();
                    let outside = || ErrorKind::Corruption("the engine rejected a row outside the batch".into());
                    let rejected = changed.map(|changed| Rejection::PreconditionFailed(changed, row));
                    reply.send(rejected.map(SubmitResult::Rejected).ok_or_else(|| outside().into()));
                }
            }
        }
    }

    /// Fails the pipeline, and replies to the group. Its commits may or may not be in the log, but
    /// for damage: then the engine has applied nothing.
    pub fn fail(&mut self, failure: &Failure, error: Error) {
        let is_applied = !matches!(error.kind(), ErrorKind::Corruption(_));
        let closed = failure.poison(error);
        let reason = failure.ended_by();
        self.batches.clear();
        for member in self.members.drain(..) {
            member.reply.send_error(match member.kind {
                kind if kind.commits() && is_applied => undetermined(reason),
                _ => closed.kind().clone().into(),
            });
        }
    }
}
