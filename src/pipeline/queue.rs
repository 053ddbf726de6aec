//! The queue of submissions, and the election of the leader.

use super::reply::ReplySender;
use super::submission::Submission;
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

impl CommitQueue {
    /// Returns whether the committer becomes the leader; otherwise there is one, and its next round takes the entry.
    pub fn push(&mut self, entry: QueuedSubmission) -> bool {
        self.entries.push(entry);
        !std::mem::replace(&mut self.has_leader, true)
    }

    /// Moves the whole queue to `entries`, which is empty, for the leader. `false`: the queue is empty, and there is no leader any more.
    pub fn take_all(&mut self, entries: &mut Vec<QueuedSubmission>) -> bool {
        self.has_leader = !self.entries.is_empty();
        std::mem::swap(&mut self.entries, entries);
        self.has_leader
    }

    /// The entry whose committer may lead next, in place of another [`CommitQueue::take_all`].
    pub fn front(&self) -> Option<&QueuedSubmission> {
        self.entries.first()
    }

    /// After a panic of the leader: there is no leader, and nothing is queued.
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
    use crate::lock_manager::Fences;
    use crate::pipeline::SubmissionKind;
    use crate::pipeline::reply::ReplySlot;
    use crate::runtime::SystemEnv;

    fn entry() -> QueuedSubmission {
        let (group, conditions) = (Vec::new().into(), Arc::new(CommitConditions::default()));
        let submission =
            Submission { group, kind: SubmissionKind::NoCommit, durable: false, conditions, attempt: None };
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
