//! Statistics, row locks, and the status of a transaction.

use std::collections::{HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::engine::{DataLoss, EngineSnapshot, EngineStats, PageRequest, RowRange, WriteStallStats};
use crate::error::Result;
use crate::json_forms::{seconds, seconds_or_none, text, text_or_none};
use crate::observe::Latencies;
use crate::owner_id::OwnerId;
use crate::protocol::{TxnStatus, txn_status_or_rolled_back};
use crate::row::{KeyspaceId, Lock, LockType, RowKey, TxnId};
use crate::store::handle::Store;
use crate::store::keyspace::Keyspace;
use crate::timestamp::Timestamp;

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
    /// What a commit does to the row.
    pub lock_type: LockType,
    /// Whether the transaction belongs to an earlier incarnation of the store, or is a large one
    /// that was rolled back. The background worker resolves such a lock, unless a writer meets the
    /// lock earlier and resolves it. A reader resolves the lock only if the transaction belongs to
    /// an earlier incarnation. Always `false` on a shared engine.
    pub is_orphan: bool,
}

/// Counters since the store was opened, and its current state: see [`Store::stats`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(default)]
pub struct Stats {
    /// Transactions started; each attempt of `transact` is one.
    pub transactions_started: u64,
    /// Transactions committed in one phase.
    pub commits_one_phase: u64,
    /// Transactions committed in two phases.
    pub commits_two_phase: u64,
    /// Large transactions committed; not included in `commits_one_phase` and `commits_two_phase`.
    pub commits_large: u64,
    /// Rows that large transactions have locked. A row that is written twice counts twice.
    pub large_rows_locked: u64,
    /// Row locks of large transactions that the background lock cleanup has resolved.
    pub cleanup_rows: u64,
    /// Finished large transactions, committed or rolled back, that still have row locks.
    pub cleanup_pending: u64,
    /// Transactions that met a conflict, attempts of `transact` included: the sum of the following
    /// three counters.
    pub conflicts: u64,
    /// Conflicts with a commit above the transaction's read timestamp.
    pub conflicts_newer_version: u64,
    /// Conflicts with the row lock of a transaction that had not ended.
    pub conflicts_locked: u64,
    /// Conflicts because another process had rolled the transaction back.
    pub conflicts_rolled_back: u64,
    /// Calls of `transact` that exhausted their retries.
    pub retries_exhausted: u64,
    /// Attempts of `transact` after the first.
    pub retries: u64,
    /// Attempts of `transact` whose wait for a permit timed out, and which then ran in excess of
    /// [`Builder::admission_limit`](crate::store::Builder::admission_limit).
    pub admission_timeouts: u64,
    /// Transactions, and whole calls of `transact`, that took at least
    /// [`Builder::slow_transaction_threshold`](crate::store::Builder::slow_transaction_threshold).
    pub slow_transactions: u64,
    /// Transactions and snapshots that expired at
    /// [`Builder::max_snapshot_age`](crate::store::Builder::max_snapshot_age).
    pub snapshots_expired: u64,
    /// Row locks of other transactions that were rolled forward.
    pub locks_rolled_forward: u64,
    /// Row locks of other transactions that were rolled back, plus transactions that removed their
    /// own row locks after a failed commit.
    pub locks_rolled_back: u64,
    /// Orphan row locks resolved by the background worker or by [`Store::resolve_orphan_locks`].
    pub orphan_locks_resolved: u64,
    /// Tombstones of deleted rows that garbage collection has removed.
    pub gc_tombstones: u64,
    /// Replaced versions, older than the history, that garbage collection has removed.
    pub gc_versions: u64,
    /// The oldest timestamp for [`Store::snapshot_at`]; `None` without history.
    #[serde(with = "text_or_none")]
    pub history_start_ts: Option<Timestamp>,
    /// How long replaced versions stay readable:
    /// [`Builder::history_retention`](crate::store::Builder::history_retention); `None` without
    /// history.
    #[serde(rename = "history_retention_s", with = "seconds_or_none")]
    pub history_retention: Option<Duration>,
    /// Syncs of the write-ahead log.
    pub wal_syncs: u64,
    /// Writes that waited for a flush into RocksDB's tables: the memtable had grown to twice its
    /// normal size, and the immutable memtable was still being flushed
    /// ([`Builder::write_buffer_bytes`](crate::store::Builder::write_buffer_bytes)). All commits of
    /// the write group, and those queued after it, wait as well. No commit fails while RocksDB
    /// makes progress. See [`Store::engine_stats`] for the cause.
    pub write_stalls: u64,
    /// The total time with at least one stalled write.
    #[serde(rename = "write_stall_time_s", with = "seconds")]
    pub write_stall_time: Duration,
    /// How long the current write stall has lasted; `None` without one.
    #[serde(rename = "current_write_stall_s", with = "seconds_or_none")]
    pub current_write_stall: Option<Duration>,
    /// Distinct read views that transactions and snapshots use.
    pub open_views: u64,
    /// All commits at or below this timestamp are visible to new transactions; zero on a shared
    /// engine.
    #[serde(with = "text")]
    pub visible_ts: Timestamp,
    /// All commits at or below this timestamp survive a power cut; zero on a shared engine.
    #[serde(with = "text")]
    pub durable_ts: Timestamp,
    /// Whether row locks of an earlier incarnation may be left.
    pub may_have_orphan_locks: bool,
}

impl Stats {
    /// All commits: one-phase, two-phase and large.
    pub fn commits(&self) -> u64 {
        self.commits_one_phase + self.commits_two_phase + self.commits_large
    }

    /// The average number of commits for one sync; zero without a sync.
    #[allow(clippy::cast_precision_loss, reason = "a ratio")]
    pub fn commits_per_sync(&self) -> f64 {
        if self.wal_syncs == 0 { 0.0 } else { self.commits() as f64 / self.wal_syncs as f64 }
    }
}

const PAGE_ROWS: usize = 256;
/// The maximum number of transaction statuses in a [`LookupCache`].
const STATUS_CACHE_MAX: usize = 1024;

impl Store {
    /// All current row locks, with owner, primary and transaction status. Resolves none of them.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`](crate::store::Snapshot::get). The iterator ends after an error.
    pub fn row_locks(&self) -> Result<RowLocks> {
        self.inner.check_open()?;
        let view = self.inner.engine.snapshot()?;
        Ok(RowLocks {
            view,
            next: Some(RowRange::all()),
            page: VecDeque::new(),
            cache: LookupCache::default(),
            store: self.clone(),
        })
    }

    /// The status of the transaction with this `start_ts` and `owner`, read from its primary, which
    /// a [`RowLock`] names.
    ///
    /// The transaction record is deleted once all locks of the transaction are resolved. After
    /// that, any row that the transaction wrote may be passed for `primary`: the status follows
    /// from the row's newest version. The result is `None` once another transaction has written
    /// that row. It is also `None` for a transaction that has not begun to commit, or whose commit
    /// was refused.
    ///
    /// To find out whether an [`Undetermined`](crate::ErrorKind::Undetermined) commit took effect,
    /// open the store again and call `txn_status` before other transactions write, if possible with
    /// a row that only the undetermined transaction writes.
    ///
    /// # Errors
    /// Those of [`Snapshot::get`](crate::store::Snapshot::get).
    pub fn txn_status(&self, primary: &RowKey, start_ts: Timestamp, owner: OwnerId) -> Result<Option<TxnStatus>> {
        self.inner.check_open()?;
        self.inner.coordinator.txn_status(primary, TxnId { start_ts, owner })
    }

    /// Resolves every orphan row lock, and completes the lock cleanup of finished large
    /// transactions of this incarnation, as the background worker would. Returns the number of
    /// orphan locks that this call found; the background worker may resolve some of them meanwhile.
    /// On a shared engine the call does nothing and returns 0.
    ///
    /// # Errors
    /// Those of [`Txn::commit`](crate::store::Txn::commit).
    pub fn resolve_orphan_locks(&self) -> Result<u64> {
        self.inner.check_open()?;
        self.inner.check_writable()?;
        self.inner.coordinator.resolve_orphan_locks()
    }

    /// Counters since the store was opened, and its watermarks.
    pub fn stats(&self) -> Stats {
        let metrics = &self.inner.metrics;
        let retention = self.inner.coordinator.retention();
        let stalls = self.inner.update_write_stalls();
        let mut stats = Stats {
            transactions_started: metrics.transactions_started.get(),
            commits_one_phase: metrics.commits_one_phase.get(),
            commits_two_phase: metrics.commits_two_phase.get(),
            commits_large: metrics.commits_large.get(),
            large_rows_locked: metrics.large_rows_locked.get(),
            cleanup_rows: metrics.cleanup_rows.get(),
            conflicts: metrics.conflicts(),
            conflicts_newer_version: metrics.conflicts_newer_version.get(),
            conflicts_locked: metrics.conflicts_locked.get(),
            conflicts_rolled_back: metrics.conflicts_rolled_back.get(),
            retries_exhausted: metrics.retries_exhausted.get(),
            slow_transactions: metrics.slow_transactions.get(),
            snapshots_expired: metrics.snapshots_expired.get(),
            wal_syncs: metrics.wal_syncs.get(),
            write_stalls: stalls.count,
            write_stall_time: stalls.total,
            current_write_stall: stalls.current,
            retries: metrics.retries.get(),
            admission_timeouts: metrics.admission_timeouts.get(),
            locks_rolled_forward: metrics.locks_rolled_forward.get(),
            locks_rolled_back: metrics.locks_rolled_back.get(),
            orphan_locks_resolved: metrics.orphan_locks_resolved.get(),
            gc_tombstones: metrics.gc_tombstones.get(),
            gc_versions: metrics.gc_versions.get(),
            history_start_ts: retention.map(|retention| retention.oldest_ts),
            history_retention: retention.map(|retention| Duration::from_millis(retention.window_ms)),
            cleanup_pending: 0,
            open_views: 0,
            visible_ts: Timestamp::ZERO,
            durable_ts: Timestamp::ZERO,
            may_have_orphan_locks: false,
        };
        // Read after the counters, so that the watermarks cover every commit that is counted.
        if let Some(marks) = self.inner.coordinator.watermarks() {
            stats.cleanup_pending = marks.cleanup_pending as u64;
            stats.open_views = marks.open_views as u64;
            (stats.visible_ts, stats.durable_ts) = (marks.visible_ts, marks.durable_ts);
            stats.may_have_orphan_locks = marks.may_have_orphan_locks;
        }
        stats
    }

    /// Latencies of commits, waits, syncs and whole calls of `transact` since the store was opened.
    /// [`Latencies::since`] gives those of a shorter period.
    pub fn latencies(&self) -> Latencies {
        let metrics = &self.inner.metrics;
        Latencies {
            commit_durable: metrics.commit_durable.snapshot(),
            commit_buffered: metrics.commit_buffered.snapshot(),
            admission_wait: metrics.admission_wait.snapshot(),
            commit_apply: metrics.commit_apply.snapshot(),
            wal_sync: metrics.wal_sync.snapshot(),
            transact: metrics.transact.snapshot(),
        }
    }

    /// Statistics of the engine: memory, files, and whether flushes and compactions keep up with
    /// the writes. Reads some 40 properties of RocksDB and the directory, so do not call it for
    /// every transaction.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the engine has no
    /// statistics, as in memory; [`ErrorKind::Closed`](crate::ErrorKind::Closed).
    pub fn engine_stats(&self) -> Result<EngineStats> {
        self.inner.check_open()?;
        Ok(self.inner.engine.stats()?)
    }

    /// Accepted losses of acknowledged commits, oldest first: see
    /// [`Builder::accept_data_loss`](crate::store::Builder::accept_data_loss). A store with a loss
    /// that is not accepted cannot be opened.
    ///
    /// The segments that an accepted loss affects stay in the store's directory, as
    /// `wal/lost-<fingerprint>-<number>.segment`, and `wal/lost-<fingerprint>.txt` describes the
    /// loss. The loss is returned if the text file exists when the store is opened; all of these
    /// files may be deleted. A [checkpoint](Store::checkpoint) has none of them. Always empty in
    /// memory.
    pub fn data_losses(&self) -> Vec<DataLoss> {
        self.inner.engine.data_losses()
    }

    fn row_lock(&self, view: &dyn EngineSnapshot, row: RowKey, lock: Lock, cache: &mut LookupCache) -> Result<RowLock> {
        let txn_status = cache.txn_status(view, &lock)?;
        let is_orphan = self.inner.coordinator.is_orphan(lock.txn.start_ts);
        Ok(RowLock {
            keyspace: cache.keyspace_name(self, row.keyspace_id()),
            row,
            owner_id: lock.txn.owner,
            start_ts: lock.txn.start_ts,
            primary_keyspace: cache.keyspace_name(self, lock.primary.keyspace_id()),
            primary: lock.primary,
            txn_status,
            lock_type: lock.lock_type,
            is_orphan,
        })
    }
}

impl crate::store::handle::Inner {
    /// The engine's statistics of write stalls. Also copies the number and the total time of the
    /// stalls into the metrics.
    pub(in crate::store) fn update_write_stalls(&self) -> WriteStallStats {
        let stalls = self.engine.write_stalls();
        self.metrics.write_stalls.set_at_least(stalls.count);
        self.metrics.write_stall_millis.set_at_least(u64::try_from(stalls.total.as_millis()).unwrap_or(u64::MAX));
        stalls
    }
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
        self.names.entry(id).or_insert_with(|| store.catalog().name_of(id)).clone()
    }
}

impl Iterator for RowLocks {
    type Item = Result<RowLock>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.page.is_empty() && self.next.is_none() {
            return None;
        }
        if let Err(why) = self.store.inner.check_open() {
            (self.page, self.next) = (VecDeque::new(), None);
            return Some(Err(why));
        }
        if self.page.is_empty() {
            let range = self.next.take()?;
            let page = PageRequest { range: &range, backwards: false, limit: PAGE_ROWS, cursor: None };
            match self.view.scan_locks(&page) {
                Ok(locks) => self.page = locks.into(),
                Err(why) => return Some(Err(why.into())),
            }
            if let Some((last, _)) = self.page.back() {
                self.next = Some(RowRange { start: Bound::Excluded(last.as_bytes().to_vec()), end: Bound::Unbounded });
            }
        }
        let (row, lock) = self.page.pop_front()?;
        let result = self.store.row_lock(&*self.view, row, lock, &mut self.cache);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_record_of_a_transaction_is_not_a_rollback() {
        let store = Store::in_memory().unwrap();
        let rows = store.keyspace("rows").unwrap();
        let write = || {
            let mut txn = store.begin().unwrap();
            txn.put(&rows, "k", "v").unwrap();
            txn
        };
        let txn = write();
        let (start_ts, owner) = (txn.start_ts(), txn.owner_id());
        let status = || store.txn_status(&rows.row_key("k"), start_ts, owner).unwrap();
        assert_eq!(status(), None);
        let commit = txn.commit().unwrap();
        assert_eq!(status(), Some(TxnStatus::Committed(commit.commit_ts)));
        write().commit().unwrap();
        assert_eq!(status(), None);
    }
}
