//! Reads of the newest state, each with a snapshot of its own.

use crate::error::Result;
use crate::store::handle::Store;
use crate::store::keyspace::Keyspace;
use crate::store::read::key_range::KeyRange;
use crate::store::read::scan::Scan;
use crate::value::Value;

/// Reads without a snapshot object. Each call reads a [`Store::snapshot`] of its own: one
/// consistent state, with everything acknowledged before the call. Two calls may read different
/// states. To read several rows in one state, use one call, a snapshot or a transaction.
impl Store {
    /// The newest value of a row; `None` if the row does not exist.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// # let store = percolite::Store::in_memory()?;
    /// let accounts = store.keyspace("accounts")?;
    /// store.transact(|txn| txn.put(&accounts, "alice", "100"))?;
    /// assert_eq!(store.get(&accounts, "alice")?.as_deref(), Some(&b"100"[..]));
    /// assert_eq!(store.get(&accounts, "bob")?, None);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`Store::snapshot`] and [`Snapshot::get`](crate::Snapshot::get).
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.snapshot()?.get(keyspace, key)
    }

    /// The newest values of several rows, all from one snapshot, in the order of `keys`.
    ///
    /// # Errors
    /// Those of [`Store::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Value>>> {
        self.snapshot()?.multi_get(keyspace, keys)
    }

    /// Whether a row exists in the newest state.
    ///
    /// # Errors
    /// Those of [`Store::get`].
    pub fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        self.snapshot()?.contains_key(keyspace, key)
    }

    /// The rows whose keys are in a range, in the state at this call, whatever is committed during
    /// the scan. A range whose end is before its start is empty.
    ///
    /// # Errors
    /// Those of [`Store::snapshot`]. The first row reports an error of the range.
    pub fn range(&self, keyspace: &Keyspace, range: impl KeyRange) -> Result<Scan> {
        Ok(self.snapshot()?.range(keyspace, range))
    }

    /// The rows whose keys start with `prefix`. Otherwise like [`Store::range`].
    ///
    /// # Errors
    /// Those of [`Store::range`].
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Result<Scan> {
        Ok(self.snapshot()?.prefix(keyspace, prefix))
    }
}
