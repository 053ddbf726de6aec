//! A snapshot: a sequence, and the read state that serves it.
//!
//! Opening a snapshot makes no RocksDB call: the snapshot shares the RocksDB snapshot of the
//! current read state. An open snapshot is registered under its sequence until it is dropped, so
//! that the memtables keep the versions that it reads.
//!
//! A snapshot that kept its first read state for a long time would keep the memtables of this state
//! in memory, and its scans would step over all later versions. So a flush replaces the read states
//! of open snapshots. A snapshot at or after the new flushed sequence gets the current read state.
//! An older snapshot gets a read state with the RocksDB snapshot of its stripe or, if the flush has
//! no stripe for it, keeps its present read state.

use std::cmp;
use std::sync::Arc;

use parking_lot::RwLock;

use super::merge::{MergeIter, scan_order};
use super::read_state::{CurrentState, OpenSnapshots, ReadState, SharedReadState};
use super::shared::{Shared, is_internal_key};
use crate::disk::Disk;
use crate::engine::storage::{CellReader, Column, Storage};
use crate::engine::{EngineError, RowRange, ScanCursor};
use crate::memtable::{CellValue, Memtable};

/// An open snapshot.
pub struct LsmSnapshot<D: Disk, T: Storage> {
    shared: Arc<Shared<D, T>>,
    read_state: Arc<SharedReadState<T::Snapshot>>,
    sequence: u64,
}

impl<D: Disk, T: Storage> LsmSnapshot<D, T> {
    pub fn new(shared: &Arc<Shared<D, T>>) -> Self {
        let mut current = shared.state.lock();
        let CurrentState { visible_sequence, read_state, snapshots } = &mut *current;
        let new = || OpenSnapshots { count: 0, read_state: Arc::new(RwLock::new(Arc::clone(read_state))) };
        let open = snapshots.entry(*visible_sequence).or_insert_with(new);
        open.count += 1;
        Self { shared: Arc::clone(shared), read_state: Arc::clone(&open.read_state), sequence: *visible_sequence }
    }

    fn read_state(&self) -> Arc<ReadState<T::Snapshot>> {
        Arc::clone(&self.read_state.read())
    }

    /// Addresses of the memtables that this snapshot keeps in memory.
    #[cfg(test)]
    pub fn pinned_memtables(&self) -> Vec<usize> {
        let read_state = self.read_state();
        let pinned = read_state.memtables().filter(|memtable| !memtable.is_empty());
        pinned.map(|memtable| std::ptr::from_ref(memtable).addr()).collect()
    }

    /// Whether the memtables have a version or tombstone of the cell. If so, the version in the
    /// tables does not count.
    pub fn memtables_contain(&self, column: Column, key: &[u8]) -> bool {
        let read_state = self.read_state();
        read_state.memtables().any(|memtable| memtable.get(column, key, self.sequence).is_some())
    }

    /// Calls `visit` with the cells of a column that are in the memtables.
    pub fn for_each_memtable_cell<E>(
        &self,
        column: Column,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let read_state = self.read_state();
        let all = RowRange::all();
        let mut cells = self.memtable_cells(&read_state, column, &all, false);
        cells.try_for_each(|(key, content)| content.map_or(Ok(()), |content| visit(key, content)))
    }

    /// Whether a range tombstone of the memtables hides what the tables have of a cell.
    fn is_range_deleted(&self, read_state: &ReadState<T::Snapshot>, column: Column, key: &[u8]) -> bool {
        read_state.memtables().any(|memtable| memtable.is_range_deleted(column, key, self.sequence))
    }

    /// The memtables' cells of a range. If a range tombstone of the active memtable covers a cell
    /// of the immutable one, that cell is returned as a tombstone.
    fn memtable_cells<'a>(
        &self,
        read_state: &'a ReadState<T::Snapshot>,
        column: Column,
        range: &'a RowRange,
        backwards: bool,
    ) -> impl Iterator<Item = (&'a [u8], CellValue<'a>)> + use<'a, D, T> {
        let (active, sequence) = (&*read_state.active, self.sequence);
        let newer = active.range(column, range, backwards, sequence);
        let immutable = read_state.immutable.iter();
        let older = immutable.flat_map(move |immutable| immutable.memtable.range(column, range, backwards, sequence));
        let older =
            older.map(move |(key, content)| (key, content.filter(|_| !active.is_range_deleted(column, key, sequence))));
        MergeIter::new(newer, older, backwards)
    }
}

impl<D: Disk, T: Storage> Drop for LsmSnapshot<D, T> {
    fn drop(&mut self) {
        if !self.shared.process.is_current() {
            std::mem::forget(Arc::clone(&self.read_state));
            return;
        }
        let mut current = self.shared.state.lock();
        // Without its entry, versions that the snapshot reads could have been dropped.
        let Some(open) = current.snapshots.get_mut(&self.sequence) else {
            unreachable!("invariant: an open snapshot is listed under its sequence {}", self.sequence)
        };
        open.count -= 1;
        let removed = (open.count == 0).then(|| current.snapshots.remove(&self.sequence));
        // The lock is released first: the next line may free a memtable, which takes time.
        drop(current);
        drop(removed);
    }
}

impl<D: Disk, T: Storage> CellReader for LsmSnapshot<D, T> {
    const UNLOCKED_SCANS: bool = T::Snapshot::UNLOCKED_SCANS;

    fn get<R>(&self, column: Column, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, EngineError> {
        let tables = {
            // The read state is used under its lock, not cloned. Locking it writes to one word that
            // all readers share; cloning it would write to a second one, its reference count.
            // `read` can run under this lock, so it must not read from a snapshot.
            let read_state = self.read_state.read();
            for memtable in read_state.memtables() {
                if let Some(content) = memtable.get(column, key, self.sequence) {
                    return Ok(content.map(read));
                }
            }
            Arc::clone(&read_state.tables)
        };
        tables.get(column, key, read)
    }

    /// All keys that the memtables do not have are read from the tables in one call.
    fn multi_get(&self, column: Column, keys: &[&[u8]], mut read: impl FnMut(usize, &[u8])) -> Result<(), EngineError> {
        let read_state = self.read_state();
        let (mut numbers, mut missing) = (Vec::new(), Vec::new());
        for (number, key) in keys.iter().enumerate() {
            let mut memtables = read_state.memtables();
            if let Some(content) = memtables.find_map(|memtable| memtable.get(column, key, self.sequence)) {
                content.into_iter().for_each(|content| read(number, content));
            } else {
                numbers.push(number);
                missing.push(*key);
            }
        }
        read_state.tables.multi_get(column, &missing, |index, content| read(numbers[index], content))
    }

    fn scan(
        &self,
        column: Column,
        range: &RowRange,
        backwards: bool,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), EngineError> {
        self.resume_scan(&ScanCursor::default(), column, range, backwards, visit)
    }

    /// Scans the tables, and visits the memtables' cells in between. The scan of the tables is the
    /// outer loop, because it calls back for each cell and, unlike an iterator over a memtable,
    /// cannot be suspended. The cursor is for the scan of the tables.
    fn resume_scan(
        &self,
        cursor: &ScanCursor,
        column: Column,
        range: &RowRange,
        backwards: bool,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), EngineError> {
        let read_state = self.read_state();
        let mut cells = self.memtable_cells(&read_state, column, range, backwards).peekable();
        let has_range_tombstones = read_state.memtables().any(Memtable::has_range_tombstones);
        // The usual case: the whole range was flushed long ago, so only the tables are scanned. The
        // metadata column is excluded, because its internal cells must be left out.
        if cells.peek().is_none() && !has_range_tombstones && column != Column::Meta {
            return read_state.tables.resume_scan(cursor, column, range, backwards, visit);
        }
        let mut continues = true;
        read_state.tables.resume_scan(cursor, column, range, backwards, |key, table_value| {
            let mut same = None;
            while let Some(&(memtable_key, content)) = cells.peek() {
                match scan_order(memtable_key, key, backwards) {
                    cmp::Ordering::Less => continues = content.is_none_or(|content| visit(memtable_key, content)),
                    cmp::Ordering::Equal => same = Some(content),
                    cmp::Ordering::Greater => break,
                }
                cells.next();
                if !continues {
                    return false;
                }
            }
            let content = match same {
                Some(content) => content,
                None if is_internal_key(column, key) => None,
                None => Some(table_value)
                    .filter(|_| !has_range_tombstones || !self.is_range_deleted(&read_state, column, key)),
            };
            continues = content.is_none_or(|content| visit(key, content));
            continues
        })?;
        if continues {
            cells.any(|(key, content)| content.is_some_and(|content| !visit(key, content)));
        }
        Ok(())
    }
}
