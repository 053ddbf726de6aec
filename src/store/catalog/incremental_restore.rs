//! Restoring incremental dumps.
//!
//! One large transaction changes the rows and the catalog, so only the disk bounds its size. The
//! catalog's rows come first: they are locked, and checked for conflicts, before the first row of
//! the dump is read, and stay locked until the end. Rows of new keyspaces are committed separately,
//! into [staged](StagedKeyspaces) keyspaces, to which the large transaction gives names.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::row::KeyspaceId;
use crate::store::catalog::drop::{PendingDrop, check_name_unchanged, unlink_name};
use crate::store::catalog::entries::{NAME_PREFIX, check_name, decode_id, dropped_key, entry_name, name_key};
use crate::store::catalog::restore_origin::RestoreOrigin;
use crate::store::catalog::staging::StagedKeyspaces;
use crate::store::handle::Store;
use crate::store::keyspace::Keyspace;
use crate::store::maintenance::dump::{DumpHeader, OnExisting};
use crate::store::options::{Durability, TxnOptions};
use crate::store::txn::Txn;

/// The maximum number of attempts to lock the catalog's rows, if other transactions change them.
const CATALOG_ATTEMPTS: u32 = 30;
const RETRY_DELAY: Duration = Duration::from_millis(5);
/// Once the transaction's buffered writes take this much memory, their rows are locked in the
/// store.
const PENDING_BYTES_MAX: usize = 1 << 20;

/// A keyspace of the source store, as listed in the dump.
pub(in crate::store) struct Listed {
    pub id: u32,
    pub name: String,
    /// Whether the keyspace did not exist at the timestamp at which the incremental dump starts. If
    /// so, the dump has all its rows.
    pub is_new: bool,
}

/// The restore of an incremental dump.
pub(in crate::store) struct Increment<'a> {
    store: &'a Store,
    staged: StagedKeyspaces<'a>,
    txn: Txn,
    /// The keyspaces by their ids in the source store, and whether they are staged.
    targets: BTreeMap<u32, (Keyspace, bool)>,
    catalog: CatalogChanges,
}

/// The keyspaces that the large transaction drops and renames in the catalog. [`Increment::commit`]
/// updates their handles, too.
#[derive(Default)]
struct CatalogChanges {
    dropped: Vec<Keyspace>,
    renamed: Vec<(KeyspaceId, String)>,
}

impl<'a> Increment<'a> {
    /// Checks that the dump follows the last restored one, and locks the rows of the catalog that
    /// the restore changes.
    pub fn begin(store: &'a Store, header: &DumpHeader, listed: &[Listed], existing: OnExisting) -> Result<Self> {
        let catalog = store.inner.catalog.keyspace();
        // This first check ensures that no staged keyspaces are created for a dump that does not
        // follow the last one. The check that decides is in `change_catalog`, in the large
        // transaction.
        check_origin(&mut store.begin()?, &catalog, header)?;
        let (mut staged, mut targets) = (StagedKeyspaces::new(store), BTreeMap::new());
        for new in listed.iter().filter(|listed| listed.is_new) {
            staged.create(&new.name)?;
            targets.extend(staged.last().map(|keyspace| (new.id, (keyspace, true))));
        }
        let mut attempt = 1;
        loop {
            let options = TxnOptions::default().durability(Durability::Sync);
            let mut txn = store.begin_with(options)?;
            let mut targets = targets.clone();
            let locked = change_catalog(&mut txn, &catalog, header, listed, existing, &mut targets);
            match locked.and_then(|changes| txn.lock_buffered_rows_now().map(|()| changes)) {
                Ok(catalog) => {
                    // From here on a commit of another transaction to a row is no conflict, because
                    // the dump replaces the row. A lock of a running transaction still is one.
                    txn.skip_conflict_check();
                    return Ok(Self { store, staged, txn, targets, catalog });
                }
                Err(error) if error.is_retryable() && attempt < CATALOG_ATTEMPTS => {
                    drop(txn);
                    store.inner.env.sleep(RETRY_DELAY * attempt);
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The keyspace with this id in the source store, and whether it is staged.
    pub fn target(&self, id: u32) -> Option<(Keyspace, bool)> {
        self.targets.get(&id).cloned()
    }

    /// Writes or deletes a row of an existing keyspace.
    pub fn apply_row(&mut self, keyspace: &Keyspace, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        match value {
            Some(value) => self.txn.put(keyspace, key, value)?,
            None => self.txn.delete(keyspace, key)?,
        }
        let max_bytes = PENDING_BYTES_MAX.min(self.store.inner.options.max_transaction_bytes / 2);
        if self.txn.buffered_bytes() >= max_bytes { self.txn.lock_buffered_rows_now() } else { Ok(()) }
    }

    /// Commits the restore, durably.
    pub fn commit(self) -> Result<()> {
        let Self { store, staged, txn, catalog, .. } = self;
        let pending = PendingDrop::new(store, catalog.dropped)?;
        staged.publish_soon();
        txn.commit()?;
        pending.done();
        for (id, name) in catalog.renamed {
            store.inner.catalog.handle(id, &name).inner.descriptor.rename(&name);
        }
        drop(staged);
        Ok(())
    }
}

/// Checks that the last restored dump ended where the incremental one starts.
fn check_origin(txn: &mut Txn, catalog: &Keyspace, header: &DumpHeader) -> Result<RestoreOrigin> {
    let since = header.since.unwrap_or_default();
    let Some(origin) = RestoreOrigin::read(txn, catalog)? else {
        return Err(Error::invalid(format!(
            "the incremental dump starts at {since:#}, but nothing was restored here that it can follow: restore its base dump first"
        )));
    };
    if Some(origin.store_id) != header.store_id {
        return Err(Error::invalid("the incremental dump is of another store than the last restored dump"));
    }
    if origin.restored_ts != since {
        return Err(Error::invalid(format!(
            "the incremental dump starts at {since:#}, but the last restored dump ends at {:#}",
            origin.restored_ts
        )));
    }
    Ok(origin)
}

/// Writes the changes of the catalog in the transaction. `targets` already has the new keyspaces;
/// the existing ones are added here.
fn change_catalog(
    txn: &mut Txn,
    catalog: &Keyspace,
    header: &DumpHeader,
    listed: &[Listed],
    existing: OnExisting,
    targets: &mut BTreeMap<u32, (Keyspace, bool)>,
) -> Result<CatalogChanges> {
    let origin = check_origin(txn, catalog, header)?;
    let store = txn.store().clone();
    let mut names = BTreeMap::new();
    for row in txn.prefix(catalog, NAME_PREFIX) {
        let row = row?;
        names.extend(entry_name(row.key()).map(|name| Ok::<_, Error>((decode_id(row.value())?, name))).transpose()?);
    }
    let mut changes = CatalogChanges::default();
    let existing_ids: BTreeSet<u32> = listed.iter().filter(|listed| !listed.is_new).map(|listed| listed.id).collect();
    for (source_id, id) in &origin.keyspaces {
        // A keyspace that the dump does not list was dropped in the source store, so it is dropped
        // here, too. If it has no name any more, it was dropped here before.
        if let Some(name) = names.get(id).filter(|_| !existing_ids.contains(source_id)) {
            unlink_name(txn, catalog, name, *id)?;
            changes.dropped.push(store.inner.catalog.handle(*id, name));
        }
    }
    // All old names are deleted before new ones are written: two keyspaces may have swapped names.
    let mut new_names = Vec::new();
    for Listed { id: source_id, name, is_new } in listed {
        if *is_new {
            let (keyspace, _) = targets.get(source_id).ok_or_else(|| unknown_keyspace(name))?;
            txn.delete(catalog, dropped_key(keyspace.id()))?;
            new_names.push((keyspace.id(), name));
            continue;
        }
        let id = *origin.keyspaces.get(source_id).ok_or_else(|| unknown_keyspace(name))?;
        let old_name = names.get(&id).ok_or_else(|| {
            Error::invalid(format!(
                "keyspace {name:?} was dropped or truncated here, and the incremental dump has only its changes: restore a full dump"
            ))
        })?;
        targets.insert(*source_id, (store.inner.catalog.handle(id, name), false));
        check_name_unchanged(txn, catalog, old_name, id)?;
        if old_name != name {
            check_name(name)?;
            txn.delete(catalog, name_key(old_name))?;
            new_names.push((id, name));
            changes.renamed.push((id, name.clone()));
        }
    }
    for (id, name) in new_names {
        if let Some(other) = txn.get_for_update(catalog, name_key(name))? {
            if existing == OnExisting::Fail {
                return Err(Error::invalid(format!(
                    "keyspace {name:?} of the dump exists here and was not restored: rename or drop it, or allow that it is replaced (OnExisting::Replace)"
                )));
            }
            let other = decode_id(&other)?;
            txn.put(catalog, dropped_key(other), b"")?;
            changes.dropped.push(store.inner.catalog.handle(other, name));
        }
        txn.put(catalog, name_key(name), id.0.to_be_bytes())?;
    }
    let keyspaces = targets.iter().map(|(source_id, (keyspace, _))| (*source_id, keyspace.id())).collect();
    let origin = RestoreOrigin { store_id: origin.store_id, restored_ts: header.read_ts, keyspaces };
    RestoreOrigin::write(Some(&origin), txn, catalog)?;
    Ok(changes)
}

fn unknown_keyspace(name: &str) -> Error {
    let what = format!("the incremental dump has changes of keyspace {name:?}, which its base dump does not have");
    ErrorKind::Corruption(what).into()
}
