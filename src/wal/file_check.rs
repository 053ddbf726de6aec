//! Damage to whole files: what no crash can do to the segments at the end of the log.
//!
//! A crash tears frames and headers. But it can neither remove, shorten nor exchange a segment that
//! was in use, because names and files become durable in this order:
//!
//! 1. A segment's first bytes are preallocated and synced, then the directory is synced.
//! 2. Only then is its header written, which states the length that is durable.
//! 3. Only then is the file of the next number created. An opening takes the number after the
//!    newest file, or that of the newest file if this file never got a header: then it replaces it.
//!
//! A file is removed only when the header of a later segment is durable. So after any crash the
//! numbers from the last segment that was read up to the newest one have no gap; each of these
//! files but the newest has its preallocated length, and the newest has it, too, if it has a valid
//! header. No file is ever renamed to the name of a segment, so each header has the number of its
//! file. Only the newest file may have any content: its creation may have been interrupted.

use std::fmt;

use super::error::WalError;
use super::segment::{self, HeaderRead, SegmentHeader};
use super::segment_list::SegmentList;
use crate::disk::{Disk, DiskFile};

/// Damage that no crash leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileDamage {
    /// There are later segments, but not this one.
    Missing(u64),
    /// The file is shorter than it was when its header, or the next file, was written.
    Cut { number: u64, bytes: u64, durable_bytes: u64 },
    /// The file has the header of another segment.
    Misnamed { number: u64, header: u64 },
    /// The header of this segment was durable, and can no longer be found.
    HeaderLost(u64),
}

impl fmt::Display for FileDamage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = segment::segment_file_name;
        match self {
            Self::Missing(number) => write!(formatter, "{} is missing", name(*number)),
            Self::Cut { number, bytes, durable_bytes } => {
                write!(formatter, "{} has {bytes} bytes, and had at least {durable_bytes}", name(*number))
            }
            Self::Misnamed { number, header } => {
                write!(formatter, "{} has the header of {}", name(*number), name(*header))
            }
            Self::HeaderLost(number) => write!(formatter, "{} is missing or has no valid header", name(*number)),
        }
    }
}

/// Checks the files from the last segment that was read, on.
pub fn find_damage<D: Disk>(
    disk: &D,
    names: &SegmentList,
    last_read: &SegmentHeader,
) -> Result<Option<FileDamage>, WalError> {
    let newest = names.newest();
    for number in last_read.number..=newest {
        let Some(name) = names.file_name(number) else { return Ok(Some(FileDamage::Missing(number))) };
        let file = disk.open(&name)?;
        let bytes = file.len()?;
        let durable_bytes = match segment::read_header(&file, number)? {
            HeaderRead::Valid(header) => header.durable_file_bytes,
            _ if number == newest => 0,
            HeaderRead::Misnamed(header) => return Ok(Some(FileDamage::Misnamed { number, header })),
            HeaderRead::Invalid | HeaderRead::UnsupportedFormat(_) => last_read.durable_file_bytes,
        };
        if bytes < durable_bytes {
            return Ok(Some(FileDamage::Cut { number, bytes, durable_bytes }));
        }
    }
    Ok(None)
}
