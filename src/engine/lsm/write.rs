//! Writing a batch: into the log, then into the memtable, then visible.

use super::batch::LsmBatch;
use super::flush::switch_memtable_if_full;
use super::shared::{Shared, WriterState, wal_error};
use crate::disk::Disk;
use crate::engine::EngineError;
use crate::engine::storage::Storage;

/// Writes a batch. Returns whether the memtable was switched.
pub fn write<D: Disk, T: Storage>(shared: &Shared<D, T>, mut batch: LsmBatch) -> Result<bool, EngineError> {
    if batch.is_empty() {
        return shared.ensure_ok().map(|()| false);
    }
    let path = shared.write_path()?;
    shared.ensure_ok()?;
    let mut writer = path.writer.lock();
    shared.ensure_not_failed()?;
    let WriterState { wal, memtable, open_sequences, .. } = &mut *writer;
    let sequence = wal.append(&mut batch.frame).map_err(|error| match wal_error(error) {
        // A batch that is too large was not written at all, so the storage has not failed.
        error @ EngineError::Limit { .. } => error,
        error => shared.record_failure(error),
    })?;
    open_sequences.clear();
    {
        let current = shared.state.lock();
        // The list has the sequences of the open snapshots, in ascending order. Last comes the
        // visible sequence, the highest: until this batch is visible, new snapshots may still open
        // there. It counts although no snapshot may be there yet. The views of commits never need
        // that, because the leader opens them between its writes. But background work opens
        // snapshots at any time, and each must show everything written before: without this, a
        // snapshot opened below, before the batch is visible, would miss the cells it replaces.
        let older = |sequence: &u64| *sequence != current.visible_sequence;
        open_sequences.extend(current.snapshots.keys().copied().filter(older));
        open_sequences.push(current.visible_sequence);
    }
    // The payload is copied into a buffer of its exact size, because payloads stay in memory until
    // their memtable is dropped.
    memtable
        .add(batch.frame.payload().into(), sequence, open_sequences)
        .map_err(|_| shared.record_failure(EngineError::Undetermined("a batch is malformed".into())))?;
    shared.state.lock().visible_sequence = sequence;
    // The batch is written, whatever happens now. A failure is recorded, and all later calls return
    // it.
    Ok(switch_memtable_if_full(shared, path, &mut writer).unwrap_or_else(|error| {
        assert!(shared.failure.get().is_some(), "invariant: a switch that fails has failed the storage: {error}");
        false
    }))
}
