//! Reads of random rows, in stores of ten thousand and of a million rows: `get` of one row,
//! `multi_get` of 16, and scans of 100 rows that return owned rows (an iterator) or borrowed ones
//! (`visit`).
//!
//! The stores are closed and reopened after they were filled, so all rows are in SSTs and none in a
//! memtable. The bench also measures scans of 10 rows by a transaction that has a thousand or
//! 200,000 own writes.
//!
//! `cargo bench --bench read`, or with `-- get` for one group.

#![allow(clippy::unwrap_used, reason = "a failure stops the bench")]

mod common;

use std::collections::VecDeque;
use std::ops::ControlFlow;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use percolite::{Durability, Keyspace, Snapshot, Store, Txn};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tempfile::TempDir;

const VALUE: [u8; 100] = [7; 100];
const SCAN_ROWS: usize = 100;
const MULTI_GET_ROWS: usize = 16;
const LOAD_ROWS: usize = 10_000;
const SHORT_SCAN_ROWS: usize = 10;
const OPEN_SCANS: usize = 100;

/// The rows of a store, all of one keyspace.
struct Rows {
    snapshot: Snapshot,
    keyspace: Keyspace,
    count: u64,
    _dir: TempDir,
}

impl Rows {
    fn load(count: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            let store = Store::builder().durability(Durability::Buffered).open(dir.path()).unwrap();
            let keyspace = store.keyspace("rows").unwrap();
            (store, keyspace)
        };
        {
            let (store, keyspace) = open();
            for from in (0..count).step_by(LOAD_ROWS) {
                let end = count.min(from + LOAD_ROWS as u64);
                let put = |txn: &mut Txn, row: u64| txn.put(&keyspace, row.to_be_bytes(), VALUE);
                store.transact(|txn| (from..end).try_for_each(|row| put(txn, row))).unwrap();
            }
            store.close().unwrap();
        }
        let (store, keyspace) = open();
        Self { snapshot: store.snapshot().unwrap(), keyspace, count, _dir: dir }
    }
}

fn reads(criterion: &mut Criterion) {
    // The stores are loaded here and not by the first sample: `--quick` estimates the time of a
    // read from the time of a sample, which must not include the load.
    let stores = [10_000, 1_000_000].map(Rows::load);
    let mut rng = StdRng::seed_from_u64(0);

    let mut group = criterion.benchmark_group("get");
    group.throughput(Throughput::Elements(1));
    for Rows { snapshot, keyspace, count, .. } in &stores {
        group.bench_function(count.to_string(), |bencher| {
            bencher.iter(|| {
                let row = rng.random_range(0..*count).to_be_bytes();
                assert!(snapshot.get(keyspace, row).unwrap().is_some());
            });
        });
    }
    group.finish();

    let mut group = criterion.benchmark_group("multi-get-16");
    group.throughput(Throughput::Elements(MULTI_GET_ROWS as u64));
    for Rows { snapshot, keyspace, count, .. } in &stores {
        group.bench_function(count.to_string(), |bencher| {
            bencher.iter(|| {
                let rows: [_; MULTI_GET_ROWS] = std::array::from_fn(|_| rng.random_range(0..*count).to_be_bytes());
                assert!(snapshot.multi_get(keyspace, rows).unwrap().iter().all(Option::is_some));
            });
        });
    }
    group.finish();

    let mut group = criterion.benchmark_group("scan-100");
    group.throughput(Throughput::Elements(SCAN_ROWS as u64));
    for Rows { snapshot, keyspace, count, .. } in &stores {
        group.bench_function(count.to_string(), |bencher| {
            bencher.iter(|| {
                let from = rng.random_range(0..=count - SCAN_ROWS as u64).to_be_bytes();
                let rows = snapshot.range(keyspace, from..).take(SCAN_ROWS);
                assert_eq!(rows.map(Result::unwrap).count(), SCAN_ROWS);
            });
        });
    }
    group.finish();

    let mut group = criterion.benchmark_group("visit-100");
    group.throughput(Throughput::Elements(SCAN_ROWS as u64));
    for Rows { snapshot, keyspace, count, .. } in &stores {
        group.bench_function(count.to_string(), |bencher| {
            bencher.iter(|| {
                let from = rng.random_range(0..=count - SCAN_ROWS as u64).to_be_bytes();
                let mut left = SCAN_ROWS;
                let visited = snapshot.range(keyspace, from..).visit(|_, _| {
                    left -= 1;
                    if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
                assert!(visited.unwrap().is_break());
            });
        });
    }
}

/// Short scans by a transaction with many own writes: alone, and alternating with writes while
/// earlier scans are still open.
fn own_writes(criterion: &mut Criterion) {
    let store = Store::builder().large_transaction_bytes(usize::MAX).in_memory().unwrap();
    let keyspace = store.keyspace("rows").unwrap();
    let mut rng = StdRng::seed_from_u64(0);
    let mut group = criterion.benchmark_group("scan-10-own-writes");
    for count in [1_000_u64, 200_000] {
        let mut txn = store.begin().unwrap();
        (0..count).for_each(|row| txn.put(&keyspace, row.to_be_bytes(), VALUE).unwrap());
        group.bench_function(count.to_string(), |bencher| {
            bencher.iter(|| {
                let from = rng.random_range(0..=count - SHORT_SCAN_ROWS as u64).to_be_bytes();
                assert_eq!(
                    txn.range(&keyspace, from..).take(SHORT_SCAN_ROWS).map(Result::unwrap).count(),
                    SHORT_SCAN_ROWS
                );
            });
        });
        group.bench_function(format!("{count}-and-write"), |bencher| {
            let mut open = VecDeque::new();
            bencher.iter(|| {
                let from = rng.random_range(0..=count - SHORT_SCAN_ROWS as u64).to_be_bytes();
                let mut scan = txn.range(&keyspace, from..);
                assert_eq!(scan.by_ref().take(SHORT_SCAN_ROWS).map(Result::unwrap).count(), SHORT_SCAN_ROWS);
                open.push_back(scan);
                if open.len() > OPEN_SCANS {
                    open.pop_front();
                }
                txn.put(&keyspace, rng.random_range(0..count).to_be_bytes(), VALUE).unwrap();
            });
        });
    }
}

criterion_group! {
    name = benches;
    config = common::store();
    targets = reads, own_writes
}
criterion_main!(benches);
