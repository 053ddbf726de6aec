//! The [`Coordinator`] trait: what the store requires of a coordinator.
//!
//! A transaction reads at `read_ts`, is identified by `start_ts` and commits at `commit_ts`, with
//! `read_ts <= start_ts < commit_ts`. If another transaction has committed a row above `read_ts`, a
//! write of the row is a conflict.

use std::sync::Arc;
use std::time::Duration;

use super::retention::Retention;
use crate::commit_conditions::CommitConditions;
use crate::contention::{AdmissionWait, AttemptGuard};
use crate::error::{Conflict, Result};
use crate::lock_manager::LockManager;
use crate::observe::TxnTimer;
use crate::protocol::TxnStatus;
use crate::read_view::ReadView;
use crate::row::{KeyspaceId, Lock, RowKey, TxnId};
use crate::timestamp::Timestamp;
use crate::write_set::WriteSet;

/// How a transaction's rows are committed. Isolation and durability do not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommitProtocol {
    /// One phase if the engine can change all rows in one atomic batch, else two phases. On a
    /// shared engine there are always two phases.
    #[default]
    Auto,
    /// Always two phases. The first locks every row, and stores the row's future value with it. The
    /// second commits one row, the primary, which decides the transaction, and then the other rows.
    /// On an exclusive engine up to 1,023 of the other rows are committed together with the
    /// primary.
    TwoPhase,
}

/// Whether replaced versions are kept, so that the store can be read at older timestamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HistoryRetention {
    /// The same as at the last opening; a new store keeps no history.
    #[default]
    Unchanged,
    /// Replaced versions are kept for at least this time.
    For(Duration),
    /// Not at all; versions that were kept are removed in the background.
    Disabled,
}

/// A transaction's request to commit.
pub struct CommitRequest<'a> {
    pub txn: TxnId,
    pub read_ts: Timestamp,
    pub writes: &'a Arc<WriteSet>,
    pub protocol: CommitProtocol,
    pub durable: bool,
    pub conditions: Arc<CommitConditions>,
    pub attempt: Option<AttemptGuard>,
    /// Records how long the commit spends in each phase. The caller has started the timer at the
    /// beginning of the commit.
    pub timer: &'a TxnTimer,
}

/// How far commits are visible and durable, how far back is still being read, and whether locks of
/// ended transactions are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Commits up to this are visible.
    pub visible_ts: Timestamp,
    /// Commits up to this survive a power cut.
    pub durable_ts: Timestamp,
    /// The oldest timestamp at which an active transaction or snapshot reads. Historical snapshots,
    /// opened at a timestamp of the past, do not count.
    pub oldest_read_ts: Timestamp,
    /// Number of distinct views in use.
    pub open_views: usize,
    /// Whether locks of an earlier incarnation may be left.
    pub may_have_orphan_locks: bool,
    /// Number of finished large transactions that still have locks.
    pub cleanup_pending: usize,
}

/// A task that the background worker runs in each round, and its name in reports of failures.
pub type BackgroundTask = (&'static str, Box<dyn Fn() -> Result<()> + Send>);

/// See the [module](super).
pub trait Coordinator: Send + Sync {
    /// Begins a transaction: returns its view and id.
    fn begin(&self) -> Result<(Arc<ReadView>, TxnId)>;

    /// A view for a snapshot, with all acknowledged commits. On an exclusive engine, if commits are
    /// durable by default, the view has durable commits only; if an acknowledged commit is not
    /// durable yet, it is synced first.
    fn snapshot(&self) -> Result<Arc<ReadView>>;

    /// A view of what was committed at or below `at`, from the history.
    fn snapshot_at(&self, at: Timestamp) -> Result<Arc<ReadView>>;

    /// The retention of history; `None` if no history is kept.
    fn retention(&self) -> Option<Retention>;

    /// Commits; returns the commit timestamp. After any error but *undetermined* the transaction is
    /// aborted, and none of its writes takes effect.
    fn commit(&self, request: CommitRequest<'_>) -> Result<Timestamp>;

    /// Records that commits up to `ts` are acknowledged to a caller, durable or not: later
    /// [snapshots](Coordinator::snapshot) include them.
    fn note_acked(&self, ts: Timestamp);

    /// Blocks until every commit at or below `read_ts` is durable.
    fn wait_durable(&self, read_ts: Timestamp, timer: &TxnTimer) -> Result<()>;

    /// The commit timestamp of the transaction that has this lock in `view`; `None` if the
    /// transaction is not committed at or below the view's timestamp. May resolve the lock.
    fn commit_ts_of_lock(&self, view: &ReadView, row: &RowKey, lock: &Lock) -> Result<Option<Timestamp>>;

    /// Whether locks with this `start_ts` belong to a transaction of an earlier incarnation, or to
    /// a large transaction that was rolled back. On a shared engine always `false`: there
    /// `start_ts` does not show whether the owner has ended.
    fn is_orphan(&self, start_ts: Timestamp) -> bool;

    /// The status that the primary's row shows; `None` if the row shows no status. Changes nothing.
    fn txn_status(&self, primary: &RowKey, txn: TxnId) -> Result<Option<TxnStatus>>;

    /// Adds to `wait` what the next attempt waits for after this conflict. `rows`: those that the
    /// failed attempt wrote.
    fn plan_retry_wait(&self, wait: &mut AdmissionWait, rows: &[RowKey], conflict: &Conflict, attempt: u32);

    /// Begins a large transaction. `None`: not supported.
    fn begin_large(&self, _txn: TxnId, _read_ts: Timestamp) -> Option<Box<dyn LargeTxn>> {
        None
    }

    /// Whether the engine is exclusive to this process.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// An error if the store has failed or is closed.
    fn check_open(&self) -> Result<()> {
        Ok(())
    }

    /// Why the store has failed or is closed; `None` if it is neither.
    fn failure(&self) -> Option<String> {
        None
    }

    /// Blocks until every visible commit is durable; with `up_to`, only those up to this timestamp.
    fn sync(&self, up_to: Option<Timestamp>) -> Result<()>;

    /// The progress of commits; `None` if this coordinator does not record it.
    fn watermarks(&self) -> Option<Watermarks> {
        None
    }

    /// Makes every later timestamp greater than `ts`.
    fn advance_past(&self, _ts: Timestamp) -> Result<()> {
        Ok(())
    }

    /// Expires old views: those that a newer view replaced longer than `max_snapshot_age` ago, and
    /// historical ones that were opened longer ago than that. Requests a sync if a visible commit
    /// is not durable. Returns the number of expired views.
    fn maintain(&self, _max_snapshot_age: Duration) -> usize {
        0
    }

    /// Resolves every orphan lock and completes every pending lock cleanup. Returns the number of
    /// orphan locks that were found.
    fn resolve_orphan_locks(&self) -> Result<u64> {
        Ok(0)
    }

    /// Whether locks of finished transactions may be left. Resolvers may have to read the primaries
    /// of these transactions, so the rows of dropped keyspaces must stay.
    fn may_read_primaries(&self) -> bool {
        true
    }

    /// Raises the GC horizon if it can reach `ts`, and returns whether it is at or above `ts` now.
    /// If it is, no transaction, ordinary snapshot or new historical read reads below `ts` from now
    /// on. Historical views that are already open may, because they have engine snapshots of their
    /// own.
    fn is_below_gc_horizon(&self, _ts: Timestamp) -> Result<bool> {
        Ok(false)
    }

    /// Deletes all cells of a keyspace.
    fn delete_keyspace(&self, keyspace: KeyspaceId) -> Result<()>;

    /// The authority for grants of named locks. `None`: named locks are not supported.
    fn lock_authority(&self) -> Option<Arc<dyn LockAuthority>> {
        None
    }

    /// Starts the background worker, which runs these tasks and, with `resolve`, the sweep of
    /// orphan locks.
    fn start_background(&self, _resolve: bool, _tasks: Vec<BackgroundTask>) -> Result<()> {
        Ok(())
    }

    /// Stops the background worker after its current round.
    fn stop_background(&self) {}

    /// Makes all visible commits durable, and rejects all further calls.
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// A large transaction: it locks its rows in the store before it commits (TiDB: pipelined DML). If
/// it is dropped without a commit, it is rolled back in the background.
pub trait LargeTxn: Send + Sync {
    /// Locks rows and stores their future values. After an error the transaction must be dropped.
    fn lock_rows(&mut self, writes: &WriteSet, conditions: &Arc<CommitConditions>, timer: &TxnTimer) -> Result<()>;

    /// Makes later writes ignore commits of other transactions: no such commit is a conflict.
    fn skip_conflict_check(&mut self);

    /// Number of writes; a row that is written again counts again.
    fn writes(&self) -> u64;

    /// Commits; all rows must be locked before. After an error the transaction must be dropped. The
    /// drop rolls it back, except after the error *undetermined*.
    fn commit(
        &mut self,
        conditions: &Arc<CommitConditions>,
        durable: bool,
        attempt: Option<AttemptGuard>,
        timer: &TxnTimer,
    ) -> Result<Timestamp>;
}

/// What named locks need from a coordinator: the lock manager, fencing tokens, and waits for
/// commits to be visible or durable.
pub trait LockAuthority: Send + Sync {
    fn manager(&self) -> &Arc<LockManager>;

    /// A new fencing token, above every timestamp allocated before.
    fn token(&self) -> Result<Timestamp>;

    /// [`LockAuthority::token`] without blocking; `None` if it would block.
    #[cfg(feature = "tokio")]
    fn try_token(&self) -> Option<Timestamp>;

    /// Blocks until all commits that were decided before this call are visible.
    fn drain(&self) -> Result<()>;

    /// A view of all visible commits.
    fn visible_view(&self) -> Arc<ReadView>;

    fn durable_ts(&self) -> Timestamp;

    /// Blocks until commits up to `ts` are durable. An error is never *undetermined*: the caller
    /// has committed nothing itself.
    fn wait_durable(&self, ts: Timestamp) -> Result<()>;
}
