//! The queue in front of the leader, and who has to lead.
//!
//! A durable commit that comes while a sync runs is acknowledged by the next one, whenever it is written until then. If each is
//! written at once, with few processors mostly each is written alone, and whoever handed it in gives way and sleeps in between.
//! So, where many commit, such commits are *deferred*: they lie in the queue, and those who handed them in sleep until they are
//! durable. They are written together when there are a few, when somebody comes who cannot wait, or, by whoever made the sync,
//! when it has ended. If many wait for the next sync by then, it begins at once, and what comes in between is deferred too: that is
//! acknowledged one sync later than it might be, and in return nobody's commit is written alone.
//!
//! Until it is written a commit is not visible, so its rows are in the way of others for longer. Therefore nothing is
//! deferred that others wait for (a commit that holds turns, a permit or a lock that it releases), and nothing at all while conflicts are frequent. Nor is
//! anything large, which is better written beside the sync than after it.

use super::combiner::{Purpose, Submission};
use super::entrance::Held;
use super::reply::Reply;
use crate::locking::Entered;

/// Commits begin to be deferred where so many wait for a sync. With fewer they would be written one after the other all the
/// same, and in front of the next sync instead of beside this one.
pub const DEFERRING_MIN: usize = if cfg!(feature = "crashtest") { 1 } else { 8 };

/// So many are written without waiting for more: nearly all of what a larger batch saves, and there is work for the second
/// processor while the sync runs.
// Tests of crashes have few clients, and are to meet deferred commits: hence the other numbers.
const DEFERRED_MAX: usize = if cfg!(feature = "crashtest") { 2 } else { 16 };

/// More than this is not deferred, since it would hold the next sync up: rows, bytes.
const DEFERRED_ROWS_MAX: usize = 64;
const DEFERRED_BYTES_MAX: usize = 16 << 10;

/// A conflict weighs as much as so many submissions: where they are more frequent than that, unrest grows.
const CONFLICT_WEIGHS: u32 = 12;
/// With so much unrest nothing is deferred: one conflict does not make it, a second at once does.
const UNREST: u32 = 16;
/// More of it is forgotten, so that peace is noticed soon.
const UNREST_MAX: u32 = 48;

#[derive(Default)]
pub struct Queue {
    entries: Vec<Entry>,
    leading: bool,
    /// Something among the entries cannot wait.
    urgent: bool,
    /// Whoever makes the sync that is running, or the next one, will see to what lies here.
    deferring: bool,
    /// Grows with every conflict, and shrinks with every submission.
    unrest: u32,
}

pub struct Entry {
    pub submission: Submission,
    /// The fences among its conditions.
    pub entered: Entered,
    pub reply: Reply,
}

/// What becomes of a submission that was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queued {
    /// Whoever handed it in has to lead.
    Lead,
    /// A leader is about to come to it.
    Follow,
    /// It lies here until the sync that runs has ended, or the next one, or is written before.
    Deferred,
}

impl Submission {
    /// Whether nobody misses its changes before they are durable, and they are quickly written then.
    fn can_be_deferred(&self) -> bool {
        self.durable
            && self.purpose == Purpose::Commit
            && self.held.as_ref().is_none_or(Held::is_empty)
            && !self.conditions.fences.releases()
            && self.group.rows() <= DEFERRED_ROWS_MAX
            && self.group.size_bytes() <= DEFERRED_BYTES_MAX
    }
}

impl Queue {
    pub fn push(&mut self, entry: Entry) -> Queued {
        let calm = self.unrest < UNREST;
        self.unrest = self.unrest.saturating_sub(1);
        // Also what comes while nothing is deferred: the next sync must not defer it after all, when somebody was told to lead.
        self.urgent |= !(self.deferring && calm && entry.submission.can_be_deferred());
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
        self.unrest = (self.unrest + CONFLICT_WEIGHS).min(UNREST_MAX);
    }

    /// Begins to defer, if so many wait for the sync that is about to begin. Whoever says so sees to it that
    /// [`Queue::end_sync`] follows, and [`Queue::stop_deferring`] unless another sync does.
    pub fn defer(&mut self, waiting: usize) {
        self.deferring |= waiting >= DEFERRING_MIN;
    }

    /// What lies here has waited for the sync that has ended, and does not wait for another one. The answer is whether the
    /// caller has to lead.
    pub fn end_sync(&mut self) -> bool {
        self.urgent |= !self.entries.is_empty();
        self.is_due() && !std::mem::replace(&mut self.leading, true)
    }

    /// [`Queue::end_sync`], with no other sync to come.
    pub fn stop_deferring(&mut self) -> bool {
        self.deferring = false;
        self.end_sync()
    }

    #[cfg(test)]
    fn queued(&self) -> usize {
        self.entries.len()
    }

    fn is_due(&self) -> bool {
        self.urgent || self.entries.len() >= DEFERRED_MAX
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::engine::sim::SimStorage;
    use crate::error::{Error, ErrorKind, Result};
    use crate::observe::{Counters, Spent};
    use crate::pipeline::combiner::Settled;
    use crate::pipeline::reply::Slot;
    use crate::pipeline::{Admission, Conditions, Entrance, Pipeline};
    use crate::row::{Edit, KeyspaceId, RowChange, RowKey, TxnId, Value, WriteRecord};
    use crate::runtime::{Runtime, System};
    use crate::timestamp::Timestamp;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn submission(changes: Vec<RowChange>, purpose: Purpose, durable: bool, held: Option<Held>) -> Submission {
        Submission { group: changes.into(), purpose, durable, conditions: Conditions::default(), held }
    }

    fn entry(purpose: Purpose, durable: bool, held: Option<Held>) -> Entry {
        let submission = submission(Vec::new(), purpose, durable, held);
        Entry {
            submission,
            entered: Entered::new(&crate::locking::Fences::default()),
            reply: Reply::new(&Slot::new(&System::default())),
        }
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
    fn nothing_is_deferred_without_a_sync_that_many_wait_for() {
        let mut queue = Queue::default();
        queue.defer(DEFERRING_MIN - 1);
        assert_eq!(queue.push(durable()), Queued::Lead);
        assert_eq!(queue.push(durable()), Queued::Follow);
        assert_eq!((taken(&mut queue), taken(&mut queue)), (Some(2), None));
        assert_eq!(queue.push(durable()), Queued::Lead);
    }

    #[test]
    fn the_end_of_the_sync_leads_for_those_who_were_deferred() {
        let mut queue = Queue::default();
        queue.defer(DEFERRING_MIN);
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
            entrance.ask_permit(&Arc::new(Admission::new(1)), runtime.elapsed() + PATIENCE);
            entrance.wait(&runtime)
        };
        let prewrite = entry(Purpose::Other, false, None);
        let commit_point = entry(Purpose::CommitPoint, true, None);
        for urgent in [buffered(), prewrite, commit_point, entry(Purpose::Commit, true, Some(permit))] {
            let mut queue = Queue::default();
            queue.defer(DEFERRING_MIN);
            assert_eq!(queue.push(durable()), Queued::Deferred);
            assert_eq!(queue.push(urgent), Queued::Lead);
            assert_eq!((taken(&mut queue), taken(&mut queue)), (Some(2), None));
            assert_eq!(queue.push(durable()), Queued::Deferred);
        }
    }

    #[test]
    fn a_few_are_written_beside_the_sync() {
        let mut queue = Queue::default();
        queue.defer(DEFERRING_MIN);
        for _ in 1..DEFERRED_MAX {
            assert_eq!(queue.push(durable()), Queued::Deferred);
        }
        assert_eq!(queue.push(durable()), Queued::Lead);
        assert_eq!((taken(&mut queue), taken(&mut queue)), (Some(DEFERRED_MAX), None));
    }

    #[test]
    fn deferring_goes_on_from_one_sync_to_the_next() {
        let mut queue = Queue::default();
        queue.defer(DEFERRING_MIN);
        assert_eq!(queue.push(durable()), Queued::Deferred);
        assert!(queue.end_sync());
        assert_eq!(queue.push(durable()), Queued::Follow);
        assert_eq!((taken(&mut queue), taken(&mut queue)), (Some(2), None));
        assert_eq!(queue.push(durable()), Queued::Deferred);
        assert!(queue.stop_deferring());
        assert_eq!((taken(&mut queue), taken(&mut queue)), (Some(1), None));
        assert_eq!(queue.push(durable()), Queued::Lead);
    }

    /// How many of a hundred are deferred with a conflict after every so many.
    fn deferred_of_100(conflict_every: usize) -> usize {
        let mut queue = Queue::default();
        queue.defer(DEFERRING_MIN);
        let mut deferred = 0;
        for number in 0..100 {
            if number % conflict_every == 0 {
                queue.disturb();
            }
            match queue.push(durable()) {
                Queued::Deferred => deferred += 1,
                Queued::Lead => assert!(taken(&mut queue).is_some() && taken(&mut queue).is_none()),
                Queued::Follow => panic!("nobody leads"),
            }
            if queue.end_sync() {
                assert!(taken(&mut queue).is_some() && taken(&mut queue).is_none());
            }
        }
        deferred
    }

    #[test]
    fn nothing_is_deferred_while_conflicts_are_frequent_and_some_now_and_then_change_nothing() {
        assert_eq!(deferred_of_100(40), 100);
        assert_eq!(deferred_of_100(13), 100);
        assert_eq!(deferred_of_100(4), 4, "until it is known that they are");
    }

    #[test]
    fn after_frequent_conflicts_deferring_begins_again_soon() {
        let mut queue = Queue::default();
        queue.defer(DEFERRING_MIN);
        (0..1000).for_each(|_| queue.disturb());
        let mut not_deferred = 0;
        while queue.push(durable()) == Queued::Lead {
            assert!(taken(&mut queue).is_some() && taken(&mut queue).is_none());
            not_deferred += 1;
        }
        assert_eq!(not_deferred, 33);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push { urgent: bool },
        Take,
        Defer,
        EndSync,
        StopDeferring,
        Disturb,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => any::<bool>().prop_map(|urgent| Step::Push { urgent }),
            3 => Just(Step::Take),
            1 => Just(Step::Defer),
            1 => Just(Step::EndSync),
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
                        urgent |= is_urgent || !deferring;
                        match queue.push(if is_urgent { buffered() } else { durable() }) {
                            Queued::Lead => {
                                prop_assert!(!leading);
                                leading = true;
                            }
                            Queued::Follow => prop_assert!(leading),
                            Queued::Deferred => prop_assert!(deferring),
                        }
                    }
                    Step::Take if leading => {
                        if let Some(entries) = queue.take() {
                            prop_assert_eq!(entries.len(), lying);
                            (lying, urgent) = (0, false);
                        } else {
                            prop_assert!(lying == 0 || (!urgent && lying < DEFERRED_MAX), "the duty to lead was taken back");
                            leading = false;
                        }
                    }
                    Step::Take => {}
                    Step::Defer => {
                        queue.defer(DEFERRING_MIN);
                        deferring = true;
                    }
                    Step::EndSync => {
                        urgent |= lying > 0;
                        if queue.end_sync() {
                            prop_assert!(!leading);
                            leading = true;
                        }
                    }
                    Step::StopDeferring => {
                        deferring = false;
                        urgent |= lying > 0;
                        if queue.stop_deferring() {
                            prop_assert!(!leading);
                            leading = true;
                        }
                    }
                    Step::Disturb => queue.disturb(),
                }
                prop_assert_eq!(queue.queued(), lying);
                prop_assert!(leading || lying == 0 || (deferring && !urgent && lying < DEFERRED_MAX));
            }
        }
    }

    fn put(key: &str, value: &[u8]) -> RowChange {
        let txn = TxnId { start_ts: Timestamp::from_u64(1), owner: crate::owner::OwnerId::from_u64(1) };
        let mut change = RowChange::new(RowKey::new(KeyspaceId(1), key.as_bytes()), txn.start_ts);
        let value = Some(Value::Inline(value.into()));
        change.write = Edit::Put(WriteRecord { commit_ts: txn.start_ts, txn, value, held_at: None });
        change
    }

    #[test]
    fn what_is_large_is_not_deferred() {
        let can = |changes: Vec<RowChange>| submission(changes, Purpose::Commit, true, None).can_be_deferred();
        let rows = |count: usize| (0..count).map(|number| put(&number.to_string(), b"v")).collect();
        assert!(can(rows(64)) && !can(rows(65)));
        assert!(can(vec![put("k", &[0; 16_000])]) && !can(vec![put("k", &[0; 17_000])]));
    }

    /// What becomes of a commit that lies deferred when this is done. Nobody comes after it.
    fn answer_to_deferred(then: impl FnOnce(&Pipeline)) -> Result<Settled> {
        let engine = Arc::new(SimStorage::new().embedded());
        let pipeline = Pipeline::open(engine, Arc::new(System::default()), Arc::new(Counters::new(0)), 64).unwrap();
        pipeline.queue.lock().defer(DEFERRING_MIN);
        let (answer, answered) = mpsc::channel();
        let committing = Arc::clone(&pipeline);
        std::thread::spawn(move || {
            let commit = submission(vec![put("k", b"v")], Purpose::Commit, true, None);
            answer.send(committing.submit(commit, &Spent::default()))
        });
        while pipeline.queue.lock().queued() == 0 {
            std::thread::yield_now();
        }
        then(&pipeline);
        let answer = answered.recv_timeout(PATIENCE).expect("it lies for ever");
        pipeline.stop();
        answer
    }

    #[test]
    fn what_was_deferred_is_made_durable_whoever_made_the_sync() {
        // Not the thread that goes on to the next one.
        for then in [Pipeline::write_deferred, Pipeline::after_sync, Pipeline::stop_deferring] {
            let answer = answer_to_deferred(then);
            assert!(matches!(answer, Ok(Settled::Applied(Some(_)))), "{answer:?}");
        }
    }

    #[test]
    fn what_was_deferred_is_refused_at_once_by_a_store_that_fails_or_is_closed() {
        let fail = |pipeline: &Pipeline| drop::<Error>(pipeline.poison(ErrorKind::Io("broken".into()).into()));
        for answer in [answer_to_deferred(fail), answer_to_deferred(Pipeline::stop)] {
            assert!(matches!(answer.as_ref().unwrap_err().kind(), ErrorKind::Closed(_)), "{answer:?}");
        }
    }
}
