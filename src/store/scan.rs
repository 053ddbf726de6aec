//! Scans: rows of a range, from either end, over a view and a transaction's own writes.
//!
//! A scan owns what it needs and reads ahead in pages, so it borrows nothing and may outlive the transaction or
//! snapshot that it came from. Between two pages the engine's place in the range is kept in a bookmark at either end.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use super::Store;
use super::live::Reader;
use super::own::Streamed;
use super::read::{Bookmarks, join};
use crate::engine::RowRange;
use crate::error::Result;
use crate::row::{Mutation, RowKey};

// Tests of crashes have few rows, and are to meet the ends of pages.
const PAGE_ROWS_MIN: usize = if cfg!(feature = "crashtest") { 2 } else { 16 };
const PAGE_ROWS_MAX: usize = 512;
/// A page is to hold about this much, going by the rows read last.
const PAGE_BYTES: usize = 1 << 20;
/// A page is so large a part of what was read before, so whoever stops early has read little in vain.
const PAGE_PART: usize = 8;

/// An iterator over rows as `(key, value)`, in the order of their keys; use `rev()` for the other direction.
///
/// After an error it ends.
#[must_use]
pub struct Scan {
    reader: Arc<Reader>,
    /// What neither end has read.
    unread: Option<RowRange>,
    /// Own writes in memory that neither end has reached.
    own: BTreeMap<RowKey, Mutation>,
    /// Those that are in the store already.
    streamed: Option<Streamed>,
    front: End,
    back: End,
    /// How many rows both ends have read, and how large a row was.
    rows_read: usize,
    row_bytes: usize,
    failed: Option<crate::error::Error>,
    store: Store,
}

/// One end of what is left of a range.
#[derive(Default)]
struct End {
    /// What was read and not handed out, the next one first; rows by their bytes.
    rows: VecDeque<(Vec<u8>, Vec<u8>)>,
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
        Self {
            reader: Arc::clone(reader),
            unread,
            own,
            streamed,
            front: End::default(),
            back: End::default(),
            rows_read: 0,
            row_bytes: 1,
            failed,
            store: store.clone(),
        }
    }

    fn step(&mut self, backwards: bool) -> Option<Result<(Vec<u8>, Vec<u8>)>> {
        loop {
            if let Some(why) = self.failed.take() {
                self.unread = None;
                (self.front, self.back) = (End::default(), End::default());
                return Some(Err(why));
            }
            let near = if backwards { &mut self.back } else { &mut self.front };
            if let Some((row, value)) = near.rows.pop_front() {
                return Some(Ok((RowKey::key_of(row), value)));
            }
            if self.unread.is_none() {
                // The other end has read all there was; what it has not handed out is met from this side.
                let far = if backwards { &mut self.front } else { &mut self.back };
                return far.rows.pop_back().map(|(row, value)| Ok((RowKey::key_of(row), value)));
            }
            self.read(backwards, self.rows_read / PAGE_PART);
        }
    }

    /// The next rows, as many as are worth a thread's attention; none at the end.
    #[cfg(feature = "tokio")]
    pub(crate) fn page(&mut self, backwards: bool) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let near = if backwards { &self.back } else { &self.front };
        if near.rows.is_empty() {
            self.read(backwards, (self.rows_read * 3).max(PAGE_ROWS_MIN * 2));
        }
        let Some(first) = self.step(backwards).transpose()? else { return Ok(Vec::new()) };
        let near = if backwards { &mut self.back } else { &mut self.front };
        let rest = std::mem::take(&mut near.rows).into_iter().map(|(row, value)| (RowKey::key_of(row), value));
        Ok(std::iter::once(first).chain(rest).collect())
    }

    /// Reads on at one end, if anything is unread there.
    fn read(&mut self, backwards: bool, rows: usize) {
        let Some(range) = self.unread.take() else { return };
        let rows = rows.max(PAGE_ROWS_MIN).min(PAGE_BYTES / self.row_bytes).clamp(1, PAGE_ROWS_MAX);
        let (store, reader) = (self.store.clone(), Arc::clone(&self.reader));
        let filled = store.timed(&reader, || self.fill(&range, backwards, rows));
        if let Err(why) = store.note_conflict(&reader, filled) {
            self.failed = Some(why);
        }
    }

    fn fill(&mut self, range: &RowRange, backwards: bool, limit: usize) -> Result<()> {
        self.store.check_view(&self.reader.view)?;
        let near = if backwards { &mut self.back } else { &mut self.front };
        let (streamed, range, beyond) = match &self.streamed {
            Some(streamed) => streamed.page(range, backwards, limit)?,
            None => (BTreeMap::new(), range.clone(), None),
        };
        let page = self.store.read_page(&self.reader.view, &range, backwards, limit, &near.bookmarks)?;
        let read = page.rows.iter().map(|(row, value)| row.len() + value.len());
        let read_back = streamed.iter().map(|(row, mutation)| row.as_bytes().len() + mutation.value_bytes());
        let bytes: usize = read.chain(read_back).sum();
        let rows_read = page.rows.len().max(streamed.len());
        self.row_bytes = (bytes / rows_read.max(1)).max(1);
        self.rows_read += rows_read;
        near.rows = if self.own.is_empty() && streamed.is_empty() {
            page.rows
        } else {
            let covered = page.rest.as_ref().map_or_else(|| range.clone(), |rest| without(&range, rest, backwards));
            let (mut own, mut streamed) = (take_range(&mut self.own, &covered), streamed);
            let mut streamed = take_range(&mut streamed, &covered);
            streamed.append(&mut own);
            merge(page.rows, streamed, backwards)
        };
        self.unread = match (page.rest, beyond) {
            (Some(rest), Some(beyond)) => Some(join(&rest, &beyond, backwards)),
            (rest, beyond) => rest.or(beyond),
        };
        Ok(())
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
    read: VecDeque<(Vec<u8>, Vec<u8>)>,
    own: BTreeMap<RowKey, Mutation>,
    backwards: bool,
) -> VecDeque<(Vec<u8>, Vec<u8>)> {
    if own.is_empty() {
        return read;
    }
    let mut rows: BTreeMap<Vec<u8>, Vec<u8>> = read.into_iter().collect();
    for (row, mutation) in own {
        match mutation {
            Mutation::Put(value) => drop(rows.insert(row.as_bytes().to_vec(), value)),
            Mutation::Delete => drop(rows.remove(row.as_bytes())),
            Mutation::Hold => {}
        }
    }
    if backwards { rows.into_iter().rev().collect() } else { rows.into_iter().collect() }
}
