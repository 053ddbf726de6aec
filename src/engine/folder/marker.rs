//! The marker of a store's folder: what it is, and how it comes to be.
//!
//! A file `PERCOLITE` says that the folder is a store, in which format, and which log is its own, so that a foreign or newer folder is
//! refused before anything in it is changed; it is also what a process locks to have the store for itself.
//!
//! While a store is being created the marker has another name. From such a folder nothing was ever acknowledged, so it is emptied and
//! begun again; but only of what creation makes.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

use super::{TABLES_DIR, WAL_DIR};
use crate::engine::EngineError;
use crate::engine::rocks::names::is_rocksdb_file;
use crate::wal;

/// The format that this program reads and writes.
const FORMAT: u32 = 1;
const MARKER: &str = "PERCOLITE";
const MARKER_UNFINISHED: &str = "PERCOLITE.new";
/// What the marker of a copy is called until all of it is there. A folder with this name alone is neither a store nor taken for
/// one that is being created.
const CHECKPOINT_UNFINISHED: &str = "PERCOLITE.copy";
/// An empty file: what the original of this copy held by leases is not held here, and goes at the first opening.
const CHECKPOINT_FLAG: &str = "PERCOLITE.copied";
const MARKER_TEXT: &str = "percolite store, format ";
/// What follows the format: the identity of the log. Stores of the time before the first release have nothing there.
const IDENTITY_TEXT: &str = ", log ";
/// The file by which RocksDB finds everything else.
const ROCKSDB_CURRENT: &str = "CURRENT";

/// Of a folder with files of RocksDB, said behind what is not as it should be.
fn repair_hint(path: &Path) -> String {
    let path = path.display();
    format!(
        "; if it was one, a repair (percolite repair {path} NEW, or Builder::repair) brings its rows into a new store"
    )
}

/// A folder that this handle has for itself.
pub struct LockedDir {
    /// Locked while the store is open.
    pub marker: StoreLock,
    /// Of the log; `None` if the store is still to be created.
    pub identity: Option<u64>,
}

/// A marker that is locked until this is dropped.
#[derive(Debug)]
pub struct StoreLock(File);

impl Drop for StoreLock {
    /// By hand, because closing is not enough: a process that another thread is about to start has inherited the open file for a
    /// moment, and would keep the lock as long.
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// Makes sure that the folder is a store of this format or may become one, and locks it.
pub fn lock_exclusive(path: &Path) -> Result<LockedDir, EngineError> {
    fs::create_dir_all(path).map_err(|why| not_a_folder(path).unwrap_or_else(|| cannot("create", path, &why)))?;
    let (marker, unfinished) = (path.join(MARKER), path.join(MARKER_UNFINISHED));
    loop {
        let is_new = !exists(&marker)?;
        if is_new && !is_empty(path)? && !exists(&unfinished)? {
            // Whoever creates a store begins with the one name and ends with the other, so asked in this order there is
            // one of them, unless what is found here is somebody else's.
            if exists(&marker)? {
                continue;
            }
            return Err(missing_marker_error(path));
        }
        let name = if is_new { &unfinished } else { &marker };
        let opened = OpenOptions::new().read(true).write(true).create(is_new).truncate(false).open(name);
        let file = opened.map_err(|why| match why.kind() {
            ErrorKind::IsADirectory => invalid_marker_error(name),
            _ => cannot("open", name, &why),
        })?;
        let file = match file.try_lock() {
            Ok(()) => StoreLock(file),
            Err(TryLockError::WouldBlock) => {
                let what = format!("{} is already open in this or another process", path.display());
                return Err(EngineError::AlreadyOpen(what));
            }
            Err(TryLockError::Error(why)) => return Err(cannot("lock", name, &why)),
        };
        if !is_new {
            let identity = check_format(path, &marker, &file.0)?;
            check_tables_exist(path)?;
            return Ok(LockedDir { marker: file, identity: Some(identity) });
        }
        // Another process may have finished the store between the look and the lock.
        if !exists(&marker)? {
            reset_unfinished(path)?;
            return Ok(LockedDir { marker: file, identity: None });
        }
        // Made anew by looking for it, a moment too late. Whoever else has it open finds the same.
        let _ = fs::remove_file(&unfinished);
    }
}

/// Makes sure that the folder is a store of this format, and sees to it that nobody opens it for writing as long as the answer
/// lives. Changes nothing. Others may look at it, too.
pub fn lock_shared(path: &Path) -> Result<(StoreLock, u64), EngineError> {
    let marker = path.join(MARKER);
    let file = match File::open(&marker) {
        Ok(file) => file,
        Err(why) if why.kind() == ErrorKind::NotFound || why.kind() == ErrorKind::NotADirectory => {
            let other = not_a_folder(path).map(|why| EngineError::NotAStore(why.to_string()));
            let what = other.unwrap_or_else(|| match path.try_exists() {
                Ok(true) if path.join(MARKER_UNFINISHED).exists() => {
                    EngineError::NotAStore(format!("the store in {} was never finished: it is empty", path.display()))
                }
                Ok(true) => missing_marker_error(path),
                _ => EngineError::NotAStore(format!("there is no folder {}", path.display())),
            });
            return Err(what);
        }
        Err(why) => return Err(cannot("open", &marker, &why)),
    };
    let file = match file.try_lock_shared() {
        Ok(()) => StoreLock(file),
        Err(TryLockError::WouldBlock) => {
            return Err(EngineError::AlreadyOpen(format!(
                "{} is open for writing in this or another process, and can be looked at when that has closed it",
                path.display()
            )));
        }
        Err(TryLockError::Error(why)) => return Err(cannot("lock", &marker, &why)),
    };
    let identity = check_format(path, &marker, &file.0)?;
    check_tables_exist(path)?;
    Ok((file, identity))
}

/// Keeps writers away from a folder that was a store, however much of it is left. `None` when its marker is gone. Changes nothing.
pub fn lock_for_repair(path: &Path) -> Result<Option<StoreLock>, EngineError> {
    list(path).map_err(|_| {
        not_a_folder(path).unwrap_or_else(|| EngineError::NotAStore(format!("there is no folder {}", path.display())))
    })?;
    if !has_data_files(path) {
        return Err(EngineError::NotAStore(format!(
            "{} has no tables and no log: there is nothing to repair",
            path.display()
        )));
    }
    let marker = path.join(MARKER);
    let Ok(file) = File::open(&marker) else { return Ok(None) };
    if let Err(TryLockError::WouldBlock) = file.try_lock_shared() {
        return Err(EngineError::AlreadyOpen(format!(
            "{} is open for writing in this or another process",
            path.display()
        )));
    }
    let file = StoreLock(file);
    let mut text = Vec::new();
    // A marker that cannot be read is damage like any other.
    let _ = (&file.0).read_to_end(&mut text);
    match parse_marker(&text) {
        Some(MarkerContent::OtherFormat(format)) => Err(format_error(path, format)),
        _ => Ok(Some(file)),
    }
}

/// The store is there from here on: the marker appears whole or not at all, and after everything else.
pub fn commit_marker(path: &Path, marker: &StoreLock, identity: u64) -> io::Result<()> {
    write_marker(path, &marker.0, MARKER_UNFINISHED, identity)
}

/// Makes a store of a folder that a copy of a database was put into.
pub fn commit_checkpoint_marker(path: &Path, identity: u64) -> io::Result<()> {
    File::create(path.join(CHECKPOINT_FLAG))?.sync_all()?;
    write_marker(path, &File::create(path.join(CHECKPOINT_UNFINISHED))?, CHECKPOINT_UNFINISHED, identity)
}

/// Whether the folder is a copy of a store that was not opened for writing yet.
pub fn is_fresh_checkpoint(path: &Path) -> bool {
    path.join(CHECKPOINT_FLAG).exists()
}

/// Makes a copy a store of its own.
pub fn clear_checkpoint_flag(path: &Path) -> io::Result<()> {
    fs::remove_file(path.join(CHECKPOINT_FLAG))?;
    File::open(path)?.sync_all()
}

fn write_marker(path: &Path, mut marker: &File, name: &str, identity: u64) -> io::Result<()> {
    marker.set_len(0)?;
    marker.write_all(format!("{MARKER_TEXT}{FORMAT}{IDENTITY_TEXT}{identity:016x}\n").as_bytes())?;
    marker.sync_all()?;
    fs::rename(path.join(name), path.join(MARKER))?;
    let sync = |folder: &Path| File::open(folder)?.sync_all();
    sync(path)?;
    sync_ancestors(&path.canonicalize()?, sync)
}

/// Syncs every folder above. Any of them may be new, made by this or an earlier attempt that was cut short.
fn sync_ancestors(path: &Path, sync: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    for (distance, folder) in path.ancestors().skip(1).enumerate() {
        match sync(folder) {
            Err(why) if distance > 0 && is_tolerated(why.kind()) => {}
            synced => synced?,
        }
    }
    Ok(())
}

/// What may not be read, or is of a sort that cannot be synced, was not made for this store.
fn is_tolerated(why: ErrorKind) -> bool {
    matches!(why, ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::InvalidInput)
}

fn exists(file: &Path) -> Result<bool, EngineError> {
    file.try_exists().map_err(|why| cannot("look for", file, &why))
}

fn check_tables_exist(path: &Path) -> Result<(), EngineError> {
    if exists(&path.join(TABLES_DIR).join(ROCKSDB_CURRENT))? {
        return Ok(());
    }
    Err(EngineError::Corruption(format!("{} has the marker of a store, but its database is gone", path.display())))
}

/// Whether there is anything here that rows can be in.
fn has_data_files(path: &Path) -> bool {
    let has = |folder: &str, end: &str| {
        let entries = list(&path.join(folder)).unwrap_or_default();
        entries.iter().any(|entry| entry.extension().is_some_and(|found| found == end) && is_store_file(entry))
    };
    has(TABLES_DIR, "sst") || has(WAL_DIR, "segment")
}

fn missing_marker_error(path: &Path) -> EngineError {
    let what = if is_empty(path).unwrap_or_default() {
        "is an empty folder, not a percolite store".into()
    } else if has_data_files(path) {
        let repair = repair_hint(path);
        format!("has tables or a log and no file {MARKER}: it is not a percolite store{repair}")
    } else {
        format!("is not empty and has no file {MARKER}: it is not a percolite store")
    };
    EngineError::NotAStore(format!("{} {what}", path.display()))
}

enum MarkerContent {
    /// Of this format, with the identity of the log.
    Current(u64),
    /// Of another one; 0: of a time before the first release.
    OtherFormat(u32),
}

fn parse_marker(text: &[u8]) -> Option<MarkerContent> {
    let text = std::str::from_utf8(text).ok()?.strip_suffix('\n')?.strip_prefix(MARKER_TEXT)?;
    let Some((format, identity)) = text.split_once(IDENTITY_TEXT) else {
        return text.parse::<u32>().ok().map(|_| MarkerContent::OtherFormat(0));
    };
    match format.parse().ok()? {
        FORMAT => u64::from_str_radix(identity, 16).ok().filter(|_| identity.len() == 16).map(MarkerContent::Current),
        other => Some(MarkerContent::OtherFormat(other)),
    }
}

/// The identity of the log.
fn check_format(path: &Path, marker: &Path, mut file: &File) -> Result<u64, EngineError> {
    let mut text = Vec::new();
    file.read_to_end(&mut text).map_err(|why| cannot("read", marker, &why))?;
    match parse_marker(&text) {
        Some(MarkerContent::Current(identity)) => Ok(identity),
        Some(MarkerContent::OtherFormat(other)) => Err(format_error(path, other)),
        None => Err(invalid_marker_error(marker)),
    }
}

fn format_error(path: &Path, other: u32) -> EngineError {
    let path = path.display();
    EngineError::NotAStore(if other == 0 {
        format!(
            "{path} was made by a development version of percolite, before format {FORMAT}: dump it with that version"
        )
    } else {
        format!("{path} has format {other}, this program reads format {FORMAT}: use another version of percolite")
    })
}

/// Removes what a creation that was cut short has left, if there is nothing else.
fn reset_unfinished(path: &Path) -> Result<(), EngineError> {
    let failed = |why: &io::Error| cannot("look into", path, why);
    let mut left = Vec::new();
    let (log, tables) = (path.join(WAL_DIR), path.join(TABLES_DIR));
    for entry in list(path).map_err(|why| failed(&why))? {
        if entry == log || entry == tables {
            left.extend(list(&entry).map_err(|why| failed(&why))?);
        } else if entry.file_name() != Some(OsStr::new(MARKER_UNFINISHED)) {
            left.push(entry);
        }
    }
    if let Some(foreign) = left.iter().find(|entry| entry.parent() == Some(path) || !is_store_file(entry)) {
        let what = format!("a store was begun in it, but {} is no part of one", foreign.display());
        return Err(EngineError::NotAStore(format!("{} is not a percolite store: {what}", path.display())));
    }
    left.iter().try_for_each(|entry| fs::remove_file(entry).map_err(|why| cannot("remove", entry, &why)))?;
    for folder in [log, tables].iter().filter(|folder| folder.exists()) {
        fs::remove_dir(folder).map_err(|why| cannot("remove", folder, &why))?;
    }
    Ok(())
}

/// Whether it is a file as RocksDB or the log make it.
fn is_store_file(file: &Path) -> bool {
    let name = file.file_name().and_then(OsStr::to_str).unwrap_or_default();
    is_rocksdb_file(file) || wal::is_segment_name(name) && file.symlink_metadata().is_ok_and(|found| found.is_file())
}

fn is_empty(path: &Path) -> Result<bool, EngineError> {
    Ok(list(path).map_err(|why| cannot("look into", path, &why))?.is_empty())
}

fn list(path: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect()
}

/// What is in the way of a folder, said better than by the operating system.
fn not_a_folder(path: &Path) -> Option<EngineError> {
    let what = match path.metadata() {
        Ok(found) if !found.is_dir() => "a file, not a folder",
        Err(_) if path.is_symlink() => "a link to nothing",
        _ => return None,
    };
    Some(EngineError::Io(format!("{} is {what}", path.display())))
}

fn invalid_marker_error(marker: &Path) -> EngineError {
    let repair = marker.parent().filter(|path| has_data_files(path)).map(repair_hint).unwrap_or_default();
    EngineError::NotAStore(format!("{} is not a percolite store's{repair}", marker.display()))
}

fn cannot(what: &str, path: &Path, why: &io::Error) -> EngineError {
    EngineError::Io(format!("cannot {what} {}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn every_folder_above_a_new_store_is_synced() {
        let seen = RefCell::new(Vec::new());
        let sync = |folder: &Path| {
            seen.borrow_mut().push(folder.to_owned());
            if folder == Path::new("/mnt") { Err(ErrorKind::PermissionDenied.into()) } else { Ok(()) }
        };
        sync_ancestors(Path::new("/mnt/n1/a/store"), sync).unwrap();
        assert_eq!(seen.into_inner(), ["/mnt/n1/a", "/mnt/n1", "/mnt", "/"].map(PathBuf::from));
    }

    #[test]
    fn a_folder_above_that_fails_to_sync_fails_the_creation() {
        for (failing, kind) in [("/a/b", ErrorKind::PermissionDenied), ("/a", ErrorKind::Other)] {
            let sync = |folder: &Path| if folder == Path::new(failing) { Err(kind.into()) } else { Ok(()) };
            assert_eq!(sync_ancestors(Path::new("/a/b/store"), sync).unwrap_err().kind(), kind);
        }
    }
}
