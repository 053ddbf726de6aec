//! A change of a cell, as the log has it and the window keeps it.
//!
//! ```text
//!   │ form, kind and column: 1 byte │ length of the key: 1 or 4 │ of the content: 2 or 4 │ key │ content │
//! ```
//!
//! The form is short where both lengths fit, as they nearly always do, and long otherwise. A record has one encoding only.
//!
//! The payload of the log's frame is the window's memory: a cell that is read is a slice of it.

use crate::engine::storage::Column;

/// The bytes before a record's key, at most.
pub const ENTRY_HEADER_BYTES_MAX: usize = 9;
const SHORT_HEADER_BYTES: usize = 4;

const SHORT: u8 = 0x40;
const LONG: u8 = 0x80;
const FORM_MASK: u8 = SHORT | LONG;

const PUT: u8 = 0;
const DELETE: u8 = 8;
const DELETE_RANGE: u8 = 16;
const KIND_STEP: u8 = 8;

/// A record of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchEntry<'a> {
    /// Of the cell or cells.
    pub column: Column,
    /// The cell, or the first one of a range.
    pub key: &'a [u8],
    /// What becomes of it.
    pub modification: Modification<'a>,
}

/// What becomes of a cell, or of a range of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modification<'a> {
    /// It holds this.
    Put(&'a [u8]),
    /// It is emptied.
    Delete,
    /// All are emptied from the key up to, and without, this one. It applies before every other record of its frame.
    DeleteRange(&'a [u8]),
}

impl<'a> BatchEntry<'a> {
    /// Appends it to a frame.
    pub fn encode(&self, frame: &mut Vec<u8>) {
        let (kind, content) = match self.modification {
            Modification::Put(content) => (PUT, content),
            Modification::Delete => (DELETE, &[][..]),
            Modification::DeleteRange(end) => (DELETE_RANGE, end),
        };
        frame.reserve(ENTRY_HEADER_BYTES_MAX + self.key.len() + content.len());
        encode_with(kind | self.column as u8, self.key, |frame| frame.extend_from_slice(content), frame);
    }

    /// Appends the record of a cell that holds what `content` appends.
    pub fn encode_put(column: Column, key: &[u8], value: impl FnOnce(&mut Vec<u8>), frame: &mut Vec<u8>) {
        encode_with(PUT | column as u8, key, value, frame);
    }

    /// The record with which `bytes` begins, and how long it is; `None` where there is none.
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

/// A key or content of 4 GiB or more is refused long before.
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
        if let Some(header) = frame.get_mut(header) {
            header.copy_from_slice(&[tag | SHORT, key, c0, c1]);
        }
    } else {
        let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes();
        let lengths = length(key.len()).into_iter().chain(length(content_bytes));
        frame.splice(header, [tag | LONG].into_iter().chain(lengths));
    }
}

fn is_short(key_bytes: usize, content_bytes: usize) -> bool {
    u8::try_from(key_bytes).is_ok() && u16::try_from(content_bytes).is_ok()
}

/// The records of a payload, with where each begins; the last is `None` if the payload is not made of records.
pub fn entries(payload: &[u8]) -> impl Iterator<Item = Option<(usize, BatchEntry<'_>)>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = payload.get(at..).filter(|rest| !rest.is_empty())?;
        let Some((record, length)) = BatchEntry::decode(rest) else {
            at = payload.len();
            return Some(None);
        };
        let begins = at;
        at += length;
        Some(Some((begins, record)))
    })
}
