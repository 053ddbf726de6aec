//! Percolator's steps as decisions over one row at a time.
//!
//! Every step is a plain function: the row as read and a request go in, a [`Step`] or a [`StepError`] comes out. There is no
//! I/O here, no clock and no randomness, so the store, the simulator, a model checker and a human with a pencil run
//! the same code.
//!
//! A transaction that writes rows `a` (its primary) and `b` goes through the columns like this:
//!
//! ```text
//!                 row a (primary)                       row b (secondary)
//!            lock        write      status         lock          write
//! prewrite   T, primary a                          T, primary a
//! commit                 put @c     T: committed @c T, primary a               <- commit point: atomic on row a
//! commit                 put @c     T: committed @c               put @c
//! clean-up               put @c                                   put @c
//! ```
//!
//! Up to the commit point everything can be rolled back, from there on everything must be rolled forward, and whoever
//! finds `b` locked can tell which by asking row `a`. A transaction whose owner died is finished that way by whoever
//! meets its locks.
//!
//! A step returns its change together with the [`Precondition`]s under which the decision holds. The
//! caller hands both to the engine. When a guard fails, the engine answers with the row as it found it, and the caller
//! asks the same step again with that row. So a first guess costs nothing (`Row::default()`: an untouched row),
//! repeated and late requests get the answer that the row's columns dictate, and no step needs to know whether it is the
//! first to run.

mod collect;
mod commit;
mod heartbeat;
mod one_phase;
mod prewrite;
mod resolve;
mod roll_back;
mod status;

pub use collect::{GcRequest, OldVersion, delete_txn_record, gc_row};
pub use commit::{CommitRow, commit, commit_at_least};
pub use heartbeat::{Heartbeat, heartbeat};
pub use one_phase::{OnePhase, one_phase};
pub use prewrite::{Prewrite, PrewriteResult, prewrite};
pub use resolve::{Resolve, resolve};
pub use roll_back::{Rollback, release_lock, rollback};
pub use status::{
    CheckTxnStatus, OwnerLiveness, TransactionStatus, check_txn_status, txn_status, txn_status_or_rolled_back,
};

use crate::row::{Lock, LockType, Precondition, Row, RowChange, TxnId, TxnRecord, Value, WriteRecord};
use crate::timestamp::Timestamp;

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "nearly always a change, and a box would cost an allocation a row")]
pub enum Step<T> {
    /// Apply this change; once it is applied, the answer holds.
    Apply(RowChange, T),
    /// Nothing: the row already says so.
    Done(T),
}

/// Why a step cannot be made. Each tells the caller something else to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepError {
    /// Another transaction has locked the row.
    KeyIsLocked(Box<Lock>),
    /// A version newer than the transaction's snapshot is there.
    WriteConflict(Box<WriteRecord>),
    /// The transaction is committed, at this timestamp.
    AlreadyCommitted(Timestamp),
    /// The transaction is rolled back.
    AlreadyRolledBack,
    /// The request is older than what the row already has from the same transaction.
    StaleRequest,
    /// The commit timestamp is too low: it must be at least this.
    CommitTsTooLow(Timestamp),
    /// The lock that was asked about says that another row is its primary.
    PrimaryMismatch(Box<Lock>),
    /// The transaction is older than the safe point, so the records that would tell its fate may be gone.
    BelowSafePoint(Timestamp),
    /// A timestamp of the request lies beyond what the oracle has handed out.
    FutureTimestamp(Timestamp),
}

/// How the transaction ended on this row, if it did.
fn recorded_status(row: &Row, txn: TxnId) -> Option<TxnRecord> {
    row.txn_record.or_else(|| {
        let write = row.write.as_ref().filter(|write| write.txn == txn)?;
        Some(TxnRecord::Committed(write.commit_ts))
    })
}

fn own_lock(row: &Row, txn: TxnId) -> Option<&Lock> {
    row.lock.as_ref().filter(|lock| lock.txn == txn)
}

/// The guard that pins the lock column as it was read.
fn lock_unchanged(row: &Row) -> Precondition {
    row.lock.as_ref().map_or(Precondition::LockAbsent, |lock| Precondition::LockUnchanged(lock.version()))
}

fn has_data_entry(lock: &Lock) -> bool {
    matches!(lock.lock_type, LockType::Put(Value::OutOfLine))
}
