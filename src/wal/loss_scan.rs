//! What lies beyond a break.
//!
//! A power cut leaves frames after a break just as damage does: writes reach the medium in any order. The difference is whether
//! what is missing had been acknowledged, and later writes tell: each frame and each header carries the
//! sequence that was durable by then. So everything beyond the break is searched for whole frames and headers, and the highest
//! durable sequence that they witness decides.

use std::io;
use std::ops::Bound;

use super::Error;
use super::frame::{Frames, HEADER_BYTES};
use super::recovery::Names;
use super::segment::{self, End, Found, Header};
use crate::disk::{Disk, DiskFile};

/// Whole things beyond the break.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beyond {
    /// The highest durable sequence that any of them names.
    pub durable: u64,
    /// Frames that are missed.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Searches the rest of the segment that breaks, and all later ones; `missing` is the first sequence that is missed.
pub fn search<D: Disk>(disk: &D, names: &Names, broken: Option<(&Header, End)>, missing: u64) -> Result<Beyond, Error> {
    let mut beyond = Beyond::default();
    let mut later = Bound::Unbounded;
    if let Some((header, end)) = broken {
        let file = disk.open(&segment::name(header.number))?;
        beyond.search_file(&file, header, end.offset, missing)?;
        later = Bound::Excluded(header.number);
    }
    for number in names.segments.range((later, Bound::Unbounded)) {
        beyond.search_segment(disk, &segment::name(*number), *number, missing)?;
    }
    // What an earlier attempt to begin in spite of the loss has renamed is still what was lost.
    for (number, name) in names.lost.range((later, Bound::Unbounded)) {
        if !names.segments.contains(number) {
            beyond.search_segment(disk, name, *number, missing)?;
        }
    }
    Ok(beyond)
}

impl Beyond {
    fn search_segment<D: Disk>(&mut self, disk: &D, name: &str, number: u64, missing: u64) -> Result<(), Error> {
        let file = disk.open(name)?;
        if let Found::Header(header) = segment::read_header(&file, number)? {
            self.durable = self.durable.max(header.durable);
            self.search_file(&file, &header, segment::FRAMES_AT, missing)?;
        }
        Ok(())
    }

    fn search_file(&mut self, file: &impl DiskFile, header: &Header, from: u64, missing: u64) -> io::Result<()> {
        let mut frames = Frames::new(file, header, None)?;
        let mut offset = from;
        // No more frames than this fit. Without the bound most numbers in a payload pass for a header, and each costs a checksum of
        // what it gives as its length.
        let most = file.len()? / HEADER_BYTES as u64;
        let sequences = header.first..=header.first.saturating_add(most);
        while let Some((start, frame)) = frames.next_whole(offset, sequences.clone())? {
            self.durable = self.durable.max(frame.durable);
            if frame.sequence >= missing {
                self.frames += 1;
                self.bytes += frame.bytes.len() as u64;
            }
            offset = frame.end.max(start);
        }
        Ok(())
    }
}
