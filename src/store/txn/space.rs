//! What can be written on a full disk.

use crate::engine::SpaceLeft;
use crate::error::{Error, Result};
use crate::row::RowKey;
use crate::store::catalog::entries::{CATALOG_ID, LOCK_PREFIX};

/// Rejects a new name of a keyspace for which a full disk has no space: rows could not follow.
pub fn check_space_for_names(left: SpaceLeft) -> Result<()> {
    match left {
        SpaceLeft::Enough => Ok(()),
        SpaceLeft::ForDeletions | SpaceLeft::ForDrops => Err(Error::full_disk(
            "no keyspace can be created or renamed until 3 MiB are free: delete rows, truncate or drop keyspaces",
        )),
    }
}

/// Rejects a put on a full disk. The commit would take space that only deletions may take; what
/// they may take is checked when they are [committed](crate::pipeline).
pub(super) fn check_put(left: SpaceLeft, row: &RowKey) -> Result<()> {
    // A drop writes the catalog, which has the leases of named locks, too.
    let is_catalog = row.keyspace_id() == CATALOG_ID;
    let is_lease = is_catalog && row.user_key().starts_with(LOCK_PREFIX.as_bytes());
    match left {
        SpaceLeft::ForDeletions if !is_catalog => {}
        SpaceLeft::ForDrops if !is_catalog || is_lease => {}
        _ => return Ok(()),
    }
    Err(Error::full_disk("nothing can be put until 3 MiB are free: delete rows, truncate or drop keyspaces"))
}
