//! The runtime environment of a simulated process.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use percolite::env::{Env, JoinHandle, Parker, Watermark};

use super::scheduler::{Scheduler, ThreadId, current};

/// A thread spins for a random number of yields below this before it sleeps. So a leader's reply
/// may come while it spins, or later.
const YIELDS_MAX: u64 = 32;

/// Takes time, random numbers and threads from the scheduler. Each process has its own wall clock.
pub struct SimRuntime {
    scheduler: Arc<Scheduler>,
    clock_off_by_ms: i64,
}

impl SimRuntime {
    /// The environment of a process with this wall clock offset.
    pub fn new(scheduler: &Arc<Scheduler>, clock_off_by_ms: i64) -> Arc<Self> {
        Arc::new(Self { scheduler: Arc::clone(scheduler), clock_off_by_ms })
    }
}

impl Env for SimRuntime {
    fn unix_millis(&self) -> u64 {
        self.scheduler.unix_millis().saturating_add_signed(self.clock_off_by_ms)
    }

    fn elapsed(&self) -> Duration {
        self.scheduler.now()
    }

    fn random(&self) -> u64 {
        self.scheduler.random()
    }

    fn sleep(&self, duration: Duration) {
        self.scheduler.sleep(duration);
    }

    fn yield_until(&self, is_done: &dyn Fn() -> bool) {
        for _ in 0..self.scheduler.random() % YIELDS_MAX {
            if is_done() {
                return;
            }
            self.scheduler.yield_point("spin");
        }
    }

    fn parker(&self) -> Arc<dyn Parker> {
        let own = current().map_or(0, |(_, own)| own);
        Arc::new(SimParker { scheduler: Arc::clone(&self.scheduler), own })
    }

    fn new_watermark(&self) -> Arc<dyn Watermark> {
        Arc::new(SimWatermark { scheduler: Arc::clone(&self.scheduler), state: Mutex::default() })
    }

    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<Box<dyn JoinHandle>> {
        let thread = self.scheduler.spawn(name, work)?;
        Ok(Box::new(SimThread { scheduler: Arc::clone(&self.scheduler), thread }))
    }
}

struct SimParker {
    scheduler: Arc<Scheduler>,
    own: ThreadId,
}

impl Parker for SimParker {
    /// A park may end spuriously. Here half of the parks with a timeout end within 4 ms: a running
    /// thread advances virtual time by microseconds, so otherwise work that is due every second
    /// would hardly ever run.
    fn park(&self, at_most: Option<Duration>) {
        let hasty = Duration::from_micros(self.scheduler.random() % 4000);
        let at_most =
            at_most.map(|at_most| if self.scheduler.random().is_multiple_of(2) { at_most.min(hasty) } else { at_most });
        self.scheduler.park(self.own, at_most);
    }

    fn unpark(&self) {
        self.scheduler.unpark(self.own);
    }
}

struct SimWatermark {
    scheduler: Arc<Scheduler>,
    /// The watermark's number, and the waiting threads, each with the number that it waits for.
    state: Mutex<(u64, Vec<(u64, ThreadId)>)>,
}

impl Watermark for SimWatermark {
    fn wait_for(&self, until: u64) {
        let own = current().map_or(0, |(_, own)| own);
        loop {
            {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                if state.0 >= until {
                    return;
                }
                state.1.push((until, own));
            }
            self.scheduler.park(own, None);
        }
    }

    fn advance_to(&self, number: u64) {
        let woken: Vec<_> = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.0 = state.0.max(number);
            let reached = state.0;
            state.1.extract_if(.., |(until, _)| *until <= reached).collect()
        };
        woken.into_iter().for_each(|(_, thread)| self.scheduler.unpark(thread));
    }
}

struct SimThread {
    scheduler: Arc<Scheduler>,
    thread: ThreadId,
}

impl JoinHandle for SimThread {
    fn join(self: Box<Self>) {
        self.scheduler.join(self.thread);
    }
}
