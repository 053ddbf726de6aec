//! One thread waiting for one event.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::runtime::{Parker, Runtime};

/// Made by the thread that will wait; notified once, by any thread, before or after the wait begins.
pub struct Waiter {
    parker: Arc<dyn Parker>,
    notified: AtomicBool,
}

impl Waiter {
    pub fn new(runtime: &dyn Runtime) -> Arc<Self> {
        Arc::new(Self { parker: runtime.parker(), notified: AtomicBool::new(false) })
    }

    pub fn notify(&self) {
        self.notified.store(true, Ordering::Release);
        self.parker.unpark();
    }

    pub fn wait(&self) {
        while !self.notified.swap(false, Ordering::AcqRel) {
            self.parker.park(None);
        }
    }

    /// Whether the event came in time.
    pub fn wait_at_most(&self, runtime: &dyn Runtime, duration: Duration) -> bool {
        let end = runtime.elapsed().saturating_add(duration);
        loop {
            if self.notified.swap(false, Ordering::AcqRel) {
                return true;
            }
            let left = end.saturating_sub(runtime.elapsed());
            if left.is_zero() {
                return false;
            }
            self.parker.park(Some(left));
        }
    }
}
