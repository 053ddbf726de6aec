//! Write stalls: writes that wait for the flush of the previous memtable.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::WriteStallStats;

/// The write stalls of a store.
#[derive(Debug, Default)]
pub struct StallTracker(Mutex<StallTotals>);

#[derive(Debug, Default)]
struct StallTotals {
    writes: u64,
    /// The total time of the finished stalls.
    over: Duration,
    waiting: u32,
    /// The start of the current stall.
    since: Option<Instant>,
}

impl StallTracker {
    /// Starts the stall of one write, which ends when the returned guard is dropped.
    pub fn begin(&self) -> Waits<'_> {
        self.0.lock().begin(now());
        Waits(self)
    }

    pub fn read(&self) -> WriteStallStats {
        self.0.lock().read(now())
    }
}

/// The stall of one write; dropping this ends it.
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

#[allow(clippy::disallowed_methods, reason = "disk time is real time, whatever the store's env")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_stalls_add_to_the_count_but_not_to_the_time() {
        let (stalls, from) = (StallTracker::default(), now());
        let at = |seconds| from + Duration::from_secs(seconds);
        let stats = |seconds| {
            let WriteStallStats { count, total, current } = stalls.0.lock().read(at(seconds));
            (count, total.as_secs(), current.map(|current| current.as_secs()))
        };
        assert_eq!(stats(0), (0, 0, None));
        stalls.0.lock().begin(at(1));
        assert_eq!(stats(3), (1, 2, Some(2)));
        stalls.0.lock().begin(at(4));
        stalls.0.lock().end(at(5));
        assert_eq!(stats(6), (2, 5, Some(5)));
        stalls.0.lock().end(at(7));
        assert_eq!(stats(9), (2, 6, None));
        stalls.0.lock().begin(at(10));
        assert_eq!(stats(11), (3, 7, Some(1)));
    }

    #[test]
    fn a_stall_ends_when_its_guard_is_dropped() {
        let stalls = StallTracker::default();
        let stall = stalls.begin();
        assert!(stalls.read().current.is_some());
        drop(stall);
        assert_eq!((stalls.read().count, stalls.read().current), (1, None));
    }
}
