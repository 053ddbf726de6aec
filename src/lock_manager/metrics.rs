//! Statistics of named locks. Row locks are not counted here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::mode::LockMode;
use crate::observe::{Histogram, LatencyHistogram, Metrics};

/// Counters of named locks since the store was opened. Row locks are not included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct LockStats {
    /// Exclusive requests.
    pub exclusive: LockModeStats,
    /// Shared requests.
    pub shared: LockModeStats,
    /// Semaphore requests.
    pub semaphore: LockModeStats,
    /// Upgrades that failed with [`ErrorKind::Deadlock`](crate::ErrorKind::Deadlock).
    pub deadlocks: u64,
    /// Leases that expired. An expired lease is counted when it is ended: by the next request or
    /// the first waiter of the name, by the release of its guard, or a day later by the background
    /// worker.
    pub leases_expired: u64,
    /// Grants that [`Store::force_unlock`](crate::Store::force_unlock) ended.
    pub force_unlocked: u64,
    /// Grants that followed an expired lease.
    pub leases_taken_over: u64,
    /// Grants that were lost: their lease expired, with or without a guard, or
    /// [`Store::force_unlock`](crate::Store::force_unlock) ended them. An expired lease counts when
    /// it is ended. Grants that [`Store::release_lock`](crate::Store::release_lock) or the end of
    /// the store ends do not count.
    pub lost: u64,
    /// Wake-ups of waiting requests: one when a request is granted, when the store ends or, for a
    /// conversion, when its shared grant ends.
    pub wakeups: u64,
}

/// [`LockStats`] of one mode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct LockModeStats {
    /// Granted requests, including conversions.
    pub acquired: u64,
    /// Requests that had to wait, whatever the result.
    pub waits: u64,
    /// Requests that timed out, and those with
    /// [`LockWaitPolicy::NoWait`](crate::LockWaitPolicy::NoWait) that were not granted immediately.
    pub timeouts: u64,
    /// Requests that were cancelled, or whose future was dropped.
    pub cancelled: u64,
    /// Wait times of requests that waited and were granted.
    pub wait_time: LatencyHistogram,
}

impl LockStats {
    /// Granted requests of all modes.
    pub fn acquired(&self) -> u64 {
        self.exclusive.acquired + self.shared.acquired + self.semaphore.acquired
    }
}

/// The counters of [`LockStats`].
pub struct LockMetrics {
    modes: [ModeMetrics; 3],
    deadlocks: AtomicU64,
    expired: AtomicU64,
    forced: AtomicU64,
    taken_over: AtomicU64,
    wakes: AtomicU64,
    store_metrics: Arc<Metrics>,
}

struct ModeMetrics {
    acquired: AtomicU64,
    waited: AtomicU64,
    timed_out: AtomicU64,
    cancelled: AtomicU64,
    waiting: Histogram,
}

impl ModeMetrics {
    fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            acquired: zero(),
            waited: zero(),
            timed_out: zero(),
            cancelled: zero(),
            waiting: Histogram::unexported(),
        }
    }

    fn snapshot(&self) -> LockModeStats {
        LockModeStats {
            acquired: read(&self.acquired),
            waits: read(&self.waited),
            timeouts: read(&self.timed_out),
            cancelled: read(&self.cancelled),
            wait_time: self.waiting.snapshot(),
        }
    }
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl LockMetrics {
    pub fn new(shown: Arc<Metrics>) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            modes: [ModeMetrics::new(), ModeMetrics::new(), ModeMetrics::new()],
            deadlocks: zero(),
            expired: zero(),
            forced: zero(),
            taken_over: zero(),
            wakes: zero(),
            store_metrics: shown,
        }
    }

    fn for_mode(&self, mode: LockMode) -> &ModeMetrics {
        let [exclusive, shared, semaphore] = &self.modes;
        match mode {
            LockMode::Exclusive => exclusive,
            LockMode::Shared => shared,
            LockMode::Semaphore(_) => semaphore,
        }
    }

    pub fn acquired(&self, mode: LockMode) {
        add(&self.for_mode(mode).acquired);
        self.store_metrics.locks_acquired.add(1);
    }

    pub fn wait_started(&self, mode: LockMode) {
        add(&self.for_mode(mode).waited);
        self.store_metrics.lock_waits.add(1);
    }

    pub fn wait_granted(&self, mode: LockMode, time: Duration) {
        self.for_mode(mode).waiting.record(time);
        self.store_metrics.lock_wait.record(time);
    }

    pub fn timed_out(&self, mode: LockMode) {
        add(&self.for_mode(mode).timed_out);
        self.store_metrics.lock_timeouts.add(1);
    }

    pub fn cancelled(&self, mode: LockMode) {
        add(&self.for_mode(mode).cancelled);
    }

    pub fn deadlock(&self) {
        add(&self.deadlocks);
    }

    pub fn expired(&self) {
        add(&self.expired);
    }

    pub fn forced(&self) {
        add(&self.forced);
    }

    pub fn taken_over(&self) {
        add(&self.taken_over);
    }

    pub fn lost(&self, grants: usize) {
        self.store_metrics.locks_lost.add(grants as u64);
    }

    pub fn wakeup(&self) {
        add(&self.wakes);
    }

    pub fn snapshot(&self) -> LockStats {
        let [exclusive, shared, semaphore] = &self.modes;
        LockStats {
            exclusive: exclusive.snapshot(),
            shared: shared.snapshot(),
            semaphore: semaphore.snapshot(),
            deadlocks: read(&self.deadlocks),
            leases_expired: read(&self.expired),
            force_unlocked: read(&self.forced),
            leases_taken_over: read(&self.taken_over),
            lost: self.store_metrics.locks_lost.get(),
            wakeups: read(&self.wakes),
        }
    }
}
