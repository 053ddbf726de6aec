//! Segments: the files of the log, and their headers.
//!
//! A segment is named by its number. Its header has the WAL id of the store, and names the segment
//! before it, its *predecessor*, with the offset and the sequence at which the predecessor ends. So
//! the segments form a chain. Recovery follows the chain from the newest segment back, whatever
//! else is in the directory. It reads each predecessor only up to the end that the next segment's
//! header names.
//!
//! All frames of a segment depend on its header, so the header is stored twice, each copy in a
//! block of its own. Frames begin after the second block.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 8 | `percolog` |
//! | 8 | 4 | format |
//! | 16 | 8 | the segment's number |
//! | 24 | 8 | salt |
//! | 32 | 8 | WAL id of the store |
//! | 40 | 8 | sequence of the first frame |
//! | 48 | 24 | predecessor: number (0: none), offset of its end, its last sequence |
//! | 72 | 8 | the sequence that was durable when the header was written |
//! | 80 | 8 | length of the file that was durable before the header was written |
//! | 124 | 4 | CRC32C of the bytes before it; at this offset in every format |

use std::io;

use super::frame::ALIGNMENT;
use crate::disk::DiskFile;

const MAGIC: [u8; 8] = *b"percolog";
/// The format that this program reads and writes.
pub const FORMAT: u32 = 1;
/// Block size of file systems and page caches. The second header must survive damage to one block.
const BLOCK: usize = 4096;
/// The block size as an offset: the second header begins there.
pub const BLOCK_BYTES: u64 = BLOCK as u64;
/// Offset of the first frame.
pub const FRAMES_OFFSET: u64 = 2 * BLOCK_BYTES;

const SEGMENT_HEADER_BYTES: usize = 128;
const CHECKSUMMED_BYTES: usize = SEGMENT_HEADER_BYTES - 4;
const SUFFIX: &str = ".segment";
const NAME_DIGITS: usize = 10;
pub const LOST: &str = "lost-";

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Unique; later segments have greater numbers, with gaps.
    pub number: u64,
    /// Random; part of the checksums of this segment's frames.
    pub salt: u64,
    /// WAL id of the store.
    pub wal_id: u64,
    /// Sequence of the first frame, if there is one.
    pub first_sequence: u64,
    /// Where the log ended when this header was written; `None` for a log that begins here.
    pub predecessor: Option<SegmentEnd>,
    /// The durable sequence when the header was written.
    pub durable_sequence: u64,
    /// The length of the file, in bytes, that was durable before the header was written. No crash
    /// leaves the header in a shorter file.
    pub durable_file_bytes: u64,
}

/// Where a segment ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentEnd {
    /// The segment's number.
    pub number: u64,
    /// Nothing is read from this offset on.
    pub offset: u64,
    /// Sequence of the last frame before the offset.
    pub last_sequence: u64,
}

/// Result of reading a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderRead {
    /// A valid header.
    Valid(SegmentHeader),
    /// No header, or one that is torn or damaged.
    Invalid,
    /// The valid header of another segment, with this number.
    Misnamed(u64),
    /// A header of another format.
    UnsupportedFormat(u32),
}

impl SegmentHeader {
    /// Both copies of the header, each padded to a block.
    pub fn encode(&self) -> Vec<u8> {
        let (number, offset, last) =
            self.predecessor.map_or((0, 0, 0), |end| (end.number, end.offset, end.last_sequence));
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&u64::from(FORMAT).to_le_bytes());
        let before = [self.number, self.salt, self.wal_id, self.first_sequence];
        for field in before.into_iter().chain([number, offset, last, self.durable_sequence, self.durable_file_bytes]) {
            header.extend_from_slice(&field.to_le_bytes());
        }
        header.resize(CHECKSUMMED_BYTES, 0);
        let checksum = crc32c::crc32c(&header);
        header.extend_from_slice(&checksum.to_le_bytes());
        let mut both = header.clone();
        both.resize(BLOCK, 0);
        both.extend_from_slice(&header);
        both.resize(2 * BLOCK, 0);
        both
    }

    fn decode(bytes: &[u8; SEGMENT_HEADER_BYTES]) -> HeaderRead {
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let checksum = number(SEGMENT_HEADER_BYTES - 8) >> 32;
        if bytes[..8] != MAGIC || u64::from(crc32c::crc32c(&bytes[..CHECKSUMMED_BYTES])) != checksum {
            return HeaderRead::Invalid;
        }
        let format = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        if format != FORMAT {
            return HeaderRead::UnsupportedFormat(format);
        }
        let end = SegmentEnd { number: number(48), offset: number(56), last_sequence: number(64) };
        let header = Self {
            number: number(16),
            salt: number(24),
            wal_id: number(32),
            first_sequence: number(40),
            predecessor: (end.number > 0).then_some(end),
            durable_sequence: number(72),
            durable_file_bytes: number(80),
        };
        if header.is_consistent() { HeaderRead::Valid(header) } else { HeaderRead::Invalid }
    }

    /// Whether recovery can follow this header. A header with a valid checksum may still be forged,
    /// and must not lead recovery into a loop or out of a file.
    fn is_consistent(&self) -> bool {
        let follows = |end: SegmentEnd| {
            end.number < self.number
                && end.last_sequence < self.first_sequence
                && end.offset >= FRAMES_OFFSET
                && end.offset.is_multiple_of(ALIGNMENT)
        };
        self.first_sequence > 0 && self.durable_sequence < self.first_sequence && self.predecessor.is_none_or(follows)
    }

    /// The end of the segment while it has no frames.
    pub fn empty_end(&self) -> SegmentEnd {
        SegmentEnd { number: self.number, offset: FRAMES_OFFSET, last_sequence: self.first_sequence.saturating_sub(1) }
    }
}

/// Reads the header of the segment with this number, from the first valid copy.
pub fn read_header(file: &impl DiskFile, number: u64) -> io::Result<HeaderRead> {
    let mut result = HeaderRead::Invalid;
    for at in [0, BLOCK_BYTES] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        if file.read_at(at, &mut bytes)? < SEGMENT_HEADER_BYTES {
            continue;
        }
        match SegmentHeader::decode(&bytes) {
            HeaderRead::Valid(header) if header.number == number => return Ok(HeaderRead::Valid(header)),
            HeaderRead::Valid(header) => result = HeaderRead::Misnamed(header.number),
            HeaderRead::UnsupportedFormat(format) => result = HeaderRead::UnsupportedFormat(format),
            HeaderRead::Misnamed(_) | HeaderRead::Invalid => {}
        }
    }
    Ok(result)
}

/// Writes zeros, block by block, from the offset up to the end of the step that contains `reach`;
/// returns that end.
///
/// A segment is preallocated: filled with zeros ahead of its frames, in steps. The
/// sync after a step is slower, because the file system records the new blocks. So a step is long
/// enough for hundreds of small commits. But commits that wait for that sync also wait until the
/// zeros of the step are on the disk, so a step is short enough to be written in less than a
/// millisecond.
///
/// Each block of zeros is written by a call of its own. A single call for a whole step would create
/// folios (units of the page cache) of that size, and the kernel walks all blocks of a folio at
/// every write into it. That would cost 1.5 µs for each commit, more than the rest of the write.
pub fn preallocate(file: &impl DiskFile, step: u64, from: u64, reach: u64) -> io::Result<u64> {
    static ZEROS: [u8; BLOCK] = [0; BLOCK];
    let end = (reach / step).saturating_add(1).saturating_mul(step);
    let mut offset = from;
    while offset < end {
        // Up to the end of the block. Only the first write can be shorter than a block.
        let bytes = BLOCK_BYTES - offset % BLOCK_BYTES;
        file.write_at(offset, &ZEROS[..usize::try_from(bytes).map_err(io::Error::other)?])?;
        offset += bytes;
    }
    Ok(end)
}

pub fn segment_file_name(number: u64) -> String {
    format!("{number:0NAME_DIGITS$}{SUFFIX}")
}

/// The maximum number of a segment; a file with a greater one is not a segment. Opening fails if
/// the number of its new segment would exceed half of this maximum, so an incarnation cannot run
/// out of numbers.
pub const SEGMENT_NUMBER_MAX: u64 = u64::MAX / 2;

/// The number in a segment's file name; `None` if the file is not a segment.
pub fn parse_segment_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX)?;
    let is_name = digits.len() >= NAME_DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits
        .parse()
        .ok()
        .filter(|number| is_name && *number <= SEGMENT_NUMBER_MAX && self::segment_file_name(*number) == name)
}

/// Name of the quarantined segment with this number; the fingerprint is that of the accepted loss.
pub fn quarantine_name(fingerprint: u64, number: u64) -> String {
    loss_file_name(fingerprint, &format!("-{}", segment_file_name(number)))
}

/// Name of a file of the accepted loss with this fingerprint.
pub fn loss_file_name(fingerprint: u64, suffix: &str) -> String {
    format!("{LOST}{fingerprint:016x}{suffix}")
}

/// The fingerprint in a file name with this suffix.
pub fn parse_loss_fingerprint(name: &str, suffix: &str) -> Option<u64> {
    let fingerprint = u64::from_str_radix(name.strip_prefix(LOST)?.strip_suffix(suffix)?, 16).ok()?;
    (loss_file_name(fingerprint, suffix) == name).then_some(fingerprint)
}

/// The segment number in the name of a quarantined segment.
pub fn parse_quarantined_number(name: &str) -> Option<u64> {
    let (_, segment) = name.strip_prefix(LOST)?.split_once('-')?;
    let number = parse_segment_number(segment)?;
    parse_loss_fingerprint(name, &format!("-{segment}")).map(|_| number)
}
