//! A buffered cursor over one column of a scan, from both ends.
//!
//! Cells that are read ahead are buffered, and how far each end has read is remembered even where
//! it has found no cells. So each part of the range is scanned once, however many pages there are.
//! Otherwise each page would skip the same tombstones again, and an engine skips tombstones no
//! faster than live cells.

use std::mem::replace;
use std::ops::Bound;

use crate::engine::storage::Column;
use crate::engine::{EngineSnapshot, MAX_PAGE_BYTES, PageBuffer, PageRequest, RowRange, ScanCursor};
use crate::error::Result;
use crate::row::RowKey;

const PAGE_CELLS_MIN: usize = 16;
const PAGE_CELLS_MAX: usize = 512;
/// A page has at most a quarter of the number of cells read before it, clamped to the two limits
/// above. So a scan that is stopped early wastes little I/O.
const PAGE_GROWTH_DIVISOR: usize = 4;

/// See the [module](self).
pub(in crate::store) struct ColumnCursor {
    column: Column,
    /// The range that neither end has read.
    unread: Option<RowRange>,
    front: CursorEnd,
    back: CursorEnd,
    /// The number of cells read from both ends.
    cells_read: usize,
}

/// Cells that one end has read and not returned yet, in the direction of reading.
#[derive(Default)]
struct CursorEnd {
    cells: PageBuffer,
    bookmark: ScanCursor,
}

impl ColumnCursor {
    /// A cursor over a range of a column; without a range it is empty.
    pub fn new(column: Column, range: Option<RowRange>) -> Self {
        let (front, back) = (CursorEnd::default(), CursorEnd::default());
        Self { column, unread: range, front, back, cells_read: 0 }
    }

    /// Whether a page must be read to find the next cell. If a row `upto` is given, only cells at
    /// or before this row matter.
    #[inline]
    pub fn needs_page(&self, upto: Option<&[u8]>, backwards: bool) -> bool {
        let (near, _) = self.ends(backwards);
        near.cells.is_empty()
            && self.unread.as_ref().is_some_and(|unread| {
                match (if backwards { &unread.end } else { &unread.start }, upto) {
                    (Bound::Excluded(known), Some(upto)) => is_before(known, upto, backwards),
                    _ => true,
                }
            })
    }

    /// Reads the next page, up to the row `upto` at most. The opposite end must not have read that
    /// row: `upto` becomes the end of the range for this page, so rows that were read from the
    /// opposite end would be read again.
    pub fn read_page(&mut self, view: &dyn EngineSnapshot, upto: Option<&[u8]>, backwards: bool) -> Result<()> {
        let Some(mut range) = self.unread.take() else { return Ok(()) };
        let CursorEnd { cells, bookmark } = if backwards { &mut self.back } else { &mut self.front };
        let limit = (self.cells_read / PAGE_GROWTH_DIVISOR).clamp(PAGE_CELLS_MIN, PAGE_CELLS_MAX);
        let far = upto.map(|row| replace(far_end(&mut range, backwards), Bound::Included(row.to_vec())));
        let page = PageRequest { range: &range, backwards, limit, cursor: Some(bookmark) };
        let has_more = view.scan_page(self.column, &page, cells)?;
        self.cells_read += cells.len();
        let last = cells.last().filter(|_| has_more).map(|(row, _)| row);
        if let Some(known) = last.or(upto) {
            *far_end(&mut range, !backwards) = Bound::Excluded(known.to_vec());
            if let Some(far) = far {
                *far_end(&mut range, backwards) = far;
            }
            self.unread = Some(range);
        }
        Ok(())
    }

    /// Lends cells instead of reading a page: calls `on_cell` with unread cells, from the front on,
    /// until `on_cell` returns `false`. Does nothing if cells are buffered at the front, or if the
    /// engine cannot lend cells. The snapshot keeps in memory what it reads during the call, so a
    /// call ends after [`PAGE_CELLS_MAX`] cells, or about [`MAX_PAGE_BYTES`] bytes.
    ///
    /// Returns whether another call may visit more cells. If `on_cell` panics, the cursor is at its
    /// end.
    pub fn visit_unread(
        &mut self,
        view: &dyn EngineSnapshot,
        mut on_cell: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<bool> {
        let Some(mut range) = self.unread.take_if(|_| self.front.cells.is_empty()) else { return Ok(false) };
        let (mut cells, mut bytes, mut stopped_at) = (0, 0, None);
        let lent = view.scan_unlocked(self.column, &range, &self.front.bookmark, &mut |row, content| {
            cells += 1;
            bytes += row.len() + content.len();
            let goes_on = on_cell(row, content) && cells < PAGE_CELLS_MAX && bytes < MAX_PAGE_BYTES;
            if !goes_on {
                stopped_at = Some(row.to_vec());
            }
            goes_on
        })?;
        let has_more = stopped_at.is_some();
        if let Some(row) = stopped_at {
            range.start = Bound::Excluded(row);
        }
        self.unread = Some(range).filter(|_| has_more || !lent);
        Ok(has_more)
    }

    /// The row up to which this end has read: the last one that it has buffered. `None` if none is
    /// buffered, or if the whole range has been read.
    pub fn read_up_to(&self, backwards: bool) -> Option<&[u8]> {
        let (near, _) = self.ends(backwards);
        self.unread.as_ref().and_then(|_| near.cells.last()).map(|(row, _)| row)
    }

    /// The row of the next buffered cell.
    pub fn peek(&self, backwards: bool) -> Option<&[u8]> {
        let (near, far) = self.ends(backwards);
        let next = near.cells.first().or_else(|| if self.unread.is_none() { far.cells.last() } else { None });
        next.map(|(row, _)| row)
    }

    /// Consumes the next buffered cell.
    #[inline]
    pub fn next(&mut self, backwards: bool) -> Option<(&[u8], &[u8])> {
        let (near, far) = if backwards { (&mut self.back, &mut self.front) } else { (&mut self.front, &mut self.back) };
        if !near.cells.is_empty() {
            near.cells.pop_front()
        } else if self.unread.is_none() {
            // The other end has read the rest of the range; the cells that it still buffers are
            // consumed from this side.
            far.cells.pop_back()
        } else {
            None
        }
    }

    /// Consumes the next cell if it belongs to `row`; returns its content.
    pub fn next_if(&mut self, row: &RowKey, backwards: bool) -> Option<&[u8]> {
        let is_next = self.peek(backwards) == Some(row.as_bytes());
        if is_next { self.next(backwards).map(|(_, content)| content) } else { None }
    }

    #[cfg(feature = "tokio")]
    pub fn cells_read(&self) -> usize {
        self.cells_read
    }

    #[inline]
    fn ends(&self, backwards: bool) -> (&CursorEnd, &CursorEnd) {
        if backwards { (&self.back, &self.front) } else { (&self.front, &self.back) }
    }
}

/// Whether `a` is before `b`, in the direction of reading.
pub(in crate::store) fn is_before(a: &[u8], b: &[u8], backwards: bool) -> bool {
    if backwards { a > b } else { a < b }
}

/// The bound at which reading in this direction ends.
fn far_end(range: &mut RowRange, backwards: bool) -> &mut Bound<Vec<u8>> {
    if backwards { &mut range.start } else { &mut range.end }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Store;
    use crate::engine::sim::SimStorage;

    #[test]
    fn a_page_that_the_engine_ends_early_is_not_the_last() {
        for (cells, bytes) in [(1, usize::MAX), (2, 64), (usize::MAX, 1)] {
            let engine = SimStorage::new().exclusive_engine().with_page_limits(cells, bytes);
            let store = Store::builder().open_engine(Arc::new(engine)).unwrap();
            let rows = store.keyspace("rows").unwrap();
            let keys: Vec<Vec<u8>> = (0..100_u8).map(|n| vec![n; 1 + usize::from(n % 3) * 100]).collect();
            store.transact(|txn| keys.iter().try_for_each(|key| txn.put(&rows, key, "value"))).unwrap();
            let snapshot = store.snapshot().unwrap();
            let found: Vec<Vec<u8>> = snapshot.range(&rows, ..).map(|row| row.unwrap().key().to_vec()).collect();
            assert_eq!(found, keys, "pages of {cells} cells and {bytes} bytes");
            let backwards: Vec<Vec<u8>> =
                snapshot.range(&rows, ..).rev().map(|row| row.unwrap().key().to_vec()).collect();
            assert!(backwards.iter().eq(keys.iter().rev()), "pages of {cells} cells and {bytes} bytes, backwards");
        }
    }

    #[test]
    fn a_page_after_small_ones_is_bounded_in_bytes() {
        const LARGE: usize = 300 << 10;
        let store = Store::in_memory().unwrap();
        let rows = store.keyspace("rows").unwrap();
        store
            .transact(|txn| {
                (0..4000_u16).try_for_each(|n| txn.put(&rows, n.to_be_bytes(), "small"))?;
                (4000..4020_u16).try_for_each(|n| txn.put(&rows, n.to_be_bytes(), vec![0; LARGE]))
            })
            .unwrap();
        let view = store.inner.engine.snapshot().unwrap();
        let mut cursor = ColumnCursor::new(Column::Write, Some(RowRange::all()));
        let (mut read, mut largest) = (0, 0);
        while cursor.needs_page(None, false) {
            cursor.read_page(&*view, None, false).unwrap();
            read += cursor.front.cells.len();
            largest = largest.max(cursor.front.cells.size_bytes());
            while cursor.next(false).is_some() {}
        }
        assert!(
            read >= 4020 && largest > MAX_PAGE_BYTES && largest <= MAX_PAGE_BYTES + LARGE + 100,
            "{read} {largest}"
        );
    }
}
