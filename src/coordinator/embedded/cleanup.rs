//! Lock cleanup: the locks of a finished large transaction become versions, or are released, page
//! by page in the background.
//!
//! Without this background work, a commit of millions of rows would block until each row is
//! rewritten. The transaction's status is final before the cleanup begins, and is in the [table of
//! fates](crate::pipeline::Fate). So readers see the right values in the meantime, and writers
//! resolve the locks that they find. After the last lock, the transaction record and the fate are
//! deleted.
//!
//! If the process dies during the cleanup, the next incarnation resolves the locks as orphan locks.
//! Until then, a committed transaction has its record at the primary. The primary of a rolled-back
//! transaction is still locked, or already released; either state means *rolled back*.

use super::resolve_locks::resolve_locks;
use super::rows::Rows;
use crate::engine::PageRequest;
use crate::error::Result;
use crate::pipeline::{LockCleanup, SubmissionKind};
use crate::protocol::TxnStatus;
use crate::sync::Mutex;
use crate::timestamp::Timestamp;

/// The position of the cleanup among the finished transactions. The oldest transaction is cleaned
/// up first, so that a steady arrival of newer ones cannot delay it forever.
#[derive(Default)]
pub struct Cleanup {
    /// Zero, or the `start_ts` from which to look for the next transaction.
    position: Mutex<Timestamp>,
}

impl Cleanup {
    /// Cleans up the next page; returns whether more is pending.
    pub fn page(&self, rows: &Rows) -> Result<bool> {
        let fates = rows.pipeline.fates();
        let from = *self.position.lock();
        let Some(cleanup) = fates.next_cleanup(from) else { return Ok(false) };
        let start_ts = cleanup.txn.start_ts;
        let done = clean_page(rows, &cleanup);
        self.advance(start_ts, &done);
        done?;
        Ok(fates.pending_cleanups() > 0)
    }

    /// Chooses where to look for the transaction of the next page: at the same one until its last
    /// page is done, then from zero, to find the oldest. After an error the next one by `start_ts`
    /// is chosen, so that a failing cleanup does not block the others.
    fn advance(&self, start_ts: Timestamp, page: &Result<Page>) {
        *self.position.lock() = match page {
            Ok(Page::More) => start_ts,
            Ok(Page::Last) => Timestamp::ZERO,
            Err(_) => start_ts.next(),
        };
    }
}

enum Page {
    More,
    Last,
}

/// Resolves the locks of one page. If no lock is left, finishes the cleanup of the transaction.
fn clean_page(rows: &Rows, cleanup: &LockCleanup) -> Result<Page> {
    let LockCleanup { txn, primary, remaining, committed } = cleanup;
    let status = committed.map_or(TxnStatus::RolledBack, TxnStatus::Committed);
    let limit = rows.batch_rows_max();
    let page = PageRequest { range: remaining, backwards: false, limit, cursor: None };
    let found = rows.engine().snapshot()?.scan_locks(&page)?;
    let last = found.last().map(|(row, _)| row.clone());
    let own: Vec<_> = found.into_iter().filter(|(_, lock)| lock.txn == *txn).collect();
    resolve_locks(rows, *txn, primary, &own, status, false)?;
    rows.metrics.cleanup_rows.add(own.len() as u64);
    if let Some(last) = last {
        rows.pipeline.fates().cleaned_up_to(txn.start_ts, &last);
        crash_point!(CleanupForward if committed.is_some());
        crash_point!(CleanupBack if committed.is_none());
        return Ok(Page::More);
    }
    crash_point!(CleanupDone);
    finish(rows, cleanup, status)?;
    event!(DEBUG, start_ts = %txn.start_ts, "large transaction cleaned up");
    Ok(Page::Last)
}

/// Deletes the transaction record and the fate: no resolver needs them after the last lock.
fn finish(rows: &Rows, cleanup: &LockCleanup, status: TxnStatus) -> Result<()> {
    let LockCleanup { txn, primary, committed, .. } = cleanup;
    if committed.is_some() {
        return resolve_locks(rows, *txn, primary, &[], status, true);
    }
    let kind = SubmissionKind::FinishRollback { start_ts: txn.start_ts };
    rows.pipeline.submit_internal(Vec::new(), kind).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn the_oldest_is_next_once_a_transaction_is_finished() {
        let ts = Timestamp::from_u64;
        let cleanup = Cleanup::default();
        let position_after = |page: Result<Page>| {
            cleanup.advance(ts(50), &page);
            *cleanup.position.lock()
        };
        assert_eq!(position_after(Ok(Page::More)), ts(50));
        assert_eq!(position_after(Err(ErrorKind::Io("full".into()).into())), ts(51));
        // The cleanup of 50 is complete. The next search begins at zero and not above 50: a
        // transaction that began at 40 may have finished meanwhile, and then comes first.
        assert_eq!(position_after(Ok(Page::Last)), Timestamp::ZERO);
    }
}
