//! Reading ranges: RocksDB's iterators.
//!
//! Opening an iterator, finding a place and closing it costs as much as eleven steps of one. So a scan that comes for page after page
//! has its iterator waiting in its bookmark, at the cell that it has seen last, as long as it asks for what follows.

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

struct OpenIterator {
    /// At the cell that was visited last.
    cells: OwnedIterator,
    column: Column,
    backwards: bool,
    /// Where it ends, in its direction.
    end: Bound<Vec<u8>>,
}

/// Hands the cells of a range to `visit` until it answers `false`.
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

/// The same, with what is remembered from the page before.
pub fn resume_scan(
    view: &Arc<OwnedSnapshot>,
    bookmark: &ScanCursor,
    column: Column,
    range: &RowRange,
    backwards: bool,
    visit: impl FnMut(&[u8], &[u8]) -> bool,
) -> Result<(), EngineError> {
    let (near, far) = if backwards { (&range.end, &range.start) } else { (&range.start, &range.end) };
    let waiting =
        bookmark.take::<OpenIterator>().filter(|cursor| cursor.resumes_at(view, column, backwards, near, far));
    let mut cursor = if let Some(mut cursor) = waiting {
        cursor.cells.with_dependent_mut(|_, cells| step(cells, backwards));
        cursor
    } else {
        let cells = OwnedIterator::new(Arc::clone(view), |view| {
            let pinned = view.borrow_dependent();
            open(pinned.db, pinned.columns.get(column), pinned.read_options(), range, backwards)
        });
        Box::new(OpenIterator { cells, column, backwards, end: far.clone() })
    };
    if cursor.cells.with_dependent_mut(|_, cells| visit_cells(cells, backwards, visit))? {
        bookmark.put(cursor);
    }
    Ok(())
}

impl OpenIterator {
    /// Whether what is asked for is all that follows.
    fn resumes_at(
        &self,
        view: &Arc<OwnedSnapshot>,
        column: Column,
        backwards: bool,
        near: &Bound<Vec<u8>>,
        far: &Bound<Vec<u8>>,
    ) -> bool {
        let is_behind = |cells: &Iter<'_>| match near {
            Bound::Excluded(last) => cells.key() == Some(last),
            Bound::Included(_) | Bound::Unbounded => false,
        };
        Arc::ptr_eq(self.cells.borrow_owner(), view)
            && (self.column, self.backwards) == (column, backwards)
            && (self.end == *far || mutated!(CursorKeepsEnd))
            && self.cells.with_dependent(|_, cells| is_behind(cells))
    }
}

fn open<'a>(
    db: &'a DB,
    column: &ColumnFamily,
    mut options: ReadOptions,
    range: &RowRange,
    backwards: bool,
) -> Iter<'a> {
    // RocksDB includes its lower bound and excludes its upper one; a zero byte behind a key is the next key.
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

/// Whether `visit` has ended it, so that the cells stand at the one that it saw last.
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
