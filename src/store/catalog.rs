//! The catalog: which keyspaces there are.
//!
//! It is kept as rows of a keyspace of its own, number 0, and changed by ordinary transactions, so creating and dropping
//! are as atomic, durable and versioned as everything else:
//!
//! ```text
//!   name/<name>      -> the keyspace's number
//!   next             -> the number that the next keyspace gets; never goes back
//!   dropped/<number> -> nothing, or `new` if it never had a name; its rows are still to be erased
//! ```
//!
//! Dropping first marks the handles, which every commit looks at when it is applied; so no commit is applied behind the
//! drop. Whoever reads through a marked handle asks the catalog, at the moment that it reads at. The rows go later, in the
//! background, when no view is left that was opened before the drop, and when no lock of an earlier life is left anywhere,
//! because its primary might lie in the keyspace.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use super::keyspace::{Keyspace, KeyspaceState};
use super::range::prefix_range;
use super::scan::Scan;
use super::{Durability, Existing, KEYSPACE_NAME_MAX_BYTES, Snapshot, Store, Txn, TxnOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::Life;
use crate::row::KeyspaceId;
use crate::timestamp::Timestamp;
use crate::view::PinnedView;

pub(super) const CATALOG: KeyspaceId = KeyspaceId(0);
const NAME: &str = "name/";
const NEXT: &[u8] = b"next";
const DROPPED: &str = "dropped/";
/// What is said there of a keyspace that was made and is still to be named.
const NEVER_NAMED: &[u8] = b"new";

/// The handles that were given out.
#[derive(Default)]
pub(super) struct Catalog {
    open: Mutex<HashMap<u32, Arc<KeyspaceState>>>,
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
            if !found.state.life.is_over() {
                return Ok(found);
            }
        }
        self.inner.check_writable()?;
        let catalog = self.catalog();
        let id = self.transact(|txn| {
            if let Some(id) = txn.get(&catalog, name_key(name).as_bytes())? {
                return read_id(&id);
            }
            let id = take_number(txn, &catalog)?;
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
        Ok(self.snapshot()?.keyspaces()?.iter().map(|keyspace| keyspace.name().to_owned()).collect())
    }

    /// Drops a keyspace and everything in it. Snapshots and transactions that were begun before go on reading it through
    /// the handles that there are; those begun later answer [`ErrorKind::NoSuchKeyspace`]. Nobody can write to it any more,
    /// and a transaction that has already does not commit. Its space is given back later.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchKeyspace`], [`ErrorKind::InvalidArgument`] on an engine shared with other processes, and those
    /// of a commit.
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        // Whether it was dropped is not known only where the store has failed anyway.
        let (ending, id) = self.begin_drop(name)?;
        self.commit_drop(id, name)?;
        ending.done();
        Ok(())
    }

    /// Gives a keyspace another name, in one transaction of the catalog. Nothing else changes: handles go on to work, transactions
    /// that write to it commit, and snapshots that were taken before list it under its old name. The answer is a handle that
    /// knows the new one.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// let store = percolite::Store::in_memory()?;
    /// let draft = store.keyspace("draft")?;
    /// store.transact(|txn| txn.put(&draft, "title", "Snow"))?;
    /// let book = store.rename_keyspace("draft", "book")?;
    /// assert_eq!((book.name(), store.keyspaces()?), ("book", vec!["book".to_owned()]));
    /// assert_eq!(store.snapshot()?.get(&draft, "title")?, Some(b"Snow".to_vec()));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchKeyspace`], [`ErrorKind::InvalidArgument`] when there is a keyspace of the new name or there can be
    /// none ([`Store::keyspace`]), and those of a commit.
    pub fn rename_keyspace(&self, name: &str, to: &str) -> Result<Keyspace> {
        check_name(to)?;
        self.inner.check_open()?;
        self.inner.check_writable()?;
        let catalog = self.catalog();
        let id = self.transact(|txn| {
            let listed = txn.get_for_update(&catalog, name_key(name))?;
            let listed = listed.ok_or_else(|| ErrorKind::NoSuchKeyspace(name.into()))?;
            if txn.get_for_update(&catalog, name_key(to))?.is_some() {
                return Err(Error::invalid(format!("there is a keyspace {to:?} already")));
            }
            txn.delete(&catalog, name_key(name))?;
            txn.put(&catalog, name_key(to), &listed)?;
            read_id(&listed)
        })?;
        let renamed = self.handle(id, to);
        renamed.state.life.rename(to);
        Ok(renamed)
    }

    /// Removes all rows of a keyspace at once, however many: an empty one takes its name, and the old one is dropped
    /// ([`Store::drop_keyspace`] says what that means to those who read it), in one transaction of the catalog. The answer is a
    /// handle of the new one; the old handles stay those of the old one, so a transaction that has written through them does not
    /// commit. No row is read or locked.
    ///
    /// To remove rows in a transaction with others: [`Txn::delete_range`](super::Txn::delete_range).
    ///
    /// # Errors
    /// Those of [`Store::drop_keyspace`].
    pub fn truncate_keyspace(&self, name: &str) -> Result<Keyspace> {
        let (ending, old) = self.begin_drop(name)?;
        let catalog = self.catalog();
        let new = self.transact(|txn| {
            check_listed(txn, &catalog, name, old)?;
            let new = take_number(txn, &catalog)?;
            txn.put(&catalog, name_key(name), new.0.to_be_bytes())?;
            txn.put(&catalog, dropped_key(old), b"")?;
            Ok::<_, Error>(new)
        })?;
        ending.done();
        Ok(self.handle(new, name))
    }

    /// Marks the handles.
    fn begin_drop(&self, name: &str) -> Result<(Ending<'_>, KeyspaceId)> {
        self.inner.check_open()?;
        self.inner.check_writable()?;
        if self.inner.embedded.is_none() {
            return Err(Error::invalid("keyspaces of an engine that others use cannot be dropped"));
        }
        let keyspace = self.existing_keyspace(name)?;
        let id = keyspace.id();
        Ok((Ending::new(self, vec![keyspace])?, id))
    }

    fn commit_drop(&self, id: KeyspaceId, name: &str) -> Result<()> {
        let catalog = self.catalog();
        let mut txn = self.begin()?;
        check_listed(&mut txn, &catalog, name, id)?;
        txn.delete(&catalog, name_key(name))?;
        txn.put(&catalog, dropped_key(id), b"")?;
        txn.commit().map(drop)
    }

    /// Gives back the space of dropped keyspaces that nobody can need any more.
    pub(super) fn erase_dropped(&self) -> Result<()> {
        let Some(embedded) = &self.inner.embedded else { return Ok(()) };
        let pipeline = embedded.pipeline();
        let may_be_asked = || pipeline.may_have_orphans() || pipeline.any_unapplied() || embedded.endings() > 0;
        if may_be_asked() && !mutated!(DropLeavesOrphans) {
            return Ok(());
        }
        let catalog = self.catalog();
        let view = self.inner.coordinator.begin()?.0;
        let listed: Vec<_> = self.listed(&view, DROPPED).collect::<Result<_>>()?;
        for (key, what) in listed {
            let KeyspaceId(id) = read_dropped(&key)?;
            // Those that are not to be taken for dropped yet are noted as dropped at the end of time.
            let noted = self.inner.catalog.dropped.lock().get(&id).copied().unwrap_or_default();
            let committed = self.inner.engine.view()?.write(&catalog.row(&key))?.map_or(noted, |drop| drop.commit_ts);
            // One that never had a name cannot be read at any moment.
            let needed_from = if what == NEVER_NAMED { pipeline.oldest_read() } else { embedded.collectable()? };
            if needed_from < noted.max(committed) {
                continue;
            }
            // Once more, now that the drop is known: what was committed before it is unapplied until its last lock is gone.
            if may_be_asked() && !mutated!(DropLeavesOrphans) {
                return Ok(());
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
    pub(super) fn check_keyspace(&self, view: &Arc<PinnedView>, keyspace: &Keyspace) -> Result<()> {
        self.check_view(view)?;
        keyspace.check_store(self.identity())?;
        if !keyspace.state.life.is_over() {
            return Ok(());
        }
        let listed = self.read(view, &self.catalog().row(name_key(keyspace.name()).as_bytes()))?;
        if listed.map(|id| read_id(&id)).transpose()? == Some(keyspace.id()) {
            return Ok(());
        }
        // It may have another name there.
        for row in self.listed(view, NAME) {
            if read_id(&row?.1)? == keyspace.id() {
                return Ok(());
            }
        }
        Err(keyspace.is_missing())
    }

    pub(super) fn catalog(&self) -> Keyspace {
        self.handle(CATALOG, "(catalog)")
    }

    fn handle(&self, id: KeyspaceId, name: &str) -> Keyspace {
        let mut open = self.inner.catalog.open.lock();
        let fresh = || Arc::new(KeyspaceState { id, life: Life::new(name), store: self.identity() });
        Keyspace::new(Arc::clone(open.entry(id.0).or_insert_with(fresh)), name)
    }

    pub(super) fn identity(&self) -> u64 {
        self.inner.identity
    }

    /// The catalog's entries of a kind. They are the store's own to read, so that no list shows who does.
    fn listed(&self, view: &Arc<PinnedView>, kind: &str) -> Scan {
        let range = prefix_range(&self.catalog(), kind.as_bytes());
        Scan::new(self, &self.own_reader(Arc::clone(view)), Ok((BTreeMap::new(), None, range)))
    }

    /// The name of a keyspace that has a handle.
    pub(super) fn open_name_of(&self, id: KeyspaceId) -> Option<String> {
        self.inner.catalog.open.lock().get(&id.0).map(|keyspace| keyspace.life.name().to_string())
    }

    pub(super) fn name_of(&self, id: KeyspaceId) -> Option<String> {
        if let Some(name) = self.open_name_of(id) {
            return Some(name);
        }
        let view = self.inner.coordinator.begin().ok()?.0;
        self.listed(&view, NAME).find_map(|row| {
            let (key, value) = row.ok()?;
            let name = String::from_utf8_lossy(key.get(NAME.len()..)?).into_owned();
            (read_id(&value).ok()? == id).then_some(name)
        })
    }
}

impl Snapshot {
    /// The keyspaces that there are in this view, in the order of their names.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`].
    pub fn keyspaces(&self) -> Result<Vec<Keyspace>> {
        let listed = self.prefix(&self.store.catalog(), NAME.as_bytes()).map(|row| {
            let (key, id) = row?;
            let name = String::from_utf8_lossy(key.get(NAME.len()..).unwrap_or_default()).into_owned();
            Ok(self.store.handle(read_id(&id)?, &name))
        });
        listed.collect()
    }
}

/// New keyspaces that are to get their names later, all at once. Until then the catalog has them among the dropped, so that
/// they go if that never comes; in this life of the store, as soon as this is dropped.
pub(super) struct Unnamed<'a> {
    store: &'a Store,
    keyspaces: Vec<Keyspace>,
}

impl<'a> Unnamed<'a> {
    pub fn new(store: &'a Store) -> Self {
        Self { store, keyspaces: Vec::new() }
    }

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
        self.keyspaces.push(store.handle(id, name));
        Ok(())
    }

    /// Gives all of them their names, durably, in one transaction.
    pub fn name_all(self, existing: Existing) -> Result<()> {
        let store = self.store;
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
            Ok(())
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

/// Keyspaces that are marked as dropped and go on unless that is [`done`](Ending::done).
struct Ending<'a> {
    store: &'a Store,
    keyspaces: Vec<Keyspace>,
}

impl<'a> Ending<'a> {
    fn new(store: &'a Store, keyspaces: Vec<Keyspace>) -> Result<Self> {
        let mut ending = Self { store, keyspaces: Vec::new() };
        for keyspace in keyspaces {
            if !keyspace.state.life.end() {
                return Err(keyspace.is_missing());
            }
            // Listed before it is committed, so that its rows are not taken for those of an earlier life's drop.
            store.inner.catalog.dropped.lock().insert(keyspace.id().0, Timestamp::MAX);
            ending.keyspaces.push(keyspace);
        }
        Ok(ending)
    }

    fn of(&self, name: &str) -> Option<KeyspaceId> {
        self.keyspaces.iter().find(|keyspace| keyspace.name() == name).map(Keyspace::id)
    }

    /// The drop is committed and visible.
    fn done(mut self) {
        let visible = self.store.stats().visible_ts;
        let mut dropped = self.store.inner.catalog.dropped.lock();
        for keyspace in self.keyspaces.drain(..) {
            dropped.insert(keyspace.id().0, visible);
        }
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        for keyspace in &self.keyspaces {
            self.store.inner.catalog.dropped.lock().remove(&keyspace.id().0);
            keyspace.state.life.go_on();
        }
    }
}

/// Makes sure that the name is still this keyspace's when the transaction commits.
fn check_listed(txn: &mut Txn, catalog: &Keyspace, name: &str, id: KeyspaceId) -> Result<()> {
    let listed = txn.get_for_update(catalog, name_key(name))?.map(|id| read_id(&id)).transpose()?;
    if listed == Some(id) { Ok(()) } else { Err(ErrorKind::NoSuchKeyspace(name.into()).into()) }
}

fn take_number(txn: &mut Txn, catalog: &Keyspace) -> Result<KeyspaceId> {
    let id = txn.get_for_update(catalog, NEXT)?.map_or(Ok(KeyspaceId(CATALOG.0 + 1)), |next| read_id(&next))?;
    let next = id.0.checked_add(1).ok_or_else(|| Error::invalid("there are no keyspace numbers left"))?;
    txn.put(catalog, NEXT, next.to_be_bytes())?;
    Ok(id)
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

fn read_dropped(key: &[u8]) -> Result<KeyspaceId> {
    let number = String::from_utf8_lossy(key.get(DROPPED.len()..).unwrap_or_default()).parse().map(KeyspaceId);
    number.map_err(|_| ErrorKind::Corruption(format!("catalog entry {}", key.escape_ascii())).into())
}

/// The keyspace that an entry of the catalog is about, if it is about one.
pub(super) fn number_of(key: &[u8], value: &[u8]) -> Result<Option<KeyspaceId>> {
    if key.starts_with(NAME.as_bytes()) {
        read_id(value).map(Some)
    } else if key.starts_with(DROPPED.as_bytes()) {
        read_dropped(key).map(Some)
    } else {
        Ok(None)
    }
}

/// The name that an entry of the catalog gives to a keyspace, if it is such a one.
#[cfg(feature = "rocks")]
pub(super) fn name_in(key: &[u8]) -> Option<String> {
    key.strip_prefix(NAME.as_bytes()).map(|name| String::from_utf8_lossy(name).into_owned())
}

fn read_id(bytes: &[u8]) -> Result<KeyspaceId> {
    let number = bytes.try_into().map(u32::from_be_bytes);
    number.map(KeyspaceId).map_err(|_| ErrorKind::Corruption("a catalog entry is no keyspace number".into()).into())
}
