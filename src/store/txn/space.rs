//! What can be written on a full disk.

use crate::engine::SpaceLeft;
use crate::error::{Error, ErrorKind, Result};
use crate::row::{Mutation, RowKey};
use crate::store::catalog::entries::{CATALOG_ID, LOCK_PREFIX};

/// Rejects a new name of a keyspace for which a full disk has no space: rows could not follow.
pub fn check_space_for_names(left: SpaceLeft) -> Result<()> {
    match left {
        SpaceLeft::Enough => Ok(()),
        SpaceLeft::ForDeletions | SpaceLeft::ForDrops => Err(refused(
            "no keyspace can be created or renamed until 3 MiB are free: delete rows, truncate or drop keyspaces",
        )),
    }
}

/// Rejects a write for which a full disk has no space.
pub(super) fn check_space(left: SpaceLeft, row: &RowKey, mutation: &Mutation) -> Result<()> {
    // A drop writes the catalog, which has the leases of named locks, too.
    let is_catalog = row.keyspace_id() == CATALOG_ID;
    let is_put = matches!(mutation, Mutation::Put(_));
    let is_lease = is_catalog && row.user_key().starts_with(LOCK_PREFIX.as_bytes());
    let what = match left {
        SpaceLeft::ForDeletions if is_put && !is_catalog => {
            "nothing can be put until 3 MiB are free: delete rows, truncate or drop keyspaces"
        }
        SpaceLeft::ForDrops if !is_catalog || is_put && is_lease => {
            "nothing can be put, and rows cannot be deleted, until 3 MiB are free: truncate or drop keyspaces"
        }
        _ => return Ok(()),
    };
    Err(refused(what))
}

fn refused(what: &str) -> Error {
    ErrorKind::Io(format!("the disk was full when the store was opened: {what}, or free space on the disk")).into()
}
