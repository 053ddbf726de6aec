//! The queue of submissions, and the election of the leader.
//!
//! One mutex protects both: an entry is pushed and the leader elected in one step. So no entry is
//! left without a leader, and there is never more than one leader.

use super::reply::ReplySender;
use super::submission::{Submission, SubmitResult};
use crate::error::Result;
use crate::lock_manager::InFlightFences;

#[derive(Default)]
pub struct CommitQueue {
    entries: Vec<QueuedSubmission>,
    has_leader: bool,
}

pub struct QueuedSubmission {
    pub submission: Submission,
    pub fences: InFlightFences,
    pub reply: ReplySender,
}

impl QueuedSubmission {
    /// Answers a submission that is not written. Its attempt and its fences are dropped before the
    /// reply: a caller that has its reply may release its grant at once, and by then the commit
    /// must not count as in flight.
    pub fn answer(self, answer: Result<SubmitResult>) {
        let Self { submission, fences, reply } = self;
        drop((submission.attempt, fences));
        reply.send(answer);
    }
}

impl CommitQueue {
    /// Adds an entry. Returns whether its committer becomes the leader; otherwise the next round
    /// takes the entry.
    pub fn push(&mut self, entry: QueuedSubmission) -> bool {
        self.entries.push(entry);
        !std::mem::replace(&mut self.has_leader, true)
    }

    /// Moves the whole queue to the leader's `entries`, which must be empty. If the queue is empty,
    /// ends the leadership and returns `false`.
    pub fn take_all(&mut self, entries: &mut Vec<QueuedSubmission>) -> bool {
        self.has_leader = !self.entries.is_empty();
        std::mem::swap(&mut self.entries, entries);
        self.has_leader
    }

    /// The entry whose committer becomes the leader if leadership is transferred.
    pub fn front(&self) -> Option<&QueuedSubmission> {
        self.entries.first()
    }

    /// Ends the leadership after a panic of the leader. Empties the queue and returns its entries.
    pub fn abort(&mut self) -> Vec<QueuedSubmission> {
        self.has_leader = false;
        std::mem::take(&mut self.entries)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::commit_conditions::CommitConditions;
    use crate::env::SystemEnv;
    use crate::lock_manager::Fences;
    use crate::pipeline::SubmissionKind;
    use crate::pipeline::reply::ReplySlot;

    fn entry() -> QueuedSubmission {
        let (batch, conditions) = (Vec::new().into(), Arc::new(CommitConditions::default()));
        let submission =
            Submission { batch, kind: SubmissionKind::NoCommit, durable: false, conditions, attempt: None };
        let reply = ReplySender::new(&ReplySlot::new(&SystemEnv::default()));
        QueuedSubmission { submission, fences: InFlightFences::new(&Fences::default()), reply }
    }

    fn taken(queue: &mut CommitQueue) -> Option<usize> {
        let mut entries = Vec::new();
        queue.take_all(&mut entries).then_some(entries.len())
    }

    #[test]
    fn there_is_one_leader_until_nothing_is_queued() {
        let mut queue = CommitQueue::default();
        for _ in 0..2 {
            assert!(queue.push(entry()));
            assert!(!queue.push(entry()));
            assert_eq!(taken(&mut queue), Some(2));
            assert!(!queue.push(entry()));
            assert_eq!(taken(&mut queue), Some(1));
            assert_eq!(taken(&mut queue), None);
        }
    }

    #[test]
    fn after_a_panic_of_the_leader_the_next_committer_leads() {
        let mut queue = CommitQueue::default();
        queue.push(entry());
        queue.push(entry());
        assert_eq!(queue.abort().len(), 2);
        assert!(queue.push(entry()));
    }
}
