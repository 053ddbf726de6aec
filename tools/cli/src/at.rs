//! The option `--at`: the point in time that a command reads.
//!
//! A relative time (`1h`) is counted back from the clock, or from the store's newest timestamp if
//! that is ahead of the clock. So `0s` is always the newest state. The newest timestamp is ahead by
//! up to three seconds more after each kill of a process, and after the clock was set back. While
//! it is ahead, commits get timestamps later than the clock. So an absolute time selects an earlier
//! state than the clock suggests, and a note says so.
//!
//! A local time that a clock change skips or repeats is an error that names both times meant.

use std::time::SystemTime;

use anyhow::Result;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Span, Zoned};
use percolite::{Keyspace, Scan, Snapshot, Store, Timestamp, Txn, Value, Versions};

use crate::exit::Code;
use crate::range::KeySelection;

#[derive(clap::Args)]
pub struct AtArgs {
    /// Read the state of a past time: 5m (ago), 2026-11-21T14:00 (local), 2026-11-21T14:00Z, or a
    /// timestamp as `versions` prints it
    #[arg(long, value_name = "TIME", value_parser = parse)]
    at: Option<PointInTime>,
}

/// A point in time, as the command line gives it.
#[derive(Clone, Copy, Debug)]
pub enum PointInTime {
    /// Given as a timestamp, so exact to the commit.
    Timestamp(Timestamp),
    /// An absolute wall-clock time.
    Time(Timestamp),
    /// Counted back from now, as the [module](self) says.
    Ago(Span),
}

/// What is read: a snapshot, or an open transaction with its own writes.
pub enum ReadSource<'a> {
    Snapshot(Snapshot),
    Txn(&'a Txn),
}

impl ReadSource<'_> {
    pub fn get(&self, keyspace: &Keyspace, key: &[u8]) -> percolite::Result<Option<Value>> {
        match self {
            Self::Snapshot(snapshot) => snapshot.get(keyspace, key),
            Self::Txn(txn) => txn.get(keyspace, key),
        }
    }

    pub fn scan(&self, keyspace: &Keyspace, rows: &KeySelection) -> Scan {
        match (self, rows) {
            (Self::Snapshot(snapshot), KeySelection::Prefix(prefix)) => snapshot.prefix(keyspace, prefix),
            (Self::Snapshot(snapshot), KeySelection::Range(..)) => snapshot.range(keyspace, rows.bounds()),
            (Self::Txn(txn), KeySelection::Prefix(prefix)) => txn.prefix(keyspace, prefix),
            (Self::Txn(txn), KeySelection::Range(..)) => txn.range(keyspace, rows.bounds()),
        }
    }

    /// The committed versions of a row, without the writes of the open transaction.
    pub fn versions(&self, keyspace: &Keyspace, key: &[u8]) -> percolite::Result<Versions> {
        match self {
            Self::Snapshot(snapshot) => snapshot.versions(keyspace, key),
            Self::Txn(txn) => txn.versions(keyspace, key),
        }
    }
}

impl AtArgs {
    /// The state to read, and the keyspace in it: with `--at` the state of that time, else that of
    /// the open transaction if there is one, else the newest.
    pub fn source<'a>(
        &self,
        store: &Store,
        txn: Option<&'a Txn>,
        keyspace: &str,
    ) -> Result<(ReadSource<'a>, Keyspace)> {
        if let Some(txn) = txn.filter(|_| self.at.is_none()) {
            return Ok((ReadSource::Txn(txn), crate::open::keyspace(store, keyspace, false)?));
        }
        let snapshot = self.snapshot(store)?;
        let keyspace = self.keyspace(store, &snapshot, keyspace)?;
        Ok((ReadSource::Snapshot(snapshot), keyspace))
    }

    /// The state of `--at`, or the newest.
    pub fn snapshot(&self, store: &Store) -> Result<Snapshot> {
        match self.at {
            None => Ok(store.snapshot()?),
            Some(when) => {
                require_history(store)?;
                Ok(store.snapshot_at(when.resolve(store)?)?)
            }
        }
    }

    /// The keyspace of this name in the snapshot; it may have been dropped since.
    fn keyspace(&self, store: &Store, snapshot: &Snapshot, name: &str) -> Result<Keyspace> {
        if self.at.is_none() {
            return crate::open::keyspace(store, name, false);
        }
        let found = snapshot.keyspaces()?.into_iter().find(|keyspace| keyspace.name() == name);
        found.ok_or_else(|| Code::NotFound.error(format!("there was no keyspace {name:?} at {:#}", snapshot.read_ts())))
    }
}

/// An error if the store keeps no history.
pub fn require_history(store: &Store) -> Result<()> {
    if store.stats().history_start_ts.is_some() {
        return Ok(());
    }
    let store = crate::advice::store_argument();
    Err(Code::Failed.error(format!("the store keeps no history; percolite retention {store} --set 7d starts it")))
}

impl PointInTime {
    /// The timestamp of the point in time.
    pub fn resolve(self, store: &Store) -> Result<Timestamp> {
        let newest = store.snapshot()?.read_ts();
        let ahead = newest.millis().saturating_sub(Timestamp::from(SystemTime::now()).millis());
        match self {
            Self::Timestamp(at) => Ok(at),
            Self::Time(at) => {
                if ahead > 0 {
                    let ahead = std::time::Duration::from_millis(ahead);
                    eprintln!(
                        "note: the store's timestamps are {ahead:.1?} ahead of the clock, and so is this time; \
                         relative times (5m) are counted back from the newest timestamp"
                    );
                }
                Ok(at)
            }
            Self::Ago(ago) if ago.is_zero() => Ok(newest),
            Self::Ago(ago) => {
                let now = Zoned::now().checked_add(Span::new().try_milliseconds(ahead.cast_signed())?)?;
                Ok(SystemTime::from(now.checked_sub(ago)?.timestamp()).into())
            }
        }
    }
}

/// Parses the value of `--at` and `--since`.
pub fn parse(text: &str) -> Result<PointInTime, String> {
    if let Ok(ago) = text.parse::<Span>() {
        // This fails if the span reaches back to before the first day of the calendar.
        Zoned::now().checked_sub(ago.abs()).map_err(|err| err.to_string())?;
        return Ok(PointInTime::Ago(ago.abs()));
    }
    let at = text.parse::<Timestamp>().map_err(|err| format!("not a relative time (5m, 2h, 3d), and an {err}"))?;
    reject_ambiguous(text, &TimeZone::system())?;
    // Before a dot a timestamp has only digits, its milliseconds. A time has other characters, too.
    let is_timestamp = text.split_once('.').is_some_and(|(millis, _)| millis.bytes().all(|byte| byte.is_ascii_digit()));
    Ok(if is_timestamp { PointInTime::Timestamp(at) } else { PointInTime::Time(at) })
}

/// An error if this is a local time that does not exist in the time zone, or exists twice.
fn reject_ambiguous(text: &str, zone: &TimeZone) -> Result<(), String> {
    // A date alone means the start of the day, which is always one moment.
    let has_time = text.contains(':') || text.contains(['T', 't']);
    let is_local = has_time && text.parse::<jiff::Timestamp>().is_err();
    let Some(time) = text.parse::<DateTime>().ok().filter(|_| is_local) else { return Ok(()) };
    let (happens, before, after) = match zone.to_ambiguous_timestamp(time).offset() {
        AmbiguousOffset::Unambiguous { .. } => return Ok(()),
        AmbiguousOffset::Gap { before, after } => ("never: the clock was set forward over it", before, after),
        AmbiguousOffset::Fold { before, after } => ("twice: the clock was set back", before, after),
    };
    Err(format!("this local time is there {happens}; say which is meant: {time}{before} or {time}{after}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

    use proptest::prelude::*;

    use super::*;

    fn timestamp(text: &str) -> Option<Timestamp> {
        match parse(text) {
            Ok(PointInTime::Timestamp(ts) | PointInTime::Time(ts)) => Some(ts),
            Ok(PointInTime::Ago(_)) | Err(_) => None,
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text: String, like in "[-+0-9PTYMDHSZzyodhms.: ]{0,24}") {
            let _ = (parse(&text), parse(&like));
        }

        #[test]
        fn timestamps_and_times_round_trip(number: u64, millis in 0_i64..4_000_000_000_000) {
            let ts = Timestamp::from_u64(number);
            prop_assert_eq!(timestamp(&ts.to_string()), Some(ts));
            let time = jiff::Timestamp::from_millisecond(millis).unwrap();
            prop_assert_eq!(timestamp(&time.to_string()), Some(Timestamp::from_millis(millis.unsigned_abs())));
        }

        #[test]
        fn a_span_is_counted_back_from_now(seconds in 1_u64..1_000_000_000) {
            let store = Store::in_memory().unwrap();
            let now = || Timestamp::from(SystemTime::now()).max(store.snapshot().unwrap().read_ts()).millis();
            let before = now();
            for text in [format!("{seconds}s"), format!("PT{seconds}S"), format!("-{seconds}s")] {
                let then = parse(&text).unwrap().resolve(&store).unwrap().millis();
                prop_assert!((before..=now()).contains(&(then + seconds * 1000)), "{}", text);
            }
        }
    }

    #[test]
    fn times_spans_and_timestamps_are_parsed() {
        assert_eq!(timestamp("1700000000000.7"), Some(Timestamp::from_u64((1_700_000_000_000 << 18) + 7)));
        assert_eq!(timestamp("2023-11-14T22:13:20Z"), Some(Timestamp::from_millis(1_700_000_000_000)));
        assert_eq!(timestamp("2023-11-15 00:13:20+02:00"), Some(Timestamp::from_millis(1_700_000_000_000)));
        assert!(matches!(parse("1h 30m"), Ok(PointInTime::Ago(_))));
        assert_eq!(parse("3d").is_ok(), parse("2023-11-14").is_ok());
        for wrong in ["", "yesterday", "5", "12:00", "2023-13-01", "1700000000000", "-"] {
            assert!(parse(wrong).is_err(), "{wrong:?} is read as {:?}", parse(wrong));
        }
    }

    #[test]
    fn skipped_and_repeated_local_times_are_refused_and_the_advice_works() {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        for (text, why) in [
            ("2026-03-29T02:30", "never: the clock was set forward"),
            ("2026-10-25 02:30", "twice: the clock was set back"),
        ] {
            let err = reject_ambiguous(text, &zone).unwrap_err();
            assert!(err.contains(why), "{err}");
            let meant: Vec<_> = err.rsplit("meant: ").next().unwrap().split(" or ").map(timestamp).collect();
            let [Some(first), Some(second)] = meant[..] else { panic!("{err}: {meant:?}") };
            assert_eq!(first.millis().abs_diff(second.millis()), 3_600_000, "{err}");
            reject_ambiguous(err.rsplit(" or ").next().unwrap(), &zone).unwrap();
        }
        for clear in
            ["2026-03-29T01:59", "2026-03-29T03:00", "2026-10-25T02:30+01:00", "2026-10-25T02:30Z", "2026-10-25"]
        {
            reject_ambiguous(clear, &zone).unwrap();
        }
        // Where a day begins with a skipped hour, its date alone means its first moment.
        let zone = TimeZone::posix("XXX3YYY,M10.3.0/0,M2.3.0/0").unwrap();
        reject_ambiguous("2026-10-18", &zone).unwrap();
        assert!(reject_ambiguous("2026-10-18T00:30", &zone).is_err());
    }
}
