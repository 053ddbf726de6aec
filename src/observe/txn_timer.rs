//! The time of one transaction by phase: a stopwatch with laps.
//!
//! Each stage of a commit charges the time since the previous lap to its phase. So no time counts
//! twice, and the clock is read once for each phase.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A phase of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxnPhase {
    /// Reads of rows; measured only with the option `track_read_timing`.
    Read,
    /// From the start of a commit, or of a large transaction's batch, until its changes are
    /// applied.
    Apply,
    /// The wait until what was applied or read is durable.
    Sync,
}

/// See the [module](self). The fields are atomic, because a scan may run on another thread than its
/// transaction.
#[derive(Debug, Default)]
pub(crate) struct TxnTimer {
    reading: AtomicU64,
    combining: AtomicU64,
    syncing: AtomicU64,
    /// When the present lap began.
    last: AtomicU64,
}

impl TxnTimer {
    fn part(&self, phase: TxnPhase) -> &AtomicU64 {
        match phase {
            TxnPhase::Read => &self.reading,
            TxnPhase::Apply => &self.combining,
            TxnPhase::Sync => &self.syncing,
        }
    }

    /// Starts the first lap.
    pub fn start(&self, now: Duration) {
        self.last.store(nanos(now), Ordering::Relaxed);
    }

    /// Ends a lap: charges its time to this phase, and returns that time.
    pub fn lap(&self, phase: TxnPhase, now: Duration) -> Duration {
        let now = nanos(now);
        let last = self.last.swap(now, Ordering::Relaxed);
        let took = now.saturating_sub(last);
        self.part(phase).fetch_add(took, Ordering::Relaxed);
        Duration::from_nanos(took)
    }

    /// Adds time that was measured outside of laps.
    pub fn add(&self, phase: TxnPhase, took: Duration) {
        self.part(phase).fetch_add(nanos(took), Ordering::Relaxed);
    }

    /// When the present lap began: at the end of the lap before, or at [`TxnTimer::start`].
    pub fn last(&self) -> Duration {
        Duration::from_nanos(self.last.load(Ordering::Relaxed))
    }

    /// Total time of a phase.
    pub fn on(&self, phase: TxnPhase) -> Duration {
        Duration::from_nanos(self.part(phase).load(Ordering::Relaxed))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
