//! Opening, creating, listing, renaming and dropping keyspaces.

use crate::error::{Error, ErrorKind, Result};
use crate::row::KeyspaceId;
use crate::store::catalog::drop::{PendingDrop, check_name_unchanged, unlink_name};
use crate::store::catalog::entries::{
    CATALOG_ID, NAME_PREFIX, NEXT_ID_KEY, check_name, decode_id, dropped_key, name_key, scanned_name,
};
use crate::store::catalog::reader::CatalogReader;
use crate::store::handle::Store;
use crate::store::keyspace::Keyspace;
use crate::store::options::TxnOptions;
use crate::store::read::snapshot::Snapshot;
use crate::store::txn::Txn;
use crate::store::txn::space::check_space_for_names;

impl Store {
    /// Opens a keyspace, and creates it if it does not exist.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the name is empty, longer than
    /// [`MAX_KEYSPACE_NAME_BYTES`](crate::MAX_KEYSPACE_NAME_BYTES) or contains control characters;
    /// [`ErrorKind::Io`] if it would be created, and the disk was full when the store was opened;
    /// and those of [`Txn::commit`].
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        check_name(name)?;
        if let Some(id) = id_of(self, name)? {
            let found = self.inner.catalog.handle(id, name);
            // If the keyspace was dropped after the lookup, the transaction below looks up the name
            // again, and creates a keyspace if there is none.
            if !found.inner.descriptor.is_dropped() {
                return Ok(found);
            }
        }
        self.inner.check_writable()?;
        check_space_for_names(self.inner.engine.space_left())?;
        let catalog = self.inner.catalog.keyspace();
        let id = self.transact(|txn| {
            if let Some(id) = txn.get(&catalog, name_key(name).as_bytes())? {
                return decode_id(&id);
            }
            let id = allocate_id(txn, &catalog)?;
            txn.put(&catalog, name_key(name).as_bytes(), id.0.to_be_bytes())?;
            Ok(id)
        })?;
        crash_point!(KeyspaceCreated);
        Ok(self.inner.catalog.handle(id, name))
    }

    /// Opens an existing keyspace.
    ///
    /// # Errors
    /// [`ErrorKind::KeyspaceNotFound`] if it does not exist, and those of [`Snapshot::get`].
    pub fn existing_keyspace(&self, name: &str) -> Result<Keyspace> {
        let id = id_of(self, name)?.ok_or_else(|| ErrorKind::KeyspaceNotFound(name.into()))?;
        Ok(self.inner.catalog.handle(id, name))
    }

    /// The names of all keyspaces, sorted.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`].
    pub fn keyspace_names(&self) -> Result<Vec<String>> {
        Ok(self.snapshot()?.keyspaces()?.iter().map(|keyspace| keyspace.name().to_owned()).collect())
    }

    /// Renames a keyspace, in one transaction. Existing handles stay valid, transactions that have
    /// written through them can still commit, and earlier snapshots list the keyspace under its old
    /// name. Returns a handle with the new name.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// let store = percolite::Store::in_memory()?;
    /// let draft = store.keyspace("draft")?;
    /// store.transact(|txn| txn.put(&draft, "title", "Snow"))?;
    /// let book = store.rename_keyspace("draft", "book")?;
    /// assert_eq!((book.name(), store.keyspace_names()?), ("book", vec!["book".to_owned()]));
    /// assert_eq!(store.get(&draft, "title")?, Some("Snow".into()));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::KeyspaceNotFound`], [`ErrorKind::InvalidArgument`] if a keyspace of the new
    /// name exists or the new name is invalid, [`ErrorKind::Io`] as for [`Store::keyspace`], and
    /// those of [`Txn::commit`].
    pub fn rename_keyspace(&self, name: &str, to: &str) -> Result<Keyspace> {
        check_name(to)?;
        self.inner.check_open()?;
        self.inner.check_writable()?;
        check_space_for_names(self.inner.engine.space_left())?;
        let catalog = self.inner.catalog.keyspace();
        let id = self.transact(|txn| {
            let listed = txn.get_for_update(&catalog, name_key(name))?;
            let listed = listed.ok_or_else(|| ErrorKind::KeyspaceNotFound(name.into()))?;
            if txn.get_for_update(&catalog, name_key(to))?.is_some() {
                return Err(Error::invalid(format!("keyspace {to:?} already exists")));
            }
            txn.delete(&catalog, name_key(name))?;
            txn.put(&catalog, name_key(to), &listed)?;
            decode_id(&listed)
        })?;
        let renamed = self.inner.catalog.handle(id, to);
        renamed.inner.descriptor.rename(to);
        Ok(renamed)
    }

    /// Drops a keyspace and all its rows. Earlier snapshots and transactions can still read it
    /// through existing handles. Reads of later snapshots and transactions return
    /// [`ErrorKind::KeyspaceNotFound`]. So do all writes to the keyspace, and commits of
    /// transactions that have written to it. The space of the keyspace is released later, in the
    /// background.
    ///
    /// # Errors
    /// [`ErrorKind::KeyspaceNotFound`], [`ErrorKind::InvalidArgument`] on a shared engine, and
    /// those of [`Txn::commit`].
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        // On an error, dropping `pending` removes the marks from the handles. That is safe even if
        // the commit is undetermined, because then the store has failed and no handle can be used.
        let (pending, id) = PendingDrop::begin(self, name)?;
        let mut txn = self.begin()?;
        unlink_name(&mut txn, &self.inner.catalog.keyspace(), name, id)?;
        txn.commit()?;
        pending.done();
        Ok(())
    }

    /// Removes all rows of a keyspace, however many, in one short transaction: it gives the name to
    /// a new, empty keyspace and drops the old one, with the effects of [`Store::drop_keyspace`].
    /// Reads and locks no rows.
    ///
    /// Returns a handle of the new keyspace. Existing handles stay handles of the old keyspace, so
    /// a transaction that has written through them does not commit.
    ///
    /// To delete rows atomically with other changes, use
    /// [`Txn::delete_range`](crate::Txn::delete_range).
    ///
    /// # Errors
    /// Those of [`Store::drop_keyspace`].
    pub fn truncate_keyspace(&self, name: &str) -> Result<Keyspace> {
        let (pending, old) = PendingDrop::begin(self, name)?;
        let catalog = self.inner.catalog.keyspace();
        let new = self.transact(|txn| {
            check_name_unchanged(txn, &catalog, name, old)?;
            let new = allocate_id(txn, &catalog)?;
            txn.put(&catalog, name_key(name), new.0.to_be_bytes())?;
            txn.put(&catalog, dropped_key(old), b"")?;
            Ok::<_, Error>(new)
        })?;
        pending.done();
        Ok(self.inner.catalog.handle(new, name))
    }
}

impl Snapshot {
    /// The keyspaces of this snapshot, ordered by name.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`].
    pub fn keyspaces(&self) -> Result<Vec<Keyspace>> {
        let entries = self.prefix(&self.store.inner.catalog.keyspace(), NAME_PREFIX.as_bytes()).map(|row| {
            let row = row?;
            Ok((decode_id(row.value())?, scanned_name(row.key())))
        });
        let entries: Vec<_> = entries.collect::<Result<_>>()?;
        let dropped = CatalogReader::new(&self.store).dropped_before_open(entries.iter().map(|(id, _)| *id))?;
        let handle = |(id, name): (KeyspaceId, String)| {
            let handle = self.store.inner.catalog.handle(id, &name);
            if dropped.contains(&id) {
                handle.inner.descriptor.mark_dropped();
            }
            handle
        };
        Ok(entries.into_iter().map(handle).collect())
    }
}

/// The id of the keyspace that has this name now.
pub(super) fn id_of(store: &Store, name: &str) -> Result<Option<KeyspaceId>> {
    let txn = Txn::begin(store, TxnOptions::default())?;
    let found = txn.get(&store.inner.catalog.keyspace(), name_key(name).as_bytes())?;
    txn.commit()?;
    found.map(|id| decode_id(&id)).transpose()
}

pub(super) fn allocate_id(txn: &mut Txn, catalog: &Keyspace) -> Result<KeyspaceId> {
    let id =
        txn.get_for_update(catalog, NEXT_ID_KEY)?.map_or(Ok(KeyspaceId(CATALOG_ID.0 + 1)), |next| decode_id(&next))?;
    let next = id.0.checked_add(1).ok_or_else(|| Error::invalid("no keyspace ids are left"))?;
    txn.put(catalog, NEXT_ID_KEY, next.to_be_bytes())?;
    Ok(id)
}
