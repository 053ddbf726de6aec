//! Beginning a life: the first writes on a log that was read.
//!
//! The order, each step durable before the next:
//!
//! 1. *What was read.* After a kill it may be in the kernel's memory only. A sync alone would not do: if one has failed in the life
//!    before, the kernel counts the pages as clean, and the next sync writes nothing. So what no later frame witnesses as durable
//!    is written once more, the same bytes in the same place, and then synced, older segments first.
//! 2. *The new segment.* Its header names the end of what was read. Nothing beyond that end is read from now on, so a torn frame
//!    with whole ones after it stays gone. Frames of this life go to the new segment only.
//! 3. *Removing what is beyond the end.* Segments there are no longer part of the log, and must not be found again if the
//!    headers of this life are damaged.
//!
//! A crash between two steps leaves the log as it was read, or as it is to be.
//!
//! **Accepting a loss.** The caller passes the fingerprint of the loss, so it accepts exactly the loss that was reported. Before
//! the first step what the loss touches is [kept](super::quarantine) under other names. A crash in between leaves the same loss with the same
//! fingerprint, because the search covers these names, too.

use std::collections::VecDeque;
use std::io;
use std::ops::Bound;
use std::sync::Arc;

use super::Error;
use super::frame::Frames;
use super::handle::{Shared, make};
use super::quarantine::keep;
use super::recovery::{Link, Names, Recovered};
use super::segment::{self, FRAMES_AT, Header};
use super::writer::Log;
use crate::disk::{Disk, DiskFile};

/// Begins a life on what was [read](super::read); the folder must be unchanged since. The salt is random. `accept` is the
/// fingerprint of an accepted loss.
pub fn begin<D: Disk>(disk: D, recovered: &Recovered, salt: u64, accept: Option<u64>) -> Result<Log<D>, Error> {
    if let Some(lost) = recovered.lost() {
        if accept != Some(lost.fingerprint) {
            return Err(Error::Lost(Box::new(lost.clone())));
        }
        keep(&disk, recovered, lost)?;
    }
    let number = recovered.names.next_number();
    if number > segment::NUMBER_MAX / 2 {
        let last = segment::name(number - 1);
        return Err(
            io::Error::other(format!("no number is left for a segment after {last}, which no store has made")).into()
        );
    }
    let end = recovered.end();
    let kept = end.map_or(0, |end| end.number);
    for link in recovered.links.iter().filter(|link| link.header.number <= kept) {
        write_again(&disk, link, recovered.durable)?;
    }
    let header = Header {
        number,
        salt,
        identity: recovered.identity,
        first: recovered.last().checked_add(1).ok_or(Error::Full)?,
        predecessor: end,
        durable: recovered.last(),
    };
    let file = Arc::new(make(&disk, header.number, Some(&header))?);
    crash_point!(LifeBegun);
    remove_beyond(&disk, recovered, kept)?;
    let shared = Shared::new(disk, header.durable, header.number, Arc::clone(&file), older(recovered, kept));
    Ok(Log::new(shared, file, header))
}

/// Makes the log of a new store, or of a copy whose tables have everything up to the position.
pub fn create<D: Disk>(disk: D, identity: u64, position: u64, salt: u64) -> Result<Log<D>, Error> {
    begin(disk, &Recovered::new(identity, Names::default(), position), salt, None)
}

fn write_again<D: Disk>(disk: &D, link: &Link, durable: u64) -> Result<(), Error> {
    let Link { header, end } = link;
    if header.first <= durable && end.last <= durable || mutated!(NotWrittenAgain) {
        return Ok(());
    }
    let name = segment::name(header.number);
    let file = disk.open_to_write(&name)?;
    if header.first > durable {
        file.write_at(0, &header.encode())?;
    }
    let mut frames = Frames::new(&file, header, Some(end.offset))?;
    let mut offset = FRAMES_AT;
    for sequence in header.first..=end.last {
        let Some(frame) = frames.at(offset, sequence..=sequence)? else {
            return Err(io::Error::other(format!("{name} has changed since it was read")).into());
        };
        if sequence > durable {
            file.write_at(offset, frame.bytes)?;
        }
        offset = frame.end;
    }
    Ok(file.sync()?)
}

fn remove_beyond<D: Disk>(disk: &D, recovered: &Recovered, kept: u64) -> Result<(), Error> {
    let beyond = (Bound::Excluded(kept), Bound::Unbounded);
    let renamed = recovered.lost().and(Some(recovered.links.last().map_or(0, |link| link.header.number)));
    let mut removed = false;
    for number in recovered.names.segments.range(beyond) {
        if renamed.is_none_or(|broken| *number <= broken) {
            disk.remove(&segment::name(*number))?;
            removed = true;
        }
    }
    if removed {
        disk.sync_directory()?;
    }
    Ok(())
}

/// What can be freed one day: segments of the chain by their last sequence, others have nothing that is still read.
fn older(recovered: &Recovered, kept: u64) -> VecDeque<(u64, u64)> {
    let last = |number| {
        let link = recovered.links.iter().find(|link| link.header.number == number);
        link.map_or(0, |link| link.end.last)
    };
    recovered.names.segments.range(..=kept).map(|number| (*number, last(*number))).collect()
}
