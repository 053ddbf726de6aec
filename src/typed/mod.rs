//! Typed keyspaces: keys and values of any serializable types.
//!
//! This is a thin layer over the public API. Keys are encoded so that their bytes sort as the keys
//! do ([`order`]); values are encoded like all other records ([`crate::codec`]).

mod decode;
mod encode;
mod key_format;
mod order;

use std::any::type_name;
use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::codec;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Keyspace, Scan, Snapshot, Store, Txn};
use crate::value::Value;

/// A [`Keyspace`] whose keys are of type `K` and whose values are of type `V`. Cheap to clone and
/// thread-safe. Each call reads or writes through the transaction, snapshot or store that is
/// passed, and has the isolation and durability of that object.
///
/// ```
/// # fn main() -> percolite::Result<()> {
/// use percolite::{Store, TypedKeyspace};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Reading {
///     degrees: f64,
/// }
///
/// let store = Store::in_memory()?;
/// let readings: TypedKeyspace<(String, i64), Reading> = store.keyspace("readings")?.typed();
/// store.transact(|txn| {
///     readings.put(txn, &("york".into(), 2), &Reading { degrees: 11.5 })?;
///     readings.put(txn, &("york".into(), -1), &Reading { degrees: 9.0 })
/// })?;
///
/// let snapshot = store.snapshot()?;
/// for row in readings.prefix(&snapshot, ("york",))? {
///     let ((_, hour), reading) = row?;
///     println!("at {hour}: {}", reading.degrees);
/// }
/// # Ok(()) }
/// ```
///
/// # Keys
/// Keys can be of any serde type except maps, with at most [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES)
/// when encoded. Rows are sorted as the keys are. Numbers sort by value, floats as by `total_cmp`,
/// strings by their bytes. Tuples and structs sort part by part, `None` before `Some`, enums by the
/// order in which their variants are declared.
///
/// A `Vec<u8>` takes two bytes for each element; a type that serializes as bytes, like those of the
/// crate `serde_bytes`, takes one. Recursive types are not supported.
///
/// # Changing types
/// Stored keys and values do not record their types, so a type must keep its serialized form.
/// Variants may be added at the end of an enum, and types or fields may be renamed. Fields must not
/// be added, removed, skipped or reordered. To be able to change more, make the value an enum from
/// the start, with a variant for each version.
///
/// # Errors
/// In addition to the errors of the untyped call, every call may return
/// [`ErrorKind::InvalidArgument`] if a key or value cannot be encoded, and
/// [`ErrorKind::Corruption`], with keyspace and key, if a stored key or value does not decode as
/// its type.
pub struct TypedKeyspace<K, V> {
    keyspace: Keyspace,
    types: PhantomData<fn(K) -> V>,
}

impl<K, V> Clone for TypedKeyspace<K, V> {
    fn clone(&self) -> Self {
        Self { keyspace: self.keyspace.clone(), types: PhantomData }
    }
}

impl<K, V> fmt::Debug for TypedKeyspace<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {} to {}", self.keyspace, type_name::<K>(), type_name::<V>())
    }
}

impl Keyspace {
    /// The same keyspace with typed keys and values. The types are not stored: use the same types
    /// each time.
    pub fn typed<K, V>(self) -> TypedKeyspace<K, V> {
        TypedKeyspace { keyspace: self, types: PhantomData }
    }
}

/// A source of reads: a [`Snapshot`], a [`Txn`], or a [`Store`], which takes a new snapshot for
/// each call.
pub trait Readable: sealed::Read {}

impl Readable for Snapshot {}
impl Readable for Store {}
impl Readable for Txn {}

mod sealed {
    use crate::error::Result;
    use crate::store::{KeyRange, Keyspace, Scan, Snapshot, Store, Txn};
    use crate::value::Value;

    pub trait Read {
        fn get(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Value>>;
        fn multi_get(&self, keyspace: &Keyspace, keys: &[Vec<u8>]) -> Result<Vec<Option<Value>>>;
        fn range(&self, keyspace: &Keyspace, range: impl KeyRange) -> Result<Scan>;
        fn prefix(&self, keyspace: &Keyspace, prefix: &[u8]) -> Result<Scan>;
    }

    macro_rules! read {
        ($reader:ty, $scan:ident => $ok:expr) => {
            impl Read for $reader {
                fn get(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Value>> {
                    self.get(keyspace, key)
                }

                fn multi_get(&self, keyspace: &Keyspace, keys: &[Vec<u8>]) -> Result<Vec<Option<Value>>> {
                    self.multi_get(keyspace, keys)
                }

                fn range(&self, keyspace: &Keyspace, range: impl KeyRange) -> Result<Scan> {
                    let $scan = self.range(keyspace, range);
                    $ok
                }

                fn prefix(&self, keyspace: &Keyspace, prefix: &[u8]) -> Result<Scan> {
                    let $scan = self.prefix(keyspace, prefix);
                    $ok
                }
            }
        };
    }

    read!(Snapshot, scan => Ok(scan));
    read!(Store, scan => scan);
    read!(Txn, scan => Ok(scan));
}

/// The first parts of a tuple key, each borrowed: `("york",)` for `(String, i64)`. For other kinds
/// of keys, implement this trait for a type that serializes as the key's first fields do.
pub trait KeyPrefix<K>: Serialize {}

macro_rules! key_prefix {
    ($($part:ident $borrowed:ident),+; $($rest:ident),+) => {
        impl<$($part: Borrow<$borrowed>, $borrowed: Serialize + ?Sized,)+ $($rest),+> KeyPrefix<($($part,)+ $($rest,)+)>
            for ($(&$borrowed,)+)
        {
        }
    };
}

key_prefix!(A P; B);
key_prefix!(A P; B, C);
key_prefix!(A P; B, C, D);
key_prefix!(A P; B, C, D, E);
key_prefix!(A P, B Q; C);
key_prefix!(A P, B Q; C, D);
key_prefix!(A P, B Q; C, D, E);
key_prefix!(A P, B Q, C R; D);
key_prefix!(A P, B Q, C R; D, E);
key_prefix!(A P, B Q, C R, D S; E);

impl<K: Serialize + DeserializeOwned, V: Serialize + DeserializeOwned> TypedKeyspace<K, V> {
    /// The untyped keyspace, whose keys and values are bytes.
    pub fn keyspace(&self) -> &Keyspace {
        &self.keyspace
    }

    /// A row's value. The key may be given in any borrowed form, `&str` for `String`.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`] and [`Txn::get`], and of [every typed
    /// call](TypedKeyspace#errors).
    pub fn get<Q>(&self, reader: &impl Readable, key: &Q) -> Result<Option<V>>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let key = self.key(key)?;
        reader.get(&self.keyspace, &key)?.map(|value| self.value(&key, &value)).transpose()
    }

    /// Several rows' values, in the order of `keys`.
    ///
    /// # Errors
    /// Those of [`TypedKeyspace::get`].
    pub fn multi_get<'q, Q>(
        &self,
        reader: &impl Readable,
        keys: impl IntoIterator<Item = &'q Q>,
    ) -> Result<Vec<Option<V>>>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized + 'q,
    {
        let keys = keys.into_iter().map(|key| self.key(key)).collect::<Result<Vec<_>>>()?;
        let found = reader.multi_get(&self.keyspace, &keys)?;
        let value = |(key, value): (&Vec<u8>, Option<Value>)| value.map(|value| self.value(key, &value)).transpose();
        keys.iter().zip(found).map(value).collect()
    }

    /// Whether a row exists.
    ///
    /// # Errors
    /// Those of [`TypedKeyspace::get`].
    pub fn contains_key<Q>(&self, reader: &impl Readable, key: &Q) -> Result<bool>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        Ok(reader.get(&self.keyspace, &self.key(key)?)?.is_some())
    }

    /// A row's value. If another transaction writes the row meanwhile, or reads it by
    /// `get_for_update`, only the first to commit succeeds: see [`Txn::get_for_update`].
    ///
    /// # Errors
    /// Those of [`Txn::get_for_update`], and of [every typed call](TypedKeyspace#errors).
    pub fn get_for_update<Q>(&self, txn: &mut Txn, key: &Q) -> Result<Option<V>>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let key = self.key(key)?;
        txn.get_for_update(&self.keyspace, &key)?.map(|value| self.value(&key, &value)).transpose()
    }

    /// Sets a row's value.
    ///
    /// # Errors
    /// Those of [`Txn::put`], and of [every typed call](TypedKeyspace#errors).
    pub fn put<Q>(&self, txn: &mut Txn, key: &Q, value: &V) -> Result<()>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        txn.put(&self.keyspace, self.key(key)?, self.bytes(value)?)
    }

    /// Sets the value of a row that must not exist yet.
    ///
    /// # Errors
    /// Those of [`Txn::insert`], and of [every typed call](TypedKeyspace#errors).
    pub fn insert<Q>(&self, txn: &mut Txn, key: &Q, value: &V) -> Result<()>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        txn.insert(&self.keyspace, self.key(key)?, self.bytes(value)?)
    }

    /// Deletes a row, which may be absent.
    ///
    /// # Errors
    /// Those of [`Txn::delete`], and of [every typed call](TypedKeyspace#errors).
    pub fn delete<Q>(&self, txn: &mut Txn, key: &Q) -> Result<()>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        txn.delete(&self.keyspace, self.key(key)?)
    }

    /// The rows whose keys are in a range, as in [`Snapshot::range`] and [`Txn::range`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if a bound of the range cannot be encoded; those of
    /// [`Store::range`] for a store. Errors of reading are items of the scan.
    pub fn range(&self, reader: &impl Readable, range: impl RangeBounds<K>) -> Result<TypedScan<K, V>> {
        let bound = |bound: Bound<&K>| {
            Ok::<_, Error>(match bound {
                Bound::Included(key) => Bound::Included(self.key(key)?),
                Bound::Excluded(key) => Bound::Excluded(self.key(key)?),
                Bound::Unbounded => Bound::Unbounded,
            })
        };
        let range = (bound(range.start_bound())?, bound(range.end_bound())?);
        Ok(self.scan(reader.range(&self.keyspace, range)?))
    }

    /// The rows whose keys start with these parts.
    ///
    /// # Errors
    /// Those of [`TypedKeyspace::range`].
    pub fn prefix(&self, reader: &impl Readable, prefix: impl KeyPrefix<K>) -> Result<TypedScan<K, V>> {
        Ok(self.scan(reader.prefix(&self.keyspace, &self.key(&prefix)?)?))
    }

    fn scan(&self, rows: Scan) -> TypedScan<K, V> {
        TypedScan { rows, keyspace: self.clone() }
    }

    fn key<Q: Serialize + ?Sized>(&self, key: &Q) -> Result<Vec<u8>> {
        order::encode_key(key).map_err(|error| self.unwritable("a key", &error))
    }

    fn bytes(&self, value: &V) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        codec::try_encode_value(value, &mut bytes).map_err(|error| self.unwritable("a value", &error))?;
        Ok(bytes)
    }

    fn row(&self, key: &[u8], value: &[u8]) -> Result<(K, V)> {
        let decoded = order::decode_key(key).map_err(|error| self.corrupt(key, "the key", type_name::<K>(), &error))?;
        Ok((decoded, self.value(key, value)?))
    }

    fn value(&self, key: &[u8], value: &[u8]) -> Result<V> {
        codec::decode_value(value).map_err(|error| self.corrupt(key, "the value", type_name::<V>(), &error))
    }

    fn unwritable(&self, what: &str, error: &dyn fmt::Display) -> Error {
        Error::invalid(format!("cannot encode {what} of keyspace {:?}: {error}", self.keyspace.name()))
    }

    fn corrupt(&self, key: &[u8], what: &str, of: &str, error: &dyn fmt::Display) -> Error {
        let (name, key) = (self.keyspace.name(), key.escape_ascii());
        ErrorKind::Corruption(format!("keyspace {name:?}, key \"{key}\": cannot decode {what} as {of}: {error}")).into()
    }
}

/// A typed [`Scan`]. It ends after a read error. A row that does not decode as its type is an error
/// item, and the scan continues after it.
#[must_use]
pub struct TypedScan<K, V> {
    rows: Scan,
    keyspace: TypedKeyspace<K, V>,
}

impl<K: Serialize + DeserializeOwned, V: Serialize + DeserializeOwned> Iterator for TypedScan<K, V> {
    type Item = Result<(K, V)>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = self.rows.next()?;
        Some(row.and_then(|row| self.keyspace.row(row.key(), row.value())))
    }
}

impl<K: Serialize + DeserializeOwned, V: Serialize + DeserializeOwned> DoubleEndedIterator for TypedScan<K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let row = self.rows.next_back()?;
        Some(row.and_then(|row| self.keyspace.row(row.key(), row.value())))
    }
}
