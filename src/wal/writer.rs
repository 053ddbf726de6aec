//! The log's writing half, of which there is one.
//!
//! A batch is one frame and one write. Once [`append`](Log::append) has returned, the kernel has it, and the end of the process
//! costs nothing; a power cut may until a [sync](super::Syncer::sync).
//!
//! Each frame carries the sequence that was durable when it was written, so that a later reader knows of frames that must be
//! there. The newest acknowledged frames have no later one, until a [mark](Log::mark) follows: an empty frame.

use std::fmt;
use std::sync::Arc;

use super::frame::{FrameBuffer, PAYLOAD_MAX_BYTES, end_of};
use super::handle::{Shared, Syncer};
use super::segment::{self, End, Header};
use super::{Error, frame};
use crate::disk::{Disk, DiskFile};

/// The log of a life, to be written.
pub struct Log<D: Disk> {
    shared: Arc<Shared<D>>,
    file: Arc<D::File>,
    header: Header,
    end: End,
    /// Up to here the file has blocks.
    filled: u64,
    /// The durable sequence that is written down.
    witnessed: u64,
    /// The last frame that is no mark.
    content: u64,
}

impl<D: Disk> fmt::Debug for Log<D> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Log").field("header", &self.header).field("end", &self.end).finish_non_exhaustive()
    }
}

impl<D: Disk> Log<D> {
    /// A segment without frames, durable as it is.
    pub(super) fn new(shared: Shared<D>, file: Arc<D::File>, header: Header) -> Self {
        Self {
            shared: Arc::new(shared),
            file,
            header,
            end: header.start(),
            filled: segment::STEP_BYTES,
            witnessed: header.durable,
            content: header.start().last,
        }
    }

    /// A handle for syncs, and what else other threads do.
    pub fn syncer(&self) -> Syncer<D> {
        Syncer::new(Arc::clone(&self.shared))
    }

    /// The sequence of the last frame.
    pub fn last(&self) -> u64 {
        self.end.last
    }

    /// Bytes of the segment being written.
    #[cfg(test)]
    pub fn segment_bytes(&self) -> u64 {
        self.end.offset
    }

    /// Writes the frame after the last, and returns its sequence. The frame stays the caller's, as it was written.
    pub fn append(&mut self, frame: &mut FrameBuffer) -> Result<u64, Error> {
        let sequence = self.append_frame(frame)?;
        self.content = sequence;
        Ok(sequence)
    }

    fn append_frame(&mut self, frame: &mut FrameBuffer) -> Result<u64, Error> {
        self.shared.check()?;
        let length = frame.len();
        let (End { offset, last, .. }, durable) = (self.end, self.shared.durable());
        let sequence = last.checked_add(1).ok_or(Error::Full)?;
        let end = end_of(offset, length).filter(|_| length <= PAYLOAD_MAX_BYTES).ok_or(Error::Full)?;
        if end > self.filled {
            self.filled = segment::fill(&*self.file, self.filled.max(end), end).map_err(|why| self.shared.fail(why))?;
        }
        let bytes = frame.seal(self.header.salt, offset, sequence, durable);
        self.file.write_at(offset, bytes).map_err(|why| self.shared.fail(why))?;
        (self.end.offset, self.end.last, self.witnessed) = (end, sequence, durable);
        self.shared.set_written(sequence);
        Ok(sequence)
    }

    /// Writes an empty frame with the durable sequence, unless that is written down as far as there is anything to lose; returns
    /// the frame's sequence. A mark itself needs no other.
    pub fn mark(&mut self) -> Result<Option<u64>, Error> {
        self.shared.check()?;
        if self.witnessed == self.shared.durable() || self.witnessed >= self.content {
            return Ok(None);
        }
        self.append_frame(&mut FrameBuffer::default()).map(Some)
    }

    /// Ends the segment, and begins the next with this salt.
    ///
    /// The next segment's name is durable by now, its header need not be: the next sync covers both segments, the older first, and
    /// until then nothing is acknowledged that depends on it.
    pub fn rotate(&mut self, salt: u64) -> Result<(), Error> {
        self.shared.check()?;
        let (number, file) = self.shared.take_next()?;
        let header = Header {
            number,
            salt,
            identity: self.header.identity,
            first: self.end.last.checked_add(1).ok_or(Error::Full)?,
            predecessor: Some(self.end),
            durable: self.shared.durable(),
        };
        file.write_at(0, &header.encode()).map_err(|why| self.shared.fail(why))?;
        self.shared.switch(self.end.last, number, Arc::clone(&file));
        (self.file, self.header, self.end) = (file, header, header.start());
        self.filled = segment::STEP_BYTES;
        self.witnessed = header.durable;
        Ok(())
    }
}

const _: () = assert!(segment::FRAMES_AT.is_multiple_of(frame::ALIGNMENT) && segment::FRAMES_AT < segment::STEP_BYTES);
