//! An environment with the system's threads, and with clocks that tests can move.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use percolite::env::{Env, JoinHandle, Parker, SystemEnv};

/// The system environment, with a wall clock and a monotonic clock that tests can move forward.
#[derive(Default)]
pub struct Clock {
    system: SystemEnv,
    wall_ahead_ms: AtomicU64,
    elapsed_ahead_ms: AtomicU64,
}

impl Clock {
    /// Lets time pass, on the wall clock and on the monotonic clock.
    pub fn pass(&self, time: Duration) {
        self.jump(time);
        self.elapsed_ahead_ms.fetch_add(time.as_millis() as u64, Ordering::SeqCst);
    }

    /// Sets the wall clock forward. No time passes.
    pub fn jump(&self, time: Duration) {
        self.wall_ahead_ms.fetch_add(time.as_millis() as u64, Ordering::SeqCst);
    }
}

impl Env for Clock {
    fn unix_millis(&self) -> u64 {
        self.system.unix_millis() + self.wall_ahead_ms.load(Ordering::SeqCst)
    }
    fn elapsed(&self) -> Duration {
        self.system.elapsed() + Duration::from_millis(self.elapsed_ahead_ms.load(Ordering::SeqCst))
    }
    fn random(&self) -> u64 {
        self.system.random()
    }
    fn sleep(&self, duration: Duration) {
        self.system.sleep(duration);
    }
    fn parker(&self) -> Arc<dyn Parker> {
        self.system.parker()
    }
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<Box<dyn JoinHandle>> {
        self.system.spawn(name, work)
    }
}
