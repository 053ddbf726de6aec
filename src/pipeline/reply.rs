//! Where a committer finds the answer to its submission, and how the leader puts it there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::combiner::Settled;
use crate::error::{Error, ErrorKind, Result};
use crate::runtime::Runtime;
use crate::sync::Mutex;
use crate::waiter::Waiter;

/// Where a submission's answer appears.
pub struct Slot {
    answer: Mutex<Option<Result<Settled>>>,
    answered: AtomicBool,
    lead: AtomicBool,
    /// By the runtime's clock, in nanoseconds; zero for what was not.
    applied_at: AtomicU64,
    waiter: Waiter,
}

impl Slot {
    pub fn new(runtime: &dyn Runtime) -> Arc<Self> {
        Arc::new(Self {
            answer: Mutex::new(None),
            answered: AtomicBool::new(false),
            lead: AtomicBool::new(false),
            applied_at: AtomicU64::new(0),
            waiter: Waiter::new(runtime),
        })
    }

    /// When the changes were applied, if they were.
    pub fn applied_at(&self) -> Option<Duration> {
        Some(self.applied_at.load(Ordering::Relaxed)).filter(|at| *at > 0).map(Duration::from_nanos)
    }

    /// Waits for the answer. `None`: the caller is to lead first.
    pub fn wait(&self, runtime: &dyn Runtime) -> Option<Result<Settled>> {
        // The leader answers in some microseconds.
        runtime.give_way(&|| self.waiter.is_notified());
        loop {
            self.waiter.wait();
            if self.lead.swap(false, Ordering::AcqRel) {
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
pub struct Reply(Arc<Slot>);

impl Reply {
    pub fn new(slot: &Arc<Slot>) -> Self {
        Self(Arc::clone(slot))
    }

    /// Notes when the changes were applied, before they are answered.
    pub fn note_applied(&self, now: Duration) {
        self.0.applied_at.store(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub fn hand_over_lead(&self) {
        self.0.lead.store(true, Ordering::Release);
        self.0.waiter.notify();
    }

    pub fn answer(&self, answer: Result<Settled>) {
        self.0.answered.store(true, Ordering::Release);
        *self.0.answer.lock() = Some(answer);
        self.0.waiter.notify();
    }

    pub fn fail(&self, why: Error) {
        self.answer(Err(why));
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.0.answered.load(Ordering::Acquire) {
            self.fail(ErrorKind::Undetermined("the thread that led the commit pipeline has panicked".into()).into());
        }
    }
}
