//! Hand-down: a generation goes from the window into the tables.
//!
//! 1. *Freeze*, by the writer: the log begins its next segment, the window its next generation.
//! 2. *Sync* the frozen segment. What is not durable in the log never reaches the tables: after a crash they would be ahead of it.
//! 3. *Write* its ranges that were emptied, then the newest version of each of its cells, deletions included, in batches; with the
//!    last one the position. The tables have no log. They may flush some of it by themselves, so until this is over they are
//!    position P and a part of P to Q; the log still has all of it.
//! 4. *Flush* all columns of the tables. From here on position Q is durable.
//! 5. *Replace* the layers, in one step: the frozen generation is dropped, and the tables' new view has its cells.
//! 6. *Free* the segment.
//!
//! A generation is frozen at a limit of memory or of log, whichever is reached first: a few hot rows fill the log and no memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Frozen, Layers, Leader, Life, POSITION, Shared, failed};
use crate::disk::Disk;
use crate::engine::storage::{Batch, Column, Storage};
use crate::engine::{EngineError, RowRange};
use crate::window::{Generation, Writer};

/// The size of a batch for the tables, about.
// Tests of crashes write little, and must cover hand-downs of several batches.
const BATCH_BYTES: usize = if cfg!(any(test, feature = "crashtest")) { 300 } else { 1 << 20 };

impl<D: Disk, T: Storage> Shared<D, T> {
    /// Called by the writer after each batch; returns whether a generation was frozen. One generation at a time goes down; the writer
    /// waits for it when the next one is twice full.
    pub(super) fn freeze_when_full(&self, life: &Life<D>, leader: &mut Leader<D>) -> Result<bool, EngineError> {
        let (memory, log, limits) = (leader.window.generation().bytes(), leader.log.segment_bytes(), &life.limits);
        if memory < limits.memory_bytes && log < limits.log_bytes {
            return Ok(false);
        }
        if self.current.lock().layers.frozen.is_some() {
            let is_twice_full = memory / 2 >= limits.memory_bytes || log / 2 >= limits.log_bytes;
            if !is_twice_full {
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
        let written = self.write_down(&generation, end).and_then(|()| self.tables.sync());
        let tables = written.and_then(|()| self.tables.view()).map_err(|why| self.fail(why))?;
        crash_point!(HandDownFlushed);
        {
            let mut current = self.current.lock();
            let active = Arc::clone(&current.layers.active);
            current.layers = Arc::new(Layers { active, frozen: None, tables: Arc::new(tables), position: end });
            self.hand_downs.fetch_add(1, Ordering::AcqRel);
        }
        life.syncer.free(end).map(drop).map_err(|why| self.fail(EngineError::Unknown(why.to_string())))?;
        crash_point!(HandDownFreed);
        Ok(())
    }

    fn write_down(&self, generation: &Generation, end: u64) -> Result<(), EngineError> {
        let mut batch = self.tables.batch(BATCH_BYTES);
        for erasure in generation.erasures() {
            batch.delete_range(erasure.column, &erasure.start, &erasure.end);
        }
        let (all, mut bytes) = (RowRange::all(), 0);
        for column in Column::ALL {
            for (key, content) in generation.range(column, &all, false, u64::MAX) {
                match content {
                    Some(content) => batch.put(column, key, content),
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
        batch.put(Column::Meta, POSITION, &end.to_be_bytes());
        self.tables.write(batch)?;
        crash_point!(HandDownWritten);
        Ok(())
    }
}
