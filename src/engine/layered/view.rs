//! A view: a sequence, and the layers of the moment at which it was the newest.
//!
//! Opening one asks nothing of the tables; their view is shared. It is counted under its sequence as long as it lives, and so the
//! window keeps the versions that it reads.
//!
//! A view can live long on an idle store. With its first layers it would keep a generation that was handed down since, and its scans of
//! the tables would skip over all cells of that generation. So after a hand-down it takes the current layers, in one step, unless the
//! tables' position has passed its sequence.

use std::cmp;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::RwLock;

use super::merge::{Merge, order};
use super::{Layers, POSITION, Shared};
use crate::disk::Disk;
use crate::engine::storage::{Column, Reader, Storage};
use crate::engine::{Bookmark, EngineError, RowRange};
use crate::window::Content;

/// See the [module](self).
pub struct LayeredView<D: Disk, T: Storage> {
    shared: Arc<Shared<D, T>>,
    /// With the number of hand-downs at which they were looked for.
    layers: RwLock<(u64, Arc<Layers<T::View>>)>,
    sequence: u64,
}

impl<D: Disk, T: Storage> LayeredView<D, T> {
    pub(super) fn new(shared: &Arc<Shared<D, T>>) -> Self {
        let mut current = shared.current.lock();
        let (sequence, layers) = (current.visible, Arc::clone(&current.layers));
        let layers = RwLock::new((shared.hand_downs.load(Ordering::Acquire), layers));
        *current.views.entry(sequence).or_default() += 1;
        drop(current);
        Self { shared: Arc::clone(shared), layers, sequence }
    }

    fn layers(&self) -> Arc<Layers<T::View>> {
        let hand_downs = self.shared.hand_downs.load(Ordering::Acquire);
        {
            let held = self.layers.read();
            if held.0 == hand_downs {
                return Arc::clone(&held.1);
            }
        }
        let now = Arc::clone(&self.shared.current.lock().layers);
        let mut held = self.layers.write();
        held.0 = hand_downs;
        if self.sequence >= now.position {
            held.1 = now;
        }
        Arc::clone(&held.1)
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
        if let Some(count) = current.views.get_mut(&self.sequence) {
            *count -= 1;
            if *count == 0 {
                current.views.remove(&self.sequence);
            }
        }
    }
}

impl<D: Disk, T: Storage> Reader for LayeredView<D, T> {
    fn get<R>(&self, column: Column, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, EngineError> {
        let layers = self.layers();
        for generation in layers.generations() {
            if let Some(content) = generation.get(column, key, self.sequence) {
                return Ok(content.map(read));
            }
        }
        layers.tables.get(column, key, read)
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
        let mut goes_on = true;
        layers.tables.scan_on(bookmark, column, range, backwards, |key, below| {
            while let Some((above, content)) = window.next_if(|(above, _)| order(above, key, backwards).is_lt()) {
                goes_on = content.is_none_or(|content| visit(above, content));
                if !goes_on {
                    return false;
                }
            }
            let same = window.next_if(|(above, _)| order(above, key, backwards) == cmp::Ordering::Equal);
            let content = match same {
                Some((_, content)) => content,
                None if column == Column::Meta && key == POSITION => None,
                None => Some(below).filter(|_| !self.is_erased(&layers, column, key)),
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
