//! The timestamp oracle: hands out unique, increasing timestamps, across restarts and clock steps.
//!
//! As in Percolator and TiKV's TSO, a durable high-water mark is at or above every timestamp handed
//! out. The timestamps up to the mark, which the oracle may hand out, are the *reservation*. After
//! a restart the oracle starts above the mark, so no timestamp is handed out twice, whatever the
//! clock shows. A log sync extends the reservation, well before it is used up.
//!
//! # Timestamps and the wall clock
//!
//! If the clock is ahead of the reservation, as after a pause, timestamps lag behind the clock
//! until the next extension is durable. This is harmless as long as only the order of timestamps
//! matters. With history their time matters, too: an oracle that [tracks the wall
//! clock](LocalOracle::track_wall_clock) hands out nothing until the extension is durable.
//!
//! A clock that is set back is ignored. If the clock jumps forward, each extension of the
//! reservation follows it by at most [`CLOCK_JUMP_MAX_MS`], so one wrong reading does not move the
//! store years ahead.
//!
//! After a process was killed, timestamps lead the clock, because the next incarnation starts at
//! the end of the last reservation. Each incarnation that is killed before the clock has caught up
//! adds another reservation to the lead.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::engine::{Engine, EngineError};
use crate::timestamp::Timestamp;

/// How far ahead of the clock timestamps are reserved, in milliseconds. The span is short, because
/// after a kill timestamps lead the clock by the unused reservation. Frequent extensions are cheap,
/// because each is part of a log sync.
pub const RESERVATION_MS: u64 = 3_000;
/// If the clock is ahead of the newest timestamp, one extension of the reservation follows it by at
/// most this time, in milliseconds.
pub const CLOCK_JUMP_MAX_MS: u64 = 24 * 3_600_000;

/// Whether the timestamp is within [`CLOCK_JUMP_MAX_MS`] of the greatest possible one, so that a
/// store has no room for reservations.
pub fn is_exhausted(ts: Timestamp) -> bool {
    Timestamp::from_millis(ts.millis().saturating_add(CLOCK_JUMP_MAX_MS)) == Timestamp::MAX
}

/// The key of the high-water mark in the meta column.
pub(crate) const HIGH_WATER_KEY: &str = "oracle";

/// `LocalOracle::last` after the close. This timestamp has no successor, so none is handed out.
const CLOSED_TS: Timestamp = Timestamp::MAX;

/// The high-water mark stored in an engine: no timestamp above it was handed out.
pub(crate) fn read_high_water(engine: &dyn Engine) -> Result<Timestamp, EngineError> {
    let Some(bytes) = engine.get_meta(HIGH_WATER_KEY)? else { return Ok(Timestamp::ZERO) };
    let number = bytes.try_into().map(u64::from_be_bytes);
    let damaged = |_| EngineError::Corruption("corrupt timestamp high-water mark".into());
    number.map(Timestamp::from_u64).map_err(damaged)
}

/// An oracle in this process. The caller makes each high-water mark durable.
#[derive(Debug)]
pub struct LocalOracle {
    last: AtomicU64,
    reserved_until: AtomicU64,
    tracks_wall_clock: AtomicBool,
}

impl LocalOracle {
    /// An oracle that starts above `high_water`. It hands out nothing before
    /// [`LocalOracle::reserve_until`] is called.
    pub fn new(high_water: Timestamp) -> Self {
        let high_water = || AtomicU64::new(high_water.to_u64());
        Self { last: high_water(), reserved_until: high_water(), tracks_wall_clock: AtomicBool::new(false) }
    }

    /// From this call on timestamps never lag behind the clock, unless the clock jumps forward by
    /// more than [`CLOCK_JUMP_MAX_MS`].
    pub fn track_wall_clock(&self) {
        self.tracks_wall_clock.store(true, Ordering::Release);
    }

    /// The first high-water mark to make durable. [`CLOCK_JUMP_MAX_MS`] does not limit this mark,
    /// because the clock may have moved by any distance while the store was closed.
    pub fn first_reservation(&self, unix_millis: u64) -> Timestamp {
        Timestamp::from_millis(unix_millis.max(self.last_issued().millis()).saturating_add(RESERVATION_MS))
    }

    /// The high-water mark to make durable next.
    pub fn next_reservation(&self, unix_millis: u64) -> Timestamp {
        let last = self.last_issued();
        if last == CLOSED_TS {
            // A sync that is in progress during the close writes the returned mark. So the mark
            // that is already durable is returned: a greater one would make the next incarnation
            // skip timestamps.
            return Timestamp::from_u64(self.reserved_until.load(Ordering::Acquire));
        }
        let last = last.millis();
        let clock = unix_millis.clamp(last, last.saturating_add(CLOCK_JUMP_MAX_MS));
        Timestamp::from_millis(clock.saturating_add(RESERVATION_MS))
    }

    /// Whether less than half of the reservation is left.
    pub fn needs_reservation(&self, unix_millis: u64) -> bool {
        let high_water = Timestamp::from_u64(self.reserved_until.load(Ordering::Acquire)).millis();
        let last = self.last_issued();
        let now = last.millis().max(unix_millis);
        last != CLOSED_TS && high_water < now.saturating_add(RESERVATION_MS / 2)
    }

    /// Allows timestamps up to `high_water`, which must be durable.
    pub fn reserve_until(&self, high_water: Timestamp) {
        self.reserved_until.fetch_max(high_water.to_u64(), Ordering::AcqRel);
    }

    /// From this call on only timestamps above `ts` are handed out, and none before a reservation
    /// covers them.
    pub fn advance_past(&self, ts: Timestamp) {
        // A closed oracle stays closed: its newest timestamp is the maximum.
        self.last.fetch_max(ts.to_u64(), Ordering::AcqRel);
    }

    /// Closes the oracle permanently; returns the newest timestamp handed out.
    pub fn close(&self) -> Timestamp {
        Timestamp::from_u64(self.last.swap(CLOSED_TS.to_u64(), Ordering::AcqRel))
    }

    /// The newest timestamp handed out.
    pub fn last_issued(&self) -> Timestamp {
        Timestamp::from_u64(self.last.load(Ordering::Acquire))
    }

    /// A timestamp greater than all others handed out before this call. `None` if the oracle is
    /// closed or the reservation is used up. Also `None` if the oracle tracks the wall clock, and
    /// the clock is ahead of the reservation but less than [`CLOCK_JUMP_MAX_MS`] ahead of the
    /// newest timestamp.
    pub fn next(&self, unix_millis: u64) -> Option<Timestamp> {
        let high_water = self.reserved_until.load(Ordering::Acquire);
        let clock = Timestamp::from_millis(unix_millis).to_u64();
        let tracks_wall_clock = self.tracks_wall_clock.load(Ordering::Acquire);
        let issue = |last: u64| {
            let next = last.checked_add(1)?;
            let in_reach = last.saturating_add(Timestamp::from_millis(CLOCK_JUMP_MAX_MS).to_u64());
            if tracks_wall_clock && (high_water..in_reach).contains(&clock) {
                return None;
            }
            let reservation_start = high_water.saturating_sub(Timestamp::from_millis(RESERVATION_MS).to_u64());
            let wanted = next.max(if clock <= high_water { clock } else { reservation_start });
            (wanted <= high_water).then_some(wanted)
        };
        let last = self.last.fetch_update(Ordering::AcqRel, Ordering::Acquire, issue).ok()?;
        issue(last).map(Timestamp::from_u64)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn tracking_the_wall_clock_waits_for_the_reservation() {
        for tracks_wall_clock in [false, true] {
            let oracle = LocalOracle::new(Timestamp::from_millis(1_000_000));
            if tracks_wall_clock {
                oracle.track_wall_clock();
            }
            oracle.reserve_until(oracle.first_reservation(1_000_000));
            assert_eq!(oracle.next(1_000_007).map(Timestamp::millis), Some(1_000_007));
            let noon = 1_000_000 + CLOCK_JUMP_MAX_MS / 2;
            assert_eq!(oracle.next(noon).is_none(), tracks_wall_clock);
            oracle.reserve_until(oracle.next_reservation(noon));
            assert_eq!(oracle.next(noon).map(Timestamp::millis), Some(noon));
            // If the clock is more than `CLOCK_JUMP_MAX_MS` ahead of the newest timestamp, `next`
            // returns a timestamp without an extension.
            assert!(oracle.next(noon + 2 * CLOCK_JUMP_MAX_MS).is_some());
        }
    }

    use std::collections::HashSet;

    use super::*;

    const NOON: u64 = 1_763_726_400_000;
    const HOUR: u64 = 3_600_000;

    fn opened(high_water: Timestamp, clock: u64) -> (LocalOracle, Timestamp) {
        let oracle = LocalOracle::new(high_water);
        let high_water = oracle.first_reservation(clock);
        oracle.reserve_until(high_water);
        (oracle, high_water)
    }

    #[test]
    fn nothing_is_handed_out_before_the_first_reservation() {
        assert_eq!(LocalOracle::new(Timestamp::ZERO).next(NOON), None);
    }

    #[test]
    fn a_million_timestamps_from_eight_threads_are_unique() {
        let (oracle, _) = opened(Timestamp::ZERO, NOON);
        let seen: HashSet<Timestamp> = std::thread::scope(|scope| {
            let draw = || (0..125_000).map(|_| oracle.next(NOON).unwrap()).collect::<Vec<_>>();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(draw)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(seen.len(), 1_000_000);
    }

    #[test]
    fn timestamps_rise_when_the_clock_is_set_back_over_a_restart() {
        let (oracle, high_water) = opened(Timestamp::ZERO, NOON);
        let before = oracle.next(NOON).unwrap();
        let (reopened, _) = opened(high_water, NOON - HOUR);
        let after = reopened.next(NOON - HOUR).unwrap();
        assert!(after > before && after > high_water, "{before} {high_water} {after}");
    }

    #[test]
    fn a_clock_beyond_the_reservation_is_not_followed() {
        let (oracle, high_water) = opened(Timestamp::ZERO, NOON);
        let ts = oracle.next(NOON + HOUR).unwrap();
        assert!(ts <= high_water);
        assert!(oracle.needs_reservation(NOON + HOUR));
        oracle.reserve_until(oracle.next_reservation(NOON + HOUR));
        assert!(!oracle.needs_reservation(NOON + HOUR));
        assert_eq!(oracle.next(NOON + HOUR).unwrap().millis(), NOON + HOUR);
    }

    #[test]
    fn a_clock_jump_is_followed_only_up_to_the_limit() {
        let (oracle, _) = opened(Timestamp::ZERO, NOON);
        oracle.next(NOON).unwrap();
        let high_water = oracle.next_reservation(NOON + 1000 * CLOCK_JUMP_MAX_MS);
        assert_eq!(high_water.millis(), NOON + CLOCK_JUMP_MAX_MS + RESERVATION_MS);
    }

    #[test]
    fn each_killed_incarnation_leads_by_one_reservation() {
        let mut high_water = Timestamp::ZERO;
        for incarnation in 0..5 {
            let (oracle, reserved_until) = opened(high_water, NOON);
            let first = oracle.next(NOON).unwrap();
            assert_eq!(first.millis(), NOON + incarnation * RESERVATION_MS);
            high_water = reserved_until;
        }
        // The lead ends when the clock has caught up. An orderly close adds no lead: the newest
        // timestamp, which is below the end of the reservation, becomes the high-water mark.
        let (oracle, high_water) = opened(high_water, NOON + HOUR);
        assert_eq!(oracle.next(NOON + HOUR).unwrap().millis(), NOON + HOUR);
        assert!(oracle.close() < high_water);
    }

    #[test]
    fn a_closed_oracle_hands_out_nothing() {
        let (oracle, high_water) = opened(Timestamp::ZERO, NOON);
        let (newest, drawn) = std::thread::scope(|scope| {
            let draw = || std::iter::from_fn(|| oracle.next(NOON)).last();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(draw)).collect();
            std::thread::yield_now();
            let newest = oracle.close();
            (newest, threads.into_iter().filter_map(|thread| thread.join().unwrap()).max())
        });
        assert!(drawn.is_none_or(|drawn| drawn <= newest), "{drawn:?} {newest}");
        // A sync in progress during the close must not raise the high-water mark: the next
        // incarnation starts above the mark, and would skip the timestamps below.
        assert!(!oracle.needs_reservation(NOON + HOUR));
        assert_eq!(oracle.next_reservation(NOON + HOUR), high_water);
        oracle.reserve_until(Timestamp::MAX);
        assert_eq!(oracle.next(NOON + HOUR), None);
    }

    #[test]
    fn advancing_past_a_timestamp_needs_a_reservation_above_it() {
        let (oracle, high_water) = opened(Timestamp::ZERO, NOON);
        let foreign = Timestamp::from_millis(NOON + 400 * CLOCK_JUMP_MAX_MS);
        oracle.advance_past(foreign);
        assert_eq!(oracle.next(NOON), None);
        assert!(oracle.needs_reservation(NOON) && oracle.next_reservation(NOON) > foreign);
        oracle.reserve_until(oracle.next_reservation(NOON));
        assert!(oracle.next(NOON).unwrap() > foreign && foreign > high_water);
        oracle.advance_past(high_water);
        assert!(oracle.next(NOON).unwrap() > foreign);
    }

    #[test]
    fn an_exhausted_reservation_returns_none() {
        let (oracle, high_water) = opened(Timestamp::ZERO, NOON);
        assert_eq!(oracle.next(high_water.millis()), Some(high_water));
        assert_eq!(oracle.next(high_water.millis()), None);
    }
}
