//! The entries of a batch: the format of a frame's payload in the log and in memory.
//!
//! ```text
//!   │ form, kind and column: 1 byte │ key length: 1 or 4 │ value length: 2 or 4 │ key │ value │
//! ```
//!
//! The short form, with the smaller length fields, is used whenever both lengths fit, which is
//! nearly always so. So an entry has exactly one encoding.
//!
//! A memtable keeps the payload of the log's frame as it is, and a reader gets a value as a slice
//! of the payload.

use crate::cell::Column;

/// The maximum number of bytes before an entry's key.
pub const ENTRY_HEADER_BYTES_MAX: usize = 9;
const SHORT_HEADER_BYTES: usize = 4;

const SHORT: u8 = 0x40;
const LONG: u8 = 0x80;
const FORM_MASK: u8 = SHORT | LONG;

const PUT: u8 = 0;
const DELETE: u8 = 8;
const DELETE_RANGE: u8 = 16;
const KIND_STEP: u8 = 8;

/// An entry of a batch: one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchEntry<'a> {
    /// Column of the cell or range.
    pub column: Column,
    /// The cell, or the first key of a range.
    pub key: &'a [u8],
    /// What the batch does to the cell or range.
    pub modification: Modification<'a>,
}

/// What a batch does to a cell, or to a range of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modification<'a> {
    /// Sets the value.
    Put(&'a [u8]),
    /// Deletes the cell: a tombstone.
    Delete,
    /// Deletes the cells from the key up to this end key, which is not included. The range deletion
    /// applies before all other entries of its batch.
    DeleteRange(&'a [u8]),
}

impl<'a> BatchEntry<'a> {
    /// Appends the entry to a payload.
    pub fn encode(&self, frame: &mut Vec<u8>) {
        let (kind, content) = match self.modification {
            Modification::Put(content) => (PUT, content),
            Modification::Delete => (DELETE, &[][..]),
            Modification::DeleteRange(end) => (DELETE_RANGE, end),
        };
        frame.reserve(ENTRY_HEADER_BYTES_MAX + self.key.len() + content.len());
        encode_with(kind | self.column as u8, self.key, |frame| frame.extend_from_slice(content), frame);
    }

    /// Appends an entry that sets a cell; `value` appends the cell's value.
    pub fn encode_put(column: Column, key: &[u8], value: impl FnOnce(&mut Vec<u8>), frame: &mut Vec<u8>) {
        encode_with(PUT | column as u8, key, value, frame);
    }

    /// Decodes the entry at the start of `bytes`; returns it with its length, or `None` if it is
    /// malformed.
    #[inline]
    pub fn decode(bytes: &'a [u8]) -> Option<(Self, usize)> {
        let (&tag, rest) = bytes.split_first()?;
        let (key_bytes, content_bytes, rest) = if tag & FORM_MASK == SHORT {
            let (&[key, c0, c1], rest) = rest.split_first_chunk()?;
            (key.into(), u16::from_le_bytes([c0, c1]).into(), rest)
        } else {
            let (&[k0, k1, k2, k3, c0, c1, c2, c3], rest) = rest.split_first_chunk()?;
            let (key, content) = (u32::from_le_bytes([k0, k1, k2, k3]), u32::from_le_bytes([c0, c1, c2, c3]));
            (key as usize, content as usize, rest)
        };
        let is_form = tag & FORM_MASK == if is_short(key_bytes, content_bytes) { SHORT } else { LONG };
        let (key, content) = rest.split_at_checked(key_bytes).filter(|_| is_form)?;
        let content = content.get(..content_bytes)?;
        let length = bytes.len() - rest.len() + key.len() + content.len();
        let tag = tag & !FORM_MASK;
        let column = *Column::ALL.get(usize::from(tag % KIND_STEP))?;
        let change = match tag - tag % KIND_STEP {
            PUT => Modification::Put(content),
            DELETE if content.is_empty() => Modification::Delete,
            DELETE_RANGE => Modification::DeleteRange(content),
            _ => return None,
        };
        Some((Self { column, key, modification: change }, length))
    }
}

/// Appends an entry; `content` appends the entry's value. Both lengths fit into 4 bytes, because
/// keys and values of 4 GiB or more have been refused before.
fn encode_with(tag: u8, key: &[u8], content: impl FnOnce(&mut Vec<u8>), frame: &mut Vec<u8>) {
    let begins = frame.len();
    frame.extend_from_slice(&[0; SHORT_HEADER_BYTES]);
    frame.extend_from_slice(key);
    let content_at = frame.len();
    content(frame);
    let content_bytes = frame.len() - content_at;
    let header = begins..begins + SHORT_HEADER_BYTES;
    if let (Ok(key), Ok(content)) = (u8::try_from(key.len()), u16::try_from(content_bytes)) {
        let [c0, c1] = content.to_le_bytes();
        frame[header].copy_from_slice(&[tag | SHORT, key, c0, c1]);
    } else {
        let length = |bytes: usize| {
            let Ok(length) = u32::try_from(bytes) else {
                unreachable!("invariant: a key or value of {bytes} bytes was refused before it is encoded")
            };
            length.to_le_bytes()
        };
        let lengths = length(key.len()).into_iter().chain(length(content_bytes));
        frame.splice(header, [tag | LONG].into_iter().chain(lengths));
    }
}

fn is_short(key_bytes: usize, content_bytes: usize) -> bool {
    u8::try_from(key_bytes).is_ok() && u16::try_from(content_bytes).is_ok()
}

/// The entries of a payload, each with its offset. If the payload is malformed, the last item is
/// `None`.
pub fn entries(payload: &[u8]) -> impl Iterator<Item = Option<(usize, BatchEntry<'_>)>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = payload.get(at..).filter(|rest| !rest.is_empty())?;
        let Some((entry, length)) = BatchEntry::decode(rest) else {
            at = payload.len();
            return Some(None);
        };
        let begins = at;
        at += length;
        Some(Some((begins, entry)))
    })
}
