//! The waits of an attempt before it begins: row queues, the release of a lock, a permit.
//!
//! An [`AdmissionWait`] lists the waits and polls them in order; a poll never blocks. So a thread
//! and an async task have the same waits in the same order. An [`AdmissionWait`] that is dropped at
//! any step leaves every queue that it is in.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::admission::{AdmissionController, Permit};
use super::row_queue::{RowQueueTicket, RowQueues};
use super::unlock::{UnlockWait, UnlockWaiters};
use crate::env::Env;
use crate::row::RowKey;
use crate::waiter::Waiter;

const ROW_QUEUE_WAIT_MAX: Duration = Duration::from_secs(1);
const PERMIT_WAIT_MAX: Duration = Duration::from_secs(1);
const UNLOCK_WAIT_MAX: Duration = Duration::from_millis(100);

/// The row-queue tickets and the permit of an attempt, kept until its changes are visible.
#[derive(Default)]
pub struct AttemptGuard {
    pub(super) row_queue_tickets: Vec<RowQueueTicket>,
    pub(super) permit: Option<Permit>,
    admission_timed_out: bool,
    wait_times: WaitTimes,
}

/// How long an attempt waited before it began, by what it waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitTimes {
    pub row_queue: Duration,
    /// Waits for the release of a row lock, and back-off.
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

/// A closure that may block its thread.
pub type BlockingTask = Box<dyn FnOnce() + Send>;

/// What the caller does before it calls [`AdmissionWait::poll`] again.
pub enum WaitAction {
    /// Waits until notified, at most for this time.
    Wait(Arc<Waiter>, Duration),
    /// Runs this closure on a thread that may block.
    Run(BlockingTask),
}

/// See the [module](self).
#[derive(Default)]
pub struct AdmissionWait {
    requests: VecDeque<WaitRequest>,
    waiting: Option<ActiveWait>,
    /// One deadline for all row-queue waits together, set when the first of them begins.
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

/// Reads whether the row is locked.
type LockProbe = Box<dyn FnOnce() -> bool + Send>;

struct ActiveWait {
    position: QueuePosition,
    waiter: Arc<Waiter>,
    since: Duration,
    deadline: Duration,
}

enum QueuePosition {
    Row(RowQueueTicket),
    Unlock { _wait: UnlockWait },
    Permit(Permit),
}

impl AttemptGuard {
    /// Whether the wait for a permit timed out, so that the attempt runs without one.
    pub fn admission_timed_out(&self) -> bool {
        self.admission_timed_out
    }

    /// How long the attempt waited, by what it waited for.
    pub fn wait_times(&self) -> WaitTimes {
        self.wait_times
    }
}

impl AdmissionWait {
    /// Adds a wait for the front of each row's queue.
    pub fn queue_for_rows(&mut self, queues: &Arc<RowQueues>, rows: &[RowKey]) {
        self.requests
            .extend(RowQueues::lock_order(rows).into_iter().map(|row| WaitRequest::RowQueue(Arc::clone(queues), row)));
    }

    /// Adds a wait for the release of a row's lock.
    pub fn wait_for_unlock(&mut self, unlocked: &Arc<UnlockWaiters>, row: RowKey, is_locked: LockProbe) {
        self.requests.push_back(WaitRequest::Unlock(Arc::clone(unlocked), row, is_locked));
    }

    /// Adds a blocking closure, such as a sleep.
    pub fn back_off(&mut self, task: BlockingTask) {
        self.requests.push_back(WaitRequest::Backoff(task));
    }

    /// Adds a wait for a permit. The wait ends at `deadline`, or after a second if that is earlier.
    pub fn queue_for_permit(&mut self, admission: &Arc<AdmissionController>, deadline: Duration) {
        self.requests.push_back(WaitRequest::Permit(Arc::clone(admission), deadline));
    }

    /// The next action at the time `now`; `None` when all waits have ended and
    /// [`AdmissionWait::finish`] is to be called. A call before a wait has ended returns the same
    /// wait again, with the time that is left.
    pub fn poll(&mut self, now: Duration, new_waiter: &dyn Fn() -> Arc<Waiter>) -> Option<WaitAction> {
        if let Some(since) = self.backoff_started.take() {
            self.attempt.wait_times.row_lock += now.saturating_sub(since);
        }
        loop {
            if let Some(ActiveWait { position, waiter, since, deadline }) = self.waiting.take() {
                let is_notified = waiter.is_notified();
                if !is_notified && now < deadline {
                    let step = WaitAction::Wait(Arc::clone(&waiter), deadline.saturating_sub(now));
                    self.waiting = Some(ActiveWait { position, waiter, since, deadline });
                    return Some(step);
                }
                *self.wait_time_of(&position) += now.saturating_sub(since);
                if is_notified {
                    self.acquired(position);
                } else {
                    self.timed_out(position);
                }
            }
            let request = self.requests.pop_front()?;
            let waiter = new_waiter();
            let own = Arc::clone(&waiter);
            match request {
                WaitRequest::RowQueue(queues, row) => {
                    let end = *self.row_queue_deadline.get_or_insert(now + ROW_QUEUE_WAIT_MAX);
                    self.waiting = Some(ActiveWait {
                        position: QueuePosition::Row(queues.enqueue(row, own)),
                        waiter,
                        since: now,
                        deadline: end,
                    });
                }
                WaitRequest::Unlock(unlocked, row, is_locked) => {
                    let position = QueuePosition::Unlock { _wait: unlocked.register(&row, own) };
                    let probing = Arc::clone(&waiter);
                    self.waiting = Some(ActiveWait { position, waiter, since: now, deadline: now + UNLOCK_WAIT_MAX });
                    return Some(WaitAction::Run(Box::new(move || {
                        if !is_locked() {
                            probing.notify();
                        }
                    })));
                }
                WaitRequest::Backoff(pause) => {
                    self.backoff_started = Some(now);
                    return Some(WaitAction::Run(pause));
                }
                WaitRequest::Permit(admission, end) => {
                    let end = end.min(now + PERMIT_WAIT_MAX);
                    let position =
                        QueuePosition::Permit(admission.enqueue(own, !self.attempt.row_queue_tickets.is_empty()));
                    self.waiting = Some(ActiveWait { position, waiter, since: now, deadline: end });
                }
            }
        }
    }

    /// The tickets and the permit that were acquired.
    pub fn finish(self) -> AttemptGuard {
        self.attempt
    }

    /// Blocks the calling thread until all waits have ended.
    pub fn block(mut self, env: &dyn Env) -> AttemptGuard {
        while let Some(step) = self.poll(env.elapsed(), &|| Arc::new(Waiter::new(env))) {
            match step {
                WaitAction::Wait(waiter, at_most) => waiter.wait_at_most(env, at_most),
                WaitAction::Run(job) => job(),
            }
        }
        self.finish()
    }

    fn wait_time_of(&mut self, position: &QueuePosition) -> &mut Duration {
        match position {
            QueuePosition::Row(_) => &mut self.attempt.wait_times.row_queue,
            QueuePosition::Unlock { .. } => &mut self.attempt.wait_times.row_lock,
            QueuePosition::Permit(_) => &mut self.attempt.wait_times.admission,
        }
    }

    fn acquired(&mut self, position: QueuePosition) {
        match position {
            QueuePosition::Row(ticket) => self.attempt.row_queue_tickets.push(ticket),
            QueuePosition::Unlock { .. } => {}
            QueuePosition::Permit(permit) => self.attempt.permit = Some(permit),
        }
    }

    fn timed_out(&mut self, position: QueuePosition) {
        match position {
            // All row-queue waits share the deadline, so the other rows are skipped as well.
            QueuePosition::Row(_) => self.requests.retain(|request| !matches!(request, WaitRequest::RowQueue(..))),
            QueuePosition::Unlock { .. } => {}
            QueuePosition::Permit(_) => self.attempt.admission_timed_out = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::env::SystemEnv;
    use crate::row::KeyspaceId;

    const LONG: Duration = Duration::from_secs(3600);

    struct Queues {
        rows: Arc<RowQueues>,
        unlocked: Arc<UnlockWaiters>,
        admission: Arc<AdmissionController>,
    }

    impl Queues {
        fn new() -> Self {
            Self { rows: Arc::default(), unlocked: Arc::default(), admission: Arc::new(AdmissionController::new(1)) }
        }

        /// A wait for the queues of two rows, for the release of the lock on a third, and for a
        /// permit.
        fn wait(&self, is_locked: bool) -> AdmissionWait {
            let rows: Vec<RowKey> = ["a", "b"].map(|name| RowKey::new(KeyspaceId(1), name.as_bytes())).into();
            let mut wait = AdmissionWait::default();
            wait.queue_for_rows(&self.rows, &rows);
            let row = RowKey::new(KeyspaceId(1), b"c");
            wait.wait_for_unlock(&self.unlocked, row, Box::new(move || is_locked));
            wait.queue_for_permit(&self.admission, LONG);
            wait
        }

        #[track_caller]
        fn assert_queues_empty(&self) {
            assert!(self.rows.is_empty() && self.unlocked.is_empty() && self.admission.is_idle(1));
        }
    }

    fn waiter() -> Arc<Waiter> {
        Arc::new(Waiter::new(&SystemEnv::default()))
    }

    /// The wait is dropped after 0 to 7 polls, as when the future of a task is dropped: first while
    /// another attempt has both tickets and the permit, then without another attempt.
    #[test]
    fn a_wait_dropped_at_any_step_leaves_every_queue() {
        let queues = Queues::new();
        for others_hold_everything in [true, false] {
            for steps in 0..8 {
                let other = others_hold_everything.then(|| queues.wait(false).block(&SystemEnv::default()));
                let mut wait = queues.wait(true);
                // Half a second a step, so that some waits time out.
                for step in 0..steps {
                    match wait.poll(Duration::from_millis(500 * step), &waiter) {
                        Some(WaitAction::Run(job)) => job(),
                        Some(WaitAction::Wait(..)) => {}
                        None => break,
                    }
                }
                drop(wait);
                drop(other);
                queues.assert_queues_empty();
            }
        }
    }

    #[test]
    fn dropping_a_notified_wait_wakes_the_next() {
        let queues = Queues::new();
        let row = [RowKey::new(KeyspaceId(1), b"a")];
        let for_row = |wait: &mut AdmissionWait| wait.queue_for_rows(&queues.rows, &row);
        let for_permit = |wait: &mut AdmissionWait| wait.queue_for_permit(&queues.admission, LONG);
        for add_wait in [&for_row as &dyn Fn(&mut AdmissionWait), &for_permit] {
            let other = queues.wait(false).block(&SystemEnv::default());
            let [mut first, mut second] = [(); 2].map(|()| {
                let mut wait = AdmissionWait::default();
                add_wait(&mut wait);
                wait
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
    fn a_wait_that_times_out_is_skipped() {
        let queues = Queues::new();
        let other = queues.wait(false).block(&SystemEnv::default());
        let mut wait = queues.wait(true);
        let mut now = Duration::ZERO;
        while let Some(step) = wait.poll(now, &waiter) {
            match step {
                WaitAction::Wait(_, at_most) => now += at_most,
                WaitAction::Run(job) => job(),
            }
        }
        assert_eq!(now, ROW_QUEUE_WAIT_MAX + UNLOCK_WAIT_MAX + PERMIT_WAIT_MAX);
        let held = wait.finish();
        assert!(held.admission_timed_out() && held.row_queue_tickets.is_empty() && held.permit.is_none());
        drop((held, other));
        queues.assert_queues_empty();
    }

    #[test]
    fn backoffs_run_in_order() {
        let (queues, paused) = (Queues::new(), Arc::new(AtomicBool::new(false)));
        let mut wait = AdmissionWait::default();
        let pausing = Arc::clone(&paused);
        wait.back_off(Box::new(move || pausing.store(true, Ordering::SeqCst)));
        wait.queue_for_permit(&queues.admission, LONG);
        assert!(!wait.block(&SystemEnv::default()).admission_timed_out());
        assert!(paused.load(Ordering::SeqCst));
    }
}
