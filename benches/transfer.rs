//! Bank transfers on percolite, with either commit protocol, and on RocksDB's own `TransactionDB`.
//!
//! A transfer reads two rows of 100 bytes and writes both. Every store is opened fresh for each measurement, the sum of all
//! balances is checked after it, and RocksDB is used as its documentation advises: rows are locked in the order of their
//! keys by `get_for_update`, a transaction that times out is tried again, and a durable commit sets `sync`.
//!
//! `cargo bench --bench transfer`, or with `-- --quick` for a run of about a minute.

#![allow(missing_docs, clippy::unwrap_used, clippy::cast_precision_loss)]

mod common;

use std::time::Duration;

use clap::Parser;
use comfy_table::Table;
use percolite::{CommitProtocol, Durability, Error, Keyspace, Store};
use rocksdb::{TransactionDB, TransactionDBOptions, TransactionOptions, WriteOptions};

use crate::common::{Numbers, line, rate};

const VALUE_BYTES: usize = 100;
const OPENING_BALANCE: u64 = 1000;

#[derive(Parser)]
struct Arguments {
    /// How long each measurement runs, in seconds.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// How many rounds the ratios are taken over.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Short measurements, three rounds.
    #[arg(long)]
    quick: bool,
    /// Only these numbers of clients.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64])]
    clients: Vec<u64>,
    /// Only these numbers of accounts.
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 10])]
    accounts: Vec<u64>,
    /// Only `durable` or only `buffered`.
    #[arg(long)]
    only: Option<String>,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

struct Setting {
    durable: bool,
    clients: u64,
    accounts: u64,
    duration: Duration,
}

fn main() {
    let mut arguments = Arguments::parse();
    if arguments.quick {
        arguments.seconds = 0.5;
        arguments.rounds = 3;
    }
    let names = ["one-phase", "two-phase", "TransactionDB"];
    let mut table = Table::new();
    table.set_header(["durability", "accounts", "clients", names[0], names[1], names[2], "1p / TDB", "2p / TDB"]);
    for durable in [true, false] {
        if arguments.only.as_ref().is_some_and(|only| (only == "durable") != durable) {
            continue;
        }
        for &accounts in &arguments.accounts {
            for &clients in &arguments.clients {
                let duration = Duration::from_secs_f64(arguments.seconds);
                let setting = Setting { durable, clients, accounts, duration };
                let rounds: Vec<Vec<f64>> = (0..arguments.rounds)
                    .map(|_| {
                        vec![
                            percolite(&setting, CommitProtocol::Auto),
                            percolite(&setting, CommitProtocol::TwoPhase),
                            transaction_db(&setting),
                        ]
                    })
                    .collect();
                let mut cells = vec![
                    if durable { "durable" } else { "buffered" }.to_owned(),
                    accounts.to_string(),
                    clients.to_string(),
                ];
                cells.extend(line(&names, &rounds));
                println!("{}", cells.join("  "));
                table.add_row(cells);
            }
        }
    }
    println!("\nCommitted transfers a second: medians of {} rounds. Ratios: median (least..most).", arguments.rounds);
    println!("{table}");
}

fn percolite(setting: &Setting, protocol: CommitProtocol) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let durability = if setting.durable { Durability::Sync } else { Durability::Buffered };
    let store = Store::builder().durability(durability).protocol(protocol).open(folder.path()).unwrap();
    let accounts = store.keyspace("accounts").unwrap();
    let all: Vec<u64> = (0..setting.accounts).collect();
    for some in all.chunks(1000) {
        let load = |txn: &mut percolite::Txn| {
            some.iter().try_for_each(|account| txn.put(&accounts, key(*account), value(OPENING_BALANCE)))
        };
        store.transact(load).unwrap();
    }
    let rate = rate(setting.clients, setting.duration, |numbers| {
        let (from, to, amount) = transfer(numbers, setting.accounts);
        let work = |txn: &mut percolite::Txn| transfer_in(txn, &accounts, from, to, amount);
        store.transact(work).unwrap();
    });
    let rows = store.snapshot().unwrap().range(&accounts, ..).map(|row| balance(&row.unwrap().1)).sum::<u64>();
    assert_eq!(rows, setting.accounts * OPENING_BALANCE);
    rate
}

fn transfer_in(txn: &mut percolite::Txn, accounts: &Keyspace, from: u64, to: u64, amount: u64) -> Result<(), Error> {
    let payer = balance(&txn.get(accounts, key(from))?.unwrap());
    let payee = balance(&txn.get(accounts, key(to))?.unwrap());
    let amount = amount.min(payer);
    txn.put(accounts, key(from), value(payer - amount))?;
    txn.put(accounts, key(to), value(payee + amount))
}

fn transaction_db(setting: &Setting) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let mut options = rocksdb::Options::default();
    options.create_if_missing(true);
    options.set_compression_type(rocksdb::DBCompressionType::Lz4);
    let db: TransactionDB = TransactionDB::open(&options, &TransactionDBOptions::default(), folder.path()).unwrap();
    for account in 0..setting.accounts {
        db.put(key(account), value(OPENING_BALANCE)).unwrap();
    }
    let mut write_options = WriteOptions::default();
    write_options.set_sync(setting.durable);
    let rate = rate(setting.clients, setting.duration, |numbers| {
        let (from, to, amount) = transfer(numbers, setting.accounts);
        while try_transfer(&db, &write_options, from, to, amount).is_err() {}
    });
    let rows = db.iterator(rocksdb::IteratorMode::Start).map(|row| balance(&row.unwrap().1)).sum::<u64>();
    assert_eq!(rows, setting.accounts * OPENING_BALANCE);
    rate
}

fn try_transfer(
    db: &TransactionDB,
    options: &WriteOptions,
    from: u64,
    to: u64,
    amount: u64,
) -> Result<(), rocksdb::Error> {
    let txn = db.transaction_opt(options, &TransactionOptions::default());
    let read = |account| txn.get_for_update(key(account), true).map(|found| balance(&found.unwrap()));
    let (first, second) = (read(from.min(to))?, read(from.max(to))?);
    let (payer, payee) = if from < to { (first, second) } else { (second, first) };
    let amount = amount.min(payer);
    txn.put(key(from), value(payer - amount))?;
    txn.put(key(to), value(payee + amount))?;
    txn.commit()
}

/// Two different accounts and an amount.
fn transfer(numbers: &mut Numbers, accounts: u64) -> (u64, u64, u64) {
    let from = numbers.below(accounts);
    let to = (from + 1 + numbers.below(accounts - 1)) % accounts;
    (from, to, 1 + numbers.below(10))
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
