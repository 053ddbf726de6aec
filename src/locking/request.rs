//! Requests: what a program has in hand from its asking to the end of its grant, and how it waits.
//!
//! A request that is dropped, at whatever moment, leaves nothing in the lock head: one that waits leaves the queue, one that is
//! granted, perhaps this very moment, passes the lock on.
//!
//! [`LockWait`] says for what to wait and how long, and does not wait itself, so a thread and a task wait in the same way. It is woken by
//! its grant, by the end of the store, by its [`Cancel`](super::Cancel) and, where it has come to the front of the queue after a
//! lease, to look when that will be over. Its timers are its own patience and, at the front, that lease. Nothing polls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::cancel::Expected;
use super::grant::{Grant, LostReason};
use super::heads::Heads;
use crate::runtime::Runtime;
use crate::waiter::Waiter;

/// See the [module](self).
pub struct Request {
    heads: Arc<Heads>,
    grant: Arc<Grant>,
    /// Whether the grant takes the place of a shared one.
    converts: bool,
    left: AtomicBool,
}

impl Request {
    /// `converts` says that the grant takes the place of a shared one.
    pub fn new(heads: &Arc<Heads>, grant: Arc<Grant>, converts: bool) -> Self {
        Self { heads: Arc::clone(heads), grant, converts, left: AtomicBool::new(false) }
    }

    pub fn grant(&self) -> &Arc<Grant> {
        &self.grant
    }

    pub fn heads(&self) -> &Arc<Heads> {
        &self.heads
    }

    /// Ends the grant. The answer is whether it was this call.
    pub fn release(&self) -> bool {
        self.release_at(Duration::ZERO)
    }

    /// The same, of what may be a lease that is over.
    pub fn release_at(&self, now: Duration) -> bool {
        !self.left.swap(true, Ordering::AcqRel) && self.heads.release(&self.grant, now)
    }

    /// Leaves the grant to itself: a lease that goes on without a guard.
    pub fn forget(&self) {
        self.left.store(true, Ordering::Release);
    }

    /// Takes the request back if it still waits; else it is granted, and the answer.
    #[cfg(feature = "tokio")]
    pub fn withdraw(self) -> Option<Self> {
        if self.give_up().is_none() {
            return Some(self);
        }
        self.cancelled();
        None
    }

    fn cancelled(&self) {
        // What is lost was counted as that.
        if self.heads.closed().is_none() && !self.grant.has_ended() {
            self.heads.counters.cancelled(self.grant.mode);
        }
    }

    /// Takes the request back if it still waits; the answer is how many were before it in the queue. `None` when it is granted.
    fn give_up(&self) -> Option<usize> {
        let ahead =
            if self.converts { self.heads.cancel_upgrade(&self.grant) } else { self.heads.give_up(&self.grant) };
        if ahead.is_some() {
            self.left.store(true, Ordering::Release);
        }
        ahead
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if self.left.load(Ordering::Acquire) {
            return;
        }
        if self.give_up().is_none() {
            self.release();
        } else {
            self.cancelled();
        }
    }
}

/// See the [module](self).
pub struct LockWait {
    pub request: Request,
    began: Duration,
    /// When patience is over; `None` for never.
    ends: Option<Duration>,
    cancel: Option<Expected>,
}

/// What is to be done before [`LockWait::step`] is called again, or how the wait has ended.
pub enum WaitStep {
    Granted,
    /// Waiting until notified, or for so long.
    Wait(Arc<Waiter>, Option<Duration>),
    TimedOut {
        ahead: usize,
    },
    Cancelled,
    Closed(String),
    /// What was to be converted is lost.
    Lost(LostReason),
}

impl LockWait {
    pub fn new(request: Request, began: Duration, at_most: Option<Duration>, cancel: Option<&super::Cancel>) -> Self {
        let cancel = cancel.zip(request.grant.waiter()).map(|(cancel, waiter)| cancel.expect(waiter));
        Self { request, began, ends: at_most.map(|at_most| began.saturating_add(at_most)), cancel }
    }

    pub fn into_request(self) -> Request {
        self.request
    }

    /// This moment; for what was granted when it was asked for, that one.
    pub fn now(&self, runtime: &dyn Runtime) -> Duration {
        if self.request.grant.waiter().is_some() { runtime.elapsed() } else { self.began }
    }

    pub fn waited(&self, now: Duration) -> Duration {
        now.saturating_sub(self.began)
    }

    /// The next thing to do, as of `now`.
    pub fn step(&self, now: Duration) -> WaitStep {
        let Request { heads, grant, .. } = &self.request;
        let Some(waiter) = grant.waiter().filter(|_| !grant.is_granted()) else { return WaitStep::Granted };
        // What comes after this ends the next wait.
        waiter.rearm();
        if grant.is_granted() {
            return WaitStep::Granted;
        }
        if let Some(why) = heads.closed() {
            return WaitStep::Closed(why.into());
        }
        if let Some(reason) = grant.lost(now) {
            return WaitStep::Lost(reason);
        }
        if self.cancel.as_ref().is_some_and(Expected::is_cancelled) {
            if self.request.give_up().is_none() {
                return WaitStep::Granted;
            }
            self.request.cancelled();
            return WaitStep::Cancelled;
        }
        let lease_ends = heads.end_leases_before(grant, now);
        if grant.is_granted() {
            return WaitStep::Granted;
        }
        // The lease that was over may have been the one that is to be converted.
        if let Some(reason) = grant.lost(now) {
            return WaitStep::Lost(reason);
        }
        let left = self.ends.map(|ends| ends.saturating_sub(now));
        if left.is_some_and(|left| left.is_zero()) {
            return match self.request.give_up() {
                Some(_) if mutated!(ExpiredWaiterGranted) => WaitStep::Granted,
                Some(ahead) => WaitStep::TimedOut { ahead },
                None => WaitStep::Granted,
            };
        }
        WaitStep::Wait(Arc::clone(waiter), left.into_iter().chain(lease_ends).min())
    }
}
