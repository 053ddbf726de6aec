//! The figures of a storage in layers: those of its tables, with the window.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Shared;
use crate::disk::Disk;
use crate::engine::storage::Storage;
use crate::engine::{EngineError, EngineStats};

impl<D: Disk, T: Storage> Shared<D, T> {
    pub(super) fn figures(&self) -> Result<EngineStats, EngineError> {
        let mut figures = self.tables.stats()?;
        let current = self.state.lock();
        let views = current.snapshots.values().map(|moment| Arc::clone(&moment.read_state.read()));
        let layers: Vec<_> = views.chain([Arc::clone(&current.read_state)]).collect();
        figures.open_snapshots = current.snapshots.values().map(|moment| moment.count as u64).sum();
        drop(current);
        let window: BTreeMap<_, _> = layers
            .iter()
            .flat_map(|layers| layers.memtables())
            .map(|one| (std::ptr::from_ref(one), one.memory_bytes() as u64))
            .collect();
        figures.memtable_bytes += window.values().sum::<u64>();
        Ok(figures)
    }
}
