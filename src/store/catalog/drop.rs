//! Dropping keyspaces.
//!
//! 1. The drop marks the handles as dropped. Each commit to the keyspace checks the mark when it is
//!    applied, so none is applied after the commit of the drop. A read through a marked handle
//!    looks up the catalog in its view.
//! 2. The background worker purges the keyspace: it deletes the rows once the GC horizon has
//!    reached the drop. From then on only historical views that are already open can read the rows,
//!    in their engine snapshots. The worker also waits until the locks of all ended transactions
//!    are resolved, because their primaries may be in the keyspace.

use crate::error::{Error, ErrorKind, Result};
use crate::row::KeyspaceId;
use crate::store::catalog::entries::{
    DROPPED_PREFIX, STAGED_MARK, decode_dropped_id, decode_id, dropped_key, name_key,
};
use crate::store::catalog::reader::CatalogReader;
use crate::store::handle::Store;
use crate::store::keyspace::Keyspace;
use crate::store::txn::Txn;
use crate::timestamp::Timestamp;

/// Deletes the rows of dropped keyspaces that no view can read.
pub(in crate::store) fn purge_dropped(store: &Store) -> Result<()> {
    let coordinator = &*store.inner.coordinator;
    // A lock resolver may have to read a primary in a dropped keyspace.
    if coordinator.may_read_primaries() {
        return Ok(());
    }
    let catalog = store.inner.catalog.keyspace();
    let view = coordinator.begin()?.0;
    let entries: Vec<_> = CatalogReader::new(store).entries(&view, DROPPED_PREFIX).collect::<Result<_>>()?;
    let mut purged = Vec::new();
    for entry in entries {
        let id = decode_dropped_id(entry.key())?;
        // MAX if the drop is not committed yet, or a running restore fills the keyspace. Then
        // `may_be_read` is true, so the keyspace is skipped.
        let recorded = store.inner.catalog.dropped_at(id);
        let committed =
            store.inner.engine.snapshot()?.write(&catalog.row(entry.key()))?.map_or(recorded, |drop| drop.commit_ts);
        let dropped_at = recorded.max(committed);
        // A keyspace that never had a name cannot be read at a timestamp of the history. So the
        // purge need not wait for the GC horizon, which the history holds back, but only for
        // transactions and ordinary snapshots.
        let may_be_read = if entry.value() == STAGED_MARK {
            coordinator.watermarks().is_none_or(|marks| marks.oldest_read_ts < dropped_at)
        } else {
            !coordinator.is_below_gc_horizon(dropped_at)?
        };
        if may_be_read {
            continue;
        }
        // Checked again, because a transaction may have committed after the first check and before
        // the drop. If it still has locks, it is in the table of fates, which this check reads.
        // After the drop no transaction can commit to the keyspace, so the result stays valid.
        if coordinator.may_read_primaries() {
            return Ok(());
        }
        crash_point!(KeyspaceDropped);
        coordinator.delete_keyspace(id)?;
        crash_point!(KeyspaceDataDeleted);
        // Not by `transact`: the background worker must not wait for a permit, whose holder may
        // wait in `close` for this worker.
        let mut txn = store.begin()?;
        txn.delete(&catalog, entry.key())?;
        txn.commit()?;
        purged.push(id);
    }
    // This view and the newest one before the last commit are from before the deletion.
    drop(view);
    purged.into_iter().try_for_each(|id| Ok(store.inner.engine.reclaim_keyspace(id)?))
}

/// Keyspaces that are marked as dropped. If this value is dropped without a call of
/// [`done`](PendingDrop::done), the marks are removed.
pub(in crate::store) struct PendingDrop<'a> {
    store: &'a Store,
    keyspaces: Vec<Keyspace>,
}

impl<'a> PendingDrop<'a> {
    /// Marks the handles of the keyspace that has this name; also returns its id.
    pub fn begin(store: &'a Store, name: &str) -> Result<(Self, KeyspaceId)> {
        store.inner.check_open()?;
        store.inner.check_writable()?;
        if !store.inner.coordinator.is_exclusive() {
            return Err(Error::invalid("not supported on a shared engine: dropping a keyspace"));
        }
        let keyspace = store.existing_keyspace(name)?;
        let id = keyspace.id();
        Ok((Self::new(store, vec![keyspace])?, id))
    }

    pub fn new(store: &'a Store, keyspaces: Vec<Keyspace>) -> Result<Self> {
        let mut pending = Self { store, keyspaces: Vec::new() };
        for keyspace in keyspaces {
            if !keyspace.inner.descriptor.mark_dropped() {
                return Err(keyspace.not_found_error());
            }
            store.inner.catalog.begin_drop(keyspace.id());
            pending.keyspaces.push(keyspace);
        }
        Ok(pending)
    }

    pub fn of(&self, name: &str) -> Option<KeyspaceId> {
        self.keyspaces.iter().find(|keyspace| keyspace.name() == name).map(Keyspace::id)
    }

    /// To be called when the drop is committed and visible.
    pub fn done(mut self) {
        let marks = self.store.inner.coordinator.watermarks();
        let visible = marks.map_or(Timestamp::ZERO, |marks| marks.visible_ts);
        for keyspace in self.keyspaces.drain(..) {
            self.store.inner.catalog.drop_committed(keyspace.id(), visible);
        }
    }
}

impl Drop for PendingDrop<'_> {
    fn drop(&mut self) {
        if !self.store.inner.process.is_current() {
            return;
        }
        for keyspace in &self.keyspaces {
            self.store.inner.catalog.undo_drop(keyspace.id());
            keyspace.inner.descriptor.undrop();
        }
    }
}

/// Deletes the keyspace's name, and lists the keyspace as dropped.
pub(in crate::store) fn unlink_name(txn: &mut Txn, catalog: &Keyspace, name: &str, id: KeyspaceId) -> Result<()> {
    check_name_unchanged(txn, catalog, name, id)?;
    txn.delete(catalog, name_key(name))?;
    txn.put(catalog, dropped_key(id), b"")
}

/// Ensures that the name still belongs to this keyspace when the transaction commits.
pub(in crate::store) fn check_name_unchanged(
    txn: &mut Txn,
    catalog: &Keyspace,
    name: &str,
    id: KeyspaceId,
) -> Result<()> {
    let listed = txn.get_for_update(catalog, name_key(name))?.map(|id| decode_id(&id)).transpose()?;
    if listed == Some(id) { Ok(()) } else { Err(ErrorKind::KeyspaceNotFound(name.into()).into()) }
}
