//! What the store asks of a coordinator.

use std::sync::Arc;
use std::time::Duration;

use super::retention::Retention;
use crate::commit_conditions::CommitConditions;
use crate::contention::{AdmissionWait, AttemptGuard};
use crate::error::{Conflict, Result};
use crate::lock_manager::LockManager;
use crate::observe::TxnTimer;
use crate::protocol::TransactionStatus;
use crate::read_view::ReadView;
use crate::row::{KeyspaceId, Lock, RowKey, TxnId};
use crate::timestamp::Timestamp;
use crate::writes::WriteSet;

/// How a transaction's rows are committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommitProtocol {
    /// One phase where the engine can change all rows in one batch, two phases elsewhere.
    #[default]
    Auto,
    /// Always two phases: every row is locked first with the value to be; then the primary is
    /// committed, then the others. A store that has its engine for itself commits up to 1,023 of them
    /// together with the primary.
    TwoPhase,
}

/// Whether replaced versions are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HistoryRetention {
    /// As at the last opening; a new store keeps none.
    #[default]
    Unchanged,
    /// For this time.
    For(Duration),
    /// Not at all; what was kept is removed.
    Disabled,
}

/// A transaction that is to commit.
pub struct CommitRequest<'a> {
    pub txn: TxnId,
    pub read_ts: Timestamp,
    pub writes: &'a Arc<WriteSet>,
    pub protocol: CommitProtocol,
    pub durable: bool,
    pub conditions: Arc<CommitConditions>,
    pub attempt: Option<AttemptGuard>,
    /// Measures the phases; the commit begins at its last lap.
    pub timer: &'a TxnTimer,
}

/// How far a store has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Commits up to this are visible.
    pub visible_ts: Timestamp,
    /// Commits up to this survive a power cut.
    pub durable_ts: Timestamp,
    /// The oldest timestamp at which a transaction or snapshot reads.
    pub oldest_read_ts: Timestamp,
    /// Different views in use.
    pub open_views: usize,
    /// Whether locks of an earlier incarnation may be left.
    pub may_have_orphan_locks: bool,
    /// Finished large transactions whose rows are still locked.
    pub cleanup_pending: usize,
}

/// A task that the background runs in each round, with the name for its failures.
pub type BackgroundTask = (&'static str, Box<dyn Fn() -> Result<()> + Send>);

/// See the [module](super).
pub trait Coordinator: Send + Sync {
    /// A view and an id for a new transaction.
    fn begin(&self) -> Result<(Arc<ReadView>, TxnId)>;

    /// A view of nothing that could still be lost.
    fn snapshot(&self) -> Result<Arc<ReadView>>;

    /// A view of what was committed at or below `at`, as [`Coordinator::snapshot`] showed it then.
    fn snapshot_at(&self, at: Timestamp) -> Result<Arc<ReadView>>;

    /// The history that is kept; `None` without history.
    fn retention(&self) -> Option<Retention>;

    /// Commits. An error other than *undetermined* means that nothing of the transaction is left.
    fn commit(&self, request: CommitRequest<'_>) -> Result<Timestamp>;

    /// A commit at or below this is acknowledged, durable or not: later
    /// [snapshots](Coordinator::snapshot) include it.
    fn note_acked(&self, ts: Timestamp);

    /// Returns once all that a reader at `read_ts` has seen is durable.
    fn wait_durable(&self, read_ts: Timestamp, timer: &TxnTimer) -> Result<()>;

    /// The commit timestamp of the transaction that holds this lock of `view`, if the view shows that it
    /// is committed. It may resolve the lock.
    fn commit_ts_of_lock(&self, view: &ReadView, row: &RowKey, lock: &Lock) -> Result<Option<Timestamp>>;

    /// Whether no live transaction will commit locks with this `start_ts`.
    fn is_orphan(&self, start_ts: Timestamp) -> bool;

    /// The status that the primary records, if any. Changes nothing.
    fn txn_status(&self, primary: &RowKey, txn: TxnId) -> Result<Option<TransactionStatus>>;

    /// Adds what to wait for before another attempt at these rows is worth making after this conflict.
    fn plan_retry_wait(&self, wait: &mut AdmissionWait, rows: &[RowKey], conflict: &Conflict, attempt: u32);

    /// Begins a transaction that locks its rows before it commits. `None`: not supported.
    fn begin_large(&self, _txn: TxnId, _read_ts: Timestamp) -> Option<Box<dyn LargeTxn>> {
        None
    }

    /// Whether this process has the engine for itself.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// An error if the store has failed.
    fn check_open(&self) -> Result<()> {
        Ok(())
    }

    /// Why the store has failed, if it has.
    fn failure(&self) -> Option<String> {
        None
    }

    /// Returns once every commit up to `up_to`, or every visible one, is durable.
    fn sync(&self, up_to: Option<Timestamp>) -> Result<()>;

    /// `None` where they are not known.
    fn watermarks(&self) -> Option<Watermarks> {
        None
    }

    /// Makes every later timestamp greater than `ts`.
    fn advance_past(&self, _ts: Timestamp) -> Result<()> {
        Ok(())
    }

    /// Expires views older than `max_snapshot_age`, and requests a sync of what is not durable. Returns
    /// how many expired.
    fn maintain(&self, _max_snapshot_age: Duration) -> usize {
        0
    }

    /// Resolves every orphan lock and does every pending lock cleanup; returns how many orphans.
    fn resolve_orphan_locks(&self) -> Result<u64> {
        Ok(0)
    }

    /// Whether a resolver may still read primaries of finished transactions.
    fn may_read_primaries(&self) -> bool {
        true
    }

    /// Whether no transaction or snapshot, nor any in the history, reads below `ts` from now on.
    fn is_below_gc_horizon(&self, _ts: Timestamp) -> Result<bool> {
        Ok(false)
    }

    /// Deletes all cells of a keyspace.
    fn delete_keyspace(&self, keyspace: KeyspaceId) -> Result<()>;

    /// What grants of named locks are built on. `None`: they are not supported.
    fn lock_authority(&self) -> Option<Arc<dyn LockAuthority>> {
        None
    }

    /// Starts the background: these tasks, and with `resolve` the resolution of orphan locks.
    fn start_background(&self, _resolve: bool, _tasks: Vec<BackgroundTask>) -> Result<()> {
        Ok(())
    }

    /// Ends the background after its current page.
    fn stop_background(&self) {}

    /// Makes all visible commits durable, and rejects all further calls.
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// A large transaction: it locks its rows in the store before it commits (TiDB: pipelined DML). Dropped
/// without a commit it is rolled back in the background.
pub trait LargeTxn: Send + Sync {
    /// Locks rows. After an error the transaction must be dropped.
    fn lock_rows(&mut self, writes: &WriteSet, conditions: &Arc<CommitConditions>, timer: &TxnTimer) -> Result<()>;

    /// From here on no commit of another transaction is a conflict.
    fn skip_conflict_check(&mut self);

    /// Writes so far; a row that is written again counts again.
    fn writes(&self) -> u64;

    /// Commits, once all rows are locked. After an error the transaction must be dropped; an
    /// *undetermined* one is not rolled back then.
    fn commit(
        &mut self,
        conditions: &Arc<CommitConditions>,
        durable: bool,
        attempt: Option<AttemptGuard>,
        timer: &TxnTimer,
    ) -> Result<Timestamp>;
}

/// What grants of named locks are built on: the lock manager, and the order of commits.
pub trait LockAuthority: Send + Sync {
    fn manager(&self) -> &Arc<LockManager>;

    /// A fencing token: above every timestamp handed out before.
    fn token(&self) -> Result<Timestamp>;

    /// [`LockAuthority::token`], unless it would have to be waited for.
    #[cfg(feature = "tokio")]
    fn try_token(&self) -> Option<Timestamp>;

    /// Returns once all commits that were decided before are visible.
    fn drain(&self) -> Result<()>;

    /// A view of all that is visible.
    fn visible_view(&self) -> Arc<ReadView>;

    fn durable_ts(&self) -> Timestamp;

    /// Returns once commits up to `ts` are durable. An error is that of a caller that has committed
    /// nothing itself.
    fn wait_durable(&self, ts: Timestamp) -> Result<()>;

    /// The first timestamp of this incarnation.
    fn first_ts(&self) -> Timestamp;
}
