//! Roll back: the lock and its value are deleted, and a rollback record is stored.
//!
//! A rollback is permanent. The record is written even if there is no lock, because the
//! transaction's prewrite may still be in flight: when the prewrite arrives, it finds the record
//! and fails. A committed row is never rolled back; the caller gets the commit timestamp instead.
//!
//! Another transaction's lock on the row stays.

use super::{Step, StepError, has_data_entry, lock_unchanged, own_lock, recorded_status};
use crate::row::{CellChange, Precondition, RowChange, RowKey, RowState, TxnId, TxnRecord};

/// A request to roll a transaction back on one row.
#[derive(Clone, Debug)]
pub struct Rollback {
    /// The row.
    pub row: RowKey,
    /// The transaction.
    pub txn: TxnId,
}

/// Rolls back for a resolver. Without a lock, this does nothing if the safe point has passed the
/// transaction: all its locks are resolved and its records are being deleted, so no new record may
/// be written.
pub(super) fn rollback_by_resolver(row: &RowState, request: &Rollback) -> Result<Step<()>, StepError> {
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

/// The change that deletes the transaction's lock and leaves no record. The caller must be certain
/// that the transaction is not and will not be committed, and has no request in flight; only on an
/// exclusive engine can a caller be certain.
pub fn release_lock(row: &RowState, request: &Rollback) -> Option<RowChange> {
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
pub fn rollback(row: &RowState, request: &Rollback) -> Result<Step<()>, StepError> {
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
        change.txn_record = CellChange::Put(TxnRecord::RolledBack);
    }
    if let Some(own) = own {
        change.lock = CellChange::Delete;
        if has_data_entry(own) {
            change.data.push((txn.start_ts, CellChange::Delete));
        }
    }
    Ok(Step::Apply(change, ()))
}
