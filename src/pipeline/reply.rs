//! Where a committer finds the answer to its submission, and how the leader puts it there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::combiner::Settled;
use crate::error::{Error, ErrorKind, Result};
use crate::runtime::Runtime;
use crate::sync::Mutex;
use crate::timestamp::Timestamp;
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

    /// A slot for something applied that now waits to be durable.
    pub fn applied(runtime: &dyn Runtime, ts: Timestamp) -> Arc<Self> {
        let slot = Self::new(runtime);
        *slot.answer.lock() = Some(Ok(Settled::Applied(Some(ts))));
        slot
    }

    /// When the changes were applied, if they were.
    pub fn applied_at(&self) -> Option<Duration> {
        Some(self.applied_at.load(Ordering::Relaxed)).filter(|at| *at > 0).map(Duration::from_nanos)
    }

    /// Lets the waiting thread take the answer that is there.
    pub fn wake(&self) {
        self.waiter.notify();
    }

    /// Replaces whatever the answer was by a failure.
    pub fn fail(&self, why: Error) {
        *self.answer.lock() = Some(Err(why));
        self.wake();
    }

    /// Waits for the answer, or to be made the leader; somebody leads already.
    pub fn wait_for_leader(&self, runtime: &dyn Runtime) -> News {
        // The leader is done with it in some microseconds. The sync that a durable commit waits for then takes longer.
        runtime.give_way(&|| self.waiter.is_notified() || self.applied_at().is_some());
        if mutated!(FollowerBelieves)
            && self.applied_at().is_some()
            && let Some(answer) = self.answer.lock().take()
        {
            return News::Answer(answer);
        }
        self.sleep_until_news()
    }

    /// Waits for the answer, or to be made the leader.
    pub fn sleep_until_news(&self) -> News {
        loop {
            self.waiter.wait();
            if self.lead.swap(false, Ordering::AcqRel) {
                return News::Lead;
            }
            if let Some(answer) = self.answer.lock().take() {
                return News::Answer(answer);
            }
        }
    }

    /// Waits for the answer of something that is applied already, or that the caller has led for.
    pub fn wait(&self) -> Result<Settled> {
        loop {
            if let News::Answer(answer) = self.sleep_until_news() {
                return answer;
            }
        }
    }
}

/// What a committer that waits may hear.
pub enum News {
    /// It is to lead.
    Lead,
    /// Its submission is settled.
    Answer(Result<Settled>),
}

/// The leader's end of a slot. One that is dropped unanswered, because the leader panicked, answers that nothing is known.
pub struct Reply(Arc<Slot>);

impl Reply {
    pub fn new(slot: &Arc<Slot>) -> Self {
        Self(Arc::clone(slot))
    }

    pub fn slot(&self) -> Arc<Slot> {
        Arc::clone(&self.0)
    }

    pub fn is_for(&self, slot: &Arc<Slot>) -> bool {
        Arc::ptr_eq(&self.0, slot)
    }

    /// Notes when the changes were applied, before they are answered.
    pub fn note_applied(&self, now: Duration) {
        self.0.applied_at.store(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub fn hand_over_lead(&self) {
        self.0.lead.store(true, Ordering::Release);
        self.0.wake();
    }

    pub fn answer(&self, answer: Result<Settled>) {
        self.answer_quietly(answer);
        self.0.wake();
    }

    /// Leaves the answer to be handed over when it is durable.
    pub fn answer_quietly(&self, answer: Result<Settled>) {
        self.0.answered.store(true, Ordering::Release);
        *self.0.answer.lock() = Some(answer);
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
