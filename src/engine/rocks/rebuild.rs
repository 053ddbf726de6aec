//! Tables that RocksDB may not open any more. The folder itself is only read.
//!
//! If RocksDB opens them as they are, that is all. If not, the files are copied into a folder aside, and RocksDB's own repair makes a
//! database of every table that it can read there. It goes by the files alone: rows of a lost table are as they were before, or missing, and
//! of a transaction a part may be there. Then each column is read block by block where it has to be: see [`around`](super::around).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rocksdb::{DB, Options};

use super::options::{self, RocksOptions};
use super::{LockedDb, RocksStorage, manifest};
use crate::engine::EngineError;
use crate::engine::storage::Column;

/// Tables that only say which columns there are get numbers from here on.
const SEED_TABLE_NUMBER: u64 = 900_000_000;

/// A folder of our own, which goes.
pub struct ScratchDir(PathBuf);

impl Drop for ScratchDir {
    fn drop(&mut self) {
        // Nothing could be done about a failure.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Opens what can be read of the tables. `aside` is made if copies are needed, and must not be there; it goes with what is returned
/// for it. What is known to be lost or out of order by the way in which they were opened is added to the notes.
pub fn open_or_repair(
    folder: &Path,
    aside: &Path,
    setup: RocksOptions,
    notes: &mut Vec<String>,
) -> Result<(RocksStorage, Option<ScratchDir>), EngineError> {
    let why = match RocksStorage::open_read_only(folder, setup, None) {
        Ok(storage) => return Ok((storage, None)),
        Err(why) => why,
    };
    notes.push(format!(
        "the database could not be opened ({why}), so it was put together from the files: rows may be older than they were, deleted ones may be back, and of a transaction a part may be missing"
    ));
    let (files, aside) = copy_to_scratch(folder, aside)?;
    let storage = repair_copy(folder, &files, &aside, setup, notes)?;
    Ok((storage, Some(aside)))
}

/// Copies the files of a database. The answer is where they are, and what removes them.
pub fn copy_to_scratch(folder: &Path, aside: &Path) -> Result<(PathBuf, ScratchDir), EngineError> {
    let cannot =
        |why: io::Error| EngineError::Io(format!("cannot copy {} to {}: {why}", folder.display(), aside.display()));
    fs::create_dir(aside).map_err(|why| match why.kind() {
        io::ErrorKind::AlreadyExists => EngineError::Io(format!(
            "{} is there already: a repair that was cut short has left it, or another one is at work. If none is, remove it and try again",
            aside.display()
        )),
        _ => cannot(why),
    })?;
    let held = ScratchDir(aside.to_owned());
    let files = aside.join("files");
    copy(folder, &files).map_err(cannot)?;
    Ok((files, held))
}

/// Makes a database of the files of one that cannot be opened.
fn repair_copy(
    folder: &Path,
    files: &Path,
    aside: &ScratchDir,
    setup: RocksOptions,
    notes: &mut Vec<String>,
) -> Result<RocksStorage, EngineError> {
    let cannot = |why: io::Error| EngineError::Io(format!("cannot change the copies of {}: {why}", folder.display()));
    while let Some(manifest::RecordLocation { file, .. }) = manifest::find_recycled_record(files).map_err(cannot)? {
        fs::remove_file(&file).map_err(cannot)?;
    }
    seed_column_families(&aside.0.join("columns"), files, setup)?;
    let failed =
        |why: rocksdb::Error| EngineError::Corruption(format!("nothing can be made of {}: {why}", folder.display()));
    let mut options = options::options(setup)?;
    DB::repair(&options, files).map_err(failed)?;
    for entry in fs::read_dir(files.join("lost")).into_iter().flatten().flatten() {
        if entry.path().extension().is_some_and(|end| end == "sst") {
            notes.push(format!(
                "the table {} is damaged, and RocksDB leaves all of it out",
                entry.file_name().to_string_lossy()
            ));
        }
    }
    options.create_missing_column_families(true);
    options.set_disable_auto_compactions(true);
    let db = DB::open_cf_descriptors(&options, files, options::column_family_descriptors(&options, setup)?)
        .map_err(failed)?;
    RocksStorage::from_db(LockedDb { db, marker: None })
}

/// Tables are never changed in place, so a link is as good as a copy.
fn copy(folder: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(folder)? {
        let file = entry?.path();
        let Some(name) = file.file_name().filter(|_| file.is_file()) else { continue };
        let is_table = file.extension().is_some_and(|end| end == "sst");
        if !is_table || fs::hard_link(&file, to.join(name)).is_err() {
            fs::copy(&file, to.join(name))?;
        }
    }
    Ok(())
}

/// RocksDB's repair learns from tables which columns exist. So each column gets a table from a new database, with nothing in it but the
/// removal of a cell that never existed.
fn seed_column_families(donor: &Path, to: &Path, setup: RocksOptions) -> Result<(), EngineError> {
    let failed =
        |why: rocksdb::Error| EngineError::Io(format!("cannot prepare a repair in {}: {why}", donor.display()));
    let mut options: Options = options::options(setup)?;
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
            .map_err(|why| EngineError::Io(format!("cannot prepare a repair in {}: {why}", to.display())))?;
    }
    Ok(())
}
