//! Reading a transaction's status from its primary.

use crate::error::Result;
use crate::protocol::{TransactionStatus, txn_status_or_rolled_back};
use crate::read_view::ReadView;
use crate::row::Lock;
use crate::timestamp::Timestamp;

/// The commit timestamp of a lock's transaction, if the view shows that it is committed. A view holds
/// every commit at or below its timestamp, so the primary's row in the same view is the answer,
/// whatever has happened since.
pub fn commit_ts_from_primary(view: &ReadView, lock: &Lock) -> Result<Option<Timestamp>> {
    let primary = view.snapshot.row(&lock.primary, lock.txn.start_ts)?;
    Ok(match txn_status_or_rolled_back(&primary, lock.txn) {
        // A historical view has locks of later commits, too.
        TransactionStatus::Committed(commit_ts) => {
            Some(commit_ts).filter(|ts| *ts <= view.read_ts || mutated!(HistoryShowsLaterLocks))
        }
        TransactionStatus::Pending | TransactionStatus::RolledBack => None,
    })
}
