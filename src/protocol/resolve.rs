//! Resolve: carry out the primary's verdict on a lock that somebody left behind.
//!
//! The verdict is asked for first ([`check_status`](super::check_status)) and cannot change any more, so resolving may be
//! done by anyone who meets the lock, in a race with others, and again after a crash in the middle of it.

use super::roll_back::roll_back_for_another;
use super::{Commit, CommitPoint, Refusal, RollBack, Step, commit, lock_of};
use crate::row::{Row, RowKey, TxnId};

/// A request to carry out the verdict on one row.
#[derive(Clone, Debug)]
pub struct Resolve {
    /// The row with the lock.
    pub row: RowKey,
    /// Whose lock it is.
    pub txn: TxnId,
    /// What the primary says.
    pub verdict: CommitPoint,
    /// Whether the replaced version is kept as history.
    pub keep_replaced: bool,
    /// Whether holding a row leaves a note, as where several processes share the engine.
    pub record_holds: bool,
}

/// Rolls the row forward or back; a pending transaction is left alone.
pub fn resolve(row: &Row, request: &Resolve) -> Result<Step<()>, Refusal> {
    let (key, txn) = (request.row.clone(), request.txn);
    match request.verdict {
        CommitPoint::Pending => Ok(Step::Done(())),
        CommitPoint::RolledBack => roll_back_for_another(row, &RollBack { row: key, txn }),
        // Somebody else was here first, and the row may have gone on since.
        CommitPoint::Committed(_) if lock_of(row, txn).is_none() => Ok(Step::Done(())),
        CommitPoint::Committed(commit_ts) => {
            let &Resolve { keep_replaced, record_holds, .. } = request;
            let request = Commit { row: key, txn, commit_ts, keep_status: false, keep_replaced, record_holds };
            Ok(match commit(row, &request)? {
                Step::Apply(change, _) => Step::Apply(change, ()),
                Step::Done(_) => Step::Done(()),
            })
        }
    }
}
