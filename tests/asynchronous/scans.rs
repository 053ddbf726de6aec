//! Streams, compared with the scans of the synchronous store.

use std::sync::Arc;

use futures_core::Stream;
use percolite::engine::sim::SimStorage;
use percolite::{AsyncKeys, AsyncScan, AsyncSnapshot, AsyncStore, CommitProtocol, ErrorKind, Keyspace, Row, Store};

use crate::common::{both_runtimes, drop_after_polls, open};
use crate::hooked_engine::{Control, HookedEngine};
use crate::support::Dice;

type Rows = Vec<Row>;

const ROWS: u32 = 3000;

fn fill(store: &Store, rows: &Keyspace) -> Rows {
    store
        .transact(|txn| (0..ROWS).try_for_each(|row| txn.put(rows, row.to_be_bytes(), vec![7; row as usize % 300])))
        .unwrap();
    store.snapshot().unwrap().range(rows, ..).map(Result::unwrap).collect()
}

/// Reads all rows. For each row a first future is polled once or not at all, and dropped. If it was
/// not ready, a second one is awaited.
async fn collect(mut scan: AsyncScan, dice: &mut Dice) -> Rows {
    let mut rows = Rows::new();
    loop {
        let next = match drop_after_polls(dice.below(2), scan.next()).await {
            Some(next) => next,
            None => scan.next().await,
        };
        match next {
            Some(row) => rows.push(row.unwrap()),
            None => return rows,
        }
    }
}

#[test]
fn streams_match_scans_though_futures_are_dropped() {
    for runtime in both_runtimes(2) {
        let (store, rows) = open(1);
        let all = fill(store.store(), &rows);
        let mut dice = Dice(1);
        runtime.block_on(async {
            let snapshot = store.snapshot().await.unwrap();
            let backwards: Rows = all.iter().rev().cloned().collect();
            assert_eq!(collect(store.range(&rows, ..), &mut dice).await, all);
            assert_eq!(collect(snapshot.range(&rows, ..).rev(), &mut dice).await, backwards);
            assert_eq!(collect(snapshot.range(&rows, ..).rev().rev(), &mut dice).await, all);
            assert_eq!(collect(store.prefix(&rows, [0, 0, 1]), &mut dice).await, all[256..512]);
            let (from, to) = (10_u32.to_be_bytes(), 2000_u32.to_be_bytes());
            assert_eq!(collect(snapshot.range(&rows, from..=to), &mut dice).await, all[10..=2000]);
            assert_eq!(collect(snapshot.range(&rows, to..from), &mut dice).await, []);
            assert_eq!(collect(snapshot.prefix(&rows, [9]), &mut dice).await, []);
        });
    }
}

/// [`collect`] for keys.
async fn collect_keys(mut scan: AsyncKeys, dice: &mut Dice) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    loop {
        let next = match drop_after_polls(dice.below(2), scan.next()).await {
            Some(next) => next,
            None => scan.next().await,
        };
        match next {
            Some(key) => keys.push(key.unwrap()),
            None => return keys,
        }
    }
}

#[test]
fn streams_of_keys_match_scans_though_futures_are_dropped() {
    for runtime in both_runtimes(2) {
        let (store, rows) = open(1);
        let all: Vec<Vec<u8>> = fill(store.store(), &rows).into_iter().map(|row| row.into_parts().0).collect();
        let backwards: Vec<Vec<u8>> = all.iter().rev().cloned().collect();
        let mut dice = Dice(1);
        runtime.block_on(async {
            let snapshot = store.snapshot().await.unwrap();
            assert_eq!(collect_keys(store.range(&rows, ..).keys(), &mut dice).await, all);
            assert_eq!(collect_keys(snapshot.range(&rows, ..).keys().rev(), &mut dice).await, backwards);
            assert_eq!(collect_keys(snapshot.range(&rows, ..).rev().keys(), &mut dice).await, backwards);
            assert_eq!(collect_keys(store.prefix(&rows, [0, 0, 1]).keys(), &mut dice).await, all[256..512]);
            assert_eq!(collect_keys(snapshot.prefix(&rows, [9]).keys(), &mut dice).await, [[0_u8; 0]; 0]);
            // The keys go on after the rows that were returned, also while a page is being read.
            for rows_first in [0, 1, 32, 33, 100] {
                let mut scan = store.range(&rows, ..);
                for _ in 0..rows_first {
                    scan.next().await.unwrap().unwrap();
                }
                // Where a page ends, this poll begins the read of the next one.
                let polled = drop_after_polls(1, scan.next()).await;
                let read = rows_first + usize::from(polled.is_some());
                assert_eq!(collect_keys(scan.keys(), &mut dice).await, all[read..]);
            }
        });
    }
}

/// Whatever asks only which rows exist reads no value out of line.
#[test]
fn asynchronous_calls_for_keys_read_no_long_values() {
    for runtime in both_runtimes(2) {
        let control = Arc::new(Control::default());
        let engine = Arc::new(SimStorage::new().exclusive_engine());
        let engine = HookedEngine { engine, control: Arc::clone(&control), batch_rows_max: usize::MAX };
        let builder = Store::builder().commit_protocol(CommitProtocol::TwoPhase);
        let store = AsyncStore::from(builder.open_engine(Arc::new(engine)).unwrap());
        let rows = store.store().keyspace("rows").unwrap();
        store
            .store()
            .transact(|txn| ["a", "b", "c"].iter().try_for_each(|key| txn.put(&rows, key, vec![7; 1000])))
            .unwrap();
        runtime.block_on(async {
            let snapshot = store.snapshot().await.unwrap();
            let before = control.long_values_read();
            let keys = collect_keys(store.range(&rows, "b"..).keys(), &mut Dice(1)).await;
            assert_eq!(keys, [b"b", b"c"]);
            assert!(store.contains_key(&rows, "a").await.unwrap());
            assert!(snapshot.contains_key(&rows, "b").await.unwrap());
            assert!(!snapshot.contains_key(&rows, "d").await.unwrap());
            assert_eq!(control.long_values_read(), before);
            assert_eq!(collect(store.range(&rows, ..), &mut Dice(1)).await.len(), 3);
            assert_eq!(control.long_values_read(), before + 3);
        });
    }
}

#[test]
fn a_stream_of_the_store_reads_as_of_its_first_row() {
    for runtime in both_runtimes(2) {
        let (store, rows) = open(1);
        runtime.block_on(async {
            let before = store.snapshot().await.unwrap();
            let scan = store.range(&rows, ..);
            let put = rows.clone();
            store.transact(move |txn| txn.put(&put, "k", "v")).await.unwrap();
            assert_eq!(before.get(&rows, "k").await.unwrap(), None);
            assert_eq!(before.multi_get(&rows, ["k", "l"]).await.unwrap(), [None, None]);
            assert_eq!(store.multi_get(&rows, ["k", "l"]).await.unwrap(), [Some("v".into()), None]);
            assert_eq!(collect(scan, &mut Dice(1)).await.len(), 1);
            assert_eq!(before.read_ts(), before.snapshot().read_ts());
        });
    }
}

#[test]
fn a_dropped_stream_releases_its_snapshot() {
    for runtime in both_runtimes(2) {
        let (store, rows) = open(1);
        fill(store.store(), &rows);
        runtime.block_on(async {
            for polls in 0..100 {
                let mut scan = store.range(&rows, ..);
                drop_after_polls(polls % 3, scan.next()).await;
            }
        });
        drop(runtime);
        fill(store.store(), &rows);
        assert_eq!(store.store().stats().open_views, 1);
    }
}

#[test]
fn a_stream_ends_after_an_error() {
    fn is_stream<T: Stream + Unpin + Send>(_: &T) {}
    for runtime in both_runtimes(2) {
        let (store, rows) = open(1);
        let snapshot = AsyncSnapshot::from(store.store().snapshot().unwrap());
        let (mut scan, mut keys) = (snapshot.range(&rows, ..), snapshot.range(&rows, ..).keys());
        is_stream(&scan);
        is_stream(&keys);
        runtime.block_on(async {
            store.close().await.unwrap();
            let errors = [scan.next().await.unwrap().unwrap_err(), keys.next().await.unwrap().unwrap_err()];
            for error in errors {
                assert!(matches!(error.kind(), ErrorKind::Closed(_)), "{error}");
            }
            assert!(scan.next().await.is_none() && keys.next().await.is_none());
        });
    }
}

#[test]
#[cfg(feature = "rocks")]
fn a_finished_stream_does_not_keep_the_store_open() {
    for runtime in both_runtimes(2) {
        let directory = tempfile::tempdir().unwrap();
        let store = AsyncStore::from(Store::open(directory.path()).unwrap());
        let rows = store.store().keyspace("rows").unwrap();
        fill(store.store(), &rows);
        runtime.block_on(async {
            let mut scan = store.range(&rows, ..);
            while let Some(row) = scan.next().await {
                row.unwrap();
            }
            drop(store);
            Store::open(directory.path()).unwrap();
            assert!(scan.next().await.is_none());
        });
    }
}
