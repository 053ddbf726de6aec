//! Range scans with RocksDB's iterators.
//!
//! Opening, positioning and closing an iterator costs as much as eleven of its steps. So a scan of
//! several pages keeps its iterator in the scan cursor, at the last visited cell. The next page
//! uses this iterator if the page starts right after that cell.

use std::ops::Bound;
use std::sync::Arc;

use rocksdb::{ColumnFamily, DB, DBRawIterator, ReadOptions};
use self_cell::self_cell;

use super::{OwnedSnapshot, engine_error};
use crate::engine::storage::Column;
use crate::engine::{EngineError, RowRange, ScanCursor};

type Iter<'a> = DBRawIterator<'a>;

self_cell!(
    struct OwnedIterator {
        owner: Arc<OwnedSnapshot>,
        #[not_covariant]
        dependent: Iter,
    }
);

/// What a scan cursor keeps. It is empty only while it is dropped.
struct KeptIterator(Option<OpenIterator>);

impl Drop for KeptIterator {
    fn drop(&mut self) {
        if let Some(iterator) = self.0.take() {
            if iterator.cells.borrow_owner().borrow_owner().borrow_owner().process().is_current() {
                drop(iterator);
            } else {
                // The destructor waits for threads that a child of the process does not have.
                std::mem::forget(iterator);
            }
        }
    }
}

struct OpenIterator {
    /// Positioned at the last visited cell.
    cells: OwnedIterator,
    column: Column,
    backwards: bool,
    /// The bound at which the scan ends: the lower one if it scans backwards.
    end: Bound<Vec<u8>>,
}

/// Calls `visit` with the cells of a range until `visit` returns `false`.
pub fn scan(
    db: &DB,
    column: &ColumnFamily,
    options: ReadOptions,
    range: &RowRange,
    backwards: bool,
    visit: impl FnMut(&[u8], &[u8]) -> bool,
) -> Result<(), EngineError> {
    let mut cells = open(db, column, options, range, backwards);
    visit_cells(&mut cells, backwards, visit).map(drop)
}

/// Like [`scan`], but with the iterator of the previous page if the range starts where that page
/// ended.
pub fn resume_scan(
    snapshot: &Arc<OwnedSnapshot>,
    slot: &ScanCursor,
    column: Column,
    range: &RowRange,
    backwards: bool,
    visit: impl FnMut(&[u8], &[u8]) -> bool,
) -> Result<(), EngineError> {
    let (near, far) = if backwards { (&range.end, &range.start) } else { (&range.start, &range.end) };
    let kept = slot.take::<KeptIterator>().and_then(|mut kept| kept.0.take());
    let kept = kept.filter(|cursor| cursor.resumes_at(snapshot, column, backwards, near, far));
    let mut cursor = if let Some(mut cursor) = kept {
        cursor.cells.with_dependent_mut(|_, cells| step(cells, backwards));
        cursor
    } else {
        let cells = OwnedIterator::new(Arc::clone(snapshot), |snapshot| {
            let pinned = snapshot.borrow_dependent();
            open(pinned.db, pinned.columns.get(column), pinned.read_options(), range, backwards)
        });
        OpenIterator { cells, column, backwards, end: far.clone() }
    };
    if cursor.cells.with_dependent_mut(|_, cells| visit_cells(cells, backwards, visit))? {
        slot.put(Box::new(KeptIterator(Some(cursor))));
    }
    Ok(())
}

impl OpenIterator {
    /// Whether a request continues this scan: it starts right after the last visited cell, and has
    /// the same snapshot, column, direction and end.
    fn resumes_at(
        &self,
        snapshot: &Arc<OwnedSnapshot>,
        column: Column,
        backwards: bool,
        near: &Bound<Vec<u8>>,
        far: &Bound<Vec<u8>>,
    ) -> bool {
        let starts_after = |cells: &Iter<'_>| match near {
            Bound::Excluded(last) => cells.key() == Some(last),
            Bound::Included(_) | Bound::Unbounded => false,
        };
        Arc::ptr_eq(self.cells.borrow_owner(), snapshot)
            && (self.column, self.backwards) == (column, backwards)
            && self.end == *far
            && self.cells.with_dependent(|_, cells| starts_after(cells))
    }
}

fn open<'a>(
    db: &'a DB,
    column: &ColumnFamily,
    mut options: ReadOptions,
    range: &RowRange,
    backwards: bool,
) -> Iter<'a> {
    // RocksDB's lower bound is inclusive, its upper bound exclusive. A key with a zero byte
    // appended is the next possible key.
    let just_after = |key: &[u8]| [key, &[0]].concat();
    match &range.start {
        Bound::Included(start) => options.set_iterate_lower_bound(start.clone()),
        Bound::Excluded(start) => options.set_iterate_lower_bound(just_after(start)),
        Bound::Unbounded => {}
    }
    match &range.end {
        Bound::Included(end) => options.set_iterate_upper_bound(just_after(end)),
        Bound::Excluded(end) => options.set_iterate_upper_bound(end.clone()),
        Bound::Unbounded => {}
    }
    let mut cells = db.raw_iterator_cf_opt(column, options);
    if backwards {
        cells.seek_to_last();
    } else {
        cells.seek_to_first();
    }
    cells
}

fn step(cells: &mut Iter<'_>, backwards: bool) {
    if backwards {
        cells.prev();
    } else {
        cells.next();
    }
}

/// Visits cells up to the end bound. Returns whether `visit` stopped the scan before the end; then
/// the iterator is at the last visited cell.
fn visit_cells(
    cells: &mut Iter<'_>,
    backwards: bool,
    mut visit: impl FnMut(&[u8], &[u8]) -> bool,
) -> Result<bool, EngineError> {
    while let Some((key, value)) = cells.item() {
        if !visit(key, value) {
            return Ok(true);
        }
        step(cells, backwards);
    }
    cells.status().map(|()| false).map_err(engine_error)
}
