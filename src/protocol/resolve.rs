//! Resolve: bring a lock of a finished transaction to the transaction's status.
//!
//! The status is read first ([`check_txn_status`](super::check_txn_status())) and is final. So any
//! reader or writer that finds the lock may resolve it, concurrently with others, and again after a
//! crash in the middle.

use super::rollback::rollback_by_resolver;
use super::{CommitRow, Rollback, Step, StepError, TxnStatus, commit, own_lock};
use crate::row::{RowKey, RowState, TxnId};

/// A request to resolve one row's lock.
#[derive(Clone, Debug)]
pub struct Resolve {
    /// The row with the lock.
    pub row: RowKey,
    /// The transaction whose lock it is.
    pub txn: TxnId,
    /// The transaction's status, as its primary shows it.
    pub status: TxnStatus,
    /// Whether the replaced version is kept as history.
    pub keep_old_version: bool,
    /// See [`CommitRow::on_shared_engine`].
    pub on_shared_engine: bool,
}

/// Rolls the row forward or back; does nothing while the transaction is pending.
pub fn resolve(row: &RowState, request: &Resolve) -> Result<Step<()>, StepError> {
    let (key, txn) = (request.row.clone(), request.txn);
    match request.status {
        TxnStatus::Pending => Ok(Step::Done(())),
        TxnStatus::RolledBack => rollback_by_resolver(row, &Rollback { row: key, txn }),
        // Another resolver was first. `commit` is not called: if a later transaction has written
        // the row since, it would return `StaleRequest`.
        TxnStatus::Committed(_) if own_lock(row, txn).is_none() => Ok(Step::Done(())),
        TxnStatus::Committed(commit_ts) => {
            let &Resolve { keep_old_version, on_shared_engine, .. } = request;
            let request =
                CommitRow { row: key, txn, commit_ts, keep_txn_record: false, keep_old_version, on_shared_engine };
            Ok(match commit(row, &request)? {
                Step::Apply(change, _) => Step::Apply(change, ()),
                Step::Done(_) => Step::Done(()),
            })
        }
    }
}
