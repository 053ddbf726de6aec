//! The sweep: resolves every orphan lock, page by page, and then deletes the transaction records of
//! earlier incarnations.
//!
//! Opening the store does not wait for the sweep: readers and writers resolve the orphan locks that
//! they find. After the sweep they need not look for them.
//!
//! While an orphan lock is left, its resolver needs the record at the primary. So the order is:
//! resolve all locks, advance the safe point to the first timestamp of this incarnation, sync, then
//! delete the records. A resolver that found a lock earlier and now finds no record is stopped by
//! the safe point: it must not conclude that the transaction was rolled back.

use std::ops::Bound;

use super::resolve::{LockResolution, resolve_lock};
use super::resolve_locks::resolve_locks;
use super::rows::Rows;
use crate::engine::{PageRequest, RowRange};
use crate::error::Result;
use crate::pipeline::{Fate, SubmissionKind};
use crate::protocol::delete_txn_record;
use crate::row::{Lock, RowKey};
use crate::timestamp::Timestamp;

const PAGE_ROWS: usize = 512;

/// The position of a sweep in the lock column.
#[derive(Default)]
pub struct Sweep {
    after: Option<RowKey>,
}

/// The result of one page.
pub struct SweepProgress {
    /// Number of orphan locks that this page resolved.
    pub resolved: u64,
    /// Whether no orphan lock is left, and no transaction record of an earlier incarnation.
    pub is_last: bool,
}

impl Sweep {
    /// Resolves the orphan locks of the next page.
    pub fn page(&mut self, rows: &Rows) -> Result<SweepProgress> {
        let fates = rows.pipeline.fates();
        let mut resolved = 0;
        if fates.may_have_orphans() {
            let start = self.after.as_ref().map_or(Bound::Unbounded, |row| Bound::Excluded(row.as_bytes().to_vec()));
            let range = RowRange { start, end: Bound::Unbounded };
            let page = PageRequest { range: &range, backwards: false, limit: PAGE_ROWS, cursor: None };
            let locks = rows.engine().snapshot()?.scan_locks(&page)?;
            resolved = resolve_orphans(rows, &locks)?;
            let ends_here = mutated!(ShortPageEndsSweep) && locks.len() < PAGE_ROWS;
            if let Some((row, _)) = locks.last().filter(|_| !ends_here) {
                self.after = Some(row.clone());
                return Ok(SweepProgress { resolved, is_last: false });
            }
        }
        crash_point!(SweepDone);
        delete_txn_records(rows, fates.first_ts())?;
        if fates.may_have_orphans() {
            rows.pipeline.clear_orphans()?;
        }
        Ok(SweepProgress { resolved, is_last: true })
    }
}

/// Resolves the orphan locks among `locks`. The primary is read for the first lock of a
/// transaction; the others have the same status and are resolved in a batch.
fn resolve_orphans(rows: &Rows, locks: &[(RowKey, Lock)]) -> Result<u64> {
    let mut resolved = 0;
    let is_orphan = |(_, lock): &&(RowKey, Lock)| rows.pipeline.fates().fate(lock.txn.start_ts) == Fate::Orphan;
    let mut orphans: Vec<(RowKey, Lock)> = locks.iter().filter(is_orphan).cloned().collect();
    while let Some((row, lock)) = orphans.first().cloned() {
        let resolution = resolve_lock(rows, &row, &lock)?;
        crash_point!(SweepBetween);
        let (same, others): (Vec<_>, Vec<_>) = orphans
            .into_iter()
            .skip(1)
            .partition(|(_, other)| (other.txn, &other.primary) == (lock.txn, &lock.primary));
        resolved += 1;
        rows.metrics.orphan_locks_resolved.add(1);
        event!(DEBUG, locks = same.len() + 1, "orphan locks resolved");
        orphans = match resolution {
            LockResolution::Resolved(status) => {
                resolve_locks(rows, lock.txn, &lock.primary, &same, status, false)?;
                resolved += same.len() as u64;
                rows.metrics.orphan_locks_resolved.add(same.len() as u64);
                others
            }
            // Another caller has resolved this lock; the next one leads to the status.
            LockResolution::AlreadyGone | LockResolution::OwnerAlive => same.into_iter().chain(others).collect(),
        };
    }
    Ok(resolved)
}

/// Deletes the records of transactions that began before `before`, none of which has a lock left.
fn delete_txn_records(rows: &Rows, before: Timestamp) -> Result<()> {
    let engine = rows.engine();
    if engine.txn_records(before, 1)?.is_empty() {
        return Ok(());
    }
    crash_point!(SafePointBefore);
    engine.advance_safe_point(before).map_err(|why| rows.pipeline.failure().poison(why.into()))?;
    rows.pipeline.sync().sync_now()?;
    crash_point!(SafePointDurable);
    loop {
        let records = engine.txn_records(before, PAGE_ROWS)?;
        if records.is_empty() {
            return Ok(());
        }
        for some in records.chunks(rows.group_rows_max()) {
            let changes = some.iter().map(|(row, start_ts)| delete_txn_record(row.clone(), *start_ts)).collect();
            rows.try_apply(changes, SubmissionKind::NoCommit)?;
            crash_point!(TxnRecordGcBetween);
        }
    }
}
