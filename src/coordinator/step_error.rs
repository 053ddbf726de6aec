//! Converts the failure of a protocol step into the error that the user gets.

use crate::error::{Conflict, ConflictReason, Error, ErrorKind};
use crate::protocol::StepError;
use crate::row::{RowKey, TxnId};
use crate::timestamp::Timestamp;

/// The error for a step that failed on `row`. It is a conflict not only if the row is locked or has
/// a newer version, but also if the transaction has already ended or the request is stale: in all
/// these cases a new attempt may succeed.
pub fn step_error(row: &RowKey, error: StepError, read_ts: Timestamp) -> Error {
    match error {
        StepError::KeyIsLocked(lock) => conflict(row, ConflictReason::Locked, Some(lock.txn), read_ts),
        StepError::WriteConflict(write) => {
            conflict(row, ConflictReason::NewerVersion(write.last_commit_ts()), Some(write.txn), read_ts)
        }
        StepError::AlreadyRolledBack | StepError::StaleRequest | StepError::AlreadyCommitted(_) => {
            conflict(row, ConflictReason::RolledBackByOther, None, read_ts)
        }
        StepError::CommitTsTooLow(earliest) => ErrorKind::Corruption(format!(
            "row {row:?}: the transaction is committed below {earliest:#}, its lock's minimum commit timestamp"
        ))
        .into(),
        StepError::BelowSafePoint(ts) => {
            ErrorKind::SnapshotTooOld(format!("the transaction is older than the safe point {ts:#}")).into()
        }
        StepError::FutureTimestamp(ts) => {
            ErrorKind::InvalidArgument(format!("timestamp {ts:#} is in the future")).into()
        }
        StepError::PrimaryMismatch(lock) => ErrorKind::Corruption(format!(
            "row {row:?}: a lock names it as its primary, its own lock names {:?}",
            lock.primary
        ))
        .into(),
    }
}

/// A conflict on the row. `other`: the conflicting transaction, if the row shows it.
pub fn conflict(row: &RowKey, reason: ConflictReason, other: Option<TxnId>, read_ts: Timestamp) -> Error {
    ErrorKind::Conflict(Box::new(Conflict {
        row: row.clone(),
        keyspace: None,
        reason,
        conflicting_label: None,
        conflicting_owner: other.map(|txn| txn.owner),
        conflicting_start_ts: other.map(|txn| txn.start_ts),
        read_ts,
    }))
    .into()
}
