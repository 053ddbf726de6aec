//! The log's writing half, of which there is one.
//!
//! A batch is one frame and one write. Once [`append`](WalWriter::append) has returned, the kernel has it, and the end of the process
//! costs nothing; a power cut may until a [sync](super::WalHandle::sync).
//!
//! Each frame carries the sequence that was durable when it was written, so that a later reader knows of frames that must be
//! there. The newest acknowledged frames have no later one, until a [mark](WalWriter::append_noop) follows: an empty frame.

use std::fmt;
use std::sync::Arc;

use super::frame::{FrameBuffer, PAYLOAD_MAX_BYTES, frame_end};
use super::handle::{WalHandle, WalShared};
use super::segment::{self, SegmentEnd, SegmentHeader};
use super::{WalError, frame};
use crate::disk::{Disk, DiskFile};

/// The log of a life, to be written.
pub struct WalWriter<D: Disk> {
    shared: Arc<WalShared<D>>,
    file: Arc<D::File>,
    header: SegmentHeader,
    end: SegmentEnd,
    /// Up to here the file has blocks.
    preallocated_to: u64,
    /// The durable sequence that is written down.
    recorded_durable_sequence: u64,
    /// The last frame that is no mark.
    last_payload_sequence: u64,
}

impl<D: Disk> fmt::Debug for WalWriter<D> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Log").field("header", &self.header).field("end", &self.end).finish_non_exhaustive()
    }
}

impl<D: Disk> WalWriter<D> {
    /// A segment without frames, durable as it is.
    pub(super) fn new(shared: WalShared<D>, file: Arc<D::File>, header: SegmentHeader) -> Self {
        Self {
            shared: Arc::new(shared),
            file,
            header,
            end: header.empty_end(),
            preallocated_to: segment::PREALLOCATION_BYTES,
            recorded_durable_sequence: header.durable_sequence,
            last_payload_sequence: header.empty_end().last_sequence,
        }
    }

    /// A handle for syncs, and what else other threads do.
    pub fn handle(&self) -> WalHandle<D> {
        WalHandle::new(Arc::clone(&self.shared))
    }

    /// The sequence of the last frame.
    pub fn last_sequence(&self) -> u64 {
        self.end.last_sequence
    }

    /// Bytes of the segment being written.
    #[cfg(test)]
    pub fn segment_bytes(&self) -> u64 {
        self.end.offset
    }

    /// Writes the frame after the last, and returns its sequence. The frame stays the caller's, as it was written.
    pub fn append(&mut self, frame: &mut FrameBuffer) -> Result<u64, WalError> {
        let sequence = self.append_frame(frame)?;
        self.last_payload_sequence = sequence;
        Ok(sequence)
    }

    fn append_frame(&mut self, frame: &mut FrameBuffer) -> Result<u64, WalError> {
        self.shared.ensure_ok()?;
        let length = frame.payload_len();
        let (SegmentEnd { offset, last_sequence: last, .. }, durable) = (self.end, self.shared.durable());
        let sequence = last.checked_add(1).ok_or(WalError::PayloadTooLarge)?;
        let end = frame_end(offset, length).filter(|_| length <= PAYLOAD_MAX_BYTES).ok_or(WalError::PayloadTooLarge)?;
        if end > self.preallocated_to {
            self.preallocated_to = segment::preallocate(&*self.file, self.preallocated_to.max(end), end)
                .map_err(|why| self.shared.record_failure(why))?;
        }
        let bytes = frame.seal(self.header.salt, offset, sequence, durable);
        self.file.write_at(offset, bytes).map_err(|why| self.shared.record_failure(why))?;
        (self.end.offset, self.end.last_sequence, self.recorded_durable_sequence) = (end, sequence, durable);
        self.shared.set_written_sequence(sequence);
        Ok(sequence)
    }

    /// Writes an empty frame with the durable sequence, unless that is written down as far as there is anything to lose; returns
    /// the frame's sequence. A mark itself needs no other.
    pub fn append_noop(&mut self) -> Result<Option<u64>, WalError> {
        self.shared.ensure_ok()?;
        if self.recorded_durable_sequence == self.shared.durable()
            || self.recorded_durable_sequence >= self.last_payload_sequence
        {
            return Ok(None);
        }
        self.append_frame(&mut FrameBuffer::default()).map(Some)
    }

    /// Ends the segment, and begins the next with this salt.
    ///
    /// The next segment's name is durable by now, its header need not be: the next sync covers both segments, the older first, and
    /// until then nothing is acknowledged that depends on it.
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
        };
        file.write_at(0, &header.encode()).map_err(|why| self.shared.record_failure(why))?;
        self.shared.switch_segment(self.end.last_sequence, number, Arc::clone(&file));
        (self.file, self.header, self.end) = (file, header, header.empty_end());
        self.preallocated_to = segment::PREALLOCATION_BYTES;
        self.recorded_durable_sequence = header.durable_sequence;
        Ok(())
    }
}

const _: () = assert!(
    segment::FRAMES_OFFSET.is_multiple_of(frame::ALIGNMENT) && segment::FRAMES_OFFSET < segment::PREALLOCATION_BYTES
);
