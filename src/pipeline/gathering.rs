//! Gathering: a sync waits a moment for those whom the last one has let go.
//!
//! Clients that commit one transaction after the other fall into two halves: while one half waits for a sync, the other commits
//! and waits for the next, so that each sync serves half of them. When a sync ends, those whom it served will mostly be back
//! within a fraction of the time that a sync takes. So the next one is held back until as many are waiting as did before, or
//! half of a sync's time is over; then it serves all of them. `commit_delay` of `PostgreSQL` is the same idea with fixed numbers.
//!
//! Where so many commit that they are [deferred](super::queue) nobody is waited for: they would not be counted.
//!
//! Where they do not come back, as clients do that think between two transactions, waiting is in vain. Then it is given up
//! for a while, each time for twice as many syncs.

use std::time::Duration;

/// A disk that has stood still for seconds is no reason to stand still for longer.
const HOLD_MAX: Duration = Duration::from_millis(5);
/// For so many syncs at most waiting is given up.
const SKIPS_MAX: u32 = 64;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Gathering {
    /// How many are awaited.
    expected: usize,
    /// Until when.
    until: Duration,
    /// Whether anybody was told to wait.
    held: bool,
    /// For so many syncs nobody is waited for.
    skips: u32,
    /// How many these were when waiting was in vain last.
    skipped: u32,
}

impl Gathering {
    /// How long to hold the next sync back while so many wait for it; `None` if not at all.
    pub fn hold(&mut self, now: Duration, waiting: usize) -> Option<Duration> {
        let left = self.until.saturating_sub(now);
        let holds = !self.is_complete(waiting) && !left.is_zero();
        self.held |= holds;
        holds.then_some(left)
    }

    /// Whether all who are awaited are waiting.
    pub fn is_complete(&self, waiting: usize) -> bool {
        waiting >= self.expected
    }

    /// Notes that a sync begins for so many.
    pub fn begins(&mut self, waiting: usize) {
        if std::mem::take(&mut self.held) {
            let in_vain = waiting < self.expected;
            self.skipped = if in_vain { (self.skipped * 2).clamp(1, SKIPS_MAX) } else { 0 };
            self.skips = self.skipped;
        }
        self.expected = 0;
    }

    /// Notes that a sync that took so long has ended. It has served so many, and others wait.
    pub fn ended(&mut self, now: Duration, took: Duration, served: usize, waiting: usize) {
        if self.skips > 0 {
            self.skips -= 1;
        } else {
            self.expected = served + waiting;
            self.until = now + (took / 2).min(HOLD_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYNC: Duration = Duration::from_micros(200);

    fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn a_client_alone_waits_for_nobody() {
        let mut gathering = Gathering::default();
        for turn in 1..10 {
            let now = micros(turn * 250);
            assert_eq!(gathering.hold(now, 1), None);
            gathering.begins(1);
            gathering.ended(now + SYNC, SYNC, 1, 0);
        }
    }

    #[test]
    fn those_who_were_served_and_those_who_wait_are_waited_for_but_not_long() {
        let mut gathering = Gathering::default();
        gathering.begins(2);
        gathering.ended(micros(1000), SYNC, 2, 1);
        assert_eq!(gathering.hold(micros(1000), 1), Some(micros(100)));
        assert_eq!(gathering.hold(micros(1040), 2), Some(micros(60)));
        assert_eq!(gathering.hold(micros(1050), 3), None);
        assert_eq!(gathering.hold(micros(1100), 2), None);
    }

    #[test]
    fn nobody_is_waited_for_as_long_as_a_disk_that_stood_still() {
        let mut gathering = Gathering::default();
        gathering.begins(2);
        gathering.ended(micros(0), Duration::from_secs(4), 2, 0);
        assert_eq!(gathering.hold(micros(0), 1), Some(HOLD_MAX));
    }

    #[test]
    fn who_does_not_come_back_is_waited_for_more_and_more_rarely_until_all_do() {
        let mut gathering = Gathering::default();
        let mut now = Duration::ZERO;
        let mut round = |gathering: &mut Gathering, come: usize| {
            let held = gathering.hold(now, 1).is_some();
            now += if held && come < 2 { SYNC / 2 } else { Duration::ZERO };
            assert_eq!(gathering.hold(now, come), None);
            gathering.begins(come);
            now += SYNC;
            gathering.ended(now, SYNC, 2, 0);
            held
        };
        round(&mut gathering, 2);
        let held: Vec<bool> = (0..400).map(|_| round(&mut gathering, 1)).collect();
        let at: Vec<usize> = held.iter().enumerate().filter_map(|(at, held)| held.then_some(at)).collect();
        assert_eq!(at[..5], [0, 2, 5, 10, 19]);
        assert!(at.windows(2).all(|pair| pair[1] - pair[0] <= SKIPS_MAX as usize + 1), "{at:?}");
        assert!(at.len() < 15, "{at:?}");
        let held: Vec<bool> = (0..100).map(|_| round(&mut gathering, 2)).collect();
        assert!(held[SKIPS_MAX as usize + 1..].iter().all(|held| *held), "{held:?}");
    }
}
