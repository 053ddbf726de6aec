//! How often the names of open files are looked at.
//!
//! Looking at each of them takes some microseconds, as long as a sync of a fast disk, and a file
//! whose state was asked for gets new timestamps with its next write. So it is left out for some
//! time after the last look: a store that syncs without a pause notices a change this much later,
//! and one that syncs now and then notices it at once.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

const INTERVAL: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
pub struct CheckInterval(Mutex<Option<Instant>>);

impl CheckInterval {
    /// Whether the names are to be looked at now.
    #[allow(clippy::disallowed_methods, reason = "only real disks are looked at, and no simulation has one")]
    pub fn is_due(&self) -> bool {
        let now = Instant::now();
        let mut last = self.0.lock();
        let is_due = last.is_none_or(|at| now.saturating_duration_since(at) >= INTERVAL);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}
