//! Increments: what a restored store becomes when the next part of its source's dumps is put over it.
//!
//! One transaction changes rows and catalog, and it is streamed, so its size is bounded by the disk only. The catalog's rows come first:
//! they are locked, and checked for conflicts, before the first row of the dump is read, and stay so until the end. Rows of new keyspaces
//! are committed apart, into keyspaces that have no name until that transaction gives it to them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::row::KeyspaceId;
use crate::store::catalog::drop::{PendingDrop, check_name_unchanged, unlink_name};
use crate::store::catalog::restore_origin::RestoreOrigin;
use crate::store::catalog::{NAME_PREFIX, StagedKeyspaces, check_name, decode_id, dropped_key, entry_name, name_key};
use crate::store::{DumpHeader, Durability, Keyspace, OnExisting, Store, Txn, TxnOptions};

/// So often the catalog is tried before the first row, where others change it at the same time.
const CATALOG_ATTEMPTS: u32 = 30;
const RETRY_DELAY: Duration = Duration::from_millis(5);
/// So much of what the transaction writes is kept in memory.
const PENDING_BYTES_MAX: usize = 1 << 20;

/// A keyspace of the source.
pub(in crate::store) struct Listed {
    pub id: u32,
    pub name: String,
    /// Not there when the increment begins; so the dump has all of it.
    pub is_new: bool,
}

/// An increment that is being restored.
pub(in crate::store) struct Increment<'a> {
    store: &'a Store,
    unnamed: StagedKeyspaces<'a>,
    txn: Txn,
    /// By their numbers at the source; those to be filled apart are marked.
    targets: BTreeMap<u32, (Keyspace, bool)>,
    catalog: CatalogChanges,
}

/// What becomes of the catalog.
#[derive(Default)]
struct CatalogChanges {
    dropped: Vec<Keyspace>,
    renamed: Vec<(KeyspaceId, String)>,
}

impl<'a> Increment<'a> {
    /// Sees whether it fits, and locks what it changes of the catalog.
    pub fn begin(store: &'a Store, header: &DumpHeader, listed: &[Listed], existing: OnExisting) -> Result<Self> {
        let catalog = store.catalog();
        // Before anything is written.
        check_origin(&mut store.begin()?, &catalog, header)?;
        let (mut unnamed, mut targets) = (StagedKeyspaces::new(store), BTreeMap::new());
        for new in listed.iter().filter(|listed| listed.is_new) {
            unnamed.create(&new.name)?;
            targets.extend(unnamed.last().map(|keyspace| (new.id, (keyspace, true))));
        }
        let mut attempt = 1;
        loop {
            let options = TxnOptions { durability: Some(Durability::Sync), ..TxnOptions::default() };
            let mut txn = store.begin_with(options)?;
            let mut targets = targets.clone();
            let locked = change_catalog(&mut txn, &catalog, header, listed, existing, &mut targets);
            match locked.and_then(|changes| txn.lock_buffered_rows_now().map(|()| changes)) {
                Ok(catalog) => {
                    // A row is what the source has, whatever was committed here since.
                    txn.skip_conflict_check();
                    return Ok(Self { store, unnamed, txn, targets, catalog });
                }
                Err(why) if why.is_retryable() && attempt < CATALOG_ATTEMPTS => {
                    drop(txn);
                    store.inner.runtime.sleep(RETRY_DELAY * attempt);
                    attempt += 1;
                }
                Err(why) => return Err(why),
            }
        }
    }

    /// The keyspace that has this number at the source, and whether it is one to be filled apart.
    pub fn target(&self, number: u32) -> Option<(Keyspace, bool)> {
        self.targets.get(&number).cloned()
    }

    /// Sets a row of a keyspace that is there, or removes it.
    pub fn apply_row(&mut self, keyspace: &Keyspace, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        match value {
            Some(value) => self.txn.put(keyspace, key, value)?,
            None => self.txn.delete(keyspace, key)?,
        }
        let enough = PENDING_BYTES_MAX.min(self.store.inner.options.max_transaction_bytes / 2);
        if self.txn.buffered_bytes() >= enough { self.txn.lock_buffered_rows_now() } else { Ok(()) }
    }

    /// Makes all of it visible, durably.
    pub fn commit(self) -> Result<()> {
        let Self { store, unnamed, txn, catalog, .. } = self;
        let ending = PendingDrop::new(store, catalog.dropped)?;
        unnamed.publish_soon();
        txn.commit()?;
        ending.done();
        for (id, name) in catalog.renamed {
            store.open_handle(id, &name).inner.descriptor.rename(&name);
        }
        drop(unnamed);
        Ok(())
    }
}

/// Whether the last restore ended where the increment begins.
fn check_origin(txn: &mut Txn, catalog: &Keyspace, header: &DumpHeader) -> Result<RestoreOrigin> {
    let since = header.since.unwrap_or_default();
    let Some(origin) = RestoreOrigin::read(txn, catalog)? else {
        return Err(Error::invalid(format!(
            "the dump is an increment that begins at {since:#}, and nothing was restored here that it could follow: restore the dump before it first"
        )));
    };
    if Some(origin.store_id) != header.store_id {
        return Err(Error::invalid("the dump is an increment of another store than the one that was restored here"));
    }
    if origin.restored_ts != since {
        return Err(Error::invalid(format!(
            "the dump is an increment that begins at {since:#}, and what was restored here ends at {:#}",
            origin.restored_ts
        )));
    }
    Ok(origin)
}

/// Writes the catalog as it is to be. New keyspaces are among the targets already.
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
        let (key, id) = row?;
        names.extend(entry_name(&key).map(|name| Ok::<_, Error>((decode_id(&id)?, name))).transpose()?);
    }
    let mut changes = CatalogChanges::default();
    let stays: BTreeSet<u32> = listed.iter().filter(|listed| !listed.is_new).map(|listed| listed.id).collect();
    for (number, id) in &origin.keyspaces {
        // Those that were dropped here as well need nothing.
        if let Some(name) = names.get(id).filter(|_| !stays.contains(number)) {
            unlink_name(txn, catalog, name, *id)?;
            changes.dropped.push(store.open_handle(*id, name));
        }
    }
    // All old names go before any new one comes: two keyspaces may have exchanged theirs.
    let mut named = Vec::new();
    for Listed { id: number, name, is_new } in listed {
        if *is_new {
            let (keyspace, _) = targets.get(number).ok_or_else(|| unknown(name))?;
            txn.delete(catalog, dropped_key(keyspace.id()))?;
            named.push((keyspace.id(), name));
            continue;
        }
        let id = *origin.keyspaces.get(number).ok_or_else(|| unknown(name))?;
        let before = names.get(&id).ok_or_else(|| {
            Error::invalid(format!(
                "the keyspace {name:?} was dropped or truncated here, and the increment has only what has changed in it"
            ))
        })?;
        targets.insert(*number, (store.open_handle(id, name), false));
        check_name_unchanged(txn, catalog, before, id)?;
        if before != name {
            check_name(name)?;
            txn.delete(catalog, name_key(before))?;
            named.push((id, name));
            changes.renamed.push((id, name.clone()));
        }
    }
    for (id, name) in named {
        if let Some(other) = txn.get_for_update(catalog, name_key(name))? {
            if existing == OnExisting::Fail {
                return Err(Error::invalid(format!(
                    "there is a keyspace {name:?} here that was not restored, and the dump has one of that name: say that keyspaces may be replaced"
                )));
            }
            let other = decode_id(&other)?;
            txn.put(catalog, dropped_key(other), b"")?;
            changes.dropped.push(store.open_handle(other, name));
        }
        txn.put(catalog, name_key(name), id.0.to_be_bytes())?;
    }
    let keyspaces = targets.iter().map(|(number, (keyspace, _))| (*number, keyspace.id())).collect();
    let origin = RestoreOrigin { store_id: origin.store_id, restored_ts: header.read_ts, keyspaces };
    RestoreOrigin::write(Some(&origin), txn, catalog)?;
    Ok(changes)
}

fn unknown(name: &str) -> Error {
    let what = format!("the increment has changes of the keyspace {name:?}, which the dump before it does not have");
    ErrorKind::Corruption(what).into()
}
