//! An engine in memory that a test can crash.
//!
//! Each cell has a list of versions: pairs of batch number and value. A snapshot is a batch number;
//! the current state is the newest version of each cell. A crash picks a batch number between the
//! last sync and the last write, and deletes all later versions. So a prefix of the batches
//! survives, as in the write-ahead log of a real store. Versions that no snapshot and no crash can
//! reach are dropped at the next write of their cell.
//!
//! The module is public so that your own tests can use a store in memory
//! ([`Store::in_memory`](crate::Store::in_memory)) and crash it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::local::LocalEngine;
use super::storage::{Batch, CellReader, Column, Storage};
use super::{EngineError, RowRange};
use crate::process::Process;

/// An engine in memory.
pub type SimEngine = LocalEngine<SimStorage>;

/// The number of a batch: how many batches were written up to it, itself included.
type BatchNumber = u64;
type CellVersions = Vec<(BatchNumber, Option<Arc<[u8]>>)>;

/// The memory of a [`SimEngine`]; clones share it, as processes share a disk.
#[derive(Clone, Debug, Default)]
pub struct SimStorage {
    state: Arc<Mutex<State>>,
    writing: Arc<crate::sync::Mutex<()>>,
    /// The incarnation in which the handle was made: the handle fails once the machine has crashed.
    /// `None`: the handle belongs to a client of a simulated server, and still works after a crash
    /// of the server.
    incarnation: Option<u64>,
    process: Process,
}

#[derive(Debug, Default)]
struct State {
    cells: BTreeMap<(Column, Vec<u8>), CellVersions>,
    written: BatchNumber,
    synced: BatchNumber,
    views: BTreeMap<BatchNumber, usize>,
    crashes: u64,
    /// Counts down to the sync that fails: at 1 the next sync fails, at 0 none.
    syncs_until_fault: u64,
    /// Counts down to the write that fails: at 1 the next write fails, at 0 none.
    writes_until_fault: u64,
    /// Whether the write that fails is applied nevertheless.
    fault_applies: bool,
    /// Whether a write or sync has failed since the last crash.
    has_failed: bool,
    /// Whether a sync has failed since the last crash. After a failed sync nothing more becomes
    /// durable until the next crash: neither the batches that the failed sync covered nor later
    /// ones.
    sync_lost: bool,
}

/// The effect of a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CrashReport {
    /// The number of batches that were written but not synced.
    pub unsynced: u64,
    /// The number of unsynced batches that are lost. They are the newest ones.
    pub lost: u64,
}

impl SimStorage {
    /// Empty memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// An engine with exclusive use of this memory, like a store in one process.
    pub fn exclusive_engine(&self) -> SimEngine {
        LocalEngine::new(self.handle(), true)
    }

    /// A handle for one process: it fails after the next crash.
    pub(crate) fn handle(&self) -> Self {
        let incarnation = Some(self.state.lock().crashes);
        Self { incarnation, ..self.clone() }
    }

    /// An engine for one client of a simulated server: all shared engines of this memory see the
    /// same rows.
    pub fn shared_engine(&self) -> SimEngine {
        LocalEngine::new(Self { incarnation: None, ..self.clone() }, false)
    }

    /// Cuts the power: a prefix of the batches written since the last sync survives.
    ///
    /// `choice` selects the length of the prefix; any number works, because it is taken modulo the
    /// number of possibilities. Exclusive engines that are open fail from here on: open a new one
    /// on this memory.
    pub fn crash(&self, choice: u64) -> CrashReport {
        let mut state = self.state.lock();
        let unsynced = state.written - state.synced;
        let kept = state.synced + choice % (unsynced + 1);
        let lost = state.written - kept;
        state.cells.retain(|_, versions| {
            versions.retain(|(batch, _)| *batch <= kept);
            !versions.is_empty()
        });
        // `written` is not set back to `kept`, because batch numbers must not be reused: a snapshot
        // of a shared engine stays open across the crash and must not show later writes.
        state.synced = state.written;
        state.crashes += 1;
        (state.syncs_until_fault, state.writes_until_fault) = (0, 0);
        (state.sync_lost, state.has_failed) = (false, false);
        CrashReport { unsynced, lost }
    }

    /// Makes the `nth` sync from here fail; 1 is the next.
    ///
    /// As on a real disk, a later sync may succeed, but proves nothing: after the failure nothing
    /// more becomes durable until the next crash.
    pub fn fail_sync(&self, nth: u64) {
        self.state.lock().syncs_until_fault = nth;
    }

    /// Makes the `nth` write from here return an error although it is applied, as when a disk fails
    /// after writing the log; 1 is the next.
    pub fn fail_write(&self, nth: u64) {
        let mut state = self.state.lock();
        (state.writes_until_fault, state.fault_applies) = (nth, true);
    }

    /// Makes the `nth` write from here return an error without being applied, as when a disk is
    /// full; 1 is the next.
    pub fn reject_write(&self, nth: u64) {
        let mut state = self.state.lock();
        (state.writes_until_fault, state.fault_applies) = (nth, false);
    }

    /// Whether a write or sync has failed since the last crash.
    pub fn has_failed(&self) -> bool {
        self.state.lock().has_failed
    }

    /// The number of batches that the worst crash would lose.
    pub fn unsynced(&self) -> u64 {
        let state = self.state.lock();
        state.written - state.synced
    }

    fn lock_if_alive(&self) -> Result<MutexGuard<'_, State>, EngineError> {
        let state = self.state.lock();
        match self.incarnation {
            Some(incarnation) if incarnation != state.crashes => {
                Err(EngineError::Undetermined("the simulated machine has crashed".into()))
            }
            _ => Ok(state),
        }
    }
}

impl State {
    fn at(versions: &CellVersions, batch: BatchNumber) -> Option<&Arc<[u8]>> {
        let newer = versions.partition_point(|(written, _)| *written <= batch);
        versions[..newer].last()?.1.as_ref()
    }

    fn put(&mut self, column: Column, key: Vec<u8>, value: Option<Arc<[u8]>>) {
        let reachable = self.views.keys().next().copied().unwrap_or(BatchNumber::MAX).min(self.synced);
        let versions = self.cells.entry((column, key)).or_default();
        let oldest = versions.partition_point(|(written, _)| *written <= reachable).saturating_sub(1);
        versions.drain(..oldest);
        versions.push((self.written, value));
    }

    fn get(&self, column: Column, key: &[u8], batch: BatchNumber) -> Option<Arc<[u8]>> {
        Self::at(self.cells.get(&(column, key.to_vec()))?, batch).cloned()
    }

    fn scan(
        &self,
        column: Column,
        range: &RowRange,
        backwards: bool,
        batch: BatchNumber,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) {
        let in_column = |bound: &Bound<Vec<u8>>| match bound {
            Bound::Included(key) => Some(Bound::Included((column, key.clone()))),
            Bound::Excluded(key) => Some(Bound::Excluded((column, key.clone()))),
            Bound::Unbounded => None,
        };
        let start = in_column(&range.start).unwrap_or(Bound::Included((column, Vec::new())));
        let next = Column::ALL.into_iter().find(|other| *other > column);
        let end = in_column(&range.end)
            .unwrap_or_else(|| next.map_or(Bound::Unbounded, |next| Bound::Excluded((next, Vec::new()))));
        if is_empty(&start, &end) {
            return;
        }
        let mut cells = self.cells.range((start, end));
        let mut step = || if backwards { cells.next_back() } else { cells.next() };
        while let Some(((_, key), versions)) = step() {
            if Self::at(versions, batch).is_some_and(|value| !visit(key, value)) {
                return;
            }
        }
    }
}

/// Whether a range is inverted or empty. `BTreeMap::range` would panic for an inverted range.
fn is_empty<T: Ord>(start: &Bound<T>, end: &Bound<T>) -> bool {
    match (start, end) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (Bound::Included(start) | Bound::Excluded(start), Bound::Included(end) | Bound::Excluded(end)) => start >= end,
    }
}

impl CellReader for SimStorage {
    fn get<T>(&self, column: Column, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, EngineError> {
        let value = self.lock_if_alive()?.get(column, key, BatchNumber::MAX);
        Ok(value.map(|value| read(&value)))
    }

    fn scan(
        &self,
        column: Column,
        range: &RowRange,
        backwards: bool,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), EngineError> {
        self.lock_if_alive()?.scan(column, range, backwards, BatchNumber::MAX, visit);
        Ok(())
    }
}

impl Storage for SimStorage {
    type Snapshot = SimView;
    type Batch<'a> = SimBatch;

    fn write_lock(&self) -> &crate::sync::Mutex<()> {
        &self.writing
    }

    fn snapshot(&self) -> Result<SimView, EngineError> {
        let mut state = self.lock_if_alive()?;
        let batch = state.written;
        *state.views.entry(batch).or_default() += 1;
        Ok(SimView { storage: self.clone(), batch })
    }

    fn new_batch(&self, _bytes: usize) -> SimBatch {
        SimBatch::default()
    }

    fn write(&self, batch: SimBatch) -> Result<(), EngineError> {
        let mut state = self.lock_if_alive()?;
        let fails = state.writes_until_fault == 1;
        state.writes_until_fault = state.writes_until_fault.saturating_sub(1);
        state.has_failed |= fails;
        let failure = || Err(EngineError::Undetermined("the simulated disk has failed to write".into()));
        if fails && !state.fault_applies {
            return failure();
        }
        state.written += 1;
        for change in batch.0 {
            match change {
                Modification::Set(column, key, value) => state.put(column, key, value),
                Modification::DeleteRange(column, start, end) => {
                    let range = RowRange { start: Bound::Included(start), end: Bound::Excluded(end) };
                    let mut keys = Vec::new();
                    state.scan(column, &range, false, BatchNumber::MAX, |key, _| {
                        keys.push(key.to_vec());
                        true
                    });
                    for key in keys {
                        state.put(column, key, None);
                    }
                }
            }
        }
        if fails { failure() } else { Ok(()) }
    }

    fn sync(&self) -> Result<(), EngineError> {
        let mut state = self.lock_if_alive()?;
        let fails = state.syncs_until_fault == 1;
        state.syncs_until_fault = state.syncs_until_fault.saturating_sub(1);
        if fails {
            (state.sync_lost, state.has_failed) = (true, true);
            return Err(EngineError::Undetermined("the simulated disk has failed to sync".into()));
        }
        if !state.sync_lost {
            state.synced = state.written;
        }
        Ok(())
    }
}

/// A snapshot of a [`SimStorage`].
#[derive(Debug)]
pub struct SimView {
    storage: SimStorage,
    batch: BatchNumber,
}

impl Drop for SimView {
    fn drop(&mut self) {
        if !self.storage.process.is_current() {
            return;
        }
        let mut state = self.storage.state.lock();
        if let Some(count) = state.views.get_mut(&self.batch) {
            *count -= 1;
            if *count == 0 {
                state.views.remove(&self.batch);
            }
        }
    }
}

impl CellReader for SimView {
    fn get<T>(&self, column: Column, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, EngineError> {
        let value = self.storage.lock_if_alive()?.get(column, key, self.batch);
        Ok(value.map(|value| read(&value)))
    }

    fn scan(
        &self,
        column: Column,
        range: &RowRange,
        backwards: bool,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), EngineError> {
        self.storage.lock_if_alive()?.scan(column, range, backwards, self.batch, visit);
        Ok(())
    }
}

/// Changes of cells for one write to a [`SimStorage`].
#[derive(Debug, Default)]
pub struct SimBatch(Vec<Modification>);

#[derive(Debug)]
enum Modification {
    Set(Column, Vec<u8>, Option<Arc<[u8]>>),
    DeleteRange(Column, Vec<u8>, Vec<u8>),
}

impl Batch for SimBatch {
    fn put(&mut self, column: Column, key: &[u8], value: &[u8]) {
        self.0.push(Modification::Set(column, key.to_vec(), Some(value.into())));
    }

    fn delete(&mut self, column: Column, key: &[u8]) {
        self.0.push(Modification::Set(column, key.to_vec(), None));
    }

    fn delete_range(&mut self, column: Column, start: &[u8], end: &[u8]) {
        self.0.push(Modification::DeleteRange(column, start.to_vec(), end.to_vec()));
    }
}
