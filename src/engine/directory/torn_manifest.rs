//! Repair of a manifest that a power cut has torn.
//!
//! RocksDB appends to its manifest at each flush and compaction, and syncs the new records before
//! anything depends on them. A power cut before the sync may leave any subset of the new pages, and
//! with some of these subsets RocksDB refuses to open the directory. If the torn record and
//! everything after it are cut off, the manifest describes an older state of the tables. After a
//! power cut the write-ahead log still has every later change.
//!
//! If the record had been synced and was damaged later, the log may lack some of these changes.
//! Then RocksDB must not open the directory with the older manifest: RocksDB would delete the
//! tables that the older manifest does not name, and a repair needs these tables. So a copy is
//! tried first: its tables are hard links, its manifest is truncated, and it is opened read-only
//! with the log. The original manifest is truncated only if the copy shows no loss.

use std::path::Path;

use super::access::cannot;
use super::names::random;
use crate::disk::{Directory, OsDisk};
use crate::engine::EngineError;
use crate::engine::lsm::LsmStorage;
use crate::engine::rocks::repair::{ScratchDir, copy_to_scratch};
use crate::engine::rocks::{RocksOptions, RocksStorage, manifest};

/// The directory of the copy; a killed process may have left one.
const SCRATCH_DIR: &str = "tables.torn";

/// Truncates the manifest if a power cut has torn it. Other damage is left for RocksDB to report.
/// Takes the store's directory and those of its log and tables.
pub fn truncate_torn_manifest(
    (directory, wal, tables): (&Directory, &Directory, &Directory),
    options: RocksOptions,
    identity: u64,
) -> Result<(), EngineError> {
    let scratch = directory.path().join(SCRATCH_DIR);
    // An error is ignored: if the old copy is still there, creating the new one fails.
    let _ = std::fs::remove_dir_all(&scratch);
    let Some(record) = manifest::find_torn_record(tables.path())? else { return Ok(()) };
    let tried = open_truncated_copy(tables.path(), &scratch, options).and_then(|(tables, copy)| {
        LsmStorage::open_read_only(OsDisk::new(wal.clone()), tables, identity, random()).map(|_| copy)
    });
    match tried {
        Ok(_) => manifest::truncate(&record),
        Err(EngineError::Corruption(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Copies the tables into `scratch` and opens the copy read-only, as of the last record before the
/// torn one.
pub fn open_truncated_copy(
    tables: &Path,
    scratch: &Path,
    options: RocksOptions,
) -> Result<(RocksStorage, ScratchDir), EngineError> {
    let (files, copy) = copy_to_scratch(tables, scratch)?;
    if let Some(record) = manifest::find_torn_record(&files)? {
        manifest::truncate(&record)?;
    }
    let files = Directory::open(&files).map_err(|error| cannot("open", &files, &error))?;
    Ok((RocksStorage::open_read_only(&files, options, None)?, copy))
}
