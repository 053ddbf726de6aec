//! Resuming: the first writes of an incarnation to a log that recovery has read.
//!
//! The order, each step durable before the next:
//!
//! 1. *Rewrite the tail.* After a kill the newest frames may be in the kernel's memory only. A sync
//!    alone is not enough: if a sync failed in the incarnation before, the kernel counts the pages
//!    of these frames as clean, and the next sync writes nothing. So the frames without a
//!    durability proof are written again, the same bytes in the same place, and then synced, older
//!    segments first.
//! 2. *Create the new segment.* Its file and name are durable before its header is written. The
//!    header names the end of what was read. From then on nothing beyond that end is read, so valid
//!    frames after a torn one stay dropped. This incarnation appends only to the new segment and
//!    later ones.
//! 3. *Remove what is beyond the end.* Segments beyond the end are not part of the log, and
//!    recovery must not find them again if the headers of this incarnation are damaged.
//!
//! **On a full disk** an opening must not take space for good. So step 2 is left out if the newest
//! segment can take more frames: then the end of that segment is overwritten with zeros, and this
//! incarnation goes on in it.
//!
//! A crash between two steps leaves the log as recovery has read it, or as it is after the last
//! step.
//!
//! **Accepting data loss.** The caller passes the fingerprint of the loss, so it accepts exactly
//! the loss that was reported. Before the first step, the segments that the loss affects are
//! [quarantined](super::quarantine). A crash during the quarantine leaves the same loss with the
//! same fingerprint, because recovery [scans](super::loss_scan) quarantined segments, too.

use std::collections::VecDeque;
use std::io;
use std::ops::Bound;
use std::sync::Arc;

use super::error::WalError;
use super::frame::FrameReader;
use super::handle::{WalShared, create_segment};
use super::quarantine::quarantine;
use super::recovery::{Recovered, RecoveredSegment};
use super::segment::{self, FRAMES_OFFSET, SegmentHeader};
use super::segment_list::SegmentList;
use super::sync_record::SyncRecordFile;
use super::writer::WalWriter;
use crate::disk::{Disk, DiskFile};

/// Makes the log that was [read](super::recover) writable; the directory must be unchanged since.
/// `salt` is a random number. `accept` is the fingerprint of an accepted data loss.
pub fn resume<D: Disk>(
    disk: D,
    recovered: &Recovered,
    salt: u64,
    accept: Option<u64>,
) -> Result<WalWriter<D>, WalError> {
    if let Some(loss) = recovered.data_loss() {
        if accept != Some(loss.fingerprint) {
            return Err(WalError::DataLoss(Box::new(loss.clone())));
        }
        quarantine(&disk, recovered, loss)?;
    }
    let number = next_number(recovered);
    if number > segment::SEGMENT_NUMBER_MAX / 2 {
        let last = segment::segment_file_name(number - 1);
        return Err(io::Error::other(format!("the number of segment file {last} is out of range")).into());
    }
    let end = recovered.log_end();
    let kept = end.map_or(0, |end| end.number);
    for link in recovered.segments.iter().filter(|link| link.header.number <= kept) {
        rewrite_tail(&disk, link, recovered.durable_sequence)?;
    }
    let sync_record = SyncRecordFile::open(&disk, recovered.wal_id, recovered.names.has_sync_record)?;
    if disk.is_full()
        && let Some(link) = segment_to_go_on_in(&disk, recovered)?
    {
        return go_on(disk, recovered, link, sync_record);
    }
    let header = SegmentHeader {
        number,
        salt,
        wal_id: recovered.wal_id,
        first_sequence: recovered.last_sequence().checked_add(1).ok_or(WalError::PayloadTooLarge)?,
        predecessor: end,
        durable_sequence: recovered.last_sequence(),
        durable_file_bytes: disk.preallocation_step(),
    };
    if recovered.names.segments.contains(&number) {
        disk.remove(&segment::segment_file_name(number))?;
    }
    let file = Arc::new(create_segment(&disk, number)?);
    file.write_at(0, &header.encode())?;
    file.sync()?;
    crash_point!(WalResumed);
    remove_after_end(&disk, recovered, kept, number)?;
    let (older, step) = (removable_segments(recovered, kept), disk.preallocation_step());
    let shared = WalShared::new(disk, header.empty_end(), Arc::clone(&file), older, sync_record);
    Ok(WalWriter::new(shared, file, (header, header.empty_end(), step)))
}

/// The newest segment, if this incarnation can go on in it: it has frames, nothing but a spare
/// segment is beyond it, and its file ends with the preallocation step in which its frames end. A
/// longer file may have holes, which would take space to be filled.
fn segment_to_go_on_in<'a, D: Disk>(disk: &D, recovered: &'a Recovered) -> io::Result<Option<&'a RecoveredSegment>> {
    let Some(link) = recovered.segments.last().filter(|_| recovered.data_loss().is_none()) else { return Ok(None) };
    let RecoveredSegment { header, end } = link;
    let newest = recovered.names.newest();
    if end.last_sequence < header.first_sequence || newest != header.number && recovered.spare != Some(newest) {
        return Ok(None);
    }
    let bytes = disk.open(&segment::segment_file_name(header.number))?.len()?;
    Ok((bytes <= end.offset.next_multiple_of(disk.preallocation_step())).then_some(link))
}

/// Goes on in this segment. What is beyond its frames is overwritten with zeros, durably, before
/// the first frame is written: valid frames after a torn one must stay dropped.
fn go_on<D: Disk>(
    disk: D,
    recovered: &Recovered,
    &RecoveredSegment { header, end }: &RecoveredSegment,
    sync_record: SyncRecordFile<D::File>,
) -> Result<WalWriter<D>, WalError> {
    let file = Arc::new(disk.open_writable(&segment::segment_file_name(header.number))?);
    let preallocated_to = segment::preallocate(&*file, disk.preallocation_step(), end.offset, end.offset - 1)?;
    file.sync()?;
    disk.sync_directory()?;
    remove_after_end(&disk, recovered, header.number, u64::MAX)?;
    let older = removable_segments(recovered, header.number.saturating_sub(1));
    let shared = WalShared::new(disk, end, Arc::clone(&file), older, sync_record);
    Ok(WalWriter::new(shared, file, (header, end, preallocated_to)))
}

/// Creates the log of a new store, or of a checkpoint whose tables have everything up to the
/// flushed sequence.
pub fn create<D: Disk>(disk: D, wal_id: u64, flushed_sequence: u64, salt: u64) -> Result<WalWriter<D>, WalError> {
    resume(disk, &Recovered::new(wal_id, SegmentList::default(), flushed_sequence), salt, None)
}

fn rewrite_tail<D: Disk>(disk: &D, link: &RecoveredSegment, durable: u64) -> Result<(), WalError> {
    let RecoveredSegment { header, end } = link;
    if header.first_sequence <= durable && end.last_sequence <= durable {
        return Ok(());
    }
    let name = segment::segment_file_name(header.number);
    let file = disk.open_writable(&name)?;
    if header.first_sequence > durable {
        file.write_at(0, &header.encode())?;
    }
    let mut frames = FrameReader::new(&file, header.salt, Some(end.offset))?;
    let mut offset = FRAMES_OFFSET;
    for sequence in header.first_sequence..=end.last_sequence {
        let Some(frame) = frames.read_at(offset, sequence..=sequence)? else {
            return Err(io::Error::other(format!("{name} has changed since recovery read it")).into());
        };
        if sequence > durable {
            file.write_at(offset, frame.bytes)?;
        }
        offset = frame.end;
    }
    Ok(file.sync()?)
}

/// The number of the new segment: that of the newest one if it is spare, and will be replaced;
/// otherwise the next. A spare segment is not kept beside the new one, because its name and content
/// may not be durable; see [`file_check`](super::file_check).
fn next_number(recovered: &Recovered) -> u64 {
    let after = recovered.names.newest().max(recovered.sync_record.map_or(0, |record| record.segment));
    let spare = recovered.spare.filter(|spare| *spare == after && recovered.data_loss().is_none());
    spare.unwrap_or(after.saturating_add(1))
}

fn remove_after_end<D: Disk>(disk: &D, recovered: &Recovered, kept: u64, new: u64) -> Result<(), WalError> {
    let beyond = (Bound::Excluded(kept), Bound::Excluded(new));
    // If a loss was accepted, the quarantine has renamed all segments after the one with the break.
    // So of the segments beyond the end only those up to that one are removed.
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

/// Segments that can be removed later, with their last sequence. A segment that recovery has not
/// read gets 0 as its last sequence, so that it can be removed at any time.
fn removable_segments(recovered: &Recovered, kept: u64) -> VecDeque<(u64, u64)> {
    let last = |number| {
        let link = recovered.segments.iter().find(|link| link.header.number == number);
        link.map_or(0, |link| link.end.last_sequence)
    };
    recovered.names.segments.range(..=kept).map(|number| (*number, last(*number))).collect()
}
