//! What every peer must do for its figures to mean anything. Broken here, a comparison would be between different works.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;

use crate::dice::{Skew, key, number};
use crate::peer::{
    Fjall, Kind, Lmdb, Optimistic, Peer, Percolite, Pessimistic, Plain, Proof, Read as _, Redb, Row, Session, Setup,
    Sqlite, SurrealKv,
};
use crate::spec::{Conditions, Setting, Spec};
use crate::testing;
use crate::workload::{
    BulkLoad, Bystanders, Counters, HotRow, How, Index, Mix, Reads, ReadsDuringLoad, TimeTravel, Transfers, Workload,
    Ycsb,
};

const THREADS: u64 = 4;
const INCREMENTS: u64 = 100;
/// Of each client of a workload.
const OPERATIONS: u64 = 6;

fn setup(folder: &std::path::Path, durable: bool, history: bool) -> Setup {
    let (cache_bytes, write_buffer_bytes) = (16 << 20, 16 << 20);
    Setup { folder: folder.join("store"), durable, cache_bytes, write_buffer_bytes, clients: 4, history }
}

fn rows(numbers: std::ops::Range<u64>) -> impl Iterator<Item = Row> {
    numbers.map(|row| (key(row).to_vec(), key(row).to_vec()))
}

/// Loads, reads, scans; then the same after it was closed and opened again.
fn reads_and_scans<P: Peer>(durable: bool) {
    let folder = tempfile::tempdir().unwrap();
    let setup = setup(folder.path(), durable, false);
    let peer = P::open(&setup).unwrap();
    let mut session = peer.session().unwrap();
    session.load(rows(0..500)).unwrap();
    session.load(rows(500..1000)).unwrap();
    drop(session);
    check(&peer);
    peer.close().unwrap();
    let peer = P::open(&setup).unwrap();
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

/// Threads that add to one row lose none of it, and what a transaction has put is there after it, and not before.
fn transactions<P: Peer>(durable: bool) {
    let folder = tempfile::tempdir().unwrap();
    let setup = setup(folder.path(), durable, false);
    let peer = P::open(&setup).unwrap();
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
                        assert!(txn.get_to_write(&key(0), &mut |value| count = number(value))?);
                        // So that others come in between, where they can.
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
        assert!(!txn.get_to_write(&key(1), &mut |_| ())?);
        txn.put(&key(1), &key(17))
    };
    session.transact(&mut insert).unwrap();
    drop(session);
    for peer in [Some(peer), None] {
        let peer = peer.unwrap_or_else(|| P::open(&setup).unwrap());
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

/// Work that fails leaves nothing, and the next does not wait for it.
fn failures<P: Peer>() {
    let folder = tempfile::tempdir().unwrap();
    let peer = P::open(&setup(folder.path(), true, false)).unwrap();
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

/// Every workload that the store can do, a few times, with its own verification.
fn workloads(store: Kind) {
    let skew = Skew::Zipf;
    let reads = |how, rows| Workload::Reads(Reads { rows, how, skew });
    let ycsb = |mix| Workload::Ycsb(Ycsb { mix, rows: 200 });
    let all = [
        Workload::Transfers(Transfers { accounts: 10, touched: 4, skew }),
        Workload::Counters(Counters { counters: 3, skew: Skew::Uniform }),
        Workload::Bystanders(Bystanders { others: 3 }),
        Workload::Index(Index {}),
        Workload::BulkLoad(BulkLoad { rows: 25_000 }),
        Workload::ReadsDuringLoad(ReadsDuringLoad { rows: 200 }),
        Workload::TimeTravel(TimeTravel { rows: 1200 }),
        Workload::HotRow(HotRow { versions: 50 }),
        reads(How::Get, 100),
        reads(How::GetRecent, 100),
        reads(How::MultiGet, 100),
        reads(How::Scan, 100),
        reads(How::LongScan, 10_000),
    ];
    let mixes = [Mix::A, Mix::B, Mix::C, Mix::D, Mix::E, Mix::F].map(ycsb);
    for work in all.into_iter().chain(mixes).filter(|work| work.suits(store)) {
        for durable in [true, false] {
            let setting = Setting { work: work.clone(), clients: 3, durable };
            // A number of operations and no time, which a busy machine could spend on something else.
            let conditions = Conditions { operations: Some(OPERATIONS), ..testing::conditions() };
            let spec = Spec { setting, store, conditions, round: 1 };
            let folder = tempfile::tempdir().unwrap();
            let outcome = crate::cell::run(&spec, &folder.path().join("store"));
            assert!(outcome.measured().is_some(), "{work} on {store:?}: {outcome:?}");
            let measured = outcome.measured().unwrap();
            // Those who do other work beside the clients are not counted.
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
            fn reads_what_was_loaded_in_order() {
                reads_and_scans::<$peer>(true);
                reads_and_scans::<$peer>(false);
            }

            #[test]
            fn loses_no_update_of_four_threads() {
                if $kind != Kind::Rocks {
                    transactions::<$peer>(true);
                    transactions::<$peer>(false);
                    failures::<$peer>();
                }
            }

            #[test]
            fn does_every_workload_and_its_sums_are_right() {
                workloads($kind);
            }
        }
    };
}

conforms!(one_phase, Percolite<false>, Kind::Percolite);
conforms!(two_phase, Percolite<true>, Kind::PercoliteTwoPhase);
conforms!(proof, Proof, Kind::Proof);
conforms!(rocks_optimistic, Optimistic, Kind::RocksOptimistic);
conforms!(rocks_transaction, Pessimistic, Kind::RocksTransaction);
conforms!(rocks, Plain, Kind::Rocks);
conforms!(fjall, Fjall, Kind::Fjall);
conforms!(redb, Redb, Kind::Redb);
conforms!(lmdb, Lmdb, Kind::Lmdb);
conforms!(sqlite, Sqlite, Kind::Sqlite);
conforms!(surrealkv, SurrealKv, Kind::Surrealkv);
