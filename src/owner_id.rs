//! Owner ids: a unique number for each transaction, whose time part is readable.
//!
//! The layout is that of Amazon's keymap locks. Bit 63 is zero, bits 62 to 32 are seconds since an
//! epoch, bits 31 to 22 the milliseconds of that second, bits 21 to 0 are random. The epoch here is
//! 2020-01-01, not 1970: 31 bits of seconds from 1970 end on 2038-01-19, from 2020 in 2088.
//!
//! 22 random bits are not enough to be unique: among 2,400 ids in one millisecond the probability
//! of a collision is one half. So an [`OwnerIdGenerator`] never hands out an id twice, and the time
//! of its ids never decreases, even if the clock is set back.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::sync::Mutex;

/// 2020-01-01T00:00:00Z in milliseconds since 1970.
pub const OWNER_EPOCH_MILLIS: u64 = 1_577_836_800_000;

const RANDOM_BITS: u32 = 22;
const MILLIS_BITS: u32 = 10;
const SECONDS_MAX: u64 = (1 << 31) - 1;

/// Identifies the owner of a transaction's locks: a creation time and 22 random bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OwnerId(u64);

impl OwnerId {
    /// Builds an id from a time in milliseconds since 1970 and random bits, of which the lower 22
    /// are used.
    ///
    /// Times before 2020 count as 2020-01-01, times after 2088 as the last second that fits.
    pub fn new(unix_millis: u64, random: u64) -> Self {
        let since_epoch = unix_millis.saturating_sub(OWNER_EPOCH_MILLIS);
        let seconds = (since_epoch / 1000).min(SECONDS_MAX);
        let millis = since_epoch % 1000;
        let random = random & ((1 << RANDOM_BITS) - 1);
        Self(seconds << (MILLIS_BITS + RANDOM_BITS) | millis << RANDOM_BITS | random)
    }

    /// The id as a plain number; its highest bit is zero.
    pub fn to_u64(self) -> u64 {
        self.0
    }

    /// The inverse of [`OwnerId::to_u64`].
    pub fn from_u64(number: u64) -> Self {
        Self(number)
    }

    /// When the id was created, in milliseconds since 1970.
    pub fn created_at_millis(self) -> u64 {
        let seconds = self.0 >> (MILLIS_BITS + RANDOM_BITS);
        let millis = (self.0 >> RANDOM_BITS) & ((1 << MILLIS_BITS) - 1);
        OWNER_EPOCH_MILLIS + seconds * 1000 + millis
    }

    /// When the id was created.
    pub fn created_at(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.created_at_millis())
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Hands out unique owner ids, whose creation time never decreases.
#[derive(Debug, Default)]
pub struct OwnerIdGenerator {
    current: Mutex<IdBlock>,
}

/// The ids of one millisecond. Their low bits count up from a random start, so they are unique.
#[derive(Debug, Default)]
struct IdBlock {
    unix_millis: u64,
    first: u64,
    issued: u64,
}

impl OwnerIdGenerator {
    /// The next id. `unix_millis` is the present time of the clock, `random` has 64 fresh random
    /// bits.
    pub fn next(&self, unix_millis: u64, random: u64) -> OwnerId {
        let mut current = self.current.lock();
        if unix_millis > current.unix_millis {
            *current = IdBlock { unix_millis, first: random, issued: 0 };
        } else if current.issued >> RANDOM_BITS != 0 {
            *current = IdBlock { unix_millis: current.unix_millis + 1, first: random, issued: 0 };
        }
        let id = OwnerId::new(current.unix_millis, current.first.wrapping_add(current.issued));
        current.issued += 1;
        id
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const NOON: u64 = 1_763_726_400_123;

    #[test]
    fn an_id_decodes_to_its_creation_time() {
        let id = OwnerId::new(NOON, u64::MAX);
        assert_eq!(id.created_at_millis(), NOON);
        assert_eq!(id.to_u64() >> 63, 0);
        assert_eq!(OwnerId::from_u64(id.to_u64()), id);
    }

    #[test]
    fn times_out_of_range_are_clamped() {
        assert_eq!(OwnerId::new(0, 0).created_at_millis(), OWNER_EPOCH_MILLIS);
        assert_eq!(OwnerId::new(u64::MAX, 0).to_u64() >> 63, 0);
    }

    #[test]
    fn equal_random_bits_give_different_ids() {
        let ids = OwnerIdGenerator::default();
        let made: HashSet<_> = (0..100_000).map(|_| ids.next(NOON, 42)).collect();
        assert_eq!(made.len(), 100_000);
    }

    #[test]
    fn a_clock_set_back_does_not_repeat_ids() {
        let ids = OwnerIdGenerator::default();
        let before = ids.next(NOON, 1);
        let after = ids.next(NOON - 3_600_000, 1);
        assert_ne!(before, after);
        assert_eq!(after.created_at_millis(), NOON);
    }

    #[test]
    fn a_used_up_millisecond_borrows_from_the_next() {
        let ids = OwnerIdGenerator::default();
        let mut seen = HashSet::new();
        for _ in 0..(1 << RANDOM_BITS) + 10 {
            assert!(seen.insert(ids.next(NOON, 99)));
        }
    }
}
