//! Reading a damaged folder for all that is in it. The folder itself is only read.
//!
//! The tables are opened, without the record of the manifest that a [power cut has torn](super::torn) if there is one, or put together
//! from their files: see [`rebuild`](crate::engine::rocks::rebuild). Above them is what can be read of the log: all frames from the
//! tables' position, or from the oldest one that is left, up to the first that is damaged.

use std::path::Path;

use super::marker::{StoreLock, lock_for_repair};
use super::{FolderOptions, TABLES_DIR, WAL_DIR, random, read_accepted_losses, torn};
use crate::disk::OsDisk;
use crate::engine::EngineError;
use crate::engine::lsm::LsmStorage;
use crate::engine::rocks::RocksStorage;
use crate::engine::rocks::around;
use crate::engine::rocks::manifest;
use crate::engine::rocks::rebuild::{self, ScratchDir};
use crate::engine::storage::{Column, Storage as _};

/// What could be opened of a damaged folder.
pub struct Salvaged {
    /// To be read only.
    pub storage: SalvagedStorage,
    /// What is known to be lost, or out of order, by the way in which it was opened.
    pub notes: Vec<String>,
    /// Dropped after the database.
    _scratch: Option<ScratchDir>,
    /// Keeps writers away.
    _marker: Option<StoreLock>,
}

/// See [`Salvaged`].
pub type SalvagedStorage = LsmStorage<OsDisk, RocksStorage>;

/// Opens what can be read of the folder. `aside` is made if copies are needed, and must not be there.
pub fn open(folder: &Path, aside: &Path, setup: FolderOptions) -> Result<Salvaged, EngineError> {
    let tables_setup = setup.table_options()?;
    let marker = lock_for_repair(folder)?;
    let (log, tables) = (folder.join(WAL_DIR), folder.join(TABLES_DIR));
    let kept = read_accepted_losses(&log).unwrap_or_default();
    let mut notes: Vec<String> = kept.iter().map(|lost| format!("in an earlier life: {lost}")).collect();
    // An unreadable manifest is handled below, as a missing one is.
    if manifest::find_torn_record(&tables).is_ok_and(|place| place.is_some()) {
        let mut losses = Vec::new();
        let opened = torn::open_truncated_copy(&tables, aside, tables_setup).and_then(|(tables, aside)| {
            LsmStorage::open_for_salvage(OsDisk::new(&log), tables, random(), &mut losses)
                .map(|storage| (storage, aside))
        });
        if let (Ok((storage, aside)), []) = (opened, &losses[..]) {
            return Ok(Salvaged { storage, notes, _scratch: Some(aside), _marker: marker });
        }
    }
    let (tables, aside) = rebuild::open_or_repair(&tables, aside, tables_setup, &mut notes)?;
    let storage = LsmStorage::open_for_salvage(OsDisk::new(log), tables, random(), &mut notes)?;
    Ok(Salvaged { storage, notes, _scratch: aside, _marker: marker })
}

/// Hands every cell of a column that can be read to `visit`, in no order. Returns what cannot.
pub fn read_readable_cells<E: From<EngineError>>(
    storage: &SalvagedStorage,
    column: Column,
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
) -> Result<Vec<String>, E> {
    let view = storage.snapshot()?;
    let lost = around::scan_skipping_corruption(storage.tables(), column, |key, content| {
        if view.memtables_contain(column, key) { Ok(()) } else { visit(key, content) }
    })?;
    view.for_each_memtable_cell(column, visit)?;
    Ok(lost)
}
