//! Where the time of one transaction goes: a stopwatch with laps.
//!
//! A commit passes through several hands. Each says at its end for what the time since the last such moment was spent, so that no
//! moment is counted twice and the clock is read once for each part.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What time is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxnPhase {
    /// Reading rows, where reads are timed.
    Read,
    /// From the commit's beginning, or a batch's that is streamed, until changes are applied.
    Apply,
    /// Waiting until what is applied, or was read, is durable.
    Sync,
}

/// See the [module](self). Scans may add to their transaction's from another thread.
#[derive(Debug, Default)]
pub(crate) struct TxnTimer {
    reading: AtomicU64,
    combining: AtomicU64,
    syncing: AtomicU64,
    /// When the last lap ended.
    last: AtomicU64,
}

impl TxnTimer {
    fn part(&self, part: TxnPhase) -> &AtomicU64 {
        match part {
            TxnPhase::Read => &self.reading,
            TxnPhase::Apply => &self.combining,
            TxnPhase::Sync => &self.syncing,
        }
    }

    /// What follows begins now.
    pub fn start(&self, now: Duration) {
        self.last.store(nanos(now), Ordering::Relaxed);
    }

    /// The time since the last lap, which ends now, was spent on this.
    pub fn lap(&self, part: TxnPhase, now: Duration) -> Duration {
        let now = nanos(now);
        let last = self.last.swap(now, Ordering::Relaxed);
        let took = now.saturating_sub(last);
        self.part(part).fetch_add(took, Ordering::Relaxed);
        Duration::from_nanos(took)
    }

    /// Counts what was measured apart from laps.
    pub fn add(&self, part: TxnPhase, took: Duration) {
        self.part(part).fetch_add(nanos(took), Ordering::Relaxed);
    }

    /// When the last lap ended.
    pub fn last(&self) -> Duration {
        Duration::from_nanos(self.last.load(Ordering::Relaxed))
    }

    pub fn on(&self, part: TxnPhase) -> Duration {
        Duration::from_nanos(self.part(part).load(Ordering::Relaxed))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
