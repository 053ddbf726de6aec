//! Retries of a stalled write, and when to give up.
//!
//! RocksDB rejects writes while flushes and compactions lag. On a healthy disk such a stall ends on
//! its own, however long it takes. On a full disk the stall may never end: RocksDB does not report
//! a compaction that runs out of space, but retries it every second and rejects all writes
//! meanwhile. So a long stall alone is no reason to give up. RocksDB's counters show more: the wait
//! ends after some background errors with no progress between them, or in any case after five
//! minutes.

use std::time::Duration;

/// After this number of background errors without progress between them the wait ends. RocksDB
/// pauses for a second after each.
const ERRORS_WITHOUT_PROGRESS_MAX: u64 = 3;
/// The limit of the whole wait, even if there is progress.
const WAIT_MAX: Duration = Duration::from_secs(300);

const RETRY_DELAY_MIN: Duration = Duration::from_millis(1);
const RETRY_DELAY_MAX: Duration = Duration::from_millis(100);

/// RocksDB's counters of background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackgroundProgress {
    /// The number of failed flushes and compactions.
    pub errors: u64,
    /// The sum of the super-version numbers of all columns, which grows with each completed flush
    /// and compaction.
    pub installed_versions: u64,
}

/// The wait of one stalled write.
#[derive(Debug)]
pub struct WriteRetry {
    waited: Duration,
    /// The counters at the time of the last known progress.
    last: BackgroundProgress,
}

impl WriteRetry {
    /// Starts the wait.
    pub fn new(now: BackgroundProgress) -> Self {
        Self { waited: Duration::ZERO, last: now }
    }

    /// Sleeps until the next attempt.
    #[allow(clippy::disallowed_methods, reason = "disk time is real time, whatever the store's env")]
    pub fn sleep(&mut self) {
        std::thread::sleep(self.next_delay());
    }

    /// Returns the delay until the next attempt, and adds this delay to the time waited.
    ///
    /// Delays grow, because attempts every millisecond could fail forever: when RocksDB only slows
    /// writes down, each attempt that it rejects postpones the time from which it accepts one.
    fn next_delay(&mut self) -> Duration {
        let delay = (self.waited / 4).clamp(RETRY_DELAY_MIN, RETRY_DELAY_MAX);
        self.waited += delay;
        delay
    }

    /// The reason to give up, if there is one.
    pub fn give_up_reason(&mut self, now: BackgroundProgress) -> Option<&'static str> {
        if now.installed_versions != self.last.installed_versions {
            self.last = now;
        }
        if now.errors.saturating_sub(self.last.errors) >= ERRORS_WITHOUT_PROGRESS_MAX {
            Some("its flushes or compactions keep failing, as on a full disk; see the file LOG in tables/")
        } else if self.waited >= WAIT_MAX {
            Some("write stalled for more than 5 minutes")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(errors: u64, done: u64) -> BackgroundProgress {
        BackgroundProgress { errors, installed_versions: done }
    }

    #[test]
    fn errors_without_progress_end_the_wait() {
        let mut retry = WriteRetry::new(at(7, 20));
        assert_eq!(retry.give_up_reason(at(7, 20)), None);
        assert_eq!(retry.give_up_reason(at(9, 20)), None);
        assert!(retry.give_up_reason(at(10, 20)).is_some());
    }

    #[test]
    fn errors_from_before_the_wait_do_not_count() {
        assert_eq!(WriteRetry::new(at(1000, 20)).give_up_reason(at(1000, 20)), None);
    }

    #[test]
    fn errors_with_progress_do_not_end_the_wait() {
        let mut retry = WriteRetry::new(at(0, 0));
        for step in 1..100 {
            assert_eq!(retry.give_up_reason(at(2 * step, step)), None);
        }
    }

    #[test]
    fn a_stall_without_errors_does_not_end_the_wait_early() {
        let mut retry = WriteRetry::new(at(0, 0));
        for _ in 0..2000 {
            assert_eq!(retry.give_up_reason(at(0, 0)), None);
            retry.next_delay();
        }
    }

    #[test]
    fn every_wait_ends() {
        let mut retry = WriteRetry::new(at(0, 0));
        let ends = |_: &u32| {
            retry.next_delay();
            retry.give_up_reason(at(0, 0)).is_some()
        };
        assert!((0..10_000).find(ends).is_some());
    }

    #[test]
    fn delays_grow_up_to_the_maximum() {
        let mut retry = WriteRetry::new(at(0, 0));
        let delays: Vec<_> = (0..100).map(|_| retry.next_delay()).collect();
        assert!(delays.is_sorted());
        assert_eq!((delays[0], delays[99]), (RETRY_DELAY_MIN, RETRY_DELAY_MAX));
    }
}
