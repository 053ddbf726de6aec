//! The figures of a storage in layers: those of its tables, with the window.

use super::Shared;
use crate::disk::Disk;
use crate::engine::storage::Storage;
use crate::engine::{EngineError, EngineFigures};

impl<D: Disk, T: Storage> Shared<D, T> {
    pub(super) fn figures(&self) -> Result<EngineFigures, EngineError> {
        let mut figures = self.tables.figures()?;
        let current = self.current.lock();
        let window: usize = current.layers.generations().map(crate::window::Generation::bytes).sum();
        figures.write_buffer_bytes += window as u64;
        figures.snapshots = current.views.values().map(|views| *views as u64).sum();
        Ok(figures)
    }
}
