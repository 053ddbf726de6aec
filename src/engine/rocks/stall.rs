//! How long a write that RocksDB refuses waits, and when it has waited in vain.
//!
//! RocksDB refuses writes while flushing and compacting lag behind. On a healthy disk that ends by itself, however long it takes.
//! On a full one it may never end: a compaction that finds no room is an error that RocksDB keeps to itself and tries to mend by
//! compacting again, every second, while all writes are refused. So it is not time that decides but what RocksDB counts: errors
//! in the background with no work done between them.

use std::time::Duration;

/// So many errors in a row with nothing done between them are the end. RocksDB rests for a second after each.
const ERRORS_WITHOUT_PROGRESS_MAX: u64 = 3;
/// Nothing healthy takes so long.
const WAIT_MAX: Duration = Duration::from_secs(300);

const RETRY_DELAY_MIN: Duration = Duration::from_millis(1);
const RETRY_DELAY_MAX: Duration = Duration::from_millis(100);

/// What RocksDB says of its work in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackgroundProgress {
    /// How often it has failed.
    pub errors: u64,
    /// Grows with every flush and compaction that is done.
    pub installed_versions: u64,
}

/// One wait of one write.
#[derive(Debug)]
pub struct WriteRetry {
    waited: Duration,
    /// When anything was done last.
    last: BackgroundProgress,
}

impl WriteRetry {
    /// Begins to wait.
    pub fn new(now: BackgroundProgress) -> Self {
        Self { waited: Duration::ZERO, last: now }
    }

    /// How long until the next attempt, which counts as waited.
    ///
    /// Longer and longer: where RocksDB only slows writes down, each attempt that comes too early moves the time at which
    /// one would be let through, and one every millisecond could move it for ever.
    pub fn next_delay(&mut self) -> Duration {
        let pause = (self.waited / 4).clamp(RETRY_DELAY_MIN, RETRY_DELAY_MAX);
        self.waited += pause;
        pause
    }

    /// Why there is no sense in waiting on, if there is none.
    pub fn give_up_reason(&mut self, now: BackgroundProgress) -> Option<&'static str> {
        if now.installed_versions != self.last.installed_versions {
            self.last = now;
        }
        if now.errors.saturating_sub(self.last.errors) >= ERRORS_WITHOUT_PROGRESS_MAX {
            Some("its work in the background fails again and again, as on a full disk; its LOG says why")
        } else if self.waited >= WAIT_MAX {
            Some("for minutes")
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
    fn errors_with_nothing_done_between_them_end_the_wait() {
        let mut stall = WriteRetry::new(at(7, 20));
        assert_eq!(stall.give_up_reason(at(7, 20)), None);
        assert_eq!(stall.give_up_reason(at(9, 20)), None);
        assert!(stall.give_up_reason(at(10, 20)).is_some());
    }

    #[test]
    fn errors_from_before_the_wait_do_not_count() {
        assert_eq!(WriteRetry::new(at(1000, 20)).give_up_reason(at(1000, 20)), None);
    }

    #[test]
    fn a_store_that_gets_work_done_is_waited_for_in_spite_of_errors() {
        let mut stall = WriteRetry::new(at(0, 0));
        for step in 1..100 {
            assert_eq!(stall.give_up_reason(at(2 * step, step)), None);
        }
    }

    #[test]
    fn a_slow_store_without_errors_is_waited_for() {
        let mut stall = WriteRetry::new(at(0, 0));
        for _ in 0..2000 {
            assert_eq!(stall.give_up_reason(at(0, 0)), None);
            stall.next_delay();
        }
    }

    #[test]
    fn every_wait_ends() {
        let mut stall = WriteRetry::new(at(0, 0));
        let ends = |_: &u32| {
            stall.next_delay();
            stall.give_up_reason(at(0, 0)).is_some()
        };
        assert!((0..10_000).find(ends).is_some());
    }

    #[test]
    fn pauses_grow_with_the_wait_and_stay_short() {
        let mut stall = WriteRetry::new(at(0, 0));
        let pauses: Vec<_> = (0..100).map(|_| stall.next_delay()).collect();
        assert!(pauses.is_sorted());
        assert_eq!((pauses[0], pauses[99]), (RETRY_DELAY_MIN, RETRY_DELAY_MAX));
    }
}
