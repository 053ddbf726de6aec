//! Cancellation of waits for named locks.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::process::Process;
use crate::sync::Mutex;
use crate::waiter::Waiter;

/// Cancels waits for named locks, from any thread. The waits are those whose request has a clone
/// of this token ([`LockOptions::cancel_token`](crate::LockOptions::cancel_token)).
///
/// After [`CancelToken::cancel`] each of these waits, present and future, returns
/// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled). The token cannot be reset. Locks that are
/// granted already stay granted.
///
/// ```
/// # fn main() -> percolite::Result<()> {
/// use percolite::{CancelToken, ErrorKind, LockOptions, Store};
/// let store = Store::in_memory()?;
/// let held = store.lock("nightly")?;
/// let cancel = CancelToken::default();
/// let stop = cancel.clone();
/// let waiting = std::thread::spawn(move || stop.cancel());
/// let options = LockOptions::exclusive().cancel_token(&cancel);
/// let stopped = store.lock_with("nightly", options).unwrap_err();
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
    process: Process,
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelToken").field("is_cancelled", &self.is_cancelled()).finish()
    }
}

impl CancelToken {
    /// Cancels the waits. A second call does nothing.
    pub fn cancel(&self) {
        // The flag comes first: a wait that registers after the list is taken must find it set.
        self.0.is_cancelled.store(true, Ordering::Release);
        let waiting = std::mem::take(&mut *self.0.waiting.lock());
        yield_point!();
        for waiter in waiting {
            waiter.notify();
        }
    }

    /// Whether [`CancelToken::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::Acquire)
    }

    /// Wakes `waiter` on cancellation. The caller must check [`CancelToken::is_cancelled`] after
    /// this call, or a cancellation just before the call is missed.
    pub(super) fn register(&self, waiter: &Arc<Waiter>) -> CancelRegistration {
        self.0.waiting.lock().push(Arc::clone(waiter));
        CancelRegistration { cancel: self.clone(), waiter: Arc::clone(waiter) }
    }
}

/// Keeps the waiter registered until this is dropped.
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
        if !self.cancel.0.process.is_current() {
            return;
        }
        self.cancel.0.waiting.lock().retain(|other| !Arc::ptr_eq(other, &self.waiter));
    }
}
