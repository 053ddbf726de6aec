//! The steps of the commit protocol. Each is a decision over one row, which has a committed version
//! of 100 bytes and gets another version of that size.
//!
//! Each step is measured in a state in which it changes the row. The engine, which applies the
//! change, is not measured.
//!
//! `cargo bench --bench protocol`, or with `-- prewrite` for one step.

mod common;

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use percolite::OwnerId;
use percolite::Timestamp;
use percolite::internal::protocol::{
    CommitRow, OnePhase, Prewrite, Resolve, Step, StepError, TxnStatus, commit, one_phase, prewrite, resolve,
};
use percolite::row::{KeyspaceId, Lock, LockType, Mutation, RowKey, RowState, StoredValue, TxnId, WriteRecord};

const VALUE: [u8; 100] = [7; 100];
const BEFORE: u64 = 10;
const READ: u64 = 20;
const START: u64 = 21;
const COMMIT: u64 = 30;

fn txn(start_ts: u64) -> TxnId {
    TxnId { start_ts: Timestamp::from_u64(start_ts), owner: OwnerId::from_u64(1) }
}

fn key(key: &str) -> RowKey {
    RowKey::new(KeyspaceId(1), key.as_bytes())
}

fn steps(criterion: &mut Criterion) {
    let written = WriteRecord {
        commit_ts: Timestamp::from_u64(BEFORE),
        txn: txn(BEFORE - 1),
        value: Some(StoredValue::Inline(VALUE.into())),
        lock_only_ts: None,
    };
    let lock = Lock {
        txn: txn(START),
        primary: key("primary"),
        lock_type: LockType::Put(StoredValue::Inline(VALUE.into())),
        write_seq: 0,
        ttl_ms: 1000,
        min_commit_ts: Timestamp::from_u64(START + 1),
    };
    let unlocked = RowState { write: Some(written), ..RowState::default() };
    let locked = RowState { lock: Some(lock), ..unlocked.clone() };
    let (read_ts, commit_ts) = (Timestamp::from_u64(READ), Timestamp::from_u64(COMMIT));
    let (row, txn) = (key("row"), txn(START));
    let mutation = Mutation::Put(VALUE.into());

    let request = Prewrite {
        row: row.clone(),
        txn,
        read_ts,
        primary: key("primary"),
        mutation: mutation.clone(),
        write_seq: 0,
        ttl_ms: 1000,
        min_commit_ts: Timestamp::from_u64(START + 1),
    };
    measure(criterion, "prewrite", || prewrite(black_box(&unlocked), black_box(&request)));

    let request = CommitRow {
        row: row.clone(),
        txn,
        commit_ts,
        keep_txn_record: true,
        keep_old_version: false,
        on_shared_engine: false,
    };
    measure(criterion, "commit", || commit(black_box(&locked), black_box(&request)));

    let request = OnePhase { row: &row, txn, read_ts, commit_ts, mutation: &mutation, keep_old_version: false };
    measure(criterion, "one-phase", || one_phase(black_box(&unlocked), black_box(&request)));

    let status = TxnStatus::Committed(commit_ts);
    let request = Resolve { row: row.clone(), txn, status, keep_old_version: false, on_shared_engine: false };
    measure(criterion, "resolve", || resolve(black_box(&locked), black_box(&request)));
}

fn measure<T>(criterion: &mut Criterion, name: &str, step: impl Fn() -> Result<Step<T>, StepError>) {
    assert!(matches!(step(), Ok(Step::Apply(..))), "{name} changes nothing");
    criterion.benchmark_group("protocol").bench_function(name, |bencher| bencher.iter(&step));
}

criterion_group! {
    name = benches;
    config = common::micro();
    targets = steps
}
criterion_main!(benches);
