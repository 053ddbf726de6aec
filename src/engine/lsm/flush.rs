//! Flush: an immutable memtable is written into the tables.
//!
//! 1. *Switch the memtable*, by the writer: the log starts its next segment, and a new memtable
//!    becomes active (RocksDB's `SwitchMemtable`).
//! 2. *Sync* the segment of the immutable memtable. What is not durable in the log never reaches
//!    the tables: after a crash they would be ahead of it.
//! 3. *Write* the memtable in stripes: one up to the sequence of each open snapshot within it, and
//!    one up to its end. A stripe writes its range tombstones, then the newest version of each
//!    cell, tombstones included, in batches. The first batch of a stripe has the flush target Q,
//!    which is the memtable's last sequence; the very last batch has the flushed sequence.
//!
//!    The tables have no log, and RocksDB may flush a part of them by itself. Until the end of the
//!    flush they have everything up to the flushed sequence P and some of what is between P and Q;
//!    the log has all of it. If the log loses that, Q shows that the tables are not a state of the
//!    store.
//! 4. *Table sync*: all columns of the tables are flushed. From here on flushed sequence Q is
//!    durable.
//! 5. *Install the read state* without the immutable memtable, and with a new snapshot of the
//!    tables. New snapshots get it first, then each open snapshot, in one step for each. A snapshot
//!    within the memtable gets the tables as they were after its stripe, a RocksDB snapshot. So
//!    RocksDB keeps old versions and compacts them away, and a long-lived snapshot keeps no
//!    memtable in memory.
//! 6. *Remove* the segment.
//!
//! A memtable is switched at a limit of memory. That bounds its segment of the log, too: payloads
//! stay in memory until their memtable is dropped, even if a few hot rows are written again and
//! again.
//!
//! Stripes are pebble's snapshot stripes. Most snapshots within a memtable end while it is written,
//! so the next stripe is chosen when the one before is written. Each stripe walks the whole
//! memtable, so their number is limited. Snapshots for which there is no stripe keep the memtable
//! in memory until they are dropped.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::read_state::{CurrentState, ImmutableMemtable, ReadState};
use super::shared::{FLUSH_TARGET_KEY, FLUSHED_SEQUENCE_KEY, Shared, WritePath, WriterState, wal_error};
use crate::disk::Disk;
use crate::engine::EngineError;
use crate::engine::storage::{Batch, Column, Storage};
use crate::memtable::{Memtable, MemtableWriter};
use crate::tunables::{STRIPES_MAX, TABLE_BATCH_BYTES};

/// Snapshots of the tables at the ends of stripes, by sequence.
type StripeSnapshots<V> = BTreeMap<u64, Arc<V>>;

/// Called by the writer after each batch; returns whether the memtable was switched.
///
/// Only one memtable is flushed at a time. When the next one is twice full, the writer stalls:
/// it flushes the immutable one itself, or waits for the flush that runs.
pub fn switch_memtable_if_full<D: Disk, T: Storage>(
    shared: &Shared<D, T>,
    path: &WritePath<D>,
    writer: &mut WriterState<D>,
) -> Result<bool, EngineError> {
    let memory = writer.memtable.memtable().memory_bytes();
    if memory < path.memtable_bytes {
        return Ok(false);
    }
    if shared.state.lock().read_state.immutable.is_some() {
        if memory / 2 < path.memtable_bytes {
            return Ok(false);
        }
        let _stalled = shared.stalls.begin();
        flush(shared, path)?;
    }
    switch_memtable(shared, path, writer).map(|()| true)
}

pub fn flush_all<D: Disk, T: Storage>(shared: &Shared<D, T>) -> Result<(), EngineError> {
    let path = shared.write_path()?;
    loop {
        flush(shared, path)?;
        let mut writer = path.writer.lock();
        // A writer may have switched the next memtable meanwhile.
        if shared.state.lock().read_state.immutable.is_none() {
            switch_memtable(shared, path, &mut writer)?;
            break;
        }
    }
    flush(shared, path)
}

/// Makes the active memtable immutable, if it has any entry. The one before must be flushed.
fn switch_memtable<D: Disk, T: Storage>(
    shared: &Shared<D, T>,
    path: &WritePath<D>,
    writer: &mut WriterState<D>,
) -> Result<(), EngineError> {
    shared.ensure_ok()?;
    if writer.memtable.memtable().is_empty() {
        return Ok(());
    }
    let salt = (writer.next_salt)();
    writer.wal.rotate(salt).map_err(|why| shared.record_failure(wal_error(why)))?;
    let end = writer.wal.last_sequence();
    writer.memtable = MemtableWriter::new(end, path.secrets);
    let mut current = shared.state.lock();
    let memtable = Arc::clone(&current.read_state.active);
    let immutable = Some(ImmutableMemtable { memtable, last_sequence: end });
    let (active, tables) = (Arc::clone(writer.memtable.memtable()), Arc::clone(&current.read_state.tables));
    let flushed_sequence = current.read_state.flushed_sequence;
    current.read_state = Arc::new(ReadState { active, immutable, tables, flushed_sequence });
    // The last frames may be no-op frames, after which nothing became visible. A snapshot that
    // opens from here on is within the next memtable, not this one.
    current.visible_sequence = end;
    drop(current);
    crash_point!(FlushMemtableSwitched);
    Ok(())
}

/// Flushes the immutable memtable, if there is one.
pub fn flush<D: Disk, T: Storage>(shared: &Shared<D, T>, path: &WritePath<D>) -> Result<(), EngineError> {
    let _one = path.flush_lock.lock();
    let immutable = shared.state.lock().read_state.immutable.clone();
    let Some(ImmutableMemtable { memtable, last_sequence: end }) = immutable else {
        return shared.ensure_ok();
    };
    if !mutated!(FlushesUnsynced) {
        shared.sync()?;
    }
    if mutated!(SegmentRemovedEarly) {
        let _ = path.wal.remove_segments_upto(end);
    }
    let written = write_memtable(shared, &memtable, end).and_then(|stripes| {
        shared.tables.sync()?;
        Ok((stripes, shared.tables.snapshot()?))
    });
    let (stripes, tables) = written.map_err(|why| shared.record_failure(why))?;
    crash_point!(FlushTablesSynced);
    drop(install_read_state(shared, &stripes, tables, end));
    path.wal
        .remove_segments_upto(end)
        .map(drop)
        .map_err(|why| shared.record_failure(EngineError::Undetermined(why.to_string())))?;
    crash_point!(FlushSegmentRemoved);
    Ok(())
}

/// Installs the new read state for new snapshots, and one for each open snapshot that has a
/// stripe or is at the end. Returns the old ones, to be dropped without the lock.
fn install_read_state<D: Disk, T: Storage>(
    shared: &Shared<D, T>,
    stripes: &StripeSnapshots<T::Snapshot>,
    tables: T::Snapshot,
    end: u64,
) -> Vec<Arc<ReadState<T::Snapshot>>> {
    let mut current = shared.state.lock();
    let CurrentState { read_state, snapshots, .. } = &mut *current;
    let active = Arc::clone(&read_state.active);
    let newest = Arc::new(ReadState { active, immutable: None, tables: Arc::new(tables), flushed_sequence: end });
    let mut replaced = vec![std::mem::replace(read_state, Arc::clone(&newest))];
    let mut given = Vec::new();
    for (&sequence, open) in snapshots {
        let read_state = match stripes.get(&sequence).filter(|_| !mutated!(StripesShowEnd)) {
            Some(tables) => {
                let (active, tables) = (Arc::clone(&shared.empty_memtable), Arc::clone(tables));
                Arc::new(ReadState { active, immutable: None, tables, flushed_sequence: sequence })
            }
            None if sequence >= end || mutated!(StripesShowEnd) => Arc::clone(&newest),
            None => continue,
        };
        given.push((Arc::clone(&open.read_state), read_state));
    }
    // Writers and new snapshots do not wait for a reader in the middle of a lookup.
    drop(current);
    replaced.extend(given.into_iter().map(|(shared, new)| std::mem::replace(&mut *shared.write(), new)));
    replaced
}

/// Writes the memtable into the tables. Returns the tables before it, and after each stripe but
/// the last.
fn write_memtable<D: Disk, T: Storage>(
    shared: &Shared<D, T>,
    memtable: &Memtable,
    end: u64,
) -> Result<StripeSnapshots<T::Snapshot>, EngineError> {
    let (mut after, before) = {
        let read_state = &shared.state.lock().read_state;
        (read_state.flushed_sequence, Arc::clone(&read_state.tables))
    };
    let mut stripes = StripeSnapshots::from([(after, before)]);
    loop {
        let next = if stripes.len() < STRIPES_MAX { next_snapshot_sequence(shared, after, end) } else { None };
        write_stripe(shared, memtable, after, next.unwrap_or(end), end)?;
        let Some(next) = next else { return Ok(stripes) };
        stripes.insert(next, Arc::new(shared.tables.snapshot()?));
        crash_point!(FlushStripe);
        after = next;
    }
}

/// The first sequence between the two with an open snapshot.
fn next_snapshot_sequence<D: Disk, T: Storage>(shared: &Shared<D, T>, after: u64, end: u64) -> Option<u64> {
    shared.state.lock().snapshots.range(after + 1..end).next().map(|(sequence, _)| *sequence)
}

fn write_stripe<D: Disk, T: Storage>(
    shared: &Shared<D, T>,
    memtable: &Memtable,
    after: u64,
    upto: u64,
    end: u64,
) -> Result<(), EngineError> {
    let mut batch = shared.tables.new_batch(TABLE_BATCH_BYTES);
    batch.put(Column::Meta, FLUSH_TARGET_KEY, &end.to_be_bytes());
    for tombstone in memtable.range_tombstones_between(after, upto) {
        batch.delete_range(tombstone.column, &tombstone.start, &tombstone.end);
    }
    let mut bytes = 0;
    for column in Column::ALL {
        for (key, content) in memtable.changed_between(column, after, upto) {
            match content {
                Some(content) => batch.put(column, key, content),
                None if mutated!(TombstonesNotFlushed) => {}
                None => batch.delete(column, key),
            }
            bytes += key.len() + content.map_or(0, <[u8]>::len);
            if bytes >= TABLE_BATCH_BYTES {
                if mutated!(FlushedSequenceFirst) {
                    batch.put(Column::Meta, FLUSHED_SEQUENCE_KEY, &end.to_be_bytes());
                }
                shared.tables.write(std::mem::replace(&mut batch, shared.tables.new_batch(TABLE_BATCH_BYTES)))?;
                crash_point!(FlushBatch);
                bytes = 0;
            }
        }
    }
    if upto < end {
        return shared.tables.write(batch);
    }
    batch.put(Column::Meta, FLUSHED_SEQUENCE_KEY, &end.to_be_bytes());
    shared.tables.write(batch)?;
    crash_point!(FlushWritten);
    Ok(())
}
