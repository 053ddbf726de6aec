//! Cells of a page, as they are stored.
//!
//! All of a page lies in one run of memory, which serves for one page after the other: a scan allocates what it hands out, and
//! nothing more.

use super::EngineError;
use super::storage::Column;
use crate::codec::{CodecError, Record};
use crate::row::{Lock, RowKey, WriteRecord};

/// Keys and contents, in the order in which they were read.
#[derive(Debug, Default)]
pub struct PageBuffer {
    bytes: Vec<u8>,
    /// Where each key and its content end. The key begins where the content before it has ended.
    ends: Vec<(usize, usize)>,
    /// How many were taken out in front.
    front: usize,
}

impl PageBuffer {
    /// Adds one behind the others.
    #[inline]
    pub fn push(&mut self, key: &[u8], content: &[u8]) {
        // Of what was taken out behind, the bytes are still there.
        self.bytes.truncate(self.ends.last().map_or(0, |(_, end)| *end));
        self.bytes.reserve(key.len() + content.len());
        self.bytes.extend_from_slice(key);
        let middle = self.bytes.len();
        self.bytes.extend_from_slice(content);
        self.ends.push((middle, self.bytes.len()));
    }

    /// Forgets them all, and keeps their memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.front = 0;
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.ends.len() - self.front
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What they take, in bytes, those included that were taken out.
    #[inline]
    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (self.front..self.ends.len()).filter_map(|place| self.at(place))
    }

    /// The first one.
    pub fn first(&self) -> Option<(&[u8], &[u8])> {
        self.at(self.front)
    }

    /// The last one.
    pub fn last(&self) -> Option<(&[u8], &[u8])> {
        if self.is_empty() { None } else { self.at(self.ends.len() - 1) }
    }

    /// Takes the first one out.
    #[inline]
    pub fn pop_front(&mut self) -> Option<(&[u8], &[u8])> {
        if self.is_empty() {
            return None;
        }
        self.front += 1;
        self.at(self.front - 1)
    }

    /// Takes the last one out.
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
    fn at(&self, place: usize) -> Option<(&[u8], &[u8])> {
        let (middle, end) = *self.ends.get(place)?;
        let start = if place == 0 { 0 } else { self.ends.get(place - 1)?.1 };
        Some((self.bytes.get(start..middle)?, self.bytes.get(middle..end)?))
    }
}

/// The row that a cell of the lock or write column belongs to.
pub fn decode_row_key(key: &[u8]) -> Result<RowKey, EngineError> {
    let what = || EngineError::Corruption(format!("{key:?} is no row"));
    RowKey::from_bytes(key).ok_or_else(what)
}

/// What a cell of the lock column says.
pub fn decode_lock(key: &[u8], content: &[u8]) -> Result<Lock, EngineError> {
    decode(Column::Lock, key, content)
}

/// What a cell of the write column says.
pub fn decode_write(key: &[u8], content: &[u8]) -> Result<WriteRecord, EngineError> {
    decode(Column::Write, key, content)
}

/// What a cell of a column holds.
pub(super) fn decode<T: Record>(column: Column, key: &[u8], bytes: &[u8]) -> Result<T, EngineError> {
    T::decode(bytes).map_err(|why: CodecError| {
        EngineError::Corruption(format!("{column:?} column, key {}: {why}", key.escape_ascii()))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn cells_are_taken_out_at_both_ends_as_they_were_put_in(
            steps in prop::collection::vec((0..6_u8, prop::collection::vec(any::<u8>(), 0..4), any::<u8>()), 0..60)
        ) {
            let (mut cells, mut model) = (PageBuffer::default(), VecDeque::new());
            for (step, key, content) in steps {
                match step {
                    0 => prop_assert_eq!(cells.pop_front().map(owned), model.pop_front()),
                    1 => prop_assert_eq!(cells.pop_back().map(owned), model.pop_back()),
                    2 if content == 0 => {
                        cells.clear();
                        model.clear();
                    }
                    _ => {
                        cells.push(&key, &[content]);
                        model.push_back((key, vec![content]));
                    }
                }
                prop_assert_eq!(cells.iter().map(owned).collect::<VecDeque<_>>(), model.clone());
                prop_assert_eq!((cells.len(), cells.is_empty()), (model.len(), model.is_empty()));
                prop_assert_eq!(cells.first().map(owned), model.front().cloned());
                prop_assert_eq!(cells.last().map(owned), model.back().cloned());
            }
        }
    }

    fn owned((key, content): (&[u8], &[u8])) -> (Vec<u8>, Vec<u8>) {
        (key.to_vec(), content.to_vec())
    }
}
