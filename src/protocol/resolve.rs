//! Resolve: carry out the primary's verdict on a lock that somebody left behind.
//!
//! The verdict is asked for first ([`check_txn_status`](super::check_txn_status)) and cannot change any more, so resolving may be
//! done by anyone who meets the lock, in a race with others, and again after a crash in the middle of it.

use super::roll_back::rollback_by_resolver;
use super::{CommitRow, Rollback, Step, StepError, TransactionStatus, commit, own_lock};
use crate::row::{Row, RowKey, TxnId};

/// A request to carry out the verdict on one row.
#[derive(Clone, Debug)]
pub struct Resolve {
    /// The row with the lock.
    pub row: RowKey,
    /// Whose lock it is.
    pub txn: TxnId,
    /// What the primary says.
    pub status: TransactionStatus,
    /// Whether the replaced version is kept as history.
    pub keep_old_version: bool,
    /// Whether holding a row leaves a note, as where several processes share the engine.
    pub record_lock_only: bool,
}

/// Rolls the row forward or back; a pending transaction is left alone.
pub fn resolve(row: &Row, request: &Resolve) -> Result<Step<()>, StepError> {
    let (key, txn) = (request.row.clone(), request.txn);
    match request.status {
        TransactionStatus::Pending => Ok(Step::Done(())),
        TransactionStatus::RolledBack => rollback_by_resolver(row, &Rollback { row: key, txn }),
        // Somebody else was here first, and the row may have gone on since.
        TransactionStatus::Committed(_) if own_lock(row, txn).is_none() => Ok(Step::Done(())),
        TransactionStatus::Committed(commit_ts) => {
            let &Resolve { keep_old_version: keep_replaced, record_lock_only: record_holds, .. } = request;
            let request = CommitRow {
                row: key,
                txn,
                commit_ts,
                keep_txn_record: false,
                keep_old_version: keep_replaced,
                record_lock_only: record_holds,
            };
            Ok(match commit(row, &request)? {
                Step::Apply(change, _) => Step::Apply(change, ()),
                Step::Done(_) => Step::Done(()),
            })
        }
    }
}
