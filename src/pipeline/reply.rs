//! The reply slot of a submission: the leader sends the result, the committer waits for it.
//!
//! Each slot has its own waiter, so a reply wakes one thread. The leader replies within
//! microseconds, so the committer yields a few times before it sleeps: a sleep with its wake-up
//! costs as much as a transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::submission::SubmitResult;
use crate::env::Env;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;
use crate::waiter::Waiter;

/// The committer's end of a slot.
pub struct ReplySlot {
    answer: Mutex<Option<Result<SubmitResult>>>,
    sent: AtomicBool,
    leads_next: AtomicBool,
    /// When the changes were applied, by the monotonic clock, in nanoseconds; 0 if they were not.
    applied_at: AtomicU64,
    waiter: Waiter,
}

impl ReplySlot {
    pub fn new(env: &dyn Env) -> Arc<Self> {
        Arc::new(Self {
            answer: Mutex::new(None),
            sent: AtomicBool::new(false),
            leads_next: AtomicBool::new(false),
            applied_at: AtomicU64::new(0),
            waiter: Waiter::new(env),
        })
    }

    /// When the changes were applied, if they were.
    pub fn applied_at(&self) -> Option<Duration> {
        Some(self.applied_at.load(Ordering::Relaxed)).filter(|at| *at > 0).map(Duration::from_nanos)
    }

    /// Waits for the result. `None`: leadership is transferred to the caller, which must run the
    /// leader's rounds and then wait again.
    pub fn wait(&self, env: &dyn Env) -> Option<Result<SubmitResult>> {
        env.yield_until(&|| self.waiter.is_notified());
        loop {
            self.waiter.wait();
            if self.leads_next.swap(false, Ordering::AcqRel) {
                return None;
            }
            let answer = self.answer.lock().take();
            if answer.is_some() {
                return answer;
            }
        }
    }
}

/// The leader's end of a slot. If the sender is dropped without a reply, because the leader has
/// panicked in the round that took the submission, the committer gets `Undetermined`.
pub struct ReplySender(Arc<ReplySlot>);

impl ReplySender {
    pub fn new(slot: &Arc<ReplySlot>) -> Self {
        Self(Arc::clone(slot))
    }

    /// Records when the changes were applied. Must be called before [`ReplySender::send`].
    pub fn note_applied(&self, now: Duration) {
        self.0.applied_at.store(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub fn transfer_leadership(&self) {
        self.0.leads_next.store(true, Ordering::Release);
        yield_point!();
        self.0.waiter.notify();
    }

    pub fn send(&self, answer: Result<SubmitResult>) {
        self.0.sent.store(true, Ordering::Release);
        *self.0.answer.lock() = Some(answer);
        self.0.waiter.notify();
    }

    pub fn send_error(&self, error: Error) {
        self.send(Err(error));
    }
}

impl Drop for ReplySender {
    fn drop(&mut self) {
        if !self.0.sent.load(Ordering::Acquire) {
            self.send_error(ErrorKind::Undetermined("the commit leader panicked".into()).into());
        }
    }
}
