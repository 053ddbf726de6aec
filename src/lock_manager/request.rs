//! Handles of requests for a named lock, from the request to the end of its grant, and the wait for
//! the grant.
//!
//! A handle may be dropped at any time and leaves nothing in the queue: a waiting request leaves
//! the queue, and a granted request releases the lock, even if it was granted just before the drop.
//!
//! [`LockWait`] computes what to wait for and how long, but does not wait itself, so threads and
//! tasks share it. A wait is woken by its grant, by the end of the store and by its
//! [`CancelToken`](super::CancelToken). A request that becomes the first waiter behind a lease is
//! woken as well, to read when the lease expires. A wait has two timers: the timeout of the request
//! and, for the first waiter, the expiry of the lease. No wait polls at intervals.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::cancel::CancelRegistration;
use super::grant::Grant;
use super::info::LockLostReason;
use super::manager::LockManager;
use crate::env::Env;
use crate::waiter::Waiter;

/// Owns one request or grant: dropping the handle cancels the request or releases the grant.
pub struct RequestHandle {
    manager: Arc<LockManager>,
    grant: Arc<Grant>,
    /// Whether the request converts a shared grant.
    is_upgrade: bool,
    is_done: AtomicBool,
}

impl RequestHandle {
    /// `is_upgrade`: the grant replaces a shared one.
    pub fn new(manager: &Arc<LockManager>, grant: Arc<Grant>, is_upgrade: bool) -> Self {
        Self { manager: Arc::clone(manager), grant, is_upgrade, is_done: AtomicBool::new(false) }
    }

    pub fn grant(&self) -> &Arc<Grant> {
        &self.grant
    }

    /// Ends the grant. Returns whether this call ended it.
    pub fn release(&self) -> bool {
        self.release_at(Duration::ZERO)
    }

    /// [`RequestHandle::release`] of a lease, which counts as lost if it had expired at `now`.
    pub fn release_at(&self, now: Duration) -> bool {
        !self.is_done.swap(true, Ordering::AcqRel) && self.manager.release(&self.grant, now)
    }

    /// Makes the drop release nothing: the lease continues without a guard.
    pub fn detach(&self) {
        self.is_done.store(true, Ordering::Release);
    }

    /// Cancels a waiting request; returns the handle if the request is granted.
    #[cfg(feature = "tokio")]
    pub fn cancel(self) -> Option<Self> {
        if self.try_cancel().is_none() {
            return Some(self);
        }
        self.cancelled();
        None
    }

    fn cancelled(&self) {
        // If the store is closed, or the shared grant has ended, that does not count as a
        // cancellation.
        if self.manager.closed().is_none() && !self.grant.has_ended() {
            self.manager.metrics.cancelled(self.grant.mode);
        }
    }

    /// Cancels a waiting request; returns the number of requests ahead of it. `None` if it is
    /// granted.
    fn try_cancel(&self) -> Option<usize> {
        let ahead = if self.is_upgrade {
            self.manager.cancel_upgrade(&self.grant)
        } else {
            self.manager.cancel_request(&self.grant)
        };
        if ahead.is_some() {
            self.is_done.store(true, Ordering::Release);
        }
        ahead
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        if self.is_done.load(Ordering::Acquire) || !self.manager.process.is_current() {
            return;
        }
        if self.try_cancel().is_none() {
            self.release();
        } else {
            self.cancelled();
        }
    }
}

/// A request and the conditions that end its wait: see the [module](self).
pub struct LockWait {
    pub request: RequestHandle,
    started_at: Duration,
    /// When the timeout ends; `None` without one.
    deadline: Option<Duration>,
    cancel: Option<CancelRegistration>,
}

/// What to do before the next [`LockWait::poll`], or how the wait has ended.
pub enum WaitPoll {
    Granted,
    /// Wait until notified, at most for the duration.
    Wait(Arc<Waiter>, Option<Duration>),
    TimedOut {
        ahead: usize,
    },
    Cancelled,
    Closed(String),
    /// The shared grant that was to be converted has ended.
    GrantEnded(LockLostReason),
}

impl LockWait {
    pub fn new(
        request: RequestHandle,
        started_at: Duration,
        timeout: Option<Duration>,
        cancel: Option<&super::CancelToken>,
    ) -> Self {
        let cancel = cancel.zip(request.grant.waiter()).map(|(cancel, waiter)| cancel.register(waiter));
        Self { request, started_at, deadline: timeout.map(|timeout| started_at.saturating_add(timeout)), cancel }
    }

    pub fn into_request(self) -> RequestHandle {
        self.request
    }

    /// The present time. If the request was granted immediately, the time of the request is
    /// returned instead, which saves reading the clock.
    pub fn started_or_now(&self, env: &dyn Env) -> Duration {
        if self.request.grant.waiter().is_some() { env.elapsed() } else { self.started_at }
    }

    pub fn elapsed(&self, now: Duration) -> Duration {
        now.saturating_sub(self.started_at)
    }

    /// The next action, as of `now`.
    pub fn poll(&self, now: Duration) -> WaitPoll {
        let RequestHandle { manager, grant, .. } = &self.request;
        let Some(waiter) = grant.waiter().filter(|_| !grant.is_granted()) else { return WaitPoll::Granted };
        // `rearm` clears the last notification, so it comes before the checks: a change after them
        // notifies the waiter again, and so ends its next wait immediately.
        waiter.rearm();
        if grant.is_granted() {
            return WaitPoll::Granted;
        }
        if let Some(reason) = manager.closed() {
            return WaitPoll::Closed(reason.into());
        }
        if let Some(reason) = grant.end_reason_at(now) {
            return WaitPoll::GrantEnded(reason);
        }
        if self.cancel.as_ref().is_some_and(CancelRegistration::is_cancelled) {
            if self.request.try_cancel().is_none() {
                return WaitPoll::Granted;
            }
            self.request.cancelled();
            return WaitPoll::Cancelled;
        }
        let lease_ends = manager.expire_blocking_leases(grant, now);
        if grant.is_granted() {
            return WaitPoll::Granted;
        }
        // Checked again: if this request is a conversion, the call above may have expired the lease
        // of its own shared grant, which ends the request, too.
        if let Some(reason) = grant.end_reason_at(now) {
            return WaitPoll::GrantEnded(reason);
        }
        let left = self.deadline.map(|ends| ends.saturating_sub(now));
        if left.is_some_and(|left| left.is_zero()) {
            return match self.request.try_cancel() {
                Some(ahead) => WaitPoll::TimedOut { ahead },
                None => WaitPoll::Granted,
            };
        }
        WaitPoll::Wait(Arc::clone(waiter), left.into_iter().chain(lease_ends).min())
    }
}
