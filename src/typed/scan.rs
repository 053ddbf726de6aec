//! Scans of typed rows, and of their keys.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::TypedKeyspace;
use crate::error::Result;
use crate::store::{Keys, Row, Scan};

/// A typed [`Scan`]. It ends after a read error. A row that does not decode as its type is an error
/// item, and the scan continues after it.
#[must_use]
pub struct TypedScan<K, V> {
    rows: Scan,
    keyspace: TypedKeyspace<K, V>,
}

impl<K, V> fmt::Debug for TypedScan<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypedScan").field("keyspace", &self.keyspace).field("rows", &self.rows).finish()
    }
}

impl<K: Serialize + DeserializeOwned, V: Serialize + DeserializeOwned> TypedScan<K, V> {
    pub(super) fn new(rows: Scan, keyspace: TypedKeyspace<K, V>) -> Self {
        Self { rows, keyspace }
    }

    /// The keys of the remaining rows. Values are not decoded, so it does not matter whether they
    /// can be; nor are they read if they are longer than 255 bytes: see [`Scan::keys`].
    pub fn keys(self) -> TypedKeys<K, V> {
        TypedKeys { keys: self.rows.keys(), keyspace: self.keyspace }
    }

    fn row(&self, row: Result<Row>) -> Result<(K, V)> {
        let row = row?;
        Ok((self.keyspace.decoded_key(row.key())?, self.keyspace.value(row.key(), row.value())?))
    }
}

impl<K: Serialize + DeserializeOwned, V: Serialize + DeserializeOwned> Iterator for TypedScan<K, V> {
    type Item = Result<(K, V)>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = self.rows.next()?;
        Some(self.row(row))
    }
}

impl<K: Serialize + DeserializeOwned, V: Serialize + DeserializeOwned> DoubleEndedIterator for TypedScan<K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let row = self.rows.next_back()?;
        Some(self.row(row))
    }
}

/// The keys of a [`TypedScan`]: see [`TypedScan::keys`]. It ends after a read error. A key that
/// does not decode as its type is an error item, and the scan continues after it.
#[must_use]
pub struct TypedKeys<K, V> {
    keys: Keys,
    keyspace: TypedKeyspace<K, V>,
}

impl<K, V> fmt::Debug for TypedKeys<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypedKeys").field("keyspace", &self.keyspace).field("keys", &self.keys).finish()
    }
}

impl<K: Serialize + DeserializeOwned, V: Serialize + DeserializeOwned> Iterator for TypedKeys<K, V> {
    type Item = Result<K>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.keys.next()?.and_then(|key| self.keyspace.decoded_key(&key)))
    }
}

impl<K: Serialize + DeserializeOwned, V: Serialize + DeserializeOwned> DoubleEndedIterator for TypedKeys<K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        Some(self.keys.next_back()?.and_then(|key| self.keyspace.decoded_key(&key)))
    }
}
