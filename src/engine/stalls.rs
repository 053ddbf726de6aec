//! Writes that had to wait because the tables had fallen behind.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::WriteStallStats;

/// All waits of a store.
#[derive(Debug, Default)]
pub struct StallTracker(Mutex<StallTotals>);

#[derive(Debug, Default)]
struct StallTotals {
    writes: u64,
    /// How long it took whenever there was one waiting, until there was none.
    over: Duration,
    waiting: u32,
    /// Since when there has been one.
    since: Option<Instant>,
}

impl StallTracker {
    /// A write begins to wait, until what is answered is dropped.
    pub fn begin(&self) -> Waits<'_> {
        self.0.lock().begin(now());
        Waits(self)
    }

    pub fn read(&self) -> WriteStallStats {
        self.0.lock().read(now())
    }
}

/// See [`StallTracker::begin`].
pub struct Waits<'a>(&'a StallTracker);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.0.lock().end(now());
    }
}

impl StallTotals {
    fn begin(&mut self, now: Instant) {
        self.writes += 1;
        self.waiting += 1;
        self.since.get_or_insert(now);
    }

    fn end(&mut self, now: Instant) {
        self.waiting = self.waiting.saturating_sub(1);
        if self.waiting == 0 {
            self.over = self.read(now).total;
            self.since = None;
        }
    }

    fn read(&self, now: Instant) -> WriteStallStats {
        let current = self.since.map(|since| now.saturating_duration_since(since));
        WriteStallStats { count: self.writes, total: self.over + current.unwrap_or_default(), current }
    }
}

#[allow(clippy::disallowed_methods, reason = "the time that a disk takes is real, whatever the store's runtime")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_counted_each_and_their_time_once() {
        let (stalls, from) = (StallTracker::default(), now());
        let at = |seconds| from + Duration::from_secs(seconds);
        let told = |seconds| {
            let WriteStallStats { count: writes, total: waited, current: now } = stalls.0.lock().read(at(seconds));
            (writes, waited.as_secs(), now.map(|now| now.as_secs()))
        };
        assert_eq!(told(0), (0, 0, None));
        stalls.0.lock().begin(at(1));
        assert_eq!(told(3), (1, 2, Some(2)));
        stalls.0.lock().begin(at(4));
        stalls.0.lock().end(at(5));
        assert_eq!(told(6), (2, 5, Some(5)));
        stalls.0.lock().end(at(7));
        assert_eq!(told(9), (2, 6, None));
        stalls.0.lock().begin(at(10));
        assert_eq!(told(11), (3, 7, Some(1)));
    }

    #[test]
    fn a_wait_ends_with_the_write_however_that_ends() {
        let stalls = StallTracker::default();
        let waits = stalls.begin();
        assert!(stalls.read().current.is_some());
        drop(waits);
        assert_eq!((stalls.read().count, stalls.read().current), (1, None));
    }
}
