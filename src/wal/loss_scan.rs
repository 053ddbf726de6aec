//! What lies beyond a break.
//!
//! A power cut leaves frames after a break just as damage does: writes reach the medium in any order. The difference is whether
//! what is missing had been acknowledged, and later writes tell: each frame and each header carries the
//! sequence that was durable by then. So everything beyond the break is searched for whole frames and headers, and the highest
//! durable sequence that they witness decides.

use std::io;
use std::ops::Bound;

use super::WalError;
use super::frame::{FRAME_HEADER_BYTES, FrameReader};
use super::recovery::SegmentList;
use super::segment::{self, HeaderRead, SegmentEnd, SegmentHeader};
use crate::disk::{Disk, DiskFile};

/// Whole things beyond the break.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TailScan {
    /// The highest durable sequence that any of them names.
    pub durable: u64,
    /// Frames that are missed.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Searches the rest of the segment that breaks, and all later ones; `missing` is the first sequence that is missed.
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
    // What an earlier attempt to begin in spite of the loss has renamed is still what was lost.
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
        let mut frames = FrameReader::new(file, header, None)?;
        let mut offset = from;
        // No more frames than this fit. Without the bound most numbers in a payload pass for a header, and each costs a checksum of
        // what it gives as its length.
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
