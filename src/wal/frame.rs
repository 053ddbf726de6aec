//! Frames: the records of the log. A frame has one batch as its payload.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | CRC32C over the segment's salt, the frame's offset, and everything below |
//! | 4 | 4 | length of the payload |
//! | 8 | 8 | sequence: one more than that of the frame before |
//! | 16 | 8 | the sequence that was durable when the frame was written |
//! | 24 | | payload, then zeros up to the next multiple of 8 |
//!
//! The salt (as in SQLite's WAL) distinguishes the segment's frames from whatever was in the same
//! blocks before. The offset distinguishes a frame from a copy of a frame inside a payload. Numbers
//! are little-endian, here and in the segment's header.
//!
//! Frames begin at multiples of 8. After a frame that cannot be read, the offset of the next frame
//! is unknown. The alignment leaves few candidates, and [`FrameReader::find_next_valid`] tries all
//! of them.

use std::io;
use std::ops::RangeInclusive;

use crate::disk::DiskFile;

/// Bytes of a frame before its payload.
pub const FRAME_HEADER_BYTES: usize = 24;
/// Every frame begins at a multiple of this.
const ALIGNMENT_BYTES: usize = 8;
/// `ALIGNMENT_BYTES` as an offset.
pub const ALIGNMENT: u64 = ALIGNMENT_BYTES as u64;
/// The maximum length of a payload. A longer one is refused, and a greater length on disk is
/// damage.
pub const PAYLOAD_MAX_BYTES: usize = 1 << 30;

/// Bytes of one read from the file.
const READ_BYTES: u64 = 256 << 10;

/// A frame under construction. The payload is encoded after the space for the header, so the whole
/// frame is written from this buffer.
#[derive(Debug, Default)]
pub struct FrameBuffer(Vec<u8>);

impl FrameBuffer {
    /// An empty payload, with capacity for `bytes`.
    pub fn with_capacity(bytes: usize) -> Self {
        let mut frame = Vec::with_capacity(FRAME_HEADER_BYTES + bytes + ALIGNMENT_BYTES);
        frame.resize(FRAME_HEADER_BYTES, 0);
        Self(frame)
    }

    pub fn is_empty(&self) -> bool {
        self.payload_len() == 0
    }

    /// The payload of a sealed frame.
    pub fn payload(&self) -> &[u8] {
        let length = self.0.get(4..8).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
        let payload = length.and_then(|bytes| self.0.get(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + bytes as usize));
        let Some(payload) = payload else { unreachable!("invariant: a sealed frame has a header and its payload") };
        payload
    }

    fn clear(&mut self) {
        self.0.clear();
        self.0.resize(FRAME_HEADER_BYTES, 0);
    }

    /// The buffer, to which the payload is appended. Its first [`FRAME_HEADER_BYTES`] bytes are for
    /// the header.
    pub fn payload_buffer(&mut self) -> &mut Vec<u8> {
        if self.0.len() < FRAME_HEADER_BYTES {
            self.clear();
        }
        &mut self.0
    }

    /// Fills in the header and the padding; returns the bytes to be written at the offset.
    pub(super) fn seal(&mut self, salt: u64, offset: u64, sequence: u64, durable: u64) -> &[u8] {
        let end = self.payload_buffer().len();
        let Ok(length) = u32::try_from(end - FRAME_HEADER_BYTES) else {
            unreachable!("invariant: a payload of {end} bytes was refused before it is sealed")
        };
        assert!(durable < sequence, "invariant: frame {sequence} is written before it is durable, not at {durable}");
        self.0[4..8].copy_from_slice(&length.to_le_bytes());
        self.0[8..16].copy_from_slice(&sequence.to_le_bytes());
        self.0[16..24].copy_from_slice(&durable.to_le_bytes());
        let checksum = checksum(salt, offset, &self.0[4..]);
        self.0[..4].copy_from_slice(&checksum.to_le_bytes());
        self.0.resize(end.next_multiple_of(ALIGNMENT_BYTES), 0);
        &self.0
    }

    pub(super) fn payload_len(&self) -> usize {
        self.0.len().saturating_sub(FRAME_HEADER_BYTES)
    }
}

fn checksum(salt: u64, offset: u64, rest: &[u8]) -> u32 {
    let place = crc32c::crc32c_append(crc32c::crc32c(&salt.to_le_bytes()), &offset.to_le_bytes());
    crc32c::crc32c_append(place, rest)
}

/// The end of a frame that begins at `offset` and has a payload of this length.
pub fn frame_end(offset: u64, payload_bytes: usize) -> Option<u64> {
    let bytes = u64::try_from(FRAME_HEADER_BYTES.checked_add(payload_bytes)?).ok()?;
    offset.checked_add(bytes)?.checked_next_multiple_of(ALIGNMENT)
}

/// A valid frame.
#[derive(Debug)]
pub struct Frame<'a> {
    /// The sequence number of the frame.
    pub sequence: u64,
    /// The sequence that was durable when the frame was written.
    pub durable_sequence: u64,
    /// Offset of the next frame.
    pub end: u64,
    /// Header and payload.
    pub bytes: &'a [u8],
}

impl Frame<'_> {
    pub fn payload(&self) -> &[u8] {
        &self.bytes[FRAME_HEADER_BYTES..]
    }
}

/// Reads the frames of a segment.
#[derive(Debug)]
pub struct FrameReader<'a, F> {
    file: &'a F,
    salt: u64,
    /// Nothing is read from this offset on.
    limit: u64,
    buffer: Vec<u8>,
    buffer_at: u64,
}

impl<'a, F: DiskFile> FrameReader<'a, F> {
    /// Reads frames up to `limit`, or to the end of the file.
    pub fn new(file: &'a F, salt: u64, limit: Option<u64>) -> io::Result<Self> {
        let length = file.len()?;
        let limit = limit.map_or(length, |limit| limit.min(length));
        Ok(Self { file, salt, limit, buffer: Vec::new(), buffer_at: 0 })
    }

    /// The frame that begins at the offset, if it is valid and its sequence is in the range.
    pub fn read_at(&mut self, offset: u64, sequences: RangeInclusive<u64>) -> io::Result<Option<Frame<'_>>> {
        let Some(header) = self.buffered(offset, FRAME_HEADER_BYTES)?.and_then(|bytes| bytes.first_chunk()).copied()
        else {
            return Ok(None);
        };
        let [checksum, length, sequence, durable] = decode_header(&header);
        if !sequences.contains(&sequence) || durable >= sequence {
            return Ok(None);
        }
        let Some(payload) = usize::try_from(length).ok().filter(|length| *length <= PAYLOAD_MAX_BYTES) else {
            return Ok(None);
        };
        let (salt, limit) = (self.salt, self.limit);
        let Some(end) = frame_end(offset, payload).filter(|end| *end <= limit) else { return Ok(None) };
        let Some(bytes) = self.buffered(offset, FRAME_HEADER_BYTES + payload)? else { return Ok(None) };
        let is_valid = u64::from(self::checksum(salt, offset, &bytes[4..])) == checksum;
        Ok(is_valid.then_some(Frame { sequence, durable_sequence: durable, end, bytes }))
    }

    /// Finds the first frame, at or after the offset, that is valid and has a sequence in the
    /// range. Returns the frame's offset and the frame.
    pub fn find_next_valid(
        &mut self,
        from: u64,
        sequences: RangeInclusive<u64>,
    ) -> io::Result<Option<(u64, Frame<'_>)>> {
        let mut offset = from.next_multiple_of(ALIGNMENT);
        while offset < self.limit {
            if self.read_at(offset, sequences.clone())?.is_some() {
                return Ok(self.read_at(offset, sequences)?.map(|frame| (offset, frame)));
            }
            offset += ALIGNMENT;
        }
        Ok(None)
    }

    fn buffered(&mut self, offset: u64, length: usize) -> io::Result<Option<&[u8]>> {
        let Some(end) = offset.checked_add(length as u64).filter(|end| *end <= self.limit) else { return Ok(None) };
        if offset < self.buffer_at || end > self.buffer_at + self.buffer.len() as u64 {
            let bytes = (end - offset).max(READ_BYTES).min(self.limit - offset);
            self.buffer.resize(usize::try_from(bytes).map_err(io::Error::other)?, 0);
            let read = self.file.read_at(offset, &mut self.buffer)?;
            self.buffer.truncate(read);
            self.buffer_at = offset;
        }
        let Ok(start) = usize::try_from(offset - self.buffer_at) else { return Ok(None) };
        Ok(self.buffer.get(start..start + length))
    }
}

/// Checksum, length, sequence and durable sequence.
fn decode_header(header: &[u8; FRAME_HEADER_BYTES]) -> [u64; 4] {
    let number = |range: std::ops::Range<usize>| {
        let mut bytes = [0; 8];
        bytes[..range.len()].copy_from_slice(&header[range]);
        u64::from_le_bytes(bytes)
    };
    [number(0..4), number(4..8), number(8..16), number(16..24)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "invariant: frame 7 is written before it is durable, not at 7")]
    fn a_frame_that_counts_itself_as_durable_breaks_an_invariant() {
        FrameBuffer::default().seal(1, 0, 7, 7);
    }

    #[test]
    #[should_panic(expected = "invariant: a sealed frame has a header and its payload")]
    fn the_payload_of_a_frame_without_header_breaks_an_invariant() {
        let _ = FrameBuffer(Vec::new()).payload();
    }
}
