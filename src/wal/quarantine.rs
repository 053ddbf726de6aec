//! What an accepted loss leaves: the segments that it touches, under other names, and a record.
//!
//! ```text
//! lost-<fingerprint>.record               what was lost, in a line of text
//! lost-<fingerprint>-<number>.segment     the segment with the break, copied, and later ones, renamed
//! ```
//!
//! The record is durable before anything is renamed. Opening returns it as long as it is there; the operator may remove all of these
//! files.

use std::ops::Bound;

use super::recovery::Recovered;
use super::{Error, Lost, segment};
use crate::disk::{Disk, DiskFile};

const COPY_BYTES: usize = 256 << 10;
/// A record has no more bytes than this, or it is none.
const RECORD_MAX_BYTES: usize = 512;
const SUFFIX: &str = ".record";

/// Keeps what the loss touches.
pub(super) fn keep<D: Disk>(disk: &D, recovered: &Recovered, lost: &Lost) -> Result<(), Error> {
    let names = &recovered.names;
    write_record(disk, lost)?;
    let mut later = Bound::Unbounded;
    if let Some(link) = recovered.links.last() {
        let number = link.header.number;
        later = Bound::Excluded(number);
        let to = segment::lost_name(lost.fingerprint, number);
        // A copy of an attempt before may have been cut short.
        if names.lost.get(&number) == Some(&to) {
            disk.remove(&to)?;
        }
        copy(disk, &segment::name(number), &to)?;
    }
    for number in names.segments.range((later, Bound::Unbounded)) {
        if mutated!(LaterLogsNotKept) {
            disk.remove(&segment::name(*number))?;
            continue;
        }
        disk.rename(&segment::name(*number), &segment::lost_name(lost.fingerprint, *number))?;
    }
    Ok(disk.sync_directory()?)
}

/// The losses that were accepted in earlier lives, in no order. What is no record is left out.
pub fn accepted<D: Disk>(disk: &D) -> Result<Vec<Lost>, Error> {
    let mut losses = Vec::new();
    for name in disk.list()? {
        let Some(fingerprint) = segment::lost_fingerprint(&name, SUFFIX) else { continue };
        let mut bytes = vec![0; RECORD_MAX_BYTES];
        let read = disk.open(&name)?.read_at(0, &mut bytes)?;
        losses.extend(decode(&bytes[..read]).filter(|lost| lost.fingerprint == fingerprint));
    }
    Ok(losses)
}

fn write_record<D: Disk>(disk: &D, lost: &Lost) -> Result<(), Error> {
    let name = segment::lost_name_with(lost.fingerprint, SUFFIX);
    if disk.list()?.contains(&name) {
        disk.remove(&name)?;
    }
    let file = disk.create(&name)?;
    let Lost { file: segment, offset, first, durable, frames, bytes, fingerprint } = lost;
    let line = format!("{fingerprint:016x} {segment} {offset} {first} {durable} {frames} {bytes}\n");
    file.write_at(0, line.as_bytes())?;
    file.sync()?;
    Ok(disk.sync_directory()?)
}

fn decode(bytes: &[u8]) -> Option<Lost> {
    let mut words = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?.split(' ');
    let fingerprint = u64::from_str_radix(words.next()?, 16).ok()?;
    let file = words.next()?.to_owned();
    let mut number = || words.next()?.parse().ok();
    Some(Lost {
        file,
        offset: number()?,
        first: number()?,
        durable: number()?,
        frames: number()?,
        bytes: number()?,
        fingerprint,
    })
}

fn copy<D: Disk>(disk: &D, from: &str, to: &str) -> Result<(), Error> {
    let (from, to) = (disk.open(from)?, disk.create(to)?);
    let mut buffer = vec![0; COPY_BYTES];
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
