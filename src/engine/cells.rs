//! Cells of a page, as they are stored.
//!
//! All of a page lies in one run of memory, which serves for one page after the other: a scan allocates what it hands out, and
//! nothing more.

use std::collections::VecDeque;
use std::ops::Range;

use super::EngineError;
use super::local::decode;
use super::storage::Column;
use crate::row::{Lock, RowKey, WriteRecord};

/// Keys and contents, in the order in which they were read.
#[derive(Debug, Default)]
pub struct Cells {
    bytes: Vec<u8>,
    /// Where each key and its content are.
    places: VecDeque<(Range<usize>, Range<usize>)>,
}

impl Cells {
    /// Adds one behind the others.
    #[inline]
    pub fn push(&mut self, key: &[u8], content: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let middle = self.bytes.len();
        self.bytes.extend_from_slice(content);
        self.places.push_back((start..middle, middle..self.bytes.len()));
    }

    /// Forgets them all, and keeps their memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.places.clear();
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// What they take, in bytes.
    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.places.iter().map(|place| self.at(place))
    }

    /// The first one.
    pub fn first(&self) -> Option<(&[u8], &[u8])> {
        self.places.front().map(|place| self.at(place))
    }

    /// The last one.
    pub fn last(&self) -> Option<(&[u8], &[u8])> {
        self.places.back().map(|place| self.at(place))
    }

    /// Takes the first one out.
    #[inline]
    pub fn pop_front(&mut self) -> Option<(&[u8], &[u8])> {
        let place = self.places.pop_front()?;
        Some(self.at(&place))
    }

    /// Takes the last one out.
    #[inline]
    pub fn pop_back(&mut self) -> Option<(&[u8], &[u8])> {
        let place = self.places.pop_back()?;
        Some(self.at(&place))
    }

    #[inline]
    fn at(&self, (key, content): &(Range<usize>, Range<usize>)) -> (&[u8], &[u8]) {
        (self.bytes.get(key.clone()).unwrap_or_default(), self.bytes.get(content.clone()).unwrap_or_default())
    }
}

/// The row that a cell of the lock or write column belongs to.
pub fn row_of(key: &[u8]) -> Result<RowKey, EngineError> {
    let what = || EngineError::Corruption(format!("{key:?} is no row"));
    RowKey::from_bytes(key).ok_or_else(what)
}

/// What a cell of the lock column says.
pub fn lock_of(key: &[u8], content: &[u8]) -> Result<Lock, EngineError> {
    decode(Column::Lock, key, content)
}

/// What a cell of the write column says.
pub fn write_of(key: &[u8], content: &[u8]) -> Result<WriteRecord, EngineError> {
    decode(Column::Write, key, content)
}
