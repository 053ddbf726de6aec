//! The figures of a storage in layers: those of its tables, with the window.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Shared;
use crate::disk::Disk;
use crate::engine::storage::Storage;
use crate::engine::{EngineError, EngineFigures};

impl<D: Disk, T: Storage> Shared<D, T> {
    pub(super) fn figures(&self) -> Result<EngineFigures, EngineError> {
        let mut figures = self.tables.figures()?;
        let current = self.current.lock();
        let views = current.moments.values().map(|moment| Arc::clone(&moment.layers.read()));
        let layers: Vec<_> = views.chain([Arc::clone(&current.layers)]).collect();
        figures.snapshots = current.moments.values().map(|moment| moment.views as u64).sum();
        drop(current);
        let window: BTreeMap<_, _> = layers
            .iter()
            .flat_map(|layers| layers.generations())
            .map(|one| (std::ptr::from_ref(one), one.bytes() as u64))
            .collect();
        figures.write_buffer_bytes += window.values().sum::<u64>();
        Ok(figures)
    }
}
