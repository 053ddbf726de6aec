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

use super::{BEGUN, Current, Frozen, Layers, Leader, Life, POSITION, Shared, failed};
use crate::disk::Disk;
use crate::engine::EngineError;
use crate::engine::storage::{Batch, Column, Storage};
use crate::memtable::{Generation, Writer};

/// The size of a batch for the tables, about.
// Tests of crashes write little, and must cover hand-downs of several batches.
const BATCH_BYTES: usize = if cfg!(any(test, feature = "crashtest")) { 300 } else { 1 << 20 };

/// Views of the tables at the ends of slices.
type Slices<V> = BTreeMap<u64, Arc<V>>;

/// Slices of one hand-down at most.
const SLICES_MAX: usize = if cfg!(test) { 4 } else { 256 };

impl<D: Disk, T: Storage> Shared<D, T> {
    /// Called by the writer after each batch; returns whether a generation was frozen. One generation at a time goes down; when
    /// the next one is twice full, the writer makes the hand-down itself, or waits for the one that runs.
    pub(super) fn freeze_when_full(&self, life: &Life<D>, leader: &mut Leader<D>) -> Result<bool, EngineError> {
        let memory = leader.window.generation().bytes();
        if memory < life.memory_limit {
            return Ok(false);
        }
        if self.current.lock().layers.frozen.is_some() {
            if memory / 2 < life.memory_limit {
                return Ok(false);
            }
            let _stalled = self.stalls.begin();
            self.hand_down(life)?;
        }
        self.freeze(life, leader).map(|()| true)
    }

    pub(super) fn hand_down_all(&self) -> Result<(), EngineError> {
        let life = self.life()?;
        loop {
            self.hand_down(life)?;
            let mut leader = life.leader.lock();
            // A writer may have frozen the next one meanwhile.
            if self.current.lock().layers.frozen.is_none() {
                self.freeze(life, &mut leader)?;
                break;
            }
        }
        self.hand_down(life)
    }

    /// Ends the generation that is written, if there is anything in it. The one before has gone down.
    fn freeze(&self, life: &Life<D>, leader: &mut Leader<D>) -> Result<(), EngineError> {
        self.check()?;
        if leader.window.generation().is_empty() {
            return Ok(());
        }
        let salt = (leader.salts)();
        leader.log.rotate(salt).map_err(|why| self.fail(failed(why)))?;
        let end = leader.log.last();
        leader.window = Writer::new(end, life.secrets);
        let mut current = self.current.lock();
        let frozen = Some(Frozen { generation: Arc::clone(&current.layers.active), end });
        let (active, tables) = (Arc::clone(leader.window.generation()), Arc::clone(&current.layers.tables));
        let position = current.layers.position;
        current.layers = Arc::new(Layers { active, frozen, tables, position });
        // The last frames may be marks, which show nothing. A view from here on lies within the next generation, not this one.
        current.visible = end;
        drop(current);
        crash_point!(HandDownFrozen);
        Ok(())
    }

    /// Hands the frozen generation down, if there is one.
    pub(super) fn hand_down(&self, life: &Life<D>) -> Result<(), EngineError> {
        let _one = life.handing_down.lock();
        let frozen = self.current.lock().layers.frozen.clone();
        let Some(Frozen { generation, end }) = frozen else { return self.check() };
        if !mutated!(HandsDownUnsynced) {
            self.sync()?;
        }
        if mutated!(FreesEarly) {
            let _ = life.syncer.free(end);
        }
        let written = self.write_down(&generation, end).and_then(|slices| {
            self.tables.sync()?;
            Ok((slices, self.tables.view()?))
        });
        let (slices, tables) = written.map_err(|why| self.fail(why))?;
        crash_point!(HandDownFlushed);
        drop(self.replace_layers(&slices, tables, end));
        life.syncer.free(end).map(drop).map_err(|why| self.fail(EngineError::Unknown(why.to_string())))?;
        crash_point!(HandDownFreed);
        Ok(())
    }

    /// Gives its new layers to every view for which there are some. Returns the old ones, to be dropped without the lock.
    fn replace_layers(&self, slices: &Slices<T::View>, tables: T::View, end: u64) -> Vec<Arc<Layers<T::View>>> {
        let mut current = self.current.lock();
        let Current { layers, moments, .. } = &mut *current;
        let active = Arc::clone(&layers.active);
        let newest = Arc::new(Layers { active, frozen: None, tables: Arc::new(tables), position: end });
        let mut replaced = vec![std::mem::replace(layers, Arc::clone(&newest))];
        let mut given = Vec::new();
        for (&position, moment) in moments {
            let layers = match slices.get(&position).filter(|_| !mutated!(SlicesShowEnd)) {
                Some(tables) => {
                    let (active, tables) = (Arc::clone(&self.nothing), Arc::clone(tables));
                    Arc::new(Layers { active, frozen: None, tables, position })
                }
                None if position >= end || mutated!(SlicesShowEnd) => Arc::clone(&newest),
                None => continue,
            };
            given.push((Arc::clone(&moment.layers), layers));
        }
        // Writers and new views do not wait for a reader that is in the middle of a look-up.
        drop(current);
        replaced.extend(given.into_iter().map(|(served, layers)| std::mem::replace(&mut *served.write(), layers)));
        replaced
    }

    /// Writes the generation into the tables. Returns the tables before it and after each slice but the last.
    fn write_down(&self, generation: &Generation, end: u64) -> Result<Slices<T::View>, EngineError> {
        let (mut after, before) = {
            let layers = &self.current.lock().layers;
            (layers.position, Arc::clone(&layers.tables))
        };
        let mut slices = Slices::from([(after, before)]);
        loop {
            let moment = if slices.len() < SLICES_MAX { self.next_moment(after, end) } else { None };
            self.write_slice(generation, after, moment.unwrap_or(end), end)?;
            let Some(moment) = moment else { return Ok(slices) };
            slices.insert(moment, Arc::new(self.tables.view()?));
            crash_point!(HandDownSlice);
            after = moment;
        }
    }

    /// The first sequence between the two at which there are views.
    fn next_moment(&self, after: u64, end: u64) -> Option<u64> {
        self.current.lock().moments.range(after + 1..end).next().map(|(sequence, _)| *sequence)
    }

    fn write_slice(&self, generation: &Generation, after: u64, upto: u64, end: u64) -> Result<(), EngineError> {
        let mut batch = self.tables.batch(BATCH_BYTES);
        batch.put(Column::Meta, BEGUN, &end.to_be_bytes());
        for erasure in generation.erasures_of(after, upto) {
            batch.delete_range(erasure.column, &erasure.start, &erasure.end);
        }
        let mut bytes = 0;
        for column in Column::ALL {
            for (key, content) in generation.written_since(column, after, upto) {
                match content {
                    Some(content) => batch.put(column, key, content),
                    None if mutated!(DeletionsNotHandedDown) => {}
                    None => batch.delete(column, key),
                }
                bytes += key.len() + content.map_or(0, <[u8]>::len);
                if bytes >= BATCH_BYTES {
                    if mutated!(PositionFirst) {
                        batch.put(Column::Meta, POSITION, &end.to_be_bytes());
                    }
                    self.tables.write(std::mem::replace(&mut batch, self.tables.batch(BATCH_BYTES)))?;
                    crash_point!(HandDownBatch);
                    bytes = 0;
                }
            }
        }
        if upto < end {
            return self.tables.write(batch);
        }
        batch.put(Column::Meta, POSITION, &end.to_be_bytes());
        self.tables.write(batch)?;
        crash_point!(HandDownWritten);
        Ok(())
    }
}
