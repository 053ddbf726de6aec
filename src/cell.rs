//! Cells: keys and values in five columns, each of which is a sorted map.

use std::ops::Bound;

use serde::{Deserialize, Serialize};

/// A column: one of the five sorted maps of cells. Data, lock and write are Percolator's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Column {
    /// The store's metadata: timestamp reservation, safe point, GC queue.
    Meta,
    /// Long values, by row and start timestamp.
    Data,
    /// Locks, by row.
    Lock,
    /// Newest versions, by row.
    Write,
    /// Transaction records and replaced versions, by row and inverted timestamp.
    History,
}

impl Column {
    /// All columns, in the order of their declaration.
    pub const ALL: [Self; 5] = [Self::Meta, Self::Data, Self::Lock, Self::Write, Self::History];
}

/// A range of rows by their bytes ([`RowKey::as_bytes`](crate::row::RowKey::as_bytes)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowRange {
    /// The lower bound.
    pub start: Bound<Vec<u8>>,
    /// The upper bound.
    pub end: Bound<Vec<u8>>,
}

impl RowRange {
    /// Every row of every keyspace.
    pub fn all() -> Self {
        Self { start: Bound::Unbounded, end: Bound::Unbounded }
    }
}
