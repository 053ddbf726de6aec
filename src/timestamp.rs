//! Timestamps: 64 bits, physical milliseconds since 1970 in the upper 46 and a counter in the lower 18.

use std::fmt;

use serde::{Deserialize, Serialize};

const COUNTER_BITS: u32 = 18;

/// A point in the store's history. Larger is later; the oracle never hands the same one out twice.
///
/// The upper 46 bits are milliseconds since 1970-01-01 UTC (they last until the year 4199), the lower 18 a counter.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Before everything that was ever committed.
    pub const ZERO: Self = Self(0);
    /// After everything that can ever be committed.
    pub const MAX: Self = Self(u64::MAX);

    /// The first timestamp of a millisecond; milliseconds beyond 46 bits give the last one there is.
    pub fn from_millis(millis: u64) -> Self {
        if millis >> (64 - COUNTER_BITS) == 0 { Self(millis << COUNTER_BITS) } else { Self::MAX }
    }

    /// About when this timestamp was handed out, in milliseconds since 1970-01-01 UTC; only the order is exact.
    ///
    /// It lies ahead of the clock after the clock was set back, and after a process that did not close its store: the next
    /// one begins up to [`LEASE_MS`](crate::oracle::LEASE_MS) ahead, and processes killed in quick succession add up until
    /// the clock has caught up. It lies behind after a pause, until the next sync.
    pub fn millis(self) -> u64 {
        self.0 >> COUNTER_BITS
    }

    /// The timestamp as a plain number.
    pub fn to_u64(self) -> u64 {
        self.0
    }

    /// The inverse of [`Timestamp::to_u64`].
    pub fn from_u64(number: u64) -> Self {
        Self(number)
    }

    /// The next one; [`Timestamp::MAX`] has none and answers itself.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.millis(), self.0 & ((1 << COUNTER_BITS) - 1))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn millis_round_trip_and_saturate() {
        let ts = Timestamp::from_millis(1_700_000_000_123);
        assert_eq!(ts.millis(), 1_700_000_000_123);
        assert_eq!(ts.next().millis(), 1_700_000_000_123);
        assert_eq!(Timestamp::from_millis(u64::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::MAX.next(), Timestamp::MAX);
        assert_eq!(Timestamp::from_millis(7).next().to_string(), "7.1");
    }
}
