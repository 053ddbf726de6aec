//! The queue in front of the leader, and who has to lead.
//!
//! A durable commit that comes while a sync runs is acknowledged by the next one, whenever it is written until then. If each is
//! written at once, with few processors mostly each is written alone, and whoever handed it in gives way and sleeps in between.
//! So, where many commit, such commits are *deferred*: they lie in the queue, and those who handed them in sleep until they are
//! durable. They are written together when there are a few, when somebody comes who cannot wait, or when the sync has ended,
//! by who made it and before it makes the next.
//!
//! Until it is written a commit is not visible, so its rows are in the way of others for longer. Therefore nothing is
//! deferred that others wait for (whoever holds turns or a permit), and nothing at all for a while after a conflict.

use super::combiner::Submission;
use super::reply::Reply;

/// So many are written without waiting for more: nearly all of what a larger batch saves, and there is work for the second
/// processor while the sync runs.
// Tests of crashes have few clients, and are to meet deferred commits.
const DEFERRED_MAX: usize = if cfg!(feature = "crashtest") { 2 } else { 16 };

/// A conflict keeps so many submissions from being deferred.
const UNREST: u32 = 16;

#[derive(Default)]
pub struct Queue {
    entries: Vec<Entry>,
    leading: bool,
    /// Something among the entries cannot wait.
    urgent: bool,
    /// A sync is running, and its end will see to what lies here.
    deferring: bool,
    /// So many more submissions are not deferred.
    unrest: u32,
}

pub struct Entry {
    pub submission: Submission,
    pub reply: Reply,
}

/// What becomes of a submission that was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queued {
    /// Whoever handed it in has to lead.
    Lead,
    /// A leader is about to come to it.
    Follow,
    /// It lies here until the sync has ended, or before.
    Deferred,
}

impl Queue {
    pub fn push(&mut self, entry: Entry) -> Queued {
        let calm = self.unrest == 0;
        self.unrest = self.unrest.saturating_sub(1);
        self.urgent |= !(calm && entry.submission.can_be_deferred());
        self.entries.push(entry);
        if !self.is_due() {
            Queued::Deferred
        } else if std::mem::replace(&mut self.leading, true) {
            Queued::Follow
        } else {
            Queued::Lead
        }
    }

    /// For the leader: everything that is queued, or `None` if nothing has to be written now; then it leads no longer.
    pub fn take(&mut self) -> Option<Vec<Entry>> {
        self.leading = self.is_due();
        self.urgent = false;
        self.leading.then(|| std::mem::take(&mut self.entries))
    }

    /// Whom the leader may hand over to instead of calling [`Queue::take`] again.
    pub fn next(&self) -> Option<&Entry> {
        if self.is_due() { self.entries.first() } else { None }
    }

    /// For a leader that comes to grief: nobody leads, and nothing is queued.
    pub fn clear(&mut self) -> Vec<Entry> {
        (self.leading, self.urgent) = (false, false);
        std::mem::take(&mut self.entries)
    }

    /// Notes a conflict.
    pub fn disturb(&mut self) {
        self.unrest = UNREST;
    }

    /// Begins to defer. Whoever says so sees to it that [`Queue::stop_deferring`] follows.
    pub fn defer(&mut self) {
        self.deferring = true;
    }

    /// The answer is whether the caller has to lead.
    pub fn stop_deferring(&mut self) -> bool {
        self.deferring = false;
        self.is_due() && !std::mem::replace(&mut self.leading, true)
    }

    fn is_due(&self) -> bool {
        !self.entries.is_empty() && (self.urgent || !self.deferring || self.entries.len() >= DEFERRED_MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pipeline::combiner::Purpose;
    use crate::pipeline::reply::Slot;
    use crate::pipeline::{Admission, Conditions, Entrance, Held};
    use crate::runtime::{Runtime, System};

    fn entry(purpose: Purpose, durable: bool, held: Option<Held>) -> Entry {
        let submission = Submission { changes: Vec::new(), purpose, durable, conditions: Conditions::default(), held };
        Entry { submission, reply: Reply::new(&Slot::new(&System::default())) }
    }

    fn durable() -> Entry {
        entry(Purpose::Commit, true, Some(Held::default()))
    }

    fn buffered() -> Entry {
        entry(Purpose::Commit, false, None)
    }

    fn taken(queue: &mut Queue) -> Option<usize> {
        queue.take().map(|entries| entries.len())
    }

    #[test]
    fn nothing_is_deferred_without_a_sync() {
        let mut queue = Queue::default();
        assert_eq!(queue.push(durable()), Queued::Lead);
        assert_eq!(queue.push(durable()), Queued::Follow);
        assert_eq!((taken(&mut queue), taken(&mut queue)), (Some(2), None));
        assert_eq!(queue.push(durable()), Queued::Lead);
    }

    #[test]
    fn the_end_of_the_sync_leads_for_those_who_were_deferred() {
        let mut queue = Queue::default();
        queue.defer();
        assert_eq!(queue.push(durable()), Queued::Deferred);
        assert!(queue.next().is_none() && queue.take().is_none());
        assert!(queue.stop_deferring());
        assert_eq!((taken(&mut queue), taken(&mut queue)), (Some(1), None));
        assert!(!queue.stop_deferring());
    }

    #[test]
    fn whoever_cannot_wait_has_those_before_it_written_too() {
        let permit = {
            let runtime = System::default();
            let mut entrance = Entrance::default();
            entrance.ask_permit(
                &std::sync::Arc::new(Admission::new(1)),
                runtime.elapsed() + std::time::Duration::from_secs(1),
            );
            entrance.wait(&runtime)
        };
        let prewrite = entry(Purpose::Other, false, None);
        let commit_point = entry(Purpose::CommitPoint, true, None);
        for urgent in [buffered(), prewrite, commit_point, entry(Purpose::Commit, true, Some(permit))] {
            let mut queue = Queue::default();
            queue.defer();
            assert_eq!(queue.push(durable()), Queued::Deferred);
            assert_eq!(queue.push(urgent), Queued::Lead);
            assert_eq!((taken(&mut queue), taken(&mut queue)), (Some(2), None));
            assert_eq!(queue.push(durable()), Queued::Deferred);
        }
    }

    #[test]
    fn a_few_are_written_beside_the_sync() {
        let mut queue = Queue::default();
        queue.defer();
        for _ in 1..DEFERRED_MAX {
            assert_eq!(queue.push(durable()), Queued::Deferred);
        }
        assert_eq!(queue.push(durable()), Queued::Lead);
        assert_eq!((taken(&mut queue), taken(&mut queue)), (Some(DEFERRED_MAX), None));
    }

    #[test]
    fn after_a_conflict_nothing_is_deferred_for_a_while() {
        let mut queue = Queue::default();
        queue.defer();
        queue.disturb();
        for _ in 0..UNREST {
            assert_eq!(queue.push(durable()), Queued::Lead);
            assert_eq!((taken(&mut queue), taken(&mut queue)), (Some(1), None));
        }
        assert_eq!(queue.push(durable()), Queued::Deferred);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push { urgent: bool },
        Take,
        Defer,
        StopDeferring,
        Disturb,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => any::<bool>().prop_map(|urgent| Step::Push { urgent }),
            3 => Just(Step::Take),
            1 => Just(Step::Defer),
            2 => Just(Step::StopDeferring),
            1 => Just(Step::Disturb),
        ];
        prop::collection::vec(step, 0..100)
    }

    proptest! {
        /// There is one leader at most, and nothing is left lying without one but what the end of a sync will see to.
        #[test]
        fn whatever_is_queued_has_somebody_who_sees_to_it(steps in steps()) {
            let mut queue = Queue::default();
            let (mut leading, mut deferring, mut lying, mut urgent) = (false, false, 0, false);
            for step in steps {
                match step {
                    Step::Push { urgent: is_urgent } => {
                        lying += 1;
                        urgent |= is_urgent;
                        match queue.push(if is_urgent { buffered() } else { durable() }) {
                            Queued::Lead => {
                                prop_assert!(!leading);
                                leading = true;
                            }
                            Queued::Follow => prop_assert!(leading),
                            Queued::Deferred => prop_assert!(deferring),
                        }
                    }
                    Step::Take if leading => match queue.take() {
                        Some(entries) => {
                            prop_assert_eq!(entries.len(), lying);
                            (lying, urgent) = (0, false);
                        }
                        None => leading = false,
                    },
                    Step::Take => {}
                    Step::Defer => {
                        queue.defer();
                        deferring = true;
                    }
                    Step::StopDeferring => {
                        deferring = false;
                        if queue.stop_deferring() {
                            prop_assert!(!leading);
                            leading = true;
                        }
                    }
                    Step::Disturb => queue.disturb(),
                }
                prop_assert!(leading || lying == 0 || (deferring && !urgent && lying < DEFERRED_MAX));
            }
        }
    }
}
