//! Reading a transaction's status from its primary.

use crate::error::Result;
use crate::protocol::{TxnStatus, txn_status_or_rolled_back};
use crate::read_view::ReadView;
use crate::row::Lock;
use crate::timestamp::Timestamp;

/// The commit timestamp of a lock's transaction; `None` if the transaction is not committed at or
/// below the view's timestamp.
///
/// A view has every commit at or below its timestamp. So the primary's row in the same view is
/// conclusive, whatever has been written since.
pub fn commit_ts_from_primary(view: &ReadView, lock: &Lock) -> Result<Option<Timestamp>> {
    let primary = view.snapshot.row(&lock.primary, lock.txn.start_ts)?;
    Ok(match txn_status_or_rolled_back(&primary, lock.txn) {
        // A historical view has the engine snapshot of a newer view, so the snapshot may show a
        // commit above the historical view's timestamp.
        TxnStatus::Committed(commit_ts) => Some(commit_ts).filter(|ts| *ts <= view.read_ts),
        TxnStatus::Pending | TxnStatus::RolledBack => None,
    })
}
