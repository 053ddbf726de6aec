//! A bulk load by one client: durable transactions of 10,000 rows each, in key order.
//!
//! An iteration is one transaction. The store grows during the measurement, so flushes and
//! compactions are included.
//!
//! `cargo bench --bench load`.

#![allow(clippy::unwrap_used, reason = "a failure stops the bench")]

mod common;

use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use percolite::{Store, Txn};

const VALUE: [u8; 100] = [7; 100];
const ROWS: u64 = 10_000;

fn load(criterion: &mut Criterion) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let keyspace = store.keyspace("rows").unwrap();
    let mut loaded = 0;
    let mut group = criterion.benchmark_group("load");
    group.sampling_mode(SamplingMode::Flat).throughput(Throughput::Elements(ROWS));
    group.bench_function("sorted", |bencher| {
        bencher.iter(|| {
            let put = |txn: &mut Txn, row: u64| txn.put(&keyspace, row.to_be_bytes(), VALUE);
            store.transact(|txn| (loaded..loaded + ROWS).try_for_each(|row| put(txn, row))).unwrap();
            loaded += ROWS;
        });
    });
    let rows = store.range(&keyspace, ..).unwrap().map(Result::unwrap).count();
    assert_eq!(rows as u64, loaded);
}

criterion_group! {
    name = benches;
    config = common::store().sample_size(20);
    targets = load
}
criterion_main!(benches);
