//! Lock cleanup: the locks of a finished large transaction become versions, or are released, page
//! by page in the background.
//!
//! Without it, a commit of millions of rows would block until each of them is rewritten. The status
//! is final before the cleanup begins: the [table of fates](crate::pipeline::Fate) has it. So
//! readers see the right values in the meantime, and writers resolve the locks that they find.
//! After the last lock, the transaction record and the fate are deleted, in this order.
//!
//! If the process dies in between, the next incarnation resolves the locks as orphan locks. A
//! committed transaction has its record at the primary until then. A rolled-back one has its
//! primary locked or released, and either means rolled back.

use super::resolve_locks::resolve_locks;
use super::rows::Rows;
use crate::engine::PageRequest;
use crate::error::Result;
use crate::pipeline::{LockCleanup, SubmissionKind};
use crate::protocol::TransactionStatus;
use crate::sync::Mutex;
use crate::timestamp::Timestamp;

/// The position of the cleanup among the finished transactions.
#[derive(Default)]
pub struct Cleanup {
    /// The `start_ts` of the transaction to continue with.
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
        // After an error the other transactions are served first.
        *self.position.lock() = if done.is_ok() { start_ts } else { start_ts.next() };
        done?;
        Ok(fates.pending_cleanups() > 0)
    }
}

/// Resolves the locks of one page. An empty page is the end: the transaction is finished.
fn clean_page(rows: &Rows, cleanup: &LockCleanup) -> Result<()> {
    let LockCleanup { txn, primary, remaining, committed } = cleanup;
    let status = committed.map_or(TransactionStatus::RolledBack, TransactionStatus::Committed);
    let limit = rows.group_rows_max();
    let page = PageRequest { range: remaining, backwards: false, limit, cursor: None };
    let found = rows.engine().snapshot()?.scan_locks(&page)?;
    let ends_here = mutated!(ShortPageEndsCleanup) && found.len() < limit;
    let last = found.last().map(|(row, _)| row.clone());
    let own: Vec<_> = found.into_iter().filter(|(_, lock)| lock.txn == *txn).collect();
    resolve_locks(rows, *txn, primary, &own, status, false)?;
    rows.metrics.cleanup_rows.add(own.len() as u64);
    if let Some(last) = last.filter(|_| !mutated!(CleanupEndsEarly) && !ends_here) {
        rows.pipeline.fates().cleaned_up_to(txn.start_ts, &last);
        crash_point!(CleanupForward if committed.is_some());
        crash_point!(CleanupBack if committed.is_none());
        return Ok(());
    }
    crash_point!(CleanupDone);
    finish(rows, cleanup, status)?;
    event!(DEBUG, start_ts = %txn.start_ts, "large transaction cleaned up");
    Ok(())
}

/// Deletes the transaction record, which no resolver needs after the last lock, and the fate.
fn finish(rows: &Rows, cleanup: &LockCleanup, status: TransactionStatus) -> Result<()> {
    let LockCleanup { txn, primary, committed, .. } = cleanup;
    if committed.is_some() {
        return resolve_locks(rows, *txn, primary, &[], status, true);
    }
    let kind = SubmissionKind::FinishRollback { start_ts: txn.start_ts };
    rows.pipeline.submit_internal(Vec::new(), kind).map(drop)
}
