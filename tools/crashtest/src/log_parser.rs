//! An independent parser of the write-ahead log, written from its description.
//!
//! A segment is a file `wal/NNNNNNNNNN.segment`: two copies of a header, 4096 bytes apart, then
//! frames from byte 8192 on, then preallocated zeros. Each frame has a checksum and a sequence
//! number, and names the sequence that was durable when it was written.
//!
//! The file `wal/synced` names the newest segment and the last frame that were durable when the log
//! was idle.
//!
//! So the bytes of a damaged log decide what a store must do. The store replays valid frames up to
//! the first invalid frame. If a later valid frame or header, or `synced`, names the sequence of
//! the invalid frame, or a higher sequence, as durable, the store must refuse to open. It must also
//! refuse if a segment at the end is shorter than its header says, or if the segment that `synced`
//! names has no header. Otherwise it must open.
//!
//! The store's own parser is not used here: the same mistake in both would hide a violation.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The offset of the first frame.
pub const FRAMES_AT: usize = 8192;
/// The offsets of the two header copies.
pub const HEADERS_AT: [usize; 2] = [0, 4096];
/// Checksummed bytes of a header.
pub const HEADER_BYTES: usize = 128;
/// The path of the sync record in a store.
pub const SYNC_RECORD: &str = "wal/synced";
const FRAME_HEADER_BYTES: usize = 24;
const ALIGNMENT: usize = 8;
const MAGIC: &[u8] = b"percolog";

/// A valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The segment's number.
    pub number: u64,
    salt: u64,
    /// The sequence number of the first frame.
    pub first: u64,
    /// The offset at which the previous segment ends, if there is one.
    pub continues: Option<u64>,
    /// The durable sequence when the header was written.
    pub durable: u64,
    /// The length of the file that was durable before the header was written.
    pub durable_bytes: u64,
}

/// The content of `wal/synced`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncRecord {
    /// The newest segment with a durable header.
    pub segment: u64,
    /// The last durable frame.
    pub sequence: u64,
}

/// A valid frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The offset of the frame.
    pub offset: usize,
    /// Bytes of the payload.
    pub length: usize,
    /// The sequence number.
    pub sequence: u64,
    /// The durable sequence when the frame was written.
    pub durable: u64,
}

impl Frame {
    /// The offset of the next frame.
    pub fn end(&self) -> usize {
        (self.offset + FRAME_HEADER_BYTES + self.length).next_multiple_of(ALIGNMENT)
    }
}

/// The segments of the store in `dir`, oldest first.
///
/// # Errors
/// I/O errors.
pub fn segments(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let files = fs::read_dir(dir.join("wal"))?.map(|entry| entry.map(|entry| entry.path()));
    let mut files = files.collect::<Result<Vec<_>, _>>()?;
    files.retain(|file| is_segment(file));
    files.sort();
    Ok(files)
}

/// Whether the file has the name of a segment; quarantined segments have other names.
pub fn is_segment(file: &Path) -> bool {
    let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    file.extension().is_some_and(|ext| ext == "segment") && stem.bytes().all(|byte| byte.is_ascii_digit())
}

/// The header, from the first valid copy.
pub fn header(segment: &[u8]) -> Option<Header> {
    HEADERS_AT.into_iter().find_map(|at| {
        let bytes = segment.get(at..at + HEADER_BYTES)?;
        let is_whole = bytes.starts_with(MAGIC)
            && crc32c::crc32c(&[&bytes[..HEADER_BYTES - 4]].concat()) == u32_at(bytes, HEADER_BYTES - 4)?;
        let continues = (u64_at(bytes, 48)? > 0).then_some(u64_at(bytes, 56)?);
        let header = Header {
            number: u64_at(bytes, 16)?,
            salt: u64_at(bytes, 24)?,
            first: u64_at(bytes, 40)?,
            continues,
            durable: u64_at(bytes, 72)?,
            durable_bytes: u64_at(bytes, 80)?,
        };
        is_whole.then_some(header)
    })
}

/// The sync record of the store in `dir`; `None` if there is no valid one.
pub fn sync_record(dir: &Path) -> Option<SyncRecord> {
    let bytes = fs::read(dir.join(SYNC_RECORD)).ok()?;
    let record = SyncRecord { segment: u64_at(&bytes, 16)?, sequence: u64_at(&bytes, 24)? };
    (bytes.starts_with(b"percsync") && crc32c::crc32c(&bytes[..32]) == u32_at(&bytes, 32)?).then_some(record)
}

/// The frames up to the first invalid one.
pub fn frames(segment: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    let Some(header) = header(segment) else { return frames };
    let mut at = FRAMES_AT;
    while let Some(frame) = frame_at(segment, &header, at) {
        if frame.sequence != header.first + frames.len() as u64 {
            break;
        }
        at = frame.end();
        frames.push(frame);
    }
    frames
}

/// The end of the last valid frame. Without frames it is the end of the headers; without a valid
/// header it is 0.
pub fn valid_length(segment: &[u8]) -> usize {
    let start = if header(segment).is_some() { FRAMES_AT } else { 0 };
    frames(segment).last().map_or(start, Frame::end)
}

fn frame_at(segment: &[u8], header: &Header, offset: usize) -> Option<Frame> {
    let bytes = segment.get(offset..offset + FRAME_HEADER_BYTES)?;
    let length = usize::try_from(u32_at(bytes, 4)?).ok()?;
    let frame = Frame { offset, length, sequence: u64_at(bytes, 8)?, durable: u64_at(bytes, 16)? };
    if frame.sequence < header.first || frame.durable >= frame.sequence || frame.end() > segment.len() {
        return None;
    }
    (checksum(segment, header, &frame) == u32_at(bytes, 0)?).then_some(frame)
}

fn checksum(segment: &[u8], header: &Header, frame: &Frame) -> u32 {
    let rest = segment.get(frame.offset + 4..frame.offset + FRAME_HEADER_BYTES + frame.length).unwrap_or_default();
    crc32c::crc32c(&[&header.salt.to_le_bytes(), &(frame.offset as u64).to_le_bytes(), rest].concat())
}

/// What a store that replays a log must find in it, if none of its frames are in the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayResult {
    /// The last sequence that can be replayed.
    pub last: u64,
    /// The offset at which the frame of this sequence ends, in the segment that has it.
    pub end: usize,
    /// The highest sequence that a later valid frame or header, or the sync record, names as
    /// durable.
    pub durable_upto: u64,
    /// Whether a whole file is not what it was: a segment at the end is too short, or the header of
    /// the segment that the sync record names is lost.
    pub file_damaged: bool,
}

impl ReplayResult {
    /// Whether acknowledged frames are certainly missing.
    pub fn is_loss(&self) -> bool {
        self.durable_upto > self.last || self.file_damaged
    }
}

/// Replays the segments, oldest first. `None` if the oldest has no valid header.
pub fn replay(segments: &[&[u8]], record: Option<SyncRecord>) -> Option<ReplayResult> {
    let mut result: Option<ReplayResult> = None;
    let mut goes_on = true;
    // Of the segment in which the replay ends.
    let mut number = 0;
    for (at, segment) in segments.iter().enumerate() {
        let Some(header) = header(segment) else {
            if at == 0 {
                return None;
            }
            continue;
        };
        let replayed = result.get_or_insert(ReplayResult { last: header.first - 1, ..ReplayResult::default() });
        let mut from = FRAMES_AT;
        if goes_on && replayed.last + 1 == header.first {
            let limit = segments.get(at + 1).and_then(|next| self::header(next)).and_then(|next| next.continues);
            let limit = limit.and_then(|limit| usize::try_from(limit).ok());
            for frame in frames(segment).iter().take_while(|frame| limit.is_none_or(|limit| frame.end() <= limit)) {
                (replayed.last, from) = (frame.sequence, frame.end());
            }
            replayed.end = from;
            goes_on = limit == Some(from);
            (number, replayed.file_damaged) = (header.number, (segment.len() as u64) < header.durable_bytes);
        } else {
            replayed.file_damaged |= (segment.len() as u64) < header.durable_bytes;
            replayed.durable_upto = replayed.durable_upto.max(header.durable);
        }
        while let Some(frame) = next_whole(segment, &header, from) {
            replayed.durable_upto = replayed.durable_upto.max(frame.durable);
            from = frame.end();
        }
    }
    if let (Some(replayed), Some(record)) = (&mut result, record) {
        replayed.durable_upto = replayed.durable_upto.max(record.sequence);
        replayed.file_damaged |= number < record.segment;
    }
    result
}

fn next_whole(segment: &[u8], header: &Header, from: usize) -> Option<Frame> {
    (from..segment.len()).step_by(ALIGNMENT).find_map(|at| frame_at(segment, header, at))
}

/// Lowers the durable sequence in each frame to `durable` at most, as if no later sequence had been
/// synced when the frame was written.
pub fn cap_durable_sequence(segment: &mut [u8], durable: u64) {
    let Some(header) = header(segment) else { return };
    for frame in frames(segment) {
        let capped = Frame { durable: frame.durable.min(durable), ..frame };
        let at = frame.offset;
        segment[at + 16..at + 24].copy_from_slice(&capped.durable.to_le_bytes());
        let sum = checksum(segment, &header, &capped);
        segment[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_log_is_parsed() {
        let dir = tempfile::tempdir().unwrap();
        let store = percolite::Store::open(dir.path()).unwrap();
        let rows = store.keyspace("rows").unwrap();
        for number in 0..3 {
            store.transact(|txn| txn.put(&rows, "row", vec![number; 100])).unwrap();
        }
        store.close().unwrap();
        drop(rows);
        let files = segments(dir.path()).unwrap();
        let bytes = fs::read(&files[0]).unwrap();
        let frames = frames(&bytes);
        assert!(frames.iter().filter(|frame| frame.length > 100).count() >= 3, "{frames:?}");
        let record = sync_record(dir.path());
        let last = frames.len() as u64;
        assert_eq!(record, Some(SyncRecord { segment: 1, sequence: last }), "closing writes the sync record");
        let whole = replay(&[&bytes], record).unwrap();
        assert_eq!((whole.last, whole.end), (frames.len() as u64, valid_length(&bytes)));
        assert!(!whole.is_loss());
        for frame in &frames {
            let mut bytes = bytes.clone();
            bytes[frame.offset + 20] ^= 1;
            let damaged = replay(&[&bytes], record).unwrap();
            assert_eq!(damaged.last, frame.sequence - 1);
            assert!(damaged.is_loss(), "{frame:?}");
            assert_eq!(replay(&[&bytes], None).unwrap().is_loss(), frame.sequence < last, "{frame:?}");
        }
        assert!(replay(&[&bytes[..bytes.len() / 2]], None).unwrap().is_loss(), "a file that was cut");
    }
}
