//! A directory of the file system.
//!
//! A sync of a file is `fdatasync`, which need not store the file's timestamps. So new content in
//! blocks that were filled with zeros beforehand is synced without a write to the file system's
//! journal.
//!
//! Each error names the call and the path. The operating system's error is its source.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Disk, DiskFile};

/// A real directory.
#[derive(Clone, Debug)]
pub struct OsDisk {
    directory: PathBuf,
}

/// An open file of a real directory.
#[derive(Debug)]
pub struct OsFile {
    file: File,
    path: Arc<Path>,
}

/// A call that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {call} {}: {source}", path.display())]
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
    /// The disk in this directory, which must exist.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    fn open_with(&self, call: &'static str, name: &str, options: &OpenOptions) -> io::Result<OsFile> {
        let path = self.directory.join(name);
        let file = options.open(&path).map_err(|error| failed(call, &path, error))?;
        Ok(OsFile { file, path: path.into() })
    }
}

impl Disk for OsDisk {
    type File = OsFile;

    fn create(&self, name: &str) -> io::Result<OsFile> {
        self.open_with("create", name, OpenOptions::new().read(true).write(true).create_new(true))
    }

    fn open(&self, name: &str) -> io::Result<OsFile> {
        self.open_with("open", name, OpenOptions::new().read(true))
    }

    fn open_writable(&self, name: &str) -> io::Result<OsFile> {
        self.open_with("open", name, OpenOptions::new().read(true).write(true))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        let list = |error| failed("list", &self.directory, error);
        for entry in fs::read_dir(&self.directory).map_err(list)? {
            // Names that are not UTF-8 are left out: this crate creates none.
            if let Ok(name) = entry.map_err(list)?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let path = self.directory.join(name);
        fs::remove_file(&path).map_err(|error| failed("remove", &path, error))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let path = self.directory.join(from);
        fs::rename(&path, self.directory.join(to)).map_err(|error| failed("rename", &path, error))
    }

    fn sync_directory(&self) -> io::Result<()> {
        let synced = File::open(&self.directory).and_then(|directory| directory.sync_all());
        synced.map_err(|error| failed("sync", &self.directory, error))
    }
}

impl DiskFile for OsFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        write_all(&self.file, bytes, offset).map_err(|error| failed("write", &self.path, error))
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match read_once(&self.file, offset.saturating_add(done as u64), rest) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(failed("read", &self.path, error)),
            }
        }
        Ok(done)
    }

    fn len(&self) -> io::Result<u64> {
        let found = self.file.metadata().map_err(|error| failed("read the length of", &self.path, error))?;
        Ok(found.len())
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data().map_err(|error| failed("sync", &self.path, error))
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
