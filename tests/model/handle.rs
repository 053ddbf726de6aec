//! Reads through a transaction or a snapshot, with the same calls.

use std::ops::Bound;

use percolite::{Keyspace, Result, Scan, Snapshot, Txn, Value};

use crate::operations::{Extent, Key};

pub enum Handle<'a> {
    Txn(&'a Txn),
    Snapshot(&'a Snapshot),
}

impl Handle<'_> {
    pub fn get(&self, keyspace: &Keyspace, key: &Key) -> Result<Option<Value>> {
        match self {
            Self::Txn(txn) => txn.get(keyspace, &key.0),
            Self::Snapshot(snapshot) => snapshot.get(keyspace, &key.0),
        }
    }

    pub fn multi_get(&self, keyspace: &Keyspace, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        let keys = keys.iter().map(|key| &key.0);
        match self {
            Self::Txn(txn) => txn.multi_get(keyspace, keys),
            Self::Snapshot(snapshot) => snapshot.multi_get(keyspace, keys),
        }
    }

    pub fn contains(&self, keyspace: &Keyspace, key: &Key) -> Result<bool> {
        match self {
            Self::Txn(txn) => txn.contains_key(keyspace, &key.0),
            Self::Snapshot(snapshot) => snapshot.contains_key(keyspace, &key.0),
        }
    }

    pub fn scan(&self, keyspace: &Keyspace, extent: &Extent) -> Scan {
        let bytes = |bound: &Bound<Key>| bound.as_ref().map(|key| key.0.clone());
        match (self, extent) {
            (Self::Txn(txn), Extent::Range(start, end)) => txn.range(keyspace, (bytes(start), bytes(end))),
            (Self::Snapshot(snapshot), Extent::Range(start, end)) => {
                snapshot.range(keyspace, (bytes(start), bytes(end)))
            }
            (Self::Txn(txn), Extent::Prefix(prefix)) => txn.prefix(keyspace, &prefix.0),
            (Self::Snapshot(snapshot), Extent::Prefix(prefix)) => snapshot.prefix(keyspace, &prefix.0),
        }
    }
}
