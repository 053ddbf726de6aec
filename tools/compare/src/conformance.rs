//! Tests that every store does the same work. If one store did less, the comparison would be
//! meaningless.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;

use crate::fixtures;
use crate::generator::{Skew, key, number};
use crate::peer::{
    Fjall, Lmdb, Optimistic, Peer, Percolite, Pessimistic, Plain, Read as _, Redb, Row, Session, Sqlite, StoreConfig,
    StoreKind, SurrealKv,
};
use crate::spec::{Conditions, Setting, Spec};
use crate::workload::{
    BulkLoad, Bystanders, Counters, HotRow, Index, Mix, ReadKind, Reads, ReadsDuringLoad, TimeTravel, Transfers,
    Workload, Ycsb,
};

const THREADS: u64 = 4;
const INCREMENTS: u64 = 100;
/// The number of operations of each client, in each workload.
const OPERATIONS: u64 = 6;

fn config(dir: &std::path::Path, durable: bool, history: bool) -> StoreConfig {
    let (cache_bytes, write_buffer_bytes) = (16 << 20, 16 << 20);
    StoreConfig { dir: dir.join("store"), durable, cache_bytes, write_buffer_bytes, clients: 4, history }
}

fn rows(numbers: std::ops::Range<u64>) -> impl Iterator<Item = Row> {
    numbers.map(|row| (key(row).to_vec(), key(row).to_vec()))
}

/// Loads rows, then reads and scans them, both before and after reopening the store.
fn reads_and_scans<P: Peer>(durable: bool) {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), durable, false);
    let peer = P::open(&config).unwrap();
    let mut session = peer.session().unwrap();
    session.load(rows(0..500)).unwrap();
    session.load(rows(500..1000)).unwrap();
    drop(session);
    check(&peer);
    peer.close().unwrap();
    let peer = P::open(&config).unwrap();
    check(&peer);
    peer.close().unwrap();
}

fn check(peer: &impl Peer) {
    let mut session = peer.session().unwrap();
    let reader = session.reader(None).unwrap();
    let get = |row| {
        let mut found = None;
        let is_there = reader.get(&key(row), |value| found = Some(number(value))).unwrap();
        assert_eq!(is_there, found.is_some());
        found
    };
    assert_eq!((get(0), get(999), get(1000)), (Some(0), Some(999), None));
    let mut seen = Vec::new();
    let keys: Vec<Vec<u8>> = [7, 5000, 3].map(|row| key(row).to_vec()).to_vec();
    assert_eq!(reader.multi_get(&keys, |value| seen.push(number(value))).unwrap(), 2);
    assert_eq!(seen, [7, 3]);
    let scan = |from, rows| {
        let mut seen = Vec::new();
        let found = reader.scan(&key(from), rows, |key, value| {
            assert_eq!(number(key), number(value));
            seen.push(number(key));
        });
        assert_eq!(found.unwrap(), seen.len());
        seen
    };
    assert!(scan(10, 300).into_iter().eq(10..310));
    assert_eq!(scan(998, 10), [998, 999]);
    assert_eq!(scan(0, usize::MAX >> 1).len(), 1000);
    assert!(scan(1000, 10).is_empty());
}

/// Concurrent increments of one row are all counted. An inserted row is absent before its
/// transaction and present after it.
fn transactions<P: Peer>(durable: bool) {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), durable, false);
    let peer = P::open(&config).unwrap();
    peer.session().unwrap().load(rows(0..1)).unwrap();
    let attempts = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut session = peer.session().unwrap();
                for _ in 0..INCREMENTS {
                    let add = &mut |txn: &mut dyn crate::peer::Write| -> Result<()> {
                        attempts.fetch_add(1, Ordering::Relaxed);
                        let mut count = 0;
                        assert!(txn.get_for_update(&key(0), &mut |value| count = number(value))?);
                        // Lets other transactions interleave, if the store allows it.
                        std::thread::yield_now();
                        txn.put(&key(0), &key(count + 1))
                    };
                    session.transact(add).unwrap();
                }
            });
        }
    });
    assert!(attempts.into_inner() >= THREADS * INCREMENTS);
    let mut session = peer.session().unwrap();
    let mut insert = |txn: &mut dyn crate::peer::Write| -> Result<()> {
        assert!(!txn.get_for_update(&key(1), &mut |_| ())?);
        txn.put(&key(1), &key(17))
    };
    session.transact(&mut insert).unwrap();
    drop(session);
    for peer in [Some(peer), None] {
        let peer = peer.unwrap_or_else(|| P::open(&config).unwrap());
        let mut session = peer.session().unwrap();
        let reader = session.reader(None).unwrap();
        let mut seen = Vec::new();
        reader.scan(&[0], 10, |_, value| seen.push(number(value))).unwrap();
        assert_eq!(seen, [THREADS * INCREMENTS, 17]);
        drop(reader);
        drop(session);
        peer.close().unwrap();
    }
}

/// A transaction whose closure fails writes nothing, and the next transaction does not wait for it.
fn failures<P: Peer>() {
    let dir = tempfile::tempdir().unwrap();
    let peer = P::open(&config(dir.path(), true, false)).unwrap();
    let mut session = peer.session().unwrap();
    session.load(rows(0..1)).unwrap();
    let mut fail = |txn: &mut dyn crate::peer::Write| -> Result<()> {
        txn.put(&key(0), &key(5))?;
        anyhow::bail!("on purpose")
    };
    assert_eq!(session.transact(&mut fail).unwrap_err().to_string(), "on purpose");
    session.transact(&mut |txn| txn.put(&key(1), &key(1))).unwrap();
    let mut seen = Vec::new();
    session.reader(None).unwrap().scan(&[0], 10, |_, value| seen.push(number(value))).unwrap();
    assert_eq!(seen, [0, 1]);
}

/// Runs each workload that the store supports for a few operations, and verifies its rows.
fn workloads(store: StoreKind) {
    let skew = Skew::Zipf;
    let reads = |kind, rows| Workload::Reads(Reads { rows, kind, skew });
    let ycsb = |mix| Workload::Ycsb(Ycsb { mix, rows: 200 });
    let all = [
        Workload::Transfers(Transfers { accounts: 10, rows_per_transfer: 4, skew }),
        Workload::Counters(Counters { counters: 3, skew: Skew::Uniform }),
        Workload::Bystanders(Bystanders { contending: 3 }),
        Workload::Index(Index {}),
        Workload::BulkLoad(BulkLoad { rows: 25_000 }),
        Workload::ReadsDuringLoad(ReadsDuringLoad { rows: 200 }),
        Workload::TimeTravel(TimeTravel { rows: 1200 }),
        Workload::HotRow(HotRow { versions: 50 }),
        reads(ReadKind::Get, 100),
        reads(ReadKind::GetRecent, 100),
        reads(ReadKind::MultiGet, 100),
        reads(ReadKind::Scan, 100),
        reads(ReadKind::LongScan, 10_000),
    ];
    let mixes = [Mix::A, Mix::B, Mix::C, Mix::D, Mix::E, Mix::F].map(ycsb);
    for work in all.into_iter().chain(mixes).filter(|work| work.supports(store)) {
        for durable in [true, false] {
            let setting = Setting { work: work.clone(), clients: 3, durable };
            // A number of operations instead of a time, which may be too short on a busy machine.
            let conditions = Conditions { operations: Some(OPERATIONS), ..fixtures::conditions() };
            let spec = Spec { setting, store, conditions, round: 1 };
            let dir = tempfile::tempdir().unwrap();
            let outcome = crate::measurement::run(&spec, &dir.path().join("store"));
            assert!(outcome.metrics().is_some(), "{work} on {store:?}: {outcome:?}");
            let measured = outcome.metrics().unwrap();
            // The three measured clients are counted, background clients are not.
            let sum = measured.by_client.iter().sum::<u64>();
            assert_eq!((measured.by_client.len(), sum), (3, measured.operations), "{work} on {store:?}");
        }
    }
}

macro_rules! conforms {
    ($name:ident, $peer:ty, $kind:expr) => {
        mod $name {
            use super::*;

            #[test]
            fn loads_are_read_in_order() {
                reads_and_scans::<$peer>(true);
                reads_and_scans::<$peer>(false);
            }

            #[test]
            fn no_update_is_lost() {
                if $kind != StoreKind::Rocks {
                    transactions::<$peer>(true);
                    transactions::<$peer>(false);
                    failures::<$peer>();
                }
            }

            #[test]
            fn every_workload_is_verified() {
                workloads($kind);
            }
        }
    };
}

conforms!(one_phase, Percolite<false>, StoreKind::Percolite);
conforms!(two_phase, Percolite<true>, StoreKind::PercoliteTwoPhase);
conforms!(rocks_optimistic, Optimistic, StoreKind::RocksOptimistic);
conforms!(rocks_transaction, Pessimistic, StoreKind::RocksTransaction);
conforms!(rocks, Plain, StoreKind::Rocks);
conforms!(fjall, Fjall, StoreKind::Fjall);
conforms!(redb, Redb, StoreKind::Redb);
conforms!(lmdb, Lmdb, StoreKind::Lmdb);
conforms!(sqlite, Sqlite, StoreKind::Sqlite);
conforms!(surrealkv, SurrealKv, StoreKind::Surrealkv);
