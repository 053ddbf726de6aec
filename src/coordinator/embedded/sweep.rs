//! The sweep: resolves every orphan lock and then deletes the transaction records of earlier
//! incarnations, both page by page.
//!
//! Opening the store does not wait for the sweep: readers and writers resolve the orphan locks that
//! they find. Once no orphan lock is left, they no longer check for orphan locks.
//!
//! While an orphan lock is left, its resolver needs the record at the primary. So the order is:
//! resolve all locks, advance the safe point to the first timestamp of this incarnation, sync, then
//! delete the records. A resolver that found a lock earlier and now finds no record is stopped by
//! the safe point: it must not conclude that the transaction was rolled back.
//!
//! The transaction records are in the history column, beside the replaced versions. To find the
//! records, the sweep reads the whole column, in pages between other work.

use std::ops::Bound;

use super::resolve::{LockResolution, resolve_lock};
use super::resolve_locks::resolve_locks;
use super::rows::Rows;
use crate::engine::{PageRequest, RowRange, TxnRecordEntry};
use crate::error::Result;
use crate::pipeline::{Fate, SubmissionKind};
use crate::protocol::delete_txn_record;
use crate::row::{Lock, RowKey};

const PAGE_ROWS: usize = 512;
/// Number of locks in a page that is only counted.
const COUNT_ROWS: usize = 4096;
/// Maximum number of history entries that a page reads to find transaction records among them.
const PAGE_ENTRIES: usize = 4096;

/// The position of a sweep, which counts the locks, resolves them, and then reads the transaction
/// records.
#[derive(Default)]
pub struct Sweep {
    counted: u64,
    after_counted: Option<RowKey>,
    is_counted: bool,
    after_lock: Option<RowKey>,
    locks_are_resolved: bool,
    after_record: Option<TxnRecordEntry>,
    safe_point_is_durable: bool,
}

/// The result of one page.
pub struct SweepProgress {
    /// Number of orphan locks that this page found. They are resolved now, by this call or another.
    pub resolved: u64,
    /// Whether this page was the last of the sweep: no orphan lock and no transaction record of an
    /// earlier incarnation is left.
    pub is_last: bool,
}

impl Sweep {
    /// Resolves the orphan locks of the next page of locks. Once no orphan lock is left, deletes
    /// the transaction records of the next page of records instead.
    pub fn page(&mut self, rows: &Rows) -> Result<SweepProgress> {
        if self.locks_are_resolved {
            return Ok(SweepProgress { resolved: 0, is_last: self.delete_txn_records(rows)? });
        }
        let mut resolved = 0;
        if rows.pipeline.fates().may_have_orphans() {
            if !self.is_counted {
                self.count_page(rows)?;
                return Ok(SweepProgress { resolved: 0, is_last: false });
            }
            let locks = locks_after(rows, self.after_lock.as_ref(), PAGE_ROWS)?;
            resolved = resolve_orphans(rows, &locks)?;
            if let Some((row, _)) = locks.last() {
                self.after_lock = Some(row.clone());
                return Ok(SweepProgress { resolved, is_last: false });
            }
        }
        crash_point!(SweepDone);
        if rows.pipeline.fates().may_have_orphans() {
            self.advance_safe_point(rows)?;
            rows.pipeline.clear_orphans()?;
        }
        self.locks_are_resolved = true;
        Ok(SweepProgress { resolved, is_last: false })
    }

    /// Counts the orphan locks of the next page of locks, so that it can be seen how many are left.
    fn count_page(&mut self, rows: &Rows) -> Result<()> {
        let locks = locks_after(rows, self.after_counted.as_ref(), COUNT_ROWS)?;
        let already_resolved = rows.metrics.orphan_locks_resolved.get();
        self.counted += locks.iter().filter(|lock| is_orphan(rows, lock)).count() as u64;
        rows.metrics.orphan_locks_found.set_at_least(already_resolved + self.counted);
        match locks.last() {
            Some((row, _)) => self.after_counted = Some(row.clone()),
            None => self.is_counted = true,
        }
        Ok(())
    }

    /// Deletes the next page of transaction records of earlier incarnations, whose locks are all
    /// resolved. Returns whether the page was the last.
    fn delete_txn_records(&mut self, rows: &Rows) -> Result<bool> {
        let before = rows.pipeline.fates().first_ts();
        let page = rows.engine().txn_records(before, self.after_record.as_ref(), PAGE_ENTRIES)?;
        if !page.records.is_empty() {
            self.advance_safe_point(rows)?;
        }
        for some in page.records.chunks(rows.batch_rows_max()) {
            let changes = some.iter().map(|(row, start_ts)| delete_txn_record(row.clone(), *start_ts)).collect();
            rows.try_apply(changes, SubmissionKind::NoCommit)?;
            crash_point!(TxnRecordGcBetween);
        }
        self.after_record = page.next;
        Ok(self.after_record.is_none())
    }

    fn advance_safe_point(&mut self, rows: &Rows) -> Result<()> {
        if self.safe_point_is_durable {
            return Ok(());
        }
        crash_point!(SafePointBefore);
        let advanced = rows.engine().advance_safe_point(rows.pipeline.fates().first_ts());
        advanced.map_err(|error| rows.pipeline.failure().poison(error.into()))?;
        rows.pipeline.sync().sync_now()?;
        crash_point!(SafePointDurable);
        self.safe_point_is_durable = true;
        Ok(())
    }
}

/// A page of locks, beginning after this row.
fn locks_after(rows: &Rows, row: Option<&RowKey>, limit: usize) -> Result<Vec<(RowKey, Lock)>> {
    let start = row.map_or(Bound::Unbounded, |row| Bound::Excluded(row.as_bytes().to_vec()));
    let range = RowRange { start, end: Bound::Unbounded };
    let page = PageRequest { range: &range, backwards: false, limit, cursor: None };
    Ok(rows.engine().snapshot()?.scan_locks(&page)?)
}

fn is_orphan(rows: &Rows, (_, lock): &(RowKey, Lock)) -> bool {
    rows.pipeline.fates().fate(lock.txn.start_ts) == Fate::Orphan
}

/// Resolves the orphan locks among `locks`. The primary is read for the first lock of a
/// transaction; the transaction's other locks have the same status and are resolved in a batch.
fn resolve_orphans(rows: &Rows, locks: &[(RowKey, Lock)]) -> Result<u64> {
    let mut resolved = 0;
    let mut orphans: Vec<(RowKey, Lock)> = locks.iter().filter(|lock| is_orphan(rows, lock)).cloned().collect();
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
            // Another caller has resolved this lock, so the transaction's status is not known here.
            // The transaction's next lock is tried.
            LockResolution::AlreadyGone | LockResolution::OwnerAlive => same.into_iter().chain(others).collect(),
        };
    }
    Ok(resolved)
}
