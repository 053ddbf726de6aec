//! A new directory that is removed unless the command completes.
//!
//! It is removed only after [`NewDir::mark_created`]: that the path did not exist at the start is
//! not enough, because another process may have created it since.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use percolite::ErrorKind;

use crate::exit::Code;

pub struct NewDir {
    path: PathBuf,
    existed: bool,
    created: Cell<bool>,
}

impl NewDir {
    /// To be called before the directory is created. One that exists already is never removed.
    pub fn track(dir: &Path) -> Self {
        let existed = dir.symlink_metadata().is_ok();
        Self { path: dir.to_owned(), existed, created: Cell::new(false) }
    }

    /// This process has created it.
    pub fn mark_created(&self) {
        self.created.set(!self.existed);
    }

    /// The error of the command, with `outcome` ("nothing was restored"). An undetermined commit is
    /// a plain failure here, because the store is removed with its directory.
    pub fn error(&self, outcome: &str, err: percolite::Error) -> anyhow::Error {
        match err.kind() {
            ErrorKind::Undetermined(cause) if self.created.get() => {
                Code::Failed.error(format!("{outcome}, {} was removed: {cause}", self.path.display()))
            }
            _ => err.into(),
        }
    }

    /// The command has completed.
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
