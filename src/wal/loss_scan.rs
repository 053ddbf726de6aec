//! The scan beyond a break, which decides between a torn tail and data loss.
//!
//! Damage leaves valid frames after a break. A power cut can leave some, too, because writes reach
//! the medium in any order. The difference is whether the missing frames had been acknowledged.
//! Later frames and headers can prove that, because each of them carries the sequence that was
//! durable when it was written. So the scan looks for valid frames and headers everywhere beyond
//! the break. If one of them carries a durable sequence at or above that of the first missing
//! frame, the break is data loss.

use std::io;
use std::ops::Bound;

use super::error::WalError;
use super::frame::{FRAME_HEADER_BYTES, FrameReader};
use super::segment::{self, HeaderRead, SegmentEnd, SegmentHeader};
use super::segment_list::SegmentList;
use crate::disk::{Disk, DiskFile};

/// Valid frames and headers beyond the break.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TailScan {
    /// The highest durable sequence that these frames and headers carry.
    pub durable: u64,
    /// Number of the valid frames whose sequence is at or above that of the first missing frame.
    pub frames: u64,
    /// The bytes of these frames.
    pub bytes: u64,
}

/// Scans the rest of the segment with the break, and all later segments.
pub fn scan_tail<D: Disk>(
    disk: &D,
    names: &SegmentList,
    broken: Option<(&SegmentHeader, SegmentEnd)>,
    first_missing: u64,
) -> Result<TailScan, WalError> {
    let mut beyond = TailScan::default();
    let mut later = Bound::Unbounded;
    if let Some((header, end)) = broken {
        let file = disk.open(&segment::segment_file_name(header.number))?;
        beyond.scan_file(&file, header, end.offset, first_missing)?;
        later = Bound::Excluded(header.number);
    }
    for number in names.segments.range((later, Bound::Unbounded)) {
        beyond.scan_segment(disk, &segment::segment_file_name(*number), *number, first_missing)?;
    }
    // An interrupted acceptance of the loss may have renamed some of these segments; the renamed
    // ones still count.
    for (number, name) in names.quarantined.range((later, Bound::Unbounded)) {
        if !names.segments.contains(number) {
            beyond.scan_segment(disk, name, *number, first_missing)?;
        }
    }
    Ok(beyond)
}

impl TailScan {
    fn scan_segment<D: Disk>(&mut self, disk: &D, name: &str, number: u64, missing: u64) -> Result<(), WalError> {
        let file = disk.open(name)?;
        if let HeaderRead::Valid(header) = segment::read_header(&file, number)? {
            self.durable = self.durable.max(header.durable_sequence);
            self.scan_file(&file, &header, segment::FRAMES_OFFSET, missing)?;
        }
        Ok(())
    }

    fn scan_file(&mut self, file: &impl DiskFile, header: &SegmentHeader, from: u64, missing: u64) -> io::Result<()> {
        let mut frames = FrameReader::new(file, header.salt, None)?;
        let mut offset = from;
        // The length of the file limits how many frames it can have, and so how high their
        // sequences are. Without this limit, the bytes of a payload would often pass for a frame's
        // header, and for each such header the reader would read a supposed payload and compute its
        // checksum.
        let most = file.len()? / FRAME_HEADER_BYTES as u64;
        let sequences = header.first_sequence..=header.first_sequence.saturating_add(most);
        while let Some((start, frame)) = frames.find_next_valid(offset, sequences.clone())? {
            self.durable = self.durable.max(frame.durable_sequence);
            if frame.sequence >= missing {
                self.frames += 1;
                self.bytes += frame.bytes.len() as u64;
            }
            offset = frame.end.max(start);
        }
        Ok(())
    }
}
