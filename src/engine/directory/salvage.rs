//! Salvage: reading all that is intact in a damaged store directory. The directory itself is only
//! read.
//!
//! The tables are opened as they are or, if their manifest has a [torn
//! record](super::torn_manifest), as a copy without this record. If that fails, the tables are
//! rebuilt from their files: see [`repair`](crate::engine::rocks::repair). Then the write-ahead log
//! is replayed above the tables, up to the first damaged frame. The replay begins after the flushed
//! sequence or, if the frames there are gone, at the oldest frame that is left.

use std::path::Path;

use super::marker::lock_for_repair;
use super::names::{TABLES_DIR, WAL_DIR, random};
use super::{DirectoryOptions, open_part, read_accepted_losses, torn_manifest};
use crate::disk::OsDisk;
use crate::engine::EngineError;
use crate::engine::lsm::LsmStorage;
use crate::engine::rocks::manifest;
use crate::engine::rocks::repair::{self, ScratchDir};
use crate::engine::rocks::skip_corruption;
use crate::engine::rocks::{RocksStorage, check_threads_exist};
use crate::engine::storage::{Column, Storage as _};
use crate::engine::store_lock::StoreLock;

/// A damaged store, opened for reading.
pub struct Salvaged {
    /// The read-only storage.
    pub storage: SalvagedStorage,
    /// Losses and inconsistencies found while opening.
    pub notes: Vec<String>,
    /// Dropped after `storage`, which reads files in this directory.
    _scratch: Option<ScratchDir>,
    /// The shared lock on the marker, which excludes writers.
    _marker: Option<StoreLock>,
}

/// The storage of a [`Salvaged`] store.
pub type SalvagedStorage = LsmStorage<OsDisk, RocksStorage>;

/// Opens what can be read of the directory. `scratch` must not exist; it is created if tables or
/// the manifest must be copied.
pub fn open(directory: &Path, scratch: &Path, options: DirectoryOptions) -> Result<Salvaged, EngineError> {
    let table_options = options.table_options()?;
    check_threads_exist()?;
    let (directory, marker) = lock_for_repair(directory)?;
    let mut notes = Vec::new();
    // Without its directory, the log is read as one without segments: the store's own directory has
    // none.
    let wal = open_part(&directory, WAL_DIR).unwrap_or_else(|error| {
        notes.push(error.to_string());
        directory.clone()
    });
    let tables = directory.path().join(TABLES_DIR);
    let accepted = read_accepted_losses(&wal).unwrap_or_default();
    notes.extend(accepted.iter().map(|loss| format!("accepted earlier: {loss}")));
    // An unreadable manifest is handled below, like a missing one.
    if manifest::find_torn_record(&tables).is_ok_and(|torn| torn.is_some()) {
        let mut losses = Vec::new();
        let opened = torn_manifest::open_truncated_copy(&tables, scratch, table_options).and_then(|(tables, copy)| {
            LsmStorage::open_for_salvage(OsDisk::new(wal.clone()), tables, random(), &mut losses)
                .map(|storage| (storage, copy))
        });
        if let (Ok((storage, copy)), []) = (opened, &losses[..]) {
            return Ok(Salvaged { storage, notes, _scratch: Some(copy), _marker: marker });
        }
    }
    let (tables, copy) = repair::open_or_repair(&tables, scratch, table_options, &mut notes)?;
    let storage = LsmStorage::open_for_salvage(OsDisk::new(wal), tables, random(), &mut notes)?;
    Ok(Salvaged { storage, notes, _scratch: copy, _marker: marker })
}

/// Calls `visit` with each readable cell of a column, in any order. Returns descriptions of what
/// cannot be read.
pub fn read_readable_cells<E: From<EngineError>>(
    storage: &SalvagedStorage,
    column: Column,
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
) -> Result<Vec<String>, E> {
    let snapshot = storage.snapshot()?;
    let lost = skip_corruption::scan_skipping_corruption(storage.tables(), column, |key, value| {
        if snapshot.memtables_contain(column, key) { Ok(()) } else { visit(key, value) }
    })?;
    snapshot.for_each_memtable_cell(column, visit)?;
    Ok(lost)
}
