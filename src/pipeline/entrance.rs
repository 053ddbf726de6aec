//! What an attempt waits for before it begins: its rows' turns, a lock to go, a permit.
//!
//! An entrance says for what to wait and how long; it does not wait itself. So a thread and a task wait for the same things
//! in the same order, and whoever drops an entrance, at whatever step, leaves every queue that it stood in.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::turns::{AdmissionController, Permit, RowQueueTicket, RowQueues, UnlockWait, UnlockWaiters};
use crate::row::RowKey;
use crate::runtime::Env;
use crate::waiter::Waiter;

const ROW_QUEUE_WAIT_MAX: Duration = Duration::from_secs(1);
const PERMIT_WAIT_MAX: Duration = Duration::from_secs(1);
const UNLOCK_WAIT_MAX: Duration = Duration::from_millis(100);

/// What an attempt holds until its changes are visible.
#[derive(Default)]
pub struct AttemptGuard {
    /// Turns end before the permit is given back.
    pub(super) row_queue_tickets: Vec<RowQueueTicket>,
    pub(super) permit: Option<Permit>,
    admission_timed_out: bool,
    wait_times: WaitTimes,
}

/// For what an attempt has waited, and how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitTimes {
    pub row_queue: Duration,
    /// For a lock to go.
    pub row_lock: Duration,
    pub admission: Duration,
}

impl WaitTimes {
    pub fn total(self) -> Duration {
        self.row_queue + self.row_lock + self.admission
    }

    pub fn add(&mut self, more: Self) {
        self.row_queue += more.row_queue;
        self.row_lock += more.row_lock;
        self.admission += more.admission;
    }
}

/// Something that may make a thread wait.
pub type BlockingTask = Box<dyn FnOnce() + Send>;

/// What is to be done before [`AdmissionWait::poll`] is called again.
pub enum WaitAction {
    /// Waiting until notified, or for so long.
    Wait(Arc<Waiter>, Duration),
    /// This, where a thread may wait.
    Run(BlockingTask),
}

/// See the [module](self).
#[derive(Default)]
pub struct AdmissionWait {
    requests: VecDeque<WaitRequest>,
    waiting: Option<ActiveWait>,
    /// When the rows' turns are no longer waited for, once they are.
    row_queue_deadline: Option<Duration>,
    backoff_started: Option<Duration>,
    attempt: AttemptGuard,
}

enum WaitRequest {
    RowQueue(Arc<RowQueues>, u64),
    Unlock(Arc<UnlockWaiters>, RowKey, LockProbe),
    Backoff(BlockingTask),
    Permit(Arc<AdmissionController>, Duration),
}

/// Looks at a row.
type LockProbe = Box<dyn FnOnce() -> bool + Send>;

struct ActiveWait {
    position: QueuePosition,
    waiter: Arc<Waiter>,
    since: Duration,
    deadline: Duration,
}

enum QueuePosition {
    Turn(RowQueueTicket),
    Unlock { _wait: UnlockWait },
    Permit(Permit),
}

impl AttemptGuard {
    /// Whether the attempt runs although it has waited for a permit in vain.
    pub fn admission_timed_out(&self) -> bool {
        self.admission_timed_out
    }

    /// What it was waited for on the way here.
    pub fn wait_times(&self) -> WaitTimes {
        self.wait_times
    }
}

impl AdmissionWait {
    /// Asks for the turns of rows.
    pub fn queue_for_rows(&mut self, turns: &Arc<RowQueues>, rows: &[RowKey]) {
        self.requests
            .extend(RowQueues::lock_order(rows).into_iter().map(|row| WaitRequest::RowQueue(Arc::clone(turns), row)));
    }

    /// Asks to wait until a row's lock is gone.
    pub fn wait_for_unlock(&mut self, unlocked: &Arc<UnlockWaiters>, row: RowKey, is_locked: LockProbe) {
        self.requests.push_back(WaitRequest::Unlock(Arc::clone(unlocked), row, is_locked));
    }

    /// Asks for something that takes its time.
    pub fn back_off(&mut self, pause: BlockingTask) {
        self.requests.push_back(WaitRequest::Backoff(pause));
    }

    /// Asks for a permit, which is not waited for beyond `end`.
    pub fn queue_for_permit(&mut self, admission: &Arc<AdmissionController>, end: Duration) {
        self.requests.push_back(WaitRequest::Permit(Arc::clone(admission), end));
    }

    /// The next thing to do, as of `now`; `None` when there is nothing left but [`AdmissionWait::finish`]. May be called again as
    /// early and as often as one likes.
    pub fn poll(&mut self, now: Duration, new_waiter: &dyn Fn() -> Arc<Waiter>) -> Option<WaitAction> {
        if let Some(since) = self.backoff_started.take() {
            self.attempt.wait_times.row_lock += now.saturating_sub(since);
        }
        loop {
            if let Some(ActiveWait { position: place, waiter, since, deadline: end }) = self.waiting.take() {
                let is_over = waiter.is_notified();
                if !is_over && now < end {
                    let step = WaitAction::Wait(Arc::clone(&waiter), end.saturating_sub(now));
                    self.waiting = Some(ActiveWait { position: place, waiter, since, deadline: end });
                    return Some(step);
                }
                *self.wait_time_of(&place) += now.saturating_sub(since);
                if is_over {
                    self.acquired(place);
                } else {
                    self.timed_out(place);
                }
            }
            let wish = self.requests.pop_front()?;
            let waiter = new_waiter();
            let own = Arc::clone(&waiter);
            match wish {
                WaitRequest::RowQueue(turns, row) => {
                    let end = *self.row_queue_deadline.get_or_insert(now + ROW_QUEUE_WAIT_MAX);
                    self.waiting = Some(ActiveWait {
                        position: QueuePosition::Turn(turns.enqueue(row, own)),
                        waiter,
                        since: now,
                        deadline: end,
                    });
                }
                WaitRequest::Unlock(unlocked, row, is_locked) => {
                    let place = QueuePosition::Unlock { _wait: unlocked.register(&row, own) };
                    let look = Arc::clone(&waiter);
                    self.waiting =
                        Some(ActiveWait { position: place, waiter, since: now, deadline: now + UNLOCK_WAIT_MAX });
                    return Some(WaitAction::Run(Box::new(move || {
                        if !is_locked() {
                            look.notify();
                        }
                    })));
                }
                WaitRequest::Backoff(pause) => {
                    self.backoff_started = Some(now);
                    return Some(WaitAction::Run(pause));
                }
                WaitRequest::Permit(admission, end) => {
                    let end = end.min(now + PERMIT_WAIT_MAX);
                    let place =
                        QueuePosition::Permit(admission.enqueue(own, !self.attempt.row_queue_tickets.is_empty()));
                    self.waiting = Some(ActiveWait { position: place, waiter, since: now, deadline: end });
                }
            }
        }
    }

    /// What was got, when all steps are done.
    pub fn finish(self) -> AttemptGuard {
        self.attempt
    }

    /// Makes the calling thread take all steps.
    pub fn block(mut self, runtime: &dyn Env) -> AttemptGuard {
        while let Some(step) = self.poll(runtime.elapsed(), &|| Arc::new(Waiter::new(runtime))) {
            match step {
                WaitAction::Wait(waiter, at_most) => waiter.wait_at_most(runtime, at_most),
                WaitAction::Run(job) => job(),
            }
        }
        self.finish()
    }

    fn wait_time_of(&mut self, place: &QueuePosition) -> &mut Duration {
        match place {
            QueuePosition::Turn(_) => &mut self.attempt.wait_times.row_queue,
            QueuePosition::Unlock { .. } => &mut self.attempt.wait_times.row_lock,
            QueuePosition::Permit(_) => &mut self.attempt.wait_times.admission,
        }
    }

    fn acquired(&mut self, place: QueuePosition) {
        match place {
            QueuePosition::Turn(turn) => self.attempt.row_queue_tickets.push(turn),
            QueuePosition::Unlock { .. } => {}
            QueuePosition::Permit(permit) => self.attempt.permit = Some(permit),
        }
    }

    fn timed_out(&mut self, place: QueuePosition) {
        match place {
            // Further turns without this one would be waited for in another order than everybody's.
            QueuePosition::Turn(_) => self.requests.retain(|wish| !matches!(wish, WaitRequest::RowQueue(..))),
            QueuePosition::Unlock { .. } => {}
            QueuePosition::Permit(_) => self.attempt.admission_timed_out = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::row::KeyspaceId;
    use crate::runtime::SystemEnv;

    const LONG: Duration = Duration::from_secs(3600);

    struct Queues {
        turns: Arc<RowQueues>,
        unlocked: Arc<UnlockWaiters>,
        admission: Arc<AdmissionController>,
    }

    impl Queues {
        fn new() -> Self {
            Self { turns: Arc::default(), unlocked: Arc::default(), admission: Arc::new(AdmissionController::new(1)) }
        }

        /// Two turns, an unlocked row, a permit.
        fn entrance(&self, is_locked: bool) -> AdmissionWait {
            let rows: Vec<RowKey> = ["a", "b"].map(|name| RowKey::new(KeyspaceId(1), name.as_bytes())).into();
            let mut entrance = AdmissionWait::default();
            entrance.queue_for_rows(&self.turns, &rows);
            let row = RowKey::new(KeyspaceId(1), b"c");
            entrance.wait_for_unlock(&self.unlocked, row, Box::new(move || is_locked));
            entrance.queue_for_permit(&self.admission, LONG);
            entrance
        }

        #[track_caller]
        fn assert_queues_empty(&self) {
            assert!(self.turns.is_empty() && self.unlocked.is_empty() && self.admission.is_idle(1));
        }
    }

    fn waiter() -> Arc<Waiter> {
        Arc::new(Waiter::new(&SystemEnv::default()))
    }

    /// As a future does that is dropped when it has been polled so often.
    #[test]
    fn an_entrance_dropped_at_any_step_leaves_every_queue() {
        let queues = Queues::new();
        for others_hold_all in [true, false] {
            for steps in 0..8 {
                let other = others_hold_all.then(|| queues.entrance(false).block(&SystemEnv::default()));
                let mut entrance = queues.entrance(true);
                // Half a second each, so that some of what is waited for is given up.
                for step in 0..steps {
                    match entrance.poll(Duration::from_millis(500 * step), &waiter) {
                        Some(WaitAction::Run(job)) => job(),
                        Some(WaitAction::Wait(..)) => {}
                        None => break,
                    }
                }
                drop(entrance);
                drop(other);
                queues.assert_queues_empty();
            }
        }
    }

    #[test]
    fn who_is_notified_and_then_dropped_hands_on() {
        let queues = Queues::new();
        let row = [RowKey::new(KeyspaceId(1), b"a")];
        let for_turn = |entrance: &mut AdmissionWait| entrance.queue_for_rows(&queues.turns, &row);
        let for_permit = |entrance: &mut AdmissionWait| entrance.queue_for_permit(&queues.admission, LONG);
        for ask in [&for_turn as &dyn Fn(&mut AdmissionWait), &for_permit] {
            let other = queues.entrance(false).block(&SystemEnv::default());
            let [mut first, mut second] = [(); 2].map(|()| {
                let mut entrance = AdmissionWait::default();
                ask(&mut entrance);
                entrance
            });
            assert!(matches!(first.poll(Duration::ZERO, &waiter), Some(WaitAction::Wait(..))));
            assert!(matches!(second.poll(Duration::ZERO, &waiter), Some(WaitAction::Wait(..))));
            drop(other);
            drop(first);
            assert!(second.poll(Duration::ZERO, &waiter).is_none());
            drop(second.finish());
            queues.assert_queues_empty();
        }
    }

    #[test]
    fn what_does_not_come_in_time_is_gone_without() {
        let queues = Queues::new();
        let other = queues.entrance(false).block(&SystemEnv::default());
        let mut entrance = queues.entrance(true);
        let mut now = Duration::ZERO;
        while let Some(step) = entrance.poll(now, &waiter) {
            match step {
                WaitAction::Wait(_, at_most) => now += at_most,
                WaitAction::Run(job) => job(),
            }
        }
        assert_eq!(now, ROW_QUEUE_WAIT_MAX + UNLOCK_WAIT_MAX + PERMIT_WAIT_MAX);
        let held = entrance.finish();
        assert!(held.admission_timed_out() && held.row_queue_tickets.is_empty() && held.permit.is_none());
        drop((held, other));
        queues.assert_queues_empty();
    }

    #[test]
    fn pauses_are_made_where_they_stand() {
        let (queues, paused) = (Queues::new(), Arc::new(AtomicBool::new(false)));
        let mut entrance = AdmissionWait::default();
        let pausing = Arc::clone(&paused);
        entrance.back_off(Box::new(move || pausing.store(true, Ordering::SeqCst)));
        entrance.queue_for_permit(&queues.admission, LONG);
        assert!(!entrance.block(&SystemEnv::default()).admission_timed_out());
        assert!(paused.load(Ordering::SeqCst));
    }
}
