//! A folder that a command makes, and takes away again if it does not come to its end.
//!
//! That nothing was there before is not enough: another process may have made it in between. So it is taken away only once this
//! one is known to have it.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use percolite::ErrorKind;

use crate::exit::Code;

pub struct Made {
    folder: PathBuf,
    was_there: bool,
    is_ours: Cell<bool>,
}

impl Made {
    /// To be called before anything is made. A folder that is there stays, whatever happens.
    pub fn unless_there(folder: &Path) -> Self {
        let was_there = folder.symlink_metadata().is_ok();
        Self { folder: folder.to_owned(), was_there, is_ours: Cell::new(false) }
    }

    /// This process has made it.
    pub fn is_ours(&self) {
        self.is_ours.set(!self.was_there);
    }

    /// What is said of an error of making it. Whatever the store has become: with the folder it goes.
    pub fn failed(&self, nothing: &str, why: percolite::Error) -> anyhow::Error {
        match why.kind() {
            ErrorKind::Undetermined(cause) if self.is_ours.get() => {
                Code::Failed.error(format!("{nothing}, and nothing is left of {}: {cause}", self.folder.display()))
            }
            _ => why.into(),
        }
    }

    /// It is whole.
    pub fn keep(self) {
        self.is_ours.set(false);
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if self.is_ours.get() {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}
