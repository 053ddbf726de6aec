//! One thread or task that waits for one event.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::env::{Env, Parker};

/// Created by the thread or task that will wait, and notified by any thread. A notification before
/// the wait begins is kept.
pub struct Waiter {
    kind: WaiterKind,
    notified: AtomicBool,
}

/// The thread or task that is woken.
enum WaiterKind {
    Thread(Arc<dyn Parker>),
    #[cfg(feature = "tokio")]
    Task(crate::sync::Mutex<Option<std::task::Waker>>),
}

impl Waiter {
    /// A waiter for the calling thread.
    pub fn new(env: &dyn Env) -> Self {
        Self { kind: WaiterKind::Thread(env.parker()), notified: AtomicBool::new(false) }
    }

    /// A waiter for a task, which waits with [`Waiter::notified`].
    #[cfg(feature = "tokio")]
    pub fn of_task() -> Arc<Self> {
        Arc::new(Self { kind: WaiterKind::Task(crate::sync::Mutex::new(None)), notified: AtomicBool::new(false) })
    }

    /// Ends the present wait or, if there is none, the next one.
    pub fn notify(&self) {
        self.notify_early();
        match &self.kind {
            WaiterKind::Thread(parker) => parker.unpark(),
            #[cfg(feature = "tokio")]
            WaiterKind::Task(waker) => {
                let waker = waker.lock().take();
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
        }
    }

    /// Sets the notification, but wakes nothing. So only the thread or task that will wait may call
    /// this, before its wait.
    pub fn notify_early(&self) {
        self.notified.store(true, Ordering::Release);
    }

    /// Clears the notification, so that the waiter can be notified again.
    pub fn rearm(&self) {
        self.notified.swap(false, Ordering::AcqRel);
    }

    /// Whether the waiter was notified.
    pub fn is_notified(&self) -> bool {
        self.notified.load(Ordering::Acquire)
    }

    /// Blocks the thread until notified, and clears the notification, so that the waiter can be
    /// used again.
    pub fn wait(&self) {
        while !self.notified.swap(false, Ordering::AcqRel) {
            self.park(None);
        }
    }

    /// Blocks the thread until notified, for at most `duration`. Does not clear the notification.
    pub fn wait_at_most(&self, env: &dyn Env, duration: Duration) {
        let end = env.elapsed().saturating_add(duration);
        while !self.is_notified() {
            let left = end.saturating_sub(env.elapsed());
            if left.is_zero() {
                return;
            }
            self.park(Some(left));
        }
    }

    fn park(&self, timeout: Option<Duration>) {
        match &self.kind {
            WaiterKind::Thread(parker) => parker.park(timeout),
            #[cfg(feature = "tokio")]
            // The wait would be a loop that never blocks.
            WaiterKind::Task(_) => unreachable!("invariant: a thread does not wait with a task's waiter"),
        }
    }

    /// Waits, in a task, until notified.
    #[cfg(feature = "tokio")]
    pub async fn notified(&self) {
        std::future::poll_fn(|context| {
            if let WaiterKind::Task(waker) = &self.kind {
                *waker.lock() = Some(context.waker().clone());
            }
            // Checked after the waker is registered, so that no notification is missed.
            if self.is_notified() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    }
}

#[cfg(all(test, feature = "tokio"))]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "invariant: a thread does not wait with a task's waiter")]
    fn a_thread_with_the_waiter_of_a_task_breaks_an_invariant() {
        Waiter::of_task().wait();
    }
}
