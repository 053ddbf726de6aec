//! The write-ahead log (WAL). A crash leaves a prefix of the log that has every acknowledged frame.
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
//! Recovery reads up to the *break*: the first place where no valid frame follows. A break has two
//! possible causes:
//!
//! - A power cut tore what was being written. Nothing acknowledged is missing, and the rest is
//!   dropped.
//! - The medium damaged what was durable. Opening returns an error, and the operator decides.
//!
//! A checksum cannot distinguish the two causes. A *durability proof* can: every frame and every
//! segment header carries the sequence that was durable when it was written. If a valid frame or
//! header beyond the break carries a durable sequence at or above that of the first missing frame,
//! the break is [data loss](DataLoss); otherwise it is a torn tail. A needed segment that is
//! missing, or a log that ends below the flushed sequence of the tables, is data loss too.
//!
//! Frames and headers cannot prove what is after them. For the end of the log there are two more
//! proofs: the [files](file_check) of segments come and go in an order that no crash changes, and
//! the [sync record](sync_record) says outside of all segments what was durable.
//!
//! # What cannot be detected
//!
//! *Damage without a proof.* The frames of the last sync have no durability proof until another
//! frame or the sync record is written; damage to them looks like a torn tail, and so do zeros, a
//! cut or an older copy in their place. In an idle log every frame has a proof.
//!
//! *A new segment.* For some milliseconds nothing but the newest segment itself shows that the
//! segment exists. If it is lost then, or both copies of its header, the log seems to end with the
//! segment before.
//!
//! # Order of names, headers and frames
//!
//! - A header, and so a frame, is written only to a file whose name and first preallocated step are
//!   durable. A file is created only when that of the number before is in this state.
//! - A rotation starts a new segment, whose header is not yet durable when the first frames are
//!   written to the segment. A sync covers the older segment first and then the new one. Only then
//!   are these frames acknowledged.
//! - The header of an incarnation's first segment is durable before that incarnation acknowledges
//!   anything.
//! - A segment is removed only when the header of a later one is durable, so recovery always finds
//!   a header to start from.

mod error;
mod file_check;
mod file_damage;
mod frame;
mod handle;
mod loss_scan;
mod quarantine;
mod recovery;
mod resume;
mod segment;
mod segment_list;
mod sync_record;
#[cfg(test)]
#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "the numbers here are small")]
mod tests;
mod writer;

pub use error::{DataLoss, WalError};
pub use frame::{FRAME_HEADER_BYTES, FrameBuffer, PAYLOAD_MAX_BYTES};
pub use handle::WalHandle;
pub use quarantine::accepted_data_losses;
pub use recovery::{Recovered, oldest_segment, recover};
pub use resume::{create, resume};
pub use writer::WalWriter;

/// Whether a file with this name is a segment.
#[cfg(feature = "rocks")]
pub fn is_segment(name: &str) -> bool {
    segment::parse_segment_number(name).is_some()
}

/// Whether a file with this name was left by an accepted data loss.
#[cfg(feature = "rocks")]
pub fn is_of_a_loss(name: &str) -> bool {
    name.starts_with(segment::LOST)
}

/// Whether a file with this name is a segment, or the sync record.
pub fn is_log_file_name(name: &str) -> bool {
    name == sync_record::FILE_NAME || segment::parse_segment_number(name).is_some()
}
