//! Stores with numbered rows.

use std::path::Path;

use percolite::{Builder, Durability, Error, Keyspace, Store, TxnOptions};

/// The size of a row's value: a few thousand rows are flushed, and then compacted.
const VALUE_BYTES: usize = 1000;

pub fn small() -> Builder {
    Store::builder().memory_budget(8 << 20)
}

/// A closed store with this many rows.
pub fn create(path: &Path, count: u64) {
    let store = small().open(path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    append(&store, &rows, 0..count).unwrap();
    store.close().unwrap();
}

/// Commits rows durably, in transactions of ten.
pub fn append(store: &Store, rows: &Keyspace, numbers: std::ops::Range<u64>) -> Result<(), Error> {
    let numbers: Vec<u64> = numbers.collect();
    numbers.chunks(10).try_for_each(|some| {
        store.transact(|txn| some.iter().try_for_each(|number| txn.put(rows, key(*number), vec![b'x'; VALUE_BYTES])))
    })
}

/// Commits a row, with this durability.
pub fn put(store: &Store, rows: &Keyspace, number: u64, durability: Durability) -> Result<(), Error> {
    let options = TxnOptions::default().durability(durability);
    store.transact_with(options, |txn| txn.put(rows, key(number), vec![b'y'; VALUE_BYTES]))
}

/// Commits rows until a commit fails; returns the number of acknowledged ones and the error.
pub fn append_until_error(store: &Store, rows: &Keyspace, from: u64) -> (u64, Error) {
    const MOST: u64 = 100_000;
    for number in from..from + MOST {
        if let Err(error) = append(store, rows, number..number + 1) {
            return (number, error);
        }
    }
    panic!("no commit fails");
}

pub fn key(number: u64) -> String {
    format!("{number:08}")
}

/// Opens the store, which must have at least the rows below `least`, all of them, and at most one
/// more, whose commit was not acknowledged; verifies it.
#[track_caller]
pub fn assert_rows(path: &Path, least: u64) {
    let store = small().open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let rows = store.keyspace("rows").unwrap();
    let verified = store.verify(|_| ()).unwrap();
    assert!(verified.is_ok(), "{:?}", verified.issues);
    let found: Vec<String> =
        store.range(&rows, ..).unwrap().map(|row| String::from_utf8(row.unwrap().key().to_vec()).unwrap()).collect();
    let expected: Vec<String> = (0..found.len() as u64).map(key).collect();
    assert_eq!(found, expected);
    assert!(found.len() as u64 >= least, "{} rows of {least}", found.len());
    assert!(found.len() as u64 <= least + 1, "{} rows, {least} were committed", found.len());
    store.close().unwrap();
}
