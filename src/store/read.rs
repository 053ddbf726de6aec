//! Reading a row or a page of rows at a view: versions, and the locks of transactions that are committed there already.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::atomic::Ordering;

use super::Store;
use crate::codec::Put;
use crate::engine::{Bookmark, Page, RowRange, row_of, write_of};
use crate::error::{Error, ErrorKind, Result};
use crate::row::{Intent, Lock, RowKey, TxnId, Value, WriteRecord};
use crate::timestamp::Timestamp;
use crate::view::PinnedView;

/// Rows of a range, and how far they reach.
pub(super) struct PageRead {
    /// In the direction that was asked for.
    pub rows: VecDeque<(RowKey, Vec<u8>)>,
    /// What of the range is still to be read; `None` when nothing is.
    pub rest: Option<RowRange>,
}

/// Where the pages of a scan have ended, in each column that it reads.
#[derive(Default)]
pub(super) struct Bookmarks {
    pub writes: Bookmark,
    pub locks: Bookmark,
}

/// What a lock says about a row at a view.
enum LockRead {
    /// Its transaction is committed there and left this value, or none.
    Decides(Option<Vec<u8>>),
    /// Nothing; the newest version counts.
    Ignore,
}

impl Store {
    pub(super) fn check_view(&self, view: &PinnedView) -> Result<()> {
        self.inner.check_open()?;
        if view.expired.load(Ordering::Acquire) {
            let age = self.inner.options.age_max;
            return Err(ErrorKind::SnapshotTooOld(format!("it reads a state replaced more than {age:?} ago")).into());
        }
        Ok(())
    }

    /// The row's value at the view.
    pub(super) fn read(&self, view: &PinnedView, row: &RowKey) -> Result<Option<Vec<u8>>> {
        if mutated!(ReadsLatest) {
            let newest = self.inner.engine.view()?;
            let newest = PinnedView::new(Timestamp::MAX, newest, view.check_locks);
            return newest.view.write(row)?.map_or(Ok(None), |write| read_write(&newest, row, write));
        }
        if view.check_locks
            && !mutated!(ReaderIgnoresLocks)
            && let Some(lock) = view.view.lock(row)?
            && let LockRead::Decides(value) = self.read_lock(view, row, &lock)?
        {
            return Ok(value);
        }
        match view.view.write(row)? {
            Some(newest) => read_write(view, row, newest),
            None => Ok(None),
        }
    }

    /// What the lock's transaction made of the row, if it is committed at the view and wrote it.
    fn read_lock(&self, view: &PinnedView, row: &RowKey, lock: &Lock) -> Result<LockRead> {
        if lock.intent == Intent::Hold || self.inner.coordinator.committed_in(view, row, lock)?.is_none() {
            return Ok(LockRead::Ignore);
        }
        match &lock.intent {
            Intent::Put(value) => fetch(view, row, lock.txn, value.clone()).map(|value| LockRead::Decides(Some(value))),
            Intent::Delete => Ok(LockRead::Decides(None)),
            Intent::Hold => Ok(LockRead::Ignore),
        }
    }

    /// The next rows of a range, at most about `limit`, where locks may have to be looked at.
    pub(super) fn read_page(
        &self,
        view: &PinnedView,
        range: &RowRange,
        backwards: bool,
        limit: usize,
        bookmarks: &Bookmarks,
    ) -> Result<PageRead> {
        let mut range = range.clone();
        let mut rest = None;
        let mut locks = VecDeque::new();
        if view.check_locks && !mutated!(ReaderIgnoresLocks) {
            locks =
                view.view.locks(&Page { range: &range, backwards, limit, bookmark: Some(&bookmarks.locks) })?.into();
            if locks.len() >= limit
                && let Some((last, _)) = locks.back()
            {
                // Beyond the last lock read nothing is known of locks: the page ends there.
                rest = Some(beyond(&range, last.as_bytes(), backwards));
                range = upto(&range, last.as_bytes(), backwards);
            }
        }
        let writes = view.view.writes(&Page { range: &range, backwards, limit, bookmark: Some(&bookmarks.writes) })?;
        if writes.len() >= limit
            && let Some((last, _)) = writes.last()
        {
            let beyond = beyond(&range, last.as_bytes(), backwards);
            rest = Some(match &rest {
                // Both cuts lie on one line; the nearer one counts, and the rest reaches to the range's own end.
                Some(after_locks) => join(&beyond, after_locks, backwards),
                None => beyond,
            });
        }
        let last_write = writes.last().filter(|_| writes.len() >= limit).map(|(row, _)| row.clone());

        let mut rows = VecDeque::with_capacity(writes.len());
        let before = |a: &RowKey, b: &RowKey| if backwards { a > b } else { a < b };
        let mut writes = writes.into_iter().peekable();
        loop {
            let next_lock = locks.front().map(|(row, _): &(RowKey, Lock)| row);
            let row = match (next_lock, writes.peek().map(|(row, _)| row)) {
                (None, None) => break,
                (Some(lock), Some(write)) if before(write, lock) => write,
                (Some(row), _) | (None, Some(row)) => row,
            };
            let row = row.clone();
            if last_write.as_ref().is_some_and(|last| before(last, &row)) {
                break;
            }
            let lock = if locks.front().is_some_and(|(locked, _)| *locked == row) { locks.pop_front() } else { None };
            let write = writes.next_if(|(written, _)| *written == row);
            let decided = match &lock {
                Some((_, lock)) => self.read_lock(view, &row, lock)?,
                None => LockRead::Ignore,
            };
            let value = match (decided, write) {
                (LockRead::Decides(value), _) => value,
                (LockRead::Ignore, Some((_, newest))) => read_write(view, &row, newest)?,
                (LockRead::Ignore, None) => None,
            };
            if let Some(value) = value {
                rows.push_back((row, value));
            }
        }
        Ok(PageRead { rows, rest })
    }
}

fn sees_upto(view: &PinnedView) -> Timestamp {
    if mutated!(SeesOneLess) { Timestamp::from_u64(view.read_ts.to_u64() - 1) } else { view.read_ts }
}

/// What a reader at the view sees of a row, given its cell in the write column. Nearly always that is the value in it.
#[inline]
pub(super) fn read_cell(view: &PinnedView, row: &[u8], content: &[u8]) -> Result<Option<Vec<u8>>> {
    match Put::decode(content) {
        Some(put) if put.commit_ts <= sees_upto(view) => Ok(Some(put.value.to_vec())),
        _ => read_write(view, &row_of(row)?, write_of(row, content)?),
    }
}

/// What a reader at the view sees of a row, given its newest version.
pub(super) fn read_write(view: &PinnedView, row: &RowKey, newest: WriteRecord) -> Result<Option<Vec<u8>>> {
    let version =
        if newest.commit_ts <= sees_upto(view) { Some(newest) } else { view.view.version(row, view.read_ts)? };
    match version {
        Some(WriteRecord { txn, value: Some(value), .. }) => fetch(view, row, txn, value).map(Some),
        Some(WriteRecord { value: None, .. }) | None => Ok(None),
    }
}

pub(super) fn fetch(view: &PinnedView, row: &RowKey, txn: TxnId, value: Value) -> Result<Vec<u8>> {
    match value {
        Value::Inline(bytes) => Ok(bytes.0),
        Value::InData => view.view.data(row, txn.start_ts)?.ok_or_else(|| {
            let what = format!("row {row:?}: the value written by the transaction {:#} is missing", txn.start_ts);
            Error::from(ErrorKind::Corruption(what))
        }),
    }
}

/// The part of the range after `last`, in the direction of reading.
pub(super) fn beyond(range: &RowRange, last: &[u8], backwards: bool) -> RowRange {
    let cut = Bound::Excluded(last.to_vec());
    if backwards {
        RowRange { start: range.start.clone(), end: cut }
    } else {
        RowRange { start: cut, end: range.end.clone() }
    }
}

/// The part of the range up to and with `last`, in the direction of reading.
pub(super) fn upto(range: &RowRange, last: &[u8], backwards: bool) -> RowRange {
    let cut = Bound::Included(last.to_vec());
    if backwards {
        RowRange { start: cut, end: range.end.clone() }
    } else {
        RowRange { start: range.start.clone(), end: cut }
    }
}

/// Begins where `near` does and ends where `far` does, in the direction of reading.
pub(super) fn join(near: &RowRange, far: &RowRange, backwards: bool) -> RowRange {
    if backwards {
        RowRange { start: far.start.clone(), end: near.end.clone() }
    } else {
        RowRange { start: near.start.clone(), end: far.end.clone() }
    }
}
