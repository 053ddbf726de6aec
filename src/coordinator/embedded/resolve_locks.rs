//! Applies the final status of a transaction to its locks, many in one batch.
//!
//! When the resolution begins, the status is final: it is at the primary or in the [table of
//! fates](crate::pipeline::Fate), or the owner has given its commit up. So the resolution is
//! idempotent, and several callers may resolve the same locks concurrently: a committer resolves
//! its secondaries, a writer the locks that block it, and the background worker all others.

use super::rows::Rows;
use crate::error::Result;
use crate::pipeline::{Rejection, SubmissionKind, SubmitResult};
use crate::protocol::{Rollback, TxnStatus, delete_txn_record, release_lock};
use crate::row::{Lock, RowChange, RowKey, RowState, TxnId};
use crate::timestamp::Timestamp;

/// Resolves locks of one transaction, in batches as large as the engine allows. Locks that another
/// caller has resolved are skipped. `finishes`: these are the last locks of the transaction, so the
/// last batch also deletes the transaction record.
pub fn resolve_locks(
    rows: &Rows,
    txn: TxnId,
    primary: &RowKey,
    locks: &[(RowKey, Lock)],
    status: TxnStatus,
    finishes: bool,
) -> Result<()> {
    let mut locks = locks;
    while let Some((some, others)) = locks.split_at_checked(rows.batch_rows_max())
        && !others.is_empty()
    {
        resolve_some(rows, txn, primary, some, status, false)?;
        locks = others;
    }
    resolve_some(rows, txn, primary, locks, status, finishes)
}

/// Resolves all of `locks`, whose number must fit one batch. If the replaced versions make the
/// batch too large, resolves the locks in several batches.
fn resolve_some(
    rows: &Rows,
    txn: TxnId,
    primary: &RowKey,
    locks: &[(RowKey, Lock)],
    status: TxnStatus,
    finishes: bool,
) -> Result<()> {
    let mut left: Vec<&(RowKey, Lock)> = locks.iter().collect();
    loop {
        let result = match status {
            TxnStatus::Committed(commit_ts) if finishes || !left.is_empty() => {
                let record = finishes.then(|| delete_txn_record(primary.clone(), txn.start_ts));
                roll_forward(rows, txn, &left, commit_ts, record)?
            }
            TxnStatus::RolledBack if !left.is_empty() => release_locks(rows, txn, &left)?,
            _ => return Ok(()),
        };
        let unlocked = match result {
            BatchResult::Resolved(count) if count == left.len() => return Ok(()),
            BatchResult::Resolved(count) => {
                left.drain(..count);
                continue;
            }
            BatchResult::Unlocked(row) => row,
        };
        // Another caller has resolved the lock on row `unlocked`, and may be resolving the others.
        let snapshot = rows.engine().snapshot()?;
        let mut still_locked = Vec::with_capacity(left.len());
        for locked in left {
            if locked.0 != unlocked && snapshot.lock(&locked.0)?.is_some_and(|lock| lock.txn == txn) {
                still_locked.push(locked);
            }
        }
        left = still_locked;
    }
}

/// The result of one batch.
pub enum BatchResult {
    /// Locks are resolved from the first on, as many as this; the others did not fit the batch.
    Resolved(usize),
    /// Nothing was changed: this row is not locked any more.
    Unlocked(RowKey),
}

/// Turns locks of a committed transaction into versions, as many as fit one batch. The batch with
/// the last lock also has `record`, the change that deletes the transaction record.
fn roll_forward(
    rows: &Rows,
    txn: TxnId,
    locks: &[&(RowKey, Lock)],
    commit_ts: Timestamp,
    record: Option<RowChange>,
) -> Result<BatchResult> {
    let change = |row: &RowKey, lock: &Lock| rows.commit_change(txn, row, lock, commit_ts, false);
    let mut changes = rows.fill_batch(locks.iter().copied(), change)?;
    let count = changes.len();
    let record = record.filter(|_| count == locks.len());
    let kind = SubmissionKind::RollForward { commit_ts, finishes: record.is_some() };
    changes.extend(record);
    submit_resolution(rows, txn, changes, count, kind)
}

/// Removes locks of a rolled-back transaction in one batch. Stores no rollback record: without any
/// record the primary's row shows *rolled back* as well.
pub fn release_locks(rows: &Rows, txn: TxnId, locks: &[&(RowKey, Lock)]) -> Result<BatchResult> {
    let change = |(row, lock): &&(RowKey, Lock)| -> Option<RowChange> {
        let as_locked = RowState { lock: Some(lock.clone()), ..RowState::default() };
        release_lock(&as_locked, &Rollback { row: row.clone(), txn })
    };
    let changes = locks.iter().filter_map(change).collect();
    submit_resolution(rows, txn, changes, locks.len(), SubmissionKind::NoCommit)
}

fn submit_resolution(
    rows: &Rows,
    txn: TxnId,
    changes: Vec<RowChange>,
    count: usize,
    kind: SubmissionKind,
) -> Result<BatchResult> {
    match rows.pipeline.submit_internal(changes, kind)? {
        SubmitResult::Applied(_) => Ok(BatchResult::Resolved(count)),
        SubmitResult::Rejected(Rejection::LockConflict(row, _) | Rejection::PreconditionFailed(row, _)) => {
            Ok(BatchResult::Unlocked(row))
        }
        SubmitResult::Rejected(rejection) => Err(rows.rejection_error(rejection, txn, txn.start_ts)),
    }
}
