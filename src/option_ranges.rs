//! The ranges of all options: one table for the checks when a store is opened or a transaction
//! begins, for the documentation and for the tests.
//!
//! A value out of range is refused before anything is created, with
//! [`InvalidArgument`](crate::ErrorKind::InvalidArgument), which names the option, the value and
//! the range. An option without a maximum accepts values up to the greatest of its type.
//!
#![doc = include_str!("option_ranges.md")]
//!
//! A program that reads options from a file or a command line can use the same messages:
//!
//! ```
//! use percolite::option_ranges;
//! let wrong = option_ranges::MEMORY_BUDGET.check(1 << 20).unwrap_err();
//! assert_eq!(wrong.to_string(), "memory_budget is 1048576 bytes; it must be from 8 MiB to 1 TiB");
//! assert_eq!(option_ranges::MEMORY_BUDGET.to_string(), "from 8 MiB to 1 TiB");
//! ```

use std::fmt;
use std::time::Duration;

/// The range of one option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OptionRange {
    /// The option's name, mostly the name of its method of [`Builder`](crate::Builder) or
    /// [`LockOptions`](crate::LockOptions).
    pub name: &'static str,
    /// The unit of the value.
    pub unit: Unit,
    /// The minimum.
    pub min: u128,
    /// The maximum; `None` for the greatest value of the type.
    pub max: Option<u128>,
    /// The reason for the limits.
    pub reason: &'static str,
}

/// The unit of an option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// A number, without a unit.
    Count,
    /// Nanoseconds.
    Nanoseconds,
}

/// The value of an option is out of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} is {}; it must be {range}", .range.name, Exactly(.range.unit, *.value))]
#[non_exhaustive]
pub struct OptionOutOfRange {
    /// The range.
    pub range: OptionRange,
    /// The value, in the range's unit.
    pub value: u128,
}

const KIB: u128 = 1 << 10;
const MIB: u128 = 1 << 20;
const GIB: u128 = 1 << 30;
const TIB: u128 = 1 << 40;
const MILLISECOND: u128 = 1_000_000;
const DAY: u128 = 86_400_000 * MILLISECOND;

/// [`Builder::memory_budget`](crate::Builder::memory_budget).
pub const MEMORY_BUDGET: OptionRange = OptionRange {
    name: "memory_budget",
    unit: Unit::Bytes,
    min: 8 * MIB,
    max: Some(TIB),
    reason: "the minimum footprint of a store",
};
/// [`Builder::block_cache_bytes`](crate::Builder::block_cache_bytes).
pub const BLOCK_CACHE_BYTES: OptionRange = OptionRange {
    name: "block_cache_bytes",
    unit: Unit::Bytes,
    min: MIB,
    max: Some(TIB),
    reason: "RocksDB reserves a fifth as address space",
};
/// [`Builder::write_buffer_bytes`](crate::Builder::write_buffer_bytes).
pub const WRITE_BUFFER_BYTES: OptionRange = OptionRange {
    name: "write_buffer_bytes",
    unit: Unit::Bytes,
    min: 256 * KIB,
    max: Some(16 * GIB),
    reason: "a memtable is a sixth of it",
};
/// [`Builder::max_transaction_bytes`](crate::Builder::max_transaction_bytes).
pub const MAX_TRANSACTION_BYTES: OptionRange = OptionRange {
    name: "max_transaction_bytes",
    unit: Unit::Bytes,
    min: 64 * KIB,
    max: Some(GIB),
    reason: "the longest key must fit",
};
/// [`Builder::application_name`](crate::Builder::application_name).
pub const APPLICATION_NAME_BYTES: OptionRange = OptionRange {
    name: "application_name",
    unit: Unit::Bytes,
    min: 0,
    max: Some(255),
    reason: "stored with each lease",
};
/// [`LockOptions::lease`](crate::LockOptions::lease).
pub const LOCK_LEASE: OptionRange = OptionRange {
    name: "lease",
    unit: Unit::Nanoseconds,
    min: 100 * MILLISECOND,
    max: Some(366 * DAY),
    reason: "each renewal is a durable commit; 366 days cover any year",
};
/// [`LockOptions::semaphore`](crate::LockOptions::semaphore).
pub const SEMAPHORE_PERMITS: OptionRange = OptionRange {
    name: "semaphore",
    unit: Unit::Count,
    min: 1,
    max: None,
    reason: "with 0 no request could be granted",
};
/// [`Builder::large_transaction_bytes`](crate::Builder::large_transaction_bytes).
pub const LARGE_TRANSACTION_BYTES: OptionRange = OptionRange {
    name: "large_transaction_bytes",
    unit: Unit::Bytes,
    min: 1,
    max: None,
    reason: "0 could mean always or never; 1 is always",
};
/// [`Builder::conflict_set_rows`](crate::Builder::conflict_set_rows).
pub const CONFLICT_SET_ROWS: OptionRange = OptionRange {
    name: "conflict_set_rows",
    unit: Unit::Count,
    min: 1,
    max: Some(1 << 22),
    reason: "32 bytes each, allocated when the store opens",
};
/// [`Builder::admission_limit`](crate::Builder::admission_limit).
pub const ADMISSION_LIMIT: OptionRange = OptionRange {
    name: "admission_limit",
    unit: Unit::Count,
    min: 1,
    max: None,
    reason: "with 0 no attempt could run",
};
/// [`RetryPolicy::max_attempts`](crate::RetryPolicy::max_attempts), of a store and of a
/// transaction.
pub const RETRY_MAX_ATTEMPTS: OptionRange = OptionRange {
    name: "retry_policy.max_attempts",
    unit: Unit::Count,
    min: 1,
    max: None,
    reason: "the first attempt counts",
};
/// [`RetryPolicy::timeout`](crate::RetryPolicy::timeout), of a store and of a transaction.
pub const RETRY_TIMEOUT: OptionRange = OptionRange {
    name: "retry_policy.timeout",
    unit: Unit::Nanoseconds,
    min: 0,
    max: None,
    reason: "the first attempt is always made",
};
/// [`Builder::max_snapshot_age`](crate::Builder::max_snapshot_age).
pub const MAX_SNAPSHOT_AGE: OptionRange = OptionRange {
    name: "max_snapshot_age",
    unit: Unit::Nanoseconds,
    min: MILLISECOND,
    max: None,
    reason: "0 would expire every snapshot at the next commit",
};
/// [`Builder::history_retention`](crate::Builder::history_retention).
pub const HISTORY_RETENTION: OptionRange = OptionRange {
    name: "history_retention",
    unit: Unit::Nanoseconds,
    min: 0,
    max: None,
    reason: "counted in whole milliseconds",
};
/// [`Builder::slow_transaction_threshold`](crate::Builder::slow_transaction_threshold).
pub const SLOW_TRANSACTION_THRESHOLD: OptionRange = OptionRange {
    name: "slow_transaction_threshold",
    unit: Unit::Nanoseconds,
    min: 0,
    max: None,
    reason: "0 logs every transaction, the maximum none",
};
/// [`Builder::status_file_interval`](crate::Builder::status_file_interval).
pub const STATUS_FILE_INTERVAL: OptionRange = OptionRange {
    name: "status_file_interval",
    unit: Unit::Nanoseconds,
    min: 0,
    max: Some(DAY),
    reason: "an older status file is of no use",
};
/// [`SharedConfig::ttl_ms`](crate::SharedConfig::ttl_ms).
pub const ROW_LOCK_TTL: OptionRange = OptionRange {
    name: "ttl_ms",
    unit: Unit::Nanoseconds,
    min: MILLISECOND,
    max: None,
    reason: "0 would expire every lock immediately",
};

/// The ranges of all numeric options.
pub const ALL: &[OptionRange] = &[
    MEMORY_BUDGET,
    BLOCK_CACHE_BYTES,
    WRITE_BUFFER_BYTES,
    MAX_TRANSACTION_BYTES,
    LARGE_TRANSACTION_BYTES,
    CONFLICT_SET_ROWS,
    ADMISSION_LIMIT,
    RETRY_MAX_ATTEMPTS,
    RETRY_TIMEOUT,
    MAX_SNAPSHOT_AGE,
    HISTORY_RETENTION,
    SLOW_TRANSACTION_THRESHOLD,
    STATUS_FILE_INTERVAL,
    ROW_LOCK_TTL,
    APPLICATION_NAME_BYTES,
    LOCK_LEASE,
    SEMAPHORE_PERMITS,
];

impl OptionRange {
    /// Checks that the value, in this [unit](OptionRange::unit), is in range.
    ///
    /// # Errors
    /// [`OptionOutOfRange`].
    pub fn check(self, value: u128) -> Result<(), OptionOutOfRange> {
        let within = self.min <= value && self.max.is_none_or(|most| value <= most);
        if within { Ok(()) } else { Err(OptionOutOfRange { range: self, value }) }
    }
}

/// The range as it follows the words *must be*.
impl fmt::Display for OptionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let round = |value| Round(self.unit, value);
        match (self.min, self.max) {
            (0, None) => f.write_str("any"),
            (0, Some(most)) => write!(f, "at most {}", round(most)),
            (least, None) => write!(f, "at least {}", round(least)),
            (least, Some(most)) => write!(f, "from {} to {}", round(least), round(most)),
        }
    }
}

/// An exact value.
struct Exactly(Unit, u128);

impl fmt::Display for Exactly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1) {
            (Unit::Bytes, 1) => f.write_str("1 byte"),
            (Unit::Bytes, bytes) => write!(f, "{bytes} bytes"),
            (Unit::Count, count) => write!(f, "{count}"),
            (Unit::Nanoseconds, nanoseconds) => write!(f, "{:?}", duration(nanoseconds)),
        }
    }
}

/// A value in the greatest unit of which it is a multiple.
struct Round(Unit, u128);

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units: &[_] = match self.0 {
            Unit::Bytes => &[("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)],
            Unit::Nanoseconds => &[("day", DAY), ("ms", MILLISECOND)],
            Unit::Count => &[],
        };
        match units.iter().find(|(_, size)| self.1.is_multiple_of(*size)) {
            Some(("day", size)) if self.1 != *size => write!(f, "{} days", self.1 / size),
            Some((unit, size)) => write!(f, "{} {unit}", self.1 / size),
            None => Exactly(self.0, self.1).fmt(f),
        }
    }
}

/// Saturates at [`Duration::MAX`].
fn duration(nanoseconds: u128) -> Duration {
    let second = 1000 * MILLISECOND;
    let below = u32::try_from(nanoseconds % second).unwrap_or_default();
    u64::try_from(nanoseconds / second).map_or(Duration::MAX, |seconds| Duration::new(seconds, below))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_table_equals_the_checked_ranges() {
        let row = |bounds: &OptionRange| format!("| `{}` | {bounds} | {} |\n", bounds.name, bounds.reason);
        let table: String = ALL.iter().map(row).collect();
        let table = format!("| option | range | reason |\n|---|---|---|\n{table}");
        if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
            return std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/src/option_ranges.md"), &table).unwrap();
        }
        assert_eq!(include_str!("option_ranges.md"), table, "UPDATE_GOLDENFILES=1 rewrites it");
    }

    #[test]
    fn an_error_names_option_value_and_range() {
        let refusal = |bounds: OptionRange, value| bounds.check(value).unwrap_err().to_string();
        assert_eq!(refusal(BLOCK_CACHE_BYTES, 0), "block_cache_bytes is 0 bytes; it must be from 1 MiB to 1 TiB");
        assert_eq!(refusal(LOCK_LEASE, 0), "lease is 0ns; it must be from 100 ms to 366 days");
        assert_eq!(refusal(BLOCK_CACHE_BYTES, 1), "block_cache_bytes is 1 byte; it must be from 1 MiB to 1 TiB");
        assert_eq!(refusal(ADMISSION_LIMIT, 0), "admission_limit is 0; it must be at least 1");
        assert_eq!(refusal(MAX_SNAPSHOT_AGE, 999), "max_snapshot_age is 999ns; it must be at least 1 ms");
        let short = "lease is 99.999999ms; it must be from 100 ms to 366 days";
        assert_eq!(refusal(LOCK_LEASE, 100 * MILLISECOND - 1), short);
        let longest = Duration::MAX.as_nanos();
        assert_eq!(
            refusal(STATUS_FILE_INTERVAL, longest),
            "status_file_interval is 18446744073709551615.999999999s; it must be at most 1 day"
        );
        assert_eq!(duration(longest), Duration::MAX);
        assert_eq!(duration(u128::MAX), Duration::MAX);
    }

    #[test]
    fn every_range_includes_its_ends() {
        for bounds in ALL {
            let most = bounds.max.unwrap_or(u128::MAX);
            assert!(bounds.min < most, "{bounds:?}");
            assert!(bounds.check(bounds.min).is_ok() && bounds.check(most).is_ok(), "{bounds:?}");
            assert!(bounds.min.checked_sub(1).is_none_or(|below| bounds.check(below).is_err()), "{bounds:?}");
            assert!(most.checked_add(1).is_none_or(|above| bounds.check(above).is_err()), "{bounds:?}");
        }
    }
}
