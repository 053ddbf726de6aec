//! What prevents a commit: a lock that can be resolved, or a conflict.
//!
//! A row rejects a commit if it has a newer version or a lock. A newer version is a conflict.
//! The lock of a running transaction is a conflict as well: row locks are try-locks, and a commit
//! never waits for a row lock. The lock of a finished transaction is resolved, and the commit is
//! submitted again.

use super::resolve::{LockResolution, resolve_lock};
use super::resolve_locks::resolve_locks;
use super::rows::Rows;
use crate::error::Result;
use crate::pipeline::Rejection;
use crate::protocol::TxnStatus;
use crate::row::{RowKey, TxnId};
use crate::timestamp::Timestamp;

/// Resolves the lock that has rejected the batch with the rows `keys`, or returns the conflict.
///
/// If the engine has found the lock, its transaction is a large one or of an earlier incarnation,
/// and may have locked many of `keys`. Each lock would reject the batch again, so those on the next
/// rows of `keys` are resolved as well. If the leader has the lock in memory, only this lock is
/// resolved.
pub fn resolve_blockers<'a>(
    rows: &Rows,
    keys: impl Iterator<Item = &'a RowKey>,
    rejection: Rejection,
    txn: TxnId,
    read_ts: Timestamp,
) -> Result<()> {
    let locked = match &rejection {
        Rejection::PreconditionFailed(row, found) => found.lock.clone().map(|lock| (row.clone(), lock)),
        _ => None,
    };
    let (Some(status), Some((row, lock))) = (resolve_blocker(rows, rejection, txn, read_ts)?, locked) else {
        return Ok(());
    };
    let snapshot = rows.engine().snapshot()?;
    let mut same = Vec::new();
    for next in keys.skip_while(|next| **next != row).skip(1).take(rows.batch_rows_max()) {
        let found = snapshot.lock(next)?.filter(|found| (found.txn, &found.primary) == (lock.txn, &lock.primary));
        same.extend(found.map(|found| (next.clone(), found)));
    }
    resolve_locks(rows, lock.txn, &lock.primary, &same, status, false)
}

/// Resolves the lock that caused the rejection and returns its transaction's status, or returns the
/// conflict. `None`: the row does not have that lock any more.
pub fn resolve_blocker(rows: &Rows, rejection: Rejection, txn: TxnId, read_ts: Timestamp) -> Result<Option<TxnStatus>> {
    let (row, lock) = match &rejection {
        Rejection::LockConflict(row, Some(version)) => {
            let found = rows.engine().read_row(row, txn.start_ts)?.lock;
            match found {
                Some(lock) if lock.txn == version.txn => (row, lock),
                _ => return Ok(None),
            }
        }
        Rejection::PreconditionFailed(row, found) => match &found.lock {
            Some(lock) if lock.txn != txn => (row, lock.clone()),
            _ if found.write.as_ref().is_some_and(|write| write.last_commit_ts() > read_ts) => {
                return Err(rows.rejection_error(rejection, txn, read_ts));
            }
            _ => return Ok(None),
        },
        _ => return Err(rows.rejection_error(rejection, txn, read_ts)),
    };
    match resolve_lock(rows, row, &lock)? {
        LockResolution::OwnerAlive => Err(rows.rejection_error(rejection, txn, read_ts)),
        LockResolution::Resolved(status) => Ok(Some(status)),
        LockResolution::AlreadyGone => Ok(None),
    }
}
