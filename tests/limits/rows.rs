//! The rows that the scenarios write, and their check.

use std::path::Path;

use percolite::{Builder, Error, Store};

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

/// Rows of a keyspace that were acknowledged as durable.
pub struct Acknowledged {
    keyspace: &'static str,
    pub keys: Vec<[u8; 8]>,
}

impl Default for Acknowledged {
    fn default() -> Self {
        Self::named("rows")
    }
}

impl Acknowledged {
    pub fn named(keyspace: &'static str) -> Self {
        Self { keyspace, keys: Vec::new() }
    }

    /// Writes this number of rows in one transaction.
    pub fn write(&mut self, store: &Store, key: fn(u64) -> [u8; 8], count: u64) -> Result<(), Error> {
        let rows = store.keyspace(self.keyspace)?;
        let numbers = self.keys.len() as u64..self.keys.len() as u64 + count;
        store.transact(|txn| numbers.clone().try_for_each(|number| txn.put(&rows, key(number), value(number))))?;
        self.keys.extend(numbers.map(key));
        Ok(())
    }

    /// Writes rows, ten in a transaction, until a commit fails.
    pub fn fill(&mut self, store: &Store, key: fn(u64) -> [u8; 8]) -> Error {
        loop {
            if let Err(error) = self.write(store, key, 10) {
                return error;
            }
        }
    }

    /// Opens the store read-only and checks that all rows are there.
    pub fn check(&self, directory: &Path) {
        let store = small().read_only(true).open(directory).unwrap();
        let rows = store.keyspace(self.keyspace).unwrap();
        for (number, key) in (0..).zip(&self.keys) {
            let found = store.get(&rows, key).unwrap();
            assert!(found.as_deref() == Some(&value(number)), "the acknowledged row {number} is lost");
        }
        store.close().unwrap();
    }
}
