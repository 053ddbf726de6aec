//! The rows that the scenarios write, and their check.

use std::path::Path;

use percolite::{Builder, Error, Keyspace, Store, Txn};

const VALUE_BYTES: usize = 1000;

/// The options of a small store, which flushes often.
pub fn small() -> Builder {
    Store::builder().block_cache_bytes(1 << 20).write_buffer_bytes(1 << 20)
}

/// The key of a number: neighbours are far apart, so that each flush covers the whole range.
pub fn scattered(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// The key of a number, in order.
pub fn ascending(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// A value that does not compress.
pub fn value(number: u64) -> Vec<u8> {
    let mut state = number | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..VALUE_BYTES / 8).flat_map(|_| next()).collect()
}

/// Rows that were acknowledged as durable.
#[derive(Default)]
pub struct Acknowledged {
    pub keys: Vec<[u8; 8]>,
}

impl Acknowledged {
    /// Writes rows, ten in a transaction, until a commit fails.
    pub fn fill(&mut self, store: &Store, rows: &Keyspace, key: fn(u64) -> [u8; 8]) -> Error {
        loop {
            let numbers = self.keys.len() as u64..self.keys.len() as u64 + 10;
            let write = |txn: &mut Txn| {
                numbers.clone().try_for_each(|number| txn.put(rows, key(number), value(number)))
            };
            match store.transact(write) {
                Ok(()) => self.keys.extend(numbers.map(key)),
                Err(error) => return error,
            }
        }
    }

    /// Opens the store read-only and checks that all rows are there.
    pub fn check(&self, directory: &Path) {
        let store = small().read_only(true).open(directory).unwrap();
        let rows = store.keyspace("rows").unwrap();
        for (number, key) in (0..).zip(&self.keys) {
            let found = store.get(&rows, key).unwrap();
            assert!(found.as_deref() == Some(&value(number)), "the acknowledged row {number} is lost");
        }
        store.close().unwrap();
    }
}
