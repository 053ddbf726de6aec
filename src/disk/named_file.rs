//! A file that must keep its name while it is open.

use std::fs::File;
use std::io;

/// An open file that has a name in some directory.
#[derive(Debug)]
pub struct NamedFile {
    file: File,
    /// Whether the file system counts the names of a file. Some in user space do not, and show no
    /// name at all.
    counts_names: bool,
}

impl NamedFile {
    pub fn new(file: File) -> io::Result<Self> {
        Ok(Self { counts_names: names(&file)? > 0, file })
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Fails if the file was removed, or replaced by another one of its name.
    pub fn check_named(&self) -> io::Result<()> {
        if self.counts_names && names(&self.file)? == 0 {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the file was removed or replaced while it was open"));
        }
        Ok(())
    }
}

#[cfg(unix)]
fn names(file: &File) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    Ok(file.metadata()?.nlink())
}

#[cfg(not(unix))]
fn names(_: &File) -> io::Result<u64> {
    Ok(0)
}
