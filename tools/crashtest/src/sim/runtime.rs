//! The simulated world as the store sees it.

use std::sync::Arc;
use std::time::Duration;

use percolite::runtime::{Joined, Parker, Runtime};

use super::scheduler::{Scheduler, ThreadId, current};

/// Time, chance and threads by the scheduler.
pub struct SimRuntime(pub Arc<Scheduler>);

impl Runtime for SimRuntime {
    fn unix_millis(&self) -> u64 {
        self.0.unix_millis()
    }

    fn elapsed(&self) -> Duration {
        self.0.now()
    }

    fn random(&self) -> u64 {
        self.0.random()
    }

    fn sleep(&self, duration: Duration) {
        self.0.sleep(duration);
    }

    fn parker(&self) -> Arc<dyn Parker> {
        let own = current().map_or(0, |(_, own)| own);
        Arc::new(SimParker { scheduler: Arc::clone(&self.0), own })
    }

    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<Box<dyn Joined>> {
        let thread = self.0.spawn(name, work)?;
        Ok(Box::new(SimThread { scheduler: Arc::clone(&self.0), thread }))
    }
}

struct SimParker {
    scheduler: Arc<Scheduler>,
    own: ThreadId,
}

impl Parker for SimParker {
    fn park(&self, at_most: Option<Duration>) {
        self.scheduler.park(self.own, at_most);
    }

    fn unpark(&self) {
        self.scheduler.unpark(self.own);
    }
}

struct SimThread {
    scheduler: Arc<Scheduler>,
    thread: ThreadId,
}

impl Joined for SimThread {
    fn join(self: Box<Self>) {
        self.scheduler.join(self.thread);
    }
}
