//! Staged keyspaces: they are filled before they get their names, so that a restore becomes visible
//! atomically.
//!
//! Until they have names, the catalog lists them as dropped, so that the background worker purges
//! them if the restore fails. The value `new` in a `dropped/` entry distinguishes a staged keyspace
//! from one that had a name.

use crate::error::{Error, Result};
use crate::store::catalog::drop::PendingDrop;
use crate::store::catalog::entries::{STAGED_MARK, check_name, decode_id, dropped_key, name_key};
use crate::store::catalog::keyspaces::{allocate_id, id_of};
use crate::store::catalog::restore_origin::RestoreOrigin;
use crate::store::handle::Store;
use crate::store::keyspace::Keyspace;
use crate::store::maintenance::dump::OnExisting;
use crate::store::options::{Durability, TxnOptions};

/// New keyspaces, which get their names in one transaction. If this value is dropped before that
/// transaction, the background worker purges the keyspaces. After a crash, the background worker of
/// the next incarnation purges them.
pub struct StagedKeyspaces<'a> {
    store: &'a Store,
    keyspaces: Vec<Keyspace>,
}

impl<'a> StagedKeyspaces<'a> {
    pub fn new(store: &'a Store) -> Self {
        Self { store, keyspaces: Vec::new() }
    }

    #[cfg(feature = "rocks")]
    pub fn contains(&self, name: &str) -> bool {
        self.keyspaces.iter().any(|keyspace| keyspace.name() == name)
    }

    pub fn last(&self) -> Option<Keyspace> {
        self.keyspaces.last().cloned()
    }

    pub fn create(&mut self, name: &str) -> Result<()> {
        check_name(name)?;
        let store = self.store;
        let catalog = store.inner.catalog.keyspace();
        let id = store.transact(|txn| {
            let id = allocate_id(txn, &catalog)?;
            store.inner.catalog.begin_drop(id);
            txn.put(&catalog, dropped_key(id), STAGED_MARK)?;
            Ok::<_, Error>(id)
        })?;
        let handle = store.inner.catalog.handle(id, name);
        handle.inner.visibility.set_staging(true);
        self.keyspaces.push(handle);
        Ok(())
    }

    /// To be called before the commit that gives the keyspaces their names. Until this call their
    /// handles, which only the restore has, show the rows in every view. From then on they are like
    /// all handles: they show the rows in a view only if the keyspace has a name there.
    pub fn publish_soon(&self) {
        self.keyspaces.iter().for_each(|keyspace| keyspace.inner.visibility.set_staging(false));
    }

    /// Gives all keyspaces their names, and replaces or deletes the store's [`RestoreOrigin`], in
    /// one durable transaction.
    pub fn publish(self, existing: OnExisting, origin: Option<&RestoreOrigin>) -> Result<()> {
        let store = self.store;
        self.publish_soon();
        let mut replaced = Vec::new();
        for keyspace in &self.keyspaces {
            if let Some(id) = id_of(store, keyspace.name())? {
                if existing == OnExisting::Fail {
                    let what = format!("keyspace {:?} was created meanwhile", keyspace.name());
                    return Err(Error::invalid(what));
                }
                replaced.push(store.inner.catalog.handle(id, keyspace.name()));
            }
        }
        let replaced = PendingDrop::new(store, replaced)?;
        let catalog = store.inner.catalog.keyspace();
        let options = TxnOptions::default().durability(Durability::Sync);
        store.transact_with(options, |txn| {
            for keyspace in &self.keyspaces {
                let old =
                    txn.get_for_update(&catalog, name_key(keyspace.name()))?.map(|id| decode_id(&id)).transpose()?;
                if old != replaced.of(keyspace.name()) {
                    let what = format!("keyspace {:?} was created, dropped or renamed meanwhile", keyspace.name());
                    return Err(Error::invalid(what));
                }
                if let Some(old) = old {
                    txn.put(&catalog, dropped_key(old), b"")?;
                }
                txn.put(&catalog, name_key(keyspace.name()), keyspace.id().0.to_be_bytes())?;
                txn.delete(&catalog, dropped_key(keyspace.id()))?;
            }
            RestoreOrigin::write(origin, txn, &catalog)
        })?;
        replaced.done();
        Ok(())
    }
}

impl Drop for StagedKeyspaces<'_> {
    fn drop(&mut self) {
        if !self.store.inner.process.is_current() {
            return;
        }
        for keyspace in &self.keyspaces {
            self.store.inner.catalog.undo_drop(keyspace.id());
        }
    }
}
