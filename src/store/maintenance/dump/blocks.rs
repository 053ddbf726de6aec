//! The form of a dump: a line of text and then blocks.
//!
//! ```text
//!   percolite dump, format 2\n
//!   block*      length (4, big-endian) ‖ CRC-32 of number and content (4, big-endian) ‖ content
//!   content     00 ‖ record, or 01 ‖ length of the record (4, big-endian) ‖ record by LZ4
//! ```
//!
//! A block's number, counted from 0, is part of its checksum (8, big-endian), so blocks that were lost, repeated or exchanged
//! are found out, too. The checksum is of what is stored, so nothing that is damaged is ever decompressed. In format 1, which is
//! still read, a block's content is the record alone.

use std::fmt;
use std::io::{self, Read, Write};
use std::marker::PhantomData;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::codec;
use crate::engine::Compression;
use crate::error::{Error, ErrorKind, Result};
use crate::oracle::is_exhausted;
use crate::row::Bytes;
use crate::store::MAX_VALUE_BYTES;
use crate::store::maintenance::dump::DumpHeader;
use crate::timestamp::Timestamp;

const HEADER: &str = "percolite dump, format ";
const FORMAT: u32 = 2;
/// Blocks of nothing but records, never compressed.
const FORMAT_PLAIN: u32 = 1;
/// The longest header line of any format.
const HEADER_MAX_BYTES: usize = 64;
/// A block of rows ends when it has so many bytes or rows.
pub(in crate::store) const BLOCK_BYTES: usize = 256 << 10;
pub(in crate::store) const BLOCK_ROWS: usize = 4096;
/// No record is longer: one row of the greatest size on top of a full block.
const MAX_RECORD_BYTES: usize = MAX_VALUE_BYTES + 2 * BLOCK_BYTES + 16 * BLOCK_ROWS;
/// Shorter ones are not worth a try to compress them.
const MIN_COMPRESS_BYTES: usize = 64;
const PLAIN: u8 = 0;
const LZ4: u8 = 1;
/// What LZ4 can make of a byte.
const MAX_LZ4_RATIO: usize = 256;

/// What other programs make of a file, by its first bytes.
const FOREIGN_MAGICS: [(&[u8], &str); 5] = [
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"\xfd7zXZ\0", "xz"),
    (b"BZh", "bzip2"),
];

/// A dump is a header, the keyspaces, the rows of each of them, and how many there were.
#[derive(Serialize, Deserialize)]
pub(in crate::store) enum DumpBlock {
    /// Of format 1: the header.
    Begin { read_ts: Timestamp },
    /// Of format 1: a keyspace, whose rows follow.
    Named(String),
    /// Rows as they are at the snapshot.
    Rows(#[serde(deserialize_with = "at_most_a_block")] Vec<(Bytes, Bytes)>),
    /// Of format 1: the end.
    End { keyspaces: u64, rows: u64 },
    /// Whose dump it is, of which moment, and since which.
    Header { source: Option<u64>, read_ts: Timestamp, since: Option<Timestamp> },
    /// A keyspace by its number at the source. The rows of one that `is_new` are all here.
    Keyspace { number: u32, name: String, is_new: bool },
    /// Rows of this keyspace follow.
    Section(u32),
    /// Rows that are not there any more.
    Deleted(#[serde(deserialize_with = "at_most_a_block")] Vec<Bytes>),
    /// The end.
    Totals { keyspaces: u64, rows: u64, deleted: u64 },
}

impl DumpBlock {
    fn is_of(&self, format: u32) -> bool {
        match self {
            Self::Rows(_) => true,
            Self::Begin { .. } | Self::Named(_) | Self::End { .. } => format == FORMAT_PLAIN,
            _ => format != FORMAT_PLAIN,
        }
    }
}

/// The elements of a block, and no more than a block has: many small ones would take a multiple of their bytes.
fn at_most_a_block<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    struct Elements<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Elements<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {BLOCK_ROWS} rows")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
            let mut elements = Vec::new();
            while let Some(element) = from.next_element()? {
                if elements.len() == BLOCK_ROWS {
                    return Err(serde::de::Error::custom("no block has so many rows"));
                }
                elements.push(element);
            }
            Ok(elements)
        }
    }

    from.deserialize_seq(Elements(PhantomData))
}

fn checksum(number: u64, content: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_be_bytes());
    hasher.update(content);
    hasher.finalize()
}

/// Writes blocks.
pub(in crate::store) struct DumpWriter<W> {
    to: W,
    compression: Compression,
    /// Of the next block.
    number: u64,
    record: Vec<u8>,
    content: Vec<u8>,
}

impl<W: Write> DumpWriter<W> {
    pub fn begin(mut to: W, compression: Compression) -> Result<Self> {
        to.write_all(format!("{HEADER}{FORMAT}\n").as_bytes()).map_err(write_error)?;
        Ok(Self { to, compression, number: 0, record: Vec::new(), content: Vec::new() })
    }

    pub fn write(&mut self, block: &DumpBlock) -> Result<()> {
        self.record.clear();
        codec::encode_value(block, &mut self.record);
        self.put_content();
        // Rows are cut into blocks long before that.
        let length =
            u32::try_from(self.content.len()).map_err(|_| Error::invalid("a block of the dump is too long"))?;
        let parts = [&length.to_be_bytes()[..], &checksum(self.number, &self.content).to_be_bytes(), &self.content];
        parts.into_iter().try_for_each(|part| self.to.write_all(part)).map_err(write_error)?;
        self.number += 1;
        Ok(())
    }

    fn put_content(&mut self) {
        self.content.clear();
        if self.compression != Compression::None && self.record.len() >= MIN_COMPRESS_BYTES && self.compress() {
            return;
        }
        self.content.clear();
        self.content.push(PLAIN);
        self.content.extend_from_slice(&self.record);
    }

    /// Whether that has made it shorter.
    fn compress(&mut self) -> bool {
        let Ok(length) = u32::try_from(self.record.len()) else { return false };
        self.content.push(LZ4);
        self.content.extend_from_slice(&length.to_be_bytes());
        let head = self.content.len();
        self.content.resize(head + lz4_flex::block::get_maximum_output_size(self.record.len()), 0);
        let room = self.content.get_mut(head..).unwrap_or_default();
        let Ok(compressed) = lz4_flex::block::compress_into(&self.record, room) else { return false };
        self.content.truncate(head + compressed);
        self.content.len() <= self.record.len()
    }

    pub fn finish(&mut self) -> Result<()> {
        self.to.flush().map_err(write_error)
    }
}

/// Reads blocks.
pub(in crate::store) struct DumpReader<R> {
    from: R,
    format: u32,
    /// Of the next block.
    number: u64,
    content: Vec<u8>,
    record: Vec<u8>,
    /// What damage has for a consequence.
    consequence: &'static str,
}

impl<R: Read> DumpReader<R> {
    /// Reads the first line.
    pub fn open(from: R, consequence: &'static str) -> Result<Self> {
        let mut reader = Self { from, format: 0, number: 0, content: Vec::new(), record: Vec::new(), consequence };
        let mut line = Vec::new();
        let mut byte = [0];
        while line.len() < HEADER_MAX_BYTES && line.last() != Some(&b'\n') && reader.read_available(&mut byte)? == 1 {
            line.extend(byte);
        }
        reader.format = reader.format_of(&line)?;
        Ok(reader)
    }

    fn format_of(&self, line: &[u8]) -> Result<u32> {
        let is_none =
            |why: &str| Err(ErrorKind::UnrecognizedFormat(format!("this is no percolite dump: {why}")).into());
        if line.is_empty() {
            return is_none("it is empty");
        }
        if let Some((_, by)) = FOREIGN_MAGICS.iter().find(|(magic, _)| line.starts_with(magic)) {
            return is_none(&format!("it is compressed by {by}; decompress it first"));
        }
        let text = String::from_utf8_lossy(line);
        let number = text.strip_prefix(HEADER);
        let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        match number.and_then(|number| number.strip_suffix('\n')).map(|number| (is_digits(number), number.parse())) {
            Some((true, Ok(format @ (FORMAT_PLAIN | FORMAT)))) => Ok(format),
            Some((true, Ok(other))) => Err(ErrorKind::UnrecognizedFormat(format!(
                "the dump has format {other}, this program reads formats {FORMAT_PLAIN} to {FORMAT}: use another version of percolite"
            ))
            .into()),
            None if HEADER.as_bytes().starts_with(line) || number.is_some_and(is_digits) => Err(self.truncated()),
            _ => is_none(&format!("it does not begin with {:?}", HEADER.trim_end())),
        }
    }

    /// What the dump says of itself: its first block.
    pub fn header(&mut self) -> Result<DumpHeader> {
        let header = match self.read()? {
            DumpBlock::Begin { read_ts } => DumpHeader { store_id: None, read_ts, since: None },
            DumpBlock::Header { source, read_ts, since } if since.is_none_or(|since| since <= read_ts) => {
                DumpHeader { store_id: source, read_ts, since }
            }
            _ => return Err(self.corrupt("does not say when it was taken")),
        };
        if is_exhausted(header.read_ts) {
            return Err(self.corrupt("was taken at a moment that no store comes to"));
        }
        Ok(header)
    }

    pub fn read(&mut self) -> Result<DumpBlock> {
        let mut head = [[0; 4]; 2];
        self.read_exact(head.as_flattened_mut())?;
        let [length, stored] = head.map(u32::from_be_bytes);
        // A block of the greatest length does not become longer by being compressed.
        let length = usize::try_from(length).ok().filter(|length| *length <= MAX_RECORD_BYTES);
        let Some(length) = length else { return Err(self.corrupt("is damaged: no block is so long")) };
        // Grows as there is something to read: a damaged length must not cost memory.
        self.content.clear();
        self.from.by_ref().take(length as u64).read_to_end(&mut self.content).map_err(read_error)?;
        if self.content.len() < length {
            return Err(self.truncated());
        }
        if checksum(self.number, &self.content) != stored {
            return Err(self.corrupt("is damaged: a checksum does not match"));
        }
        let block = self.decode().map_err(|why| self.corrupt(&format!("is damaged: {why}")))?;
        self.number += 1;
        Ok(block)
    }

    fn decode(&mut self) -> Result<DumpBlock, String> {
        let record = match (self.format, self.content.split_first()) {
            (FORMAT_PLAIN, _) => &self.content,
            (_, Some((&PLAIN, record))) => record,
            (_, Some((&LZ4, compressed))) => {
                let (length, compressed) = compressed.split_first_chunk().ok_or("a block has no length")?;
                let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
                // However little a hostile block has, it takes no more memory than a long row does.
                if length > MAX_RECORD_BYTES.min(compressed.len().saturating_mul(MAX_LZ4_RATIO)) {
                    return Err("no block is so long".into());
                }
                self.record.resize(length, 0);
                match lz4_flex::block::decompress_into(compressed, &mut self.record) {
                    Ok(written) if written == length => &self.record,
                    Ok(_) => return Err("a block is shorter than it says".into()),
                    Err(why) => return Err(format!("a block does not decompress: {why}")),
                }
            }
            _ => return Err("a block is in a form that this program does not know".into()),
        };
        let block: DumpBlock = codec::decode_value(record).map_err(|why| why.to_string())?;
        if block.is_of(self.format) { Ok(block) } else { Err("a block does not belong to this format".into()) }
    }

    pub fn expect_end(&mut self) -> Result<()> {
        if self.read_available(&mut [0])? == 0 { Ok(()) } else { Err(self.corrupt("goes on after its end")) }
    }

    /// About the block before this one.
    pub fn corrupt(&self, what: &str) -> Error {
        ErrorKind::Corruption(format!("the dump {what} (block {}){}", self.number, self.consequence)).into()
    }

    fn truncated(&self) -> Error {
        self.corrupt("was cut off")
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<()> {
        if self.read_available(buffer)? == buffer.len() { Ok(()) } else { Err(self.truncated()) }
    }

    /// As much as there is.
    fn read_available(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.from.read(rest) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) => return Err(read_error(why)),
            }
        }
        Ok(filled)
    }
}

fn write_error(why: io::Error) -> Error {
    ErrorKind::Io(format!("cannot write the dump: {why}")).into()
}

fn read_error(why: io::Error) -> Error {
    ErrorKind::Io(format!("cannot read the dump: {why}")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_of_more_rows_than_any_has_is_refused_before_they_take_memory() {
        let row = || (Bytes(b"k"[..].into()), Bytes(b""[..].into()));
        let blocks = |count: usize| {
            [
                DumpBlock::Rows((0..count).map(|_| row()).collect()),
                DumpBlock::Deleted((0..count).map(|_| row().0).collect()),
            ]
        };
        for (count, is_read) in [(BLOCK_ROWS, true), (BLOCK_ROWS + 1, false)] {
            for block in blocks(count) {
                let mut dump = Vec::new();
                DumpWriter::begin(&mut dump, Compression::Lz4).unwrap().write(&block).unwrap();
                let read = DumpReader::open(dump.as_slice(), "").unwrap().read();
                match read {
                    Ok(_) => assert!(is_read, "{count}"),
                    Err(why) => assert!(!is_read && why.to_string().contains("no block has so many rows"), "{why}"),
                }
            }
        }
    }
}
