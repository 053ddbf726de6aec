//! The write-ahead log: what a power cut leaves of it is a prefix, and everything that was acknowledged.
//!
//! ```text
//! append → one frame, one write       the kernel has it; the process may die
//! sync   → fdatasync, durable moves   a power cut may come; acknowledge
//! free   → segments below a position that the tables have made durable
//! ```
//!
//! The log is a chain of [segments](segment), each a file of [frames](frame). One thread at a time [writes](writer), any thread
//! [syncs](handle). Opening has two steps: [reading](recovery), which changes nothing, and [beginning](resume) a life.
//!
//! # Torn and lost
//!
//! A break in the log has two possible causes. A power cut tears what is being written: nothing acknowledged is missing, and the rest
//! is dropped. Or the medium damages what was durable: then opening returns an error, and the operator decides. A checksum cannot
//! tell the two apart. A witness can: every frame and every header carries the sequence that was durable when it was written. If
//! anything whole beyond the break carries a durable sequence at or above the missing one, the break is a [loss](DataLoss); otherwise it
//! is torn. A needed segment that is gone, or a log that ends below what the tables have, is a loss too.
//!
//! # What cannot be known
//!
//! *The end without a witness.* Frames that were synced after the last frame had been written have no witness; damage to them looks
//! like a tear. Under load that is the last group of commits, when idle it is nothing once a [mark](WalWriter::append_noop) is
//! written: an empty frame with the sequence that the last sync made durable. Damage to the mark itself costs nothing.
//!
//! *A life without a header.* A segment's header stands in two blocks. If both are damaged its frames cannot be checked, and
//! without a later segment as a witness the log ends with the segment before.
//!
//! *A tail of whole length.* Several sectors of zeros look like blocks that were never written; they count as torn.
//!
//! # Order of names, headers and frames
//!
//! A frame is written only to a file whose name is durable. A rotated segment's header is not yet durable when its first frames are
//! written: nothing is acknowledged before a sync of the older segment and then of this one. The header of a life's first segment
//! is durable before the life acknowledges anything. And a segment is freed only when the header of a later one is durable, so there
//! is always one to begin at.

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

/// Why the log refuses.
#[derive(Debug, thiserror::Error)]
pub enum WalError {
    /// A call failed outside of a life; it can be tried again.
    #[error("the log cannot be read or begun: {0}")]
    Io(#[from] io::Error),
    /// A write or sync failed; only a new life can tell what is left.
    #[error("the log has failed: {0}")]
    Failed(Arc<io::Error>),
    /// The folder has a segment of another store.
    #[error("{file} belongs to another store ({wal_id:016x})")]
    WrongStore {
        /// The segment.
        file: String,
        /// The identity that it names.
        wal_id: u64,
    },
    /// A newer version has written here.
    #[error("{file} has format {format}, and this version knows formats up to {supported}")]
    UnsupportedFormat {
        /// The segment.
        file: String,
        /// Its format.
        format: u32,
        /// The newest known here.
        supported: u32,
    },
    /// Acknowledged frames are missing.
    #[error("{0}")]
    DataLoss(Box<DataLoss>),
    /// A frame is too long, or there are no more sequences. Nothing was written.
    #[error("a frame has at most {PAYLOAD_MAX_BYTES} bytes")]
    PayloadTooLarge,
}

/// Frames that were durable and cannot be read any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataLoss {
    /// The segment that breaks, or that is not there.
    pub segment: String,
    /// Where in it.
    pub offset: u64,
    /// The first sequence that is missing.
    pub first_missing: u64,
    /// The log was durable at least up to this sequence; below `first` if damage is certain and what it cost is not.
    pub durable_sequence: u64,
    /// Later frames that are whole, and of no use without what is missing.
    pub intact_frames: u64,
    /// Their bytes.
    pub intact_bytes: u64,
    /// Names this loss; the same each time that it is looked at.
    pub fingerprint: u64,
}

impl fmt::Display for DataLoss {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            segment: file,
            offset,
            first_missing: first,
            durable_sequence: durable,
            intact_frames: frames,
            intact_bytes: bytes,
            fingerprint,
        } = self;
        write!(formatter, "the log is damaged in {file} at {offset}: ")?;
        if durable < first {
            write!(formatter, "what was durable from frame {first} on, if anything was, cannot be read")?;
        } else {
            write!(formatter, "frames {first} to {durable} were durable and cannot be read")?;
        }
        write!(formatter, "; beyond it {frames} whole frames ({bytes} bytes) remain (loss {fingerprint:016x})")
    }
}
