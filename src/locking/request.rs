//! Requests: what a program has in hand from its asking to the end of its grant, and how it waits.
//!
//! A request that is dropped, at whatever moment, leaves nothing in the lock head: one that waits leaves the queue, one that is
//! granted, perhaps this very moment, passes the lock on.
//!
//! [`LockWait`] says for what to wait and how long, and does not wait itself, so a thread and a task wait in the same way. It is woken by
//! its grant, by the end of the store, by its [`CancelToken`](super::CancelToken) and, where it has come to the front of the queue after a
//! lease, to look when that will be over. Its timers are its own patience and, at the front, that lease. Nothing polls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::cancel::CancelRegistration;
use super::grant::{Grant, LockLostReason};
use super::heads::LockManager;
use crate::runtime::Env;
use crate::waiter::Waiter;

/// See the [module](self).
pub struct RequestHandle {
    heads: Arc<LockManager>,
    grant: Arc<Grant>,
    /// Whether the grant takes the place of a shared one.
    is_upgrade: bool,
    is_done: AtomicBool,
}

impl RequestHandle {
    /// `converts` says that the grant takes the place of a shared one.
    pub fn new(heads: &Arc<LockManager>, grant: Arc<Grant>, converts: bool) -> Self {
        Self { heads: Arc::clone(heads), grant, is_upgrade: converts, is_done: AtomicBool::new(false) }
    }

    pub fn grant(&self) -> &Arc<Grant> {
        &self.grant
    }

    pub fn manager(&self) -> &Arc<LockManager> {
        &self.heads
    }

    /// Ends the grant. The answer is whether it was this call.
    pub fn release(&self) -> bool {
        self.release_at(Duration::ZERO)
    }

    /// The same, of what may be a lease that is over.
    pub fn release_at(&self, now: Duration) -> bool {
        !self.is_done.swap(true, Ordering::AcqRel) && self.heads.release(&self.grant, now)
    }

    /// Leaves the grant to itself: a lease that goes on without a guard.
    pub fn detach(&self) {
        self.is_done.store(true, Ordering::Release);
    }

    /// Takes the request back if it still waits; else it is granted, and the answer.
    #[cfg(feature = "tokio")]
    pub fn cancel(self) -> Option<Self> {
        if self.try_cancel().is_none() {
            return Some(self);
        }
        self.cancelled();
        None
    }

    fn cancelled(&self) {
        // What is lost was counted as that.
        if self.heads.closed().is_none() && !self.grant.has_ended() {
            self.heads.metrics.cancelled(self.grant.mode);
        }
    }

    /// Takes the request back if it still waits; the answer is how many were before it in the queue. `None` when it is granted.
    fn try_cancel(&self) -> Option<usize> {
        let ahead = if self.is_upgrade {
            self.heads.cancel_upgrade(&self.grant)
        } else {
            self.heads.cancel_request(&self.grant)
        };
        if ahead.is_some() {
            self.is_done.store(true, Ordering::Release);
        }
        ahead
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        if self.is_done.load(Ordering::Acquire) {
            return;
        }
        if self.try_cancel().is_none() {
            self.release();
        } else {
            self.cancelled();
        }
    }
}

/// See the [module](self).
pub struct LockWait {
    pub request: RequestHandle,
    started_at: Duration,
    /// When patience is over; `None` for never.
    deadline: Option<Duration>,
    cancel: Option<CancelRegistration>,
}

/// What is to be done before [`LockWait::poll`] is called again, or how the wait has ended.
pub enum WaitPoll {
    Granted,
    /// Waiting until notified, or for so long.
    Wait(Arc<Waiter>, Option<Duration>),
    TimedOut {
        ahead: usize,
    },
    Cancelled,
    Closed(String),
    /// What was to be converted is lost.
    GrantEnded(LockLostReason),
}

impl LockWait {
    pub fn new(
        request: RequestHandle,
        began: Duration,
        at_most: Option<Duration>,
        cancel: Option<&super::CancelToken>,
    ) -> Self {
        let cancel = cancel.zip(request.grant.waiter()).map(|(cancel, waiter)| cancel.register(waiter));
        Self { request, started_at: began, deadline: at_most.map(|at_most| began.saturating_add(at_most)), cancel }
    }

    pub fn into_request(self) -> RequestHandle {
        self.request
    }

    /// This moment; for what was granted when it was asked for, that one.
    pub fn started_or_now(&self, runtime: &dyn Env) -> Duration {
        if self.request.grant.waiter().is_some() { runtime.elapsed() } else { self.started_at }
    }

    pub fn elapsed(&self, now: Duration) -> Duration {
        now.saturating_sub(self.started_at)
    }

    /// The next thing to do, as of `now`.
    pub fn poll(&self, now: Duration) -> WaitPoll {
        let RequestHandle { heads, grant, .. } = &self.request;
        let Some(waiter) = grant.waiter().filter(|_| !grant.is_granted()) else { return WaitPoll::Granted };
        // What comes after this ends the next wait.
        waiter.rearm();
        if grant.is_granted() {
            return WaitPoll::Granted;
        }
        if let Some(why) = heads.closed() {
            return WaitPoll::Closed(why.into());
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
        let lease_ends = heads.expire_blocking_leases(grant, now);
        if grant.is_granted() {
            return WaitPoll::Granted;
        }
        // The lease that was over may have been the one that is to be converted.
        if let Some(reason) = grant.end_reason_at(now) {
            return WaitPoll::GrantEnded(reason);
        }
        let left = self.deadline.map(|ends| ends.saturating_sub(now));
        if left.is_some_and(|left| left.is_zero()) {
            return match self.request.try_cancel() {
                Some(_) if mutated!(ExpiredWaiterGranted) => WaitPoll::Granted,
                Some(ahead) => WaitPoll::TimedOut { ahead },
                None => WaitPoll::Granted,
            };
        }
        WaitPoll::Wait(Arc::clone(waiter), left.into_iter().chain(lease_ends).min())
    }
}
