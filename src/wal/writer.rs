//! The single writer of the log.
//!
//! A batch is one frame and one write. Once [`append`](WalWriter::append) has returned, the frame
//! is in the kernel's page cache and survives the end of the process. It survives a power cut once
//! a [sync](super::WalHandle::sync) has covered it.
//!
//! Each frame carries the sequence that was durable when it was written. This proves to recovery
//! which earlier frames must exist. The newest acknowledged frames have no such proof until another
//! frame is written. If no batch follows, the [sync record](super::sync_record) is the proof.

use std::sync::Arc;
use std::{fmt, io};

use super::frame::{FrameBuffer, PAYLOAD_MAX_BYTES, frame_end};
use super::handle::{WalHandle, WalShared};
use super::segment::{self, SegmentEnd, SegmentHeader};
use super::{WalError, frame};
use crate::disk::{Disk, DiskFile, truncated_error};
use crate::tunables::PREALLOCATION_STEP_ON_FULL_DISK;

/// The single writer of an incarnation's log.
pub struct WalWriter<D: Disk> {
    shared: Arc<WalShared<D>>,
    file: Arc<D::File>,
    header: SegmentHeader,
    end: SegmentEnd,
    /// The file is preallocated up to this offset.
    preallocated_to: u64,
}

impl<D: Disk> fmt::Debug for WalWriter<D> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("WalWriter")
            .field("header", &self.header)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

impl<D: Disk> WalWriter<D> {
    /// A writer that goes on at the end of this segment, which is durable and preallocated up to an
    /// offset.
    pub(super) fn new(
        shared: WalShared<D>,
        file: Arc<D::File>,
        (header, end, preallocated_to): (SegmentHeader, SegmentEnd, u64),
    ) -> Self {
        Self { shared: Arc::new(shared), file, header, end, preallocated_to }
    }

    /// A handle for other threads: syncs, preallocation, removal of segments.
    pub fn handle(&self) -> WalHandle<D> {
        WalHandle::new(Arc::clone(&self.shared))
    }

    /// The sequence of the last frame.
    pub fn last_sequence(&self) -> u64 {
        self.end.last_sequence
    }

    /// Bytes of the current segment up to the end of its last frame.
    #[cfg(test)]
    pub fn segment_bytes(&self) -> u64 {
        self.end.offset
    }

    /// Appends the frame and returns its sequence. The buffer keeps the frame as it was written.
    pub fn append(&mut self, frame: &mut FrameBuffer) -> Result<u64, WalError> {
        self.shared.ensure_ok()?;
        let length = frame.payload_len();
        let (SegmentEnd { offset, last_sequence: last, .. }, durable) = (self.end, self.shared.durable());
        let sequence = last.checked_add(1).ok_or(WalError::PayloadTooLarge)?;
        let end = frame_end(offset, length).filter(|_| length <= PAYLOAD_MAX_BYTES).ok_or(WalError::PayloadTooLarge)?;
        if end > self.preallocated_to {
            self.preallocated_to = self.preallocate(end).map_err(|error| self.shared.record_failure(error))?;
        }
        let bytes = frame.seal(self.header.salt, offset, sequence, durable);
        self.file.write_at(offset, bytes).map_err(|error| self.shared.record_failure(error))?;
        (self.end.offset, self.end.last_sequence) = (end, sequence);
        self.shared.set_written_sequence(sequence);
        Ok(sequence)
    }

    /// Preallocates the file for a frame that ends at this offset. What was there must still be
    /// there: in a file that was truncated meanwhile, zeros would take the place of frames.
    fn preallocate(&self, end: u64) -> io::Result<u64> {
        if self.file.len()? < self.preallocated_to {
            return Err(truncated_error());
        }
        let from = self.preallocated_to.max(end);
        segment::preallocate(&*self.file, self.shared.preallocation_step(), from, end)
    }

    /// Ends the segment and starts the next one, with this salt.
    ///
    /// The name of the new segment's file is durable since the file was created. Its header is not
    /// durable yet, and need not be: no frame of the new segment is acknowledged before the next
    /// sync, which covers both segments, the older one first.
    pub fn rotate(&mut self, salt: u64) -> Result<(), WalError> {
        self.shared.ensure_ok()?;
        let (number, file) = self.shared.take_preallocated()?;
        let header = SegmentHeader {
            number,
            salt,
            wal_id: self.header.wal_id,
            first_sequence: self.end.last_sequence.checked_add(1).ok_or(WalError::PayloadTooLarge)?,
            predecessor: Some(self.end),
            durable_sequence: self.shared.durable(),
            durable_file_bytes: self.shared.preallocation_step(),
        };
        file.write_at(0, &header.encode()).map_err(|error| self.shared.record_failure(error))?;
        self.shared.switch_segment(self.end.last_sequence, number, Arc::clone(&file));
        (self.file, self.header, self.end) = (file, header, header.empty_end());
        self.preallocated_to = self.shared.preallocation_step();
        Ok(())
    }
}

const _: () = assert!(
    segment::FRAMES_OFFSET.is_multiple_of(frame::ALIGNMENT)
        && segment::FRAMES_OFFSET < PREALLOCATION_STEP_ON_FULL_DISK as u64
);
