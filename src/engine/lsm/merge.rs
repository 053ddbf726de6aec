//! An iterator over the cells of two memtables, in key order.

use std::cmp::Ordering;
use std::iter::Peekable;

use crate::memtable::CellValue;

type Cell<'a> = (&'a [u8], CellValue<'a>);

/// Merges the cells of two memtables. If both have a cell of the same key, the newer memtable's
/// cell is taken.
pub struct MergeIter<'a, N: Iterator<Item = Cell<'a>>, O: Iterator<Item = Cell<'a>>> {
    newer: Peekable<N>,
    older: Peekable<O>,
    backwards: bool,
}

impl<'a, N: Iterator<Item = Cell<'a>>, O: Iterator<Item = Cell<'a>>> MergeIter<'a, N, O> {
    pub fn new(newer: N, older: O, backwards: bool) -> Self {
        Self { newer: newer.peekable(), older: older.peekable(), backwards }
    }
}

impl<'a, N: Iterator<Item = Cell<'a>>, O: Iterator<Item = Cell<'a>>> Iterator for MergeIter<'a, N, O> {
    type Item = Cell<'a>;

    fn next(&mut self) -> Option<Cell<'a>> {
        let order = match (self.newer.peek(), self.older.peek()) {
            (Some((newer, _)), Some((older, _))) => scan_order(newer, older, self.backwards),
            (Some(_), None) => Ordering::Less,
            (None, _) => Ordering::Greater,
        };
        match order {
            Ordering::Less => self.newer.next(),
            Ordering::Greater => self.older.next(),
            Ordering::Equal => {
                self.older.next();
                self.newer.next()
            }
        }
    }
}

/// The order of two keys in the direction of a scan.
pub fn scan_order(one: &[u8], other: &[u8], backwards: bool) -> Ordering {
    if backwards { other.cmp(one) } else { one.cmp(other) }
}
