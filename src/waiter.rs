//! One thread or task waiting for one event.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::runtime::{Env, Parker};

/// Made by the thread or task that will wait; notified once, by any thread, before or after the wait begins.
pub struct Waiter {
    sleeper: Sleeper,
    notified: AtomicBool,
}

/// What is to be woken.
enum Sleeper {
    Thread(Arc<dyn Parker>),
    #[cfg(feature = "tokio")]
    Task(crate::sync::Mutex<Option<std::task::Waker>>),
}

impl Waiter {
    /// Of the calling thread.
    pub fn new(runtime: &dyn Env) -> Self {
        Self { sleeper: Sleeper::Thread(runtime.parker()), notified: AtomicBool::new(false) }
    }

    /// Of a task, which waits by [`Waiter::notified`].
    #[cfg(feature = "tokio")]
    pub fn of_task() -> Arc<Self> {
        Arc::new(Self { sleeper: Sleeper::Task(crate::sync::Mutex::new(None)), notified: AtomicBool::new(false) })
    }

    pub fn notify(&self) {
        self.notify_early();
        match &self.sleeper {
            Sleeper::Thread(parker) => parker.unpark(),
            #[cfg(feature = "tokio")]
            Sleeper::Task(waker) => {
                let waker = waker.lock().take();
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
        }
    }

    /// [`Waiter::notify`] by who will wait, before the wait begins.
    pub fn notify_early(&self) {
        self.notified.store(true, Ordering::Release);
    }

    /// Forgets that the event has come, so that it can come again.
    pub fn rearm(&self) {
        self.notified.swap(false, Ordering::AcqRel);
    }

    /// Whether the event has come.
    pub fn is_notified(&self) -> bool {
        self.notified.load(Ordering::Acquire)
    }

    /// Makes a thread wait. The waiter may be notified, and waited for, again afterwards.
    pub fn wait(&self) {
        while !self.notified.swap(false, Ordering::AcqRel) {
            self.park(None);
        }
    }

    /// Makes a thread wait until the event has come, or for so long.
    pub fn wait_at_most(&self, runtime: &dyn Env, duration: Duration) {
        let end = runtime.elapsed().saturating_add(duration);
        while !self.is_notified() {
            let left = end.saturating_sub(runtime.elapsed());
            if left.is_zero() {
                return;
            }
            self.park(Some(left));
        }
    }

    fn park(&self, at_most: Option<Duration>) {
        match &self.sleeper {
            Sleeper::Thread(parker) => parker.park(at_most),
            #[cfg(feature = "tokio")]
            Sleeper::Task(_) => debug_assert!(false, "a thread waits in the place of a task"),
        }
    }

    /// Makes a task wait until the event has come.
    #[cfg(feature = "tokio")]
    pub async fn notified(&self) {
        std::future::poll_fn(|context| {
            if let Sleeper::Task(waker) = &self.sleeper {
                *waker.lock() = Some(context.waker().clone());
            }
            // Looked at after the waker is in place, so that a notification in between is not missed.
            if self.is_notified() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    }
}
