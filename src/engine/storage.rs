//! An ordered map of bytes in a few columns: the least that [`local`](super::local) needs to be an engine.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{DataLoss, EngineError, EngineStats, RowRange, ScanCursor, WriteStallStats};
use crate::sync::Mutex;

/// Where a cell is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Column {
    /// The store's own bookkeeping: format version, oracle, safe point, catalog, the collector's work list.
    Meta,
    /// Long values, by row and `start_ts`.
    Data,
    /// Locks, by row.
    Lock,
    /// Newest versions, by row.
    Write,
    /// Statuses and replaced versions, by row and inverted timestamp.
    History,
}

impl Column {
    /// Every column, in the order of their declaration.
    pub const ALL: [Self; 5] = [Self::Meta, Self::Data, Self::Lock, Self::Write, Self::History];
}

/// Reads cells.
pub trait CellReader: Send + Sync {
    /// Whether the `visit` of a scan may read and write the storage meanwhile: no lock is held then.
    const UNLOCKED_SCANS: bool = false;

    /// Hands the cell's bytes to `read`, if the cell is there. `read` must not ask for more, which may be locked meanwhile.
    fn get<T>(&self, column: Column, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, EngineError>;

    /// The same for several cells, with the number of the key.
    fn multi_get(&self, column: Column, keys: &[&[u8]], mut read: impl FnMut(usize, &[u8])) -> Result<(), EngineError> {
        for (number, key) in keys.iter().enumerate() {
            self.get(column, key, |content| read(number, content))?;
        }
        Ok(())
    }

    /// Hands cells in order to `visit` until it answers `false`.
    fn scan(
        &self,
        column: Column,
        range: &RowRange,
        backwards: bool,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), EngineError>;

    /// The same, for a scan that has ended at the bookmark, or begins, and is to go on.
    fn resume_scan(
        &self,
        _bookmark: &ScanCursor,
        column: Column,
        range: &RowRange,
        backwards: bool,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), EngineError> {
        self.scan(column, range, backwards, visit)
    }
}

/// Changes to cells that are made together.
pub trait Batch {
    /// Sets a cell.
    fn put(&mut self, column: Column, key: &[u8], value: &[u8]);
    /// Sets a cell to what `encode` appends.
    fn put_encoded(&mut self, column: Column, key: &[u8], encode: impl FnOnce(&mut Vec<u8>)) {
        let mut value = Vec::new();
        encode(&mut value);
        self.put(column, key, &value);
    }
    /// Empties a cell.
    fn delete(&mut self, column: Column, key: &[u8]);
    /// Empties every cell from `start` up to, and without, `end`; not of the bookkeeping.
    fn delete_range(&mut self, column: Column, start: &[u8], end: &[u8]);
}

/// Keeps cells. Reading it directly sees the latest state.
pub trait Storage: CellReader + 'static {
    /// A consistent view of all columns.
    type Snapshot: CellReader + 'static;
    /// See [`Batch`].
    type Batch<'a>: Batch
    where
        Self: 'a;

    /// Held by whoever reads and then writes what depends on it; one for all handles of the same cells.
    fn write_lock(&self) -> &Mutex<()>;
    /// Opens a view of everything written so far.
    fn snapshot(&self) -> Result<Self::Snapshot, EngineError>;
    /// Begins a batch, with room for about so many bytes.
    fn new_batch(&self, bytes: usize) -> Self::Batch<'_>;
    /// Makes the batch's changes, all or none, after those of every earlier batch, also across a crash.
    fn write(&self, batch: Self::Batch<'_>) -> Result<(), EngineError>;
    /// Returns once every batch written before this call would survive a power cut.
    fn sync(&self) -> Result<(), EngineError>;
    /// See [`Engine::checkpoint`](super::Engine::checkpoint).
    fn checkpoint(&self, _folder: &Path) -> Result<(), EngineError> {
        Err(EngineError::Unsupported("make checkpoints"))
    }
    /// See [`Engine::stats`](super::Engine::stats).
    fn stats(&self) -> Result<EngineStats, EngineError> {
        Err(EngineError::Unsupported("tell figures"))
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
