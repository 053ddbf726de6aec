//! Looking inside: row locks, the fate of a transaction, metrics.

use std::collections::{HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::engine::{DataLoss, EngineSnapshot, EngineStats, PageRequest, RowRange, WriteStallStats};
use crate::error::Result;
use crate::json_forms::{seconds, seconds_or_none, text, text_or_none};
use crate::observe::Latencies;
use crate::owner::OwnerId;
use crate::protocol::{TransactionStatus, txn_status_or_rolled_back};
use crate::row::{KeyspaceId, Lock, LockType, RowKey, TxnId};
use crate::store::{Keyspace, Store};
use crate::timestamp::Timestamp;

/// A row lock, and what its primary says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RowLock {
    /// The keyspace's name, where it still has one.
    pub keyspace: Option<String>,
    /// The row.
    pub row: RowKey,
    /// Who holds the row lock, and since when.
    pub owner_id: OwnerId,
    /// The timestamp that names the transaction.
    pub start_ts: Timestamp,
    /// The name of the keyspace of the row that decides, where it still has one.
    pub primary_keyspace: Option<String>,
    /// The row that decides.
    pub primary: RowKey,
    /// What that row says.
    pub txn_status: TransactionStatus,
    /// What becomes of the row on commit.
    pub lock_type: LockType,
    /// Whether the owner is known to be gone. A writer that meets the lock resolves it, and so does the background; a reader does
    /// so only if the owner was of an earlier opening of the store.
    pub is_orphan: bool,
}

/// What became of a transaction, as far as its primary tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxnStatus {
    /// It is in the middle of its commit, or died there.
    Pending,
    /// It was committed, at this timestamp.
    Committed(Timestamp),
    /// It was rolled back, for ever.
    RolledBack,
    /// The row knows nothing of it. Either it has not come to its commit, or it was refused there, or it was committed and
    /// the row was written again since. Only the first and the last of them can be told apart, by whether it still runs.
    NoTrace,
}

impl From<Option<TransactionStatus>> for TxnStatus {
    fn from(trace: Option<TransactionStatus>) -> Self {
        match trace {
            Some(TransactionStatus::Pending) => Self::Pending,
            Some(TransactionStatus::Committed(commit_ts)) => Self::Committed(commit_ts),
            Some(TransactionStatus::RolledBack) => Self::RolledBack,
            None => Self::NoTrace,
        }
    }
}

/// What a store has done since it was opened, and how it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(default)]
pub struct Stats {
    /// Transactions begun.
    pub transactions_started: u64,
    /// Transactions committed in one phase.
    pub commits_one_phase: u64,
    /// Transactions committed in two phases.
    pub commits_two_phase: u64,
    /// Large transactions committed: those that were streamed. Not among the others.
    pub commits_large: u64,
    /// Rows that large transactions have locked, those written twice counted twice.
    pub large_rows_locked: u64,
    /// Rows of large transactions that were turned into versions, or let go, in the background.
    pub cleanup_rows: u64,
    /// Large transactions that are over, committed or not, with rows still locked.
    pub cleanup_pending: u64,
    /// Transactions that met a conflict, attempts of `transact` included; the next three say why.
    pub conflicts: u64,
    /// Of these: a row had been committed since.
    pub conflicts_newer_version: u64,
    /// Of these: a row was locked by a transaction that had not ended.
    pub conflicts_locked: u64,
    /// Of these: somebody took the transaction for dead.
    pub conflicts_rolled_back: u64,
    /// Calls of `transact` that gave up after conflicts.
    pub retries_exhausted: u64,
    /// Attempts of `transact` after the first.
    pub retries: u64,
    /// Attempts of `transact` that ran beyond the bound of [`Builder::admission_limit`](crate::store::Builder::admission_limit), having waited
    /// long enough.
    pub admission_timeouts: u64,
    /// Transactions, and whole calls of `transact`, that took longer than
    /// [`Builder::slow_transaction_threshold`](crate::store::Builder::slow_transaction_threshold) says.
    pub slow_transactions: u64,
    /// Transactions and snapshots that were ended at [`Builder::max_snapshot_age`](crate::store::Builder::max_snapshot_age).
    pub snapshots_expired: u64,
    /// Row locks of other transactions that were rolled forward.
    pub locks_rolled_forward: u64,
    /// Row locks of other transactions, and own transactions, that were rolled back.
    pub locks_rolled_back: u64,
    /// Orphan row locks that the background sweep has resolved.
    pub orphan_locks_resolved: u64,
    /// Records of deleted rows that were collected.
    pub gc_tombstones: u64,
    /// Replaced versions that have outlived the history and were collected.
    pub gc_versions: u64,
    /// The oldest moment that [`Store::snapshot_at`] can show; `None` when no history is kept.
    #[serde(with = "text_or_none")]
    pub history_start_ts: Option<Timestamp>,
    /// How long replaced versions are kept, as [`Builder::history_retention`](crate::store::Builder::history_retention) said; `None` when they are not.
    #[serde(rename = "history_for_s", with = "seconds_or_none")]
    pub history_retention: Option<Duration>,
    /// Syncs of the log.
    pub wal_syncs: u64,
    /// Writes that waited because hand-downs into RocksDB's tables had fallen behind: the next generation was twice full, and the last one
    /// was still being handed down ([`Builder::write_buffer_bytes`](crate::store::Builder::write_buffer_bytes)). With such a write
    /// all commits of its group and behind it wait; none fails for that as long as RocksDB gets work done. See [`Store::engine_stats`] for what is behind.
    pub write_stalls: u64,
    /// How long there was such a write waiting, in all.
    #[serde(rename = "write_stalled_s", with = "seconds")]
    pub write_stall_time: Duration,
    /// For how long there has been such a write at this moment; `None` when there is none.
    #[serde(rename = "write_stalled_now_s", with = "seconds_or_none")]
    pub current_write_stall: Option<Duration>,
    /// Different states of the store that transactions and snapshots read.
    pub open_views: u64,
    /// Everything at or below is visible; zero where others share the engine.
    #[serde(with = "text")]
    pub visible_ts: Timestamp,
    /// Everything at or below survives a power cut; zero where others share the engine.
    #[serde(with = "text")]
    pub durable_ts: Timestamp,
    /// Whether row locks of an earlier life may be left.
    pub may_have_orphan_locks: bool,
}

impl Stats {
    /// Commits, of whatever kind.
    pub fn commits(&self) -> u64 {
        self.commits_one_phase + self.commits_two_phase + self.commits_large
    }

    /// How many commits shared a sync; zero where there was none.
    #[allow(clippy::cast_precision_loss, reason = "a ratio")]
    pub fn commits_per_sync(&self) -> f64 {
        if self.wal_syncs == 0 { 0.0 } else { self.commits() as f64 / self.wal_syncs as f64 }
    }
}

const PAGE_ROWS: usize = 256;
/// So many transactions' verdicts are remembered at a time.
const STATUS_CACHE_MAX: usize = 1024;

impl Store {
    /// All row locks there are at this moment, with owner, primary and commit point. Nothing is resolved by looking.
    ///
    /// # Errors
    /// Those of reading; the iterator ends after one.
    pub fn row_locks(&self) -> Result<RowLocks> {
        self.inner.check_open()?;
        let view = self.inner.engine.snapshot()?;
        Ok(RowLocks {
            view,
            next: Some(RowRange::all()),
            page: VecDeque::new(),
            asked: LookupCache::default(),
            store: self.clone(),
        })
    }

    /// What became of the transaction that began with `start_ts` and `owner`, asked at its primary, which a [`RowLock`]
    /// names.
    ///
    /// A record of the end stays at the primary only while row locks elsewhere may need it. Apart from that the row's newest
    /// version tells who wrote it: so any row that the transaction wrote, once no lock is on it, can be asked in the primary's
    /// place, and answers until it is written again. To find out about a commit that ended [`Undetermined`](crate::ErrorKind::Undetermined), open the
    /// store and ask before others write, at a row that only this transaction writes if there is one.
    ///
    /// # Errors
    /// Those of reading.
    pub fn txn_status(&self, primary: &RowKey, start_ts: Timestamp, owner: OwnerId) -> Result<TxnStatus> {
        self.inner.check_open()?;
        self.inner.coordinator.txn_status(primary, TxnId { start_ts, owner }).map(TxnStatus::from)
    }

    /// Resolves every orphan row lock now, as the background sweep would, and finishes what large transactions of this life have
    /// left to the background; the answer is how many orphans this call has met. The background may be at it at the same time.
    ///
    /// # Errors
    /// Those of a commit.
    pub fn resolve_orphan_locks(&self) -> Result<u64> {
        self.inner.check_open()?;
        self.inner.check_writable()?;
        self.inner.coordinator.resolve_orphan_locks()
    }

    /// Metrics and watermarks.
    pub fn stats(&self) -> Stats {
        let metrics = &self.inner.metrics;
        let kept = self.inner.coordinator.retention();
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
            history_start_ts: kept.map(|kept| kept.oldest_ts),
            history_retention: kept.map(|kept| Duration::from_millis(kept.window_ms)),
            ..Stats::default()
        };
        if let Some(marks) = self.inner.coordinator.watermarks() {
            stats.cleanup_pending = marks.cleanup_pending as u64;
            stats.open_views = marks.open_views as u64;
            (stats.visible_ts, stats.durable_ts) = (marks.visible_ts, marks.durable_ts);
            stats.may_have_orphan_locks = marks.may_have_orphan_locks;
        }
        stats
    }

    /// How long commits, waiting, syncs and whole calls of `transact` took, since the store was opened; for a shorter time,
    /// [`Latencies::since`].
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

    /// How the engine stands: memory, files, and whether it keeps up with what is written. Asks RocksDB for some 40 figures and reads
    /// the folder, so it is nothing for every transaction.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) where the engine has none, as in memory,
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed).
    pub fn engine_stats(&self) -> Result<EngineStats> {
        self.inner.check_open()?;
        Ok(self.inner.engine.stats()?)
    }

    /// Losses of acknowledged commits that were accepted, now or in an earlier life, oldest first: see
    /// [`Builder::accept_data_loss`](crate::store::Builder::accept_data_loss). A loss that was not accepted keeps the store from being opened.
    ///
    /// What an accepted loss touches is kept in the store's folder: the damaged segment and later ones as
    /// `log/lost-<fingerprint>-<number>.segment`, and a record `log/lost-<fingerprint>.record`. A loss is returned as long as its record is
    /// there; all of these files may be removed. A [checkpoint](Store::checkpoint) has none of them. Read when the store is opened;
    /// always empty in memory.
    pub fn data_losses(&self) -> Vec<DataLoss> {
        self.inner.engine.data_losses()
    }

    fn row_lock(&self, view: &dyn EngineSnapshot, row: RowKey, lock: Lock, asked: &mut LookupCache) -> Result<RowLock> {
        let commit_point = asked.commit_point(view, &lock)?;
        let orphan = self.inner.coordinator.is_orphan(lock.txn.start_ts);
        Ok(RowLock {
            keyspace: asked.keyspace_name(self, row.keyspace_id()),
            row,
            owner_id: lock.txn.owner,
            start_ts: lock.txn.start_ts,
            primary_keyspace: asked.keyspace_name(self, lock.primary.keyspace_id()),
            primary: lock.primary,
            txn_status: commit_point,
            lock_type: lock.lock_type,
            is_orphan: orphan,
        })
    }
}

impl crate::store::Inner {
    /// How writes had to wait. The engine counts that; whoever looks takes it along into the metrics.
    pub(in crate::store) fn update_write_stalls(&self) -> WriteStallStats {
        let stalls = self.engine.write_stalls();
        self.metrics.write_stalls.set_at_least(stalls.count);
        self.metrics.write_stall_millis.set_at_least(u64::try_from(stalls.total.as_millis()).unwrap_or(u64::MAX));
        stalls
    }
}

/// An iterator over row locks, in the order of their rows.
#[must_use]
pub struct RowLocks {
    view: Arc<dyn EngineSnapshot>,
    next: Option<RowRange>,
    page: VecDeque<(RowKey, Lock)>,
    asked: LookupCache,
    store: Store,
}

/// What was asked for earlier locks, since many are mostly of one transaction. The view stays the same, and so does the answer.
#[derive(Default)]
struct LookupCache {
    verdicts: HashMap<(TxnId, RowKey), TransactionStatus>,
    names: HashMap<KeyspaceId, Option<String>>,
}

impl LookupCache {
    fn commit_point(&mut self, view: &dyn EngineSnapshot, lock: &Lock) -> Result<TransactionStatus> {
        let txn = (lock.txn, lock.primary.clone());
        if let Some(verdict) = self.verdicts.get(&txn) {
            return Ok(*verdict);
        }
        let verdict = txn_status_or_rolled_back(&view.row(&lock.primary, lock.txn.start_ts)?, lock.txn);
        if self.verdicts.len() == STATUS_CACHE_MAX {
            self.verdicts.clear();
        }
        self.verdicts.insert(txn, verdict);
        Ok(verdict)
    }

    fn keyspace_name(&mut self, store: &Store, id: KeyspaceId) -> Option<String> {
        self.names.entry(id).or_insert_with(|| store.name_of(id)).clone()
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
        let described = self.store.row_lock(&*self.view, row, lock, &mut self.asked);
        if described.is_err() {
            (self.page, self.next) = (VecDeque::new(), None);
        }
        Some(described)
    }
}

impl Keyspace {
    /// The row of a key, as conflicts and row locks name it.
    pub fn row_key(&self, key: impl AsRef<[u8]>) -> RowKey {
        self.row(key.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_without_a_trace_is_not_called_rolled_back() {
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
        assert_eq!(status(), TxnStatus::NoTrace);
        let commit = txn.commit().unwrap();
        assert_eq!(status(), TxnStatus::Committed(commit.commit_ts));
        write().commit().unwrap();
        assert_eq!(status(), TxnStatus::NoTrace);
    }
}
