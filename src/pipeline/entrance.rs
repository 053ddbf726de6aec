//! What an attempt waits for before it begins: its rows' turns, a lock to go, a permit.
//!
//! An entrance says for what to wait and how long; it does not wait itself. So a thread and a task wait for the same things
//! in the same order, and whoever drops an entrance, at whatever step, leaves every queue that it stood in.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::turns::{Admission, Permit, Turn, Turns, UnlockWait, Unlocked};
use crate::row::RowKey;
use crate::runtime::Runtime;
use crate::waiter::Waiter;

const TURNS_WAIT_MAX: Duration = Duration::from_secs(1);
const PERMIT_WAIT_MAX: Duration = Duration::from_secs(1);
const UNLOCK_WAIT_MAX: Duration = Duration::from_millis(100);

/// What an attempt holds until its changes are visible.
#[derive(Default)]
pub struct Held {
    /// Turns end before the permit is given back.
    pub(super) turns: Vec<Turn>,
    pub(super) permit: Option<Permit>,
    turned_away: bool,
    waited: Waited,
}

/// For what an attempt has waited, and how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waited {
    pub turns: Duration,
    /// For a lock to go.
    pub locks: Duration,
    pub permit: Duration,
}

impl Waited {
    pub fn whole(self) -> Duration {
        self.turns + self.locks + self.permit
    }

    pub fn add(&mut self, more: Self) {
        self.turns += more.turns;
        self.locks += more.locks;
        self.permit += more.permit;
    }
}

/// Something that may make a thread wait.
pub type Job = Box<dyn FnOnce() + Send>;

/// What is to be done before [`Entrance::step`] is called again.
pub enum Step {
    /// Waiting until notified, or for so long.
    Wait(Arc<Waiter>, Duration),
    /// This, where a thread may wait.
    Do(Job),
}

/// See the [module](self).
#[derive(Default)]
pub struct Entrance {
    wishes: VecDeque<Wish>,
    waiting: Option<Waiting>,
    /// When the rows' turns are no longer waited for, once they are.
    turns_end: Option<Duration>,
    pausing_since: Option<Duration>,
    held: Held,
}

enum Wish {
    Turn(Arc<Turns>, u64),
    Unlock(Arc<Unlocked>, RowKey, IsLocked),
    Pause(Job),
    Permit(Arc<Admission>, Duration),
}

/// Looks at a row.
type IsLocked = Box<dyn FnOnce() -> bool + Send>;

struct Waiting {
    place: Place,
    waiter: Arc<Waiter>,
    since: Duration,
    end: Duration,
}

enum Place {
    Turn(Turn),
    Unlock { _wait: UnlockWait },
    Permit(Permit),
}

impl Held {
    /// Whether the attempt runs although it has waited for a permit in vain.
    pub fn was_turned_away(&self) -> bool {
        self.turned_away
    }

    /// What it was waited for on the way here.
    pub fn waited(&self) -> Waited {
        self.waited
    }
}

impl Entrance {
    /// Asks for the turns of rows.
    pub fn take_turns(&mut self, turns: &Arc<Turns>, rows: &[RowKey]) {
        self.wishes.extend(Turns::order(rows).into_iter().map(|row| Wish::Turn(Arc::clone(turns), row)));
    }

    /// Asks to wait until a row's lock is gone.
    pub fn await_unlock(&mut self, unlocked: &Arc<Unlocked>, row: RowKey, is_locked: IsLocked) {
        self.wishes.push_back(Wish::Unlock(Arc::clone(unlocked), row, is_locked));
    }

    /// Asks for something that takes its time.
    pub fn pause(&mut self, pause: Job) {
        self.wishes.push_back(Wish::Pause(pause));
    }

    /// Asks for a permit, which is not waited for beyond `end`.
    pub fn ask_permit(&mut self, admission: &Arc<Admission>, end: Duration) {
        self.wishes.push_back(Wish::Permit(Arc::clone(admission), end));
    }

    /// The next thing to do, as of `now`; `None` when there is nothing left but [`Entrance::enter`]. May be called again as
    /// early and as often as one likes.
    pub fn step(&mut self, now: Duration, new_waiter: &dyn Fn() -> Arc<Waiter>) -> Option<Step> {
        if let Some(since) = self.pausing_since.take() {
            self.held.waited.locks += now.saturating_sub(since);
        }
        loop {
            if let Some(Waiting { place, waiter, since, end }) = self.waiting.take() {
                let is_over = waiter.is_notified();
                if !is_over && now < end {
                    let step = Step::Wait(Arc::clone(&waiter), end.saturating_sub(now));
                    self.waiting = Some(Waiting { place, waiter, since, end });
                    return Some(step);
                }
                *self.waited_for(&place) += now.saturating_sub(since);
                if is_over {
                    self.keep(place);
                } else {
                    self.give_up(place);
                }
            }
            let wish = self.wishes.pop_front()?;
            let waiter = new_waiter();
            let own = Arc::clone(&waiter);
            match wish {
                Wish::Turn(turns, row) => {
                    let end = *self.turns_end.get_or_insert(now + TURNS_WAIT_MAX);
                    self.waiting = Some(Waiting { place: Place::Turn(turns.queue(row, own)), waiter, since: now, end });
                }
                Wish::Unlock(unlocked, row, is_locked) => {
                    let place = Place::Unlock { _wait: unlocked.expect(&row, own) };
                    let look = Arc::clone(&waiter);
                    self.waiting = Some(Waiting { place, waiter, since: now, end: now + UNLOCK_WAIT_MAX });
                    return Some(Step::Do(Box::new(move || {
                        if !is_locked() {
                            look.notify();
                        }
                    })));
                }
                Wish::Pause(pause) => {
                    self.pausing_since = Some(now);
                    return Some(Step::Do(pause));
                }
                Wish::Permit(admission, end) => {
                    let end = end.min(now + PERMIT_WAIT_MAX);
                    let place = Place::Permit(admission.queue(own, !self.held.turns.is_empty()));
                    self.waiting = Some(Waiting { place, waiter, since: now, end });
                }
            }
        }
    }

    /// What was got, when all steps are done.
    pub fn enter(self) -> Held {
        self.held
    }

    /// Makes the calling thread take all steps.
    pub fn wait(mut self, runtime: &dyn Runtime) -> Held {
        while let Some(step) = self.step(runtime.elapsed(), &|| Arc::new(Waiter::new(runtime))) {
            match step {
                Step::Wait(waiter, at_most) => waiter.wait_at_most(runtime, at_most),
                Step::Do(job) => job(),
            }
        }
        self.enter()
    }

    fn waited_for(&mut self, place: &Place) -> &mut Duration {
        match place {
            Place::Turn(_) => &mut self.held.waited.turns,
            Place::Unlock { .. } => &mut self.held.waited.locks,
            Place::Permit(_) => &mut self.held.waited.permit,
        }
    }

    fn keep(&mut self, place: Place) {
        match place {
            Place::Turn(turn) => self.held.turns.push(turn),
            Place::Unlock { .. } => {}
            Place::Permit(permit) => self.held.permit = Some(permit),
        }
    }

    fn give_up(&mut self, place: Place) {
        match place {
            // Further turns without this one would be waited for in another order than everybody's.
            Place::Turn(_) => self.wishes.retain(|wish| !matches!(wish, Wish::Turn(..))),
            Place::Unlock { .. } => {}
            Place::Permit(_) => self.held.turned_away = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::row::KeyspaceId;
    use crate::runtime::System;

    const LONG: Duration = Duration::from_secs(3600);

    struct Queues {
        turns: Arc<Turns>,
        unlocked: Arc<Unlocked>,
        admission: Arc<Admission>,
    }

    impl Queues {
        fn new() -> Self {
            Self { turns: Arc::default(), unlocked: Arc::default(), admission: Arc::new(Admission::new(1)) }
        }

        /// Two turns, an unlocked row, a permit.
        fn entrance(&self, is_locked: bool) -> Entrance {
            let rows: Vec<RowKey> = ["a", "b"].map(|name| RowKey::new(KeyspaceId(1), name.as_bytes())).into();
            let mut entrance = Entrance::default();
            entrance.take_turns(&self.turns, &rows);
            let row = RowKey::new(KeyspaceId(1), b"c");
            entrance.await_unlock(&self.unlocked, row, Box::new(move || is_locked));
            entrance.ask_permit(&self.admission, LONG);
            entrance
        }

        #[track_caller]
        fn insist_that_nobody_is_left(&self) {
            assert!(self.turns.is_empty() && self.unlocked.is_empty() && self.admission.is_whole(1));
        }
    }

    fn waiter() -> Arc<Waiter> {
        Arc::new(Waiter::new(&System::default()))
    }

    /// As a future does that is dropped when it has been polled so often.
    #[test]
    fn an_entrance_dropped_at_any_step_leaves_every_queue() {
        let queues = Queues::new();
        for others_hold_all in [true, false] {
            for steps in 0..8 {
                let other = others_hold_all.then(|| queues.entrance(false).wait(&System::default()));
                let mut entrance = queues.entrance(true);
                // Half a second each, so that some of what is waited for is given up.
                for step in 0..steps {
                    match entrance.step(Duration::from_millis(500 * step), &waiter) {
                        Some(Step::Do(job)) => job(),
                        Some(Step::Wait(..)) => {}
                        None => break,
                    }
                }
                drop(entrance);
                drop(other);
                queues.insist_that_nobody_is_left();
            }
        }
    }

    #[test]
    fn who_is_notified_and_then_dropped_hands_on() {
        let queues = Queues::new();
        let row = [RowKey::new(KeyspaceId(1), b"a")];
        let for_turn = |entrance: &mut Entrance| entrance.take_turns(&queues.turns, &row);
        let for_permit = |entrance: &mut Entrance| entrance.ask_permit(&queues.admission, LONG);
        for ask in [&for_turn as &dyn Fn(&mut Entrance), &for_permit] {
            let other = queues.entrance(false).wait(&System::default());
            let [mut first, mut second] = [(); 2].map(|()| {
                let mut entrance = Entrance::default();
                ask(&mut entrance);
                entrance
            });
            assert!(matches!(first.step(Duration::ZERO, &waiter), Some(Step::Wait(..))));
            assert!(matches!(second.step(Duration::ZERO, &waiter), Some(Step::Wait(..))));
            drop(other);
            drop(first);
            assert!(second.step(Duration::ZERO, &waiter).is_none());
            drop(second.enter());
            queues.insist_that_nobody_is_left();
        }
    }

    #[test]
    fn what_does_not_come_in_time_is_gone_without() {
        let queues = Queues::new();
        let other = queues.entrance(false).wait(&System::default());
        let mut entrance = queues.entrance(true);
        let mut now = Duration::ZERO;
        while let Some(step) = entrance.step(now, &waiter) {
            match step {
                Step::Wait(_, at_most) => now += at_most,
                Step::Do(job) => job(),
            }
        }
        assert_eq!(now, TURNS_WAIT_MAX + UNLOCK_WAIT_MAX + PERMIT_WAIT_MAX);
        let held = entrance.enter();
        assert!(held.was_turned_away() && held.turns.is_empty() && held.permit.is_none());
        drop((held, other));
        queues.insist_that_nobody_is_left();
    }

    #[test]
    fn pauses_are_made_where_they_stand() {
        let (queues, paused) = (Queues::new(), Arc::new(AtomicBool::new(false)));
        let mut entrance = Entrance::default();
        let pausing = Arc::clone(&paused);
        entrance.pause(Box::new(move || pausing.store(true, Ordering::SeqCst)));
        entrance.ask_permit(&queues.admission, LONG);
        assert!(!entrance.wait(&System::default()).was_turned_away());
        assert!(paused.load(Ordering::SeqCst));
    }
}
