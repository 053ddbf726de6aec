//! The catalog: which keyspaces there are.
//!
//! It is kept as rows of a keyspace of its own, number 0, and changed by ordinary transactions, so creating and dropping
//! are as atomic, durable and versioned as everything else:
//!
//! ```text
//!   name/<name>      -> the keyspace's number
//!   next             -> the number that the next keyspace gets; never goes back
//!   dropped/<number> -> nothing, or `new` if it never had a name; its rows are still to be erased
//!   lock/<name>      -> the leases of the lock of this name; see `locks::leases`
//! ```
//!
//! A dropped keyspace goes in two steps, see `dropping`; a restored one comes in two, see `unnamed`. What a view shows of either:
//! see `presence`. What `restored` begins with says of which dump the store holds what.

mod dropping;
mod increment;
mod presence;
mod restored;
mod unnamed;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

pub(super) use self::increment::{Increment, Listed};
pub(super) use self::presence::Known;
pub(super) use self::restored::Origin;
pub(super) use self::unnamed::Unnamed;
use super::keyspace::{Keyspace, KeyspaceState};
use super::range::prefix_range;
use super::scan::Scan;
use super::{KEYSPACE_NAME_MAX_BYTES, Snapshot, Store, Txn, TxnOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::Life;
use crate::row::KeyspaceId;
use crate::sync::Mutex;
use crate::timestamp::Timestamp;
use crate::view::PinnedView;

pub(super) const CATALOG: KeyspaceId = KeyspaceId(0);
const NAME: &str = "name/";
/// Leases of locks, by name: see `locks::leases`.
pub(super) const LOCK: &str = "lock/";
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

    fn find(&self, name: &str) -> Result<Option<KeyspaceId>> {
        let catalog = self.catalog();
        let txn = Txn::begin(self, TxnOptions::default())?;
        let found = txn.get(&catalog, name_key(name).as_bytes())?;
        txn.commit()?;
        found.map(|id| read_id(&id)).transpose()
    }

    pub(super) fn catalog(&self) -> Keyspace {
        self.handle(CATALOG, "(catalog)")
    }

    fn handle(&self, id: KeyspaceId, name: &str) -> Keyspace {
        let mut open = self.inner.catalog.open.lock();
        let fresh =
            || Arc::new(KeyspaceState { id, life: Life::new(name), store: self.identity(), known: Known::new(id) });
        Keyspace::new(Arc::clone(open.entry(id.0).or_insert_with(fresh)), name)
    }

    pub(super) fn identity(&self) -> u64 {
        self.inner.identity
    }

    /// The catalog's entries of a kind. They are the store's own to read, so that no list shows who does.
    pub(super) fn listed(&self, view: &Arc<PinnedView>, kind: &str) -> Scan {
        let range = prefix_range(&self.catalog(), kind.as_bytes());
        Scan::new(self, &self.own_reader(Arc::clone(view)), Ok((None, None, range)))
    }

    /// Which of the keyspaces were dropped in an earlier life of the store; each had a name at some moment. A drop of this life needs
    /// no search: it has marked the handles.
    fn gone(&self, ids: impl Iterator<Item = KeyspaceId>) -> Result<HashSet<KeyspaceId>> {
        let mut gone: HashSet<_> = {
            let open = self.inner.catalog.open.lock();
            ids.filter(|id| !open.contains_key(&id.0)).collect()
        };
        if !gone.is_empty() {
            let now = self.inner.coordinator.begin()?.0;
            for row in self.listed(&now, NAME) {
                gone.remove(&read_id(&row?.1)?);
            }
        }
        Ok(gone)
    }

    /// The numbers of the keyspaces that have a name at the view.
    pub(super) fn numbers_at(&self, view: &Arc<PinnedView>) -> Result<BTreeSet<u32>> {
        self.named_at(view).map(|named| Ok(named?.1.0)).collect()
    }

    /// The keyspaces that have a name at the view, in the order of their names.
    pub(super) fn named_at(&self, view: &Arc<PinnedView>) -> impl Iterator<Item = Result<(String, KeyspaceId)>> {
        self.listed(view, NAME).map(|row| {
            let (key, id) = row?;
            Ok((name_in(&key).unwrap_or_default(), read_id(&id)?))
        })
    }

    /// The keyspaces that are still to be erased at the view.
    pub(super) fn dropped_at(&self, view: &Arc<PinnedView>) -> Result<Vec<KeyspaceId>> {
        self.listed(view, DROPPED).map(|row| read_dropped(&row?.0)).collect()
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
            let name = name_in(&key)?;
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
            Ok((read_id(&id)?, name_in(&key).unwrap_or_default()))
        });
        let listed: Vec<_> = listed.collect::<Result<_>>()?;
        let gone = self.store.gone(listed.iter().map(|(id, _)| *id))?;
        let handle = |(id, name): (KeyspaceId, String)| {
            let handle = self.store.handle(id, &name);
            if gone.contains(&id) {
                handle.state.life.end();
            }
            handle
        };
        Ok(listed.into_iter().map(handle).collect())
    }
}

fn take_number(txn: &mut Txn, catalog: &Keyspace) -> Result<KeyspaceId> {
    let id = txn.get_for_update(catalog, NEXT)?.map_or(Ok(KeyspaceId(CATALOG.0 + 1)), |next| read_id(&next))?;
    let next = id.0.checked_add(1).ok_or_else(|| Error::invalid("there are no keyspace numbers left"))?;
    txn.put(catalog, NEXT, next.to_be_bytes())?;
    Ok(id)
}

pub(super) fn check_name(name: &str) -> Result<()> {
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
pub(super) fn name_in(key: &[u8]) -> Option<String> {
    key.strip_prefix(NAME.as_bytes()).map(|name| String::from_utf8_lossy(name).into_owned())
}

fn read_id(bytes: &[u8]) -> Result<KeyspaceId> {
    let number = bytes.try_into().map(u32::from_be_bytes);
    number.map(KeyspaceId).map_err(|_| ErrorKind::Corruption("a catalog entry is no keyspace number".into()).into())
}
