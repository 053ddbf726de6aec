//! Statistics of the LSM storage: the statistics of its tables, with the memory of the memtables
//! and the number of open snapshots added.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::shared::Shared;
use crate::disk::Disk;
use crate::engine::storage::Storage;
use crate::engine::{EngineError, EngineStats};

pub fn stats<D: Disk, T: Storage>(shared: &Shared<D, T>) -> Result<EngineStats, EngineError> {
    let mut stats = shared.tables.stats()?;
    let current = shared.state.lock();
    let open = current.snapshots.values().map(|open| Arc::clone(&open.read_state.read()));
    let read_states: Vec<_> = open.chain([Arc::clone(&current.read_state)]).collect();
    let oldest = current.snapshots.keys().next().copied().unwrap_or(current.visible_sequence);
    stats.batches_since_oldest_snapshot = current.visible_sequence - oldest;
    let in_use: Vec<_> = current.read_state.memtables().map(std::ptr::from_ref).collect();
    stats.open_snapshots = current.snapshots.values().map(|open| open.count as u64).sum();
    drop(current);
    let memtables: BTreeMap<_, _> = read_states
        .iter()
        .flat_map(|read_state| read_state.memtables())
        .map(|memtable| (std::ptr::from_ref(memtable), memtable.memory_bytes() as u64))
        .collect();
    stats.memtable_bytes += memtables.values().sum::<u64>();
    let kept = memtables.iter().filter(|(memtable, _)| !in_use.contains(memtable));
    stats.snapshot_memtable_bytes = kept.map(|(_, bytes)| bytes).sum();
    Ok(stats)
}
