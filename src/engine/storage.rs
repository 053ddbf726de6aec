//! The storage interface: an ordered map of bytes in a few columns. [`local`](super::local) makes
//! an engine of any such storage.

use std::path::Path;

use super::data_loss::DataLoss;
use super::error::EngineError;
use super::page::ScanCursor;
use super::space_left::SpaceLeft;
use super::stats::{EngineStats, WriteStallStats};
pub use crate::cell::Column;
use crate::cell::RowRange;
use crate::sync::Mutex;

/// Read access to cells.
pub trait CellReader: Send + Sync {
    /// Whether scans hold no lock, so that their `visit` may read and write the storage.
    const UNLOCKED_SCANS: bool = false;

    /// Calls `read` with the value of the cell, if it exists. `read` must not read more cells,
    /// because the storage may be locked during the call.
    fn get<T>(&self, column: Column, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, EngineError>;

    /// [`get`](Self::get) for several cells; `read` also gets the index of the key.
    fn multi_get(&self, column: Column, keys: &[&[u8]], mut read: impl FnMut(usize, &[u8])) -> Result<(), EngineError> {
        for (index, key) in keys.iter().enumerate() {
            self.get(column, key, |value| read(index, value))?;
        }
        Ok(())
    }

    /// Calls `visit` with the keys and values of a range, in order, until `visit` returns `false`.
    fn scan(
        &self,
        column: Column,
        range: &RowRange,
        backwards: bool,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), EngineError>;

    /// Like [`scan`](Self::scan), for one page of a longer scan. Resumes with the iterator that the
    /// previous page left in the cursor, if there is one, and leaves the iterator in the cursor for
    /// the next page.
    fn resume_scan(
        &self,
        _cursor: &ScanCursor,
        column: Column,
        range: &RowRange,
        backwards: bool,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), EngineError> {
        self.scan(column, range, backwards, visit)
    }
}

/// Changes of cells that are applied atomically.
pub trait Batch {
    /// Sets a cell.
    fn put(&mut self, column: Column, key: &[u8], value: &[u8]);
    /// Sets a cell to the bytes that `encode` appends.
    fn put_encoded(&mut self, column: Column, key: &[u8], encode: impl FnOnce(&mut Vec<u8>)) {
        let mut value = Vec::new();
        encode(&mut value);
        self.put(column, key, &value);
    }
    /// Deletes a cell.
    fn delete(&mut self, column: Column, key: &[u8]);
    /// Deletes all cells from `start`, included, to `end`, excluded. Must not be called for the
    /// meta column, in which the storage may keep internal cells.
    fn delete_range(&mut self, column: Column, start: &[u8], end: &[u8]);
}

/// A store of cells. Reads of the storage itself, without a snapshot, see the current state.
pub trait Storage: CellReader + 'static {
    /// A consistent snapshot of all columns.
    type Snapshot: CellReader + 'static;
    /// The changes that one [`write`](Self::write) applies.
    type Batch<'a>: Batch
    where
        Self: 'a;

    /// The maximum size of a batch: see
    /// [`Capabilities::batch_bytes_max`](super::Capabilities::batch_bytes_max).
    const BATCH_BYTES_MAX: usize = usize::MAX;

    /// The lock for read-modify-write operations. All handles of the same cells share this lock.
    fn write_lock(&self) -> &Mutex<()>;
    /// Opens a snapshot of everything written so far.
    fn snapshot(&self) -> Result<Self::Snapshot, EngineError>;
    /// Starts a batch with a capacity of about `bytes` bytes.
    fn new_batch(&self, bytes: usize) -> Self::Batch<'_>;
    /// Applies the batch atomically, after all earlier batches; so a crash leaves a prefix of the
    /// batches.
    fn write(&self, batch: Self::Batch<'_>) -> Result<(), EngineError>;
    /// Blocks until all batches written before this call survive a power cut.
    fn sync(&self) -> Result<(), EngineError>;
    /// Work after a flush into this storage, which blocks neither reads nor writes, and may fail.
    fn after_flush(&self) {}
    /// See [`Engine::reclaim_keyspace`](super::Engine::reclaim_keyspace). The keyspace has the keys
    /// from `start`, included, to `end`, excluded.
    fn reclaim_range(&self, _start: &[u8], _end: &[u8]) -> Result<(), EngineError> {
        Ok(())
    }
    /// See [`Engine::space_left`](super::Engine::space_left).
    fn space_left(&self) -> SpaceLeft {
        SpaceLeft::Enough
    }
    /// See [`Engine::has_space`](super::Engine::has_space).
    fn has_space(&self, _bytes: usize, _needed: SpaceLeft) -> bool {
        true
    }
    /// See [`Engine::reclaim_space`](super::Engine::reclaim_space).
    fn reclaim_space(&self) -> Result<(), EngineError> {
        Ok(())
    }
    /// See [`Engine::checkpoint`](super::Engine::checkpoint).
    fn checkpoint(&self, _directory: &Path) -> Result<(), EngineError> {
        Err(EngineError::Unsupported("make checkpoints"))
    }
    /// See [`Engine::stats`](super::Engine::stats).
    fn stats(&self) -> Result<EngineStats, EngineError> {
        Err(EngineError::Unsupported("report statistics"))
    }
    /// See [`Engine::approximate_size`](super::Engine::approximate_size).
    fn approximate_size(&self, _column: Column, _start: &[u8], _end: &[u8]) -> Option<u64> {
        None
    }
    /// See [`Engine::write_stalls`](super::Engine::write_stalls).
    fn write_stalls(&self) -> WriteStallStats {
        WriteStallStats::default()
    }
    /// See [`Engine::is_fresh_checkpoint`](super::Engine::is_fresh_checkpoint).
    fn is_fresh_checkpoint(&self) -> bool {
        false
    }
    /// See [`Engine::clear_checkpoint_flag`](super::Engine::clear_checkpoint_flag).
    fn clear_checkpoint_flag(&self) -> Result<(), EngineError> {
        Ok(())
    }
    /// See [`Engine::data_losses`](super::Engine::data_losses).
    fn data_losses(&self) -> Vec<DataLoss> {
        Vec::new()
    }
    /// See [`Engine::write_status_file`](super::Engine::write_status_file).
    fn write_status_file(&self, _document: Option<&[u8]>) -> Result<(), EngineError> {
        Ok(())
    }
}
