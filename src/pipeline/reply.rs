//! Where a committer finds the answer to its submission, and how the leader puts it there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::submission::SubmitResult;
use crate::error::{Error, ErrorKind, Result};
use crate::runtime::Env;
use crate::sync::Mutex;
use crate::waiter::Waiter;

/// Where a submission's answer appears.
pub struct ReplySlot {
    answer: Mutex<Option<Result<SubmitResult>>>,
    sent: AtomicBool,
    leads_next: AtomicBool,
    /// By the runtime's clock, in nanoseconds; zero for what was not.
    applied_at: AtomicU64,
    waiter: Waiter,
}

impl ReplySlot {
    pub fn new(runtime: &dyn Env) -> Arc<Self> {
        Arc::new(Self {
            answer: Mutex::new(None),
            sent: AtomicBool::new(false),
            leads_next: AtomicBool::new(false),
            applied_at: AtomicU64::new(0),
            waiter: Waiter::new(runtime),
        })
    }

    /// When the changes were applied, if they were.
    pub fn applied_at(&self) -> Option<Duration> {
        Some(self.applied_at.load(Ordering::Relaxed)).filter(|at| *at > 0).map(Duration::from_nanos)
    }

    /// Waits for the answer. `None`: the caller is to lead first.
    pub fn wait(&self, runtime: &dyn Env) -> Option<Result<SubmitResult>> {
        // The leader answers in some microseconds.
        runtime.spin_until(&|| self.waiter.is_notified());
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

/// The leader's end of a slot. One that is dropped unanswered, because the leader panicked, answers that nothing is known.
pub struct ReplySender(Arc<ReplySlot>);

impl ReplySender {
    pub fn new(slot: &Arc<ReplySlot>) -> Self {
        Self(Arc::clone(slot))
    }

    /// Notes when the changes were applied, before they are answered.
    pub fn note_applied(&self, now: Duration) {
        self.0.applied_at.store(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub fn transfer_leadership(&self) {
        self.0.leads_next.store(true, Ordering::Release);
        self.0.waiter.notify();
    }

    pub fn send(&self, answer: Result<SubmitResult>) {
        self.0.sent.store(true, Ordering::Release);
        *self.0.answer.lock() = Some(answer);
        self.0.waiter.notify();
    }

    pub fn send_error(&self, why: Error) {
        self.send(Err(why));
    }
}

impl Drop for ReplySender {
    fn drop(&mut self) {
        if !self.0.sent.load(Ordering::Acquire) {
            self.send_error(
                ErrorKind::Undetermined("the thread that led the commit pipeline has panicked".into()).into(),
            );
        }
    }
}
