//! The format of a dump: a line of text, then blocks.
//!
//! ```text
//!   percolite dump, format 1, build <tag>\n
//!   block*      length (4, big-endian) ‖ CRC-32 of number and content (4, big-endian) ‖ content
//!   content     00 ‖ record, or 01 ‖ length of the record (4, big-endian) ‖ record by LZ4
//! ```
//!
//! The checksum includes the number of the block, counted from 0 (8 bytes, big-endian), so lost,
//! repeated and reordered blocks are detected. It is computed over the stored bytes, so damaged
//! bytes are never decompressed.

use std::fmt;
use std::io::{self, Read, Write};
use std::marker::PhantomData;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::codec;
use crate::engine::Compression;
use crate::error::{Error, ErrorKind, Result};
use crate::format_line::{self, Named};
use crate::local_oracle::is_exhausted;
use crate::store::limits::MAX_VALUE_BYTES;
use crate::store::maintenance::dump::DumpHeader;
use crate::timestamp::Timestamp;
use crate::value::Value;

const HEADER: &str = "percolite dump, format ";
/// The maximum length of the first line.
const HEADER_MAX_BYTES: usize = 96;
/// A block of rows ends at this number of bytes, or at [`BLOCK_ROWS`] rows.
pub(in crate::store) const BLOCK_BYTES: usize = 256 << 10;
pub(in crate::store) const BLOCK_ROWS: usize = 4096;
/// The maximum size of a record. The rows of a block are below [`BLOCK_BYTES`] until the last one
/// is added, whose value has at most [`MAX_VALUE_BYTES`]. The second `BLOCK_BYTES` is for the key
/// of the last row, and is more than it needs. For each row, 16 bytes are more than the lengths of
/// its key and value take.
const MAX_RECORD_BYTES: usize = MAX_VALUE_BYTES + 2 * BLOCK_BYTES + 16 * BLOCK_ROWS;
/// Records shorter than this are not compressed.
const MIN_COMPRESS_BYTES: usize = 64;
const PLAIN: u8 = 0;
const LZ4: u8 = 1;
/// The maximum expansion of LZ4, with a margin: one compressed byte stands for at most 255 bytes.
const MAX_LZ4_RATIO: usize = 256;

/// The first bytes of files that other programs have compressed, and the names of these programs,
/// for the error.
const FOREIGN_MAGICS: [(&[u8], &str); 5] = [
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"\xfd7zXZ\0", "xz"),
    (b"BZh", "bzip2"),
];

/// The blocks of a dump: header, keyspaces, the rows of each keyspace, and the totals.
#[derive(Serialize, Deserialize)]
pub(in crate::store) enum DumpBlock {
    /// The header: see [`DumpHeader`].
    Header { store_id: Option<u64>, read_ts: Timestamp, since: Option<Timestamp> },
    /// A keyspace, with its id in the source store. If `is_new`, the dump has all rows of the
    /// keyspace, otherwise only the rows that changed.
    Keyspace { id: u32, name: String, is_new: bool },
    /// The id of the keyspace whose rows follow.
    Section(u32),
    /// Rows of the snapshot.
    Rows(#[serde(deserialize_with = "at_most_a_block")] Vec<(Value, Value)>),
    /// Keys of deleted rows.
    Deleted(#[serde(deserialize_with = "at_most_a_block")] Vec<Value>),
    /// The totals; the last block.
    Totals { keyspaces: u64, rows: u64, deleted: u64 },
}

/// Decodes the elements of a block, and fails if there are more than a block may have: in memory,
/// many small elements take several times the size that they have in the dump.
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
                    return Err(serde::de::Error::custom(format_args!("a block has more than {BLOCK_ROWS} rows")));
                }
                elements.push(element);
            }
            Ok(elements)
        }
    }

    from.deserialize_seq(Elements(PhantomData))
}

fn first_line() -> String {
    format_line::own(HEADER) + "\n"
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
    /// The number of the next block.
    number: u64,
    record: Vec<u8>,
    content: Vec<u8>,
}

impl<W: Write> DumpWriter<W> {
    pub fn begin(mut to: W, compression: Compression) -> Result<Self> {
        to.write_all(first_line().as_bytes()).map_err(write_error)?;
        Ok(Self { to, compression, number: 0, record: Vec::new(), content: Vec::new() })
    }

    pub fn write(&mut self, block: &DumpBlock) -> Result<()> {
        self.record.clear();
        codec::encode_value(block, &mut self.record);
        self.put_content();
        // This cannot fail for a block of rows, which is far below 4 GiB.
        let length = u32::try_from(self.content.len()).map_err(|_| Error::invalid("a dump block is too long"))?;
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

    /// Compresses the record; returns whether that makes the block smaller.
    fn compress(&mut self) -> bool {
        let Ok(length) = u32::try_from(self.record.len()) else { return false };
        self.content.push(LZ4);
        self.content.extend_from_slice(&length.to_be_bytes());
        let header = self.content.len();
        self.content.resize(header + lz4_flex::block::get_maximum_output_size(self.record.len()), 0);
        let output = self.content.get_mut(header..).unwrap_or_default();
        let Ok(compressed) = lz4_flex::block::compress_into(&self.record, output) else { return false };
        self.content.truncate(header + compressed);
        self.content.len() <= self.record.len()
    }

    pub fn finish(&mut self) -> Result<()> {
        self.to.flush().map_err(write_error)
    }
}

/// Reads blocks.
pub(in crate::store) struct DumpReader<R> {
    from: R,
    /// The number of blocks that were read, the one in progress included.
    blocks: u64,
    content: Vec<u8>,
    record: Vec<u8>,
    /// Appended to the text of each error: what the damage means for the caller.
    error_suffix: &'static str,
}

impl<R: Read> DumpReader<R> {
    /// Reads the first line.
    pub fn open(from: R, error_suffix: &'static str) -> Result<Self> {
        let mut reader = Self { from, blocks: 0, content: Vec::new(), record: Vec::new(), error_suffix };
        let mut line = Vec::new();
        let mut byte = [0];
        while line.len() < HEADER_MAX_BYTES && line.last() != Some(&b'\n') && reader.read_available(&mut byte)? == 1 {
            line.extend(byte);
        }
        reader.check_first_line(&line)?;
        Ok(reader)
    }

    fn check_first_line(&self, line: &[u8]) -> Result<()> {
        let not_a_dump =
            |reason: &str| Err(ErrorKind::UnrecognizedFormat(format!("this is not a percolite dump: {reason}")).into());
        if line.is_empty() {
            return not_a_dump("it is empty");
        }
        if let Some((_, program)) = FOREIGN_MAGICS.iter().find(|(magic, _)| line.starts_with(magic)) {
            return not_a_dump(&format!("it is compressed by {program}; decompress it first"));
        }
        if line.len() < first_line().len() && first_line().as_bytes().starts_with(line) {
            return Err(self.truncated());
        }
        let text = std::str::from_utf8(line).ok().and_then(|line| line.strip_prefix(HEADER)?.strip_suffix('\n'));
        match text.and_then(format_line::parse) {
            Some(Named::Own("")) => Ok(()),
            Some(Named::Other(other)) => Err(ErrorKind::UnrecognizedFormat(other.refusal("the dump")).into()),
            _ => not_a_dump(&format!("it does not begin with {:?}", HEADER.trim_end())),
        }
    }

    /// Reads the header, which is the first block.
    pub fn header(&mut self) -> Result<DumpHeader> {
        let header = match self.read()? {
            DumpBlock::Header { store_id, read_ts, since } if since.is_none_or(|since| since <= read_ts) => {
                DumpHeader { store_id, read_ts, since }
            }
            _ => return Err(self.corrupt("has no valid header")),
        };
        if is_exhausted(header.read_ts) {
            return Err(self.corrupt("has a timestamp out of range"));
        }
        Ok(header)
    }

    pub fn read(&mut self) -> Result<DumpBlock> {
        let number = self.blocks;
        self.blocks += 1;
        let mut header = [[0; 4]; 2];
        self.read_exact(header.as_flattened_mut())?;
        let [length, stored] = header.map(u32::from_be_bytes);
        // The limit of a record is also that of a compressed block, because a record is compressed
        // only if that makes the block smaller.
        let length = usize::try_from(length).ok().filter(|length| *length <= MAX_RECORD_BYTES);
        let Some(length) = length else { return Err(self.corrupt("is damaged: a block is too long")) };
        // The length may be damaged, so the buffer is not allocated with that size, but grows with
        // the bytes that are read.
        self.content.clear();
        self.from.by_ref().take(length as u64).read_to_end(&mut self.content).map_err(read_error)?;
        if self.content.len() < length {
            return Err(self.truncated());
        }
        if checksum(number, &self.content) != stored {
            return Err(self.corrupt("is damaged: checksum mismatch"));
        }
        self.decode().map_err(|error| self.corrupt(&format!("is damaged: {error}")))
    }

    fn decode(&mut self) -> Result<DumpBlock, String> {
        let record = match self.content.split_first() {
            Some((&PLAIN, record)) => record,
            Some((&LZ4, compressed)) => {
                let (length, compressed) = compressed.split_first_chunk().ok_or("a compressed block has no length")?;
                let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
                // Without this limit, a decompression bomb could take any amount of memory.
                if length > MAX_RECORD_BYTES.min(compressed.len().saturating_mul(MAX_LZ4_RATIO)) {
                    return Err("the decompressed length of a block is too long".into());
                }
                self.record.resize(length, 0);
                match lz4_flex::block::decompress_into(compressed, &mut self.record) {
                    Ok(written) if written == length => &self.record,
                    Ok(_) => return Err("a block is shorter than its decompressed length".into()),
                    Err(error) => return Err(format!("a block cannot be decompressed: {error}")),
                }
            }
            _ => return Err("a block has an unknown encoding".into()),
        };
        codec::decode_value(record).map_err(|error| error.to_string())
    }

    pub fn expect_end(&mut self) -> Result<()> {
        if self.read_available(&mut [0])? == 0 { Ok(()) } else { Err(self.corrupt("has data after its last block")) }
    }

    /// A corruption error. Its text has the number of the block that is being read or, between two
    /// reads, of the last one that was read. Block 0 is the header.
    pub fn corrupt(&self, what: &str) -> Error {
        let number = self.blocks.saturating_sub(1);
        ErrorKind::Corruption(format!("the dump {what} (block {number}){}", self.error_suffix)).into()
    }

    fn truncated(&self) -> Error {
        self.corrupt("is truncated")
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<()> {
        if self.read_available(buffer)? == buffer.len() { Ok(()) } else { Err(self.truncated()) }
    }

    /// Fills the buffer, or as much of it as there is input; returns the number of bytes read.
    fn read_available(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.from.read(rest) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(read_error(error)),
            }
        }
        Ok(filled)
    }
}

fn write_error(error: io::Error) -> Error {
    ErrorKind::Io(format!("cannot write the dump: {error}")).into()
}

fn read_error(error: io::Error) -> Error {
    ErrorKind::Io(format!("cannot read the dump: {error}")).into()
}

impl DumpHeader {
    /// Reads the header of a dump. Does not check the rest, which may be damaged or missing.
    ///
    /// # Errors
    /// - [`ErrorKind::UnrecognizedFormat`](crate::ErrorKind::UnrecognizedFormat): not a dump,
    ///   another format, or a dump of another development build.
    /// - [`ErrorKind::Corruption`](crate::ErrorKind::Corruption): the header is damaged or
    ///   truncated.
    /// - [`ErrorKind::Io`](crate::ErrorKind::Io): it cannot be read.
    pub fn read(from: impl Read) -> Result<Self> {
        DumpReader::open(from, "")?.header()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
    }

    #[test]
    fn golden_bytes_of_a_dump() {
        let bytes = |text: &str| Value(text.as_bytes().into());
        let read_ts = Timestamp::from_u64(0x0665_0000_0000_0003);
        let blocks = [
            DumpBlock::Header { store_id: Some(7), read_ts, since: Some(Timestamp::from_u64(2)) },
            DumpBlock::Header { store_id: None, read_ts, since: None },
            DumpBlock::Keyspace { id: 2, name: "towns".into(), is_new: true },
            DumpBlock::Section(2),
            DumpBlock::Rows(vec![(bytes("k"), bytes("v1"))]),
            DumpBlock::Deleted(vec![bytes("k")]),
            DumpBlock::Totals { keyspaces: 1, rows: 300, deleted: 1 },
        ];
        let mut dump = Vec::new();
        let mut writer = DumpWriter::begin(&mut dump, Compression::None).unwrap();
        blocks.iter().for_each(|block| writer.write(block).unwrap());
        let (line, blocks) = dump.split_at(dump.iter().position(|byte| *byte == b'\n').unwrap() + 1);
        assert_eq!(line, format!("percolite dump, format 1, build {}\n", format_line::BUILD_TAG).as_bytes());
        // Each line has the length and the checksum of a block; then its encoding (plain), the
        // record format, the variant, and the fields.
        let golden = [
            "00000010e5349b440001000107fd03000000000065060102",
            "0000000e083d262c00010000fd030000000000650600",
            "0000000b92f2cbb00001010205746f776e7301",
            "00000004e18fd52600010202",
            "000000090c62cbf700010301016b027631",
            "00000006f3380b2100010401016b",
            "000000085a57ae9d00010501fb2c0101",
        ]
        .concat();
        assert_eq!(hex(blocks), golden);
    }

    #[test]
    fn an_error_names_the_block_that_was_read_last() {
        let mut dump = Vec::new();
        let mut writer = DumpWriter::begin(&mut dump, Compression::None).unwrap();
        let header = DumpBlock::Header { store_id: None, read_ts: Timestamp::from_u64(3), since: None };
        [header, DumpBlock::Section(2)].iter().for_each(|block| writer.write(block).unwrap());
        let mut reader = DumpReader::open(dump.as_slice(), "").unwrap();
        reader.header().unwrap();
        assert!(reader.corrupt("is wrong").to_string().ends_with("the dump is wrong (block 0)"));
        reader.read().unwrap();
        assert!(reader.corrupt("is wrong").to_string().ends_with("the dump is wrong (block 1)"));
        // The error of a read names the block that is missing.
        assert!(reader.read().err().unwrap().to_string().ends_with("the dump is truncated (block 2)"));
    }

    /// A later encoder may compress differently. So the test reads these bytes, but does not
    /// compare them with what the encoder writes.
    #[test]
    fn golden_bytes_of_a_compressed_block() {
        let block = [
            &b"\0\0\0\x1a\x77\xa0\x30\xbd"[..],
            b"\x01\0\0\x01\x34",
            b"\x9f\x01\x03\x01\x01k\xfb\x2c\x01\x07\x01\0\xff\x13\x60\x07\x07\x07\x07\x07\x07",
        ]
        .concat();
        let dump = [first_line().as_bytes(), &block].concat();
        let DumpBlock::Rows(rows) = DumpReader::open(dump.as_slice(), "").unwrap().read().unwrap() else {
            panic!("not a block of rows");
        };
        assert_eq!(rows, vec![(Value(b"k"[..].into()), Value([7; 300].into()))]);
    }

    #[test]
    fn a_block_with_too_many_rows_is_refused() {
        let row = || (Value(b"k"[..].into()), Value(b""[..].into()));
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
                    Err(error) => assert!(!is_read && error.to_string().contains("more than 4096 rows"), "{error}"),
                }
            }
        }
    }
}
