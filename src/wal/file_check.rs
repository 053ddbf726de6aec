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

use super::error::WalError;
use super::file_damage::FileDamage;
use super::segment::{self, HeaderRead, SegmentHeader};
use super::segment_list::SegmentList;
use crate::disk::{Disk, DiskFile};
use crate::tunables::PREALLOCATION_STEP_ON_FULL_DISK;

/// Checks the files from the last segment that was read, on.
pub fn find_damage<D: Disk>(
    disk: &D,
    names: &SegmentList,
    last_read: &SegmentHeader,
) -> Result<Option<FileDamage>, WalError> {
    let newest = names.newest();
    for number in last_read.number..=newest {
        let Some(name) = names.file_name(number) else {
            let Some(later) = (number..=newest).find_map(|number| names.file_name(number)) else {
                unreachable!("invariant: the newest segment has a file")
            };
            return Ok(Some(FileDamage::Missing { number, later }));
        };
        let file = disk.open(&name)?;
        let bytes = file.len()?;
        let durable_bytes = match segment::read_header(&file, number)? {
            HeaderRead::Valid(header) => header.durable_file_bytes,
            _ if number == newest => 0,
            HeaderRead::Misnamed(header) => return Ok(Some(FileDamage::Misnamed { number, header })),
            // The opening that created the file may have found the disk full, and the one before
            // not: then its step was shorter.
            HeaderRead::Invalid if bytes == PREALLOCATION_STEP_ON_FULL_DISK as u64 => bytes,
            HeaderRead::Invalid | HeaderRead::UnsupportedFormat(_) => last_read.durable_file_bytes,
        };
        if bytes < durable_bytes {
            return Ok(Some(FileDamage::Cut { number, bytes, durable_bytes }));
        }
    }
    Ok(None)
}
