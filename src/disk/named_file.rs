//! A file that must keep its name and its content while it is open.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};

use super::Directory;
use super::check_interval::CheckInterval;

/// An open file of a directory.
#[derive(Debug)]
pub struct NamedFile {
    file: File,
    directory: Directory,
    name: Box<str>,
    /// The end of what was written furthest, in bytes.
    written_end: AtomicU64,
    names: CheckInterval,
}

impl NamedFile {
    pub fn new(file: File, directory: &Directory, name: &str) -> Self {
        Self {
            file,
            directory: directory.clone(),
            name: name.into(),
            written_end: AtomicU64::new(0),
            names: CheckInterval::default(),
        }
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// To be called after each write.
    pub fn note_written(&self, end: u64) {
        self.written_end.fetch_max(end, Ordering::AcqRel);
    }

    /// Fails if the name leads to no or another file now, or if the file was truncated: then what
    /// was written to it will not be found.
    pub fn check_in_place(&self) -> io::Result<()> {
        if !self.names.is_due() {
            return Ok(());
        }
        self.directory.check_name(&self.name, &self.file, "the file")?;
        // Read before the length: another thread may write meanwhile.
        let written_end = self.written_end.load(Ordering::Acquire);
        if self.file.metadata()?.len() < written_end {
            return Err(truncated_error());
        }
        Ok(())
    }
}

/// The error of a file that is shorter than what was written to it.
pub fn truncated_error() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "the file was truncated while it was open")
}
