//! Who runs the protocol's steps in which order, and waits for what.
//!
//! There are three coordinators. [`embedded`] has its engine for itself: it knows which transactions live, orders all commits
//! through one pipeline and never waits for a dead owner. [`shared`] is one of several clients of an engine: it knows only
//! what the rows say, takes timestamps from a common oracle, and its requests may be late, repeated or lost. [`read_only`]
//! looks at what a store was left as, and changes nothing.

pub mod embedded;
pub mod history;
pub mod read_only;
pub mod shared;

use std::sync::Arc;
use std::time::Duration;

use self::history::Retention;
use crate::error::{Conflict, ConflictReason, Error, ErrorKind, Result};
use crate::observe::TxnTimer;
use crate::pipeline::{AdmissionWait, AttemptGuard, CommitConditions};
use crate::protocol::{StepError, TransactionStatus, txn_status_or_rolled_back};
use crate::row::{Lock, RowKey, TxnId};
use crate::timestamp::Timestamp;
use crate::view::ReadView;
use crate::writes::WriteSet;

/// How a transaction's rows are committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommitProtocol {
    /// One phase where the engine can change all rows at once, two phases elsewhere.
    #[default]
    Auto,
    /// Always two phases: every row is locked first, with what is to become of it; then the primary is committed, then the others. A
    /// store that has its engine for itself commits up to 1,023 of them together with the primary.
    TwoPhase,
}

/// Whether replaced versions are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HistoryRetention {
    /// As when the store was open last; a new one keeps none.
    #[default]
    Unchanged,
    /// For so long.
    For(Duration),
    /// Not at all; what was kept goes.
    Disabled,
}

/// A transaction that wants to commit.
pub struct CommitRequest<'a> {
    pub txn: TxnId,
    pub read_ts: Timestamp,
    pub writes: &'a Arc<WriteSet>,
    pub protocol: CommitProtocol,
    pub durable: bool,
    pub conditions: Arc<CommitConditions>,
    pub attempt: Option<AttemptGuard>,
    /// Where the time goes; the commit begins at its last lap.
    pub timer: &'a TxnTimer,
}

/// See the [module](self).
pub trait Coordinator: Send + Sync {
    /// What a new transaction sees, and its name.
    fn begin(&self) -> Result<(Arc<ReadView>, TxnId)>;

    /// A view of which nothing can be lost any more.
    fn snapshot(&self) -> Result<Arc<ReadView>>;

    /// A view of what was committed at or below `at`, as a [`Coordinator::snapshot`] showed it then.
    fn snapshot_at(&self, at: Timestamp) -> Result<Arc<ReadView>>;

    /// What is kept of the past; `None` when no history is.
    fn retention(&self) -> Option<Retention>;

    /// Commits; an error other than *undetermined* means that nothing of the transaction remains.
    fn commit(&self, request: CommitRequest<'_>) -> Result<Timestamp>;

    /// Notes that somebody has been told of what was committed at or below this, durable or not: a later
    /// [`Coordinator::snapshot`] must show it.
    fn note_acked(&self, ts: Timestamp);

    /// Returns once everything that a reader at `read_ts` has seen is durable.
    fn wait_durable(&self, read_ts: Timestamp, spent: &TxnTimer) -> Result<()>;

    /// When the transaction that holds this lock, found in `view`, was committed, if the view shows that it was.
    fn commit_ts_of_lock(&self, view: &ReadView, row: &RowKey, lock: &Lock) -> Result<Option<Timestamp>>;

    /// Whether the owner of a lock is known to be gone, by the transaction's `start_ts`.
    fn is_orphan(&self, start_ts: Timestamp) -> bool;

    /// What the primary says of the transaction, if anything; changes nothing.
    fn txn_status(&self, primary: &RowKey, txn: TxnId) -> Result<Option<TransactionStatus>>;

    /// Notes what to wait for, within bounds, until another attempt at these rows is worth making after this conflict.
    fn plan_retry_wait(&self, entrance: &mut AdmissionWait, rows: &[RowKey], conflict: &Conflict, attempt: u32);
}

/// When the transaction that holds a lock of this view was committed. A view holds every commit at or below its timestamp,
/// so the primary's row in the same view has the answer, whatever has happened since.
pub fn commit_ts_from_primary(view: &ReadView, lock: &Lock) -> Result<Option<Timestamp>> {
    let primary = view.snapshot.row(&lock.primary, lock.txn.start_ts)?;
    Ok(match txn_status_or_rolled_back(&primary, lock.txn) {
        // The view of a moment of the past shows locks of later commits, too.
        TransactionStatus::Committed(commit_ts) => {
            Some(commit_ts).filter(|ts| *ts <= view.read_ts || mutated!(HistoryShowsLaterLocks))
        }
        TransactionStatus::Pending | TransactionStatus::RolledBack => None,
    })
}

/// What the caller hears of a refusal that stands.
fn step_error(row: &RowKey, why: StepError, read_ts: Timestamp) -> Error {
    let conflict = |reason, txn: Option<TxnId>| {
        ErrorKind::Conflict(Box::new(Conflict {
            row: row.clone(),
            keyspace: None,
            reason,
            conflicting_label: None,
            conflicting_owner: txn.map(|txn| txn.owner),
            conflicting_start_ts: txn.map(|txn| txn.start_ts),
            read_ts,
        }))
    };
    match why {
        StepError::KeyIsLocked(lock) => conflict(ConflictReason::Locked, Some(lock.txn)),
        StepError::WriteConflict(write) => {
            conflict(ConflictReason::NewerVersion(write.last_commit_ts()), Some(write.txn))
        }
        StepError::AlreadyRolledBack | StepError::StaleRequest | StepError::AlreadyCommitted(_) => {
            conflict(ConflictReason::RolledBackByOther, None)
        }
        StepError::CommitTsTooLow(earliest) => ErrorKind::Corruption(format!(
            "row {row:?} has a lock that must not commit before {earliest:#}, and its transaction has committed earlier"
        )),
        StepError::BelowSafePoint(ts) => {
            ErrorKind::SnapshotTooOld(format!("the transaction began before the safe point {ts:#}"))
        }
        StepError::FutureTimestamp(ts) => ErrorKind::InvalidArgument(format!("{ts:#} lies in the future")),
        StepError::PrimaryMismatch(lock) => ErrorKind::Corruption(format!(
            "row {row:?} is named as a primary by a lock, but the lock there names {:?}",
            lock.primary
        )),
    }
    .into()
}
