//! Counters of what a store has done since it was opened.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// See [`Stats`](crate::Stats) for what each counts.
#[derive(Debug, Default)]
pub struct Counters {
    pub begun: Counter,
    pub commits_one_phase: Counter,
    pub commits_two_phase: Counter,
    /// Large transactions committed, the rows that they have locked, and of those whose lock is gone since.
    pub commits_streamed: Counter,
    pub rows_streamed: Counter,
    pub rows_ended: Counter,
    pub conflicts: Counter,
    pub retries: Counter,
    pub unadmitted: Counter,
    pub rolled_forward: Counter,
    pub rolled_back: Counter,
    pub swept: Counter,
    pub collected: Counter,
    pub versions_collected: Counter,
}
