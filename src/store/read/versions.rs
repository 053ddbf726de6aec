//! The versions of one row, for reading its history.

use std::fmt;

use crate::error::Result;
use crate::owner_id::OwnerId;
use crate::row::{LockType, RowKey, StoredValue, WriteRecord};
use crate::store::handle::Store;
use crate::store::introspect::active_readers::ActiveReader;
use crate::store::read::row_reader::load_value;
use crate::timestamp::Timestamp;
use crate::value::Value;
use std::sync::Arc;

/// A committed version of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Version {
    /// The commit timestamp.
    pub commit_ts: Timestamp,
    /// The start timestamp of the transaction that wrote the version.
    pub start_ts: Timestamp,
    /// The owner id of the transaction that wrote the version.
    pub owner_id: OwnerId,
    /// The value; `None` if the row was deleted.
    pub value: Option<Value>,
}

/// The versions of a row, newest first: see
/// [`Snapshot::versions`](crate::store::Snapshot::versions). A version is read when the iterator
/// reaches it. The iterator ends after an error.
pub struct Versions {
    store: Store,
    reader: Arc<ActiveReader>,
    row: RowKey,
    /// The next version is the newest at or below this timestamp; `None` at the end.
    upto: Option<Timestamp>,
    /// GC may have removed versions that were replaced at or before this timestamp.
    from: Timestamp,
}

impl fmt::Debug for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Versions").field("row", &self.row).field("upto", &self.upto).finish_non_exhaustive()
    }
}

impl Versions {
    /// The versions of a row. `is_seen` is whether the reader's view shows the row's keyspace; if
    /// not, there are no versions.
    pub(in crate::store) fn new(store: &Store, reader: &Arc<ActiveReader>, row: RowKey, is_seen: bool) -> Self {
        // Without history only the newest version is certain to exist.
        let from = store.inner.coordinator.retention().map_or(Timestamp::MAX, |kept| kept.oldest_ts);
        let upto = is_seen.then_some(reader.view.read_ts);
        Self { store: store.clone(), reader: Arc::clone(reader), row, upto, from }
    }

    fn read_version(&self, upto: Timestamp) -> Result<Option<WriteRecord>> {
        let view = &self.reader.view.snapshot;
        if upto == self.reader.view.read_ts
            && self.reader.view.must_check_locks
            && let Some(lock) = view.lock(&self.row)?
            && lock.lock_type != LockType::LockOnly
            && let Some(commit_ts) =
                self.store.inner.coordinator.commit_ts_of_lock(&self.reader.view, &self.row, &lock)?
        {
            let value = match lock.lock_type {
                LockType::Put(value) => Some(value),
                LockType::Delete | LockType::LockOnly => None,
            };
            return Ok(Some(WriteRecord { commit_ts, txn: lock.txn, value, lock_only_ts: None }));
        }
        match view.write(&self.row)? {
            Some(newest) if newest.commit_ts <= upto => Ok(Some(newest)),
            Some(_) => Ok(view.version_at(&self.row, upto)?),
            None => Ok(None),
        }
    }

    fn next_version(&mut self, upto: Timestamp) -> Result<Option<Version>> {
        self.store.inner.rows.check_usable(&self.reader.view)?;
        let Some(WriteRecord { commit_ts, txn, value, .. }) = self.read_version(upto)? else { return Ok(None) };
        let value = value.map(|value: StoredValue| load_value(&self.reader.view, &self.row, txn, value)).transpose()?;
        self.upto = (commit_ts > self.from).then(|| commit_ts.previous());
        Ok(Some(Version { commit_ts, start_ts: txn.start_ts, owner_id: txn.owner, value }))
    }
}

impl Iterator for Versions {
    type Item = Result<Version>;

    fn next(&mut self) -> Option<Self::Item> {
        let upto = self.upto.take()?;
        let (store, reader) = (self.store.clone(), Arc::clone(&self.reader));
        store.inner.monitor.time_read(&reader, || self.next_version(upto)).transpose()
    }
}
