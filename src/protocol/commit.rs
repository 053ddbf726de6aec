//! Commit: the lock becomes a version.
//!
//! The commit of the primary is the commit point: one atomic change deletes the lock, writes the
//! version under the bare key, and stores a transaction record, `start_ts -> commit_ts`, at the
//! row.
//!
//! In Percolator a resolver finds the status in the write column. Here the write column has only
//! the newest version, which a later transaction may overwrite while secondaries are still locked.
//! So the status has a record of its own until the last lock is removed. If one change commits all
//! rows, no record is needed.
//!
//! On a secondary the function `commit` rolls forward, for the owner and for resolvers. The status
//! is final, so rolling forward is idempotent and may run concurrently.
//!
//! Without history, the value of the replaced version is deleted from the data column, if it is
//! there. An older reader still sees the value in its engine snapshot.

use super::{Step, StepError, own_lock, recorded_status};
use crate::row::{
    CellChange, LockType, Precondition, RowChange, RowKey, RowState, StoredValue, TxnId, TxnRecord, WriteRecord,
};
use crate::timestamp::Timestamp;

/// A request to turn a transaction's lock into a version.
#[derive(Clone, Debug)]
pub struct CommitRow {
    /// The row.
    pub row: RowKey,
    /// The transaction whose lock it is.
    pub txn: TxnId,
    /// The commit timestamp; on a secondary, that of the primary.
    pub commit_ts: Timestamp,
    /// Whether to store a transaction record. Set for a primary whose transaction has locks on
    /// other rows: their resolvers read the status at the primary.
    pub keep_txn_record: bool,
    /// Whether the replaced version is kept as history.
    pub keep_old_version: bool,
    /// On a shared engine no process has all commits in memory. So secondaries store a transaction
    /// record, too, and a lock-only commit is recorded in the write column.
    pub on_shared_engine: bool,
}

/// Commits the row; returns the timestamp at which it is committed.
pub fn commit(row: &RowState, request: &CommitRow) -> Result<Step<Timestamp>, StepError> {
    let txn = request.txn;
    let outcome = recorded_status(row, txn);
    if outcome == Some(TxnRecord::RolledBack) {
        return Err(StepError::AlreadyRolledBack);
    }
    let Some(lock) = own_lock(row, txn) else {
        return match outcome {
            Some(TxnRecord::Committed(commit_ts)) => Ok(Step::Done(commit_ts)),
            _ if txn.start_ts < row.safe_point => Err(StepError::BelowSafePoint(row.safe_point)),
            // Without a record the status is unknown: the newer version may have replaced this
            // transaction's version.
            _ if row.write.as_ref().is_some_and(|write| write.commit_ts > txn.start_ts) => Err(StepError::StaleRequest),
            _ => Err(StepError::AlreadyRolledBack),
        };
    };
    // If the row has a commit record of the transaction beside the lock, the record's timestamp
    // counts, not the request's.
    let commit_ts = match outcome {
        Some(TxnRecord::Committed(commit_ts)) => commit_ts,
        _ => request.commit_ts,
    };
    let earliest = lock.min_commit_ts.max(txn.start_ts.next());
    if commit_ts < earliest {
        return Err(StepError::CommitTsTooLow(earliest));
    }

    let mut change = RowChange::new(request.row.clone(), txn.start_ts);
    change.preconditions = [Precondition::LockUnchanged(lock.version())].into();
    change.lock = CellChange::Delete;
    if request.keep_txn_record || request.on_shared_engine {
        change.txn_record = CellChange::Put(TxnRecord::Committed(commit_ts));
    }
    let already_written = row.write.as_ref().is_some_and(|write| write.txn == txn);
    let value = match &lock.lock_type {
        LockType::Put(value) => Some(value.clone()),
        LockType::Delete => None,
        LockType::LockOnly => {
            if request.on_shared_engine {
                change.write = CellChange::Put(lock_only_record(row, txn, commit_ts));
                if row.write.as_ref().is_some_and(|write| write.value.is_none()) {
                    retire_old_version(row, request.keep_old_version, &mut change);
                }
            }
            return Ok(Step::Apply(change, commit_ts));
        }
    };
    if !already_written {
        change.write = CellChange::Put(WriteRecord { commit_ts, txn, value, lock_only_ts: None });
        retire_old_version(row, request.keep_old_version, &mut change);
    }
    Ok(Step::Apply(change, commit_ts))
}

/// Commits the primary at the request's timestamp or, if readers have pushed the lock above it, at
/// the highest push.
///
/// Every push is a timestamp that the oracle handed out after the lock was read, and that no other
/// transaction uses. So the owner may commit at it. If the owner took a new timestamp from the
/// oracle instead, readers could push the lock above it again and again.
pub fn commit_at_least(row: &RowState, request: &CommitRow) -> Result<Step<Timestamp>, StepError> {
    match commit(row, request) {
        Err(StepError::CommitTsTooLow(earliest)) => commit(row, &CommitRow { commit_ts: earliest, ..request.clone() }),
        answer => answer,
    }
}

/// What a lock-only commit stores in the write column: the row's version, unchanged except for its
/// `lock_only_ts`. For a row that is absent or deleted it is a tombstone at `commit_ts`.
fn lock_only_record(row: &RowState, txn: TxnId, commit_ts: Timestamp) -> WriteRecord {
    match &row.write {
        Some(write) if write.value.is_some() => WriteRecord { lock_only_ts: Some(commit_ts), ..write.clone() },
        _ => WriteRecord { commit_ts, txn, value: None, lock_only_ts: None },
    }
}

/// Moves the version that the change overwrites to the history or, if `keep` is not set, deletes
/// its out-of-line value.
pub(super) fn retire_old_version(row: &RowState, keep: bool, change: &mut RowChange) {
    let Some(replaced) = &row.write else { return };
    if keep {
        change.archived_version = Some(replaced.clone());
    } else if replaced.value == Some(StoredValue::OutOfLine) {
        change.data.push((replaced.txn.start_ts, CellChange::Delete));
    }
}
