//! The catalog: which keyspaces there are.
//!
//! It is kept as rows of a keyspace of its own, number 0, and changed by ordinary transactions, so creating and dropping
//! are as atomic, durable and versioned as everything else:
//!
//! ```text
//!   name/<name>      -> the keyspace's number
//!   next             -> the number that the next keyspace gets; never goes back
//!   dropped/<number> -> nothing; its rows are still to be erased
//! ```
//!
//! Dropping first marks the handles, which every commit looks at when it is applied; so no commit is applied behind the
//! drop. Whoever reads through a marked handle asks the catalog, at the moment that it reads at. The rows go later, in the
//! background, when no view is left that was opened before the drop, and when no lock of an earlier life is left anywhere,
//! because its primary might lie in the keyspace.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::keyspace::{Keyspace, KeyspaceState};
use super::{KEYSPACE_NAME_MAX_BYTES, Store, Txn};
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::Life;
use crate::row::KeyspaceId;
use crate::timestamp::Timestamp;
use crate::view::PinnedView;

const CATALOG: KeyspaceId = KeyspaceId(0);
const NAME: &str = "name/";
const NEXT: &[u8] = b"next";
const DROPPED: &str = "dropped/";

/// The handles that were given out.
#[derive(Default)]
pub(super) struct Catalog {
    open: Mutex<HashMap<u32, Keyspace>>,
    /// Dropped in this life of the store, and when; until the drop is committed, later than anything.
    dropped: Mutex<HashMap<u32, Timestamp>>,
}

impl Store {
    /// Opens a keyspace, and creates it if there is none of this name.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when the name is empty, longer than [`KEYSPACE_NAME_MAX_BYTES`] or holds control
    /// characters, and those of a commit.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        check_name(name)?;
        if let Some(id) = self.find(name)? {
            let found = self.handle(id, name);
            // It may have been dropped since it was found.
            if !found.0.life.is_over() {
                return Ok(found);
            }
        }
        self.inner.check_writable()?;
        let catalog = self.catalog();
        let id = self.transact(|txn| {
            if let Some(id) = txn.get(&catalog, name_key(name).as_bytes())? {
                return read_id(&id);
            }
            let id =
                txn.get_for_update(&catalog, NEXT)?.map_or(Ok(KeyspaceId(CATALOG.0 + 1)), |next| read_id(&next))?;
            let next = id.0.checked_add(1).ok_or_else(|| Error::invalid("there are no keyspace numbers left"))?;
            txn.put(&catalog, NEXT, next.to_be_bytes())?;
            txn.put(&catalog, name_key(name).as_bytes(), id.0.to_be_bytes())?;
            Ok(id)
        })?;
        crash_point!(KeyspaceCreated);
        Ok(self.handle(id, name))
    }

    /// Opens a keyspace that exists.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchKeyspace`] when it does not.
    pub fn existing_keyspace(&self, name: &str) -> Result<Keyspace> {
        let id = self.find(name)?.ok_or_else(|| ErrorKind::NoSuchKeyspace(name.into()))?;
        Ok(self.handle(id, name))
    }

    /// The names of all keyspaces, in order.
    ///
    /// # Errors
    /// Those of reading.
    pub fn keyspaces(&self) -> Result<Vec<String>> {
        let catalog = self.catalog();
        self.snapshot()?
            .prefix(&catalog, NAME.as_bytes())
            .map(|row| {
                let (key, _) = row?;
                Ok(String::from_utf8_lossy(key.get(NAME.len()..).unwrap_or_default()).into_owned())
            })
            .collect()
    }

    /// Drops a keyspace and everything in it. Snapshots and transactions that were begun before go on reading it through
    /// the handles that there are; those begun later answer [`ErrorKind::NoSuchKeyspace`]. Nobody can write to it any more,
    /// and a transaction that has already does not commit. Its space is given back later.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchKeyspace`], [`ErrorKind::InvalidArgument`] on an engine shared with other processes, and those
    /// of a commit.
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        self.inner.check_writable()?;
        if self.inner.embedded.is_none() {
            return Err(Error::invalid("keyspaces of an engine that others use cannot be dropped"));
        }
        let keyspace = self.existing_keyspace(name)?;
        let state = &keyspace.0;
        if !state.life.end() {
            return Err(ErrorKind::NoSuchKeyspace(name.into()).into());
        }
        // Listed before it is committed, so that its rows are not taken for those of an earlier life's drop.
        self.inner.catalog.dropped.lock().insert(state.id.0, Timestamp::MAX);
        match self.commit_drop(state.id, name) {
            Ok(dropped_at) => {
                self.inner.catalog.dropped.lock().insert(state.id.0, dropped_at);
                Ok(())
            }
            Err(why) => {
                // Whether it was dropped is not known only where the store has failed anyway.
                self.inner.catalog.dropped.lock().remove(&state.id.0);
                state.life.go_on();
                Err(why)
            }
        }
    }

    fn commit_drop(&self, id: KeyspaceId, name: &str) -> Result<Timestamp> {
        let catalog = self.catalog();
        let mut txn = self.begin()?;
        let listed = txn.get_for_update(&catalog, name_key(name))?.map(|id| read_id(&id)).transpose()?;
        if listed != Some(id) {
            return Err(ErrorKind::NoSuchKeyspace(name.into()).into());
        }
        txn.delete(&catalog, name_key(name))?;
        txn.put(&catalog, dropped_key(id), b"")?;
        Ok(txn.commit()?.ts)
    }

    /// Gives back the space of dropped keyspaces that nobody can need any more.
    pub(super) fn erase_dropped(&self) -> Result<()> {
        let Some(embedded) = &self.inner.embedded else { return Ok(()) };
        let pipeline = embedded.pipeline();
        if pipeline.may_have_orphans() && !mutated!(DropLeavesOrphans) {
            return Ok(());
        }
        let catalog = self.catalog();
        let listed: Vec<_> = self.begin()?.prefix(&catalog, DROPPED.as_bytes()).collect::<Result<_>>()?;
        for (key, _) in listed {
            let id = String::from_utf8_lossy(key.get(DROPPED.len()..).unwrap_or_default()).parse::<u32>();
            let id = id.map_err(|_| ErrorKind::Corruption(format!("catalog entry {}", key.escape_ascii())))?;
            // A drop of an earlier life is older than every view of this one.
            let dropped_at = self.inner.catalog.dropped.lock().get(&id).copied().unwrap_or(Timestamp::ZERO);
            if pipeline.oldest_read() < dropped_at {
                continue;
            }
            crash_point!(KeyspaceDropped);
            self.inner.engine.erase(KeyspaceId(id)).map_err(|why| pipeline.poison(why.into()))?;
            crash_point!(KeyspaceErased);
            // By hand: the background must not queue for a permit that a caller of `close` may hold.
            let mut txn = self.begin()?;
            txn.delete(&catalog, &key)?;
            txn.commit()?;
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Result<Option<KeyspaceId>> {
        let catalog = self.catalog();
        let txn = self.begin()?;
        let found = txn.get(&catalog, name_key(name).as_bytes())?;
        txn.commit()?;
        found.map(|id| read_id(&id)).transpose()
    }

    /// Whether the keyspace may be read at the view. A dropped one may be where the drop is still to come, as the catalog has
    /// it there; so a snapshot's answer never changes.
    pub(super) fn check_keyspace(&self, view: &PinnedView, keyspace: &Keyspace) -> Result<()> {
        self.check_view(view)?;
        keyspace.check_store(self.identity())?;
        if !keyspace.0.life.is_over() {
            return Ok(());
        }
        let listed = self.read(view, &self.catalog().row(name_key(keyspace.name()).as_bytes()))?;
        match listed.map(|id| read_id(&id)).transpose()? {
            Some(id) if id == keyspace.id() => Ok(()),
            _ => Err(keyspace.is_missing()),
        }
    }

    fn catalog(&self) -> Keyspace {
        self.handle(CATALOG, "(catalog)")
    }

    fn handle(&self, id: KeyspaceId, name: &str) -> Keyspace {
        let mut open = self.inner.catalog.open.lock();
        let fresh = || Keyspace(Arc::new(KeyspaceState { id, life: Life::new(name), store: self.identity() }));
        open.entry(id.0).or_insert_with(fresh).clone()
    }

    pub(super) fn identity(&self) -> u64 {
        self.inner.identity
    }

    /// The keyspace's name, as far as this process has learned it.
    pub(super) fn name_of(&self, id: KeyspaceId) -> Option<String> {
        if let Some(keyspace) = self.inner.catalog.open.lock().get(&id.0) {
            return Some(keyspace.name().to_owned());
        }
        let catalog = self.catalog();
        let txn: Txn = self.begin().ok()?;
        txn.prefix(&catalog, NAME.as_bytes()).find_map(|row| {
            let (key, value) = row.ok()?;
            let name = String::from_utf8_lossy(key.get(NAME.len()..)?).into_owned();
            (read_id(&value).ok()? == id).then_some(name)
        })
    }
}

fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > KEYSPACE_NAME_MAX_BYTES || name.chars().any(char::is_control) {
        return Err(Error::invalid(format!(
            "a keyspace's name has 1 to {KEYSPACE_NAME_MAX_BYTES} bytes and no control characters: {name:?}"
        )));
    }
    Ok(())
}

fn name_key(name: &str) -> String {
    format!("{NAME}{name}")
}

fn dropped_key(id: KeyspaceId) -> String {
    format!("{DROPPED}{:010}", id.0)
}

fn read_id(bytes: &[u8]) -> Result<KeyspaceId> {
    let number = bytes.try_into().map(u32::from_be_bytes);
    number.map(KeyspaceId).map_err(|_| ErrorKind::Corruption("a catalog entry is no keyspace number".into()).into())
}
