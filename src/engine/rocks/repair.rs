//! Opening damaged tables. The original directory is only read.
//!
//! If RocksDB can open the tables, they are opened as they are. If not, the files are copied into a
//! scratch directory, and RocksDB's repair rebuilds a database from all tables that it can read.
//! The repair uses only the table files, not the manifest, and so does not notice a lost table: its
//! rows are outdated or missing, and transactions may be incomplete. Scans
//! [skip](super::skip_corruption) unreadable blocks.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rocksdb::{DB, Options};

use super::options::{self, RocksOptions};
use super::{RocksStorage, manifest};
use crate::disk::{Directory, shown};
use crate::engine::EngineError;
use crate::engine::storage::Column;

/// A seed table keeps a column without tables from being lost in the repair: see
/// `seed_column_families`. This is the file number of the first seed table, far above the numbers
/// of the copied tables.
const SEED_TABLE_NUMBER: u64 = 900_000_000;

/// A scratch directory, removed on drop.
pub struct ScratchDir(PathBuf);

impl Drop for ScratchDir {
    fn drop(&mut self) {
        // A failure cannot be handled here.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Opens what can be read of the tables.
///
/// `scratch` is created if copies are needed, and must not exist; the returned [`ScratchDir`]
/// removes it. Losses and inconsistencies are added to `notes`.
pub fn open_or_repair(
    directory: &Path,
    scratch: &Path,
    setup: RocksOptions,
    notes: &mut Vec<String>,
) -> Result<(RocksStorage, Option<ScratchDir>), EngineError> {
    let opened = Directory::open(directory)
        .map_err(|error| EngineError::Io(format!("cannot open {}: {error}", shown(directory))))
        .and_then(|directory| RocksStorage::open_read_only(&directory, setup, None));
    let error = match opened {
        Ok(storage) => return Ok((storage, None)),
        Err(error) => error,
    };
    notes.push(format!(
        "the tables could not be opened ({error}) and were rebuilt from their files: rows may be outdated, deleted rows may \
         reappear, and transactions may be incomplete"
    ));
    let (files, copy) = copy_to_scratch(directory, scratch)?;
    let storage = repair_copy(directory, &files, &copy, setup, notes)?;
    Ok((storage, Some(copy)))
}

/// Copies the files of the tables into the subdirectory `files` of a new scratch directory. Returns
/// the path of this subdirectory, and a guard that removes the scratch directory when dropped.
pub fn copy_to_scratch(directory: &Path, scratch: &Path) -> Result<(PathBuf, ScratchDir), EngineError> {
    let cannot =
        |error: io::Error| EngineError::Io(format!("cannot copy {} to {}: {error}", shown(directory), shown(scratch)));
    fs::create_dir(scratch).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => EngineError::Io(format!(
            "{} already exists: left by an interrupted repair, or in use by a running one; if no repair is running, remove it and try again",
            shown(scratch)
        )),
        _ => cannot(error),
    })?;
    let guard = ScratchDir(scratch.to_owned());
    let files = scratch.join("files");
    copy(directory, &files).map_err(cannot)?;
    Ok((files, guard))
}

/// Repairs the copied files with RocksDB's `RepairDB` and opens the result.
fn repair_copy(
    directory: &Path,
    files: &Path,
    scratch: &ScratchDir,
    setup: RocksOptions,
    notes: &mut Vec<String>,
) -> Result<RocksStorage, EngineError> {
    let cannot = |error: io::Error| EngineError::Io(format!("cannot change the copy of {}: {error}", shown(directory)));
    while let Some(manifest::RecordLocation { file, .. }) = manifest::find_recycled_record(files).map_err(cannot)? {
        fs::remove_file(&file).map_err(cannot)?;
    }
    seed_column_families(&scratch.0.join("columns"), files, setup)?;
    let failed =
        |error: rocksdb::Error| EngineError::Corruption(format!("cannot repair {}: {error}", shown(directory)));
    let mut options = options::options(setup, false)?;
    DB::repair(&options, files).map_err(failed)?;
    for entry in fs::read_dir(files.join("lost")).into_iter().flatten().flatten() {
        if entry.path().extension().is_some_and(|end| end == "sst") {
            notes.push(format!(
                "the table {} is damaged and was left out by RocksDB",
                entry.file_name().to_string_lossy()
            ));
        }
    }
    options.create_missing_column_families(true);
    let db = DB::open_cf_descriptors(&options, files, options::column_family_descriptors(&options, setup)?)
        .map_err(failed)?;
    let files = Directory::open(files).map_err(cannot)?;
    RocksStorage::from_db(db, &files, None, true)
}

/// Copies all files. Tables are never changed in place, so they are hard-linked where possible.
fn copy(directory: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    let entries = match fs::read_dir(directory) {
        // All tables are lost; the write-ahead log may be left.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let file = entry?.path();
        let Some(name) = file.file_name().filter(|_| file.is_file()) else { continue };
        let is_table = file.extension().is_some_and(|end| end == "sst");
        if !is_table || fs::hard_link(&file, to.join(name)).is_err() {
            fs::copy(&file, to.join(name))?;
        }
    }
    Ok(())
}

/// RocksDB's repair takes the column families from the tables alone, and would lose a column
/// without tables. So each column gets a seed table from a new database, with only the deletion of
/// an absent cell.
fn seed_column_families(donor: &Path, to: &Path, setup: RocksOptions) -> Result<(), EngineError> {
    let failed =
        |error: rocksdb::Error| EngineError::Io(format!("cannot prepare a repair in {}: {error}", shown(donor)));
    let mut options: Options = options::options(setup, false)?;
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    let db = DB::open_cf_descriptors(&options, donor, options::column_family_descriptors(&options, setup)?)
        .map_err(failed)?;
    for column in Column::ALL {
        let Some(family) = db.cf_handle(options::column_family_name(column)) else { continue };
        db.delete_cf(family, b"").map_err(failed)?;
        db.flush_cf(family).map_err(failed)?;
    }
    for (number, file) in db.live_files().map_err(failed)?.iter().enumerate() {
        let table = to.join(format!("{}.sst", SEED_TABLE_NUMBER + number as u64));
        fs::copy(donor.join(file.name.trim_start_matches('/')), table)
            .map_err(|error| EngineError::Io(format!("cannot prepare a repair in {}: {error}", shown(to))))?;
    }
    Ok(())
}
