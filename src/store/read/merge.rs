//! The merging cursor of a scan. Row by row, it merges versions with the locks and the
//! transaction's own writes that override them.

use crate::engine::storage::Column;
use crate::engine::{RowRange, decode_row_key};
use crate::error::{Error, Result};
use crate::read_view::ReadView;
use crate::row::{LockType, Mutation, RowKey};
use crate::store::read::column_cursor::{ColumnCursor, is_before};
use crate::store::read::row_reader::{RowReader, visible_value_in_cell};
use crate::store::read::scanned_row::FoundValue;
use crate::store::txn::large_writes::LargeWrites;
use crate::write_set;

/// What a scan has not returned yet: a cursor over the versions, and what overrides them.
pub struct MergeCursor {
    pub versions: ColumnCursor,
    pub over: Option<Box<Overlay>>,
    /// An error of the call that created the scan. The scan returns it instead of its first row.
    pub failed: Option<Error>,
    pub ended: bool,
}

/// Locks and own writes, which override versions.
pub struct Overlay {
    locks: ColumnCursor,
    /// The rows that the scan's transaction has locked in the store, if it is large. They are read
    /// in an engine snapshot of their own, because the read view is older than these locks.
    large_writes: Option<LargeWrites>,
    large_locks: ColumnCursor,
    /// Own writes in memory.
    own: Option<write_set::WriteSetRange>,
}

impl MergeCursor {
    pub fn new(
        view: &ReadView,
        own: Option<write_set::WriteSetRange>,
        large_writes: Option<LargeWrites>,
        range: RowRange,
    ) -> Self {
        let own = own.filter(|own| !own.is_empty());
        let check_locks = view.must_check_locks;
        let over = (check_locks || large_writes.is_some() || own.is_some()).then(|| {
            let locks = |are_read: bool| ColumnCursor::new(Column::Lock, are_read.then(|| range.clone()));
            Box::new(Overlay {
                locks: locks(check_locks),
                large_locks: locks(large_writes.is_some()),
                large_writes,
                own,
            })
        });
        Self { versions: ColumnCursor::new(Column::Write, Some(range)), over, failed: None, ended: false }
    }

    pub fn empty() -> Self {
        Self { versions: ColumnCursor::new(Column::Write, None), over: None, failed: None, ended: true }
    }

    /// Calls `on_row` with the next row's key in the engine, and its value, if there is one.
    #[inline]
    pub fn next<T>(
        &mut self,
        rows: &RowReader,
        view: &ReadView,
        backwards: bool,
        on_row: impl FnOnce(&[u8], FoundValue<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let Self { versions, over, .. } = self;
        loop {
            if versions.needs_page(None, backwards) {
                rows.check_usable(view)?;
                versions.read_page(&*view.snapshot, None, backwards)?;
            }
            match over {
                None => {
                    let Some((row, content)) = versions.next(backwards) else { return Ok(None) };
                    if let Some(value) = visible_value_in_cell(view, row, content)? {
                        return on_row(row, value).map(Some);
                    }
                }
                Some(over) => {
                    over.read(rows, view, versions, backwards)?;
                    let Some(row) = over.next_row(versions, backwards)? else { return Ok(None) };
                    if let Some(value) = over.take_row(rows, view, versions, &row, backwards)? {
                        return on_row(row.as_bytes(), value).map(Some);
                    }
                }
            }
        }
    }

    #[cfg(feature = "tokio")]
    pub fn cells_read(&self) -> usize {
        self.versions.cells_read() + self.over.as_ref().map_or(0, |over| over.locks.cells_read())
    }
}

impl Overlay {
    /// Prepares the next row: reads a page with each of the two lock cursors that has no lock
    /// buffered and has not read up to the row of the next version (if no version is left, up to
    /// the end of the range). The page goes no farther than the last buffered version, unless all
    /// versions of the range have been read.
    fn read(&mut self, rows: &RowReader, view: &ReadView, versions: &ColumnCursor, backwards: bool) -> Result<()> {
        let (next, known) = (versions.peek(backwards), versions.read_up_to(backwards));
        let large_writes = self.large_writes.as_ref().map(|large_writes| (&mut self.large_locks, &*large_writes.view));
        for (cursor, of) in [(&mut self.locks, &*view.snapshot)].into_iter().chain(large_writes) {
            if cursor.needs_page(next, backwards) {
                rows.check_usable(view)?;
                cursor.read_page(of, known, backwards)?;
            }
        }
        Ok(())
    }

    /// The next row that any source has.
    fn next_row(&self, versions: &ColumnCursor, backwards: bool) -> Result<Option<RowKey>> {
        let own = self.own.as_ref().and_then(|own| own.peek(backwards));
        let cursors = [versions, &self.locks, &self.large_locks].map(|cursor| cursor.peek(backwards));
        let next = cursors.into_iter().chain([own.map(|(row, _)| row.as_bytes())]).flatten();
        let next = next.reduce(|a, b| if is_before(b, a, backwards) { b } else { a });
        Ok(next.map(decode_row_key).transpose()?)
    }

    /// Consumes the row's cells in all sources; returns the value that the scan shows.
    fn take_row<'a>(
        &'a mut self,
        rows: &RowReader,
        view: &'a ReadView,
        versions: &'a mut ColumnCursor,
        row: &RowKey,
        backwards: bool,
    ) -> Result<Option<FoundValue<'a>>> {
        let (write, lock) = (versions.next_if(row, backwards), self.locks.next_if(row, backwards));
        let large_lock = self.large_locks.next_if(row, backwards);
        match self.own.as_mut().and_then(|own| own.next_if(row, backwards)) {
            Some(Mutation::Put(value)) => return Ok(Some(FoundValue::Owned(value))),
            Some(Mutation::Delete) => return Ok(None),
            Some(Mutation::LockOnly) => {}
            None => {
                if let (Some(lock), Some(large_writes)) = (large_lock, &self.large_writes) {
                    match large_writes.own_lock(row, lock)? {
                        Some(LockType::Put(value)) => {
                            return Ok(Some(FoundValue::new(&*large_writes.view, large_writes.txn, value)));
                        }
                        Some(LockType::Delete) => return Ok(None),
                        Some(LockType::LockOnly) | None => {}
                    }
                }
            }
        }
        rows.visible_value(view, row, lock, write)
    }
}
