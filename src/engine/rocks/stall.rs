//! How long a write that RocksDB refuses waits, and when it has waited in vain.
//!
//! RocksDB refuses writes while flushing and compacting lag behind. On a healthy disk that ends by itself, however long it takes.
//! On a full one it may never end: a compaction that finds no room is an error that RocksDB keeps to itself and tries to mend by
//! compacting again, every second, while all writes are refused. So it is not time that decides but what RocksDB counts: errors
//! in the background with no work done between them.

use std::time::Duration;

/// So many errors in a row with nothing done between them are the end. RocksDB rests for a second after each.
const ERRORS_MAX: u64 = 3;
/// Nothing healthy takes so long.
const WAIT_MAX: Duration = Duration::from_secs(300);

const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// What RocksDB says of its work in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Background {
    /// How often it has failed.
    pub errors: u64,
    /// Grows with every flush and compaction that is done.
    pub done: u64,
}

/// One wait of one write.
#[derive(Debug)]
pub struct Stall {
    waited: Duration,
    /// When anything was done last.
    last: Background,
}

impl Stall {
    /// Begins to wait.
    pub fn new(now: Background) -> Self {
        Self { waited: Duration::ZERO, last: now }
    }

    /// How long until the next attempt, which counts as waited.
    ///
    /// Longer and longer: where RocksDB only slows writes down, each attempt that comes too early moves the time at which
    /// one would be let through, and one every millisecond could move it for ever.
    pub fn pause(&mut self) -> Duration {
        let pause = (self.waited / 4).clamp(PAUSE_MIN, PAUSE_MAX);
        self.waited += pause;
        pause
    }

    /// Why there is no sense in waiting on, if there is none.
    pub fn is_vain(&mut self, now: Background) -> Option<&'static str> {
        if now.done != self.last.done {
            self.last = now;
        }
        if now.errors.saturating_sub(self.last.errors) >= ERRORS_MAX {
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

    fn at(errors: u64, done: u64) -> Background {
        Background { errors, done }
    }

    #[test]
    fn errors_with_nothing_done_between_them_end_the_wait() {
        let mut stall = Stall::new(at(7, 20));
        assert_eq!(stall.is_vain(at(7, 20)), None);
        assert_eq!(stall.is_vain(at(9, 20)), None);
        assert!(stall.is_vain(at(10, 20)).is_some());
    }

    #[test]
    fn errors_from_before_the_wait_do_not_count() {
        assert_eq!(Stall::new(at(1000, 20)).is_vain(at(1000, 20)), None);
    }

    #[test]
    fn a_store_that_gets_work_done_is_waited_for_in_spite_of_errors() {
        let mut stall = Stall::new(at(0, 0));
        for step in 1..100 {
            assert_eq!(stall.is_vain(at(2 * step, step)), None);
        }
    }

    #[test]
    fn a_slow_store_without_errors_is_waited_for() {
        let mut stall = Stall::new(at(0, 0));
        for _ in 0..2000 {
            assert_eq!(stall.is_vain(at(0, 0)), None);
            stall.pause();
        }
    }

    #[test]
    fn every_wait_ends() {
        let mut stall = Stall::new(at(0, 0));
        let ends = |_: &u32| {
            stall.pause();
            stall.is_vain(at(0, 0)).is_some()
        };
        assert!((0..10_000).find(ends).is_some());
    }

    #[test]
    fn pauses_grow_with_the_wait_and_stay_short() {
        let mut stall = Stall::new(at(0, 0));
        let pauses: Vec<_> = (0..100).map(|_| stall.pause()).collect();
        assert!(pauses.is_sorted());
        assert_eq!((pauses[0], pauses[99]), (PAUSE_MIN, PAUSE_MAX));
    }
}
