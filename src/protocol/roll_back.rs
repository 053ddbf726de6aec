//! Roll back: the lock goes, what it intended goes with it, and a record stays that says so.
//!
//! Rolled back is for ever. The record is written even where no lock is found, because the prewrite that would have put
//! it there may still be on its way; it will find the record and be refused. A committed row is never rolled back:
//! the caller is told the commit timestamp instead.
//!
//! Another transaction's lock on the row is left alone.

use super::{Step, StepError, has_data_entry, lock_unchanged, own_lock, recorded_status};
use crate::row::{CellChange, Precondition, Row, RowChange, RowKey, TxnId, TxnRecord};

/// A request to end a transaction on a row without a trace of what it intended.
#[derive(Clone, Debug)]
pub struct Rollback {
    /// The row.
    pub row: RowKey,
    /// Which transaction.
    pub txn: TxnId,
}

/// Rolls back in somebody else's name. The safe point may have passed the transaction meanwhile: then every lock of it is
/// gone, its records are being taken away, and none may be put back.
pub(super) fn rollback_by_resolver(row: &Row, request: &Rollback) -> Result<Step<()>, StepError> {
    let start_ts = request.txn.start_ts;
    if own_lock(row, request.txn).is_none() && start_ts < row.safe_point {
        return Ok(Step::Done(()));
    }
    let mut step = rollback(row, request)?;
    if let Step::Apply(change, ()) = &mut step
        && change.lock == CellChange::Keep
    {
        change.preconditions.push(Precondition::SafePointAtMost(start_ts));
    }
    Ok(step)
}

/// What takes an own lock away without leaving a record. Only for an owner that will not commit and none of whose requests
/// can still be under way, as where one process has the engine for itself.
pub fn release_lock(row: &Row, request: &Rollback) -> Option<RowChange> {
    let own = own_lock(row, request.txn)?;
    let mut change = RowChange::new(request.row.clone(), request.txn.start_ts);
    change.preconditions.push(Precondition::LockUnchanged(own.version()));
    change.lock = CellChange::Delete;
    if has_data_entry(own) {
        change.data.push((request.txn.start_ts, CellChange::Delete));
    }
    Some(change)
}

/// Rolls the transaction back on the row.
pub fn rollback(row: &Row, request: &Rollback) -> Result<Step<()>, StepError> {
    let txn = request.txn;
    let own = own_lock(row, txn);
    match (recorded_status(row, txn), own) {
        (Some(TxnRecord::Committed(commit_ts)), _) => return Err(StepError::AlreadyCommitted(commit_ts)),
        (Some(TxnRecord::RolledBack), None) => return Ok(Step::Done(())),
        _ => {}
    }
    let mut change = RowChange::new(request.row.clone(), txn.start_ts);
    change.preconditions.push(lock_unchanged(row));
    if row.txn_record.is_none() {
        change.preconditions.push(Precondition::NoTxnRecord(txn.start_ts));
        if !mutated!(NoRollbackRecord) {
            change.txn_record = CellChange::Put(TxnRecord::RolledBack);
        }
    }
    if let Some(own) = own {
        change.lock = CellChange::Delete;
        if has_data_entry(own) {
            change.data.push((txn.start_ts, CellChange::Delete));
        }
    }
    Ok(Step::Apply(change, ()))
}
