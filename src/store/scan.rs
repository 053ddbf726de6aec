//! Scans: rows of a range, from either end, over a view and a transaction's own writes.
//!
//! A scan owns what it needs and reads ahead in pages, so it borrows nothing and may outlive the transaction or
//! snapshot that it came from.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use super::Store;
use super::live::Reader;
use super::own::Streamed;
use super::read::join;
use crate::engine::RowRange;
use crate::error::Result;
use crate::row::{Mutation, RowKey};

// Tests of crashes have few rows, and are to meet the ends of pages.
const FIRST_PAGE_ROWS: usize = if cfg!(feature = "crashtest") { 2 } else { 32 };
const PAGE_ROWS_MAX: usize = 512;
/// A page is to hold about this much, going by the rows read last.
const PAGE_BYTES: usize = 1 << 20;

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
    front: VecDeque<(RowKey, Vec<u8>)>,
    back: VecDeque<(RowKey, Vec<u8>)>,
    page_rows: usize,
    failed: Option<crate::error::Error>,
    store: Store,
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
            front: VecDeque::new(),
            back: VecDeque::new(),
            page_rows: FIRST_PAGE_ROWS,
            failed,
            store: store.clone(),
        }
    }

    fn step(&mut self, backwards: bool) -> Option<Result<(Vec<u8>, Vec<u8>)>> {
        loop {
            if let Some(why) = self.failed.take() {
                self.unread = None;
                self.front.clear();
                self.back.clear();
                return Some(Err(why));
            }
            let near = if backwards { &mut self.back } else { &mut self.front };
            if let Some((row, value)) = near.pop_front() {
                return Some(Ok((row.key().to_vec(), value)));
            }
            let Some(range) = self.unread.take() else {
                // The other end has read all there was; what it has not handed out is met from this side.
                let far = if backwards { &mut self.front } else { &mut self.back };
                return far.pop_back().map(|(row, value)| Ok((row.key().to_vec(), value)));
            };
            let (store, reader) = (self.store.clone(), Arc::clone(&self.reader));
            let filled = store.timed(&reader, || self.fill(&range, backwards));
            if let Err(why) = store.note_conflict(&reader, filled) {
                self.failed = Some(why);
            }
        }
    }

    /// The next rows, as many as are read at a time; none at the end.
    #[cfg(feature = "tokio")]
    pub(crate) fn page(&mut self, backwards: bool) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let Some(first) = self.step(backwards).transpose()? else { return Ok(Vec::new()) };
        let near = if backwards { &mut self.back } else { &mut self.front };
        let rest = std::mem::take(near).into_iter().map(|(row, value)| (row.key().to_vec(), value));
        Ok(std::iter::once(first).chain(rest).collect())
    }

    fn fill(&mut self, range: &RowRange, backwards: bool) -> Result<()> {
        self.store.check_view(&self.reader.view)?;
        let (streamed, range, beyond) = match &self.streamed {
            Some(streamed) => streamed.page(range, backwards, self.page_rows)?,
            None => (BTreeMap::new(), range.clone(), None),
        };
        let page = self.store.read_page(&self.reader.view, &range, backwards, self.page_rows)?;
        let size = |row: &RowKey, value_bytes: usize| row.as_bytes().len() + value_bytes;
        let read = page.rows.iter().map(|(row, value)| size(row, value.len()));
        let read_back = streamed.iter().map(|(row, mutation)| size(row, mutation.value_bytes()));
        let bytes: usize = read.chain(read_back).sum();
        let row_bytes = (bytes / page.rows.len().max(streamed.len()).max(1)).max(1);
        self.page_rows = (self.page_rows * 4).min(PAGE_BYTES / row_bytes).clamp(1, PAGE_ROWS_MAX);
        let covered = page.rest.as_ref().map_or_else(|| range.clone(), |rest| without(&range, rest, backwards));
        let (mut own, mut streamed) = (take_range(&mut self.own, &covered), streamed);
        let mut streamed = take_range(&mut streamed, &covered);
        streamed.append(&mut own);
        let rows = merge(page.rows, streamed, backwards);
        self.unread = match (page.rest, beyond) {
            (Some(rest), Some(beyond)) => Some(join(&rest, &beyond, backwards)),
            (rest, beyond) => rest.or(beyond),
        };
        if backwards {
            self.back = rows;
        } else {
            self.front = rows;
        }
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
