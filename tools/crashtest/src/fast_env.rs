//! A runtime environment whose clock runs fast.

use std::sync::Arc;
use std::time::Duration;

use percolite::env::{Env, JoinHandle, Parker, SystemEnv};

/// The system with a clock of `speed` times the real speed, so that leases expire and background
/// work runs sooner. Each incarnation begins at the real time again. So it may begin before the
/// time that the fast clock of the previous one has reached, which a store must tolerate.
pub struct FastEnv {
    system: SystemEnv,
    began: u64,
    speed: u32,
}

impl FastEnv {
    /// A system of `speed` times the real speed; 1 is the real clock.
    pub fn new(speed: u32) -> Self {
        let system = SystemEnv::default();
        let began = system.unix_millis();
        Self { system, began, speed: speed.max(1) }
    }
}

impl Env for FastEnv {
    fn unix_millis(&self) -> u64 {
        let passed = self.system.unix_millis().saturating_sub(self.began);
        self.began.saturating_add(passed.saturating_mul(self.speed.into()))
    }

    fn elapsed(&self) -> Duration {
        self.system.elapsed().saturating_mul(self.speed)
    }

    fn random(&self) -> u64 {
        self.system.random()
    }

    fn sleep(&self, duration: Duration) {
        self.system.sleep(duration / self.speed);
    }

    fn yield_until(&self, is_done: &dyn Fn() -> bool) {
        self.system.yield_until(is_done);
    }

    fn parker(&self) -> Arc<dyn Parker> {
        Arc::new(FastParker { parker: self.system.parker(), speed: self.speed })
    }

    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<Box<dyn JoinHandle>> {
        self.system.spawn(name, work)
    }
}

struct FastParker {
    parker: Arc<dyn Parker>,
    speed: u32,
}

impl Parker for FastParker {
    fn park(&self, at_most: Option<Duration>) {
        self.parker.park(at_most.map(|at_most| at_most / self.speed));
    }

    fn unpark(&self) {
        self.parker.unpark();
    }
}
