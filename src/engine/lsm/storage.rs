//! The storage: the log, the memtables and the tables, put together.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::background::FlushThread;
#[cfg(any(test, feature = "crashtest"))]
use super::background::{Poll, run_once};
use super::batch::LsmBatch;
use super::flush::flush_all;
#[cfg(feature = "rocks")]
use super::flush::unflushed;
use super::open::{LsmOptions, open, open_for_salvage, open_read_only};
use super::shared::Shared;
use super::snapshot::LsmSnapshot;
use super::stats::stats;
use super::write::write;
use crate::cell::{Column, RowRange};
use crate::disk::Disk;
use crate::engine::storage::{CellReader, Storage};
use crate::engine::{EngineError, EngineStats, WriteStallStats};
use crate::sync::Mutex;
#[cfg(feature = "crashtest")]
use crate::wal::WalHandle;

/// From this size on the log is flushed on a full disk, if there is space.
#[cfg(feature = "rocks")]
const LONG_LOG_BYTES: u64 = 64 << 10;

/// The LSM storage: a log on the disk `D`, memtables, and the tables `T`.
pub struct LsmStorage<D: Disk, T: Storage> {
    pub(super) shared: Arc<Shared<D, T>>,
    /// `None` if opened read-only, or if a test or the simulator flushes.
    flush_thread: Option<FlushThread>,
}

impl<D: Disk, T: Storage> LsmStorage<D, T> {
    /// Opens the store on this disk and in these tables. In a new store, creates the log if it is
    /// missing.
    pub fn open(disk: D, tables: T, options: LsmOptions) -> Result<Self, EngineError> {
        let background_flush = options.background_flush;
        let shared = Arc::new(open(disk, tables, options)?);
        let flush_thread = background_flush.then(|| FlushThread::start(&shared)).transpose()?;
        Ok(Self { shared, flush_thread })
    }

    /// Opens the store read-only; nothing is written. Data loss is an error.
    pub fn open_read_only(disk: D, tables: T, wal_id: u64, seed: u64) -> Result<Self, EngineError> {
        Ok(Self { shared: Arc::new(open_read_only(disk, tables, wal_id, seed)?), flush_thread: None })
    }

    /// Opens a damaged store read-only, with the frames of the log up to the first damage. What
    /// cannot be read is described in `notes`.
    pub fn open_for_salvage(disk: D, tables: T, seed: u64, notes: &mut Vec<String>) -> Result<Self, EngineError> {
        Ok(Self { shared: Arc::new(open_for_salvage(disk, tables, seed, notes)?), flush_thread: None })
    }

    /// The tables below the memtables.
    pub fn tables(&self) -> &T {
        &self.shared.tables
    }

    fn wake_flusher(&self) {
        if let Some(thread) = &self.flush_thread {
            thread.wake();
        }
    }

    /// The log; `None` if opened read-only.
    #[cfg(feature = "crashtest")]
    pub(crate) fn wal(&self) -> Option<WalHandle<D>> {
        self.shared.write_path.as_ref().map(|path| path.wal.clone())
    }

    /// Runs one round of the flush thread's work, for a storage without this thread. `written`
    /// keeps the log's written sequence from one round to the next, and must be 0 before the first.
    /// Returns whether there may be more to do.
    #[cfg(any(test, feature = "crashtest"))]
    pub fn run_background_once(&self, written: &mut u64) -> bool {
        self.shared.write_path.as_ref().is_some_and(|path| run_once(&self.shared, path, written) != Poll::Park)
    }

    /// Flushes everything written before this call.
    #[cfg(any(test, feature = "crashtest", feature = "rocks"))]
    pub fn flush_all(&self) -> Result<(), EngineError> {
        flush_all(&self.shared)
    }

    /// Flushes everything written before this call if that shortens the log, which has `log_bytes`,
    /// or frees what was deleted, and if the flush takes at most `free` bytes of the disk. Returns
    /// whether there was a flush.
    #[cfg(feature = "rocks")]
    pub fn flush_to_free_space(&self, free: u64, log_bytes: u64) -> Result<bool, EngineError> {
        let unflushed = unflushed(&self.shared);
        let is_useful = unflushed.deletions > 0 || log_bytes > LONG_LOG_BYTES;
        let fits = unflushed.bytes <= free;
        if is_useful && fits {
            flush_all(&self.shared)?;
        }
        Ok(is_useful && fits)
    }

    /// Whether an open snapshot reads older tables than a new one would.
    #[cfg(feature = "rocks")]
    pub fn has_older_snapshots(&self) -> bool {
        let current = self.shared.state.lock();
        let newest = &current.read_state.tables;
        current.snapshots.values().any(|open| !Arc::ptr_eq(&open.read_state.read().tables, newest))
    }

    /// Whether a flush of everything written so far takes at most `free` bytes of the disk.
    #[cfg(feature = "rocks")]
    pub fn flush_fits(&self, free: u64) -> bool {
        unflushed(&self.shared).bytes <= free
    }

    /// Flushes everything written before this call, then calls `copy` with the tables and their
    /// flushed sequence. There is no flush while `copy` runs.
    pub fn with_flushed_tables(
        &self,
        copy: impl FnOnce(&T, u64) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let path = self.shared.write_path()?;
        self.shared.ensure_ok()?;
        flush_all(&self.shared)?;
        let _no_flush = path.flush_lock.lock();
        // A flush between `flush_all` and the lock may have failed, and left a part of its memtable
        // in the tables.
        self.shared.ensure_ok()?;
        let flushed_sequence = self.shared.state.lock().read_state.flushed_sequence;
        copy(&self.shared.tables, flushed_sequence)
    }
}

impl<D: Disk, T: Storage> Drop for LsmStorage<D, T> {
    /// Writes the log's sync record. An error is ignored: without the record nothing is lost, but
    /// damage to the last frames may pass for a torn tail.
    fn drop(&mut self) {
        if !self.shared.process.is_surely_current() {
            std::mem::forget((self.flush_thread.take(), Arc::clone(&self.shared)));
            return;
        }
        drop(self.flush_thread.take());
        if let (None, Some(path)) = (self.shared.failure.get(), &self.shared.write_path) {
            let _ = path.wal.write_sync_record(true);
        }
    }
}

impl<D: Disk, T: Storage> CellReader for LsmStorage<D, T> {
    fn get<R>(&self, column: Column, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, EngineError> {
        self.snapshot()?.get(column, key, read)
    }

    fn scan(
        &self,
        column: Column,
        range: &RowRange,
        backwards: bool,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), EngineError> {
        self.snapshot()?.scan(column, range, backwards, visit)
    }
}

impl<D: Disk, T: Storage> Storage for LsmStorage<D, T> {
    type Snapshot = LsmSnapshot<D, T>;
    type Batch<'a> = LsmBatch;

    /// Limits `RowBatch::size_bytes`. A batch becomes one frame of the log, whose payload can be
    /// twice as large as this size, because keys are escaped.
    const BATCH_BYTES_MAX: usize = crate::wal::PAYLOAD_MAX_BYTES / 2;

    fn write_lock(&self) -> &Mutex<()> {
        &self.shared.writing
    }

    fn snapshot(&self) -> Result<Self::Snapshot, EngineError> {
        Ok(LsmSnapshot::new(&self.shared))
    }

    fn new_batch(&self, bytes: usize) -> LsmBatch {
        LsmBatch::with_capacity(bytes)
    }

    fn write(&self, batch: LsmBatch) -> Result<(), EngineError> {
        if write(&self.shared, batch)? {
            self.wake_flusher();
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.shared.sync()?;
        if self.shared.write_path.as_ref().is_some_and(|path| !path.record_needed.swap(true, Ordering::AcqRel)) {
            self.wake_flusher();
        }
        Ok(())
    }

    fn stats(&self) -> Result<EngineStats, EngineError> {
        stats(&self.shared)
    }

    fn write_stalls(&self) -> WriteStallStats {
        self.shared.stalls.read()
    }

    fn approximate_size(&self, column: Column, start: &[u8], end: &[u8]) -> Option<u64> {
        self.shared.tables.approximate_size(column, start, end)
    }
}
