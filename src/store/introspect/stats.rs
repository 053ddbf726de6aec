//! Statistics: counters and watermarks of a store.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::engine::WriteStallStats;
use crate::json_forms::{seconds, seconds_or_none, text, text_or_none};
use crate::observe::{Latencies, Metrics};
use crate::store::handle::Inner;
#[cfg(doc)]
use crate::store::handle::Store;
use crate::timestamp::Timestamp;

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
    /// Attempts of `transact` after the first of each call.
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
    /// Row locks of other transactions that were rolled back, plus one for each transaction that
    /// removed its own row locks after a failed commit.
    pub locks_rolled_back: u64,
    /// Orphan row locks resolved by the background worker or by [`Store::resolve_orphan_locks`].
    pub orphan_locks_resolved: u64,
    /// Orphan row locks that the background worker has counted, before it resolves them, since the
    /// store was opened: see [`Stats::orphan_locks_left`].
    pub orphan_locks_found: u64,
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

    /// How many orphan row locks are left, at most: a reader that meets one resolves it as well,
    /// uncounted. While [`Stats::may_have_orphan_locks`] holds and this is zero, they are not
    /// counted yet.
    pub fn orphan_locks_left(&self) -> u64 {
        if self.may_have_orphan_locks { self.orphan_locks_found.saturating_sub(self.orphan_locks_resolved) } else { 0 }
    }

    pub(in crate::store) fn read(inner: &Inner) -> Self {
        let metrics = &inner.metrics;
        let retention = inner.coordinator.retention();
        let stalls = update_write_stalls(inner);
        let mut stats = Self {
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
            orphan_locks_found: metrics.orphan_locks_found.get(),
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
        if let Some(marks) = inner.coordinator.watermarks() {
            stats.cleanup_pending = marks.cleanup_pending as u64;
            stats.open_views = marks.open_views as u64;
            (stats.visible_ts, stats.durable_ts) = (marks.visible_ts, marks.durable_ts);
            stats.may_have_orphan_locks = marks.may_have_orphan_locks;
        }
        stats
    }
}

pub(in crate::store) fn latencies(metrics: &Metrics) -> Latencies {
    Latencies {
        commit_durable: metrics.commit_durable.snapshot(),
        commit_buffered: metrics.commit_buffered.snapshot(),
        admission_wait: metrics.admission_wait.snapshot(),
        commit_apply: metrics.commit_apply.snapshot(),
        wal_sync: metrics.wal_sync.snapshot(),
        transact: metrics.transact.snapshot(),
    }
}

/// The engine's statistics of write stalls. Also copies the number and the total time of the stalls
/// into the metrics.
pub(in crate::store) fn update_write_stalls(inner: &Inner) -> WriteStallStats {
    let stalls = inner.engine.write_stalls();
    inner.metrics.write_stalls.set_at_least(stalls.count);
    inner.metrics.write_stall_millis.set_at_least(u64::try_from(stalls.total.as_millis()).unwrap_or(u64::MAX));
    stalls
}
