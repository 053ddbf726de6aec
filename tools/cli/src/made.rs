//! A folder that a command makes, and takes away again if it does not come to its end.

use std::path::{Path, PathBuf};

pub struct Made(Option<PathBuf>);

impl Made {
    /// To be named before anything is made. A folder that is there stays, whatever happens.
    pub fn unless_there(folder: &Path) -> Self {
        Self(folder.symlink_metadata().is_err().then(|| folder.to_owned()))
    }

    /// It is whole.
    pub fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Some(folder) = &self.0 {
            // Often it has not come to be.
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}
