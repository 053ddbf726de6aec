//! Applies the final status of a transaction to its locks, many in one batch.
//!
//! The status is recorded before, at the primary or in the [table of
//! fates](crate::pipeline::Fate). So this is idempotent, and several callers may resolve the same
//! locks concurrently: a commit its secondaries, a writer the locks that block it, the background
//! worker the others.

use super::rows::Rows;
use crate::error::{ErrorKind, Result};
use crate::pipeline::{Rejection, SubmissionKind, SubmitResult};
use crate::protocol::{Rollback, TxnStatus, delete_txn_record, release_lock};
use crate::row::{Lock, RowChange, RowKey, RowState, TxnId};
use crate::timestamp::Timestamp;

/// Resolves locks of one transaction, in batches as large as the engine allows. Locks that another
/// caller has resolved are skipped. `finishes`: these are the last locks of the transaction, so the
/// last batch also deletes its record.
pub fn resolve_locks(
    rows: &Rows,
    txn: TxnId,
    primary: &RowKey,
    locks: &[(RowKey, Lock)],
    status: TxnStatus,
    finishes: bool,
) -> Result<()> {
    let mut locks = locks;
    while let Some((some, others)) = locks.split_at_checked(rows.group_rows_max())
        && !others.is_empty()
    {
        resolve_part(rows, txn, primary, some, status, false)?;
        locks = others;
    }
    resolve_part(rows, txn, primary, locks, status, finishes)
}

/// Resolves the locks in one batch, or in halves if the versions that it replaces make it too large.
fn resolve_part(
    rows: &Rows,
    txn: TxnId,
    primary: &RowKey,
    locks: &[(RowKey, Lock)],
    status: TxnStatus,
    finishes: bool,
) -> Result<()> {
    match resolve_batch(rows, txn, primary, locks, status, finishes) {
        Err(why) if matches!(why.kind(), ErrorKind::TooLarge { .. }) && locks.len() > 1 => {
            let (some, others) = locks.split_at(locks.len() / 2);
            resolve_part(rows, txn, primary, some, status, false)?;
            resolve_part(rows, txn, primary, others, status, finishes)
        }
        resolved => resolved,
    }
}

fn resolve_batch(
    rows: &Rows,
    txn: TxnId,
    primary: &RowKey,
    locks: &[(RowKey, Lock)],
    status: TxnStatus,
    finishes: bool,
) -> Result<()> {
    let mut left: Vec<&(RowKey, Lock)> = locks.iter().collect();
    loop {
        let done = match status {
            TxnStatus::Committed(commit_ts) if finishes || !left.is_empty() => {
                let record = finishes.then(|| delete_txn_record(primary.clone(), txn.start_ts));
                roll_forward(rows, txn, &left, commit_ts, record)?
            }
            TxnStatus::RolledBack if !left.is_empty() => release_locks(rows, txn, &left)?,
            _ => None,
        };
        let Some(done) = done else { return Ok(()) };
        // Another caller has resolved this lock, and may be resolving the others.
        let snapshot = rows.engine().snapshot()?;
        let mut still_locked = Vec::with_capacity(left.len());
        for locked in left {
            if locked.0 != done && snapshot.lock(&locked.0)?.is_some_and(|lock| lock.txn == txn) {
                still_locked.push(locked);
            }
        }
        left = still_locked;
    }
}

/// Turns locks of a committed transaction into versions, in one batch with the change that deletes
/// the `record`. If a row is not locked any more, changes nothing and returns that row.
fn roll_forward(
    rows: &Rows,
    txn: TxnId,
    locks: &[&(RowKey, Lock)],
    commit_ts: Timestamp,
    record: Option<RowChange>,
) -> Result<Option<RowKey>> {
    let kind = SubmissionKind::RollForward { commit_ts, finishes: record.is_some() };
    let mut changes = Vec::with_capacity(locks.len() + 1);
    for (row, lock) in locks {
        changes.push(rows.commit_change(txn, row, lock, commit_ts, false)?);
    }
    changes.extend(record);
    submit_resolution(rows, txn, changes, kind)
}

/// Removes locks of a rolled-back transaction in one batch. If a row is not locked any more,
/// changes nothing and returns that row. Stores no rollback record: the status follows without it.
pub fn release_locks(rows: &Rows, txn: TxnId, locks: &[&(RowKey, Lock)]) -> Result<Option<RowKey>> {
    let change = |(row, lock): &&(RowKey, Lock)| -> Option<RowChange> {
        let as_locked = RowState { lock: Some(lock.clone()), ..RowState::default() };
        release_lock(&as_locked, &Rollback { row: row.clone(), txn })
    };
    submit_resolution(rows, txn, locks.iter().filter_map(change).collect(), SubmissionKind::NoCommit)
}

fn submit_resolution(rows: &Rows, txn: TxnId, changes: Vec<RowChange>, kind: SubmissionKind) -> Result<Option<RowKey>> {
    match rows.pipeline.submit_internal(changes, kind)? {
        SubmitResult::Applied(_) => Ok(None),
        SubmitResult::Rejected(Rejection::LockConflict(row, _) | Rejection::PreconditionFailed(row, _)) => {
            Ok(Some(row))
        }
        SubmitResult::Rejected(rejection) => Err(rows.rejection_error(rejection, txn, txn.start_ts)),
    }
}
