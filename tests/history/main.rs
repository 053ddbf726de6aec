//! History: reads as of any timestamp within the history retention, and GC of what is older.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::pedantic, missing_docs, reason = "style of a library, not of its tests")]

mod clock;
mod past;
mod retention;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use percolite::{Builder, Keyspace, Stats, Store, Timestamp, Value};

use crate::support::Home;

const HOUR: Duration = Duration::from_secs(3600);

/// The rows of a keyspace.
type State = BTreeMap<Vec<u8>, Value>;

fn homes() -> Vec<Home> {
    vec![
        Home::embedded(),
        Home::row_by_row(),
        #[cfg(feature = "rocks")]
        Home::rocks(),
    ]
}

fn with_retention(retention: Duration) -> Builder {
    Store::builder().history_retention(retention)
}

fn put(store: &Store, rows: &Keyspace, key: &str, value: impl Into<percolite::Value>) -> Timestamp {
    let mut txn = store.begin().unwrap();
    txn.put(rows, key, value).unwrap();
    txn.commit().unwrap().commit_ts
}

fn delete(store: &Store, rows: &Keyspace, key: &str) -> Timestamp {
    let mut txn = store.begin().unwrap();
    txn.delete(rows, key).unwrap();
    txn.commit().unwrap().commit_ts
}

/// All rows as of a timestamp, read forwards and backwards.
fn state_at(store: &Store, rows: &Keyspace, at: Timestamp) -> State {
    let snapshot = store.snapshot_at(at).unwrap();
    assert_eq!(snapshot.read_ts(), at);
    let forwards: State = snapshot.range(rows, ..).map(|row| row.unwrap().into_parts()).collect();
    let backwards: State = snapshot.range(rows, ..).rev().map(|row| row.unwrap().into_parts()).collect();
    assert!(forwards == backwards, "at {at}");
    forwards
}

/// The values that the row had, newest first.
fn values(store: &Store, rows: &Keyspace, key: &str) -> Vec<Option<Value>> {
    store.snapshot().unwrap().versions(rows, key).unwrap().map(|version| version.unwrap().value).collect()
}

fn wait(store: &Store, what: &str, done: impl Fn(&Stats) -> bool) {
    let began = Instant::now();
    while !done(&store.stats()) {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}: {:?}", store.stats());
        std::thread::sleep(Duration::from_millis(2));
    }
}
