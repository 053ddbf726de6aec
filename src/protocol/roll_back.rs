//! Roll back: the lock goes, what it intended goes with it, and a record stays that says so.
//!
//! Rolled back is for ever. The record is written even where no lock is found, because the prewrite that would have put
//! it there may still be on its way; it will find the record and be refused. A committed row is never rolled back:
//! the caller is told the commit timestamp instead.
//!
//! Another transaction's lock on the row is left alone.

use super::{Refusal, Step, has_data_entry, lock_as_read, lock_of, outcome_of};
use crate::row::{Edit, Guard, Row, RowChange, RowKey, Status, TxnId};

/// A request to end a transaction on a row without a trace of what it intended.
#[derive(Clone, Debug)]
pub struct RollBack {
    /// The row.
    pub row: RowKey,
    /// Which transaction.
    pub txn: TxnId,
}

/// Rolls back in somebody else's name. The safe point may have passed the transaction meanwhile: then every lock of it is
/// gone, its records are being taken away, and none may be put back.
pub(super) fn roll_back_for_another(row: &Row, request: &RollBack) -> Result<Step<()>, Refusal> {
    let start_ts = request.txn.start_ts;
    if lock_of(row, request.txn).is_none() && start_ts < row.safe_point {
        return Ok(Step::Done(()));
    }
    let mut step = roll_back(row, request)?;
    if let Step::Apply(change, ()) = &mut step
        && change.lock == Edit::Keep
    {
        change.guards.push(Guard::SafePointBelow(start_ts));
    }
    Ok(step)
}

/// What takes an own lock away without leaving a record. Only for an owner that will not commit and none of whose requests
/// can still be under way, as where one process has the engine for itself.
pub fn let_go(row: &Row, request: &RollBack) -> Option<RowChange> {
    let own = lock_of(row, request.txn)?;
    let mut change = RowChange::new(request.row.clone(), request.txn.start_ts);
    change.guards.push(Guard::LockIs(own.stamp()));
    change.lock = Edit::Delete;
    if has_data_entry(own) {
        change.data.push((request.txn.start_ts, Edit::Delete));
    }
    Some(change)
}

/// Rolls the transaction back on the row.
pub fn roll_back(row: &Row, request: &RollBack) -> Result<Step<()>, Refusal> {
    let txn = request.txn;
    let own = lock_of(row, txn);
    match (outcome_of(row, txn), own) {
        (Some(Status::Committed(commit_ts)), _) => return Err(Refusal::Committed(commit_ts)),
        (Some(Status::RolledBack), None) => return Ok(Step::Done(())),
        _ => {}
    }
    let mut change = RowChange::new(request.row.clone(), txn.start_ts);
    change.guards.push(lock_as_read(row));
    if row.status.is_none() {
        change.guards.push(Guard::NoRecordOf(txn.start_ts));
        if !mutated!(NoRollbackRecord) {
            change.status = Edit::Put(Status::RolledBack);
        }
    }
    if let Some(own) = own {
        change.lock = Edit::Delete;
        if has_data_entry(own) {
            change.data.push((txn.start_ts, Edit::Delete));
        }
    }
    Ok(Step::Apply(change, ()))
}
