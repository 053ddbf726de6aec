//! Snapshots: a read view for the user, with the reads of a transaction and no writes.

use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::read_view::ReadView;
use crate::store::catalog::reader::CatalogReader;
use crate::store::handle::Store;
use crate::store::introspect::active_readers::ActiveReader;
use crate::store::keyspace::Keyspace;
use crate::store::limits::check_key;
use crate::store::read::key_range::{KeyRange, key_range_in, prefix_range};
use crate::store::read::scan::Scan;
use crate::store::read::versions::Versions;
use crate::timestamp::Timestamp;
use crate::value::Value;

/// A consistent view of the store that does not change. It may be kept, sent to other threads, and
/// cloned; clones are the same snapshot. What it shows does not change even if a keyspace is
/// created or dropped later.
///
/// A snapshot keeps what it shows from garbage collection. It expires when its state was replaced
/// longer than [`Builder::max_snapshot_age`](crate::store::Builder::max_snapshot_age) ago; a
/// snapshot of [`Store::snapshot_at`] expires that long after the call. The reads of an expired
/// snapshot return [`ErrorKind::SnapshotTooOld`](crate::ErrorKind::SnapshotTooOld).
#[derive(Clone)]
pub struct Snapshot {
    pub(in crate::store) reader: Arc<ActiveReader>,
    pub(in crate::store) store: Store,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut snapshot = f.debug_struct("Snapshot");
        snapshot.field("read_ts", &self.read_ts()).field("label", &self.reader.label).finish_non_exhaustive()
    }
}

impl Snapshot {
    pub(in crate::store) fn new(store: &Store, view: Arc<ReadView>) -> Self {
        Self { reader: store.inner.monitor.register_snapshot(view, None), store: store.clone() }
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// The same snapshot with a label, which identifies it in [`Store::active_transactions`] and in
    /// the log event that reports its expiry.
    #[must_use]
    pub fn with_label(&self, label: &'static str) -> Self {
        Self { reader: self.store.inner.monitor.register_labelled(&self.reader, label), store: self.store.clone() }
    }

    /// The read timestamp: everything committed at or below it is visible, and nothing else.
    pub fn read_ts(&self) -> Timestamp {
        self.reader.view.read_ts
    }

    /// The value of a row; `None` if the row does not exist.
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument): the key is empty, or
    ///   the keyspace is of another store.
    /// - [`ErrorKind::TooLarge`](crate::ErrorKind::TooLarge): the key exceeds
    ///   [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES).
    /// - [`ErrorKind::KeyspaceNotFound`](crate::ErrorKind::KeyspaceNotFound): the keyspace was
    ///   dropped before the snapshot was taken. In a keyspace that was created or restored after
    ///   the snapshot there are no rows: the call returns `None`, even if it was dropped since.
    /// - [`ErrorKind::SnapshotTooOld`](crate::ErrorKind::SnapshotTooOld),
    ///   [`ErrorKind::Corruption`](crate::ErrorKind::Corruption),
    ///   [`ErrorKind::Io`](crate::ErrorKind::Io), [`ErrorKind::Closed`](crate::ErrorKind::Closed).
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let is_seen = CatalogReader::new(&self.store).check_visible(&self.reader.view, keyspace)?;
        check_key(key.as_ref())?;
        if is_seen { self.store.inner.rows.read(&self.reader.view, &keyspace.row(key.as_ref())) } else { Ok(None) }
    }

    /// The values of several rows, in the order of `keys`.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Value>>> {
        let rows = keyspace.rows(keys)?;
        if !CatalogReader::new(&self.store).check_visible(&self.reader.view, keyspace)? {
            return Ok(vec![None; rows.len()]);
        }
        self.store.inner.rows.multi_read(&self.reader.view, &rows.iter().collect::<Vec<_>>())
    }

    /// Whether a row exists. Its value is not copied. A value of more than 255 bytes
    /// ([`MAX_SHORT_VALUE_BYTES`](crate::row::MAX_SHORT_VALUE_BYTES)) that a two-phase commit or a
    /// large transaction wrote is not read either; any other lies beside its key.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`].
    pub fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        let is_seen = CatalogReader::new(&self.store).check_visible(&self.reader.view, keyspace)?;
        check_key(key.as_ref())?;
        Ok(is_seen && self.store.inner.rows.contains(&self.reader.view, &keyspace.row(key.as_ref()))?)
    }

    /// The committed versions of a row, newest first, as far back as the history
    /// ([`Builder::history_retention`](crate::store::Builder::history_retention)) reaches at this
    /// call. The last version returned is the one that the row had at the start of the history.
    /// Without history only the newest version is returned.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`], also from the iterator, which ends after an error.
    pub fn versions(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Versions> {
        let is_seen = CatalogReader::new(&self.store).check_visible(&self.reader.view, keyspace)?;
        check_key(key.as_ref())?;
        Ok(Versions::new(&self.store, &self.reader, keyspace.row(key.as_ref()), is_seen))
    }

    /// The rows whose keys are in a range. A range whose end is before its start is empty. If this
    /// call fails, the first item of the scan is the error.
    pub fn range(&self, keyspace: &Keyspace, range: impl KeyRange) -> Scan {
        let range = CatalogReader::new(&self.store)
            .visible_range(&self.reader.view, keyspace, || key_range_in(keyspace, &range));
        Scan::new(&self.store, &self.reader, range.map(|range| (None, None, range)))
    }

    /// The rows whose keys start with `prefix`. Otherwise like [`Snapshot::range`].
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Scan {
        let range = CatalogReader::new(&self.store)
            .visible_range(&self.reader.view, keyspace, || prefix_range(keyspace, prefix.as_ref()));
        Scan::new(&self.store, &self.reader, range.map(|range| (None, None, range)))
    }
}
