//! Hand-down: a generation goes from the window into the tables.
//!
//! 1. *Freeze*, by the writer: the log begins its next segment, the window its next generation.
//! 2. *Sync* the frozen segment. What is not durable in the log never reaches the tables: after a crash they would be ahead of it.
//! 3. *Write* it in slices: one up to the sequence of each view within the generation, and one up to its end. Of a slice the ranges
//!    that were emptied are written, then the newest version of each cell, deletions included, in batches; with the first one the end
//!    Q, as begun, and with the very last one the position.
//!
//!    The tables have no log, and may flush some of it by themselves. Until this is over they have everything up to P and some of what
//!    lies between P and Q; the log has all of it. If the log loses that, Q says that the tables are no state of the store.
//! 4. *Flush* all columns of the tables. From here on position Q is durable.
//! 5. *Replace* the layers: the frozen generation is dropped, and the tables' new view has its cells. New views get them first, then
//!    each open view, in one step for each. A view within the generation gets the tables as they were after its slice, in RocksDB a
//!    snapshot. So the tables keep and collect old versions, and a view that lives long keeps no generation in memory.
//! 6. *Free* the segment.
//!
//! A generation is frozen at a limit of memory. That bounds its segment of the log, too: payloads stay in memory until their
//! generation goes, also where a few hot rows are written again and again.
//!
//! Most views that are within a generation when its hand-down begins end while it is written, so the next slice is chosen when the one
//! before is written. Each slice walks over the whole generation. Therefore there is a limit to their number; views for which there is
//! no slice keep the generation in memory until they are dropped.

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

/// The size of a batch for the tables, about.
// Tests of crashes write little, and must cover hand-downs of several batches.
const TABLE_BATCH_BYTES: usize = if cfg!(any(test, feature = "crashtest")) { 300 } else { 1 << 20 };

/// Views of the tables at the ends of slices.
type StripeSnapshots<V> = BTreeMap<u64, Arc<V>>;

/// Slices of one hand-down at most.
const STRIPES_MAX: usize = if cfg!(test) { 4 } else { 256 };

impl<D: Disk, T: Storage> Shared<D, T> {
    /// Called by the writer after each batch; returns whether a generation was frozen. One generation at a time goes down; when
    /// the next one is twice full, the writer makes the hand-down itself, or waits for the one that runs.
    pub(super) fn switch_memtable_if_full(
        &self,
        life: &WritePath<D>,
        leader: &mut WriterState<D>,
    ) -> Result<bool, EngineError> {
        let memory = leader.memtable.memtable().memory_bytes();
        if memory < life.memtable_bytes {
            return Ok(false);
        }
        if self.state.lock().read_state.immutable.is_some() {
            if memory / 2 < life.memtable_bytes {
                return Ok(false);
            }
            let _stalled = self.stalls.begin();
            self.flush(life)?;
        }
        self.switch_memtable(life, leader).map(|()| true)
    }

    pub(super) fn flush_all(&self) -> Result<(), EngineError> {
        let life = self.write_path()?;
        loop {
            self.flush(life)?;
            let mut leader = life.writer.lock();
            // A writer may have frozen the next one meanwhile.
            if self.state.lock().read_state.immutable.is_none() {
                self.switch_memtable(life, &mut leader)?;
                break;
            }
        }
        self.flush(life)
    }

    /// Ends the generation that is written, if there is anything in it. The one before has gone down.
    fn switch_memtable(&self, life: &WritePath<D>, leader: &mut WriterState<D>) -> Result<(), EngineError> {
        self.ensure_ok()?;
        if leader.memtable.memtable().is_empty() {
            return Ok(());
        }
        let salt = (leader.next_salt)();
        leader.wal.rotate(salt).map_err(|why| self.record_failure(wal_error(why)))?;
        let end = leader.wal.last_sequence();
        leader.memtable = MemtableWriter::new(end, life.secrets);
        let mut current = self.state.lock();
        let frozen = Some(ImmutableMemtable { memtable: Arc::clone(&current.read_state.active), last_sequence: end });
        let (active, tables) = (Arc::clone(leader.memtable.memtable()), Arc::clone(&current.read_state.tables));
        let position = current.read_state.flushed_sequence;
        current.read_state = Arc::new(ReadState { active, immutable: frozen, tables, flushed_sequence: position });
        // The last frames may be marks, which show nothing. A view from here on lies within the next generation, not this one.
        current.visible_sequence = end;
        drop(current);
        crash_point!(FlushMemtableSwitched);
        Ok(())
    }

    /// Hands the frozen generation down, if there is one.
    pub(super) fn flush(&self, life: &WritePath<D>) -> Result<(), EngineError> {
        let _one = life.flush_lock.lock();
        let frozen = self.state.lock().read_state.immutable.clone();
        let Some(ImmutableMemtable { memtable: generation, last_sequence: end }) = frozen else {
            return self.ensure_ok();
        };
        if !mutated!(FlushesUnsynced) {
            self.sync()?;
        }
        if mutated!(SegmentRemovedEarly) {
            let _ = life.wal.remove_segments_upto(end);
        }
        let written = self.write_memtable(&generation, end).and_then(|slices| {
            self.tables.sync()?;
            Ok((slices, self.tables.snapshot()?))
        });
        let (slices, tables) = written.map_err(|why| self.record_failure(why))?;
        crash_point!(FlushTablesSynced);
        drop(self.install_read_state(&slices, tables, end));
        life.wal
            .remove_segments_upto(end)
            .map(drop)
            .map_err(|why| self.record_failure(EngineError::Undetermined(why.to_string())))?;
        crash_point!(FlushSegmentRemoved);
        Ok(())
    }

    /// Gives its new layers to every view for which there are some. Returns the old ones, to be dropped without the lock.
    fn install_read_state(
        &self,
        stripes: &StripeSnapshots<T::Snapshot>,
        tables: T::Snapshot,
        end: u64,
    ) -> Vec<Arc<ReadState<T::Snapshot>>> {
        let mut current = self.state.lock();
        let CurrentState { read_state: layers, snapshots: moments, .. } = &mut *current;
        let active = Arc::clone(&layers.active);
        let newest = Arc::new(ReadState { active, immutable: None, tables: Arc::new(tables), flushed_sequence: end });
        let mut replaced = vec![std::mem::replace(layers, Arc::clone(&newest))];
        let mut given = Vec::new();
        for (&position, moment) in moments {
            let layers = match stripes.get(&position).filter(|_| !mutated!(StripesShowEnd)) {
                Some(tables) => {
                    let (active, tables) = (Arc::clone(&self.empty_memtable), Arc::clone(tables));
                    Arc::new(ReadState { active, immutable: None, tables, flushed_sequence: position })
                }
                None if position >= end || mutated!(StripesShowEnd) => Arc::clone(&newest),
                None => continue,
            };
            given.push((Arc::clone(&moment.read_state), layers));
        }
        // Writers and new views do not wait for a reader that is in the middle of a look-up.
        drop(current);
        replaced.extend(given.into_iter().map(|(served, layers)| std::mem::replace(&mut *served.write(), layers)));
        replaced
    }

    /// Writes the generation into the tables. Returns the tables before it and after each slice but the last.
    fn write_memtable(&self, memtable: &Memtable, end: u64) -> Result<StripeSnapshots<T::Snapshot>, EngineError> {
        let (mut after, before) = {
            let layers = &self.state.lock().read_state;
            (layers.flushed_sequence, Arc::clone(&layers.tables))
        };
        let mut slices = StripeSnapshots::from([(after, before)]);
        loop {
            let moment = if slices.len() < STRIPES_MAX { self.next_snapshot_sequence(after, end) } else { None };
            self.write_stripe(memtable, after, moment.unwrap_or(end), end)?;
            let Some(moment) = moment else { return Ok(slices) };
            slices.insert(moment, Arc::new(self.tables.snapshot()?));
            crash_point!(FlushStripe);
            after = moment;
        }
    }

    /// The first sequence between the two at which there are views.
    fn next_snapshot_sequence(&self, after: u64, end: u64) -> Option<u64> {
        self.state.lock().snapshots.range(after + 1..end).next().map(|(sequence, _)| *sequence)
    }

    fn write_stripe(&self, memtable: &Memtable, after: u64, upto: u64, end: u64) -> Result<(), EngineError> {
        let mut batch = self.tables.new_batch(TABLE_BATCH_BYTES);
        batch.put(Column::Meta, FLUSH_TARGET_KEY, &end.to_be_bytes());
        for erasure in memtable.range_tombstones_between(after, upto) {
            batch.delete_range(erasure.column, &erasure.start, &erasure.end);
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
