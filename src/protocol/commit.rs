//! Commit: the lock becomes a version.
//!
//! On the primary this is the commit point. In one atomic change the lock goes, the version appears under the bare key,
//! and a status record keeps `start_ts -> commit_ts` at the row. The status record is what Percolator's write column is
//! to a resolver: here the write column holds only the newest version, and a later transaction may overwrite the primary
//! while secondaries are still locked, so the commit point needs a place of its own until the last lock is gone. Where
//! the same change commits all rows there is no such while, and no status.
//!
//! On a secondary the same function rolls forward, whether its owner calls it or a resolver: the verdict has been
//! given and any number of parties may carry it out, at any time, twice.
//!
//! A replaced version whose value lies in the data column takes that entry with it, unless history is kept. A reader that
//! still needs it has an engine view of its own.

use smallvec::smallvec;

use super::{Step, StepError, own_lock, recorded_status};
use crate::row::{CellChange, LockType, Precondition, Row, RowChange, RowKey, TxnId, TxnRecord, Value, WriteRecord};
use crate::timestamp::Timestamp;

/// A request to turn a transaction's lock into a version.
#[derive(Clone, Debug)]
pub struct CommitRow {
    /// The row.
    pub row: RowKey,
    /// Whose lock it is.
    pub txn: TxnId,
    /// When the transaction commits; on a secondary, the timestamp that the primary has.
    pub commit_ts: Timestamp,
    /// Whether the row is the primary of a transaction of which other rows stay locked, whose resolvers will ask here.
    pub keep_txn_record: bool,
    /// Whether the replaced version is kept as history.
    pub keep_old_version: bool,
    /// Whether every row keeps its status, and one that was held and not changed shows that it was: where several processes
    /// share the engine nobody remembers it.
    pub record_lock_only: bool,
}

/// Commits the row; the answer is the timestamp at which it is committed.
pub fn commit(row: &Row, request: &CommitRow) -> Result<Step<Timestamp>, StepError> {
    let txn = request.txn;
    let outcome = recorded_status(row, txn);
    if outcome == Some(TxnRecord::RolledBack) {
        return Err(StepError::AlreadyRolledBack);
    }
    let Some(lock) = own_lock(row, txn) else {
        return match outcome {
            Some(TxnRecord::Committed(commit_ts)) => Ok(Step::Done(commit_ts)),
            _ if txn.start_ts < row.safe_point => Err(StepError::BelowSafePoint(row.safe_point)),
            // Without a status a row that has moved on cannot tell.
            _ if row.write.as_ref().is_some_and(|write| write.commit_ts > txn.start_ts) => Err(StepError::StaleRequest),
            _ => Err(StepError::AlreadyRolledBack),
        };
    };
    // A lock beside its own commit record is a leftover; the record has the last word on the timestamp.
    let commit_ts = match outcome {
        Some(TxnRecord::Committed(commit_ts)) => commit_ts,
        _ => request.commit_ts,
    };
    let earliest = lock.min_commit_ts.max(txn.start_ts.next());
    if commit_ts < earliest {
        return Err(StepError::CommitTsTooLow(earliest));
    }

    let mut change = RowChange::new(request.row.clone(), txn.start_ts);
    change.preconditions = smallvec![Precondition::LockUnchanged(lock.version())];
    change.lock = CellChange::Delete;
    if request.keep_txn_record || request.record_lock_only {
        change.txn_record = CellChange::Put(TxnRecord::Committed(commit_ts));
    }
    let already_written = row.write.as_ref().is_some_and(|write| write.txn == txn);
    let value = match &lock.lock_type {
        LockType::Put(value) => Some(value.clone()),
        LockType::Delete => None,
        LockType::LockOnly => {
            if request.record_lock_only {
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

/// Commits the primary at the request's timestamp or, if readers have pushed the lock above it, at the newest push.
///
/// Every push is a timestamp that was asked for after the lock was seen and that nobody else uses, so the owner may take it
/// for its own. Asking the oracle again instead would let a stream of new readers keep the owner from committing for ever.
pub fn commit_at_least(row: &Row, request: &CommitRow) -> Result<Step<Timestamp>, StepError> {
    match commit(row, request) {
        Err(StepError::CommitTsTooLow(earliest)) => commit(row, &CommitRow { commit_ts: earliest, ..request.clone() }),
        answer => answer,
    }
}

/// The row's version with a note that it was held; a row that is absent or deleted is deleted once more.
fn lock_only_record(row: &Row, txn: TxnId, commit_ts: Timestamp) -> WriteRecord {
    match &row.write {
        Some(write) if write.value.is_some() => WriteRecord { lock_only_ts: Some(commit_ts), ..write.clone() },
        _ => WriteRecord { commit_ts, txn, value: None, lock_only_ts: None },
    }
}

/// What becomes of the version that the change overwrites.
pub(super) fn retire_old_version(row: &Row, keep: bool, change: &mut RowChange) {
    let Some(replaced) = &row.write else { return };
    if keep {
        change.archived_version = Some(replaced.clone());
    } else if replaced.value == Some(Value::OutOfLine) {
        change.data.push((replaced.txn.start_ts, CellChange::Delete));
    }
}
