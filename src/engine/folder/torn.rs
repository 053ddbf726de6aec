//! A manifest that a power cut has torn.
//!
//! RocksDB appends to its manifest at each flush and compaction, and syncs it before anything depends on it. A power cut before the
//! sync may leave any of the new pages, and for some of what it leaves RocksDB refuses the folder. Without the record that is not
//! whole, and what follows it, the manifest is an older one, and the log still has all that was written since.
//!
//! Was the record synced, and damaged later, then the log may not have it all, and RocksDB must not open the folder with the older
//! manifest: it would remove each table that this one does not name, which a repair needs. So a copy is tried first: its tables
//! are links, its manifest is cut, and it is opened to be read, with the log. Only what shows no loss there is cut.

use std::path::Path;

use super::{TABLES_DIR, WAL_DIR, random};
use crate::disk::OsDisk;
use crate::engine::EngineError;
use crate::engine::lsm::LsmStorage;
use crate::engine::rocks::rebuild::{ScratchDir, copy_to_scratch};
use crate::engine::rocks::{RocksOptions, RocksStorage, manifest};

/// Where the copy is made; a process that died may have left one.
const SCRATCH_DIR: &str = "tables.torn";

/// Cuts the manifest if a power cut has torn it. What is damaged otherwise is left to RocksDB, which refuses it.
pub fn truncate_torn_manifest(folder: &Path, setup: RocksOptions, identity: u64) -> Result<(), EngineError> {
    let tables = folder.join(TABLES_DIR);
    let Some(place) = manifest::find_torn_record(&tables)? else { return Ok(()) };
    let aside = folder.join(SCRATCH_DIR);
    // If it cannot be removed, it cannot be made.
    let _ = std::fs::remove_dir_all(&aside);
    let tried = open_truncated_copy(&tables, &aside, setup).and_then(|(tables, aside)| {
        LsmStorage::open_read_only(OsDisk::new(folder.join(WAL_DIR)), tables, identity, random()).map(|_| aside)
    });
    match tried {
        Ok(_) => manifest::truncate(&place),
        Err(EngineError::Corruption(_)) => Ok(()),
        Err(why) => Err(why),
    }
}

/// The tables as of the last whole record of the manifest, to be read: a copy of them, made in `aside`.
pub fn open_truncated_copy(
    tables: &Path,
    aside: &Path,
    setup: RocksOptions,
) -> Result<(RocksStorage, ScratchDir), EngineError> {
    let (files, aside) = copy_to_scratch(tables, aside)?;
    if let Some(place) = manifest::find_torn_record(&files)? {
        manifest::truncate(&place)?;
    }
    Ok((RocksStorage::open_read_only(&files, setup, None)?, aside))
}
