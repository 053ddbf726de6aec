//! The status of a store as one JSON document: for a program's own monitoring, and for other
//! processes.
//!
//! A directory that is open for writing cannot be opened by another process, not even
//! [read-only](crate::store::Builder::read_only). So the background worker of a store that is to be
//! observed from outside writes the document periodically into a file in the store's directory. The
//! file is replaced atomically but not synced, because it is useful only while its process runs.
//! The file is deleted when the store closes. If its process was killed, the next opening for
//! writing deletes it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::engine::EngineStats;
#[cfg(feature = "rocks")]
use crate::error::{Error, ErrorKind, Result};
use crate::json_forms::{millis, seconds, seconds_or_none};
use crate::lock_manager::{LockEntry, LockState, LockStats};
use crate::observe::Latencies;
use crate::store::handle::Store;
use crate::store::introspect::keyspace_stats::{KeyspaceSize, keyspace_sizes};
use crate::store::introspect::stats::Stats;
use crate::store::introspect::status_entries::{
    ActiveTransactionStatus, RetryingCallStatus, RowLockStatus, SlowTransactionStatus,
};
use crate::store::named_locks::inspect::lock_summary;

/// The version of the document's format. It changes only if programs for the previous version would
/// misread the document; an added field does not change it.
const STATUS_FORMAT: u32 = 1;
/// The maximum length of each list of a document, except those of slow transactions.
const LISTED_MAX: usize = 100;
/// The maximum length of each of the two lists of slow transactions: the newest, and the slowest.
const SLOW_LISTED_MAX: usize = 20;

/// The status of a store: see [`Store::status`] and
/// [`Builder::status_file_interval`](crate::store::Builder::status_file_interval).
///
/// In its JSON form, durations are in seconds (suffix `_s`), times in milliseconds since 1970
/// (suffix `_ms`), and timestamps and owner ids are strings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StoreStatus {
    /// The format of the document, 1.
    pub format_version: u32,
    /// The id of the process that has the store open.
    pub pid: u32,
    /// When the document was made, by that process's clock.
    #[serde(rename = "taken_at_ms", with = "millis")]
    pub taken_at: SystemTime,
    /// The time since the store was opened.
    #[serde(rename = "uptime_s", with = "seconds")]
    pub uptime: Duration,
    /// The interval at which the document is [written to a
    /// file](crate::store::Builder::status_file_interval); `None` if it is not written.
    #[serde(rename = "publish_interval_s", with = "seconds_or_none")]
    pub publish_interval: Option<Duration>,
    /// Why the store has failed, or that it is closed; `None` if it works.
    pub failure: Option<String>,
    /// Counters and watermarks.
    pub stats: Stats,
    /// Memory, files and compaction; `None` if the engine has no statistics.
    #[serde(default)]
    pub engine: Option<EngineStats>,
    /// Latencies since the store was opened.
    pub latencies: Latencies,
    /// The number of active transactions and snapshots.
    pub active_total: u64,
    /// The first hundred of [`Store::active_transactions`].
    pub active: Vec<ActiveTransactionStatus>,
    /// The number of calls of `transact` that retry.
    #[serde(default)]
    pub retrying_total: u64,
    /// The first hundred of [`Store::retrying_calls`].
    #[serde(default)]
    pub retrying: Vec<RetryingCallStatus>,
    /// The last twenty of [`Store::slow_transactions`], oldest first.
    pub slow: Vec<SlowTransactionStatus>,
    /// The first twenty of [`Store::slowest_transactions`].
    pub slowest: Vec<SlowTransactionStatus>,
    /// The first hundred of [`Store::row_locks`]. Most locks last for less than a millisecond, so
    /// the list is usually short.
    pub row_locks: Vec<RowLockStatus>,
    /// The number of grants of [named locks](Store::lock): see
    /// [`LockTable::held`](crate::LockTable::held).
    #[serde(default)]
    pub held_locks_total: u64,
    /// A hundred of these grants at most, in no order.
    #[serde(default)]
    pub held_locks: Vec<LockEntry>,
    /// The number of waiting requests for named locks.
    #[serde(default)]
    pub lock_waits_total: u64,
    /// A hundred of these requests at most, in no order.
    #[serde(default)]
    pub lock_waits: Vec<LockEntry>,
    /// The longest current wait for a named lock.
    #[serde(default, rename = "longest_lock_wait_s", with = "seconds")]
    pub longest_lock_wait: Duration,
    /// Statistics of named locks: [`Store::lock_stats`].
    #[serde(default)]
    pub lock_stats: LockStats,
    /// The disk space of the first hundred keyspaces, by name; empty for a store in memory.
    #[serde(default)]
    pub keyspaces: Vec<KeyspaceSize>,
}

impl StoreStatus {
    pub(in crate::store) fn read(store: &Store) -> Self {
        let active = store.active_transactions();
        let retrying = store.retrying_calls();
        let newest = store.slow_transactions();
        let failure = store.inner.coordinator.failure();
        // An error ends the list: if the store is closed, for example, the list is empty.
        let row_locks = store.row_locks().into_iter().flatten().map_while(Result::ok);
        let named_locks = lock_summary(&store.inner, LISTED_MAX);
        let (held_locks, lock_waits) =
            named_locks.entries.into_iter().partition(|entry| entry.state == LockState::Held);
        Self {
            held_locks_total: named_locks.held as u64,
            held_locks,
            lock_waits_total: named_locks.waiting as u64,
            lock_waits,
            longest_lock_wait: named_locks.longest_wait,
            lock_stats: store.lock_stats(),
            format_version: STATUS_FORMAT,
            pid: std::process::id(),
            taken_at: UNIX_EPOCH + Duration::from_millis(store.inner.env.unix_millis()),
            uptime: store.inner.env.elapsed().saturating_sub(store.inner.opened_at),
            publish_interval: store.inner.options.status_file_interval,
            failure,
            stats: store.stats(),
            engine: store.engine_stats().ok(),
            latencies: store.latencies(),
            active_total: active.len() as u64,
            active: active.iter().take(LISTED_MAX).map(Into::into).collect(),
            retrying_total: retrying.len() as u64,
            retrying: retrying.iter().take(LISTED_MAX).map(Into::into).collect(),
            slow: newest.iter().skip(newest.len().saturating_sub(SLOW_LISTED_MAX)).map(Into::into).collect(),
            slowest: store.slowest_transactions().iter().take(SLOW_LISTED_MAX).map(Into::into).collect(),
            row_locks: row_locks.take(LISTED_MAX).map(|lock| (&lock).into()).collect(),
            keyspaces: keyspace_sizes(store, LISTED_MAX).unwrap_or_default(),
        }
    }

    /// Reads the status file of a directory, which the process that has the store open
    /// [publishes](crate::store::Builder::status_file_interval); `None` if there is no file.
    ///
    /// A process that is killed leaves its last file. Check [`StoreStatus::taken_at`], or that the
    /// store is in use: opening it returns [`ErrorKind::AlreadyOpen`].
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the file cannot be read, is truncated, or has another format.
    #[cfg(feature = "rocks")]
    pub fn read_from(directory: impl AsRef<std::path::Path>) -> Result<Option<Self>> {
        #[derive(Deserialize)]
        struct Format {
            format_version: u32,
        }
        let Some(document) = crate::engine::directory::read(directory.as_ref())? else { return Ok(None) };
        let unreadable = |reason: String| {
            let what = format!("cannot read the status file in {}: {reason}", directory.as_ref().display());
            Error::from(ErrorKind::Io(what))
        };
        let format: Format = serde_json::from_slice(&document).map_err(|error| unreadable(error.to_string()))?;
        match format.format_version {
            STATUS_FORMAT => serde_json::from_slice(&document).map(Some).map_err(|error| unreadable(error.to_string())),
            other => Err(unreadable(format!("it has format {other}, this program reads format {STATUS_FORMAT}"))),
        }
    }
}

#[cfg(all(test, feature = "rocks"))]
mod tests {
    use super::*;

    /// A document in the format that other programs read. So fields may be added to it, but not
    /// changed.
    const FROZEN: &str = include_str!("status_1.json");

    #[test]
    fn the_json_form_is_the_frozen_one() {
        let status: StoreStatus = serde_json::from_str(FROZEN).unwrap();
        assert_eq!(serde_json::to_string_pretty(&status).unwrap() + "\n", FROZEN);
        assert_eq!((status.format_version, status.pid, status.stats.commits()), (STATUS_FORMAT, 4242, 1234));
        assert_eq!(
            (status.publish_interval, status.uptime),
            (Some(Duration::from_secs(1)), Duration::from_millis(61_500))
        );
        assert_eq!(status.taken_at, UNIX_EPOCH + Duration::from_millis(1_763_726_400_123));
        assert_eq!((status.stats.write_stalls, status.stats.write_stall_time), (12, Duration::from_millis(3500)));
        assert_eq!(status.stats.current_write_stall, Some(Duration::from_millis(250)));
        assert_eq!(status.latencies.commit_durable.count(), 7);
        assert_eq!(status.slow[0].conflicts[0].label.as_deref(), Some("transfer"));
        assert_eq!(status.active[0].start_ts, status.slow[0].start_ts.into());
        assert_eq!((status.active[0].locked_rows, status.active[1].locked_rows), (0, 70_000));
        assert_eq!((status.row_locks[0].commit_ts.is_some(), status.row_locks[1].commit_ts.is_some()), (false, true));
        assert_eq!((status.keyspaces[0].name.as_str(), status.keyspaces[0].disk_bytes), ("accounts", 4096));
        assert_eq!(status.engine.unwrap().columns[0].estimated_keys, 10_000);
    }

    #[test]
    fn unknown_and_missing_fields_are_accepted() {
        let renamed = [
            ("transactions_started", "unknown_counter"),
            ("write_", "unknown_write_"),
            ("current_write_", "unknown_current_write_"),
            ("locked_rows\"", "unknown_rows\""),
            ("engine", "unknown_engine"),
            ("commit_ts", "unknown_ts"),
            ("keyspaces", "unknown_keyspaces"),
        ];
        let changed =
            renamed.iter().fold(FROZEN.to_owned(), |text, (a, b)| text.replace(&format!("\"{a}"), &format!("\"{b}")));
        let status: StoreStatus = serde_json::from_str(&changed).unwrap();
        assert_eq!((status.stats.transactions_started, status.stats.commits()), (0, 1234));
        assert!(status.keyspaces.is_empty());
        assert_eq!((status.active[1].locked_rows, status.engine, status.row_locks[1].commit_ts), (0, None, None));
        let Stats { write_stalls, write_stall_time, current_write_stall, .. } = status.stats;
        assert_eq!((write_stalls, write_stall_time, current_write_stall), (0, Duration::ZERO, None));
    }

    #[test]
    fn the_status_of_a_store_round_trips() {
        let store = Store::builder().slow_transaction_threshold(Duration::ZERO).in_memory().unwrap();
        let rows = store.keyspace("rows").unwrap();
        let mut txn = store.begin_with(crate::TxnOptions::with_label("loser")).unwrap();
        store.transact_with(crate::TxnOptions::with_label("winner"), |txn| txn.put(&rows, "k\n", "v")).unwrap();
        txn.put(&rows, "k\n", "v").unwrap();
        txn.commit().unwrap_err();
        let _snapshot = store.snapshot().unwrap().with_label("report");
        let status = store.status();
        let document = serde_json::to_string(&status).unwrap();
        assert_eq!(serde_json::from_str::<StoreStatus>(&document).unwrap().latencies, status.latencies);
        assert_eq!((status.active_total, status.active[0].label.as_deref()), (1, Some("report")));
        let lost = status.slow.last().unwrap();
        assert_eq!((lost.label.as_deref(), lost.outcome.as_str()), (Some("loser"), "conflict"));
        assert_eq!((lost.conflicts[0].key.as_str(), lost.conflicts[0].label.as_deref()), ("k\\n", Some("winner")));
    }
}
