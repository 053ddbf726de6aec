//! The write set of a transaction: its mutations, in the order of their rows.
//!
//! Rows are stored in sorted chunks of bounded size; the rows after the last chunk are in the
//! *tail*. A load in key order appends to the tail after one comparison, and a transaction of a few
//! rows has only the tail.
//!
//! Chunks are copy-on-write. A scan shares the write set as it was when the scan began. A write
//! during a scan copies only the list of chunks, the tail and the one chunk that the write changes.

use std::convert::Infallible;
use std::ops::Bound;
use std::sync::Arc;

use crate::row::{Mutation, RowKey};

/// The number of rows of a full chunk. A full chunk is split before another row is added.
const CHUNK_ROWS: usize = 128;

type Chunk = Vec<(RowKey, Mutation)>;

/// A transaction's writes, sorted by row.
#[derive(Clone, Debug, Default)]
pub struct WriteSet {
    /// No chunk is empty.
    chunks: Vec<Arc<Chunk>>,
    /// The rows after all chunks.
    tail: Chunk,
    /// Number of rows in all chunks.
    chunked_rows: usize,
}

/// The position of a row: the number of its chunk, and the index in that chunk. The tail counts as
/// the last chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Position {
    part: usize,
    row: usize,
}

impl WriteSet {
    /// Number of rows written.
    pub fn len(&self) -> usize {
        self.chunked_rows + self.tail.len()
    }

    /// Whether no row is written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes all rows.
    pub fn clear(&mut self) {
        self.chunks.clear();
        self.tail.clear();
        self.chunked_rows = 0;
    }

    /// The rows in order, with their mutations.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&RowKey, &Mutation)> {
        self.chunks.iter().flat_map(|part| part.iter()).chain(&self.tail).map(|(row, mutation)| (row, mutation))
    }

    /// The rows in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &RowKey> {
        self.iter().map(|(row, _)| row)
    }

    /// The mutations, in the order of their rows.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &Mutation> {
        self.iter().map(|(_, mutation)| mutation)
    }

    /// The first row at or after `row`, with its mutation.
    pub fn first_at_or_after(&self, row: &RowKey) -> Option<(&RowKey, &Mutation)> {
        self.entry_at(self.lower_bound(|other| other < row.as_bytes()))
    }

    /// The mutation of a row.
    pub fn get(&self, row: &RowKey) -> Option<&Mutation> {
        self.get_key_value(row).map(|(_, mutation)| mutation)
    }

    /// The mutation of a row, with the stored copy of its key.
    pub fn get_key_value(&self, row: &RowKey) -> Option<(&RowKey, &Mutation)> {
        self.search(row).ok().and_then(|place| self.entry_at(place))
    }

    /// Sets the mutation of a row, if `admitted` returns `Ok`. This closure gets the row, the
    /// mutation that would be replaced, and the new mutation. The check and the insertion share one
    /// search, because searches are most of the cost of a load.
    pub fn insert<E>(
        &mut self,
        row: RowKey,
        mutation: Mutation,
        admitted: impl FnOnce(&RowKey, Option<&Mutation>, &Mutation) -> Result<(), E>,
    ) -> Result<(), E> {
        match self.search(&row) {
            Ok(place) => {
                // Otherwise the mutation would be lost.
                let Some((row, before)) = self.chunk_mut(place.part).get_mut(place.row) else {
                    unreachable!("invariant: a place that a search has found has a row")
                };
                admitted(row, Some(before), &mutation)?;
                *before = mutation;
            }
            Err(mut place) => {
                admitted(&row, None, &mutation)?;
                if self.chunk(place.part).len() >= CHUNK_ROWS {
                    self.split(place);
                    place = self.search(&row).unwrap_or_else(|place| place);
                }
                self.chunk_mut(place.part).insert(place.row, (row, mutation));
                self.chunked_rows += usize::from(place.part < self.chunks.len());
            }
        }
        Ok(())
    }

    /// Removes a row; returns its mutation.
    pub fn remove(&mut self, row: &RowKey) -> Option<Mutation> {
        let place = self.search(row).ok()?;
        let part = self.chunk_mut(place.part);
        let (_, mutation) = part.remove(place.row);
        let is_empty = part.is_empty();
        if place.part < self.chunks.len() {
            self.chunked_rows -= 1;
            if is_empty {
                self.chunks.remove(place.part);
            }
        }
        Some(mutation)
    }

    /// The rows of a range, unaffected by later writes.
    pub fn range(self: &Arc<Self>, start: Bound<&[u8]>, end: Bound<&[u8]>) -> WriteSetRange {
        let front = match start {
            Bound::Included(start) => self.lower_bound(|row| row < start),
            Bound::Excluded(start) => self.lower_bound(|row| row <= start),
            Bound::Unbounded => self.lower_bound(|_| false),
        };
        let back = match end {
            Bound::Included(end) => self.lower_bound(|row| row <= end),
            Bound::Excluded(end) => self.lower_bound(|row| row < end),
            Bound::Unbounded => self.lower_bound(|_| true),
        };
        WriteSetRange { writes: Arc::clone(self), front, back }
    }

    /// `Ok` has the position of the row, `Err` the position at which to insert it.
    #[inline]
    fn search(&self, row: &RowKey) -> Result<Position, Position> {
        let is_last = self.tail.last().is_some_and(|(last, _)| last < row);
        if is_last {
            return Err(Position { part: self.chunks.len(), row: self.tail.len() });
        }
        let part = self.chunks.partition_point(|part| part.last().is_some_and(|(last, _)| last < row));
        let found = self.chunk(part).binary_search_by(|(other, _)| other.cmp(row));
        found.map(|row| Position { part, row }).map_err(|row| Position { part, row })
    }

    /// The position of the first row for which `before` is false; the end of the tail if there is
    /// none.
    fn lower_bound(&self, before: impl Fn(&[u8]) -> bool) -> Position {
        let before = |(row, _): &(RowKey, Mutation)| before(row.as_bytes());
        let part = self.chunks.partition_point(|part| part.last().is_some_and(before));
        Position { part, row: self.chunk(part).partition_point(before) }
    }

    fn chunk(&self, number: usize) -> &Chunk {
        self.chunks.get(number).map_or(&self.tail, |part| part)
    }

    fn chunk_mut(&mut self, number: usize) -> &mut Chunk {
        self.chunks.get_mut(number).map_or(&mut self.tail, Arc::make_mut)
    }

    fn entry_at(&self, place: Position) -> Option<(&RowKey, &Mutation)> {
        self.chunk(place.part).get(place.row).map(|(row, mutation)| (row, mutation))
    }

    /// Splits a full chunk, to insert a row at this position.
    fn split(&mut self, place: Position) {
        let part = self.chunk_mut(place.part);
        // A row after a full tail begins a new tail, and the old one becomes a chunk, still full.
        // Any other insertion splits the chunk in the middle.
        let lower = if place.row == part.len() { part.len() } else { part.len() / 2 };
        let mut upper = Chunk::with_capacity(CHUNK_ROWS);
        upper.extend(part.drain(lower..));
        if place.part < self.chunks.len() {
            self.chunks.insert(place.part + 1, Arc::new(upper));
        } else {
            let full = std::mem::replace(&mut self.tail, upper);
            self.chunked_rows += full.len();
            self.chunks.push(Arc::new(full));
        }
    }
}

impl FromIterator<(RowKey, Mutation)> for WriteSet {
    fn from_iter<T: IntoIterator<Item = (RowKey, Mutation)>>(rows: T) -> Self {
        let mut writes = Self::default();
        for (row, mutation) in rows {
            let Ok(()) = writes.insert(row, mutation, |_, _, _| Ok::<_, Infallible>(()));
        }
        writes
    }
}

/// A double-ended iterator over a range of rows, as they were when it was created.
pub struct WriteSetRange {
    writes: Arc<WriteSet>,
    front: Position,
    /// The position after the last row.
    back: Position,
}

impl WriteSetRange {
    /// Whether no row is left.
    pub fn is_empty(&self) -> bool {
        self.front >= self.back
    }

    /// The next row from the front, or from the back if `backwards`, with its mutation.
    pub fn peek(&self, backwards: bool) -> Option<(&RowKey, &Mutation)> {
        let place = if backwards { self.before_back() } else { self.front };
        if self.is_empty() { None } else { self.writes.entry_at(place) }
    }

    /// Consumes the row that [`Self::peek`] returns, if it is `row`; returns its mutation.
    pub fn next_if(&mut self, row: &RowKey, backwards: bool) -> Option<Mutation> {
        let mutation = self.peek(backwards).filter(|(next, _)| *next == row)?.1.clone();
        if backwards {
            self.back = self.before_back();
        } else {
            let Position { part, row } = self.front;
            let is_last = row + 1 == self.writes.chunk(part).len() && part < self.writes.chunks.len();
            self.front = if is_last { Position { part: part + 1, row: 0 } } else { Position { part, row: row + 1 } };
        }
        Some(mutation)
    }

    fn before_back(&self) -> Position {
        let Position { part, row } = self.back;
        if row > 0 {
            return Position { part, row: row - 1 };
        }
        let part = part.saturating_sub(1);
        Position { part, row: self.writes.chunk(part).len().saturating_sub(1) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ops::RangeBounds;

    use proptest::prelude::*;

    use super::*;
    use crate::row::KeyspaceId;

    fn row(number: u16) -> RowKey {
        RowKey::new(KeyspaceId(1), &number.to_be_bytes())
    }

    fn put(value: u16) -> Mutation {
        Mutation::Put(value.to_be_bytes().as_slice().into())
    }

    #[derive(Clone, Debug)]
    enum Call {
        Insert(u16),
        Refused(u16),
        Remove(u16),
        Clear,
        /// Opens a range. The list says for each row that is then read whether it is read from the
        /// back.
        Scan(Bound<u16>, Bound<u16>, Vec<bool>),
    }

    fn bound() -> impl Strategy<Value = Bound<u16>> {
        prop_oneof![ROWS.prop_map(Bound::Included), ROWS.prop_map(Bound::Excluded), Just(Bound::Unbounded)]
    }

    const ROWS: std::ops::Range<u16> = 0..1000;

    fn calls() -> impl Strategy<Value = Vec<Call>> {
        let row = ROWS;
        let call = prop_oneof![
            20 => row.clone().prop_map(Call::Insert),
            2 => row.clone().prop_map(Call::Refused),
            5 => row.prop_map(Call::Remove),
            1 => Just(Call::Clear),
            2 => (bound(), bound(), prop::collection::vec(any::<bool>(), 0..400))
                .prop_map(|(start, end, ends)| Call::Scan(start, end, ends)),
        ];
        // First insertions in key order, then any calls.
        (ROWS, prop::collection::vec(call, 0..600))
            .prop_map(|(sorted, any)| (0..sorted).map(Call::Insert).chain(any).collect())
    }

    proptest! {
        #[test]
        fn a_write_set_behaves_like_a_btree_map(calls in calls()) {
            let (mut writes, mut map) = (Arc::new(WriteSet::default()), BTreeMap::new());
            let mut scans = Vec::new();
            for (at, call) in (0_u16..).zip(calls) {
                match call {
                    Call::Insert(number) => {
                        let before = map.insert(row(number), put(at));
                        Arc::make_mut(&mut writes).insert(row(number), put(at), |_, replaced, mutation| {
                            assert_eq!((replaced, mutation), (before.as_ref(), &put(at)));
                            Ok::<_, Infallible>(())
                        }).unwrap();
                    }
                    Call::Refused(number) => {
                        let refused = Arc::make_mut(&mut writes).insert(row(number), put(at), |_, _, _| Err("refused"));
                        prop_assert_eq!(refused, Err("refused"));
                    }
                    Call::Remove(number) => {
                        prop_assert_eq!(Arc::make_mut(&mut writes).remove(&row(number)), map.remove(&row(number)));
                    }
                    Call::Clear => {
                        Arc::make_mut(&mut writes).clear();
                        map.clear();
                    }
                    Call::Scan(start, end, ends) => {
                        let (start, end) = (start.map(row), end.map(row));
                        let range = writes.range(start.as_ref().map(RowKey::as_bytes), end.as_ref().map(RowKey::as_bytes));
                        let within = map.iter().filter(|(row, _)| (start.clone(), end.clone()).contains(*row));
                        let expected: BTreeMap<_, _> = within.map(|(row, put)| (row.clone(), put.clone())).collect();
                        scans.push((range, expected, ends.into_iter()));
                    }
                }
                // After each call one more row of each scan is read. The scans must not show later
                // writes.
                for (range, expected, ends) in &mut scans {
                    if let Some(backwards) = ends.next() {
                        compare(range, expected, backwards);
                    }
                }
                prop_assert_eq!((writes.len(), writes.is_empty()), (map.len(), map.is_empty()));
            }
            prop_assert!(writes.iter().eq(&map));
            prop_assert!(writes.iter().rev().eq(map.iter().rev()));
            for number in ROWS {
                prop_assert_eq!(writes.get_key_value(&row(number)), map.get_key_value(&row(number)));
                prop_assert_eq!(writes.first_at_or_after(&row(number)), map.range(row(number)..).next());
            }
            for (range, expected, ends) in &mut scans {
                ends.for_each(|backwards| compare(range, expected, backwards));
                while !expected.is_empty() {
                    compare(range, expected, false);
                }
                compare(range, expected, true);
                prop_assert!(range.is_empty());
            }
        }
    }

    /// Consumes one row of `range` and of `expected`, which must be equal.
    #[track_caller]
    fn compare(range: &mut WriteSetRange, expected: &mut BTreeMap<RowKey, Mutation>, backwards: bool) {
        let expected = if backwards { expected.pop_last() } else { expected.pop_first() };
        assert_eq!(range.peek(backwards), expected.as_ref().map(|(row, mutation)| (row, mutation)));
        if let Some((row, mutation)) = expected {
            assert_eq!(range.next_if(&row, backwards), Some(mutation));
        }
    }

    fn filled(numbers: impl Iterator<Item = u16>) -> WriteSet {
        numbers.map(|number| (row(number), put(0))).collect()
    }

    #[test]
    fn sorted_rows_fill_chunks_and_others_half_fill_them() {
        let chunks = |writes: &WriteSet| writes.chunks.len();
        assert_eq!(chunks(&filled(0..5000)), 5000 / CHUNK_ROWS);
        let (nearly, any) =
            (filled((0..5000).map(|number| number ^ 7)), filled((0..5000).map(|n: u16| n.wrapping_mul(40_503))));
        assert!(chunks(&nearly) <= 2 * 5000 / CHUNK_ROWS && chunks(&any) <= 2 * 5000 / CHUNK_ROWS + 1);
        assert!(any.chunks.iter().chain(&nearly.chunks).all(|part| part.len() <= CHUNK_ROWS));
    }

    #[test]
    fn a_write_during_a_scan_copies_one_chunk_once() {
        let mut writes = Arc::new(filled(0..5000));
        let scan = writes.range(Bound::Unbounded, Bound::Unbounded);
        let insert = |writes: &mut Arc<WriteSet>, number| {
            Arc::make_mut(writes).insert(row(number), put(1), |_, _, _| Ok::<_, Infallible>(())).unwrap();
        };
        let shared = |writes: &WriteSet| {
            let of_scan = &scan.writes.chunks;
            writes.chunks.iter().zip(of_scan).filter(|(own, kept)| Arc::ptr_eq(own, kept)).count()
        };
        insert(&mut writes, 2000);
        assert_eq!(shared(&writes), writes.chunks.len() - 1);
        let copied = Arc::as_ptr(&writes.chunks[2000 / CHUNK_ROWS]);
        insert(&mut writes, 2001);
        assert_eq!(
            (shared(&writes), Arc::as_ptr(&writes.chunks[2000 / CHUNK_ROWS])),
            (writes.chunks.len() - 1, copied)
        );
    }
}
