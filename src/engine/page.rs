//! Pages of a scan, and the callbacks of reads.

use std::any::Any;

use parking_lot::Mutex;

use crate::cell::RowRange;

/// Called with the value of a cell. The callback must not read the snapshot, which may be locked
/// during the call.
pub type OnCell<'a> = &'a mut dyn FnMut(&[u8]);

/// Called with the index of a requested row and its cell's value. Like [`OnCell`], the callback
/// must not read the snapshot.
pub type OnEachCell<'a> = &'a mut dyn FnMut(usize, &[u8]);

/// Called with the key and value of a cell; returns whether to continue.
pub type ScanVisitor<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> bool;

/// The engines of this crate end a page once its keys and values have at least this size.
pub const MAX_PAGE_BYTES: usize = 1 << 20;

/// A request for the next page of a range.
#[derive(Clone, Copy, Debug)]
pub struct PageRequest<'a> {
    /// The range.
    pub range: &'a RowRange,
    /// Whether to read from the end of the range towards its start.
    pub backwards: bool,
    /// The maximum number of cells.
    pub limit: usize,
    /// The scan's cursor, which keeps the iterator between pages. `None`: no iterator is kept.
    pub cursor: Option<&'a ScanCursor>,
}

/// A slot that keeps the engine's open iterator from one page of a scan to the next, so that the
/// next page needs no seek.
///
/// The content is private to the engine, and belongs to one column and one snapshot. It only saves
/// time: a request without the cursor returns the same cells. The iterator, which keeps its
/// snapshot open, is closed when the range ends, when a request does not continue it, or when the
/// cursor is dropped.
#[derive(Debug, Default)]
pub struct ScanCursor(Mutex<Option<Box<dyn Any + Send>>>);

impl ScanCursor {
    /// Takes out the iterator, if there is one of this type.
    pub fn take<T: Any>(&self) -> Option<Box<T>> {
        self.0.lock().take()?.downcast().ok()
    }

    /// Stores the iterator for the next page.
    pub fn put(&self, iterator: Box<dyn Any + Send>) {
        *self.0.lock() = Some(iterator);
    }
}
