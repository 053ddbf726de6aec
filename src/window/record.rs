//! A change of a cell, as the log has it and the window keeps it.
//!
//! ```text
//!   │ kind and column: 1 byte │ length of the key: 4 │ of the content: 4 │ key │ content │
//! ```
//!
//! The log's frame is the window's memory: a cell that is read is a slice of the frame that wrote it, and nothing is copied between.

use std::ops::Range;

use crate::engine::storage::Column;

/// The bytes before a record's key.
pub const HEADER_BYTES: usize = 9;

const PUT: u8 = 0;
const DELETE: u8 = 8;
const DELETE_RANGE: u8 = 16;
const KINDS: u8 = 8;

/// A record of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Of the cell or cells.
    pub column: Column,
    /// The cell, or the first one of a range.
    pub key: &'a [u8],
    /// What becomes of it.
    pub change: Change<'a>,
}

/// What becomes of a cell, or of a range of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// It holds this.
    Put(&'a [u8]),
    /// It is emptied.
    Delete,
    /// All are emptied from the key up to, and without, this one. It applies before every other record of its frame.
    DeleteRange(&'a [u8]),
}

impl<'a> Record<'a> {
    /// Appends it to a frame.
    pub fn encode(&self, frame: &mut Vec<u8>) {
        let (kind, content) = match self.change {
            Change::Put(content) => (PUT, content),
            Change::Delete => (DELETE, &[][..]),
            Change::DeleteRange(end) => (DELETE_RANGE, end),
        };
        frame.reserve(HEADER_BYTES + self.key.len() + content.len());
        append(kind | self.column as u8, self.key, |frame| frame.extend_from_slice(content), frame);
    }

    /// Appends the record of a cell that holds what `content` appends.
    pub fn encode_put(column: Column, key: &[u8], content: impl FnOnce(&mut Vec<u8>), frame: &mut Vec<u8>) {
        append(PUT | column as u8, key, content, frame);
    }

    /// The record with which `bytes` begins, and how long it is; `None` where there is none.
    #[inline]
    pub fn decode(bytes: &'a [u8]) -> Option<(Self, usize)> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let [tag, k0, k1, k2, k3, c0, c1, c2, c3] = *header;
        let key_length = u32::from_le_bytes([k0, k1, k2, k3]) as usize;
        let (key, rest) = rest.split_at_checked(key_length)?;
        let content = rest.get(..u32::from_le_bytes([c0, c1, c2, c3]) as usize)?;
        let column = *Column::ALL.get(usize::from(tag % KINDS))?;
        let length = HEADER_BYTES + key.len() + content.len();
        let change = match tag - tag % KINDS {
            PUT => Change::Put(content),
            DELETE if content.is_empty() => Change::Delete,
            DELETE_RANGE => Change::DeleteRange(content),
            _ => return None,
        };
        Some((Self { column, key, change }, length))
    }
}

/// A key or content of 4 GiB or more is refused long before.
fn append(tag: u8, key: &[u8], content: impl FnOnce(&mut Vec<u8>), frame: &mut Vec<u8>) {
    let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes();
    frame.push(tag);
    frame.extend_from_slice(&length(key.len()));
    let length_at = frame.len();
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(key);
    let content_at = frame.len();
    content(frame);
    let bytes = length(frame.len() - content_at);
    if let Some(place) = frame.get_mut(length_at..).and_then(<[u8]>::first_chunk_mut) {
        *place = bytes;
    }
}

/// The records of a frame, with where each begins; the last is `None` if the frame is not made of records.
pub fn records(frame: &[u8], payload: Range<usize>) -> impl Iterator<Item = Option<(usize, Record<'_>)>> {
    let (mut at, frame) = (payload.start, frame.get(..payload.end).unwrap_or_default());
    std::iter::from_fn(move || {
        let rest = frame.get(at..).filter(|rest| !rest.is_empty())?;
        let Some((record, length)) = Record::decode(rest) else {
            at = frame.len();
            return Some(None);
        };
        let begins = at;
        at += length;
        Some(Some((begins, record)))
    })
}
