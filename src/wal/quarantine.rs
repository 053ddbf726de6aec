//! Quarantine: what an accepted data loss leaves in the directory.
//!
//! ```text
//! lost-<fingerprint>.txt                  the loss, in a line of text
//! lost-<fingerprint>-<number>.segment     the segment with the break, copied; later ones, renamed
//! ```
//!
//! The loss file is durable before anything is renamed. While that file exists, each opening
//! reports the accepted loss. The operator may remove all of these files.

use std::ops::Bound;

use super::error::{DataLoss, WalError};
use super::recovery::Recovered;
use super::segment;
use crate::disk::{Disk, DiskFile};

const COPY_BUFFER_BYTES: usize = 256 << 10;
/// A longer file is not a loss file.
const LOSS_FILE_MAX_BYTES: usize = 512;
const LOSS_FILE_SUFFIX: &str = ".txt";

/// Writes the loss file and quarantines the segments from the break on.
pub(super) fn quarantine<D: Disk>(disk: &D, recovered: &Recovered, loss: &DataLoss) -> Result<(), WalError> {
    let names = &recovered.names;
    write_loss_file(disk, loss)?;
    let mut later = Bound::Unbounded;
    if let Some(link) = recovered.segments.last() {
        let number = link.header.number;
        later = Bound::Excluded(number);
        let to = segment::quarantine_name(loss.fingerprint, number);
        // An interrupted acceptance can have left an incomplete copy, so the segment is copied
        // again.
        if names.quarantined.get(&number) == Some(&to) {
            disk.remove(&to)?;
        }
        copy(disk, &segment::segment_file_name(number), &to)?;
    }
    for number in names.segments.range((later, Bound::Unbounded)) {
        disk.rename(&segment::segment_file_name(*number), &segment::quarantine_name(loss.fingerprint, *number))?;
    }
    Ok(disk.sync_directory()?)
}

/// The losses accepted by earlier incarnations, in no order. Malformed files are skipped.
pub fn accepted_data_losses<D: Disk>(disk: &D) -> Result<Vec<DataLoss>, WalError> {
    let mut losses = Vec::new();
    for name in disk.list()? {
        let Some(fingerprint) = segment::parse_loss_fingerprint(&name, LOSS_FILE_SUFFIX) else { continue };
        let mut bytes = vec![0; LOSS_FILE_MAX_BYTES];
        let read = disk.open(&name)?.read_at(0, &mut bytes)?;
        losses.extend(decode_loss(&bytes[..read]).filter(|loss| loss.fingerprint == fingerprint));
    }
    Ok(losses)
}

fn write_loss_file<D: Disk>(disk: &D, loss: &DataLoss) -> Result<(), WalError> {
    let name = segment::loss_file_name(loss.fingerprint, LOSS_FILE_SUFFIX);
    if disk.list()?.contains(&name) {
        disk.remove(&name)?;
    }
    let file = disk.create(&name)?;
    let DataLoss {
        segment,
        offset,
        first_missing: first,
        durable_sequence: durable,
        intact_frames: frames,
        intact_bytes: bytes,
        fingerprint,
        cause: _,
    } = loss;
    let line = format!("{fingerprint:016x} {segment} {offset} {first} {durable} {frames} {bytes}\n");
    file.write_at(0, line.as_bytes())?;
    file.sync()?;
    Ok(disk.sync_directory()?)
}

fn decode_loss(bytes: &[u8]) -> Option<DataLoss> {
    let mut words = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?.split(' ');
    let fingerprint = u64::from_str_radix(words.next()?, 16).ok()?;
    let segment = words.next()?.to_owned();
    let mut number = || words.next()?.parse().ok();
    Some(DataLoss {
        segment,
        cause: None,
        offset: number()?,
        first_missing: number()?,
        durable_sequence: number()?,
        intact_frames: number()?,
        intact_bytes: number()?,
        fingerprint,
    })
}

fn copy<D: Disk>(disk: &D, from: &str, to: &str) -> Result<(), WalError> {
    let (from, to) = (disk.open(from)?, disk.create(to)?);
    let mut buffer = vec![0; COPY_BUFFER_BYTES];
    let mut offset = 0;
    loop {
        let read = from.read_at(offset, &mut buffer)?;
        to.write_at(offset, &buffer[..read])?;
        offset += read as u64;
        if read < buffer.len() {
            return Ok(to.sync()?);
        }
    }
}
