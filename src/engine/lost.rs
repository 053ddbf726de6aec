//! What a log holds and nobody reads.

use std::fmt;
use std::path::PathBuf;

/// A damaged record in the log with whole ones behind it: see [`Store::lost_logs`](crate::Store::lost_logs).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostLog {
    /// The log, or what was kept of it.
    pub file: PathBuf,
    /// Where in it the damage begins, in bytes.
    pub offset: u64,
    /// How many bytes of whole records lie behind, in this log and in later ones.
    pub bytes: u64,
}

impl fmt::Display for LostLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, offset, bytes } = self;
        write!(
            f,
            "a record in the log is damaged ({}, byte {offset}), and what was written behind it, {bytes} bytes, is not read: after \
             a power cut these are commits that nobody was told are durable; otherwise acknowledged ones may be among them",
            file.display()
        )
    }
}
