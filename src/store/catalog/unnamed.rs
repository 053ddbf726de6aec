//! Keyspaces that are filled before they are named.

use super::dropping::Ending;
use super::restored::Origin;
use super::{NEVER_NAMED, check_name, dropped_key, name_key, read_id, take_number};
use crate::error::{Error, Result};
use crate::store::{Durability, Existing, Keyspace, Store, TxnOptions};
use crate::timestamp::Timestamp;

/// New keyspaces that are to get their names later, all at once. Until then the catalog has them among the dropped, so that
/// they go if that never comes; in this life of the store, as soon as this is dropped.
pub struct Unnamed<'a> {
    store: &'a Store,
    keyspaces: Vec<Keyspace>,
}

impl<'a> Unnamed<'a> {
    pub fn new(store: &'a Store) -> Self {
        Self { store, keyspaces: Vec::new() }
    }

    #[cfg(feature = "rocks")]
    pub fn has(&self, name: &str) -> bool {
        self.keyspaces.iter().any(|keyspace| keyspace.name() == name)
    }

    pub fn last(&self) -> Option<Keyspace> {
        self.keyspaces.last().cloned()
    }

    pub fn add(&mut self, name: &str) -> Result<()> {
        check_name(name)?;
        let store = self.store;
        let catalog = store.catalog();
        let id = store.transact(|txn| {
            let id = take_number(txn, &catalog)?;
            // Before it is committed: the background must not take it for one that may be erased.
            store.inner.catalog.dropped.lock().insert(id.0, Timestamp::MAX);
            txn.put(&catalog, dropped_key(id), NEVER_NAMED)?;
            Ok::<_, Error>(id)
        })?;
        let handle = store.handle(id, name);
        handle.state.known.set_being_filled(true);
        self.keyspaces.push(handle);
        Ok(())
    }

    /// From here on every view judges them by the catalog, as it does all others.
    pub fn about_to_be_named(&self) {
        self.keyspaces.iter().for_each(|keyspace| keyspace.state.known.set_being_filled(false));
    }

    /// Gives all of them their names, durably, in one transaction, and notes where they come from.
    pub fn name_all(self, existing: Existing, origin: Option<&Origin>) -> Result<()> {
        let store = self.store;
        self.about_to_be_named();
        let mut replaced = Vec::new();
        for keyspace in &self.keyspaces {
            if let Some(id) = store.find(keyspace.name())? {
                if existing == Existing::Refuse {
                    let what = format!("there is a keyspace {:?} now that was not there before", keyspace.name());
                    return Err(Error::invalid(what));
                }
                replaced.push(store.handle(id, keyspace.name()));
            }
        }
        let replaced = Ending::new(store, replaced)?;
        let catalog = store.catalog();
        let options = TxnOptions { durability: Some(Durability::Sync), ..TxnOptions::default() };
        store.transact_with(options, |txn| {
            for keyspace in &self.keyspaces {
                let listed =
                    txn.get_for_update(&catalog, name_key(keyspace.name()))?.map(|id| read_id(&id)).transpose()?;
                if listed != replaced.of(keyspace.name()) {
                    return Err(Error::invalid(format!("the keyspace {:?} has changed meanwhile", keyspace.name())));
                }
                if let Some(old) = listed {
                    txn.put(&catalog, dropped_key(old), b"")?;
                }
                txn.put(&catalog, name_key(keyspace.name()), keyspace.id().0.to_be_bytes())?;
                txn.delete(&catalog, dropped_key(keyspace.id()))?;
            }
            Origin::write(origin, txn, &catalog)
        })?;
        replaced.done();
        Ok(())
    }
}

impl Drop for Unnamed<'_> {
    fn drop(&mut self) {
        let mut dropped = self.store.inner.catalog.dropped.lock();
        for keyspace in &self.keyspaces {
            dropped.remove(&keyspace.id().0);
        }
    }
}
