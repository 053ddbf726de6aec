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

use super::WalError;
use super::frame::FrameReader;
use super::handle::{WalShared, create_segment};
use super::quarantine::quarantine;
use super::recovery::{Recovered, RecoveredSegment, SegmentList};
use super::segment::{self, FRAMES_OFFSET, SegmentHeader};
use super::writer::WalWriter;
use crate::disk::{Disk, DiskFile};

/// Begins a life on what was [read](super::recover); the folder must be unchanged since. The salt is random. `accept` is the
/// fingerprint of an accepted loss.
pub fn resume<D: Disk>(
    disk: D,
    recovered: &Recovered,
    salt: u64,
    accept: Option<u64>,
) -> Result<WalWriter<D>, WalError> {
    if let Some(lost) = recovered.data_loss() {
        if accept != Some(lost.fingerprint) {
            return Err(WalError::DataLoss(Box::new(lost.clone())));
        }
        quarantine(&disk, recovered, lost)?;
    }
    let number = recovered.names.next_number();
    if number > segment::SEGMENT_NUMBER_MAX / 2 {
        let last = segment::segment_file_name(number - 1);
        return Err(
            io::Error::other(format!("no number is left for a segment after {last}, which no store has made")).into()
        );
    }
    let end = recovered.log_end();
    let kept = end.map_or(0, |end| end.number);
    for link in recovered.segments.iter().filter(|link| link.header.number <= kept) {
        rewrite_tail(&disk, link, recovered.durable_sequence)?;
    }
    let header = SegmentHeader {
        number,
        salt,
        wal_id: recovered.wal_id,
        first_sequence: recovered.last_sequence().checked_add(1).ok_or(WalError::PayloadTooLarge)?,
        predecessor: end,
        durable_sequence: recovered.last_sequence(),
    };
    let file = Arc::new(create_segment(&disk, header.number, Some(&header))?);
    crash_point!(WalResumed);
    remove_after_end(&disk, recovered, kept)?;
    let shared = WalShared::new(
        disk,
        header.durable_sequence,
        header.number,
        Arc::clone(&file),
        removable_segments(recovered, kept),
    );
    Ok(WalWriter::new(shared, file, header))
}

/// Makes the log of a new store, or of a copy whose tables have everything up to the position.
pub fn create<D: Disk>(disk: D, identity: u64, position: u64, salt: u64) -> Result<WalWriter<D>, WalError> {
    resume(disk, &Recovered::new(identity, SegmentList::default(), position), salt, None)
}

fn rewrite_tail<D: Disk>(disk: &D, link: &RecoveredSegment, durable: u64) -> Result<(), WalError> {
    let RecoveredSegment { header, end } = link;
    if header.first_sequence <= durable && end.last_sequence <= durable || mutated!(TailNotRewritten) {
        return Ok(());
    }
    let name = segment::segment_file_name(header.number);
    let file = disk.open_writable(&name)?;
    if header.first_sequence > durable {
        file.write_at(0, &header.encode())?;
    }
    let mut frames = FrameReader::new(&file, header, Some(end.offset))?;
    let mut offset = FRAMES_OFFSET;
    for sequence in header.first_sequence..=end.last_sequence {
        let Some(frame) = frames.read_at(offset, sequence..=sequence)? else {
            return Err(io::Error::other(format!("{name} has changed since it was read")).into());
        };
        if sequence > durable {
            file.write_at(offset, frame.bytes)?;
        }
        offset = frame.end;
    }
    Ok(file.sync()?)
}

fn remove_after_end<D: Disk>(disk: &D, recovered: &Recovered, kept: u64) -> Result<(), WalError> {
    let beyond = (Bound::Excluded(kept), Bound::Unbounded);
    let renamed = recovered.data_loss().and(Some(recovered.segments.last().map_or(0, |link| link.header.number)));
    let mut removed = false;
    for number in recovered.names.segments.range(beyond) {
        if renamed.is_none_or(|broken| *number <= broken) {
            disk.remove(&segment::segment_file_name(*number))?;
            removed = true;
        }
    }
    if removed {
        disk.sync_directory()?;
    }
    Ok(())
}

/// What can be freed one day: segments of the chain by their last sequence, others have nothing that is still read.
fn removable_segments(recovered: &Recovered, kept: u64) -> VecDeque<(u64, u64)> {
    let last = |number| {
        let link = recovered.segments.iter().find(|link| link.header.number == number);
        link.map_or(0, |link| link.end.last_sequence)
    };
    recovered.names.segments.range(..=kept).map(|number| (*number, last(*number))).collect()
}
