//! A view: a sequence, and the layers of the moment at which it was the newest.
//!
//! Opening one asks nothing of the tables; their view is shared. It is counted under its sequence as long as it lives, and so the
//! window keeps the versions that it reads.
//!
//! With the layers that it was opened with, a view that lives long would keep its generations in memory, and its scans of the tables
//! would step over all that came after. So a hand-down gives it others, in one step: the current ones, or, if the tables' position
//! passes its sequence, the tables as they are at that sequence.

use std::cmp;
use std::sync::Arc;

use parking_lot::RwLock;

use super::merge::{MergeIter, scan_order};
use super::{CurrentState, OpenSnapshots, ReadState, Shared, SharedReadState, is_internal_key};
use crate::disk::Disk;
use crate::engine::storage::{CellReader, Column, Storage};
use crate::engine::{EngineError, RowRange, ScanCursor};
use crate::memtable::{CellValue, Memtable};

/// See the [module](self).
pub struct LsmSnapshot<D: Disk, T: Storage> {
    shared: Arc<Shared<D, T>>,
    read_state: Arc<SharedReadState<T::Snapshot>>,
    sequence: u64,
}

impl<D: Disk, T: Storage> LsmSnapshot<D, T> {
    pub(super) fn new(shared: &Arc<Shared<D, T>>) -> Self {
        let mut current = shared.state.lock();
        let CurrentState { visible_sequence: visible, read_state: layers, snapshots: moments } = &mut *current;
        let new = || OpenSnapshots { count: 0, read_state: Arc::new(RwLock::new(Arc::clone(layers))) };
        let moment = moments.entry(*visible).or_insert_with(new);
        moment.count += 1;
        Self { shared: Arc::clone(shared), read_state: Arc::clone(&moment.read_state), sequence: *visible }
    }

    fn read_state(&self) -> Arc<ReadState<T::Snapshot>> {
        Arc::clone(&self.read_state.read())
    }

    /// The generations that are in memory for this view.
    #[cfg(test)]
    pub(super) fn pinned_memtables(&self) -> Vec<usize> {
        let layers = self.read_state();
        let kept = layers.memtables().filter(|generation| !generation.is_empty());
        kept.map(|generation| std::ptr::from_ref(generation).addr()).collect()
    }

    /// Whether the window hides what the tables have of a cell.
    pub fn memtables_contain(&self, column: Column, key: &[u8]) -> bool {
        let layers = self.read_state();
        layers.memtables().any(|generation| generation.get(column, key, self.sequence).is_some())
    }

    /// Hands the cells of a column to `visit` that are in the window.
    pub fn for_each_memtable_cell<E>(
        &self,
        column: Column,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let layers = self.read_state();
        let all = RowRange::all();
        let mut cells = self.memtable_cells(&layers, column, &all, false);
        cells.try_for_each(|(key, content)| content.map_or(Ok(()), |content| visit(key, content)))
    }

    /// Whether a range that was emptied hides what the tables have of a cell.
    fn is_range_deleted(&self, layers: &ReadState<T::Snapshot>, column: Column, key: &[u8]) -> bool {
        layers.memtables().any(|generation| generation.is_range_deleted(column, key, self.sequence))
    }

    /// The window's cells of a range. One of the frozen generation may have been emptied since.
    fn memtable_cells<'a>(
        &self,
        layers: &'a ReadState<T::Snapshot>,
        column: Column,
        range: &'a RowRange,
        backwards: bool,
    ) -> impl Iterator<Item = (&'a [u8], CellValue<'a>)> + use<'a, D, T> {
        let (active, sequence) = (&*layers.active, self.sequence);
        let newer = active.range(column, range, backwards, sequence);
        let frozen = layers.immutable.iter();
        let older = frozen.flat_map(move |frozen| frozen.memtable.range(column, range, backwards, sequence));
        let older =
            older.map(move |(key, content)| (key, content.filter(|_| !active.is_range_deleted(column, key, sequence))));
        MergeIter::new(newer, older, backwards)
    }
}

impl<D: Disk, T: Storage> Drop for LsmSnapshot<D, T> {
    fn drop(&mut self) {
        let mut current = self.shared.state.lock();
        let Some(moment) = current.snapshots.get_mut(&self.sequence) else { return };
        moment.count -= 1;
        let gone = (moment.count == 0).then(|| current.snapshots.remove(&self.sequence));
        // A generation that only this view kept is freed without the lock.
        drop(current);
        drop(gone);
    }
}

impl<D: Disk, T: Storage> CellReader for LsmSnapshot<D, T> {
    const UNLOCKED_SCANS: bool = T::Snapshot::UNLOCKED_SCANS;

    fn get<R>(&self, column: Column, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, EngineError> {
        let tables = {
            // Held, not cloned: the count of references would be a second word that every reader writes. `read` asks no view for more.
            let layers = self.read_state.read();
            for generation in layers.memtables() {
                if let Some(content) = generation.get(column, key, self.sequence) {
                    return Ok(content.map(read));
                }
            }
            Arc::clone(&layers.tables)
        };
        tables.get(column, key, read)
    }

    /// What the window does not have is looked for in the tables together.
    fn multi_get(&self, column: Column, keys: &[&[u8]], mut read: impl FnMut(usize, &[u8])) -> Result<(), EngineError> {
        let layers = self.read_state();
        let (mut numbers, mut below) = (Vec::new(), Vec::new());
        for (number, key) in keys.iter().enumerate() {
            let mut generations = layers.memtables();
            if let Some(content) = generations.find_map(|generation| generation.get(column, key, self.sequence)) {
                content.into_iter().for_each(|content| read(number, content));
            } else {
                numbers.push(number);
                below.push(*key);
            }
        }
        layers.tables.multi_get(column, &below, |index, content| read(numbers[index], content))
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

    /// Walks the tables and puts what the window has in between: the tables' walk cannot be stopped and gone on with. The bookmark is
    /// the tables'.
    fn resume_scan(
        &self,
        bookmark: &ScanCursor,
        column: Column,
        range: &RowRange,
        backwards: bool,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), EngineError> {
        let layers = self.read_state();
        let mut window = self.memtable_cells(&layers, column, range, backwards).peekable();
        let is_erased = layers.memtables().any(Memtable::has_range_tombstones);
        // Most of what is scanned was handed down long ago.
        if window.peek().is_none() && !is_erased && column != Column::Meta {
            return layers.tables.resume_scan(bookmark, column, range, backwards, visit);
        }
        let mut goes_on = true;
        layers.tables.resume_scan(bookmark, column, range, backwards, |key, below| {
            let mut same = None;
            while let Some(&(above, content)) = window.peek() {
                match scan_order(above, key, backwards) {
                    cmp::Ordering::Less => goes_on = content.is_none_or(|content| visit(above, content)),
                    cmp::Ordering::Equal => same = Some(content),
                    cmp::Ordering::Greater => break,
                }
                window.next();
                if !goes_on {
                    return false;
                }
            }
            let content = match same {
                Some(content) => content,
                None if is_internal_key(column, key) => None,
                None => Some(below).filter(|_| !is_erased || !self.is_range_deleted(&layers, column, key)),
            };
            goes_on = content.is_none_or(|content| visit(key, content));
            goes_on
        })?;
        if goes_on {
            window.any(|(above, content)| content.is_some_and(|content| !visit(above, content)));
        }
        Ok(())
    }
}
