//! Point reads and short scans on percolite, and on RocksDB itself with the same options.
//!
//! `cargo bench --bench read`.

#![allow(missing_docs, clippy::unwrap_used, clippy::cast_precision_loss)]

mod common;

use std::time::Duration;

use clap::Parser;
use comfy_table::Table;
use percolite::{Durability, Store, Txn};
use rocksdb::{BlockBasedOptions, Cache, DB, DBCompressionType};

use crate::common::{line, rate};

const VALUE: [u8; 100] = [7; 100];
const SCAN_ROWS: usize = 100;

#[derive(Parser)]
struct Arguments {
    /// How long each measurement runs, in seconds.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// How many rounds the ratios are taken over.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How many rows there are.
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 1_000_000])]
    rows: Vec<u64>,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let arguments = Arguments::parse();
    let duration = Duration::from_secs_f64(arguments.seconds);
    let names = ["percolite", "RocksDB"];
    let mut table = Table::new();
    table.set_header(["work", "rows", "clients", names[0], names[1], "ratio"]);
    for &rows in &arguments.rows {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::builder().durability(Durability::Buffered).open(folder.path().join("percolite")).unwrap();
        let keyspace = store.keyspace("rows").unwrap();
        let db = open_rocksdb(&folder.path().join("rocksdb"));
        let all: Vec<u64> = (0..rows).collect();
        for some in all.chunks(10_000) {
            let load = |txn: &mut Txn| some.iter().try_for_each(|row| txn.put(&keyspace, row.to_be_bytes(), VALUE));
            store.transact(load).unwrap();
            some.iter().for_each(|row| db.put(row.to_be_bytes(), VALUE).unwrap());
        }
        let snapshot = store.snapshot().unwrap();
        for clients in [1, 2] {
            let get = |_| {
                vec![
                    rate(clients, duration, |numbers| {
                        assert!(snapshot.get(&keyspace, numbers.below(rows).to_be_bytes()).unwrap().is_some());
                    }),
                    rate(clients, duration, |numbers| {
                        assert!(db.get(numbers.below(rows).to_be_bytes()).unwrap().is_some());
                    }),
                ]
            };
            add(&mut table, "get", rows, clients, &names, &(0..arguments.rounds).map(get).collect::<Vec<_>>());
        }
        let last = rows - SCAN_ROWS as u64;
        let scan = |_| {
            vec![
                rate(1, duration, |numbers| {
                    let from = numbers.below(last).to_be_bytes();
                    assert_eq!(
                        snapshot.range(&keyspace, from..).take(SCAN_ROWS).map(Result::unwrap).count(),
                        SCAN_ROWS
                    );
                }),
                rate(1, duration, |numbers| {
                    let from = numbers.below(last).to_be_bytes();
                    let mode = rocksdb::IteratorMode::From(&from, rocksdb::Direction::Forward);
                    assert_eq!(db.iterator(mode).take(SCAN_ROWS).map(Result::unwrap).count(), SCAN_ROWS);
                }),
            ]
        };
        add(&mut table, "scan of 100", rows, 1, &names, &(0..arguments.rounds).map(scan).collect::<Vec<_>>());
    }
    println!("\nOperations a second: medians of {} rounds. Ratios: median (least..most).", arguments.rounds);
    println!("{table}");
}

fn add(table: &mut Table, work: &str, rows: u64, clients: u64, names: &[&str], rounds: &[Vec<f64>]) {
    let mut cells = vec![work.to_owned(), rows.to_string(), clients.to_string()];
    cells.extend(line(names, rounds));
    println!("{}", cells.join("  "));
    table.add_row(cells);
}

/// The options that the store's engine sets, as far as they concern reading.
fn open_rocksdb(path: &std::path::Path) -> DB {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_hyper_clock_cache(128 << 20, 0));
    table.set_bloom_filter(10.0, false);
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    let mut options = rocksdb::Options::default();
    options.create_if_missing(true);
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_block_based_table_factory(&table);
    DB::open(&options, path).unwrap()
}
