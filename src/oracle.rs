//! The oracle: hands out timestamps, each once, ever increasing, over restarts and clock steps.
//!
//! A durable high-water mark, the lease, lies ahead of every timestamp handed out. After a restart the oracle begins
//! above it, so nothing is handed out twice, whatever the clock says. The lease is extended in the background, well
//! before it ends. When the clock runs ahead of the lease, which happens after a pause, timestamps simply fall behind
//! the clock until the next extension is durable: order is what they are for, not the time of day. Where history is kept
//! it is both, and such an oracle is *punctual*: it rather waits for the extension.
//!
//! A clock that goes back is ignored. One that jumps forward by more than [`CLOCK_JUMP_MAX_MS`] is followed only that far at each
//! extension, so that a single wrong reading does not push the store years ahead.
//!
//! Timestamps lead the clock after a life that ended without closing, because the next one begins at the end of the lease
//! of the last. Lives that are killed in quick succession add up, a lease each, until the clock has caught up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::engine::{Engine, EngineError};
use crate::runtime::Env;
use crate::timestamp::Timestamp;

/// How far ahead of the clock a lease reaches, in milliseconds. A process that is killed leaves its lease unused, and the next
/// life begins at its end: that much timestamps then lead the clock, so it is short. Renewing it costs nothing, since it rides
/// on a sync.
pub const RESERVATION_MS: u64 = 3_000;
/// How far a lease may advance at one extension, in milliseconds.
pub const CLOCK_JUMP_MAX_MS: u64 = 24 * 3_600_000;

/// Whether the timestamp is so late that no lease fits in above it, nor the life of a store.
pub fn is_exhausted(ts: Timestamp) -> bool {
    Timestamp::from_millis(ts.millis().saturating_add(CLOCK_JUMP_MAX_MS)) == Timestamp::MAX
}

/// The name of the oracle's high-water mark in the store's bookkeeping.
pub(crate) const HIGH_WATER_KEY: &str = "oracle";

/// Stands for the newest timestamp once no more is to follow: it has no next one.
const CLOSED_TS: Timestamp = Timestamp::MAX;

/// The high-water mark that an engine keeps: no timestamp above it was handed out.
pub(crate) fn read_high_water(engine: &dyn Engine) -> Result<Timestamp, EngineError> {
    let Some(bytes) = engine.get_meta(HIGH_WATER_KEY)? else { return Ok(Timestamp::ZERO) };
    let number = bytes.try_into().map(u64::from_be_bytes);
    let damaged = |_| EngineError::Corruption("the oracle's high-water mark is damaged".into());
    number.map(Timestamp::from_u64).map_err(damaged)
}

/// An oracle that several clients share.
///
/// It must allocate each timestamp after the request for it began: blocks kept for later requests break the order that
/// readers rely on.
pub trait Oracle: Send + Sync {
    /// A timestamp greater than every other whose request ended before this one began.
    fn timestamp(&self) -> Result<Timestamp, EngineError>;
}

/// A shared oracle in memory, for simulated clients of one engine. It forgets with its process.
pub struct MemoryOracle {
    oracle: LocalOracle,
    runtime: Arc<dyn Env>,
}

impl MemoryOracle {
    /// An oracle that goes by the runtime's clock.
    pub fn new(runtime: Arc<dyn Env>) -> Self {
        let oracle = LocalOracle::new(Timestamp::ZERO);
        oracle.reserve_until(Timestamp::MAX);
        Self { oracle, runtime }
    }
}

impl Oracle for MemoryOracle {
    fn timestamp(&self) -> Result<Timestamp, EngineError> {
        let used_up = || EngineError::Corruption("the oracle has no timestamps left".into());
        self.oracle.next(self.runtime.unix_millis()).ok_or_else(used_up)
    }
}

/// An oracle in this process, with a lease that somebody else makes durable.
#[derive(Debug)]
pub struct LocalOracle {
    last: AtomicU64,
    reserved_until: AtomicU64,
    tracks_wall_clock: AtomicBool,
}

impl LocalOracle {
    /// An oracle that goes on above `high_water`; it hands out nothing before [`LocalOracle::reserve_until`] is called.
    pub fn new(high_water: Timestamp) -> Self {
        let high_water = || AtomicU64::new(high_water.to_u64());
        Self { last: high_water(), reserved_until: high_water(), tracks_wall_clock: AtomicBool::new(false) }
    }

    /// Never falls behind the clock from here on, except after a jump of more than [`CLOCK_JUMP_MAX_MS`].
    pub fn track_wall_clock(&self) {
        self.tracks_wall_clock.store(true, Ordering::Release);
    }

    /// The first high-water mark to make durable: the clock may have moved any distance while the store was closed.
    pub fn first_reservation(&self, unix_millis: u64) -> Timestamp {
        Timestamp::from_millis(unix_millis.max(self.last_issued().millis()).saturating_add(RESERVATION_MS))
    }

    /// The high-water mark to make durable next.
    pub fn next_reservation(&self, unix_millis: u64) -> Timestamp {
        let last = self.last_issued();
        if last == CLOSED_TS {
            // Whoever asked before it was closed goes on with what is durable already.
            return Timestamp::from_u64(self.reserved_until.load(Ordering::Acquire));
        }
        let last = last.millis();
        let clock = unix_millis.clamp(last, last.saturating_add(CLOCK_JUMP_MAX_MS));
        Timestamp::from_millis(clock.saturating_add(RESERVATION_MS))
    }

    /// Whether less than half of the lease lies ahead.
    pub fn needs_reservation(&self, unix_millis: u64) -> bool {
        let lease_end = Timestamp::from_u64(self.reserved_until.load(Ordering::Acquire)).millis();
        let last = self.last_issued();
        let now = last.millis().max(unix_millis);
        last != CLOSED_TS && lease_end < now.saturating_add(RESERVATION_MS / 2)
    }

    /// Allows timestamps up to `high_water`, which must be durable.
    pub fn reserve_until(&self, high_water: Timestamp) {
        self.reserved_until.fetch_max(high_water.to_u64(), Ordering::AcqRel);
    }

    /// Hands out nothing at or below `ts` from here on. What it then hands out waits for a lease that reaches so far.
    pub fn advance_past(&self, ts: Timestamp) {
        // One that was closed stays so: nothing is newer than what it stands at.
        self.last.fetch_max(ts.to_u64(), Ordering::AcqRel);
    }

    /// Hands out nothing from here on; the answer is the newest timestamp handed out.
    pub fn close(&self) -> Timestamp {
        Timestamp::from_u64(self.last.swap(CLOSED_TS.to_u64(), Ordering::AcqRel))
    }

    /// The newest timestamp handed out.
    pub fn last_issued(&self) -> Timestamp {
        Timestamp::from_u64(self.last.load(Ordering::Acquire))
    }

    /// A timestamp greater than every other handed out before this call; `None` when the lease is used up, or too old for one
    /// that is punctual.
    pub fn next(&self, unix_millis: u64) -> Option<Timestamp> {
        let lease_end = self.reserved_until.load(Ordering::Acquire);
        let clock = Timestamp::from_millis(unix_millis).to_u64();
        let punctual = self.tracks_wall_clock.load(Ordering::Acquire);
        let issue = |last: u64| {
            let next = last.checked_add(1)?;
            let in_reach = last.saturating_add(Timestamp::from_millis(CLOCK_JUMP_MAX_MS).to_u64());
            if punctual && (lease_end..in_reach).contains(&clock) {
                return None;
            }
            let lease_began = lease_end.saturating_sub(Timestamp::from_millis(RESERVATION_MS).to_u64());
            let wanted = next.max(if clock <= lease_end { clock } else { lease_began });
            (wanted <= lease_end).then_some(wanted)
        };
        let last = self.last.fetch_update(Ordering::AcqRel, Ordering::Acquire, issue).ok()?;
        issue(last).map(Timestamp::from_u64)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_punctual_one_waits_for_its_lease_and_another_falls_behind_the_clock() {
        for punctual in [false, true] {
            let oracle = LocalOracle::new(Timestamp::from_millis(1_000_000));
            if punctual {
                oracle.track_wall_clock();
            }
            oracle.reserve_until(oracle.first_reservation(1_000_000));
            assert_eq!(oracle.next(1_000_007).map(Timestamp::millis), Some(1_000_007));
            let noon = 1_000_000 + CLOCK_JUMP_MAX_MS / 2;
            assert_eq!(oracle.next(noon).is_none(), punctual);
            oracle.reserve_until(oracle.next_reservation(noon));
            assert_eq!(oracle.next(noon).map(Timestamp::millis), Some(noon));
            // A clock that is years ahead is not waited for.
            assert!(oracle.next(noon + 2 * CLOCK_JUMP_MAX_MS).is_some());
        }
    }

    use std::collections::HashSet;

    use super::*;

    const NOON: u64 = 1_763_726_400_000;
    const HOUR: u64 = 3_600_000;

    fn opened(high_water: Timestamp, clock: u64) -> (LocalOracle, Timestamp) {
        let oracle = LocalOracle::new(high_water);
        let lease = oracle.first_reservation(clock);
        oracle.reserve_until(lease);
        (oracle, lease)
    }

    #[test]
    fn nothing_is_handed_out_before_the_lease_is_durable() {
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
    fn a_clock_set_back_an_hour_over_a_restart_is_overtaken() {
        let (oracle, lease) = opened(Timestamp::ZERO, NOON);
        let before = oracle.next(NOON).unwrap();
        let (reopened, _) = opened(lease, NOON - HOUR);
        let after = reopened.next(NOON - HOUR).unwrap();
        assert!(after > before && after > lease, "{before} {lease} {after}");
    }

    #[test]
    fn a_clock_beyond_the_lease_is_not_followed_until_it_is_extended() {
        let (oracle, lease) = opened(Timestamp::ZERO, NOON);
        let ts = oracle.next(NOON + HOUR).unwrap();
        assert!(ts <= lease);
        assert!(oracle.needs_reservation(NOON + HOUR));
        oracle.reserve_until(oracle.next_reservation(NOON + HOUR));
        assert!(!oracle.needs_reservation(NOON + HOUR));
        assert_eq!(oracle.next(NOON + HOUR).unwrap().millis(), NOON + HOUR);
    }

    #[test]
    fn a_wild_jump_of_the_clock_is_followed_only_so_far() {
        let (oracle, _) = opened(Timestamp::ZERO, NOON);
        oracle.next(NOON).unwrap();
        let lease = oracle.next_reservation(NOON + 1000 * CLOCK_JUMP_MAX_MS);
        assert_eq!(lease.millis(), NOON + CLOCK_JUMP_MAX_MS + RESERVATION_MS);
    }

    #[test]
    fn lives_killed_in_quick_succession_lead_the_clock_by_a_lease_each() {
        let mut high_water = Timestamp::ZERO;
        for life in 0..5 {
            let (oracle, lease) = opened(high_water, NOON);
            let first = oracle.next(NOON).unwrap();
            assert_eq!(first.millis(), NOON + life * RESERVATION_MS);
            high_water = lease;
        }
        // The clock catches up, or the last life is closed.
        let (oracle, lease) = opened(high_water, NOON + HOUR);
        assert_eq!(oracle.next(NOON + HOUR).unwrap().millis(), NOON + HOUR);
        assert!(oracle.close() < lease);
    }

    #[test]
    fn a_closed_oracle_hands_out_nothing_above_the_newest_it_names() {
        let (oracle, lease) = opened(Timestamp::ZERO, NOON);
        let (newest, drawn) = std::thread::scope(|scope| {
            let draw = || std::iter::from_fn(|| oracle.next(NOON)).last();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(draw)).collect();
            std::thread::yield_now();
            let newest = oracle.close();
            (newest, threads.into_iter().filter_map(|thread| thread.join().unwrap()).max())
        });
        assert!(drawn.is_none_or(|drawn| drawn <= newest), "{drawn:?} {newest}");
        // A sync that is under way makes nothing of it that would cost the next life its timestamps.
        assert!(!oracle.needs_reservation(NOON + HOUR));
        assert_eq!(oracle.next_reservation(NOON + HOUR), lease);
        oracle.reserve_until(Timestamp::MAX);
        assert_eq!(oracle.next(NOON + HOUR), None);
    }

    #[test]
    fn an_oracle_that_is_to_pass_a_timestamp_waits_for_a_lease_beyond_it() {
        let (oracle, lease) = opened(Timestamp::ZERO, NOON);
        let foreign = Timestamp::from_millis(NOON + 400 * CLOCK_JUMP_MAX_MS);
        oracle.advance_past(foreign);
        assert_eq!(oracle.next(NOON), None);
        assert!(oracle.needs_reservation(NOON) && oracle.next_reservation(NOON) > foreign);
        oracle.reserve_until(oracle.next_reservation(NOON));
        assert!(oracle.next(NOON).unwrap() > foreign && foreign > lease);
        oracle.advance_past(lease);
        assert!(oracle.next(NOON).unwrap() > foreign);
    }

    #[test]
    fn a_used_up_lease_says_so() {
        let (oracle, lease) = opened(Timestamp::ZERO, NOON);
        assert_eq!(oracle.next(lease.millis()), Some(lease));
        assert_eq!(oracle.next(lease.millis()), None);
    }
}
