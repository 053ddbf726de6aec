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

use super::{LOG, TABLES, random};
use crate::disk::FolderDisk;
use crate::engine::EngineError;
use crate::engine::lsm::Layered;
use crate::engine::rocks::rebuild::{Aside, copy_aside};
use crate::engine::rocks::{RocksSetup, RocksStorage, manifest};

/// Where the copy is made; a process that died may have left one.
const COPY: &str = "tables.torn";

/// Cuts the manifest if a power cut has torn it. What is damaged otherwise is left to RocksDB, which refuses it.
pub fn mend(folder: &Path, setup: RocksSetup, identity: u64) -> Result<(), EngineError> {
    let tables = folder.join(TABLES);
    let Some(place) = manifest::broken_tail(&tables)? else { return Ok(()) };
    let aside = folder.join(COPY);
    // If it cannot be removed, it cannot be made.
    let _ = std::fs::remove_dir_all(&aside);
    let tried = without_tail(&tables, &aside, setup).and_then(|(tables, aside)| {
        Layered::open_read_only(FolderDisk::new(folder.join(LOG)), tables, identity, random()).map(|_| aside)
    });
    match tried {
        Ok(_) => manifest::cut(&place),
        Err(EngineError::Corruption(_)) => Ok(()),
        Err(why) => Err(why),
    }
}

/// The tables as of the last whole record of the manifest, to be read: a copy of them, made in `aside`.
pub fn without_tail(tables: &Path, aside: &Path, setup: RocksSetup) -> Result<(RocksStorage, Aside), EngineError> {
    let (files, aside) = copy_aside(tables, aside)?;
    if let Some(place) = manifest::broken_tail(&files)? {
        manifest::cut(&place)?;
    }
    Ok((RocksStorage::open_read_only(&files, setup, None)?, aside))
}
