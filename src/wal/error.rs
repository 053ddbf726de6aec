//! Errors of the log.

use std::fmt;
use std::io;
use std::sync::Arc;

use super::file_damage::FileDamage;
use super::frame::PAYLOAD_MAX_BYTES;

/// Errors of the write-ahead log.
#[derive(Debug, thiserror::Error)]
pub enum WalError {
    /// The log could not be read or resumed, or a segment could not be removed. Later calls may
    /// succeed.
    #[error("the write-ahead log: {0}")]
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
    /// The segment has another format.
    #[error("{file} has format {format}, this program reads format {supported}")]
    UnsupportedFormat {
        /// The segment's file name.
        file: String,
        /// The segment's format.
        format: u32,
        /// The format that this program reads.
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
    /// The segment with the break. If recovery could not read any segment: the missing one or, if
    /// none is missing, the oldest.
    pub segment: String,
    /// Offset of the break in that segment, in bytes; 0 if recovery could not read any segment.
    pub offset: u64,
    /// The damaged file, if a whole file shows the loss. Not known of a loss that was accepted
    /// earlier.
    pub cause: Option<FileDamage>,
    /// Sequence of the first missing frame.
    pub first_missing: u64,
    /// The highest sequence that is proven to have been durable. If it is at or above
    /// `first_missing`, the frames from `first_missing` up to it were durable and are lost. If it
    /// is below, it is unknown which missing frames were durable: the loss is reported because a
    /// needed segment is missing or has no valid header, or because the log ends below the flushed
    /// sequence of the tables.
    pub durable_sequence: u64,
    /// Valid frames beyond the break. They cannot be applied without the missing frames before
    /// them.
    pub intact_frames: u64,
    /// Bytes of the intact frames.
    pub intact_bytes: u64,
    /// Identifies this loss; the same each time the log is read.
    pub fingerprint: u64,
}

impl fmt::Display for DataLoss {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            segment,
            offset,
            cause,
            first_missing: first,
            durable_sequence: durable,
            intact_frames: frames,
            intact_bytes: bytes,
            fingerprint,
        } = self;
        write!(formatter, "the write-ahead log is damaged in {segment} at offset {offset}: ")?;
        if let Some(cause) = cause {
            write!(formatter, "{cause}; ")?;
        }
        if durable < first {
            write!(formatter, "frames from {first} on may have been durable and cannot be read")?;
        } else {
            write!(formatter, "frames {first} to {durable} were durable and cannot be read")?;
        }
        write!(formatter, "; {frames} valid frames ({bytes} bytes) remain beyond it (loss {fingerprint:016x})")
    }
}
