//! Scans: rows of a range, from either end, over a view and a transaction's own writes.
//!
//! A scan owns what it needs and reads ahead in pages, so it borrows nothing and may outlive the transaction or
//! snapshot that it came from. Between two pages the engine's place in the range is kept in a bookmark.
//!
//! Mostly the newest versions are all there is to know. Then a page is cells as they are stored, each decoded when it is handed out:
//! all that is allocated is what the caller gets. Where there may be locks or own writes, a page is put together from them.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use super::Store;
use super::live::Reader;
use super::own::Streamed;
use super::read::{Bookmarks, join, read_cell};
use crate::engine::{Cells, Page, RowRange};
use crate::error::{Error, Result};
use crate::row::{Mutation, RowKey};
use crate::view::PinnedView;

// Tests of crashes have few rows, and are to meet the ends of pages.
const PAGE_ROWS_MIN: usize = if cfg!(feature = "crashtest") { 2 } else { 16 };
const PAGE_ROWS_MAX: usize = 512;
/// A page is to hold about this much, going by the rows read last.
const PAGE_BYTES: usize = 1 << 20;
/// So large a part of what was read before is the next page, that whoever stops early has read little in vain.
const PAGE_PART: usize = 4;

/// An iterator over rows as `(key, value)`, in the order of their keys; use `rev()` for the other direction.
///
/// After an error it ends. Between its first row and its last, it keeps the files and the memory that it reads from being
/// given back, even where they were replaced meanwhile; so drop one that is not read to its end.
#[must_use]
pub struct Scan {
    store: Store,
    reader: Arc<Reader>,
    ahead: Ahead,
}

/// What a scan has not handed out.
struct Ahead {
    /// What neither end has read.
    unread: Option<RowRange>,
    /// Own writes in memory that neither end has reached.
    own: BTreeMap<RowKey, Mutation>,
    /// Those that are in the store already.
    streamed: Option<Streamed>,
    front: End,
    back: End,
    /// How many rows both ends have read.
    rows_read: usize,
    /// How large those of the last page were.
    row_bytes: usize,
    /// Why there is nothing.
    failed: Option<Error>,
}

/// One end of what is left of a range. What was read and not handed out is in the direction of reading, in one of two forms.
#[derive(Default)]
struct End {
    /// Where the newest versions are all there is to know.
    cells: Cells,
    /// Where locks or own writes were laid over them.
    rows: VecDeque<(RowKey, Vec<u8>)>,
    bookmarks: Bookmarks,
}

impl Scan {
    pub(super) fn new(
        store: &Store,
        reader: &Arc<Reader>,
        what: Result<(BTreeMap<RowKey, Mutation>, Option<Streamed>, RowRange)>,
    ) -> Self {
        let (own, streamed, unread, failed) = match what {
            Ok((own, streamed, range)) => (own, streamed, Some(range), None),
            Err(why) => (BTreeMap::new(), None, None, Some(why)),
        };
        let (front, back) = (End::default(), End::default());
        let ahead = Ahead { unread, own, streamed, front, back, rows_read: 0, row_bytes: 1, failed };
        Self { store: store.clone(), reader: Arc::clone(reader), ahead }
    }

    fn step(&mut self, backwards: bool) -> Option<Result<(Vec<u8>, Vec<u8>)>> {
        let Self { store, reader, ahead } = self;
        match store.timed(reader, || ahead.next(store, &reader.view, backwards)) {
            Ok(row) => row.map(Ok),
            Err(why) => {
                ahead.end();
                Some(store.note_conflict(reader, Err(why)))
            }
        }
    }

    /// The next rows, as many as are worth a hop to another thread; none at the end.
    #[cfg(feature = "tokio")]
    pub(crate) fn page(&mut self, backwards: bool) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let limit = (self.ahead.rows_read * 3).clamp(PAGE_ROWS_MIN * 2, PAGE_ROWS_MAX);
        let mut rows = Vec::new();
        let mut bytes = 0;
        while rows.len() < limit && bytes < PAGE_BYTES {
            let Some((key, value)) = self.step(backwards).transpose()? else { break };
            bytes += key.len() + value.len();
            rows.push((key, value));
        }
        Ok(rows)
    }
}

impl Ahead {
    fn next(&mut self, store: &Store, view: &PinnedView, backwards: bool) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        if let Some(why) = self.failed.take() {
            return Err(why);
        }
        loop {
            let (near, far) =
                if backwards { (&mut self.back, &mut self.front) } else { (&mut self.front, &mut self.back) };
            if let Some(row) = near.pop(view, false)? {
                return Ok(Some(row));
            }
            let Some(range) = self.unread.take() else {
                // The other end has read all there was; what it has not handed out is met from this side.
                return far.pop(view, true);
            };
            store.check_view(view)?;
            let limit = (self.rows_read / PAGE_PART).clamp(PAGE_ROWS_MIN, PAGE_ROWS_MAX);
            let limit = limit.min(PAGE_BYTES / self.row_bytes).max(1);
            let (rows, bytes) = if view.check_locks || self.streamed.is_some() || !self.own.is_empty() {
                self.read_layers(store, view, &range, backwards, limit)?
            } else {
                self.read_newest(view, range, backwards, limit)?
            };
            self.rows_read += rows;
            self.row_bytes = (bytes / rows.max(1)).max(1);
        }
    }

    /// A page where the newest versions are all there is to know. The answer is how many rows it has, and bytes.
    fn read_newest(
        &mut self,
        view: &PinnedView,
        mut range: RowRange,
        backwards: bool,
        limit: usize,
    ) -> Result<(usize, usize)> {
        let End { cells, bookmarks, .. } = if backwards { &mut self.back } else { &mut self.front };
        view.view.newest(&Page { range: &range, backwards, limit, bookmark: Some(&bookmarks.writes) }, cells)?;
        if cells.len() >= limit
            && let Some((last, _)) = cells.last()
        {
            let cut = Bound::Excluded(last.to_vec());
            *(if backwards { &mut range.end } else { &mut range.start }) = cut;
            self.unread = Some(range);
        }
        Ok((cells.len(), cells.size_bytes()))
    }

    /// A page put together from versions, locks and own writes.
    fn read_layers(
        &mut self,
        store: &Store,
        view: &PinnedView,
        range: &RowRange,
        backwards: bool,
        limit: usize,
    ) -> Result<(usize, usize)> {
        let near = if backwards { &mut self.back } else { &mut self.front };
        let (mut streamed, range, beyond) = match &self.streamed {
            Some(streamed) => streamed.page(range, backwards, limit)?,
            None => (BTreeMap::new(), range.clone(), None),
        };
        let page = store.read_page(view, &range, backwards, limit, &near.bookmarks)?;
        let size = |row: &RowKey, value_bytes: usize| row.as_bytes().len() + value_bytes;
        let read = page.rows.iter().map(|(row, value)| size(row, value.len()));
        let read_back = streamed.iter().map(|(row, mutation)| size(row, mutation.value_bytes()));
        let told = (page.rows.len().max(streamed.len()), read.chain(read_back).sum());
        let covered = page.rest.as_ref().map_or_else(|| range.clone(), |rest| without(&range, rest, backwards));
        let mut own = take_range(&mut self.own, &covered);
        let mut streamed = take_range(&mut streamed, &covered);
        streamed.append(&mut own);
        near.rows = merge(page.rows, streamed, backwards);
        self.unread = match (page.rest, beyond) {
            (Some(rest), Some(beyond)) => Some(join(&rest, &beyond, backwards)),
            (rest, beyond) => rest.or(beyond),
        };
        Ok(told)
    }

    /// After an error nothing is handed out.
    fn end(&mut self) {
        self.unread = None;
        (self.front, self.back) = (End::default(), End::default());
    }
}

impl End {
    /// Takes out a row: the next one, or the one that was read last.
    fn pop(&mut self, view: &PinnedView, last: bool) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        while let Some((row, content)) = if last { self.cells.pop_back() } else { self.cells.pop_front() } {
            if let Some(value) = read_cell(view, row, content)? {
                return Ok(Some((RowKey::key_of(row).to_vec(), value)));
            }
        }
        let row = if last { self.rows.pop_back() } else { self.rows.pop_front() };
        Ok(row.map(|(row, value)| (row.key().to_vec(), value)))
    }
}

impl Iterator for Scan {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(false)
    }
}

impl DoubleEndedIterator for Scan {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(true)
    }
}

/// Own writes within a range, as a scan wants them.
pub(super) fn own_writes(writes: &BTreeMap<RowKey, Mutation>, range: &RowRange) -> BTreeMap<RowKey, Mutation> {
    let within = |row: &RowKey| {
        let key = row.as_bytes();
        (match &range.start {
            Bound::Included(start) => key >= start.as_slice(),
            Bound::Excluded(start) => key > start.as_slice(),
            Bound::Unbounded => true,
        }) && (match &range.end {
            Bound::Included(end) => key <= end.as_slice(),
            Bound::Excluded(end) => key < end.as_slice(),
            Bound::Unbounded => true,
        })
    };
    let from = match &range.start {
        Bound::Included(start) | Bound::Excluded(start) => RowKey::from_bytes(start),
        Bound::Unbounded => None,
    };
    let from = from.map_or(Bound::Unbounded, Bound::Included);
    writes
        .range((from, Bound::Unbounded))
        .skip_while(|(row, _)| !within(row))
        .take_while(|(row, _)| within(row))
        .map(|(row, mutation)| (row.clone(), mutation.clone()))
        .collect()
}

/// The part of `range` that lies before `rest`, in the direction of reading.
fn without(range: &RowRange, rest: &RowRange, backwards: bool) -> RowRange {
    let turn = |bound: &Bound<Vec<u8>>| match bound {
        Bound::Included(key) => Bound::Excluded(key.clone()),
        Bound::Excluded(key) => Bound::Included(key.clone()),
        Bound::Unbounded => Bound::Unbounded,
    };
    if backwards {
        RowRange { start: turn(&rest.end), end: range.end.clone() }
    } else {
        RowRange { start: range.start.clone(), end: turn(&rest.start) }
    }
}

/// Removes the own writes within a range, which reaches to one end of what is left of them.
fn take_range(own: &mut BTreeMap<RowKey, Mutation>, range: &RowRange) -> BTreeMap<RowKey, Mutation> {
    if own.is_empty() {
        return BTreeMap::new();
    }
    let as_row = |bound: &Bound<Vec<u8>>| match bound {
        Bound::Included(key) => RowKey::from_bytes(key).map_or(Bound::Unbounded, Bound::Included),
        Bound::Excluded(key) => RowKey::from_bytes(key).map_or(Bound::Unbounded, Bound::Excluded),
        Bound::Unbounded => Bound::Unbounded,
    };
    let (start, end) = (as_row(&range.start), as_row(&range.end));
    let empty = match (&start, &end) {
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (Bound::Included(start) | Bound::Excluded(start), Bound::Included(end) | Bound::Excluded(end)) => start >= end,
        _ => false,
    };
    if empty {
        return BTreeMap::new();
    }
    let rows: Vec<RowKey> = own.range((start, end)).map(|(row, _)| row.clone()).collect();
    rows.into_iter().filter_map(|row| own.remove_entry(&row)).collect()
}

/// Lays own writes over the rows read.
fn merge(
    read: VecDeque<(RowKey, Vec<u8>)>,
    own: BTreeMap<RowKey, Mutation>,
    backwards: bool,
) -> VecDeque<(RowKey, Vec<u8>)> {
    if own.is_empty() {
        return read;
    }
    let mut rows: BTreeMap<RowKey, Vec<u8>> = read.into_iter().collect();
    for (row, mutation) in own {
        match mutation {
            Mutation::Put(value) => drop(rows.insert(row, value)),
            Mutation::Delete => drop(rows.remove(&row)),
            Mutation::Hold => {}
        }
    }
    if backwards { rows.into_iter().rev().collect() } else { rows.into_iter().collect() }
}
