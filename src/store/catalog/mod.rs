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

pub(in crate::store) mod drop;
pub(in crate::store) mod incremental_restore;
pub(in crate::store) mod restore_origin;
pub(in crate::store) mod staging;
pub(in crate::store) mod visibility;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::keyspace_descriptor::KeyspaceDescriptor;
use crate::read_view::ReadView;
use crate::row::KeyspaceId;
pub(in crate::store) use crate::store::catalog::incremental_restore::{Increment, Listed};
pub(in crate::store) use crate::store::catalog::restore_origin::RestoreOrigin;
pub(in crate::store) use crate::store::catalog::staging::StagedKeyspaces;
pub(in crate::store) use crate::store::catalog::visibility::VisibilityCache;
use crate::store::keyspace::{Keyspace, KeyspaceInner};
use crate::store::read::key_range::prefix_range;
use crate::store::read::scan::Scan;
use crate::store::{MAX_KEYSPACE_NAME_BYTES, Snapshot, Store, Txn, TxnOptions};
use crate::sync::Mutex;
use crate::timestamp::Timestamp;

pub(in crate::store) const CATALOG_ID: KeyspaceId = KeyspaceId(0);
const NAME_PREFIX: &str = "name/";
/// Leases of locks, by name: see `locks::leases`.
pub(in crate::store) const LOCK_PREFIX: &str = "lock/";
const NEXT_ID_KEY: &[u8] = b"next";
const DROPPED_PREFIX: &str = "dropped/";
/// What is said there of a keyspace that was made and is still to be named.
const STAGED_MARK: &[u8] = b"new";

/// The handles that were given out.
#[derive(Default)]
pub(in crate::store) struct Catalog {
    open: Mutex<HashMap<u32, Arc<KeyspaceInner>>>,
    /// Dropped in this life of the store, and when; until the drop is committed, later than anything.
    dropped: Mutex<HashMap<u32, Timestamp>>,
}

impl Store {
    /// Opens a keyspace, and creates it if there is none of this name.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when the name is empty, longer than [`MAX_KEYSPACE_NAME_BYTES`] or holds control
    /// characters, and those of a commit.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        check_name(name)?;
        if let Some(id) = self.lookup_id(name)? {
            let found = self.open_handle(id, name);
            // It may have been dropped since it was found.
            if !found.inner.descriptor.is_dropped() {
                return Ok(found);
            }
        }
        self.inner.check_writable()?;
        let catalog = self.catalog();
        let id = self.transact(|txn| {
            if let Some(id) = txn.get(&catalog, name_key(name).as_bytes())? {
                return decode_id(&id);
            }
            let id = allocate_id(txn, &catalog)?;
            txn.put(&catalog, name_key(name).as_bytes(), id.0.to_be_bytes())?;
            Ok(id)
        })?;
        crash_point!(KeyspaceCreated);
        Ok(self.open_handle(id, name))
    }

    /// Opens a keyspace that exists.
    ///
    /// # Errors
    /// [`ErrorKind::KeyspaceNotFound`] when it does not.
    pub fn existing_keyspace(&self, name: &str) -> Result<Keyspace> {
        let id = self.lookup_id(name)?.ok_or_else(|| ErrorKind::KeyspaceNotFound(name.into()))?;
        Ok(self.open_handle(id, name))
    }

    /// The names of all keyspaces, in order.
    ///
    /// # Errors
    /// Those of reading.
    pub fn keyspace_names(&self) -> Result<Vec<String>> {
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
    /// [`ErrorKind::KeyspaceNotFound`], [`ErrorKind::InvalidArgument`] when there is a keyspace of the new name or there can be
    /// none ([`Store::keyspace`]), and those of a commit.
    pub fn rename_keyspace(&self, name: &str, to: &str) -> Result<Keyspace> {
        check_name(to)?;
        self.inner.check_open()?;
        self.inner.check_writable()?;
        let catalog = self.catalog();
        let id = self.transact(|txn| {
            let listed = txn.get_for_update(&catalog, name_key(name))?;
            let listed = listed.ok_or_else(|| ErrorKind::KeyspaceNotFound(name.into()))?;
            if txn.get_for_update(&catalog, name_key(to))?.is_some() {
                return Err(Error::invalid(format!("there is a keyspace {to:?} already")));
            }
            txn.delete(&catalog, name_key(name))?;
            txn.put(&catalog, name_key(to), &listed)?;
            decode_id(&listed)
        })?;
        let renamed = self.open_handle(id, to);
        renamed.inner.descriptor.rename(to);
        Ok(renamed)
    }

    fn lookup_id(&self, name: &str) -> Result<Option<KeyspaceId>> {
        let catalog = self.catalog();
        let txn = Txn::begin(self, TxnOptions::default())?;
        let found = txn.get(&catalog, name_key(name).as_bytes())?;
        txn.commit()?;
        found.map(|id| decode_id(&id)).transpose()
    }

    pub(in crate::store) fn catalog(&self) -> Keyspace {
        self.open_handle(CATALOG_ID, "(catalog)")
    }

    fn open_handle(&self, id: KeyspaceId, name: &str) -> Keyspace {
        let mut open = self.inner.catalog.open.lock();
        let fresh = || {
            Arc::new(KeyspaceInner {
                id,
                descriptor: KeyspaceDescriptor::new(name),
                instance_id: self.load_store_id(),
                visibility: VisibilityCache::new(id),
            })
        };
        Keyspace::new(Arc::clone(open.entry(id.0).or_insert_with(fresh)), name)
    }

    pub(in crate::store) fn load_store_id(&self) -> u64 {
        self.inner.instance_id
    }

    /// The catalog's entries of a kind. They are the store's own to read, so that no list shows who does.
    pub(in crate::store) fn scan_entries(&self, view: &Arc<ReadView>, kind: &str) -> Scan {
        let range = prefix_range(&self.catalog(), kind.as_bytes());
        Scan::new(self, &self.unregistered_reader(Arc::clone(view)), Ok((None, None, range)))
    }

    /// Which of the keyspaces were dropped in an earlier life of the store; each had a name at some moment. A drop of this life needs
    /// no search: it has marked the handles.
    fn dropped_before_open(&self, ids: impl Iterator<Item = KeyspaceId>) -> Result<HashSet<KeyspaceId>> {
        let mut gone: HashSet<_> = {
            let open = self.inner.catalog.open.lock();
            ids.filter(|id| !open.contains_key(&id.0)).collect()
        };
        if !gone.is_empty() {
            let now = self.inner.coordinator.begin()?.0;
            for row in self.scan_entries(&now, NAME_PREFIX) {
                gone.remove(&decode_id(&row?.1)?);
            }
        }
        Ok(gone)
    }

    /// The numbers of the keyspaces that have a name at the view.
    pub(in crate::store) fn ids_at(&self, view: &Arc<ReadView>) -> Result<BTreeSet<u32>> {
        self.names_at(view).map(|named| Ok(named?.1.0)).collect()
    }

    /// The keyspaces that have a name at the view, in the order of their names.
    pub(in crate::store) fn names_at(
        &self,
        view: &Arc<ReadView>,
    ) -> impl Iterator<Item = Result<(String, KeyspaceId)>> {
        self.scan_entries(view, NAME_PREFIX).map(|row| {
            let (key, id) = row?;
            Ok((entry_name(&key).unwrap_or_default(), decode_id(&id)?))
        })
    }

    /// The keyspaces that are still to be erased at the view.
    pub(in crate::store) fn dropped_at(&self, view: &Arc<ReadView>) -> Result<Vec<KeyspaceId>> {
        self.scan_entries(view, DROPPED_PREFIX).map(|row| decode_dropped_id(&row?.0)).collect()
    }

    /// The name of a keyspace that has a handle.
    pub(in crate::store) fn cached_name(&self, id: KeyspaceId) -> Option<String> {
        self.inner.catalog.open.lock().get(&id.0).map(|keyspace| keyspace.descriptor.name().to_string())
    }

    pub(in crate::store) fn name_of(&self, id: KeyspaceId) -> Option<String> {
        if let Some(name) = self.cached_name(id) {
            return Some(name);
        }
        let view = self.inner.coordinator.begin().ok()?.0;
        self.scan_entries(&view, NAME_PREFIX).find_map(|row| {
            let (key, value) = row.ok()?;
            let name = entry_name(&key)?;
            (decode_id(&value).ok()? == id).then_some(name)
        })
    }
}

impl Snapshot {
    /// The keyspaces that there are in this view, in the order of their names.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`].
    pub fn keyspaces(&self) -> Result<Vec<Keyspace>> {
        let listed = self.prefix(&self.store.catalog(), NAME_PREFIX.as_bytes()).map(|row| {
            let (key, id) = row?;
            Ok((decode_id(&id)?, entry_name(&key).unwrap_or_default()))
        });
        let listed: Vec<_> = listed.collect::<Result<_>>()?;
        let gone = self.store.dropped_before_open(listed.iter().map(|(id, _)| *id))?;
        let handle = |(id, name): (KeyspaceId, String)| {
            let handle = self.store.open_handle(id, &name);
            if gone.contains(&id) {
                handle.inner.descriptor.mark_dropped();
            }
            handle
        };
        Ok(listed.into_iter().map(handle).collect())
    }
}

fn allocate_id(txn: &mut Txn, catalog: &Keyspace) -> Result<KeyspaceId> {
    let id =
        txn.get_for_update(catalog, NEXT_ID_KEY)?.map_or(Ok(KeyspaceId(CATALOG_ID.0 + 1)), |next| decode_id(&next))?;
    let next = id.0.checked_add(1).ok_or_else(|| Error::invalid("there are no keyspace numbers left"))?;
    txn.put(catalog, NEXT_ID_KEY, next.to_be_bytes())?;
    Ok(id)
}

pub(in crate::store) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAX_KEYSPACE_NAME_BYTES || name.chars().any(char::is_control) {
        return Err(Error::invalid(format!(
            "a keyspace's name has 1 to {MAX_KEYSPACE_NAME_BYTES} bytes and no control characters: {name:?}"
        )));
    }
    Ok(())
}

fn name_key(name: &str) -> String {
    format!("{NAME_PREFIX}{name}")
}

fn dropped_key(id: KeyspaceId) -> String {
    format!("{DROPPED_PREFIX}{:010}", id.0)
}

fn decode_dropped_id(key: &[u8]) -> Result<KeyspaceId> {
    let number = String::from_utf8_lossy(key.get(DROPPED_PREFIX.len()..).unwrap_or_default()).parse().map(KeyspaceId);
    number.map_err(|_| ErrorKind::Corruption(format!("catalog entry {}", key.escape_ascii())).into())
}

/// The keyspace that an entry of the catalog is about, if it is about one.
pub(in crate::store) fn entry_id(key: &[u8], value: &[u8]) -> Result<Option<KeyspaceId>> {
    if key.starts_with(NAME_PREFIX.as_bytes()) {
        decode_id(value).map(Some)
    } else if key.starts_with(DROPPED_PREFIX.as_bytes()) {
        decode_dropped_id(key).map(Some)
    } else {
        Ok(None)
    }
}

/// The name that an entry of the catalog gives to a keyspace, if it is such a one.
pub(in crate::store) fn entry_name(key: &[u8]) -> Option<String> {
    key.strip_prefix(NAME_PREFIX.as_bytes()).map(|name| String::from_utf8_lossy(name).into_owned())
}

fn decode_id(bytes: &[u8]) -> Result<KeyspaceId> {
    let number = bytes.try_into().map(u32::from_be_bytes);
    number.map(KeyspaceId).map_err(|_| ErrorKind::Corruption("a catalog entry is no keyspace number".into()).into())
}
