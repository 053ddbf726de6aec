//! Streams, compared with the scans of the synchronous store.

use futures_core::Stream;
#[cfg(feature = "rocks")]
use percolite::AsyncStore;
use percolite::{AsyncScan, AsyncSnapshot, ErrorKind, Keyspace, Row, Store};

use crate::common::{both_runtimes, drop_after_polls, open};
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
        let mut scan = snapshot.range(&rows, ..);
        is_stream(&scan);
        runtime.block_on(async {
            store.close().await.unwrap();
            let error = scan.next().await.unwrap().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Closed(_)), "{error}");
            assert!(scan.next().await.is_none());
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
