//! Which moment a command shows.

use std::time::SystemTime;

use anyhow::Result;
use jiff::tz::TimeZone;
use jiff::{Span, Zoned, civil};
use percolite::{Keyspace, Snapshot, Store, Timestamp};

use crate::exit::Code;

/// The option of commands that can show the past.
#[derive(clap::Args)]
pub struct Moment {
    /// Show the past: 5m (ago), 2026-11-21T14:00 (here), 2026-11-21T14:00Z, or a timestamp as `versions` shows them
    #[arg(long, value_name = "WHEN", value_parser = read)]
    at: Option<Timestamp>,
}

impl Moment {
    /// What the store was then, or is.
    pub fn snapshot(&self, store: &Store) -> Result<Snapshot> {
        match self.at {
            None => Ok(store.snapshot()?),
            Some(_) if store.stats().history_from.is_none() => {
                let what = "the store keeps no history; percolite history STORE --keep 7d has it begin";
                Err(Code::Failed.error(what))
            }
            Some(at) => Ok(store.snapshot_at(at)?),
        }
    }

    /// The keyspace of that name in the snapshot; it may have been dropped since.
    pub fn keyspace(&self, store: &Store, snapshot: &Snapshot, name: &str) -> Result<Keyspace> {
        let Some(at) = self.at else { return crate::open::keyspace(store, name, false) };
        let found = snapshot.keyspaces()?.into_iter().find(|keyspace| keyspace.name() == name);
        found.ok_or_else(|| Code::Missing.error(format!("there was no keyspace {name:?} at {at:#}")))
    }
}

fn read(text: &str) -> Result<Timestamp, String> {
    let told = |why: jiff::Error| why.to_string();
    if let Ok(ts) = text.parse::<Timestamp>() {
        return Ok(ts);
    }
    if let Ok(ago) = text.parse::<Span>() {
        let then = Zoned::now().checked_sub(ago.abs()).map_err(told)?;
        return Ok(SystemTime::from(then.timestamp()).into());
    }
    if let Ok(moment) = text.parse::<jiff::Timestamp>() {
        return Ok(SystemTime::from(moment).into());
    }
    let here = |civil: civil::DateTime| civil.to_zoned(TimeZone::system()).map_err(told);
    match text.parse::<civil::DateTime>() {
        Ok(civil) => Ok(SystemTime::from(here(civil)?.timestamp()).into()),
        Err(_) => Err("neither a time (2026-11-21T14:00), nor how long ago (5m, 2h, 3d), nor a timestamp".into()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text: String, like in "[-+0-9PTYMDHSZzyodhms.: ]{0,24}") {
            let _ = (read(&text), read(&like));
        }

        #[test]
        fn timestamps_and_moments_are_read_as_they_are_shown(number: u64, millis in 0_i64..4_000_000_000_000) {
            let ts = Timestamp::from_u64(number);
            prop_assert_eq!(read(&ts.to_string()), Ok(ts));
            let moment = jiff::Timestamp::from_millisecond(millis).unwrap();
            prop_assert_eq!(read(&moment.to_string()), Ok(Timestamp::from_millis(millis.unsigned_abs())));
        }

        #[test]
        fn a_span_is_so_long_ago(seconds in 0_u64..1_000_000_000) {
            let now = || Timestamp::from(SystemTime::now()).millis();
            let before = now();
            for text in [format!("{seconds}s"), format!("PT{seconds}S"), format!("-{seconds}s")] {
                let then = read(&text).unwrap().millis();
                prop_assert!((before..=now()).contains(&(then + seconds * 1000)), "{}", text);
            }
        }
    }

    #[test]
    fn times_spans_and_timestamps_are_read_and_nothing_else() {
        assert_eq!(read("1700000000000.7"), Ok(Timestamp::from_u64((1_700_000_000_000 << 18) + 7)));
        assert_eq!(read("2023-11-14T22:13:20Z"), Ok(Timestamp::from_millis(1_700_000_000_000)));
        assert_eq!(read("2023-11-15 00:13:20+02:00"), Ok(Timestamp::from_millis(1_700_000_000_000)));
        let now = Timestamp::from(SystemTime::now()).millis();
        let ago = now - read("1h 30m").unwrap().millis();
        assert!((5_390_000..5_500_000).contains(&ago), "{ago}");
        assert_eq!(read("3d").is_ok(), read("2023-11-14").is_ok());
        for wrong in ["", "yesterday", "5", "12:00", "2023-13-01", "1700000000000", "-"] {
            assert!(read(wrong).is_err(), "{wrong:?} is read as {:?}", read(wrong));
        }
    }
}
