//! Encoding and decoding of records: a version and a row lock, each with a value of 100 bytes.
//!
//! `cargo bench --bench codec`, or with `-- version` for one kind of record.

#![allow(clippy::unwrap_used, reason = "a failure stops the bench")]

mod common;

use std::fmt::Debug;
use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use percolite::OwnerId;
use percolite::Timestamp;
use percolite::internal::codec::{InlineWrite, Record};
use percolite::row::{KeyspaceId, Lock, LockType, RowKey, StoredValue, TxnId, WriteRecord};

fn records(criterion: &mut Criterion) {
    // Realistic timestamps, because their encoding has a variable length.
    let start_ts = Timestamp::from_millis(1_800_000_000_000);
    let txn = TxnId { start_ts, owner: OwnerId::new(1_800_000_000_000, 7) };
    let value = StoredValue::Inline(vec![7; 100].into());

    let commit_ts = Timestamp::from_u64(start_ts.to_u64() + 100);
    let version = WriteRecord { commit_ts, txn, value: Some(value.clone()), lock_only_ts: None };
    let bytes = measure(criterion, "version", &version);
    // Reads decode a version in this way: the value is borrowed from the engine's bytes.
    criterion.benchmark_group("codec/version").bench_function("decode-in-place", |bencher| {
        bencher.iter(|| InlineWrite::decode(black_box(&bytes)).unwrap().value.len());
    });

    let primary = RowKey::new(KeyspaceId(1), &7_u64.to_be_bytes());
    let (lock_type, min_commit_ts) = (LockType::Put(value), start_ts.next());
    measure(criterion, "lock", &Lock { txn, primary, lock_type, write_seq: 0, ttl_ms: 1000, min_commit_ts });
}

fn measure<R: Record + Debug + PartialEq>(criterion: &mut Criterion, name: &str, record: &R) -> Vec<u8> {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    assert_eq!(R::decode(&bytes).unwrap(), *record);

    let mut group = criterion.benchmark_group(format!("codec/{name}"));
    let mut buffer = Vec::with_capacity(bytes.len());
    group.bench_function("encode", |bencher| {
        bencher.iter(|| {
            buffer.clear();
            black_box(record).encode(&mut buffer);
        });
    });
    group.bench_function("decode", |bencher| bencher.iter(|| R::decode(black_box(&bytes))));
    bytes
}

criterion_group! {
    name = benches;
    config = common::micro();
    targets = records
}
criterion_main!(benches);
