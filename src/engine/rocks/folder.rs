//! The folder of a store: whose it is, and how it comes to be.
//!
//! A file `PERCOLITE` beside RocksDB's own says that the folder is a store and in which format, so that a foreign or newer
//! folder is refused before anything in it is changed; it is also what a process locks to have the store for itself.
//!
//! While a store is being created the marker has another name, because RocksDB refuses a folder in which its first opening
//! was cut short. From such a folder nothing was ever acknowledged, so it is emptied and begun again; but only of what
//! RocksDB makes.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use crate::engine::EngineError;

/// The format that this program writes. It reads those below as well: format 1 is format 2 without history, and a program that
/// knows nothing of history must not write to a store that keeps it; format 3 has shorter records of values ([`Put`]), which
/// earlier programs cannot read; in format 4 logs may have room behind their records, which earlier programs take for damage.
///
/// [`Put`]: crate::codec::Put
const FORMAT: u32 = 4;
const MARKER: &str = "PERCOLITE";
const UNFINISHED: &str = "PERCOLITE.new";
/// What the marker of a copy is called until all of it is there. A folder with this name alone is neither a store nor taken for
/// one that is being created.
const COPYING: &str = "PERCOLITE.copy";
/// An empty file: what the original of this copy held by leases is not held here, and goes at the first opening.
const COPIED: &str = "PERCOLITE.copied";
const MARKER_TEXT: &str = "percolite store, format ";
/// The file by which RocksDB finds everything else.
const CURRENT: &str = "CURRENT";

/// Of a folder with files of RocksDB, said behind what is not as it should be.
fn may_be_repaired(path: &Path) -> String {
    let path = path.display();
    format!(
        "; if it was one, a repair (percolite repair {path} NEW, or Builder::repair) brings its rows into a new store"
    )
}

/// A folder that this handle has for itself.
pub struct Claim {
    /// Locked while the store is open.
    pub marker: Marker,
    /// Whether the store is still to be created.
    pub is_new: bool,
}

/// A marker that is locked until this is dropped.
#[derive(Debug)]
pub struct Marker(File);

impl Drop for Marker {
    /// By hand, because closing is not enough: a process that another thread is about to start has inherited the open file for a
    /// moment, and would keep the lock as long.
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// Makes sure that the folder is a store of this format or may become one, and locks it.
pub fn claim(path: &Path) -> Result<Claim, EngineError> {
    fs::create_dir_all(path).map_err(|why| not_a_folder(path).unwrap_or_else(|| cannot("create", path, &why)))?;
    let (marker, unfinished) = (path.join(MARKER), path.join(UNFINISHED));
    loop {
        let is_new = !exists(&marker)?;
        if is_new && !is_empty(path)? && !exists(&unfinished)? {
            // Whoever creates a store begins with the one name and ends with the other, so asked in this order there is
            // one of them, unless what is found here is somebody else's.
            if exists(&marker)? {
                continue;
            }
            return Err(no_marker(path));
        }
        let name = if is_new { &unfinished } else { &marker };
        let opened = OpenOptions::new().read(true).write(true).create(is_new).truncate(false).open(name);
        let file = opened.map_err(|why| match why.kind() {
            ErrorKind::IsADirectory => foreign_marker(name),
            _ => cannot("open", name, &why),
        })?;
        let file = match file.try_lock() {
            Ok(()) => Marker(file),
            Err(TryLockError::WouldBlock) => {
                let what = format!("{} is already open in this or another process", path.display());
                return Err(EngineError::Busy(what));
            }
            Err(TryLockError::Error(why)) => return Err(cannot("lock", name, &why)),
        };
        if !is_new {
            let found = check_format(path, &marker, &file.0)?;
            check_database(path)?;
            if found < FORMAT {
                raise_format(&file.0).map_err(|why| cannot("write", &marker, &why))?;
            }
            return Ok(Claim { marker: file, is_new });
        }
        // Another process may have finished the store between the look and the lock.
        if !exists(&marker)? {
            begin_again(path)?;
            return Ok(Claim { marker: file, is_new });
        }
        // Made anew by looking for it, a moment too late. Whoever else has it open finds the same.
        let _ = fs::remove_file(&unfinished);
    }
}

/// Makes sure that the folder is a store of this format, and sees to it that nobody opens it for writing as long as the answer
/// lives. Changes nothing. Others may look at it, too.
pub fn examine(path: &Path) -> Result<Marker, EngineError> {
    let marker = path.join(MARKER);
    let file = match File::open(&marker) {
        Ok(file) => file,
        Err(why) if why.kind() == ErrorKind::NotFound || why.kind() == ErrorKind::NotADirectory => {
            let other = not_a_folder(path).map(|why| EngineError::NotAStore(why.to_string()));
            let what = other.unwrap_or_else(|| match path.try_exists() {
                Ok(true) if path.join(UNFINISHED).exists() => {
                    EngineError::NotAStore(format!("the store in {} was never finished: it is empty", path.display()))
                }
                Ok(true) => no_marker(path),
                _ => EngineError::NotAStore(format!("there is no folder {}", path.display())),
            });
            return Err(what);
        }
        Err(why) => return Err(cannot("open", &marker, &why)),
    };
    let file = match file.try_lock_shared() {
        Ok(()) => Marker(file),
        Err(TryLockError::WouldBlock) => {
            return Err(EngineError::Busy(format!(
                "{} is open for writing in this or another process, and can be looked at when that has closed it",
                path.display()
            )));
        }
        Err(TryLockError::Error(why)) => return Err(cannot("lock", &marker, &why)),
    };
    check_format(path, &marker, &file.0)?;
    check_database(path)?;
    Ok(file)
}

/// Keeps writers away from a folder that was a store, however much of it is left. `None` when its marker is gone. Changes nothing.
pub fn examine_damaged(path: &Path) -> Result<Option<Marker>, EngineError> {
    list(path).map_err(|_| {
        not_a_folder(path).unwrap_or_else(|| EngineError::NotAStore(format!("there is no folder {}", path.display())))
    })?;
    if !holds_rows(path) {
        return Err(EngineError::NotAStore(format!(
            "{} has no tables and no logs: there is nothing to repair",
            path.display()
        )));
    }
    let marker = path.join(MARKER);
    let Ok(file) = File::open(&marker) else { return Ok(None) };
    if let Err(TryLockError::WouldBlock) = file.try_lock_shared() {
        return Err(EngineError::Busy(format!("{} is open for writing in this or another process", path.display())));
    }
    let file = Marker(file);
    let mut text = Vec::new();
    // A marker that cannot be read is damage like any other.
    let _ = (&file.0).read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text);
    match text.trim_end().strip_prefix(MARKER_TEXT).map(str::parse::<u32>) {
        Some(Ok(newer)) if newer > FORMAT => Err(other_format(path, newer)),
        _ => Ok(Some(file)),
    }
}

/// The store is there from here on: the marker appears whole or not at all, and after everything else.
pub fn finish(path: &Path, marker: &Marker) -> io::Result<()> {
    mark(path, &marker.0, UNFINISHED)
}

/// Makes a store of a folder that a copy of a database was put into.
pub fn mark_copy(path: &Path) -> io::Result<()> {
    File::create(path.join(COPIED))?.sync_all()?;
    mark(path, &File::create(path.join(COPYING))?, COPYING)
}

/// Whether the folder is a copy of a store that was not opened for writing yet.
pub fn is_copy(path: &Path) -> bool {
    path.join(COPIED).exists()
}

/// Makes a copy a store of its own.
pub fn adopt(path: &Path) -> io::Result<()> {
    fs::remove_file(path.join(COPIED))?;
    File::open(path)?.sync_all()
}

fn mark(path: &Path, mut marker: &File, name: &str) -> io::Result<()> {
    marker.set_len(0)?;
    marker.write_all(format!("{MARKER_TEXT}{FORMAT}\n").as_bytes())?;
    marker.sync_all()?;
    fs::rename(path.join(name), path.join(MARKER))?;
    let sync = |folder: &Path| File::open(folder)?.sync_all();
    sync(path)?;
    sync_above(&path.canonicalize()?, sync)
}

/// Syncs every folder above. Any of them may be new, made by this or an earlier attempt that was cut short.
fn sync_above(path: &Path, sync: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    for (distance, folder) in path.ancestors().skip(1).enumerate() {
        match sync(folder) {
            Err(why) if distance > 0 && is_out_of_reach(why.kind()) => {}
            synced => synced?,
        }
    }
    Ok(())
}

/// What may not be read, or is of a sort that cannot be synced, was not made for this store.
fn is_out_of_reach(why: ErrorKind) -> bool {
    matches!(why, ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::InvalidInput)
}

fn exists(file: &Path) -> Result<bool, EngineError> {
    file.try_exists().map_err(|why| cannot("look for", file, &why))
}

fn check_database(path: &Path) -> Result<(), EngineError> {
    if exists(&path.join(CURRENT))? {
        return Ok(());
    }
    Err(EngineError::Corruption(format!("{} has the marker of a store, but its database is gone", path.display())))
}

/// Whether RocksDB has left anything here that rows can be in.
fn holds_rows(path: &Path) -> bool {
    let may_hold = |file: &PathBuf| file.extension().is_some_and(|end| end == "sst" || end == "log");
    list(path).is_ok_and(|entries| entries.iter().any(|entry| is_of_rocksdb(entry) && may_hold(entry)))
}

fn no_marker(path: &Path) -> EngineError {
    let what = if is_empty(path).unwrap_or_default() {
        "is an empty folder, not a percolite store".into()
    } else if holds_rows(path) {
        let repair = may_be_repaired(path);
        format!("has tables or logs of RocksDB and no file {MARKER}: it is not a percolite store{repair}")
    } else {
        format!("is not empty and has no file {MARKER}: it is not a percolite store")
    };
    EngineError::NotAStore(format!("{} {what}", path.display()))
}

/// The one digit in which the formats differ is written where it stands: a crash leaves the one or the other.
fn raise_format(mut marker: &File) -> io::Result<()> {
    marker.seek(SeekFrom::Start(MARKER_TEXT.len() as u64))?;
    marker.write_all(FORMAT.to_string().as_bytes())?;
    marker.sync_all()
}

fn check_format(path: &Path, marker: &Path, mut file: &File) -> Result<u32, EngineError> {
    let mut text = Vec::new();
    file.read_to_end(&mut text).map_err(|why| cannot("read", marker, &why))?;
    let text = String::from_utf8_lossy(&text);
    match text.trim_end().strip_prefix(MARKER_TEXT).map(str::parse::<u32>) {
        Some(Ok(format @ 1..=FORMAT)) => Ok(format),
        Some(Ok(other)) => Err(other_format(path, other)),
        _ => Err(foreign_marker(marker)),
    }
}

fn other_format(path: &Path, other: u32) -> EngineError {
    EngineError::NotAStore(format!(
        "{} has format {other}, this program reads formats 1 to {FORMAT}: use another version of percolite",
        path.display()
    ))
}

/// Removes what a creation that was cut short has left, if there is nothing else.
fn begin_again(path: &Path) -> Result<(), EngineError> {
    let entries = list(path).map_err(|why| cannot("look into", path, &why))?;
    let left: Vec<PathBuf> =
        entries.into_iter().filter(|entry| entry.file_name() != Some(OsStr::new(UNFINISHED))).collect();
    if let Some(foreign) = left.iter().find(|entry| !is_of_rocksdb(entry)) {
        let what = format!("a store was begun in it, but {} is no part of one", foreign.display());
        return Err(EngineError::NotAStore(format!("{} is not a percolite store: {what}", path.display())));
    }
    left.iter().try_for_each(|entry| fs::remove_file(entry).map_err(|why| cannot("remove", entry, &why)))
}

/// A process that was killed while it opened has left a file that RocksDB never looks at and never removes. It is in nobody's
/// way, so neither is a failure here.
pub fn remove_unfinished_options(path: &Path) {
    let is_one = |entry: &PathBuf| {
        let name = entry.file_name().and_then(OsStr::to_str).unwrap_or_default();
        name.starts_with("OPTIONS-") && name.contains(".dbtmp") && is_of_rocksdb(entry)
    };
    for left in list(path).unwrap_or_default().iter().filter(|entry| is_one(entry)) {
        let _ = fs::remove_file(left);
    }
}

/// Whether RocksDB gives its files names like this.
fn is_of_rocksdb(file: &Path) -> bool {
    let name = file.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let numbered = |(before, after): (&str, &str)| match before {
        "MANIFEST" | "OPTIONS" => is_number(after.strip_suffix(".dbtmp").unwrap_or(after)),
        _ => is_number(before) && matches!(after, "log" | "sst" | "blob" | "dbtmp"),
    };
    let is_file = file.symlink_metadata().is_ok_and(|found| found.is_file());
    is_file
        && (matches!(name, CURRENT | "LOCK" | "IDENTITY" | "LOG")
            || name.strip_prefix("LOG.old.").is_some_and(is_number)
            || name.split_once(['-', '.']).is_some_and(numbered))
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
    Some(EngineError::Open(format!("{} is {what}", path.display())))
}

fn foreign_marker(marker: &Path) -> EngineError {
    let repair = marker.parent().filter(|path| holds_rows(path)).map(may_be_repaired).unwrap_or_default();
    EngineError::NotAStore(format!("{} is not a percolite store's{repair}", marker.display()))
}

fn cannot(what: &str, path: &Path, why: &io::Error) -> EngineError {
    EngineError::Open(format!("cannot {what} {}: {why}", path.display()))
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
        sync_above(Path::new("/mnt/n1/a/store"), sync).unwrap();
        assert_eq!(seen.into_inner(), ["/mnt/n1/a", "/mnt/n1", "/mnt", "/"].map(PathBuf::from));
    }

    #[test]
    fn a_folder_above_that_fails_to_sync_fails_the_creation() {
        for (failing, kind) in [("/a/b", ErrorKind::PermissionDenied), ("/a", ErrorKind::Other)] {
            let sync = |folder: &Path| if folder == Path::new(failing) { Err(kind.into()) } else { Ok(()) };
            assert_eq!(sync_above(Path::new("/a/b/store"), sync).unwrap_err().kind(), kind);
        }
    }

    #[test]
    fn rocksdbs_names_are_told_from_others() {
        let folder = tempfile::tempdir().unwrap();
        let is_of_rocksdb = |name: &str| {
            let file = folder.path().join(name);
            fs::write(&file, "").unwrap();
            is_of_rocksdb(&file)
        };
        let own =
            ["CURRENT", "LOCK", "IDENTITY", "LOG", "LOG.old.1763726400000000", "MANIFEST-000001", "OPTIONS-000007"];
        let numbered = ["000004.log", "000012.sst", "000013.blob", "000000.dbtmp", "OPTIONS-000007.dbtmp"];
        for name in own.into_iter().chain(numbered) {
            assert!(is_of_rocksdb(name), "{name}");
        }
        for name in
            ["precious.txt", "app.log", "LOG.txt", "1.txt", ".log", "MANIFEST-a", "OPTIONS", "2024-01", "CURRENT.1"]
        {
            assert!(!is_of_rocksdb(name), "{name}");
        }
        fs::create_dir(folder.path().join("000005.log")).unwrap();
        assert!(!super::is_of_rocksdb(&folder.path().join("000005.log")), "a folder");
    }
}
