//! Timestamps: 64 bits, of which the upper 46 are milliseconds since 1970 and the lower 18 a
//! counter.

use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

const LOGICAL_BITS: u32 = 18;

/// A point in the store's history. Larger is later; the oracle hands each timestamp out once.
///
/// The upper 46 bits are milliseconds since 1970-01-01 UTC (they last until the year 4199), the
/// lower 18 a counter.
///
/// `Display` writes both numbers; `{:#}` adds the date and time:
///
/// ```
/// let ts = percolite::Timestamp::from_millis(1_700_000_000_000).next();
/// assert_eq!(ts.to_string(), "1700000000000.1");
/// assert_eq!(format!("{ts:#}"), "1700000000000.1 (2023-11-14 22:13:20.000 UTC)");
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Below every commit.
    pub const ZERO: Self = Self(0);
    /// Above every possible commit.
    pub const MAX: Self = Self(u64::MAX);

    /// The first timestamp of a millisecond; [`Timestamp::MAX`] if the milliseconds exceed 46 bits.
    pub fn from_millis(millis: u64) -> Self {
        if millis >> (64 - LOGICAL_BITS) == 0 { Self(millis << LOGICAL_BITS) } else { Self::MAX }
    }

    /// About when this timestamp was handed out, in milliseconds since 1970-01-01 UTC; only the
    /// order of timestamps is exact.
    ///
    /// Timestamps lead the clock after the clock was set back, and after a process ended without
    /// closing its store: at the next opening they start up to three seconds ahead. If processes
    /// are killed in quick succession, these leads add up until the clock has caught up. In a store
    /// that keeps no history, timestamps lag behind the clock after an idle time, until the next
    /// sync.
    pub fn millis(self) -> u64 {
        self.0 >> LOGICAL_BITS
    }

    /// The timestamp as a plain number.
    pub fn to_u64(self) -> u64 {
        self.0
    }

    /// The inverse of [`Timestamp::to_u64`].
    pub fn from_u64(number: u64) -> Self {
        Self(number)
    }

    /// The next timestamp; [`Timestamp::MAX`] returns itself.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The previous timestamp; [`Timestamp::ZERO`] returns itself.
    #[must_use]
    pub fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

/// The first timestamp of the time's millisecond, above all timestamps of earlier milliseconds;
/// zero for times before 1970.
impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self::from_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.millis(), self.0 & ((1 << LOGICAL_BITS) - 1))?;
        if f.alternate() { write!(f, " ({})", UtcDateTime(self.millis())) } else { Ok(()) }
    }
}

/// Milliseconds since 1970, displayed as a UTC date and time.
pub(crate) struct UtcDateTime(pub u64);

impl fmt::Display for UtcDateTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let moment = i64::try_from(self.0).ok().and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok());
        match moment {
            Some(moment) => write!(f, "{}", moment.strftime("%Y-%m-%d %H:%M:%S.%3f UTC")),
            None => write!(f, "{} ms after 1970", self.0),
        }
    }
}

/// The text is not a timestamp and not a date and time; see [`Timestamp::from_str`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid timestamp: expected <milliseconds since 1970>.<counter> (1700000000000.0) or an ISO 8601 date and time (2026-11-21T14:00Z, or 2026-11-21T14:00 in the local time zone)"
)]
pub struct ParseTimestampError;

/// Parses a timestamp as displayed, with or without `{:#}`, or a date and time.
///
/// A date and time is ISO 8601, with a blank or `T` before the hours, and means the first timestamp
/// of its millisecond, as for a [`SystemTime`]. A trailing `UTC` means `Z`. A date alone means the
/// start of the day. Times before 1970 are [`Timestamp::ZERO`], times too late for 46 bits
/// [`Timestamp::MAX`].
///
/// Without `Z` or an offset the time is in the local time zone, from the environment variable `TZ`
/// or the operating system. A time that a clock change skips is moved forward by as much as the
/// clock was; of a time that occurs twice the first is taken.
///
/// Relative times ("5m") need a clock and are not parsed here.
///
/// ```
/// # fn main() -> Result<(), percolite::ParseTimestampError> {
/// use percolite::Timestamp;
///
/// let noon: Timestamp = "2023-11-14T12:00:00Z".parse()?;
/// assert_eq!(noon, Timestamp::from_millis(1_699_963_200_000));
/// assert_eq!("2023-11-14 13:00+01:00".parse(), Ok(noon));
/// assert_eq!("1699963200000.0".parse(), Ok(noon));
/// assert_eq!(format!("{noon:#}").parse(), Ok(noon));
/// assert!("yesterday".parse::<Timestamp>().is_err());
/// # Ok(()) }
/// ```
impl FromStr for Timestamp {
    type Err = ParseTimestampError;

    fn from_str(text: &str) -> Result<Self, ParseTimestampError> {
        let (number, time_of_day) = text.split_once(" (").unzip();
        match (Self::parse_numbers(number.unwrap_or(text)), time_of_day) {
            (Some(ts), Some(_)) if format!("{ts:#}") != text => Err(ParseTimestampError),
            (Some(ts), _) => Ok(ts),
            (None, _) => parse_date_time(text).map(|time| SystemTime::from(time).into()).ok_or(ParseTimestampError),
        }
    }
}

impl Timestamp {
    fn parse_numbers(text: &str) -> Option<Self> {
        let (millis, counter) = text.split_once('.')?;
        // `u64::from_str` accepts a plus sign, which this format does not allow.
        let number = |text: &str, bits: u32| {
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u64>().ok().filter(|number| digits && number >> bits == 0)
        };
        Some(Self(number(millis, 64 - LOGICAL_BITS)? << LOGICAL_BITS | number(counter, LOGICAL_BITS)?))
    }
}

fn parse_date_time(text: &str) -> Option<jiff::Timestamp> {
    let utc = text.strip_suffix(" UTC").map(|time| format!("{time}Z"));
    let text = utc.as_deref().unwrap_or(text);
    text.parse().ok().or_else(|| {
        // The parser would ignore a time zone in brackets.
        let local = text.parse::<jiff::civil::DateTime>().ok().filter(|_| !text.contains('['))?;
        Some(local.to_zoned(jiff::tz::TimeZone::system()).ok()?.timestamp())
    })
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_timestamp_round_trips_as_text(number: u64) {
            let ts = Timestamp::from_u64(number);
            prop_assert_eq!(ts.to_string().parse(), Ok(ts));
            prop_assert_eq!(format!("{ts:#}").parse(), Ok(ts));
        }

        #[test]
        fn date_times_parse_in_any_time_zone(millis in 0_u64..1 << 46, offset in -12_i64..=14) {
            let ts = Timestamp::from_millis(millis);
            let utc = jiff::Timestamp::from_millisecond(millis.cast_signed()).unwrap();
            prop_assert_eq!(utc.to_string().parse(), Ok(ts));
            prop_assert_eq!(utc.strftime("%Y-%m-%d %H:%M:%S%.f UTC").to_string().parse(), Ok(ts));
            let there = jiff::tz::Offset::from_hours(i8::try_from(offset).unwrap()).unwrap();
            prop_assert_eq!(utc.display_with_offset(there).to_string().parse(), Ok(ts));
            let local = utc.to_zoned(jiff::tz::TimeZone::system());
            let is_unique = !jiff::tz::TimeZone::system().to_ambiguous_zoned(local.datetime()).is_ambiguous();
            prop_assert!(!is_unique || local.datetime().to_string().parse() == Ok(ts));
        }

        #[test]
        fn parsing_never_panics(text: String, like in "[-+0-9TZ(): .]{0,40}") {
            let _ = (text.parse::<Timestamp>(), like.parse::<Timestamp>());
        }
    }

    #[test]
    fn the_error_shows_every_accepted_form() {
        let text = ParseTimestampError.to_string();
        for example in ["1700000000000.0", "2026-11-21T14:00Z", "2026-11-21T14:00"] {
            assert!(text.contains(example), "{text}");
            example.parse::<Timestamp>().unwrap();
        }
        let in_zone = "2026-11-21T14:00[Asia/Tokyo]";
        for wrong in
            ["yesterday", "5m", "12:00", "2023-13-01", "1700000000000", "1700000000000.1 (2023-11-14)", in_zone]
        {
            assert_eq!(wrong.parse::<Timestamp>(), Err(ParseTimestampError), "{wrong}");
        }
        assert_eq!("1969-07-20T20:17Z".parse(), Ok(Timestamp::ZERO));
        assert_eq!("9000-01-01T00:00Z".parse(), Ok(Timestamp::MAX));
    }

    #[test]
    fn only_displayed_forms_parse() {
        for number in [0, 1, (1 << LOGICAL_BITS) - 1, 1 << LOGICAL_BITS, 123_456_789_012_345_678, u64::MAX] {
            let ts = Timestamp::from_u64(number);
            assert_eq!(ts.to_string().parse(), Ok(ts));
        }
        let more = [(1_u64 << 46).to_string() + ".0", format!("0.{}", 1 << LOGICAL_BITS)];
        for text in [
            "",
            ".",
            "1",
            "1.",
            ".1",
            "1.1.1",
            "-1.0",
            "+1.0",
            "1.+1",
            "1. 1",
            "a.b",
            more[0].as_str(),
            more[1].as_str(),
        ] {
            assert_eq!(text.parse::<Timestamp>(), Err(ParseTimestampError), "{text:?}");
        }
    }

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
