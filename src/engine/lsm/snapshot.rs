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

use super::merge::{Merge, order};
use super::{Current, Layers, Moment, Served, Shared, is_own};
use crate::disk::Disk;
use crate::engine::storage::{Column, Reader, Storage};
use crate::engine::{Bookmark, EngineError, RowRange};
use crate::memtable::{Content, Generation};

/// See the [module](self).
pub struct LayeredView<D: Disk, T: Storage> {
    shared: Arc<Shared<D, T>>,
    layers: Arc<Served<T::View>>,
    sequence: u64,
}

impl<D: Disk, T: Storage> LayeredView<D, T> {
    pub(super) fn new(shared: &Arc<Shared<D, T>>) -> Self {
        let mut current = shared.current.lock();
        let Current { visible, layers, moments } = &mut *current;
        let new = || Moment { views: 0, layers: Arc::new(RwLock::new(Arc::clone(layers))) };
        let moment = moments.entry(*visible).or_insert_with(new);
        moment.views += 1;
        Self { shared: Arc::clone(shared), layers: Arc::clone(&moment.layers), sequence: *visible }
    }

    fn layers(&self) -> Arc<Layers<T::View>> {
        Arc::clone(&self.layers.read())
    }

    /// The generations that are in memory for this view.
    #[cfg(test)]
    pub(super) fn generations_kept(&self) -> Vec<usize> {
        let layers = self.layers();
        let kept = layers.generations().filter(|generation| !generation.is_empty());
        kept.map(|generation| std::ptr::from_ref(generation).addr()).collect()
    }

    /// Whether the window hides what the tables have of a cell.
    pub fn hides(&self, column: Column, key: &[u8]) -> bool {
        let layers = self.layers();
        layers.generations().any(|generation| generation.get(column, key, self.sequence).is_some())
    }

    /// Hands the cells of a column to `visit` that are in the window.
    pub fn each_of_window<E>(
        &self,
        column: Column,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let layers = self.layers();
        let all = RowRange::all();
        let mut cells = self.window(&layers, column, &all, false);
        cells.try_for_each(|(key, content)| content.map_or(Ok(()), |content| visit(key, content)))
    }

    /// Whether a range that was emptied hides what the tables have of a cell.
    fn is_erased(&self, layers: &Layers<T::View>, column: Column, key: &[u8]) -> bool {
        layers.generations().any(|generation| generation.erases(column, key, self.sequence))
    }

    /// The window's cells of a range. One of the frozen generation may have been emptied since.
    fn window<'a>(
        &self,
        layers: &'a Layers<T::View>,
        column: Column,
        range: &'a RowRange,
        backwards: bool,
    ) -> impl Iterator<Item = (&'a [u8], Content<'a>)> + use<'a, D, T> {
        let (active, sequence) = (&*layers.active, self.sequence);
        let newer = active.range(column, range, backwards, sequence);
        let frozen = layers.frozen.iter();
        let older = frozen.flat_map(move |frozen| frozen.generation.range(column, range, backwards, sequence));
        let older = older.map(move |(key, content)| (key, content.filter(|_| !active.erases(column, key, sequence))));
        Merge::new(newer, older, backwards)
    }
}

impl<D: Disk, T: Storage> Drop for LayeredView<D, T> {
    fn drop(&mut self) {
        let mut current = self.shared.current.lock();
        let Some(moment) = current.moments.get_mut(&self.sequence) else { return };
        moment.views -= 1;
        let gone = (moment.views == 0).then(|| current.moments.remove(&self.sequence));
        // A generation that only this view kept is freed without the lock.
        drop(current);
        drop(gone);
    }
}

impl<D: Disk, T: Storage> Reader for LayeredView<D, T> {
    const LENDS: bool = T::View::LENDS;

    fn get<R>(&self, column: Column, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, EngineError> {
        let tables = {
            // Held, not cloned: the count of references would be a second word that every reader writes. `read` asks no view for more.
            let layers = self.layers.read();
            for generation in layers.generations() {
                if let Some(content) = generation.get(column, key, self.sequence) {
                    return Ok(content.map(read));
                }
            }
            Arc::clone(&layers.tables)
        };
        tables.get(column, key, read)
    }

    /// What the window does not have is looked for in the tables together.
    fn get_each(&self, column: Column, keys: &[&[u8]], mut read: impl FnMut(usize, &[u8])) -> Result<(), EngineError> {
        let layers = self.layers();
        let (mut numbers, mut below) = (Vec::new(), Vec::new());
        for (number, key) in keys.iter().enumerate() {
            let mut generations = layers.generations();
            if let Some(content) = generations.find_map(|generation| generation.get(column, key, self.sequence)) {
                content.into_iter().for_each(|content| read(number, content));
            } else {
                numbers.push(number);
                below.push(*key);
            }
        }
        layers.tables.get_each(column, &below, |index, content| read(numbers[index], content))
    }

    fn scan(
        &self,
        column: Column,
        range: &RowRange,
        backwards: bool,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), EngineError> {
        self.scan_on(&Bookmark::default(), column, range, backwards, visit)
    }

    /// Walks the tables and puts what the window has in between: the tables' walk cannot be stopped and gone on with. The bookmark is
    /// the tables'.
    fn scan_on(
        &self,
        bookmark: &Bookmark,
        column: Column,
        range: &RowRange,
        backwards: bool,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), EngineError> {
        let layers = self.layers();
        let mut window = self.window(&layers, column, range, backwards).peekable();
        let is_erased = layers.generations().any(Generation::has_erasures);
        // Most of what is scanned was handed down long ago.
        if window.peek().is_none() && !is_erased && column != Column::Meta {
            return layers.tables.scan_on(bookmark, column, range, backwards, visit);
        }
        let mut goes_on = true;
        layers.tables.scan_on(bookmark, column, range, backwards, |key, below| {
            let mut same = None;
            while let Some(&(above, content)) = window.peek() {
                match order(above, key, backwards) {
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
                None if is_own(column, key) => None,
                None => Some(below).filter(|_| !is_erased || !self.is_erased(&layers, column, key)),
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
