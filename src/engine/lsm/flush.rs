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

use super::{
    CurrentState, FLUSH_TARGET_KEY, FLUSHED_SEQUENCE_KEY, ImmutableMemtable, ReadState, Shared, WritePath, WriterState,
    wal_error,
};
use crate::disk::Disk;
use crate::engine::EngineError;
use crate::engine::storage::{Batch, Column, Storage};
use crate::memtable::{Memtable, MemtableWriter};

/// Approximate size of a batch for the tables, in bytes.
// Crash tests write little, and must cover flushes of several batches.
const TABLE_BATCH_BYTES: usize = if cfg!(any(test, feature = "crashtest")) { 300 } else { 1 << 20 };

/// Snapshots of the tables at the ends of stripes, by sequence.
type StripeSnapshots<V> = BTreeMap<u64, Arc<V>>;

/// The most stripes of one flush.
const STRIPES_MAX: usize = if cfg!(test) { 4 } else { 256 };

impl<D: Disk, T: Storage> Shared<D, T> {
    /// Called by the writer after each batch; returns whether the memtable was switched.
    ///
    /// Only one memtable is flushed at a time. When the next one is twice full, the writer stalls:
    /// it flushes the immutable one itself, or waits for the flush that runs.
    pub(super) fn switch_memtable_if_full(
        &self,
        path: &WritePath<D>,
        writer: &mut WriterState<D>,
    ) -> Result<bool, EngineError> {
        let memory = writer.memtable.memtable().memory_bytes();
        if memory < path.memtable_bytes {
            return Ok(false);
        }
        if self.state.lock().read_state.immutable.is_some() {
            if memory / 2 < path.memtable_bytes {
                return Ok(false);
            }
            let _stalled = self.stalls.begin();
            self.flush(path)?;
        }
        self.switch_memtable(path, writer).map(|()| true)
    }

    pub(super) fn flush_all(&self) -> Result<(), EngineError> {
        let path = self.write_path()?;
        loop {
            self.flush(path)?;
            let mut writer = path.writer.lock();
            // A writer may have switched the next memtable meanwhile.
            if self.state.lock().read_state.immutable.is_none() {
                self.switch_memtable(path, &mut writer)?;
                break;
            }
        }
        self.flush(path)
    }

    /// Makes the active memtable immutable, if it has any entry. The one before must be flushed.
    fn switch_memtable(&self, path: &WritePath<D>, writer: &mut WriterState<D>) -> Result<(), EngineError> {
        self.ensure_ok()?;
        if writer.memtable.memtable().is_empty() {
            return Ok(());
        }
        let salt = (writer.next_salt)();
        writer.wal.rotate(salt).map_err(|why| self.record_failure(wal_error(why)))?;
        let end = writer.wal.last_sequence();
        writer.memtable = MemtableWriter::new(end, path.secrets);
        let mut current = self.state.lock();
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
    pub(super) fn flush(&self, path: &WritePath<D>) -> Result<(), EngineError> {
        let _one = path.flush_lock.lock();
        let immutable = self.state.lock().read_state.immutable.clone();
        let Some(ImmutableMemtable { memtable, last_sequence: end }) = immutable else {
            return self.ensure_ok();
        };
        if !mutated!(FlushesUnsynced) {
            self.sync()?;
        }
        if mutated!(SegmentRemovedEarly) {
            let _ = path.wal.remove_segments_upto(end);
        }
        let written = self.write_memtable(&memtable, end).and_then(|stripes| {
            self.tables.sync()?;
            Ok((stripes, self.tables.snapshot()?))
        });
        let (stripes, tables) = written.map_err(|why| self.record_failure(why))?;
        crash_point!(FlushTablesSynced);
        drop(self.install_read_state(&stripes, tables, end));
        path.wal
            .remove_segments_upto(end)
            .map(drop)
            .map_err(|why| self.record_failure(EngineError::Undetermined(why.to_string())))?;
        crash_point!(FlushSegmentRemoved);
        Ok(())
    }

    /// Installs the new read state for new snapshots, and one for each open snapshot that has a
    /// stripe or is at the end. Returns the old ones, to be dropped without the lock.
    fn install_read_state(
        &self,
        stripes: &StripeSnapshots<T::Snapshot>,
        tables: T::Snapshot,
        end: u64,
    ) -> Vec<Arc<ReadState<T::Snapshot>>> {
        let mut current = self.state.lock();
        let CurrentState { read_state, snapshots, .. } = &mut *current;
        let active = Arc::clone(&read_state.active);
        let newest = Arc::new(ReadState { active, immutable: None, tables: Arc::new(tables), flushed_sequence: end });
        let mut replaced = vec![std::mem::replace(read_state, Arc::clone(&newest))];
        let mut given = Vec::new();
        for (&sequence, open) in snapshots {
            let read_state = match stripes.get(&sequence).filter(|_| !mutated!(StripesShowEnd)) {
                Some(tables) => {
                    let (active, tables) = (Arc::clone(&self.empty_memtable), Arc::clone(tables));
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
    fn write_memtable(&self, memtable: &Memtable, end: u64) -> Result<StripeSnapshots<T::Snapshot>, EngineError> {
        let (mut after, before) = {
            let read_state = &self.state.lock().read_state;
            (read_state.flushed_sequence, Arc::clone(&read_state.tables))
        };
        let mut stripes = StripeSnapshots::from([(after, before)]);
        loop {
            let next = if stripes.len() < STRIPES_MAX { self.next_snapshot_sequence(after, end) } else { None };
            self.write_stripe(memtable, after, next.unwrap_or(end), end)?;
            let Some(next) = next else { return Ok(stripes) };
            stripes.insert(next, Arc::new(self.tables.snapshot()?));
            crash_point!(FlushStripe);
            after = next;
        }
    }

    /// The first sequence between the two with an open snapshot.
    fn next_snapshot_sequence(&self, after: u64, end: u64) -> Option<u64> {
        self.state.lock().snapshots.range(after + 1..end).next().map(|(sequence, _)| *sequence)
    }

    fn write_stripe(&self, memtable: &Memtable, after: u64, upto: u64, end: u64) -> Result<(), EngineError> {
        let mut batch = self.tables.new_batch(TABLE_BATCH_BYTES);
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
                    self.tables.write(std::mem::replace(&mut batch, self.tables.new_batch(TABLE_BATCH_BYTES)))?;
                    crash_point!(FlushBatch);
                    bytes = 0;
                }
            }
        }
        if upto < end {
            return self.tables.write(batch);
        }
        batch.put(Column::Meta, FLUSHED_SEQUENCE_KEY, &end.to_be_bytes());
        self.tables.write(batch)?;
        crash_point!(FlushWritten);
        Ok(())
    }
}
