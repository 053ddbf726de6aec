//! Reading a damaged folder for all that is in it. The folder itself is only read.
//!
//! The tables are opened, without the record of the manifest that a [power cut has torn](super::torn) if there is one, or put together
//! from their files: see [`rebuild`](crate::engine::rocks::rebuild). Above them is what can be read of the log: all frames from the
//! tables' position, or from the oldest one that is left, up to the first that is damaged.

use std::path::Path;

use super::marker::{Marker, examine_damaged};
use super::{FolderSetup, LOG, TABLES, lost_logs, random, torn};
use crate::disk::FolderDisk;
use crate::engine::EngineError;
use crate::engine::lsm::Layered;
use crate::engine::rocks::RocksStorage;
use crate::engine::rocks::around;
use crate::engine::rocks::manifest;
use crate::engine::rocks::rebuild::{self, Aside};
use crate::engine::storage::{Column, Storage as _};

/// What could be opened of a damaged folder.
pub struct Salvaged {
    /// To be read only.
    pub storage: SalvagedStorage,
    /// What is known to be lost, or out of order, by the way in which it was opened.
    pub notes: Vec<String>,
    /// Dropped after the database.
    _aside: Option<Aside>,
    /// Keeps writers away.
    _marker: Option<Marker>,
}

/// See [`Salvaged`].
pub type SalvagedStorage = Layered<FolderDisk, RocksStorage>;

/// Opens what can be read of the folder. `aside` is made if copies are needed, and must not be there.
pub fn open(folder: &Path, aside: &Path, setup: FolderSetup) -> Result<Salvaged, EngineError> {
    let tables_setup = setup.tables()?;
    let marker = examine_damaged(folder)?;
    let (log, tables) = (folder.join(LOG), folder.join(TABLES));
    let kept = lost_logs(&log).unwrap_or_default();
    let mut notes: Vec<String> = kept.iter().map(|lost| format!("in an earlier life: {lost}")).collect();
    // An unreadable manifest is handled below, as a missing one is.
    if manifest::broken_tail(&tables).is_ok_and(|place| place.is_some()) {
        let mut losses = Vec::new();
        let opened = torn::without_tail(&tables, aside, tables_setup).and_then(|(tables, aside)| {
            Layered::open_damaged(FolderDisk::new(&log), tables, random(), &mut losses).map(|storage| (storage, aside))
        });
        if let (Ok((storage, aside)), []) = (opened, &losses[..]) {
            return Ok(Salvaged { storage, notes, _aside: Some(aside), _marker: marker });
        }
    }
    let (tables, aside) = rebuild::open(&tables, aside, tables_setup, &mut notes)?;
    let storage = Layered::open_damaged(FolderDisk::new(log), tables, random(), &mut notes)?;
    Ok(Salvaged { storage, notes, _aside: aside, _marker: marker })
}

/// Hands every cell of a column that can be read to `visit`, in no order. Returns what cannot.
pub fn read_all<E: From<EngineError>>(
    storage: &SalvagedStorage,
    column: Column,
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
) -> Result<Vec<String>, E> {
    let view = storage.view()?;
    let lost =
        around::read_all(
            storage.tables(),
            column,
            |key, content| {
                if view.hides(column, key) { Ok(()) } else { visit(key, content) }
            },
        )?;
    view.each_of_window(column, visit)?;
    Ok(lost)
}
