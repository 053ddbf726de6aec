//! A bulk load: transactions of 10,000 rows each, in the order of their keys, by one client, each durable.
//!
//! An iteration is one transaction. The store grows meanwhile, and what its engine does in the background is in the figures.
//!
//! `cargo bench --bench load`.

#![allow(clippy::unwrap_used, reason = "a failure stops the bench")]

mod common;

use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use percolite::{Store, Txn};

const VALUE: [u8; 100] = [7; 100];
const ROWS: u64 = 10_000;

fn load(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
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
    let rows = store.snapshot().unwrap().range(&keyspace, ..).map(Result::unwrap).count();
    assert_eq!(rows as u64, loaded);
}

criterion_group! {
    name = benches;
    config = common::of_stores().sample_size(20);
    targets = load
}
criterion_main!(benches);
