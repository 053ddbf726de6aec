//! What a store tells of itself at one moment, as one document: for a program's own monitoring, and for whoever looks at the folder while the
//! program has it open.
//!
//! Nobody else can open a folder that is in use ([`Builder::read_only`](crate::store::Builder::read_only)), so a process that wants to be looked at from outside writes
//! the document into a file there, now and then, in the background. It is put in its place whole, without a sync: it is of use only as long as
//! its writer lives. A writer takes it away when it closes the store, and what a killed one has left when it opens it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::engine::EngineStats;
use crate::error::Conflict;
#[cfg(feature = "rocks")]
use crate::error::{Error, ErrorKind, Result};
use crate::json_forms::{millis, seconds, seconds_or_none, text, text_or_none};
use crate::lock_manager::{LockEntry, LockState, LockStats};
use crate::observe::Latencies;
use crate::protocol::TransactionStatus;
use crate::store::{ActiveKind, ActiveTransaction, KeyspaceSize, RowLock, SlowTransaction, Stats, Store, TxnOutcome};
use crate::timestamp::Timestamp;

/// Goes up when a reader of the last one would misunderstand; what is only added does not count.
const STATUS_FORMAT: u32 = 1;
/// So many of the live and of the row locks are in a status, and
const LISTED_MAX: usize = 100;
/// so many of the newest and of the slowest.
const SLOW_LISTED_MAX: usize = 20;

/// What a store does and has done: see [`Store::status`] and [`Builder::status_file_interval`](crate::store::Builder::status_file_interval).
///
/// By serde it is a document that says by its names what is what: durations are seconds (`_s`), moments milliseconds since 1970 (`_ms`),
/// timestamps and owners text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StoreStatus {
    /// The format of the document, 1.
    pub format_version: u32,
    /// The process that has the store open.
    pub pid: u32,
    /// When this was put together, by that process's clock.
    #[serde(rename = "written_ms", with = "millis")]
    pub taken_at: SystemTime,
    /// How long the store had been open.
    #[serde(rename = "open_s", with = "seconds")]
    pub uptime: Duration,
    /// How often it is [published](crate::store::Builder::status_file_interval); `None` when it is not.
    #[serde(rename = "every_s", with = "seconds_or_none")]
    pub publish_interval: Option<Duration>,
    /// Why the store answers nothing any more, if it has failed.
    pub failure: Option<String>,
    /// Metrics and watermarks.
    pub stats: Stats,
    /// Memory, files, and whether RocksDB keeps up; `None` where the engine has no such figures.
    #[serde(default)]
    pub engine: Option<EngineStats>,
    /// How long things took since the store was opened.
    pub latencies: Latencies,
    /// How many transactions and snapshots were not over.
    pub active_total: u64,
    /// The first hundred of them, in the order of [`Store::active_transactions`].
    pub active: Vec<ActiveTransactionStatus>,
    /// The last twenty of [`Store::slow_transactions`], oldest first.
    pub slow: Vec<SlowTransactionStatus>,
    /// The first twenty of [`Store::slowest_transactions`].
    pub slowest: Vec<SlowTransactionStatus>,
    /// The first hundred of [`Store::row_locks`]. Most live for less than a millisecond, so few are met.
    pub row_locks: Vec<RowLockStatus>,
    /// How many [locks](Store::lock) were held.
    #[serde(default)]
    pub held_locks_total: u64,
    /// The first hundred of them.
    #[serde(default)]
    pub held_locks: Vec<LockEntry>,
    /// How many requests for locks waited.
    #[serde(default)]
    pub lock_waits_total: u64,
    /// The first hundred of them.
    #[serde(default)]
    pub lock_waits: Vec<LockEntry>,
    /// How long the first of them had waited.
    #[serde(default, rename = "longest_lock_wait_s", with = "seconds")]
    pub longest_lock_wait: Duration,
    /// How often locks were taken and waited for: [`Store::lock_stats`].
    #[serde(default)]
    pub lock_stats: LockStats,
    /// What the first hundred keyspaces take on the disk; none in memory.
    #[serde(default)]
    pub keyspaces: Vec<KeyspaceSize>,
}

/// A transaction or snapshot that is not over: [`ActiveTransaction`] in a [`StoreStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "named as those of `Live`")]
pub struct ActiveTransactionStatus {
    /// `transaction` or `snapshot`.
    pub kind: String,
    pub label: Option<String>,
    pub owner_id: Option<String>,
    #[serde(with = "text_or_none")]
    pub start_ts: Option<Timestamp>,
    #[serde(with = "text")]
    pub read_ts: Timestamp,
    #[serde(rename = "age_s", with = "seconds")]
    pub age: Duration,
    pub buffered_rows: u64,
    pub buffered_bytes: u64,
    pub is_large: bool,
    #[serde(default)]
    pub locked_rows: u64,
    pub is_expired: bool,
}

/// A slow transaction: [`SlowTransaction`] in a [`StoreStatus`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "named as those of `SlowTransaction`")]
pub struct SlowTransactionStatus {
    pub label: Option<String>,
    pub owner: String,
    #[serde(with = "text")]
    pub start_ts: Timestamp,
    #[serde(rename = "began_ms", with = "millis")]
    pub started_at: SystemTime,
    #[serde(rename = "took_s", with = "seconds")]
    pub duration: Duration,
    /// What it was spent on, in seconds.
    pub breakdown: BTreeMap<String, f64>,
    pub attempts: u32,
    /// `committed`, `rolled back`, `conflict` or `failed`.
    pub outcome: String,
    pub conflicts: Vec<ConflictStatus>,
}

/// Who was in the way, and where: [`Conflict`] in a [`StoreStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "named as those of `Conflict`")]
pub struct ConflictStatus {
    pub keyspace: Option<String>,
    /// As text; what is none is escaped.
    pub key: String,
    pub owner: Option<String>,
    pub label: Option<String>,
    /// All of it in words.
    pub message: String,
}

/// A locked row: [`RowLock`] in a [`StoreStatus`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "named as those of `RowLock`")]
pub struct RowLockStatus {
    pub keyspace: Option<String>,
    /// As text; what is none is escaped.
    pub key: String,
    pub owner: String,
    #[serde(with = "text")]
    pub start_ts: Timestamp,
    pub primary_keyspace: Option<String>,
    pub primary: String,
    /// `pending`, `committed` or `rolled back`.
    pub txn_status: String,
    /// Of one that is committed.
    #[serde(default, with = "text_or_none")]
    pub commit_ts: Option<Timestamp>,
    pub is_orphan: bool,
}

impl Store {
    /// What the store does at this moment and has done since it was opened, in one document that serde can take elsewhere. What it says
    /// in part, [`Store::stats`], [`Store::latencies`], [`Store::active_transactions`], [`Store::slow_transactions`],
    /// [`Store::slowest_transactions`] and [`Store::row_locks`] say in full.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// let store = percolite::Store::in_memory()?;
    /// let status = store.status();
    /// assert_eq!((status.pid, status.active_total), (std::process::id(), 0));
    /// # Ok(()) }
    /// ```
    pub fn status(&self) -> StoreStatus {
        let live = self.active_transactions();
        let newest = self.slow_transactions();
        let failed = self.inner.coordinator.failure();
        // Of a store that has failed or is closed there is nothing to be read.
        let row_locks = self.row_locks().into_iter().flatten().map_while(Result::ok);
        let locks_by_name = self.lock_summary(LISTED_MAX);
        let (held_locks, lock_waits) =
            locks_by_name.entries.into_iter().partition(|entry| entry.state == LockState::Held);
        StoreStatus {
            held_locks_total: locks_by_name.held as u64,
            held_locks,
            lock_waits_total: locks_by_name.waiting as u64,
            lock_waits,
            longest_lock_wait: locks_by_name.longest_wait,
            lock_stats: self.lock_stats(),
            format_version: STATUS_FORMAT,
            pid: std::process::id(),
            taken_at: UNIX_EPOCH + Duration::from_millis(self.inner.runtime.unix_millis()),
            uptime: self.inner.runtime.elapsed().saturating_sub(self.inner.opened_at),
            publish_interval: self.inner.options.status_file_interval,
            failure: failed.map(Into::into),
            stats: self.stats(),
            engine: self.engine_stats().ok(),
            latencies: self.latencies(),
            active_total: live.len() as u64,
            active: live.iter().take(LISTED_MAX).map(Into::into).collect(),
            slow: newest.iter().skip(newest.len().saturating_sub(SLOW_LISTED_MAX)).map(Into::into).collect(),
            slowest: self.slowest_transactions().iter().take(SLOW_LISTED_MAX).map(Into::into).collect(),
            row_locks: row_locks.take(LISTED_MAX).map(|lock| (&lock).into()).collect(),
            keyspaces: self.keyspace_sizes(LISTED_MAX).unwrap_or_default(),
        }
    }

    /// Publishes the status if it is time to.
    #[cfg(feature = "rocks")]
    pub(in crate::store) fn write_status_file(&self) -> Result<()> {
        let Some(every) = self.inner.options.status_file_interval else { return Ok(()) };
        let now = self.inner.runtime.elapsed();
        {
            let mut published = self.inner.status_written_at.lock();
            if now.saturating_sub(*published) < every {
                return Ok(());
            }
            *published = now;
        }
        let document = serde_json::to_vec(&self.status())
            .map_err(|why| Error::from(ErrorKind::Io(format!("the status cannot be written: {why}"))))?;
        Ok(self.inner.engine.write_status_file(Some(&document))?)
    }
}

impl StoreStatus {
    /// What the process that has a folder open has last [published](crate::store::Builder::status_file_interval) there; `None` when there is no such
    /// file. Who has not asked before whether the folder is open at all ([`ErrorKind::AlreadyOpen`]) must look at [`StoreStatus::taken_at`]: a
    /// process that was killed has left its last one.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] when it cannot be read, is not whole, or is in the format of a newer program.
    #[cfg(feature = "rocks")]
    pub fn read_from(folder: impl AsRef<std::path::Path>) -> Result<Option<Self>> {
        #[derive(Deserialize)]
        struct Format {
            percolite_status: u32,
        }
        let Some(document) = crate::engine::folder::read(folder.as_ref())? else { return Ok(None) };
        let cannot = |why: String| {
            let what = format!("the status in {} cannot be read: {why}", folder.as_ref().display());
            Error::from(ErrorKind::Io(what))
        };
        let format: Format = serde_json::from_slice(&document).map_err(|why| cannot(why.to_string()))?;
        match format.percolite_status {
            STATUS_FORMAT => serde_json::from_slice(&document).map(Some).map_err(|why| cannot(why.to_string())),
            other => Err(cannot(format!("it has format {other}, this program reads format {STATUS_FORMAT}"))),
        }
    }
}

/// For people: text as it is, anything else escaped.
fn display_key(key: &[u8]) -> String {
    match str::from_utf8(key) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => key.escape_ascii().to_string(),
    }
}

impl From<&ActiveTransaction> for ActiveTransactionStatus {
    fn from(live: &ActiveTransaction) -> Self {
        Self {
            kind: match live.kind {
                ActiveKind::Transaction => "transaction".into(),
                ActiveKind::Snapshot => "snapshot".into(),
            },
            label: live.label.map(Into::into),
            owner_id: live.owner_id.map(|owner| owner.to_string()),
            start_ts: live.start_ts,
            read_ts: live.read_ts,
            age: live.age,
            buffered_rows: live.buffered_rows,
            buffered_bytes: live.buffered_bytes,
            is_large: live.is_large,
            locked_rows: live.locked_rows,
            is_expired: live.is_expired,
        }
    }
}

impl From<&SlowTransaction> for SlowTransactionStatus {
    fn from(slow: &SlowTransaction) -> Self {
        let parts = slow.breakdown.parts().into_iter();
        let outcome = match &slow.outcome {
            TxnOutcome::Committed(_) => "committed",
            TxnOutcome::RolledBack => "rolled back",
            TxnOutcome::Conflict => "conflict",
            TxnOutcome::Failed(_) => "failed",
        };
        Self {
            label: slow.label.map(Into::into),
            owner: slow.owner_id.to_string(),
            start_ts: slow.start_ts,
            started_at: slow.started_at,
            duration: slow.duration,
            breakdown: parts.map(|(what, took)| (what.to_owned(), took.as_secs_f64())).collect(),
            attempts: slow.attempts,
            outcome: outcome.into(),
            conflicts: slow.conflicts.iter().map(Into::into).collect(),
        }
    }
}

impl From<&Conflict> for ConflictStatus {
    fn from(met: &Conflict) -> Self {
        Self {
            keyspace: met.keyspace.clone(),
            key: display_key(met.row.user_key()),
            owner: met.conflicting_owner.map(|owner| owner.to_string()),
            label: met.conflicting_label.map(Into::into),
            message: met.to_string(),
        }
    }
}

impl From<&RowLock> for RowLockStatus {
    fn from(lock: &RowLock) -> Self {
        let (commit_point, commit_ts) = match lock.txn_status {
            TransactionStatus::Pending => ("pending", None),
            TransactionStatus::Committed(ts) => ("committed", Some(ts)),
            TransactionStatus::RolledBack => ("rolled back", None),
        };
        Self {
            keyspace: lock.keyspace.clone(),
            key: display_key(lock.row.user_key()),
            owner: lock.owner_id.to_string(),
            start_ts: lock.start_ts,
            primary_keyspace: lock.primary_keyspace.clone(),
            primary: display_key(lock.primary.user_key()),
            txn_status: commit_point.into(),
            commit_ts,
            is_orphan: lock.is_orphan,
        }
    }
}

#[cfg(all(test, feature = "rocks"))]
mod tests {
    use super::*;

    /// Never to be changed but by additions: other programs read it.
    const FROZEN: &str = include_str!("status_1.json");

    #[test]
    fn the_document_is_as_it_always_was() {
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
        assert_eq!((status.keyspaces[0].name.as_str(), status.keyspaces[0].stored_bytes), ("accounts", 4096));
        assert_eq!(status.engine.unwrap().columns[0].estimated_keys, 10_000);
    }

    #[test]
    fn counters_that_a_program_does_not_know_or_does_not_find_are_no_reason_to_refuse() {
        let renamed = [
            ("begun", "begun_in_some_other_way"),
            ("write_", "wrote_"),
            ("streamed\"", "sent\""),
            ("engine", "motor"),
            ("commit_ts", "at"),
            ("keyspaces", "rooms"),
        ];
        let changed =
            renamed.iter().fold(FROZEN.to_owned(), |text, (a, b)| text.replace(&format!("\"{a}"), &format!("\"{b}")));
        let status: StoreStatus = serde_json::from_str(&changed).unwrap();
        assert_eq!((status.stats.transactions_started, status.stats.commits()), (0, 1234));
        assert!(status.keyspaces.is_empty());
        assert_eq!((status.active[1].locked_rows, status.engine, status.row_locks[1].commit_ts), (0, None, None));
        let Stats { write_stalls, write_stall_time: write_stalled, current_write_stall: write_stalled_now, .. } =
            status.stats;
        assert_eq!((write_stalls, write_stalled, write_stalled_now), (0, Duration::ZERO, None));
    }

    #[test]
    fn what_a_store_tells_is_read_as_it_was_told() {
        let store = Store::builder().slow_transaction_threshold(Duration::ZERO).in_memory().unwrap();
        let rows = store.keyspace("rows").unwrap();
        let mut txn = store.begin_with(crate::TxnOptions::with_label("loser")).unwrap();
        store.transact_with(crate::TxnOptions::with_label("winner"), |txn| txn.put(&rows, "k\n", "v")).unwrap();
        txn.put(&rows, "k\n", "v").unwrap();
        txn.commit().unwrap_err();
        let _live = store.snapshot().unwrap().with_label("report");
        let status = store.status();
        let document = serde_json::to_string(&status).unwrap();
        assert_eq!(serde_json::from_str::<StoreStatus>(&document).unwrap().latencies, status.latencies);
        assert_eq!((status.active_total, status.active[0].label.as_deref()), (1, Some("report")));
        let lost = status.slow.last().unwrap();
        assert_eq!((lost.label.as_deref(), lost.outcome.as_str()), (Some("loser"), "conflict"));
        assert_eq!((lost.conflicts[0].key.as_str(), lost.conflicts[0].label.as_deref()), ("k\\n", Some("winner")));
    }
}
