//! The queue of submissions, and the election of its leader.

use super::combiner::Submission;
use super::reply::Reply;
use crate::locking::Entered;

#[derive(Default)]
pub struct Queue {
    entries: Vec<Entry>,
    leading: bool,
}

pub struct Entry {
    pub submission: Submission,
    /// The fences among its conditions.
    pub entered: Entered,
    pub reply: Reply,
}

impl Queue {
    /// Returns whether the committer becomes the leader; otherwise there is one, and its next round takes the entry.
    pub fn push(&mut self, entry: Entry) -> bool {
        self.entries.push(entry);
        !std::mem::replace(&mut self.leading, true)
    }

    /// Moves the whole queue to `entries`, which is empty, for the leader. `false`: the queue is empty, and there is no leader any more.
    pub fn take(&mut self, entries: &mut Vec<Entry>) -> bool {
        self.leading = !self.entries.is_empty();
        std::mem::swap(&mut self.entries, entries);
        self.leading
    }

    /// The entry whose committer may lead next, in place of another [`Queue::take`].
    pub fn first(&self) -> Option<&Entry> {
        self.entries.first()
    }

    /// After a panic of the leader: there is no leader, and nothing is queued.
    pub fn clear(&mut self) -> Vec<Entry> {
        self.leading = false;
        std::mem::take(&mut self.entries)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::locking::Fences;
    use crate::pipeline::reply::Slot;
    use crate::pipeline::{Conditions, Purpose};
    use crate::runtime::System;

    fn entry() -> Entry {
        let (group, conditions) = (Vec::new().into(), Arc::new(Conditions::default()));
        let submission = Submission { group, purpose: Purpose::Other, durable: false, conditions, held: None };
        let reply = Reply::new(&Slot::new(&System::default()));
        Entry { submission, entered: Entered::new(&Fences::default()), reply }
    }

    fn taken(queue: &mut Queue) -> Option<usize> {
        let mut entries = Vec::new();
        queue.take(&mut entries).then_some(entries.len())
    }

    #[test]
    fn there_is_one_leader_until_nothing_is_queued() {
        let mut queue = Queue::default();
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
        let mut queue = Queue::default();
        queue.push(entry());
        queue.push(entry());
        assert_eq!(queue.clear().len(), 2);
        assert!(queue.push(entry()));
    }
}
