//! A directory of the file system.
//!
//! A sync of a file is `fdatasync`, which need not store the file's timestamps. So new content in
//! blocks that were filled with zeros beforehand is synced without a write to the file system's
//! journal.
//!
//! A file that was removed or replaced stays writable, but what is written to it is lost. So syncs
//! look whether the file is still at its name, and not truncated, each [interval](CheckInterval).
//!
//! Each error names the call and the path. The operating system's error is its source.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::check_interval::CheckInterval;
use super::named_file::NamedFile;
use super::own_file::{open_own, open_own_to_change, open_own_with};
use super::standard_streams::occupy_standard_streams;
use super::{Directory, Disk, DiskFile, shown};

/// A real directory.
#[derive(Clone, Debug)]
pub struct OsDisk {
    directory: Directory,
    is_full: bool,
    names: Arc<CheckInterval>,
}

/// An open file of a real directory.
#[derive(Debug)]
pub struct OsFile {
    file: NamedFile,
    path: Arc<Path>,
}

/// A call that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {call} {}: {source}", shown(path))]
struct FailedCall {
    call: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// Adds the call and the path to an error, and keeps its kind.
fn failed(call: &'static str, path: &Path, source: io::Error) -> io::Error {
    io::Error::new(source.kind(), FailedCall { call, path: path.to_owned(), source })
}

impl OsDisk {
    /// The disk in this directory.
    pub fn new(directory: Directory) -> Self {
        Self { directory, is_full: false, names: Arc::default() }
    }

    /// The disk in this directory, which is full: the log takes as little space as it can.
    #[cfg(feature = "rocks")]
    pub fn new_full(directory: Directory) -> Self {
        Self { directory, is_full: true, names: Arc::default() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn open_with(
        &self,
        call: &'static str,
        name: &str,
        open: impl FnOnce(&Path) -> io::Result<File>,
    ) -> io::Result<OsFile> {
        let path = self.path(name);
        let file = open(&path).map_err(|error| failed(call, &path, error))?;
        Ok(OsFile { file: NamedFile::new(file, &self.directory, name), path: path.into() })
    }
}

impl Disk for OsDisk {
    type File = OsFile;

    fn create(&self, name: &str) -> io::Result<OsFile> {
        occupy_standard_streams()?;
        self.open_with("create", name, |path| {
            open_own_with(path, OpenOptions::new().read(true).write(true).create_new(true))
        })
    }

    fn open(&self, name: &str) -> io::Result<OsFile> {
        self.open_with("open", name, open_own)
    }

    fn open_writable(&self, name: &str) -> io::Result<OsFile> {
        self.open_with("open", name, |path| open_own_to_change(path, &mut OpenOptions::new()))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        let list = |error| failed("list", self.directory.path(), error);
        for entry in fs::read_dir(self.directory.path()).map_err(list)? {
            // Names that are not UTF-8 are left out: this crate creates none.
            if let Ok(name) = entry.map_err(list)?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let path = self.path(name);
        fs::remove_file(&path).map_err(|error| failed("remove", &path, error))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let path = self.path(from);
        fs::rename(&path, self.path(to)).map_err(|error| failed("rename", &path, error))
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.directory.sync().map_err(|error| failed("sync", self.directory.path(), error))
    }

    fn names_to_check(&self) -> Option<&Directory> {
        self.names.is_due().then_some(&self.directory)
    }

    fn is_full(&self) -> bool {
        self.is_full
    }
}

impl DiskFile for OsFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        write_all(self.file.file(), bytes, offset).map_err(|error| failed("write", &self.path, error))?;
        self.file.note_written(offset + bytes.len() as u64);
        Ok(())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match read_once(self.file.file(), offset.saturating_add(done as u64), rest) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(failed("read", &self.path, error)),
            }
        }
        Ok(done)
    }

    fn len(&self) -> io::Result<u64> {
        let found = self.file.file().metadata().map_err(|error| failed("read the length of", &self.path, error))?;
        Ok(found.len())
    }

    fn sync(&self) -> io::Result<()> {
        self.file
            .file()
            .sync_data()
            .and_then(|()| self.file.check_in_place())
            .map_err(|error| failed("sync", &self.path, error))
    }
}

#[cfg(unix)]
fn write_all(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(not(unix))]
fn write_all(mut file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    use std::io::{Seek, SeekFrom, Write};
    file.seek(SeekFrom::Start(offset))?;
    file.write_all(bytes)
}

#[cfg(unix)]
fn read_once(file: &File, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, into, offset)
}

#[cfg(not(unix))]
fn read_once(mut file: &File, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    use std::io::{Read, Seek, SeekFrom};
    file.seek(SeekFrom::Start(offset))?;
    file.read(into)
}
