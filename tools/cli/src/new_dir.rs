//! A new directory that is removed if the command does not complete.
//!
//! The directory is removed only if [`NewDir::mark_created`] was called. It is not enough that the
//! path did not exist at the start: another process may have created the directory since.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use percolite::ErrorKind;

use crate::advice;
use crate::exit::Code;

pub struct NewDir {
    path: PathBuf,
    existed: bool,
    created: Cell<bool>,
}

impl NewDir {
    /// Must be called before the directory is created: a directory that already exists at this call
    /// is never removed.
    pub fn track(dir: &Path) -> Self {
        let existed = dir.symlink_metadata().is_ok();
        Self { path: dir.to_owned(), existed, created: Cell::new(false) }
    }

    /// Records that this process has created the directory.
    pub fn mark_created(&self) {
        self.created.set(!self.existed);
    }

    /// The error of the command, with `outcome` ("nothing was restored"). If the directory is
    /// removed, an undetermined commit is a plain failure, because its store is removed as well.
    pub fn error(&self, outcome: &str, err: percolite::Error) -> anyhow::Error {
        match err.kind() {
            ErrorKind::Undetermined(cause) if self.created.get() => Code::Failed.error(format!(
                "{outcome}, {} was removed: {}",
                self.path.display(),
                advice::of_library(cause)
            )),
            _ => err.into(),
        }
    }

    /// Keeps the directory, because the command has completed.
    pub fn keep(self) {
        self.created.set(false);
    }
}

impl Drop for NewDir {
    fn drop(&mut self) {
        if self.created.get() {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
