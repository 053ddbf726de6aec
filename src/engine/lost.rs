//! Commits that were lost from the log, and given up.

use std::fmt;
use std::path::PathBuf;

/// Acknowledged commits that were lost from the log, and without which the store was opened: see
/// [`Builder::accept_data_loss`](crate::Builder::accept_data_loss).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DataLoss {
    /// What was kept of the damaged segment; later ones lie beside it.
    pub file: PathBuf,
    /// Where in it the damage begins, in bytes.
    pub offset: u64,
    /// How many bytes of whole batches lie beyond it, in this segment and in later ones.
    pub lost_bytes: u64,
    /// Names the loss.
    pub fingerprint: u64,
}

impl fmt::Display for DataLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, offset, lost_bytes: bytes, fingerprint } = self;
        write!(
            f,
            "acknowledged commits were lost from the log and given up (loss {fingerprint:016x}): damage in {} at byte {offset}, and \
             {bytes} bytes of whole batches beyond it that are not read",
            file.display()
        )
    }
}
