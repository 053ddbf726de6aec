//! Snapshots.

use std::sync::Arc;

use crate::error::Result;
use crate::read_view::ReadView;
use crate::store::introspect::active::ActiveReader;
use crate::store::read::key_range::{KeyRange, key_range_in, prefix_range};
use crate::store::read::scan::Scan;
use crate::store::txn::{check_key, validated_rows};
use crate::store::{Keyspace, Store, Versions};
use crate::timestamp::Timestamp;

/// A consistent view of the store that does not change. Owned: it may be kept, sent and shared freely. What it answers for a
/// keyspace does not change either, whenever that is created or dropped.
///
/// A snapshot keeps what it shows from being reclaimed; one whose state was replaced longer ago than
/// [`Builder::max_snapshot_age`](crate::store::Builder::max_snapshot_age) answers [`ErrorKind::SnapshotTooOld`](crate::ErrorKind::SnapshotTooOld).
#[derive(Clone)]
pub struct Snapshot {
    pub(in crate::store) reader: Arc<ActiveReader>,
    pub(in crate::store) store: Store,
}

impl Snapshot {
    pub(in crate::store) fn new(store: &Store, view: Arc<ReadView>) -> Self {
        Self { reader: store.register_reader(view, None), store: store.clone() }
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// The same snapshot under a name, by which [`Store::active_transactions`] and the report of one that was ended at the age limit call it.
    #[must_use]
    pub fn with_label(&self, label: &'static str) -> Self {
        let ActiveReader { view, started_at: began, .. } = &*self.reader;
        let reader = self.store.inner.active.add(Arc::clone(view), None, Some(label), *began);
        Self { reader, store: self.store.clone() }
    }

    /// Everything committed at or below this is seen.
    pub fn read_ts(&self) -> Timestamp {
        self.reader.view.read_ts
    }

    /// A row's value.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) when the key is empty and
    /// [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge) when it is longer than a row's can be,
    /// [`ErrorKind::KeyspaceNotFound`](crate::ErrorKind::KeyspaceNotFound) when the keyspace was dropped before the snapshot was
    /// taken (one that was created or restored later is empty in it, and stays so when it is dropped), [`ErrorKind::SnapshotTooOld`](crate::ErrorKind::SnapshotTooOld),
    /// [`ErrorKind::Corruption`](crate::ErrorKind::Corruption), [`ErrorKind::Io`](crate::ErrorKind::Io),
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed).
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let is_seen = self.store.check_visible(&self.reader.view, keyspace)?;
        check_key(key.as_ref())?;
        if is_seen { self.store.read(&self.reader.view, &keyspace.row(key.as_ref())) } else { Ok(None) }
    }

    /// Several rows' values, in the order of `keys`.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Vec<u8>>>> {
        let rows = validated_rows(keyspace, keys)?;
        if !self.store.check_visible(&self.reader.view, keyspace)? {
            return Ok(vec![None; rows.len()]);
        }
        self.store.multi_read(&self.reader.view, &rows.iter().collect::<Vec<_>>())
    }

    /// Whether a row is there.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`].
    pub fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.get(keyspace, key)?.is_some())
    }

    /// What commits have made of a row, newest first, as far back as the history that the store keeps
    /// ([`Builder::history_retention`](crate::store::Builder::history_retention)) when this is called. The last one is what the row was when that history
    /// begins. Without history it is the newest alone.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`], also of the iterator, which ends after one.
    pub fn versions(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Versions> {
        let is_seen = self.store.check_visible(&self.reader.view, keyspace)?;
        check_key(key.as_ref())?;
        Ok(Versions::new(&self.store, &self.reader, keyspace.row(key.as_ref()), is_seen))
    }

    /// The rows whose keys lie in a range, which is empty if it ends before it begins.
    pub fn range(&self, keyspace: &Keyspace, range: impl KeyRange) -> Scan {
        let range = self.store.visible_range(&self.reader.view, keyspace, || key_range_in(keyspace, &range));
        Scan::new(&self.store, &self.reader, range.map(|range| (None, None, range)))
    }

    /// The rows whose keys begin with `prefix`.
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Scan {
        let range = self.store.visible_range(&self.reader.view, keyspace, || prefix_range(keyspace, prefix.as_ref()));
        Scan::new(&self.store, &self.reader, range.map(|range| (None, None, range)))
    }
}
