//! The undecoded cells of one page of a scan.
//!
//! All keys and values of a page lie in one buffer, which is reused for the next page. So a scan
//! allocates only what it returns.

use super::error::EngineError;
use crate::cell::Column;
use crate::codec::{CodecError, Record};
use crate::row::{Lock, RowKey, WriteRecord};
use crate::row_key::KEYSPACE_BYTES;

/// Keys and values, in the order in which they were read.
#[derive(Debug, Default)]
pub struct PageBuffer {
    bytes: Vec<u8>,
    /// End offsets of each key and of its value. A key starts at the end of the value before it.
    ends: Vec<(usize, usize)>,
    /// The number of cells popped from the front.
    front: usize,
}

impl PageBuffer {
    /// Appends a cell.
    #[inline]
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        // `pop_back` leaves the bytes of the removed cell in the buffer, so they are cut off here.
        self.bytes.truncate(self.ends.last().map_or(0, |(_, end)| *end));
        self.bytes.reserve(key.len() + value.len());
        self.bytes.extend_from_slice(key);
        let middle = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.ends.push((middle, self.bytes.len()));
    }

    /// Removes all cells; the allocation is kept.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.front = 0;
    }

    /// The number of cells.
    #[inline]
    pub fn len(&self) -> usize {
        self.ends.len() - self.front
    }

    /// Whether there are no cells.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The size of all keys and values pushed since [`clear`](Self::clear), in bytes. Cells popped
    /// from the front still count; cells popped from the back count until the next push.
    #[inline]
    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// All cells.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (self.front..self.ends.len()).filter_map(|index| self.at(index))
    }

    /// The first cell.
    pub fn first(&self) -> Option<(&[u8], &[u8])> {
        self.at(self.front)
    }

    /// The last cell.
    pub fn last(&self) -> Option<(&[u8], &[u8])> {
        if self.is_empty() { None } else { self.at(self.ends.len() - 1) }
    }

    /// Removes the first cell and returns it.
    #[inline]
    pub fn pop_front(&mut self) -> Option<(&[u8], &[u8])> {
        if self.is_empty() {
            return None;
        }
        self.front += 1;
        self.at(self.front - 1)
    }

    /// Removes the last cell and returns it.
    #[inline]
    pub fn pop_back(&mut self) -> Option<(&[u8], &[u8])> {
        if self.is_empty() {
            return None;
        }
        let (middle, end) = self.ends.pop()?;
        let start = self.ends.last().map_or(0, |(_, end)| *end);
        Some((self.bytes.get(start..middle)?, self.bytes.get(middle..end)?))
    }

    #[inline]
    fn at(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let (middle, end) = *self.ends.get(index)?;
        let start = if index == 0 { 0 } else { self.ends.get(index - 1)?.1 };
        Some((self.bytes.get(start..middle)?, self.bytes.get(middle..end)?))
    }
}

/// Decodes the key of a cell of the lock or write column.
pub fn decode_row_key(key: &[u8]) -> Result<RowKey, EngineError> {
    let what = || EngineError::Corruption(format!("{key:?} is not a row key"));
    RowKey::from_bytes(key).ok_or_else(what)
}

/// The user key in a row's key, without decoding the rest.
pub fn decode_user_key(key: &[u8]) -> Result<&[u8], EngineError> {
    let what = || EngineError::Corruption(format!("{key:?} is not a row key"));
    key.get(KEYSPACE_BYTES..).ok_or_else(what)
}

/// Decodes the value of a cell of the lock column.
pub fn decode_lock(key: &[u8], value: &[u8]) -> Result<Lock, EngineError> {
    decode(Column::Lock, key, value)
}

/// Decodes the value of a cell of the write column.
pub fn decode_write(key: &[u8], value: &[u8]) -> Result<WriteRecord, EngineError> {
    decode(Column::Write, key, value)
}

/// Decodes a value. The error names the column and the key.
pub(super) fn decode<T: Record>(column: Column, key: &[u8], bytes: &[u8]) -> Result<T, EngineError> {
    T::decode(bytes).map_err(|error: CodecError| {
        EngineError::Corruption(format!("{column:?} column, key {}: {error}", key.escape_ascii()))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn cells_are_popped_at_both_ends_as_pushed(
            steps in prop::collection::vec((0..6_u8, prop::collection::vec(any::<u8>(), 0..4), any::<u8>()), 0..60)
        ) {
            let (mut cells, mut model) = (PageBuffer::default(), VecDeque::new());
            for (step, key, value) in steps {
                match step {
                    0 => prop_assert_eq!(cells.pop_front().map(owned), model.pop_front()),
                    1 => prop_assert_eq!(cells.pop_back().map(owned), model.pop_back()),
                    2 if value == 0 => {
                        cells.clear();
                        model.clear();
                    }
                    _ => {
                        cells.push(&key, &[value]);
                        model.push_back((key, vec![value]));
                    }
                }
                prop_assert_eq!(cells.iter().map(owned).collect::<VecDeque<_>>(), model.clone());
                prop_assert_eq!((cells.len(), cells.is_empty()), (model.len(), model.is_empty()));
                prop_assert_eq!(cells.first().map(owned), model.front().cloned());
                prop_assert_eq!(cells.last().map(owned), model.back().cloned());
            }
        }
    }

    fn owned((key, value): (&[u8], &[u8])) -> (Vec<u8>, Vec<u8>) {
        (key.to_vec(), value.to_vec())
    }
}
