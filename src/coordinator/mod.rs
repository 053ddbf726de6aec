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

use self::history::Kept;
use crate::error::{Conflict, ConflictReason, Error, ErrorKind, Result};
use crate::observe::Spent;
use crate::pipeline::{Conditions, Entrance, Held};
use crate::protocol::{CommitPoint, Refusal, commit_point};
use crate::row::{Lock, RowKey, TxnId};
use crate::timestamp::Timestamp;
use crate::view::PinnedView;
use crate::writes::Writes;

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
pub enum KeepHistory {
    /// As when the store was open last; a new one keeps none.
    #[default]
    AsBefore,
    /// For so long.
    For(Duration),
    /// Not at all; what was kept goes.
    Never,
}

/// A transaction that wants to commit.
pub struct CommitRequest<'a> {
    pub txn: TxnId,
    pub read_ts: Timestamp,
    pub writes: &'a Arc<Writes>,
    pub protocol: CommitProtocol,
    pub durable: bool,
    pub conditions: Arc<Conditions>,
    pub held: Option<Held>,
    /// Where the time goes; the commit begins at its last lap.
    pub spent: &'a Spent,
}

/// See the [module](self).
pub trait Coordinator: Send + Sync {
    /// What a new transaction sees, and its name.
    fn begin(&self) -> Result<(Arc<PinnedView>, TxnId)>;

    /// A view of which nothing can be lost any more.
    fn snapshot(&self) -> Result<Arc<PinnedView>>;

    /// A view of what was committed at or below `at`, as a [`Coordinator::snapshot`] showed it then.
    fn snapshot_at(&self, at: Timestamp) -> Result<Arc<PinnedView>>;

    /// What is kept of the past; `None` when no history is.
    fn kept(&self) -> Option<Kept>;

    /// Commits; an error other than *undetermined* means that nothing of the transaction remains.
    fn commit(&self, request: CommitRequest<'_>) -> Result<Timestamp>;

    /// Notes that somebody has been told of what was committed at or below this, durable or not: a later
    /// [`Coordinator::snapshot`] must show it.
    fn acknowledge(&self, ts: Timestamp);

    /// Returns once everything that a reader at `read_ts` has seen is durable.
    fn confirm(&self, read_ts: Timestamp, spent: &Spent) -> Result<()>;

    /// When the transaction that holds this lock, found in `view`, was committed, if the view shows that it was.
    fn committed_in(&self, view: &PinnedView, row: &RowKey, lock: &Lock) -> Result<Option<Timestamp>>;

    /// Whether the owner of a lock is known to be gone, by the transaction's `start_ts`.
    fn is_orphan(&self, start_ts: Timestamp) -> bool;

    /// What the primary says of the transaction, if anything; changes nothing.
    fn trace(&self, primary: &RowKey, txn: TxnId) -> Result<Option<CommitPoint>>;

    /// Notes what to wait for, within bounds, until another attempt at these rows is worth making after this conflict.
    fn line_up(&self, entrance: &mut Entrance, rows: &[RowKey], conflict: &Conflict, attempt: u32);
}

/// When the transaction that holds a lock of this view was committed. A view holds every commit at or below its timestamp,
/// so the primary's row in the same view has the answer, whatever has happened since.
pub fn committed_by_primary(view: &PinnedView, lock: &Lock) -> Result<Option<Timestamp>> {
    let primary = view.view.row(&lock.primary, lock.txn.start_ts)?;
    Ok(match commit_point(&primary, lock.txn) {
        // The view of a moment of the past shows locks of later commits, too.
        CommitPoint::Committed(commit_ts) => {
            Some(commit_ts).filter(|ts| *ts <= view.read_ts || mutated!(PastShowsLater))
        }
        CommitPoint::Pending | CommitPoint::RolledBack => None,
    })
}

/// What the caller hears of a refusal that stands.
fn refused(row: &RowKey, why: Refusal, read_ts: Timestamp) -> Error {
    let conflict = |reason, txn: Option<TxnId>| {
        ErrorKind::Conflict(Box::new(Conflict {
            row: row.clone(),
            keyspace: None,
            reason,
            label: None,
            owner: txn.map(|txn| txn.owner),
            their_start_ts: txn.map(|txn| txn.start_ts),
            our_read_ts: read_ts,
        }))
    };
    match why {
        Refusal::Locked(lock) => conflict(ConflictReason::Locked, Some(lock.txn)),
        Refusal::NewerCommit(write) => conflict(ConflictReason::CommittedAt(write.last_commit()), Some(write.txn)),
        Refusal::RolledBack | Refusal::Superseded | Refusal::Committed(_) => conflict(ConflictReason::RolledBack, None),
        Refusal::CommitTooEarly(earliest) => ErrorKind::Corruption(format!(
            "row {row:?} has a lock that must not commit before {earliest:#}, and its transaction has committed earlier"
        )),
        Refusal::BelowSafePoint(ts) => {
            ErrorKind::SnapshotTooOld(format!("the transaction began before the safe point {ts:#}"))
        }
        Refusal::FromTheFuture(ts) => ErrorKind::InvalidArgument(format!("{ts:#} lies in the future")),
        Refusal::PrimaryMismatch(lock) => ErrorKind::Corruption(format!(
            "row {row:?} is named as a primary by a lock, but the lock there names {:?}",
            lock.primary
        )),
    }
    .into()
}
