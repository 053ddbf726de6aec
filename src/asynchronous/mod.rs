//! The store for asynchronous code. It is the same store, but calls that may block run on the
//! blocking threads of tokio.
//!
//! No layer below depends on this module, so the synchronous store needs no runtime. A call that
//! reads or commits takes a blocking thread once; `transact` takes one for each attempt.

mod blocking;
mod lock_guard;
mod scan;
mod transact;

use std::ops::Bound;

use self::blocking::run_blocking;
use crate::error::{Error, Result};
use crate::store::{KeyRange, Keyspace, Snapshot, Store};
use crate::timestamp::Timestamp;
use crate::value::Value;

pub use lock_guard::AsyncLockGuard;
pub use scan::{AsyncKeys, AsyncScan};

/// A [`Store`] for asynchronous code on tokio. Cheap to clone; clones, and the [`Store`] that it
/// was made of, are the same store.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> percolite::Result<()> {
/// use percolite::{AsyncStore, Store};
///
/// let store = AsyncStore::from(Store::in_memory()?);
/// let accounts = store.keyspace("accounts").await?;
///
/// let rows = accounts.clone();
/// store.transact(move |txn| txn.put(&rows, "alice", "100")).await?;
/// assert_eq!(store.get(&accounts, "alice").await?.as_deref(), Some(&b"100"[..]));
///
/// let mut scan = store.range(&accounts, "a".."m").rev();
/// while let Some(row) = scan.next().await {
///     let row = row?;
///     println!("{} has {}", row.key().escape_ascii(), row.value().escape_ascii());
/// }
/// store.close().await
/// # }
/// ```
///
/// # Threads
/// A call takes one of the runtime's *blocking* threads while it reads or commits. By default the
/// runtime has up to 512 blocking threads, and starts them as needed.
///
/// At most [`Builder::admission_limit`](crate::Builder::admission_limit) attempts of `transact` run
/// at the same time (three times the cores by default). Further attempts wait, but for a second at
/// most, and then run in any case. An attempt counts only until its commit is visible, but keeps
/// its thread until the commit is durable. So more threads than the limit may be taken. To bound
/// memory and threads, bound the number of concurrent calls.
///
/// Worker threads are never blocked, so a `current_thread` runtime is enough. The runtime needs
/// neither a time driver nor an I/O driver.
///
/// The move to a blocking thread costs some microseconds, more than reading a row from memory. Read
/// many rows in one call: by [`AsyncStore::multi_get`], in a transaction, or by any code in
/// [`AsyncStore::run_blocking`].
///
/// # Cancellation
/// A future that is dropped before its call has started on a blocking thread has no effect. A call
/// that has started runs to its end: **dropping a future does not undo a commit already begun**.
/// Neither does a shutdown of the runtime. See also [`AsyncStore::transact`].
///
/// # No `begin`
/// There is no asynchronous `begin`. A transaction that awaits between its reads and its commit
/// keeps an old snapshot alive, and a conflict becomes more likely with time. Await first, then
/// `transact`. If a transaction must span awaits, [`AsyncStore::run_blocking`] can return a
/// [`Txn`](crate::Txn), which later calls of `run_blocking` use. So can its
/// [restart](crate::Txn::restart), which takes a blocking thread while it waits.
///
/// # Closing
/// Dropping the last handle closes the store, which blocks the thread for a sync.
/// [`AsyncStore::close`] does not block the thread.
#[derive(Clone, Debug)]
pub struct AsyncStore {
    store: Store,
}

impl From<Store> for AsyncStore {
    fn from(store: Store) -> Self {
        Self { store }
    }
}

impl AsyncStore {
    /// Opens the store in a directory. For other options open a [`Store`] and convert it with
    /// `from`.
    ///
    /// # Errors
    /// Those of [`Builder::open`](crate::Builder::open).
    #[cfg(feature = "rocks")]
    pub async fn open(path: impl AsRef<std::path::Path>) -> Result<Self> {
        let path = path.as_ref().to_path_buf();
        Ok(run_blocking(move || Store::open(path)).await??.into())
    }

    /// The synchronous store; its calls block.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Runs a closure that may block, with the store, on a blocking thread.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> percolite::Result<()> {
    /// # let store = percolite::AsyncStore::from(percolite::Store::in_memory()?);
    /// let locked = store.run_blocking(|store| store.row_locks().map(Iterator::count)).await?;
    /// # assert_eq!(locked, 0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of the closure. [`Cancelled`](crate::ErrorKind::Cancelled) if the runtime is shut down
    /// before the closure has started. [`InvalidArgument`](crate::ErrorKind::InvalidArgument)
    /// outside of a runtime.
    pub async fn run_blocking<T, E, F>(&self, work: F) -> Result<T, E>
    where
        F: FnOnce(&Store) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let store = self.store.clone();
        run_blocking(move || work(&store)).await?
    }

    /// Opens a keyspace, and creates it if it does not exist: see [`Store::keyspace`].
    ///
    /// # Errors
    /// Those of [`Store::keyspace`], and of [`AsyncStore::run_blocking`].
    pub async fn keyspace(&self, name: &str) -> Result<Keyspace> {
        let name = name.to_owned();
        self.run_blocking(move |store| store.keyspace(&name)).await
    }

    /// A snapshot of all that is committed: see [`Store::snapshot`].
    ///
    /// # Errors
    /// Those of [`Store::snapshot`], and of [`AsyncStore::run_blocking`].
    pub async fn snapshot(&self) -> Result<AsyncSnapshot> {
        self.run_blocking(Store::snapshot).await.map(Into::into)
    }

    /// A snapshot as of an earlier timestamp: see [`Store::snapshot_at`].
    ///
    /// # Errors
    /// Those of [`Store::snapshot_at`], and of [`AsyncStore::run_blocking`].
    pub async fn snapshot_at(&self, at: impl Into<Timestamp>) -> Result<AsyncSnapshot> {
        let at = at.into();
        self.run_blocking(move |store| store.snapshot_at(at)).await.map(Into::into)
    }

    /// The newest committed value of a row: see [`Store::get`].
    ///
    /// # Errors
    /// Those of [`Store::get`], and of [`AsyncStore::run_blocking`].
    pub async fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let (keyspace, key) = (keyspace.clone(), key.as_ref().to_vec());
        self.run_blocking(move |store| store.get(&keyspace, key)).await
    }

    /// The newest committed values of several rows, all from one state: see [`Store::multi_get`].
    ///
    /// # Errors
    /// Those of [`AsyncStore::get`].
    pub async fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Value>>> {
        let (keyspace, keys) = (keyspace.clone(), owned(keys));
        self.run_blocking(move |store| store.multi_get(&keyspace, keys)).await
    }

    /// Whether a row exists: [`Store::contains_key`].
    ///
    /// # Errors
    /// Those of [`AsyncStore::get`].
    pub async fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        let (keyspace, key) = (keyspace.clone(), key.as_ref().to_vec());
        self.run_blocking(move |store| store.contains_key(&keyspace, key)).await
    }

    /// The rows whose keys are in a range, in the state at the time when the first row is
    /// requested: see [`Store::range`].
    pub fn range(&self, keyspace: &Keyspace, range: impl KeyRange) -> AsyncScan {
        let (store, keyspace, range) = (self.store.clone(), keyspace.clone(), owned_range(&range));
        AsyncScan::new(&self.store, move || store.range(&keyspace, range))
    }

    /// The rows whose keys start with `prefix`. Otherwise like [`AsyncStore::range`].
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> AsyncScan {
        let (store, keyspace, prefix) = (self.store.clone(), keyspace.clone(), prefix.as_ref().to_vec());
        AsyncScan::new(&self.store, move || store.prefix(&keyspace, prefix))
    }

    /// [`Store::close`]. Afterwards every read, write or commit by another handle returns
    /// [`Closed`](crate::ErrorKind::Closed). A call in flight may return this error, too; a commit
    /// in flight may return [`Undetermined`](crate::ErrorKind::Undetermined).
    ///
    /// # Errors
    /// Those of [`Store::close`], and of [`AsyncStore::run_blocking`].
    pub async fn close(self) -> Result<()> {
        let store = self.store;
        run_blocking(move || store.close()).await?
    }
}

/// A [`Snapshot`] for asynchronous code. Owned: it may be kept, sent and shared; clones are the
/// same snapshot.
#[derive(Clone, Debug)]
pub struct AsyncSnapshot {
    snapshot: Snapshot,
}

impl From<Snapshot> for AsyncSnapshot {
    fn from(snapshot: Snapshot) -> Self {
        Self { snapshot }
    }
}

impl AsyncSnapshot {
    /// The synchronous snapshot; its calls block.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The snapshot contains all commits at or below this timestamp.
    pub fn read_ts(&self) -> Timestamp {
        self.snapshot.read_ts()
    }

    /// The value of a row.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`] and [`AsyncStore::run_blocking`].
    pub async fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let (snapshot, keyspace, key) = (self.snapshot.clone(), keyspace.clone(), key.as_ref().to_vec());
        run_blocking(move || snapshot.get(&keyspace, key)).await?
    }

    /// Whether a row exists.
    ///
    /// # Errors
    /// Those of [`AsyncSnapshot::get`].
    pub async fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        let (snapshot, keyspace, key) = (self.snapshot.clone(), keyspace.clone(), key.as_ref().to_vec());
        run_blocking(move || snapshot.contains_key(&keyspace, key)).await?
    }

    /// The values of several rows, in the order of `keys`.
    ///
    /// # Errors
    /// Those of [`AsyncSnapshot::get`].
    pub async fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Value>>> {
        let (snapshot, keyspace, keys) = (self.snapshot.clone(), keyspace.clone(), owned(keys));
        run_blocking(move || snapshot.multi_get(&keyspace, keys)).await?
    }

    /// The rows whose keys are in a range; empty if the range ends before it begins.
    pub fn range(&self, keyspace: &Keyspace, range: impl KeyRange) -> AsyncScan {
        let (snapshot, keyspace, range) = (self.snapshot.clone(), keyspace.clone(), owned_range(&range));
        AsyncScan::new(self.snapshot.store(), move || Ok(snapshot.range(&keyspace, range)))
    }

    /// The rows whose keys begin with `prefix`.
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> AsyncScan {
        let (snapshot, keyspace, prefix) = (self.snapshot.clone(), keyspace.clone(), prefix.as_ref().to_vec());
        AsyncScan::new(self.snapshot.store(), move || Ok(snapshot.prefix(&keyspace, prefix)))
    }
}

fn owned<K: AsRef<[u8]>>(keys: impl IntoIterator<Item = K>) -> Vec<Vec<u8>> {
    keys.into_iter().map(|key| key.as_ref().to_vec()).collect()
}

fn owned_range(range: &impl KeyRange) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    (range.start().map(<[u8]>::to_vec), range.end().map(<[u8]>::to_vec))
}
