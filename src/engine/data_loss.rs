//! Accepted data losses: acknowledged commits that the write-ahead log has lost.

use std::fmt;
use std::path::PathBuf;

/// A loss of acknowledged commits that was accepted, so that the store could be opened: see
/// [`Builder::accept_data_loss`](crate::Builder::accept_data_loss).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DataLoss {
    /// The quarantined copy of the damaged segment. Later segments are quarantined in the same
    /// directory.
    pub file: PathBuf,
    /// The offset at which the damage begins in that segment, in bytes.
    pub offset: u64,
    /// The size of the intact batches after the damage, in the damaged segment and later ones, in
    /// bytes. The store does not read these batches.
    pub lost_bytes: u64,
    /// The number that identifies the loss.
    pub fingerprint: u64,
}

impl fmt::Display for DataLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, offset, lost_bytes: bytes, fingerprint } = self;
        write!(
            f,
            "acknowledged commits were lost and the loss was accepted (loss {fingerprint:016x}): damage in {} at byte {offset}; \
             {bytes} bytes of intact batches after it are not read",
            file.display()
        )
    }
}
