//! Flush: an immutable memtable is written into the tables.
//!
//! 1. *Switch the memtable*, by the writer: the log starts its next segment, and a new memtable
//!    becomes active (RocksDB's `SwitchMemtable`).
//! 2. *Sync* the segment of the immutable memtable. Frames that are not durable in the log must not
//!    reach the tables, or the tables could be ahead of the log after a crash.
//! 3. *Write* the memtable in stripes, at most `STRIPES_MAX`. An open snapshot is *within* the
//!    memtable if it shows some of the memtable's frames, but not all. The last stripe ends at the
//!    memtable's end; each other stripe ends at such a snapshot, the lowest first. Each stripe is
//!    written in batches: its range tombstones, then the newest version of each of its cells,
//!    tombstones included. The first batch of each stripe sets the flush target to Q, the
//!    memtable's last sequence; the last batch of the last stripe sets the flushed sequence to Q.
//!
//!    The tables have no log, and RocksDB may flush some of these batches on its own. Until the end
//!    of the flush, the tables durably have everything up to the previous flushed sequence P, and
//!    an unknown part of the frames from P to Q; the log has all of these frames. If the log loses
//!    some of them, the flush target shows that the tables are not a consistent state of the store.
//! 4. *Table sync*: all columns of the tables are flushed. From here on the flushed sequence Q is
//!    durable.
//! 5. *Install a read state* with a new RocksDB snapshot and without an immutable memtable: for new
//!    snapshots first, then, one after the other, for the open snapshots at or after Q. An open
//!    snapshot within the memtable gets the RocksDB snapshot that was taken after its stripe. So a
//!    long-lived snapshot keeps no memtable in memory: RocksDB keeps the old versions that the
//!    snapshot reads, and compacts them away later. Only a snapshot that is within the memtable and
//!    has no stripe keeps the memtable in memory, until the snapshot is dropped.
//! 6. *Remove* the segment.
//!
//! A memtable is switched when it reaches a limit of memory. Its memory includes all payloads of
//! its segment of the log. So the limit bounds the segment, too, even if a few hot rows are written
//! again and again.
//!
//! Stripes are pebble's snapshot stripes. Most snapshots within a memtable end during its flush, so
//! a stripe is chosen only after the stripe before is written. For each stripe the whole memtable
//! is walked, so the number of stripes is limited.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::read_state::{CurrentState, ImmutableMemtable, ReadState};
use super::shared::{FLUSH_TARGET_KEY, FLUSHED_SEQUENCE_KEY, Shared, WritePath, WriterState, wal_error};
use crate::disk::Disk;
use crate::engine::EngineError;
use crate::engine::storage::{Batch, Column, Storage};
use crate::memtable::{Memtable, MemtableWriter};
#[cfg(feature = "rocks")]
use crate::tunables::TABLE_ENTRY_BYTES;
use crate::tunables::{STRIPES_MAX, TABLE_BATCH_BYTES};

/// Snapshots of the tables; a snapshot has the frames up to the sequence that is its key.
type StripeSnapshots<V> = BTreeMap<u64, Arc<V>>;

/// Called by the writer after each batch; returns whether the memtable was switched.
///
/// Only one memtable is flushed at a time. If the active memtable reaches twice its limit before
/// the immutable one is flushed, the writer stalls: it flushes the immutable memtable itself, or
/// waits for the running flush.
pub fn switch_memtable_if_full<D: Disk, T: Storage>(
    shared: &Shared<D, T>,
    path: &WritePath<D>,
    writer: &mut WriterState<D>,
) -> Result<bool, EngineError> {
    let memory = writer.memtable.memtable().memory_bytes();
    if memory < path.memtable_bytes || path.is_disk_full.load(Ordering::Relaxed) {
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
        // If a writer has switched the memtable between `flush` and the lock, there is an immutable
        // memtable again. Then the next round flushes it first.
        if shared.state.lock().read_state.immutable.is_none() {
            switch_memtable(shared, path, &mut writer)?;
            break;
        }
    }
    flush(shared, path).map(drop)
}

/// Makes the active memtable immutable, if it has any entry. The caller must have flushed the
/// previous immutable memtable.
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
    writer.wal.rotate(salt).map_err(|error| shared.record_failure(wal_error(error)))?;
    let end = writer.wal.last_sequence();
    writer.memtable = MemtableWriter::new(end, path.secrets);
    let mut current = shared.state.lock();
    let memtable = Arc::clone(&current.read_state.active);
    let immutable = Some(ImmutableMemtable { memtable, last_sequence: end });
    let (active, tables) = (Arc::clone(writer.memtable.memtable()), Arc::clone(&current.read_state.tables));
    let flushed_sequence = current.read_state.flushed_sequence;
    current.read_state = Arc::new(ReadState { active, immutable, tables, flushed_sequence });
    drop(current);
    crash_point!(FlushMemtableSwitched);
    Ok(())
}

/// Flushes the immutable memtable, if there is one. Returns whether there was.
pub fn flush<D: Disk, T: Storage>(shared: &Shared<D, T>, path: &WritePath<D>) -> Result<bool, EngineError> {
    let _one = path.flush_lock.lock();
    let immutable = shared.state.lock().read_state.immutable.clone();
    let Some(ImmutableMemtable { memtable, last_sequence: end }) = immutable else {
        return shared.ensure_ok().map(|()| false);
    };
    shared.sync()?;
    // The flush may take long, and the segment that follows the flushed memtable's is new.
    path.wal.write_sync_record(false).map_err(|error| shared.record_failure(wal_error(error)))?;
    let written = write_memtable(shared, &memtable, end).and_then(|stripes| {
        shared.tables.sync()?;
        Ok((stripes, shared.tables.snapshot()?))
    });
    let (stripes, tables) = written.map_err(|error| shared.record_failure(error))?;
    crash_point!(FlushTablesSynced);
    drop(install_read_state(shared, &stripes, tables, end));
    path.wal
        .remove_segments_upto(end)
        .map(drop)
        .map_err(|error| shared.record_failure(EngineError::Undetermined(error.to_string())))?;
    crash_point!(FlushSegmentRemoved);
    Ok(true)
}

/// Replaces the read state for new snapshots, and that of each open snapshot that has a stripe or
/// whose sequence is at or after `end`. Returns the replaced read states, so that they are dropped
/// only after the state is unlocked.
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
        let read_state = match stripes.get(&sequence) {
            Some(tables) => {
                let (active, tables) = (Arc::clone(&shared.empty_memtable), Arc::clone(tables));
                Arc::new(ReadState { active, immutable: None, tables, flushed_sequence: sequence })
            }
            None if sequence >= end => Arc::clone(&newest),
            None => continue,
        };
        given.push((Arc::clone(&open.read_state), read_state));
    }
    // The state is unlocked first: replacing a read state waits for readers in the middle of a
    // lookup, and writers and new snapshots must not wait for them.
    drop(current);
    replaced.extend(given.into_iter().map(|(shared, new)| std::mem::replace(&mut *shared.write(), new)));
    replaced
}

/// What a flush of everything would write now.
#[cfg(feature = "rocks")]
#[derive(Default)]
pub struct Unflushed {
    pub deletions: u64,
    /// About the size of the tables that the flush would make, without compression.
    pub bytes: u64,
}

#[cfg(feature = "rocks")]
pub fn unflushed<D: Disk, T: Storage>(shared: &Shared<D, T>) -> Unflushed {
    let read_state = Arc::clone(&shared.state.lock().read_state);
    let mut found = Unflushed::default();
    let mut add = |bytes: usize, is_deletion: bool| {
        found.deletions += u64::from(is_deletion);
        found.bytes += (bytes + TABLE_ENTRY_BYTES) as u64;
    };
    for memtable in read_state.memtables() {
        for column in Column::ALL {
            let mut before: &[u8] = &[];
            for (key, content) in memtable.changed_between(column, read_state.flushed_sequence, u64::MAX) {
                // A table has only what differs from the key before.
                let shared = key.iter().zip(before).take_while(|(one, other)| one == other).count();
                add(key.len() - shared + content.map_or(0, <[u8]>::len), content.is_none());
                before = key;
            }
        }
        for tombstone in memtable.range_tombstones_between(read_state.flushed_sequence, u64::MAX) {
            add(tombstone.start.len() + tombstone.end.len(), true);
        }
    }
    found
}

/// Writes the memtable into the tables. Returns snapshots of the tables: one from before the
/// memtable, and one from after each stripe but the last.
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

/// The lowest sequence of an open snapshot after `after` and before `end`.
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
                None => batch.delete(column, key),
            }
            bytes += key.len() + content.map_or(0, <[u8]>::len);
            if bytes >= TABLE_BATCH_BYTES {
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
