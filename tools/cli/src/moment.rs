//! Which moment a command shows.
//!
//! "An hour ago" is counted back from now, or from the store's newest timestamp where that is ahead of the clock: after a process was
//! killed the next one begins up to three seconds ahead, and a clock can be set back. So `0s` is always all that there is. A time of day
//! can be off by as much, which is said.

use std::time::SystemTime;

use anyhow::Result;
use jiff::{Span, Zoned};
use percolite::{Keyspace, Scan, Snapshot, Store, Timestamp, Txn, Versions};

use crate::exit::Code;
use crate::range::Rows;

/// The option of commands that can show the past.
#[derive(clap::Args)]
pub struct Moment {
    /// Show the past: 5m (ago), 2026-11-21T14:00 (here), 2026-11-21T14:00Z, or a timestamp as `versions` shows them
    #[arg(long, value_name = "WHEN", value_parser = read)]
    at: Option<When>,
}

/// A moment as a command line says it.
#[derive(Clone, Copy, Debug)]
pub enum When {
    Timestamp(Timestamp),
    TimeOfDay(Timestamp),
    Ago(Span),
}

/// What is read: a moment's state, or what an open transaction sees, its own writes among it.
pub enum View<'a> {
    Snapshot(Snapshot),
    Txn(&'a Txn),
}

impl View<'_> {
    pub fn get(&self, keyspace: &Keyspace, key: &[u8]) -> percolite::Result<Option<Vec<u8>>> {
        match self {
            Self::Snapshot(snapshot) => snapshot.get(keyspace, key),
            Self::Txn(txn) => txn.get(keyspace, key),
        }
    }

    pub fn scan(&self, keyspace: &Keyspace, rows: &Rows) -> Scan {
        match (self, rows) {
            (Self::Snapshot(snapshot), Rows::Prefix(prefix)) => snapshot.prefix(keyspace, prefix),
            (Self::Snapshot(snapshot), Rows::Between(..)) => snapshot.range(keyspace, rows.bounds()),
            (Self::Txn(txn), Rows::Prefix(prefix)) => txn.prefix(keyspace, prefix),
            (Self::Txn(txn), Rows::Between(..)) => txn.range(keyspace, rows.bounds()),
        }
    }

    /// Without what the open transaction has written: that is no version yet.
    pub fn versions(&self, keyspace: &Keyspace, key: &[u8]) -> percolite::Result<Versions> {
        match self {
            Self::Snapshot(snapshot) => snapshot.versions(keyspace, key),
            Self::Txn(txn) => txn.versions(keyspace, key),
        }
    }
}

impl Moment {
    /// What is read: the moment that is said, else what the open transaction sees if there is one, and the keyspace of that name there.
    pub fn view<'a>(&self, store: &Store, txn: Option<&'a Txn>, keyspace: &str) -> Result<(View<'a>, Keyspace)> {
        if let Some(txn) = txn.filter(|_| self.at.is_none()) {
            return Ok((View::Txn(txn), crate::open::keyspace(store, keyspace, false)?));
        }
        let snapshot = self.snapshot(store)?;
        let keyspace = self.keyspace(store, &snapshot, keyspace)?;
        Ok((View::Snapshot(snapshot), keyspace))
    }

    /// What the store was then, or is.
    pub fn snapshot(&self, store: &Store) -> Result<Snapshot> {
        match self.at {
            None => Ok(store.snapshot()?),
            Some(when) => {
                check_kept(store)?;
                Ok(store.snapshot_at(when.resolve(store)?)?)
            }
        }
    }

    /// The keyspace of that name in the snapshot; it may have been dropped since.
    fn keyspace(&self, store: &Store, snapshot: &Snapshot, name: &str) -> Result<Keyspace> {
        if self.at.is_none() {
            return crate::open::keyspace(store, name, false);
        }
        let found = snapshot.keyspaces()?.into_iter().find(|keyspace| keyspace.name() == name);
        found.ok_or_else(|| Code::Missing.error(format!("there was no keyspace {name:?} at {:#}", snapshot.read_ts())))
    }
}

/// Refuses where there is no past.
pub fn check_kept(store: &Store) -> Result<()> {
    if store.stats().history_start_ts.is_some() {
        return Ok(());
    }
    Err(Code::Failed.error("the store keeps no history; percolite history STORE --keep 7d has it begin"))
}

impl When {
    /// The timestamp that is meant.
    pub fn resolve(self, store: &Store) -> Result<Timestamp> {
        let newest = store.snapshot()?.read_ts();
        let ahead = newest.millis().saturating_sub(Timestamp::from(SystemTime::now()).millis());
        match self {
            Self::Timestamp(at) => Ok(at),
            Self::TimeOfDay(at) => {
                if ahead > 0 {
                    let ahead = std::time::Duration::from_millis(ahead);
                    eprintln!(
                        "note: the store's timestamps are {ahead:.1?} ahead of the clock, so a time of day is off by as much; 5m and the like are counted back from its newest one"
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

pub fn read(text: &str) -> Result<When, String> {
    let told = |why: jiff::Error| why.to_string();
    if let Ok(ago) = text.parse::<Span>() {
        // Told here if there is no such time.
        Zoned::now().checked_sub(ago.abs()).map_err(told)?;
        return Ok(When::Ago(ago.abs()));
    }
    let at = text.parse::<Timestamp>().map_err(|why| format!("not how long ago (5m, 2h, 3d), and {why}"))?;
    // A timestamp begins with all of its milliseconds.
    let is_timestamp = text.split_once('.').is_some_and(|(millis, _)| millis.bytes().all(|byte| byte.is_ascii_digit()));
    Ok(if is_timestamp { When::Timestamp(at) } else { When::TimeOfDay(at) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn timestamp(text: &str) -> Option<Timestamp> {
        match read(text) {
            Ok(When::Timestamp(ts) | When::TimeOfDay(ts)) => Some(ts),
            Ok(When::Ago(_)) | Err(_) => None,
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text: String, like in "[-+0-9PTYMDHSZzyodhms.: ]{0,24}") {
            let _ = (read(&text), read(&like));
        }

        #[test]
        fn timestamps_and_moments_are_read_as_they_are_shown(number: u64, millis in 0_i64..4_000_000_000_000) {
            let ts = Timestamp::from_u64(number);
            prop_assert_eq!(timestamp(&ts.to_string()), Some(ts));
            let moment = jiff::Timestamp::from_millisecond(millis).unwrap();
            prop_assert_eq!(timestamp(&moment.to_string()), Some(Timestamp::from_millis(millis.unsigned_abs())));
        }

        #[test]
        fn a_span_is_so_long_ago(seconds in 1_u64..1_000_000_000) {
            let store = Store::in_memory().unwrap();
            let now = || Timestamp::from(SystemTime::now()).max(store.snapshot().unwrap().read_ts()).millis();
            let before = now();
            for text in [format!("{seconds}s"), format!("PT{seconds}S"), format!("-{seconds}s")] {
                let then = read(&text).unwrap().resolve(&store).unwrap().millis();
                prop_assert!((before..=now()).contains(&(then + seconds * 1000)), "{}", text);
            }
        }
    }

    #[test]
    fn times_spans_and_timestamps_are_read_and_nothing_else() {
        assert_eq!(timestamp("1700000000000.7"), Some(Timestamp::from_u64((1_700_000_000_000 << 18) + 7)));
        assert_eq!(timestamp("2023-11-14T22:13:20Z"), Some(Timestamp::from_millis(1_700_000_000_000)));
        assert_eq!(timestamp("2023-11-15 00:13:20+02:00"), Some(Timestamp::from_millis(1_700_000_000_000)));
        assert!(matches!(read("1h 30m"), Ok(When::Ago(_))));
        assert_eq!(read("3d").is_ok(), read("2023-11-14").is_ok());
        for wrong in ["", "yesterday", "5", "12:00", "2023-13-01", "1700000000000", "-"] {
            assert!(read(wrong).is_err(), "{wrong:?} is read as {:?}", read(wrong));
        }
    }
}
