//! A new directory: of a checkpoint, or of the store that a repair makes.

use std::fs;
use std::path::{Path, PathBuf};

use super::access::{cannot, not_a_directory};
use super::nested::check_not_nested;
use crate::disk::{Directory, shown};
use crate::engine::EngineError;

/// A directory that did not exist before. Unless it is kept, it is removed on drop: a partial copy
/// takes disk space and would make the next attempt fail.
pub struct NewDirectory {
    directory: Directory,
    is_kept: bool,
}

impl NewDirectory {
    /// Creates the directory and those above it. `what` needs a new directory.
    pub fn create(path: &Path, what: &str) -> Result<Self, EngineError> {
        let path = resolve_new(path, what)?;
        fs::create_dir(&path).map_err(|error| cannot("create", &path, &error))?;
        let opened = Directory::open(&path).inspect_err(|_| _ = fs::remove_dir(&path));
        let directory = opened.map_err(|error| cannot("open", &path, &error))?;
        Ok(Self { directory, is_kept: false })
    }

    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    pub fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for NewDirectory {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        // Errors are ignored: what is left is not a store.
        for entry in fs::read_dir(self.directory.path()).into_iter().flatten().flatten() {
            let path = entry.path();
            let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        }
        let _ = fs::remove_dir(shown(self.directory.path()));
    }
}

/// Creates a directory and those above it, if they are missing, and then calls `make`. If that
/// fails, for example because the umask makes a directory without rights, removes the directories
/// that were created and are empty. So the next attempt begins as this one did.
pub fn create_all<T>(path: &Path, make: impl FnOnce(Directory) -> Result<T, EngineError>) -> Result<T, EngineError> {
    let is_missing = |part: &&Path| !part.as_os_str().is_empty() && part.symlink_metadata().is_err();
    let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
    let created = fs::create_dir_all(path)
        .map_err(|error| not_a_directory(path).unwrap_or_else(|| cannot("create", path, &error)));
    let opened = created.and_then(|()| Directory::open(path).map_err(|error| cannot("open", path, &error)));
    opened.and_then(make).inspect_err(|_| missing.iter().for_each(|part| _ = fs::remove_dir(part)))
}

/// Makes the path of a directory that must not exist absolute and free of symlinks, and creates the
/// directories above it.
pub fn resolve_new(path: &Path, what: &str) -> Result<PathBuf, EngineError> {
    if path.symlink_metadata().is_ok() {
        return Err(EngineError::Io(format!("{} already exists; {what} needs a new directory", path.display())));
    }
    check_not_nested(path)?;
    let absolute = std::path::absolute(path).map_err(|error| cannot("create", path, &error))?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Err(EngineError::Io(format!("{} cannot be a new directory", path.display())));
    };
    let parent = fs::create_dir_all(parent).and_then(|()| parent.canonicalize());
    Ok(parent.map_err(|error| cannot("create the directory of", path, &error))?.join(name))
}
