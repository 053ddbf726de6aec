//! An engine that yields to the scheduler before each call. When its process is dead, every call
//! fails.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use percolite::engine::storage::Column;
use percolite::engine::{
    ApplyResult, Capabilities, DataLoss, Engine, EngineError, EngineSnapshot, EngineStats, GcEntry, OnCell, OnEachCell,
    PageBuffer, PageRequest, RowBatch, RowRange, ScanCursor, ScanVisitor, SpaceLeft, TxnRecordEntry, TxnRecordPage,
    WriteStallStats,
};
use percolite::row::{Lock, RowState, TxnRecord, WriteRecord};
use percolite::{KeyspaceId, RowKey, Timestamp, Value};

use super::scheduler::Scheduler;

/// The metadata key of the oracle's high-water mark.
pub const HIGH_WATER: &str = "oracle";

/// Whether a simulated process is dead. The threads of a dead process run to their end, but their
/// calls have no effect.
pub type ProcessDead = Arc<AtomicBool>;

/// An engine as one simulated process uses it. See the [module](self).
pub struct ScheduledEngine<E> {
    engine: Arc<E>,
    scheduler: Arc<Scheduler>,
    dead: ProcessDead,
    batch_rows_max: usize,
    sync_time: Duration,
    fail_next_reservation: AtomicBool,
    reservation_failed: AtomicBool,
}

impl<E: Engine> ScheduledEngine<E> {
    /// The engine of one process, with at most this many rows a batch.
    pub fn new(engine: Arc<E>, scheduler: Arc<Scheduler>, dead: ProcessDead, batch_rows_max: usize) -> Self {
        let (lease_fails, lease_failed) = (AtomicBool::new(false), AtomicBool::new(false));
        Self {
            engine,
            scheduler,
            dead,
            batch_rows_max,
            sync_time: Duration::ZERO,
            fail_next_reservation: lease_fails,
            reservation_failed: lease_failed,
        }
    }

    /// The same engine, on a disk whose syncs take this long.
    #[must_use]
    pub fn with_slow_syncs(self, sync_takes: Duration) -> Self {
        Self { sync_time: sync_takes, ..self }
    }

    /// Makes the next reservation of the oracle fail. Reservations are so rare that random faults
    /// seldom hit one.
    pub fn fail_reservation(&self) {
        self.fail_next_reservation.store(true, Ordering::SeqCst);
    }

    /// Whether a reservation has failed.
    pub fn reservation_failed(&self) -> bool {
        self.reservation_failed.load(Ordering::SeqCst)
    }

    /// The wrapped engine.
    pub fn engine(&self) -> &E {
        &self.engine
    }

    fn enter(&self, what: &str) -> Result<&E, EngineError> {
        self.scheduler.yield_point(what);
        alive(&self.dead)?;
        Ok(&self.engine)
    }
}

/// Whether the process is dead.
pub fn is_dead(dead: &ProcessDead) -> bool {
    dead.load(Ordering::SeqCst)
}

fn alive(dead: &ProcessDead) -> Result<(), EngineError> {
    if is_dead(dead) { Err(EngineError::Undetermined("the simulated process is dead".into())) } else { Ok(()) }
}

impl<E: Engine> Engine for ScheduledEngine<E> {
    fn capabilities(&self) -> Capabilities {
        let below = self.engine.capabilities();
        Capabilities { batch_rows_max: below.batch_rows_max.min(self.batch_rows_max), ..below }
    }

    fn snapshot(&self) -> Result<Arc<dyn EngineSnapshot>, EngineError> {
        let snapshot = self.enter("snapshot")?.snapshot()?;
        Ok(Arc::new(ScheduledSnapshot {
            snapshot,
            scheduler: Arc::clone(&self.scheduler),
            dead: Arc::clone(&self.dead),
        }))
    }

    fn read_row(&self, row: &RowKey, start_ts: Timestamp) -> Result<RowState, EngineError> {
        self.enter("row")?.read_row(row, start_ts)
    }

    fn apply(&self, groups: &[RowBatch]) -> Result<Vec<ApplyResult>, EngineError> {
        let limit = self.batch_rows_max;
        if let Some(requested) = groups.iter().map(RowBatch::row_count).find(|rows| *rows > limit) {
            return Err(EngineError::Limit { what: "a batch's row count", requested, limit });
        }
        let applied = self.enter("apply")?.apply(groups);
        self.scheduler.yield_point("applied");
        applied
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.scheduler.yield_point("sync");
        // A write that another thread makes in the first half of the sync becomes durable as well,
        // although the sync was requested before it. A write in the second half does not.
        self.scheduler.sleep(self.sync_time / 2);
        alive(&self.dead)?;
        let synced = self.engine.sync();
        self.scheduler.sleep(self.sync_time / 2);
        self.scheduler.yield_point("synced");
        synced
    }

    fn get_meta(&self, name: &str) -> Result<Option<Vec<u8>>, EngineError> {
        self.enter("meta")?.get_meta(name)
    }

    fn scan_meta(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, EngineError> {
        self.enter("scan meta")?.scan_meta(prefix)
    }

    fn write_meta(&self, entries: &[(String, Option<Vec<u8>>)]) -> Result<(), EngineError> {
        let engine = self.enter("set meta")?;
        if entries.iter().any(|(name, _)| name == HIGH_WATER)
            && self.fail_next_reservation.swap(false, Ordering::SeqCst)
        {
            self.reservation_failed.store(true, Ordering::SeqCst);
            return Err(EngineError::Undetermined("the simulated disk is full".into()));
        }
        engine.write_meta(entries)
    }

    fn safe_point(&self) -> Result<Timestamp, EngineError> {
        self.enter("safe point")?.safe_point()
    }

    fn advance_safe_point(&self, to: Timestamp) -> Result<(), EngineError> {
        self.enter("advance safe point")?.advance_safe_point(to)
    }

    fn gc_candidates(
        &self,
        after: Option<&GcEntry>,
        upto: Timestamp,
        limit: usize,
    ) -> Result<Vec<GcEntry>, EngineError> {
        self.enter("gc candidates")?.gc_candidates(after, upto, limit)
    }

    fn txn_records(
        &self,
        before: Timestamp,
        after: Option<&TxnRecordEntry>,
        limit: usize,
    ) -> Result<TxnRecordPage, EngineError> {
        self.enter("txn records")?.txn_records(before, after, limit)
    }

    fn delete_keyspace(&self, keyspace: KeyspaceId) -> Result<(), EngineError> {
        self.enter("delete keyspace")?.delete_keyspace(keyspace)
    }

    fn reclaim_keyspace(&self, keyspace: KeyspaceId) -> Result<(), EngineError> {
        self.enter("reclaim keyspace")?.reclaim_keyspace(keyspace)
    }

    fn space_left(&self) -> SpaceLeft {
        self.engine.space_left()
    }

    fn has_space(&self, bytes: usize, needed: SpaceLeft) -> bool {
        self.engine.has_space(bytes, needed)
    }

    fn reclaim_space(&self) -> Result<(), EngineError> {
        self.enter("reclaim space")?.reclaim_space()
    }

    fn checkpoint(&self, directory: &Path) -> Result<(), EngineError> {
        self.enter("checkpoint")?.checkpoint(directory)
    }

    fn stats(&self) -> Result<EngineStats, EngineError> {
        self.enter("stats")?.stats()
    }

    fn approximate_size(&self, column: Column, start: &[u8], end: &[u8]) -> Option<u64> {
        self.engine.approximate_size(column, start, end)
    }

    fn write_stalls(&self) -> WriteStallStats {
        self.engine.write_stalls()
    }

    fn is_fresh_checkpoint(&self) -> bool {
        self.engine.is_fresh_checkpoint()
    }

    fn clear_checkpoint_flag(&self) -> Result<(), EngineError> {
        self.enter("clear checkpoint flag")?.clear_checkpoint_flag()
    }

    fn data_losses(&self) -> Vec<DataLoss> {
        self.engine.data_losses()
    }

    fn write_status_file(&self, document: Option<&[u8]>) -> Result<(), EngineError> {
        self.enter("write status file")?.write_status_file(document)
    }
}

struct ScheduledSnapshot {
    snapshot: Arc<dyn EngineSnapshot>,
    scheduler: Arc<Scheduler>,
    dead: ProcessDead,
}

impl ScheduledSnapshot {
    fn enter(&self, what: &str) -> Result<&dyn EngineSnapshot, EngineError> {
        self.scheduler.yield_point(what);
        alive(&self.dead)?;
        Ok(&*self.snapshot)
    }
}

impl EngineSnapshot for ScheduledSnapshot {
    fn get_cell(&self, column: Column, row: &RowKey, on_cell: OnCell<'_>) -> Result<(), EngineError> {
        self.enter(if column == Column::Lock { "read lock" } else { "read write" })?.get_cell(column, row, on_cell)
    }

    fn multi_get_cell(&self, column: Column, rows: &[&RowKey], on_cell: OnEachCell<'_>) -> Result<(), EngineError> {
        self.enter("read several")?.multi_get_cell(column, rows, on_cell)
    }

    fn txn_record(&self, row: &RowKey, start_ts: Timestamp) -> Result<Option<TxnRecord>, EngineError> {
        self.enter("read txn record")?.txn_record(row, start_ts)
    }

    fn data(&self, row: &RowKey, start_ts: Timestamp) -> Result<Option<Value>, EngineError> {
        self.enter("read data")?.data(row, start_ts)
    }

    fn version_at(&self, row: &RowKey, upto: Timestamp) -> Result<Option<WriteRecord>, EngineError> {
        self.enter("read version")?.version_at(row, upto)
    }

    fn scan_page(&self, column: Column, page: &PageRequest<'_>, cells: &mut PageBuffer) -> Result<bool, EngineError> {
        self.enter(if column == Column::Lock { "read locks" } else { "read writes" })?.scan_page(column, page, cells)
    }

    fn scan_unlocked(
        &self,
        column: Column,
        range: &RowRange,
        cursor: &ScanCursor,
        visit: ScanVisitor<'_>,
    ) -> Result<bool, EngineError> {
        self.enter("visit")?.scan_unlocked(column, range, cursor, visit)
    }

    fn scan_raw(&self, column: Column, range: &RowRange, visit: ScanVisitor<'_>) -> Result<(), EngineError> {
        self.enter("visit raw")?.scan_raw(column, range, visit)
    }

    fn lock(&self, row: &RowKey) -> Result<Option<Lock>, EngineError> {
        self.enter("read lock")?.lock(row)
    }

    fn write(&self, row: &RowKey) -> Result<Option<WriteRecord>, EngineError> {
        self.enter("read write")?.write(row)
    }

    fn scan_locks(&self, page: &PageRequest<'_>) -> Result<Vec<(RowKey, Lock)>, EngineError> {
        self.enter("read locks")?.scan_locks(page)
    }

    fn scan_writes(&self, page: &PageRequest<'_>) -> Result<Vec<(RowKey, WriteRecord)>, EngineError> {
        self.enter("read writes")?.scan_writes(page)
    }

    fn any_lock(&self) -> Result<bool, EngineError> {
        self.enter("read any lock")?.any_lock()
    }

    fn row(&self, row: &RowKey, start_ts: Timestamp) -> Result<RowState, EngineError> {
        self.enter("read row")?.row(row, start_ts)
    }
}

#[cfg(test)]
mod tests {
    /// A method with a default that is not forwarded would never be simulated.
    #[test]
    fn every_method_of_the_engine_traits_is_forwarded() {
        let traits = include_str!("../../../../src/engine/api.rs");
        let this = include_str!("engine.rs");
        for (name, wrapper) in [("Engine", "ScheduledEngine<E>"), ("EngineSnapshot", "ScheduledSnapshot")] {
            let declared = methods(traits, &format!("pub trait {name}: "));
            let forwarded = methods(this, &format!("{name} for {wrapper} {{"));
            assert!(declared.len() > 10, "{name}: {declared:?}");
            let missing: Vec<_> = declared.iter().filter(|method| !forwarded.contains(method)).collect();
            assert!(missing.is_empty(), "{wrapper} does not forward {missing:?} of {name}");
        }
    }

    /// The methods between the line that has `header` and the next line that is a closing brace.
    fn methods<'a>(text: &'a str, header: &str) -> Vec<&'a str> {
        let lines = text.lines().skip_while(|line| !line.contains(header)).take_while(|line| *line != "}");
        lines.filter_map(|line| line.strip_prefix("    fn ")?.split(['(', '<']).next()).collect()
    }
}
