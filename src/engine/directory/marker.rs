//! The marker of a store's directory, and its creation.
//!
//! The file `PERCOLITE` contains the format of the store with its build tag, and the id of its
//! write-ahead log. So opening rejects a foreign directory, or a store of another format, before it
//! changes anything there. A process locks the file while it has the store open: exclusively, or
//! shared with other readers.
//!
//! During creation the marker has another name. If a directory has the marker only under that name,
//! its creation was interrupted, and no commit was ever acknowledged. So the next opening removes
//! the files of this creation and starts again. If the directory has any file that creation does
//! not make, the opening fails and removes nothing.
//!
//! Names become durable in this order, since a power cut keeps unsynced ones in any order: the
//! marker's unfinished name; everything else in the directory; the marker's final name. A
//! checkpoint needs only the last two.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

use super::access::{cannot, open_existing};
use super::durable_names::sync_ancestors;
use super::names::{MARKER, MARKER_TEXT, RESERVE, TABLES_DIR, WAL_DIR};
use super::nested::check_not_nested;
use super::new_directory::create_all;
use crate::disk::{Directory, open_own, open_own_with, shown};
use crate::engine::EngineError;
use crate::engine::rocks::file_names::is_rocksdb_file;
use crate::engine::store_lock::StoreLock;
use crate::format_line::{self, Named, OtherFormat};
use crate::wal;

/// A longer file is no marker.
const MARKER_BYTES_MAX: u64 = 4096;
const MARKER_UNFINISHED: &str = "PERCOLITE.new";
/// The name of a checkpoint's marker until the copy is complete. A directory with only this marker
/// is an incomplete copy: it is not opened, and not taken for an interrupted creation.
const CHECKPOINT_UNFINISHED: &str = "PERCOLITE.copy";
/// An empty file in a fresh checkpoint. It shows that the leases of named locks in the copy belong
/// to the original. The first opening for writing deletes these leases, and then this file.
const CHECKPOINT_FLAG: &str = "PERCOLITE.copied";
/// The text between the format and the WAL id in the marker's line.
const WAL_ID_TEXT: &str = "wal ";
/// The directory of `fsck` in the root of a file system.
const LOST_AND_FOUND: &str = "lost+found";
/// RocksDB's file that names the current manifest.
const ROCKSDB_CURRENT: &str = "CURRENT";

/// A hint at the repair, to be appended to an error if the directory has data files.
fn repair_hint(path: &Path) -> String {
    format!("; if {} was a store, Builder::repair copies what is left into a new one", shown(path))
}

/// A directory that is locked for exclusive use.
pub struct LockedDir {
    pub directory: Directory,
    /// The lock, to be kept while the store is open.
    pub marker: StoreLock,
    /// The id of the write-ahead log; `None` if the store must still be created.
    pub identity: Option<u64>,
}

/// Locks the directory for exclusive use. Checks that it is a store of this format or can become
/// one.
pub fn lock_exclusive(path: &Path) -> Result<LockedDir, EngineError> {
    check_not_nested(path)?;
    create_all(path, lock_in)
}

fn lock_in(directory: Directory) -> Result<LockedDir, EngineError> {
    let path = directory.path();
    let (marker, unfinished) = (path.join(MARKER), path.join(MARKER_UNFINISHED));
    loop {
        let is_new = !exists(&marker)?;
        if is_new && !is_empty(path)? && !exists(&unfinished)? {
            // The marker was found under neither of its names. But another process may have renamed
            // it between the two checks, so its final name is checked again.
            if exists(&marker)? {
                continue;
            }
            return Err(missing_marker_error(path));
        }
        let name = if is_new { &unfinished } else { &marker };
        let opened = open_own_with(name, OpenOptions::new().read(true).write(true).create(is_new));
        let file = opened.map_err(|error| cannot_open_marker(name, &error))?;
        let file = match file.try_lock() {
            Ok(()) => StoreLock::new(file),
            Err(TryLockError::WouldBlock) => {
                let what = format!("{} is already open in this or another process", shown(path));
                return Err(EngineError::AlreadyOpen(what));
            }
            Err(TryLockError::Error(error)) => return Err(cannot("lock", name, &error)),
        };
        if !is_new {
            let identity = check_format(path, &marker, file.file())?;
            check_parts_exist(path)?;
            return Ok(LockedDir { marker: file, identity: Some(identity), directory });
        }
        // Another process may have completed the creation before the lock was acquired.
        if !exists(&marker)? {
            reset_unfinished(path)?;
            // Nothing may be in the directory without this name, in whatever order a power cut
            // keeps names.
            directory.sync().map_err(|error| cannot("sync", path, &error))?;
            return Ok(LockedDir { marker: file, identity: None, directory });
        }
        // The marker has its final name now. If it was renamed just before `open`, then `open` has
        // created a new unfinished marker. Each process that locks that file comes here and does
        // not use it, so each can remove it.
        let _ = fs::remove_file(&unfinished);
    }
}

/// Locks the store for reading: no process can open the store for writing until the returned lock
/// is dropped. Other processes can open it for reading. Checks the format, and changes nothing.
pub fn lock_shared(path: &Path) -> Result<(Directory, StoreLock, u64), EngineError> {
    let directory = open_existing(path)?;
    let path = directory.path();
    let marker = path.join(MARKER);
    let file = match open_own(&marker) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(if path.join(MARKER_UNFINISHED).exists() {
                EngineError::NotAStore(format!("the store in {} was never finished: it is empty", shown(path)))
            } else {
                missing_marker_error(path)
            });
        }
        Err(error) => return Err(cannot_open_marker(&marker, &error)),
    };
    let file = match file.try_lock_shared() {
        Ok(()) => StoreLock::new(file),
        Err(TryLockError::WouldBlock) => {
            return Err(EngineError::AlreadyOpen(format!(
                "{} is open for writing in this or another process; to read it, close it there first",
                shown(path)
            )));
        }
        Err(TryLockError::Error(error)) => return Err(cannot("lock", &marker, &error)),
    };
    let identity = check_format(path, &marker, file.file())?;
    check_parts_exist(path)?;
    Ok((directory, file, identity))
}

/// Locks a damaged store against writers, for a repair. Returns no lock if the marker is missing or
/// cannot be opened. Changes nothing.
pub fn lock_for_repair(path: &Path) -> Result<(Directory, Option<StoreLock>), EngineError> {
    let directory = open_existing(path)?;
    let path = directory.path();
    if !has_data_files(path) {
        return Err(EngineError::NotAStore(format!(
            "{} has no tables and no write-ahead log: there is nothing to repair",
            shown(path)
        )));
    }
    let marker = path.join(MARKER);
    let Ok(file) = open_own(&marker) else { return Ok((directory, None)) };
    if let Err(TryLockError::WouldBlock) = file.try_lock_shared() {
        return Err(EngineError::AlreadyOpen(format!(
            "{} is open for writing in this or another process",
            shown(path)
        )));
    }
    let file = StoreLock::new(file);
    let mut text = Vec::new();
    // A marker that cannot be read or parsed is only further damage, and does not prevent a repair.
    let _ = file.file().take(MARKER_BYTES_MAX).read_to_end(&mut text);
    match parse_marker(&text) {
        Some(MarkerContent::OtherFormat(other)) => Err(format_error(path, &other)),
        _ => Ok((directory, Some(file))),
    }
}

/// Completes the creation: the marker gets its final name, atomically and after everything else.
pub fn commit_marker(directory: &Directory, marker: &StoreLock, identity: u64) -> Result<(), EngineError> {
    write_marker(directory, marker.file(), MARKER_UNFINISHED, identity)
}

/// Completes a checkpoint: writes its flag and then its marker.
pub fn commit_checkpoint_marker(directory: &Directory, identity: u64) -> Result<(), EngineError> {
    let (flag, marker) = (directory.path().join(CHECKPOINT_FLAG), directory.path().join(CHECKPOINT_UNFINISHED));
    let create = |path: &Path| open_own_with(path, OpenOptions::new().write(true).create_new(true));
    create(&flag).and_then(|flag| flag.sync_all()).map_err(|error| cannot("create", &flag, &error))?;
    let file = create(&marker).map_err(|error| cannot("create", &marker, &error))?;
    write_marker(directory, &file, CHECKPOINT_UNFINISHED, identity)
}

/// Whether the directory is a checkpoint that has not been opened for writing.
pub fn is_fresh_checkpoint(directory: &Directory) -> bool {
    directory.path().join(CHECKPOINT_FLAG).symlink_metadata().is_ok()
}

/// Removes the flag of a checkpoint, durably: the copy is then a store of its own.
pub fn clear_checkpoint_flag(directory: &Directory) -> io::Result<()> {
    fs::remove_file(directory.path().join(CHECKPOINT_FLAG))?;
    directory.sync()
}

/// Writes the marker and gives it its final name. All other names are durable before that: until
/// then a failure leaves an unfinished store, which the next opening creates anew.
fn write_marker(directory: &Directory, mut marker: &File, name: &str, identity: u64) -> Result<(), EngineError> {
    let (unfinished, finished) = (directory.path().join(name), directory.path().join(MARKER));
    let format = format_line::own(MARKER_TEXT);
    let text = format!("{format}, {WAL_ID_TEXT}{identity:016x}\n");
    let written = marker.set_len(0).and_then(|()| marker.write_all(text.as_bytes())).and_then(|()| marker.sync_all());
    written.map_err(|error| cannot("write", &unfinished, &error))?;
    let sync = || directory.sync().map_err(|error| cannot("sync", directory.path(), &error));
    sync()?;
    sync_ancestors(directory)?;
    fs::rename(&unfinished, &finished).map_err(|error| cannot("rename", &unfinished, &error))?;
    sync().inspect_err(|_| drop(fs::rename(&finished, &unfinished)))
}

fn exists(file: &Path) -> Result<bool, EngineError> {
    match file.symlink_metadata() {
        Ok(_) => Ok(true),
        // A part of the path is a file, if it is no directory.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(error) => Err(cannot("access", file, &error)),
    }
}

/// Checks that the store has tables and a log directory: an opening would create neither.
fn check_parts_exist(path: &Path) -> Result<(), EngineError> {
    let wal = path.join(WAL_DIR);
    let missing = if !exists(&path.join(TABLES_DIR).join(ROCKSDB_CURRENT))? {
        format!("no tables: {} is missing", shown(&path.join(TABLES_DIR).join(ROCKSDB_CURRENT)))
    } else if !exists(&wal)? {
        format!("no write-ahead log: the directory {} is missing", shown(&wal))
    } else if !wal.is_dir() {
        format!("no write-ahead log: {} is not a directory", shown(&wal))
    } else {
        return Ok(());
    };
    let path = shown(path);
    Err(EngineError::Corruption(format!(
        "{path} has a marker ({MARKER}) but {missing}; put it back, restore a backup, or repair what is left into a \
         new store: percolite repair {path} NEW, or Builder::repair"
    )))
}

/// Whether the directory has files that can contain rows: tables or WAL segments.
fn has_data_files(path: &Path) -> bool {
    let has = |directory: &str, end: &str| {
        let entries = list(&path.join(directory)).unwrap_or_default();
        entries.iter().any(|entry| entry.extension().is_some_and(|found| found == end) && is_store_file(entry))
    };
    has(TABLES_DIR, "sst") || has(WAL_DIR, "segment")
}

fn missing_marker_error(path: &Path) -> EngineError {
    let what = if is_empty(path).unwrap_or_default() {
        "is an empty directory, not a percolite store".into()
    } else if has_data_files(path) {
        let repair = repair_hint(path);
        format!("has tables or a write-ahead log but no file {MARKER}: it is not a percolite store{repair}")
    } else {
        format!("is not empty and has no file {MARKER}: it is not a percolite store")
    };
    EngineError::NotAStore(format!("{} {what}", shown(path)))
}

enum MarkerContent<'a> {
    /// This format, with the WAL id.
    Current(u64),
    OtherFormat(OtherFormat<'a>),
}

fn parse_marker(text: &[u8]) -> Option<MarkerContent<'_>> {
    let text = std::str::from_utf8(text).ok()?.strip_suffix('\n')?.strip_prefix(MARKER_TEXT)?;
    match format_line::parse(text)? {
        Named::Own(rest) => {
            let identity = rest.strip_prefix(WAL_ID_TEXT).filter(|identity| identity.len() == 16)?;
            u64::from_str_radix(identity, 16).ok().map(MarkerContent::Current)
        }
        Named::Other(other) => Some(MarkerContent::OtherFormat(other)),
    }
}

/// Checks the format and returns the WAL id.
fn check_format(path: &Path, marker: &Path, file: &File) -> Result<u64, EngineError> {
    let mut text = Vec::new();
    file.take(MARKER_BYTES_MAX).read_to_end(&mut text).map_err(|error| cannot("read", marker, &error))?;
    match parse_marker(&text) {
        Some(MarkerContent::Current(identity)) => Ok(identity),
        Some(MarkerContent::OtherFormat(other)) => Err(format_error(path, &other)),
        None => Err(invalid_marker_error(marker)),
    }
}

fn format_error(path: &Path, other: &OtherFormat<'_>) -> EngineError {
    EngineError::NotAStore(other.refusal(&shown(path)))
}

/// Removes the files of an interrupted creation. Fails if there are any other files.
fn reset_unfinished(path: &Path) -> Result<(), EngineError> {
    let failed = |error: &io::Error| cannot("list", path, error);
    let mut left = Vec::new();
    let (wal, tables) = (path.join(WAL_DIR), path.join(TABLES_DIR));
    for entry in list_own(path).map_err(|error| failed(&error))? {
        let is_part = entry == wal || entry == tables;
        if is_part && entry.symlink_metadata().is_ok_and(|found| found.is_dir()) {
            left.extend(list(&entry).map_err(|error| failed(&error))?);
        } else if entry.file_name() != Some(OsStr::new(MARKER_UNFINISHED)) {
            left.push(entry);
        }
    }
    // A power cut may have kept the reserve's name and lost the marker's.
    let is_own = |entry: &&PathBuf| {
        if entry.parent() == Some(path) {
            **entry == path.join(RESERVE) && is_file(entry)
        } else {
            is_store_file(entry)
        }
    };
    if let Some(foreign) = left.iter().find(|entry| !is_own(entry)) {
        let what = format!("its creation was interrupted, but {} is not a file of a store", shown(foreign));
        return Err(EngineError::NotAStore(format!("{} is not a percolite store: {what}", shown(path))));
    }
    left.iter().try_for_each(|entry| fs::remove_file(entry).map_err(|error| cannot("remove", entry, &error)))?;
    for directory in [wal, tables].iter().filter(|directory| directory.exists()) {
        fs::remove_dir(directory).map_err(|error| cannot("remove", directory, &error))?;
    }
    Ok(())
}

/// Whether this is a file of RocksDB or of the log, by its name.
fn is_store_file(file: &Path) -> bool {
    let name = file.file_name().and_then(OsStr::to_str).unwrap_or_default();
    is_rocksdb_file(file) || wal::is_log_file_name(name) && is_file(file)
}

fn is_file(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_file())
}

fn is_empty(path: &Path) -> Result<bool, EngineError> {
    Ok(list_own(path).map_err(|error| cannot("list", path, &error))?.is_empty())
}

/// The entries of a directory, without the one that belongs to its file system if the directory is
/// a mount point.
fn list_own(path: &Path) -> io::Result<Vec<PathBuf>> {
    let is_own = |entry: &PathBuf| entry.file_name() != Some(OsStr::new(LOST_AND_FOUND)) || !entry.is_dir();
    Ok(list(path)?.into_iter().filter(is_own).collect())
}

fn list(path: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect()
}

fn cannot_open_marker(marker: &Path, error: &io::Error) -> EngineError {
    match marker.symlink_metadata() {
        Ok(found) if !found.is_file() => EngineError::NotAStore(format!("cannot open {}: {error}", shown(marker))),
        _ => cannot("open", marker, error),
    }
}

fn invalid_marker_error(marker: &Path) -> EngineError {
    let repair = marker.parent().filter(|path| has_data_files(path)).map(repair_hint).unwrap_or_default();
    EngineError::NotAStore(format!("{} is not the marker of a percolite store{repair}", shown(marker)))
}
