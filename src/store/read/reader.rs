//! What reads read from, as one type: a store, a snapshot or a transaction.

use std::rc::Rc;
use std::sync::Arc;

use crate::error::Result;
use crate::store::handle::Store;
use crate::store::keyspace::Keyspace;
use crate::store::read::key_range::KeyRange;
use crate::store::read::scan::Scan;
use crate::store::read::snapshot::Snapshot;
use crate::store::txn::Txn;
use crate::value::Value;

/// A store, a snapshot or a transaction, borrowed, as one type. Its calls are those of what it
/// borrows, with that object's isolation and durability: a [`Store`] takes a new snapshot for each
/// call, and a [`Txn`] shows its own writes.
///
/// A program that has now a store, now a transaction, gets one of its `Reader`s for each call. To
/// keep what is read from in a struct, without a lifetime, use [`Readable`].
///
/// ```
/// # fn main() -> percolite::Result<()> {
/// use percolite::{Keyspace, Reader, Store};
///
/// fn stock(reader: Reader<'_>, fruit: &Keyspace) -> percolite::Result<usize> {
///     Ok(reader.range(fruit, ..)?.count())
/// }
///
/// let store = Store::in_memory()?;
/// let fruit = store.keyspace("fruit")?;
/// let mut txn = store.begin()?;
/// txn.put(&fruit, "apple", "red")?;
/// assert_eq!(stock((&txn).into(), &fruit)?, 1);
/// assert_eq!(stock((&store).into(), &fruit)?, 0);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Reader<'a> {
    /// Each call reads a [`Store::snapshot`] of its own.
    Store(&'a Store),
    /// All calls read one state.
    Snapshot(&'a Snapshot),
    /// All calls read one state, with the transaction's own writes.
    Txn(&'a Txn),
}

impl Reader<'_> {
    /// The value of a row; `None` if the row does not exist.
    ///
    /// # Errors
    /// Those of [`Store::get`], [`Snapshot::get`] or [`Txn::get`].
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        match self {
            Self::Store(store) => store.get(keyspace, key),
            Self::Snapshot(snapshot) => snapshot.get(keyspace, key),
            Self::Txn(txn) => txn.get(keyspace, key),
        }
    }

    /// The values of several rows, all in one state, in the order of `keys`.
    ///
    /// # Errors
    /// Those of [`Reader::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Value>>> {
        match self {
            Self::Store(store) => store.multi_get(keyspace, keys),
            Self::Snapshot(snapshot) => snapshot.multi_get(keyspace, keys),
            Self::Txn(txn) => txn.multi_get(keyspace, keys),
        }
    }

    /// Whether a row exists.
    ///
    /// # Errors
    /// Those of [`Reader::get`].
    pub fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        match self {
            Self::Store(store) => store.contains_key(keyspace, key),
            Self::Snapshot(snapshot) => snapshot.contains_key(keyspace, key),
            Self::Txn(txn) => txn.contains_key(keyspace, key),
        }
    }

    /// The rows whose keys are in a range: see [`Store::range`], [`Snapshot::range`] and
    /// [`Txn::range`].
    ///
    /// # Errors
    /// Those of [`Store::range`] for a store. The first row reports an error of the range.
    pub fn range(&self, keyspace: &Keyspace, range: impl KeyRange) -> Result<Scan> {
        match self {
            Self::Store(store) => store.range(keyspace, range),
            Self::Snapshot(snapshot) => Ok(snapshot.range(keyspace, range)),
            Self::Txn(txn) => Ok(txn.range(keyspace, range)),
        }
    }

    /// The rows whose keys start with `prefix`. Otherwise like [`Reader::range`].
    ///
    /// # Errors
    /// Those of [`Reader::range`].
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Result<Scan> {
        match self {
            Self::Store(store) => store.prefix(keyspace, prefix),
            Self::Snapshot(snapshot) => Ok(snapshot.prefix(keyspace, prefix)),
            Self::Txn(txn) => Ok(txn.prefix(keyspace, prefix)),
        }
    }
}

/// What can be read: a [`Store`], a [`Snapshot`], a [`Txn`], a [`Reader`], or a reference or box of
/// one of them. A `Box<dyn Readable>` holds any of them, whatever it is, in a struct.
///
/// A type of your own that has a store and perhaps an open transaction can implement it. Then the
/// calls of a [`TypedKeyspace`](crate::TypedKeyspace) read through that type.
///
/// ```
/// # fn main() -> percolite::Result<()> {
/// use percolite::{Readable, Reader, Store, Txn};
///
/// /// Reads in the open transaction, if there is one.
/// struct Session {
///     store: Store,
///     txn: Option<Txn>,
/// }
///
/// impl Readable for Session {
///     fn reader(&self) -> Reader<'_> {
///         match &self.txn {
///             Some(txn) => txn.reader(),
///             None => self.store.reader(),
///         }
///     }
/// }
///
/// let store = Store::in_memory()?;
/// let fruit = store.keyspace("fruit")?;
/// let mut session = Session { store: store.clone(), txn: Some(store.begin()?) };
/// session.txn.as_mut().unwrap().put(&fruit, "apple", "red")?;
/// assert!(session.reader().contains_key(&fruit, "apple")?);
/// session.txn = None; // rolled back
/// assert!(!session.reader().contains_key(&fruit, "apple")?);
///
/// let of_any_kind: Vec<Box<dyn Readable>> =
///     vec![Box::new(session), Box::new(store.snapshot()?), Box::new(store.begin()?)];
/// for readable in &of_any_kind {
///     assert_eq!(readable.reader().get(&fruit, "apple")?, None);
/// }
/// # Ok(()) }
/// ```
pub trait Readable {
    /// What is read from, borrowed.
    fn reader(&self) -> Reader<'_>;
}

macro_rules! readable {
    ($($source:ident),+) => {$(
        impl<'a> From<&'a $source> for Reader<'a> {
            fn from(source: &'a $source) -> Self {
                Self::$source(source)
            }
        }

        impl Readable for $source {
            fn reader(&self) -> Reader<'_> {
                self.into()
            }
        }
    )+};
}

readable!(Store, Snapshot, Txn);

impl Readable for Reader<'_> {
    fn reader(&self) -> Reader<'_> {
        *self
    }
}

macro_rules! readable_through {
    ($($pointer:ty),+) => {$(
        impl<T: Readable + ?Sized> Readable for $pointer {
            fn reader(&self) -> Reader<'_> {
                (**self).reader()
            }
        }
    )+};
}

readable_through!(&T, &mut T, Box<T>, Rc<T>, Arc<T>);
