//! Percolator's steps as decisions about one row.
//!
//! Every step is a plain function. It takes the row as read and a request, and returns a [`Step`]
//! or a [`StepError`]; one that cannot be refused, such as [`gc_row`], returns its change. It does
//! no I/O and uses no clock and no randomness, so the store, the simulator and a model checker run
//! the same code.
//!
//! A transaction that writes rows `a` (its primary) and `b` changes the columns in this order:
//!
//! ```text
//!           row a (primary)                        row b (secondary)
//!           lock          write   record           lock          write
//! prewrite  T, primary a                           T, primary a
//! commit                  put @c  T: committed @c  T, primary a          <- commit point
//! commit                  put @c  T: committed @c                put @c
//! cleanup                 put @c                                 put @c
//! ```
//!
//! The commit point is one atomic change of row `a`. Before this point the transaction can be
//! rolled back; afterwards it must be rolled forward. A lock on `b` does not show which of the two
//! applies; the state of row `a` does. So any reader or writer that finds a lock of a crashed owner
//! reads row `a`, and can then resolve the lock.
//!
//! A step returns its change together with the [`Precondition`]s under which the decision is valid.
//! The caller passes both to the engine. If a precondition fails, the engine returns the row as it
//! found it, and the caller runs the same step again with that row.
//!
//! So the first run of a step needs no read: its input may be a guess (`RowState::default()`: an
//! untouched row). The result of a repeated or late request follows from the row's columns alone.

mod check_txn_status;
mod commit;
mod gc;
mod heartbeat;
mod one_phase;
mod prewrite;
mod resolve;
mod rollback;

pub use check_txn_status::{
    CheckTxnStatus, OwnerLiveness, TxnStatus, check_txn_status, txn_status, txn_status_or_rolled_back,
};
pub use commit::{CommitRow, commit, commit_at_least};
pub use gc::{GcRequest, OldVersion, delete_txn_record, gc_row};
pub use heartbeat::{Heartbeat, heartbeat};
pub use one_phase::{OnePhase, one_phase};
pub use prewrite::{Prewrite, PrewriteResult, prewrite};
pub use resolve::{Resolve, resolve};
pub use rollback::{Rollback, release_lock, rollback};

use crate::row::{Lock, LockType, Precondition, RowChange, RowState, StoredValue, TxnId, TxnRecord, WriteRecord};
use crate::timestamp::Timestamp;

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "nearly always a change, and a box would cost an allocation a row")]
pub enum Step<T> {
    /// Apply this change; once it is applied, the result is valid.
    Apply(RowChange, T),
    /// No change: the row already shows the result.
    Done(T),
}

/// Why a step fails. The caller handles each reason differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepError {
    /// Another transaction has locked the row.
    KeyIsLocked(Box<Lock>),
    /// The row has a version newer than the transaction's snapshot.
    WriteConflict(Box<WriteRecord>),
    /// The transaction is committed, at this timestamp.
    AlreadyCommitted(Timestamp),
    /// The transaction is rolled back.
    AlreadyRolledBack,
    /// A prewrite finds that a later write of its own transaction has already locked the row; or a
    /// commit finds its lock gone and a newer version, which leaves the transaction's status
    /// unknown.
    StaleRequest,
    /// The commit timestamp is too low: it must be at least this.
    CommitTsTooLow(Timestamp),
    /// The lock at the row names another row as its primary.
    PrimaryMismatch(Box<Lock>),
    /// The transaction is older than the safe point, so its records may have been deleted.
    BelowSafePoint(Timestamp),
    /// A timestamp of the request is above what the oracle has handed out.
    FutureTimestamp(Timestamp),
}

/// The final status of the transaction, if this row records it.
fn recorded_status(row: &RowState, txn: TxnId) -> Option<TxnRecord> {
    row.txn_record.or_else(|| {
        let write = row.write.as_ref().filter(|write| write.txn == txn)?;
        Some(TxnRecord::Committed(write.commit_ts))
    })
}

fn own_lock(row: &RowState, txn: TxnId) -> Option<&Lock> {
    row.lock.as_ref().filter(|lock| lock.txn == txn)
}

/// The precondition that the lock column is as it was read.
fn lock_unchanged(row: &RowState) -> Precondition {
    row.lock.as_ref().map_or(Precondition::LockAbsent, |lock| Precondition::LockUnchanged(lock.version()))
}

fn has_data_entry(lock: &Lock) -> bool {
    matches!(lock.lock_type, LockType::Put(StoredValue::OutOfLine))
}
