//! Reading a damaged folder for all that is in it. The folder itself is only read.
//!
//! 1. If RocksDB opens it as it is, with a log that is whole, nothing is wrong down here.
//! 2. If it opens it with a log that is not, the log is as a crash leaves it, or its end is lost: what tells the two apart when a store
//!    is opened does so here.
//!    Where a log has room behind its records and another log follows it, which RocksDB would not go over, or has a hole, which it would
//!    read over, this is done to a copy of the files without the one or what lies behind the other.
//! 3. If not, its files are copied into a folder aside, what hinders RocksDB is cut off, and RocksDB's own repair makes a database
//!    of every table and log that it can read there. It goes by the files alone: rows of a lost table are as they were before, or
//!    missing, and of a transaction a part may be there.
//!
//! Then each column is read, block by block where it has to be: see [`around`](super::around).

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rocksdb::{DB, DBRecoveryMode, Options};

use super::folder::{Marker, examine_damaged};
use super::lost::Lost;
use super::options::{self, RocksSetup};
use super::{Opened, RocksStorage, kept, logs, lost, oldest_log};
use crate::engine::EngineError;
use crate::engine::storage::Column;

/// Tables that only say which columns there are get numbers from here on.
const DONOR_TABLES: u64 = 900_000_000;

/// What could be opened of a damaged folder.
pub struct Salvaged {
    /// To be read only.
    pub storage: RocksStorage,
    /// What is known to be lost, or out of order, by the way in which it was opened.
    pub notes: Vec<String>,
    /// Dropped behind the database.
    _aside: Option<Aside>,
    /// Keeps writers away.
    _marker: Option<Marker>,
}

/// A folder of our own, which goes.
struct Aside(PathBuf);

impl Drop for Aside {
    fn drop(&mut self) {
        // Nobody is left to be told.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Opens what can be read of the folder. `aside` is made if copies are needed, and must not be there.
pub fn open(folder: &Path, aside: &Path, setup: RocksSetup) -> Result<Salvaged, EngineError> {
    setup.check()?;
    let marker = examine_damaged(folder)?;
    let mut notes: Vec<String> = kept(folder)?.iter().map(|lost| format!("in an earlier life: {lost}")).collect();
    let has_room = logs::check(folder).is_ok_and(|logs| logs::with_room_before_a_later_one(&logs, 0).is_some());
    let hole = lost_end(folder, setup).ok().flatten().filter(|lost| lost.is_hole);
    let copied = if has_room || hole.is_some() { Some(copy_aside(folder, aside)?) } else { None };
    if let (Some(hole), Some((files, _))) = (hole, &copied) {
        let name = hole.told.file.file_name().unwrap_or_default();
        hole.cut(&files.join(name)).map_err(|why| EngineError::Open(format!("cannot cut a copied log: {why}")))?;
        notes.push(hole.told.to_string());
    }
    let source = copied.as_ref().map_or(folder, |(files, _)| files.as_path());
    let open = |mode| {
        // Which also refuses logs that RocksDB would read for ever.
        lost_end(source, setup)?;
        let mut options = options::options(setup)?;
        options.set_wal_recovery_mode(mode);
        DB::open_cf_descriptors_read_only(&options, source, options::descriptors(&options, setup)?, false)
            .map_err(|why| EngineError::Corruption(why.to_string()))
            .and_then(|db| RocksStorage::of(Opened { db, marker: None }))
    };
    let why = match open(DBRecoveryMode::AbsoluteConsistency) {
        Ok(storage) => {
            return Ok(Salvaged { storage, notes, _aside: copied.map(|(_, aside)| aside), _marker: marker });
        }
        Err(why) => why,
    };
    if let Ok(storage) = open(DBRecoveryMode::PointInTime) {
        notes.extend(lost_end(source, setup)?.filter(|lost| !lost.is_kept()).map(|lost| lost.told.to_string()));
        return Ok(Salvaged { storage, notes, _aside: copied.map(|(_, aside)| aside), _marker: marker });
    }
    notes.push(format!(
        "the database could not be opened ({why}), so it was put together from the files: rows may be older than they were, deleted ones may be back, and of a transaction a part may be missing"
    ));
    let (files, aside) = match copied {
        Some(copied) => copied,
        None => copy_aside(folder, aside)?,
    };
    let storage = rebuild(folder, &files, &aside, setup, &mut notes)?;
    Ok(Salvaged { storage, notes, _aside: Some(aside), _marker: marker })
}

/// What opening the store would tell of its logs. Those that the manifest has done with do not count.
fn lost_end(folder: &Path, setup: RocksSetup) -> Result<Option<Lost>, EngineError> {
    let logs = logs::check(folder)?;
    if lost::judge(&logs, 0).is_none() {
        return Ok(None);
    }
    Ok(lost::judge(&logs, oldest_log(folder, setup)?))
}

/// Copies the files of a database, without what logs have behind their records. The answer is where they are, and what removes them.
fn copy_aside(folder: &Path, aside: &Path) -> Result<(PathBuf, Aside), EngineError> {
    let cannot =
        |why: io::Error| EngineError::Open(format!("cannot copy {} to {}: {why}", folder.display(), aside.display()));
    fs::create_dir(aside).map_err(|why| match why.kind() {
        io::ErrorKind::AlreadyExists => EngineError::Open(format!(
            "{} is there already: a repair that was cut short has left it, or another one is at work. If none is, remove it and try again",
            aside.display()
        )),
        _ => cannot(why),
    })?;
    let held = Aside(aside.to_owned());
    let files = aside.join("files");
    copy(folder, &files).map_err(cannot)?;
    if let Ok(logs) = logs::check(&files) {
        logs::cut_room(&logs).map_err(cannot)?;
    }
    Ok((files, held))
}

/// Makes a database of the files of one that cannot be opened.
fn rebuild(
    folder: &Path,
    files: &Path,
    aside: &Aside,
    setup: RocksSetup,
    notes: &mut Vec<String>,
) -> Result<RocksStorage, EngineError> {
    let cannot = |why: io::Error| EngineError::Open(format!("cannot change the copies of {}: {why}", folder.display()));
    while let Some(logs::Place { file, offset }) = logs::endless(files).map_err(cannot)? {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("MANIFEST-") {
            fs::remove_file(&file).map_err(cannot)?;
            continue;
        }
        notes.push(format!("{name} is damaged at byte {offset}, and what comes behind is lost"));
        File::options().write(true).open(&file).and_then(|log| log.set_len(offset)).map_err(cannot)?;
    }
    lend_columns(&aside.0.join("columns"), files, setup)?;
    let failed =
        |why: rocksdb::Error| EngineError::Corruption(format!("nothing can be made of {}: {why}", folder.display()));
    let mut options = options::options(setup)?;
    DB::repair(&options, files).map_err(failed)?;
    // It has made tables of the logs, and a store without a log is otherwise one that has lost it.
    options = options.get_options_from_string("track_and_verify_wals=false").map_err(failed)?;
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
    let db = DB::open_cf_descriptors(&options, files, options::descriptors(&options, setup)?).map_err(failed)?;
    RocksStorage::of(Opened { db, marker: None })
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

/// RocksDB's repair learns from tables which columns there are, and leaves out what a log has of any other. So each column gets a
/// table from a new database, with nothing in it but the removal of a cell that was never there.
fn lend_columns(donor: &Path, to: &Path, setup: RocksSetup) -> Result<(), EngineError> {
    let failed =
        |why: rocksdb::Error| EngineError::Open(format!("cannot prepare a repair in {}: {why}", donor.display()));
    let mut options: Options = options::options(setup)?;
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    let db = DB::open_cf_descriptors(&options, donor, options::descriptors(&options, setup)?).map_err(failed)?;
    for column in Column::ALL {
        let Some(family) = db.cf_handle(options::name(column)) else { continue };
        db.delete_cf(family, b"").map_err(failed)?;
        db.flush_cf(family).map_err(failed)?;
    }
    for (number, file) in db.live_files().map_err(failed)?.iter().enumerate() {
        let table = to.join(format!("{}.sst", DONOR_TABLES + number as u64));
        fs::copy(donor.join(file.name.trim_start_matches('/')), table)
            .map_err(|why| EngineError::Open(format!("cannot prepare a repair in {}: {why}", to.display())))?;
    }
    Ok(())
}
