//! An engine in memory, in which a crash is an operation.
//!
//! Every cell keeps its past as a list of (batch number, content). A view is a batch number; the latest state is the
//! newest entry of each cell; a crash picks a batch number between the last sync and the last write and forgets
//! what came after, which is what a power cut leaves of a log. Entries that no view and no crash can reach are dropped when
//! their cell is written again.
//!
//! It is public: use it as the store of your own tests ([`Store::in_memory`](crate::Store::in_memory)), and crash it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::local::LocalEngine;
use super::storage::{Batch, CellReader, Column, Storage};
use super::{EngineError, RowRange};

/// An engine in memory.
pub type SimEngine = LocalEngine<SimStorage>;

/// How many batches have been written.
type BatchNumber = u64;
type CellVersions = Vec<(BatchNumber, Option<Arc<[u8]>>)>;

/// The memory behind a [`SimEngine`]; clones share it, as processes share a disk.
#[derive(Clone, Debug, Default)]
pub struct SimStorage {
    state: Arc<Mutex<State>>,
    writing: Arc<crate::sync::Mutex<()>>,
    /// A process does not outlive a crash of its machine; a server's client does, and has none.
    incarnation: Option<u64>,
}

#[derive(Debug, Default)]
struct State {
    cells: BTreeMap<(Column, Vec<u8>), CellVersions>,
    written: BatchNumber,
    synced: BatchNumber,
    views: BTreeMap<BatchNumber, usize>,
    crashes: u64,
    /// How many syncs from now one fails; 0: none does.
    syncs_until_fault: u64,
    /// How many writes from now one fails; 0: none does.
    writes_until_fault: u64,
    /// Whether the one that fails is made all the same.
    fault_applies: bool,
    /// A write or sync has failed since the last crash.
    has_failed: bool,
    /// A sync has failed, and what it was to make durable never will be, nor anything behind it.
    sync_lost: bool,
}

/// What a crash left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashReport {
    /// How many batches had been written and not yet synced.
    pub unsynced: u64,
    /// How many of them are lost: the last ones.
    pub lost: u64,
}

impl SimStorage {
    /// Empty memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// An engine that has this memory for itself, like a store in one process.
    pub fn exclusive_engine(&self) -> SimEngine {
        LocalEngine::new(self.handle(), true)
    }

    /// A handle for one process.
    pub(crate) fn handle(&self) -> Self {
        let life = Some(self.state.lock().crashes);
        Self { incarnation: life, ..self.clone() }
    }

    /// An engine that shares this memory with others, like a server's client.
    pub fn shared_engine(&self) -> SimEngine {
        LocalEngine::new(Self { incarnation: None, ..self.clone() }, false)
    }

    /// Pulls the plug: of the batches written since the last sync, a prefix survives, as long as `choice` says
    /// (any number will do; it is taken modulo the possibilities). Embedded engines that were open fail from here on;
    /// open a new one on this memory.
    pub fn crash(&self, choice: u64) -> CrashReport {
        let mut state = self.state.lock();
        let unsynced = state.written - state.synced;
        let kept = state.synced + choice % (unsynced + 1);
        let lost = state.written - kept;
        state.cells.retain(|_, past| {
            past.retain(|(batch, _)| *batch <= kept);
            !past.is_empty()
        });
        // Numbers are not used again: a view of a shared engine that was open must not show what is written from here on.
        state.synced = state.written;
        state.crashes += 1;
        (state.syncs_until_fault, state.writes_until_fault) = (0, 0);
        (state.sync_lost, state.has_failed) = (false, false);
        CrashReport { unsynced, lost }
    }

    /// The `nth` sync from now fails; 1 is the next. As on a real disk, a sync after it may succeed and proves nothing: until
    /// the next crash nothing that was not durable before becomes so.
    pub fn fail_sync(&self, nth: u64) {
        self.state.lock().syncs_until_fault = nth;
    }

    /// The `nth` write from now is answered with an error although it was made, as when a disk fails between the log's bytes
    /// and the answer; 1 is the next.
    pub fn fail_write(&self, nth: u64) {
        let mut state = self.state.lock();
        (state.writes_until_fault, state.fault_applies) = (nth, true);
    }

    /// The `nth` write from now is answered with an error and not made, as when a disk is full; 1 is the next.
    pub fn reject_write(&self, nth: u64) {
        let mut state = self.state.lock();
        (state.writes_until_fault, state.fault_applies) = (nth, false);
    }

    /// Whether a write or sync has failed since the last crash.
    pub fn has_failed(&self) -> bool {
        self.state.lock().has_failed
    }

    /// How many batches would be lost by the worst crash now.
    pub fn unsynced(&self) -> u64 {
        let state = self.state.lock();
        state.written - state.synced
    }

    fn lock_if_alive(&self) -> Result<MutexGuard<'_, State>, EngineError> {
        let state = self.state.lock();
        match self.incarnation {
            Some(life) if life != state.crashes => {
                Err(EngineError::Undetermined("the simulated machine has crashed".into()))
            }
            _ => Ok(state),
        }
    }
}

impl State {
    fn at(past: &CellVersions, batch: BatchNumber) -> Option<&Arc<[u8]>> {
        let newer = past.partition_point(|(written, _)| *written <= batch);
        past[..newer].last()?.1.as_ref()
    }

    fn put(&mut self, column: Column, key: Vec<u8>, value: Option<Arc<[u8]>>) {
        let reachable = self.views.keys().next().copied().unwrap_or(BatchNumber::MAX).min(self.synced);
        let past = self.cells.entry((column, key)).or_default();
        let oldest = past.partition_point(|(written, _)| *written <= reachable).saturating_sub(1);
        past.drain(..oldest);
        past.push((self.written, value));
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
        while let Some(((_, key), past)) = step() {
            if Self::at(past, batch).is_some_and(|content| !visit(key, content)) {
                return;
            }
        }
    }
}

/// `BTreeMap::range` takes an inverted range for a mistake; here it is just empty.
fn is_empty<T: Ord>(start: &Bound<T>, end: &Bound<T>) -> bool {
    match (start, end) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (Bound::Included(start) | Bound::Excluded(start), Bound::Included(end) | Bound::Excluded(end)) => start >= end,
    }
}

impl CellReader for SimStorage {
    fn get<T>(&self, column: Column, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, EngineError> {
        let content = self.lock_if_alive()?.get(column, key, BatchNumber::MAX);
        Ok(content.map(|content| read(&content)))
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
        let answer = || Err(EngineError::Undetermined("the simulated disk has failed to write".into()));
        if fails && !state.fault_applies {
            return answer();
        }
        state.written += 1;
        for change in batch.0 {
            match change {
                Modification::Set(column, key, content) => state.put(column, key, content),
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
        if fails { answer() } else { Ok(()) }
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

/// See [`Storage::Snapshot`].
#[derive(Debug)]
pub struct SimView {
    storage: SimStorage,
    batch: BatchNumber,
}

impl Drop for SimView {
    fn drop(&mut self) {
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
        let content = self.storage.lock_if_alive()?.get(column, key, self.batch);
        Ok(content.map(|content| read(&content)))
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

/// See [`Storage::Batch`].
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
