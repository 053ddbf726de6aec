//! What the disk of a store has space for.

use serde::{Deserialize, Serialize};

/// What the disk of a store has space for. A store that was opened on a full disk allows deletions
/// only, until there is space again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SpaceLeft {
    /// Everything can be written.
    #[default]
    Enough,
    /// Rows can be deleted, and keyspaces truncated and dropped.
    ForDeletions,
    /// Keyspaces can be truncated and dropped.
    ForDrops,
}

impl SpaceLeft {
    /// Everything can be written again when this many bytes are free.
    #[cfg(feature = "rocks")]
    pub(crate) const ENOUGH_BYTES: u64 = 3 << 20;
}
