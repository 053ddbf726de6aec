//! Ending waits from outside.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sync::Mutex;
use crate::waiter::Waiter;

/// Ends waits for locks from another thread, once and for all: every wait that was given a clone of it
/// ([`LockOptions::cancel_token`](crate::LockOptions::cancel_token)), those under way and those to come, returns
/// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) when [`CancelToken::cancel`] is called. What is granted already is not touched.
///
/// ```
/// # fn main() -> percolite::Result<()> {
/// use percolite::{Cancel, ErrorKind, LockOptions, Store};
/// let store = Store::in_memory()?;
/// let held = store.lock("nightly")?;
/// let cancel = Cancel::default();
/// let stop = cancel.clone();
/// let waiting = std::thread::spawn(move || stop.cancel());
/// let stopped = store.lock_with("nightly", LockOptions::exclusive().cancel(&cancel)).unwrap_err();
/// assert!(matches!(stopped.kind(), ErrorKind::Cancelled(_)));
/// # waiting.join().unwrap();
/// # drop(held);
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct CancelToken(Arc<State>);

#[derive(Default)]
struct State {
    is_cancelled: AtomicBool,
    waiting: Mutex<Vec<Arc<Waiter>>>,
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancel").field("is_cancelled", &self.is_cancelled()).finish()
    }
}

impl CancelToken {
    /// Ends the waits. A second call does nothing.
    pub fn cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::Release);
        let waiting = std::mem::take(&mut *self.0.waiting.lock());
        for waiter in waiting {
            waiter.notify();
        }
    }

    /// Whether it was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::Acquire)
    }

    /// Has `waiter` woken. Whether it was called before is to be asked afterwards.
    pub(super) fn register(&self, waiter: &Arc<Waiter>) -> CancelRegistration {
        self.0.waiting.lock().push(Arc::clone(waiter));
        CancelRegistration { cancel: self.clone(), waiter: Arc::clone(waiter) }
    }
}

/// A wait that can be cancelled, until this is dropped.
pub(super) struct CancelRegistration {
    cancel: CancelToken,
    waiter: Arc<Waiter>,
}

impl CancelRegistration {
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }
}

impl Drop for CancelRegistration {
    fn drop(&mut self) {
        self.cancel.0.waiting.lock().retain(|other| !Arc::ptr_eq(other, &self.waiter));
    }
}
