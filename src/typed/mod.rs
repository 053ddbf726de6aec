//! Typed keyspaces: keys and values of any serializable types.
//!
//! This is a thin layer over the public API. Keys are encoded so that their bytes sort as the keys
//! do ([`order`]); values are encoded like all other records ([`crate::codec`]).

#[allow(missing_debug_implementations, reason = "a user has no value of its types")]
mod decode;
#[allow(missing_debug_implementations, reason = "a user has no value of its types")]
mod encode;
mod key_format;
mod order;
mod prefix;
mod scan;

use std::any::type_name;
use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use serde::Serialize;
use serde::de::DeserializeOwned;

use self::prefix::Bounds;
use crate::codec;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Keyspace, Readable, Scan, Txn};
#[cfg(doc)]
use crate::store::{Snapshot, Store};
use crate::value::Value;

pub use prefix::KeyPrefix;
pub use scan::{TypedKeys, TypedScan};

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
    pub fn get<Q>(&self, reader: &(impl Readable + ?Sized), key: &Q) -> Result<Option<V>>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let key = self.key(key)?;
        reader.reader().get(&self.keyspace, &key)?.map(|value| self.value(&key, &value)).transpose()
    }

    /// Several rows' values, in the order of `keys`.
    ///
    /// # Errors
    /// Those of [`TypedKeyspace::get`].
    pub fn multi_get<'q, Q>(
        &self,
        reader: &(impl Readable + ?Sized),
        keys: impl IntoIterator<Item = &'q Q>,
    ) -> Result<Vec<Option<V>>>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized + 'q,
    {
        let keys = keys.into_iter().map(|key| self.key(key)).collect::<Result<Vec<_>>>()?;
        let found = reader.reader().multi_get(&self.keyspace, &keys)?;
        let value = |(key, value): (&Vec<u8>, Option<Value>)| value.map(|value| self.value(key, &value)).transpose();
        keys.iter().zip(found).map(value).collect()
    }

    /// Whether a row exists.
    ///
    /// # Errors
    /// Those of [`TypedKeyspace::get`].
    pub fn contains_key<Q>(&self, reader: &(impl Readable + ?Sized), key: &Q) -> Result<bool>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        reader.reader().contains_key(&self.keyspace, self.key(key)?)
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
    pub fn range(&self, reader: &(impl Readable + ?Sized), range: impl RangeBounds<K>) -> Result<TypedScan<K, V>> {
        Ok(self.scan(reader.reader().range(&self.keyspace, self.bounds(&range)?)?))
    }

    /// The rows whose keys start with these parts.
    ///
    /// # Errors
    /// Those of [`TypedKeyspace::range`].
    pub fn prefix(&self, reader: &(impl Readable + ?Sized), prefix: impl KeyPrefix<K>) -> Result<TypedScan<K, V>> {
        Ok(self.scan(reader.reader().prefix(&self.keyspace, self.key(&prefix)?)?))
    }

    /// The rows whose keys start with these parts, and whose next part is in a range. Any parts
    /// after that are unrestricted: an end that is included includes all keys with this part.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// # use percolite::{Store, TypedKeyspace};
    /// # let store = Store::in_memory()?;
    /// let readings: TypedKeyspace<(String, i64, u8), f64> = store.keyspace("readings")?.typed();
    /// store.transact(|txn| {
    ///     (-2..9).try_for_each(|hour| readings.put(txn, &("york".into(), hour, 0), &11.5))
    /// })?;
    /// let morning = readings.prefix_range(&store, ("york",), 6..=7)?.keys();
    /// let hours = morning.map(|key| Ok(key?.1)).collect::<percolite::Result<Vec<_>>>()?;
    /// assert_eq!(hours, [6, 7]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`TypedKeyspace::range`].
    pub fn prefix_range<P: KeyPrefix<K>>(
        &self,
        reader: &(impl Readable + ?Sized),
        prefix: P,
        range: impl RangeBounds<P::Next>,
    ) -> Result<TypedScan<K, V>> {
        let prefix = self.key(&prefix)?;
        let part = |part: &P::Next| Ok([prefix.as_slice(), &self.key(part)?].concat());
        let range = prefix::range_in(&prefix, try_map(range.start_bound(), part)?, try_map(range.end_bound(), part)?);
        Ok(self.scan(reader.reader().range(&self.keyspace, range)?))
    }

    /// Deletes every row that the transaction sees in a range: see [`Txn::delete_range`]. Returns
    /// the number of rows. Neither keys nor values are decoded.
    ///
    /// # Errors
    /// Those of [`Txn::delete_range`]; [`ErrorKind::InvalidArgument`] if a bound of the range
    /// cannot be encoded.
    pub fn delete_range(&self, txn: &mut Txn, range: impl RangeBounds<K>) -> Result<u64> {
        txn.delete_range(&self.keyspace, self.bounds(&range)?)
    }

    /// Deletes every row that the transaction sees whose key starts with these parts: see
    /// [`TypedKeyspace::delete_range`].
    ///
    /// # Errors
    /// Those of [`TypedKeyspace::delete_range`].
    pub fn delete_prefix(&self, txn: &mut Txn, prefix: impl KeyPrefix<K>) -> Result<u64> {
        txn.delete_prefix(&self.keyspace, self.key(&prefix)?)
    }

    fn bounds(&self, range: &impl RangeBounds<K>) -> Result<Bounds> {
        let key = |key: &K| self.key(key);
        Ok((try_map(range.start_bound(), key)?, try_map(range.end_bound(), key)?))
    }

    fn scan(&self, rows: Scan) -> TypedScan<K, V> {
        TypedScan::new(rows, self.clone())
    }

    fn key<Q: Serialize + ?Sized>(&self, key: &Q) -> Result<Vec<u8>> {
        order::encode_key(key).map_err(|error| self.unwritable("a key", &error))
    }

    fn bytes(&self, value: &V) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        codec::try_encode_value(value, &mut bytes).map_err(|error| self.unwritable("a value", &error))?;
        Ok(bytes)
    }

    fn decoded_key(&self, key: &[u8]) -> Result<K> {
        order::decode_key(key).map_err(|error| self.corrupt(key, "the key", type_name::<K>(), &error))
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

fn try_map<T>(bound: Bound<&T>, bytes: impl FnOnce(&T) -> Result<Vec<u8>>) -> Result<Bound<Vec<u8>>> {
    Ok(match bound {
        Bound::Included(key) => Bound::Included(bytes(key)?),
        Bound::Excluded(key) => Bound::Excluded(bytes(key)?),
        Bound::Unbounded => Bound::Unbounded,
    })
}
