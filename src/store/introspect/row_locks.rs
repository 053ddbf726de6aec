//! Row locks: an iterator over all locks of transactions, each with the status of its transaction.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use crate::engine::{EngineSnapshot, PageRequest, RowRange};
use crate::error::Result;
use crate::owner_id::OwnerId;
use crate::protocol::{TxnStatus, txn_status_or_rolled_back};
use crate::row::{KeyspaceId, Lock, LockType, RowKey, TxnId};
use crate::store::catalog::reader::CatalogReader;
use crate::store::handle::Store;
use crate::store::keyspace::Keyspace;
use crate::timestamp::Timestamp;

const PAGE_ROWS: usize = 256;
/// The maximum number of transaction statuses in a [`LookupCache`].
const STATUS_CACHE_MAX: usize = 1024;

/// A row lock, with the transaction's status as the primary records it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RowLock {
    /// The name of the keyspace, if it still exists.
    pub keyspace: Option<String>,
    /// The locked row.
    pub row: RowKey,
    /// The owner id of the transaction; its time part is when the transaction began.
    pub owner_id: OwnerId,
    /// The start timestamp of the transaction.
    pub start_ts: Timestamp,
    /// The name of the primary's keyspace, if it still exists.
    pub primary_keyspace: Option<String>,
    /// The primary: the row whose state decides the transaction.
    pub primary: RowKey,
    /// The status of the transaction at the primary.
    pub txn_status: TxnStatus,
    /// What the commit of the transaction does to the row.
    pub lock_type: LockType,
    /// Whether the transaction belongs to an earlier incarnation of the store, or is a large one
    /// that was rolled back. The background worker resolves such a lock, unless a writer meets the
    /// lock earlier and resolves it. A reader resolves the lock only if the transaction belongs to
    /// an earlier incarnation. Always `false` on a shared engine.
    pub is_orphan: bool,
}

/// An iterator over row locks, ordered by row: see [`Store::row_locks`].
#[must_use]
pub struct RowLocks {
    view: Arc<dyn EngineSnapshot>,
    next: Option<RowRange>,
    page: VecDeque<(RowKey, Lock)>,
    cache: LookupCache,
    store: Store,
}

impl fmt::Debug for RowLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowLocks").finish_non_exhaustive()
    }
}

impl RowLocks {
    pub(in crate::store) fn new(store: &Store) -> Result<Self> {
        store.inner.check_open()?;
        Ok(Self {
            view: store.inner.engine.snapshot()?,
            next: Some(RowRange::all()),
            page: VecDeque::new(),
            cache: LookupCache::default(),
            store: store.clone(),
        })
    }

    fn describe(&mut self, row: RowKey, lock: Lock) -> Result<RowLock> {
        let txn_status = self.cache.txn_status(&*self.view, &lock)?;
        let is_orphan = self.store.inner.coordinator.is_orphan(lock.txn.start_ts);
        Ok(RowLock {
            keyspace: self.cache.keyspace_name(&self.store, row.keyspace_id()),
            row,
            owner_id: lock.txn.owner,
            start_ts: lock.txn.start_ts,
            primary_keyspace: self.cache.keyspace_name(&self.store, lock.primary.keyspace_id()),
            primary: lock.primary,
            txn_status,
            lock_type: lock.lock_type,
            is_orphan,
        })
    }
}

/// Transaction statuses and keyspace names that were looked up for earlier locks. Usually many
/// locks belong to one transaction. All statuses are read from one engine snapshot, so a cached
/// status stays valid.
#[derive(Default)]
struct LookupCache {
    statuses: HashMap<(TxnId, RowKey), TxnStatus>,
    names: HashMap<KeyspaceId, Option<String>>,
}

impl LookupCache {
    fn txn_status(&mut self, view: &dyn EngineSnapshot, lock: &Lock) -> Result<TxnStatus> {
        let txn = (lock.txn, lock.primary.clone());
        if let Some(status) = self.statuses.get(&txn) {
            return Ok(*status);
        }
        let status = txn_status_or_rolled_back(&view.row(&lock.primary, lock.txn.start_ts)?, lock.txn);
        if self.statuses.len() == STATUS_CACHE_MAX {
            self.statuses.clear();
        }
        self.statuses.insert(txn, status);
        Ok(status)
    }

    fn keyspace_name(&mut self, store: &Store, id: KeyspaceId) -> Option<String> {
        self.names.entry(id).or_insert_with(|| CatalogReader::new(store).name_of(id)).clone()
    }
}

impl Iterator for RowLocks {
    type Item = Result<RowLock>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.page.is_empty() && self.next.is_none() {
            return None;
        }
        if let Err(error) = self.store.inner.check_open() {
            (self.page, self.next) = (VecDeque::new(), None);
            return Some(Err(error));
        }
        if self.page.is_empty() {
            let range = self.next.take()?;
            let page = PageRequest { range: &range, backwards: false, limit: PAGE_ROWS, cursor: None };
            match self.view.scan_locks(&page) {
                Ok(locks) => self.page = locks.into(),
                Err(error) => return Some(Err(error.into())),
            }
            if let Some((last, _)) = self.page.back() {
                self.next = Some(RowRange { start: Bound::Excluded(last.as_bytes().to_vec()), end: Bound::Unbounded });
            }
        }
        let (row, lock) = self.page.pop_front()?;
        let result = self.describe(row, lock);
        if result.is_err() {
            (self.page, self.next) = (VecDeque::new(), None);
        }
        Some(result)
    }
}

impl Keyspace {
    /// The row with this key in this keyspace, in the form of [`RowLock::row`] and
    /// [`Conflict::row`](crate::Conflict::row).
    pub fn row_key(&self, key: impl AsRef<[u8]>) -> RowKey {
        self.row(key.as_ref())
    }
}
