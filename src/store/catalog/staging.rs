//! Keyspaces that are filled before they are named.

use crate::error::{Error, Result};
use crate::store::catalog::drop::PendingDrop;
use crate::store::catalog::restore_origin::RestoreOrigin;
use crate::store::catalog::{STAGED_MARK, allocate_id, check_name, decode_id, dropped_key, name_key};
use crate::store::{Durability, Keyspace, OnExisting, Store, TxnOptions};
use crate::timestamp::Timestamp;

/// New keyspaces that are to get their names later, all at once. Until then the catalog has them among the dropped, so that
/// they go if that never comes; in this life of the store, as soon as this is dropped.
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
        let catalog = store.catalog();
        let id = store.transact(|txn| {
            let id = allocate_id(txn, &catalog)?;
            // Before it is committed: the background must not take it for one that may be erased.
            store.inner.catalog.dropped.lock().insert(id.0, Timestamp::MAX);
            txn.put(&catalog, dropped_key(id), STAGED_MARK)?;
            Ok::<_, Error>(id)
        })?;
        let handle = store.open_handle(id, name);
        handle.inner.visibility.set_staging(true);
        self.keyspaces.push(handle);
        Ok(())
    }

    /// From here on every view judges them by the catalog, as it does all others.
    pub fn publish_soon(&self) {
        self.keyspaces.iter().for_each(|keyspace| keyspace.inner.visibility.set_staging(false));
    }

    /// Gives all of them their names, durably, in one transaction, and notes where they come from.
    pub fn publish(self, existing: OnExisting, origin: Option<&RestoreOrigin>) -> Result<()> {
        let store = self.store;
        self.publish_soon();
        let mut replaced = Vec::new();
        for keyspace in &self.keyspaces {
            if let Some(id) = store.lookup_id(keyspace.name())? {
                if existing == OnExisting::Fail {
                    let what = format!("there is a keyspace {:?} now that was not there before", keyspace.name());
                    return Err(Error::invalid(what));
                }
                replaced.push(store.open_handle(id, keyspace.name()));
            }
        }
        let replaced = PendingDrop::new(store, replaced)?;
        let catalog = store.catalog();
        let options = TxnOptions { durability: Some(Durability::Sync), ..TxnOptions::default() };
        store.transact_with(options, |txn| {
            for keyspace in &self.keyspaces {
                let listed =
                    txn.get_for_update(&catalog, name_key(keyspace.name()))?.map(|id| decode_id(&id)).transpose()?;
                if listed != replaced.of(keyspace.name()) {
                    return Err(Error::invalid(format!("the keyspace {:?} has changed meanwhile", keyspace.name())));
                }
                if let Some(old) = listed {
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
        let mut dropped = self.store.inner.catalog.dropped.lock();
        for keyspace in &self.keyspaces {
            dropped.remove(&keyspace.id().0);
        }
    }
}
