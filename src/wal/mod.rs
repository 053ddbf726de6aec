//! The write-ahead log (WAL). A crash leaves a prefix of it that has every acknowledged frame.
//!
//! ```text
//! append → one frame, one write                   survives the end of the process
//! sync   → fdatasync, the durable sequence rises  survives a power cut: commits are acknowledged
//! remove → segments up to the flushed sequence of the tables
//! ```
//!
//! The log is a chain of [segments](segment); each is a file of [frames](frame). One thread
//! [writes](writer), any thread [syncs](handle). Opening has two steps: [recovery] reads the log
//! and changes nothing, and [resuming](mod@resume) makes it writable.
//!
//! # Torn tail or data loss
//!
//! Recovery reads up to the first place where no valid frame follows, the break. A break has two
//! possible causes:
//!
//! - A power cut tore what was being written. Nothing acknowledged is missing, and the rest is
//!   dropped.
//! - The medium damaged what was durable. Opening returns an error, and the operator decides.
//!
//! A checksum cannot distinguish the two. A *durability proof* can: every frame and every segment
//! header carries the sequence that was durable when it was written. If anything valid beyond the
//! break carries a durable sequence at or above the first missing one, the break is [data
//! loss](DataLoss); otherwise it is a torn tail. A needed segment that is missing, or a log that
//! ends below the flushed sequence of the tables, is data loss too.
//!
//! # What cannot be detected
//!
//! *Damage without a proof.* Frames that were synced after the last frame was written have no
//! durability proof; damage to them looks like a torn tail. Under load that is the last commit
//! group. In an idle log it is no frame, once a [no-op frame](WalWriter::append_noop) is written:
//! an empty frame with the sequence that the last sync made durable. Damage to the no-op frame
//! itself costs nothing.
//!
//! *Damage to both headers.* A segment's header is stored twice, in two blocks. If both are
//! damaged, the segment's frames cannot be checked. Without a later segment as proof, the log then
//! ends with the segment before.
//!
//! *A tail of zeros.* Several sectors of zeros look like blocks that were never written; they count
//! as torn.
//!
//! # Order of names, headers and frames
//!
//! - A frame is written only to a file whose name is durable.
//! - A rotated segment's header is not yet durable when its first frames are written. Nothing is
//!   acknowledged before a sync of the older segment and then of this one.
//! - The header of an incarnation's first segment is durable before that incarnation acknowledges
//!   anything.
//! - A segment is removed only when the header of a later one is durable, so recovery always finds
//!   a header to start from.

mod frame;
mod handle;
mod loss_scan;
mod quarantine;
mod recovery;
mod resume;
mod segment;
#[cfg(test)]
#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "the numbers here are small")]
mod tests;
mod writer;

use std::fmt;
use std::io;
use std::sync::Arc;

pub use frame::{FRAME_HEADER_BYTES, FrameBuffer, PAYLOAD_MAX_BYTES};
pub use handle::WalHandle;
pub use quarantine::accepted_data_losses;
pub use recovery::{Recovered, oldest_segment, recover};
pub use resume::{create, resume};
pub use writer::WalWriter;

/// Whether a file with this name is a segment.
pub fn is_segment_name(name: &str) -> bool {
    segment::parse_segment_number(name).is_some()
}

/// Errors of the write-ahead log.
#[derive(Debug, thiserror::Error)]
pub enum WalError {
    /// Reading or resuming the log failed, or removing a segment; the log is not poisoned.
    #[error("cannot read, resume or trim the write-ahead log: {0}")]
    Io(#[from] io::Error),
    /// A write or sync failed. Nothing succeeds until the log is opened again, and only recovery
    /// shows what is left.
    #[error("a write or sync of the write-ahead log failed: {0}")]
    Failed(Arc<io::Error>),
    /// The directory has a segment of another store.
    #[error("{file} belongs to another store ({wal_id:016x})")]
    WrongStore {
        /// The segment's file name.
        file: String,
        /// The WAL id in its header.
        wal_id: u64,
    },
    /// A newer version wrote this segment.
    #[error("{file} has format {format}, but this version supports formats up to {supported}")]
    UnsupportedFormat {
        /// The segment's file name.
        file: String,
        /// Its format.
        format: u32,
        /// The newest format that this version supports.
        supported: u32,
    },
    /// Acknowledged frames are missing.
    #[error("{0}")]
    DataLoss(Box<DataLoss>),
    /// The payload is too long, or the sequence numbers are used up. Nothing was written.
    #[error("the payload of a log frame exceeds {PAYLOAD_MAX_BYTES} bytes, or the sequence numbers are used up")]
    PayloadTooLarge,
}

/// Acknowledged frames that are missing or cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataLoss {
    /// The segment with the break, or the one that is missing.
    pub segment: String,
    /// Offset of the break in the segment, in bytes.
    pub offset: u64,
    /// Sequence of the first missing frame.
    pub first_missing: u64,
    /// The log was durable at least up to this sequence. It is below `first_missing` if damage is
    /// certain but its extent is not.
    pub durable_sequence: u64,
    /// Valid frames beyond the break. They cannot be applied without the missing ones.
    pub intact_frames: u64,
    /// Bytes of those frames.
    pub intact_bytes: u64,
    /// Identifies this loss; the same each time the log is read.
    pub fingerprint: u64,
}

impl fmt::Display for DataLoss {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            segment,
            offset,
            first_missing: first,
            durable_sequence: durable,
            intact_frames: frames,
            intact_bytes: bytes,
            fingerprint,
        } = self;
        write!(formatter, "the write-ahead log is damaged in {segment} at offset {offset}: ")?;
        if durable < first {
            write!(formatter, "frames from {first} on may have been durable and cannot be read")?;
        } else {
            write!(formatter, "frames {first} to {durable} were durable and cannot be read")?;
        }
        write!(formatter, "; {frames} valid frames ({bytes} bytes) remain beyond it (loss {fingerprint:016x})")
    }
}
