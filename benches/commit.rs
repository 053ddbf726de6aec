//! Transfers by 1, 16 and 64 concurrent clients. A transfer reads two rows and writes both.
//!
//! An iteration is one transfer. Its time is the time from the start of the first client to the end
//! of the last, divided by the number of transfers of all clients. The inverse, which is printed
//! too, is the throughput. By default Criterion's samples differ in length, and a short one would
//! mostly measure the start and end of the clients. So all samples have the same number of
//! transfers.
//!
//! `cargo bench --bench commit`, or with `-- durable/2-of-10000` for one group: durable transfers
//! in a bank of 10,000 accounts.

#![allow(clippy::unwrap_used, reason = "a failure stops the bench")]

mod common;

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use percolite::{Durability, Error, Keyspace, Store, Txn};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tempfile::TempDir;

const VALUE_BYTES: usize = 100;
const OPENING_BALANCE: u64 = 1000;

/// A store with accounts, and the clients that move money between them.
struct Bank {
    store: Store,
    accounts: Keyspace,
    size: u64,
    /// One random generator per client.
    clients: Vec<StdRng>,
    _dir: TempDir,
}

impl Bank {
    fn open(durability: Durability, size: u64, clients: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::builder().durability(durability).open(dir.path()).unwrap();
        let accounts = store.keyspace("accounts").unwrap();
        let load =
            |txn: &mut Txn| (0..size).try_for_each(|account| txn.put(&accounts, key(account), value(OPENING_BALANCE)));
        store.transact(load).unwrap();
        Self { store, accounts, size, clients: (0..clients).map(StdRng::seed_from_u64).collect(), _dir: dir }
    }

    /// The clients make this number of transfers in total. Returns the elapsed time.
    fn transfers(&mut self, total: u64) -> Duration {
        let Self { store, accounts, size, clients, .. } = self;
        let claimed = AtomicU64::new(0);
        let barrier = Barrier::new(clients.len());
        let client = |rng: &mut StdRng| {
            barrier.wait();
            let started = Instant::now();
            while claimed.fetch_add(1, Ordering::Relaxed) < total {
                let from = rng.random_range(0..*size);
                let to = (from + rng.random_range(1..*size)) % *size;
                let amount = rng.random_range(1..=10);
                store.transact(|txn| transfer(txn, accounts, from, to, amount)).unwrap();
            }
            (started, Instant::now())
        };
        let client = &client;
        thread::scope(|scope| {
            let clients: Vec<_> = clients.iter_mut().map(|rng| scope.spawn(move || client(rng))).collect();
            let times: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
            let started = times.iter().map(|(started, _)| *started).min().unwrap();
            let ended = times.iter().map(|(_, ended)| *ended).max().unwrap();
            ended.duration_since(started)
        })
    }

    fn sum(&self) -> u64 {
        self.store.range(&self.accounts, ..).unwrap().map(|row| balance(row.unwrap().value())).sum()
    }
}

fn transfer(txn: &mut Txn, accounts: &Keyspace, from: u64, to: u64, amount: u64) -> Result<(), Error> {
    let payer = balance(&txn.get(accounts, key(from))?.unwrap());
    let payee = balance(&txn.get(accounts, key(to))?.unwrap());
    let amount = amount.min(payer);
    txn.put(accounts, key(from), value(payer - amount))?;
    txn.put(accounts, key(to), value(payee + amount))
}

fn key(account: u64) -> [u8; 8] {
    account.to_be_bytes()
}

fn value(balance: u64) -> [u8; VALUE_BYTES] {
    let mut bytes = [0; VALUE_BYTES];
    bytes[..8].copy_from_slice(&balance.to_be_bytes());
    bytes
}

fn balance(value: &[u8]) -> u64 {
    u64::from_be_bytes(value[..8].try_into().unwrap())
}

fn commits(criterion: &mut Criterion) {
    for (name, durability) in [("durable", Durability::Sync), ("buffered", Durability::Buffered)] {
        for size in [10_000, 10] {
            let mut group = criterion.benchmark_group(format!("commit/{name}/2-of-{size}"));
            group.sampling_mode(SamplingMode::Flat).throughput(Throughput::Elements(1));
            for clients in [1, 16, 64] {
                // The first sample opens the bank, so a group that the command line filters out
                // costs nothing.
                let mut bank = None;
                group.bench_function(format!("clients-{clients}"), |bencher| {
                    let bank = bank.get_or_insert_with(|| Bank::open(durability, size, clients));
                    bencher.iter_custom(|transfers| bank.transfers(transfers));
                });
                if let Some(bank) = bank {
                    assert_eq!(bank.sum(), size * OPENING_BALANCE);
                }
            }
        }
    }
}

criterion_group! {
    name = benches;
    config = common::store().sample_size(30);
    targets = commits
}
criterion_main!(benches);
