//! Dropping keyspaces.
//!
//! Dropping first marks the handles, which every commit looks at when it is applied; so no commit is applied behind the
//! drop. Whoever reads through a marked handle asks the catalog, at the moment that it reads at. The rows go later, in the
//! background, when no view is left that was opened before the drop, and when no lock of an earlier life is left anywhere,
//! because its primary might lie in the keyspace.

use crate::error::{Error, ErrorKind, Result};
use crate::row::KeyspaceId;
use crate::store::catalog::{
    DROPPED_PREFIX, STAGED_MARK, allocate_id, decode_dropped_id, decode_id, dropped_key, name_key,
};
use crate::store::{Keyspace, Store, Txn};
use crate::timestamp::Timestamp;

impl Store {
    /// Drops a keyspace and everything in it. Snapshots and transactions that were begun before go on reading it through
    /// the handles that there are; those begun later answer [`ErrorKind::KeyspaceNotFound`]. Nobody can write to it any more,
    /// and a transaction that has already does not commit. Its space is given back later.
    ///
    /// # Errors
    /// [`ErrorKind::KeyspaceNotFound`], [`ErrorKind::InvalidArgument`] on an engine shared with other processes, and those
    /// of a commit.
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        // Whether it was dropped is not known only where the store has failed anyway.
        let (ending, id) = self.begin_drop(name)?;
        self.commit_drop(id, name)?;
        ending.done();
        Ok(())
    }

    /// Removes all rows of a keyspace at once, however many: an empty one takes its name, and the old one is dropped
    /// ([`Store::drop_keyspace`] says what that means to those who read it), in one transaction of the catalog. The answer is a
    /// handle of the new one; the old handles stay those of the old one, so a transaction that has written through them does not
    /// commit. No row is read or locked.
    ///
    /// To remove rows in a transaction with others: [`Txn::delete_range`](crate::Txn::delete_range).
    ///
    /// # Errors
    /// Those of [`Store::drop_keyspace`].
    pub fn truncate_keyspace(&self, name: &str) -> Result<Keyspace> {
        let (ending, old) = self.begin_drop(name)?;
        let catalog = self.catalog();
        let new = self.transact(|txn| {
            check_name_unchanged(txn, &catalog, name, old)?;
            let new = allocate_id(txn, &catalog)?;
            txn.put(&catalog, name_key(name), new.0.to_be_bytes())?;
            txn.put(&catalog, dropped_key(old), b"")?;
            Ok::<_, Error>(new)
        })?;
        ending.done();
        Ok(self.open_handle(new, name))
    }

    /// Marks the handles.
    fn begin_drop(&self, name: &str) -> Result<(PendingDrop<'_>, KeyspaceId)> {
        self.inner.check_open()?;
        self.inner.check_writable()?;
        if !self.inner.coordinator.is_exclusive() {
            return Err(Error::invalid("not supported on a shared engine: dropping a keyspace"));
        }
        let keyspace = self.existing_keyspace(name)?;
        let id = keyspace.id();
        Ok((PendingDrop::new(self, vec![keyspace])?, id))
    }

    fn commit_drop(&self, id: KeyspaceId, name: &str) -> Result<()> {
        let catalog = self.catalog();
        let mut txn = self.begin()?;
        unlink_name(&mut txn, &catalog, name, id)?;
        txn.commit().map(drop)
    }

    /// Gives back the space of dropped keyspaces that nobody can need any more.
    pub(in crate::store) fn erase_dropped(&self) -> Result<()> {
        let coordinator = &*self.inner.coordinator;
        // A resolver may have to read a primary in a dropped keyspace.
        if coordinator.may_read_primaries() {
            return Ok(());
        }
        let catalog = self.catalog();
        let view = coordinator.begin()?.0;
        let listed: Vec<_> = self.scan_entries(&view, DROPPED_PREFIX).collect::<Result<_>>()?;
        for (key, what) in listed {
            let KeyspaceId(id) = decode_dropped_id(&key)?;
            // Those that are not to be taken for dropped yet are noted as dropped at the end of time.
            let noted = self.inner.catalog.dropped.lock().get(&id).copied().unwrap_or_default();
            let committed =
                self.inner.engine.snapshot()?.write(&catalog.row(&key))?.map_or(noted, |drop| drop.commit_ts);
            let dropped_at = noted.max(committed);
            // A keyspace that never had a name is in no history.
            let may_be_read = if what == STAGED_MARK {
                coordinator.watermarks().is_none_or(|marks| marks.oldest_read_ts < dropped_at)
            } else {
                !coordinator.is_below_gc_horizon(dropped_at)?
            };
            if may_be_read {
                continue;
            }
            // Checked again after the drop's timestamp was read: a commit before it is in the table of fates
            // until its last lock is gone.
            if coordinator.may_read_primaries() && !mutated!(DropCheckedOnce) {
                return Ok(());
            }
            crash_point!(KeyspaceDropped);
            coordinator.delete_keyspace(KeyspaceId(id))?;
            crash_point!(KeyspaceDataDeleted);
            // By hand: the background must not queue for a permit that a caller of `close` may hold.
            let mut txn = self.begin()?;
            txn.delete(&catalog, &key)?;
            txn.commit()?;
        }
        Ok(())
    }
}

/// Keyspaces that are marked as dropped and go on unless that is [`done`](PendingDrop::done).
pub(in crate::store) struct PendingDrop<'a> {
    store: &'a Store,
    keyspaces: Vec<Keyspace>,
}

impl<'a> PendingDrop<'a> {
    pub fn new(store: &'a Store, keyspaces: Vec<Keyspace>) -> Result<Self> {
        let mut ending = Self { store, keyspaces: Vec::new() };
        for keyspace in keyspaces {
            if !keyspace.inner.descriptor.mark_dropped() {
                return Err(keyspace.not_found_error());
            }
            // Listed before it is committed, so that its rows are not taken for those of an earlier life's drop.
            store.inner.catalog.dropped.lock().insert(keyspace.id().0, Timestamp::MAX);
            ending.keyspaces.push(keyspace);
        }
        Ok(ending)
    }

    pub fn of(&self, name: &str) -> Option<KeyspaceId> {
        self.keyspaces.iter().find(|keyspace| keyspace.name() == name).map(Keyspace::id)
    }

    /// The drop is committed and visible.
    pub fn done(mut self) {
        let visible = self.store.stats().visible_ts;
        let mut dropped = self.store.inner.catalog.dropped.lock();
        for keyspace in self.keyspaces.drain(..) {
            dropped.insert(keyspace.id().0, visible);
        }
    }
}

impl Drop for PendingDrop<'_> {
    fn drop(&mut self) {
        for keyspace in &self.keyspaces {
            self.store.inner.catalog.dropped.lock().remove(&keyspace.id().0);
            keyspace.inner.descriptor.undrop();
        }
    }
}

/// Takes the keyspace's name away, and lists it among those that were dropped.
pub(in crate::store) fn unlink_name(txn: &mut Txn, catalog: &Keyspace, name: &str, id: KeyspaceId) -> Result<()> {
    check_name_unchanged(txn, catalog, name, id)?;
    txn.delete(catalog, name_key(name))?;
    txn.put(catalog, dropped_key(id), b"")
}

/// Makes sure that the name is still this keyspace's when the transaction commits.
pub(in crate::store) fn check_name_unchanged(
    txn: &mut Txn,
    catalog: &Keyspace,
    name: &str,
    id: KeyspaceId,
) -> Result<()> {
    let listed = txn.get_for_update(catalog, name_key(name))?.map(|id| decode_id(&id)).transpose()?;
    if listed == Some(id) { Ok(()) } else { Err(ErrorKind::KeyspaceNotFound(name.into()).into()) }
}
