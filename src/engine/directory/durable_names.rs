//! Durable names: the directories above a new store.
//!
//! Each of them may be new, made by this attempt or by an interrupted earlier one, so each is
//! synced. A directory above a mount point is not synced, because the mount point was there before
//! the store. A directory that this user may search but not read cannot be opened, and so not be
//! synced by itself. Then the whole file system is synced once.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::access::cannot;
use crate::disk::Directory;
use crate::engine::EngineError;

/// The device and the number of a directory.
type Identity = (u64, u64);

/// Makes the directory's own name durable, and those of all directories above it.
pub fn sync_ancestors(directory: &Directory) -> Result<(), EngineError> {
    let sync = |path: &Path| File::open(path)?.sync_all();
    if sync_each(directory.path(), sync, identity)? {
        directory.sync_file_system().map_err(|error| cannot("sync", directory.path(), &error))?;
    }
    Ok(())
}

/// Syncs the directories above `path`, up to the mount point of its file system. Returns whether
/// any of them could not be opened.
fn sync_each(
    path: &Path,
    sync: impl Fn(&Path) -> io::Result<()>,
    identity: impl Fn(&Path) -> io::Result<Identity>,
) -> Result<bool, EngineError> {
    let own = identity(path).map_err(|error| cannot("inspect", path, &error))?;
    let (mut below, mut directory, mut unreadable) = (own, path.to_owned(), false);
    loop {
        directory.push("..");
        let found = match identity(&directory) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return Ok(true),
            found => found.map_err(|error| cannot("inspect", &plain(&directory), &error))?,
        };
        // The root is its own parent.
        if found == below || found.0 != own.0 {
            return Ok(unreadable);
        }
        match sync(&directory) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => unreadable = true,
            // A directory further up that cannot be synced was not made for this store.
            Err(error) if below != own && is_tolerated(error.kind()) => {}
            synced => synced.map_err(|error| cannot("sync", &plain(&directory), &error))?,
        }
        below = found;
    }
}

/// The path without parents in it, for a text.
fn plain(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.into())
}

fn is_tolerated(error: ErrorKind) -> bool {
    matches!(error, ErrorKind::ReadOnlyFilesystem | ErrorKind::InvalidInput)
}

#[cfg(unix)]
fn identity(path: &Path) -> io::Result<Identity> {
    use std::os::unix::fs::MetadataExt as _;
    let found = path.metadata()?;
    Ok((found.dev(), found.ino()))
}

#[cfg(not(unix))]
fn identity(path: &Path) -> io::Result<Identity> {
    Ok((0, path.canonicalize()?.ancestors().count() as u64))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// The path without its last components, one for each `..` at its end.
    fn resolved(path: &Path) -> PathBuf {
        let above = path.iter().filter(|name| *name == "..").count();
        let named: PathBuf = path.iter().filter(|name| *name != "..").collect();
        named.ancestors().nth(above).unwrap_or(Path::new("/")).into()
    }

    /// Syncs the directories above `/mnt/n1/a/store`, of which those in `failing` fail. Returns the
    /// result and the directories that were tried.
    fn tried(failing: &[(&str, ErrorKind)], mount: &str) -> (Result<bool, EngineError>, Vec<PathBuf>) {
        let seen = RefCell::new(Vec::new());
        let sync = |directory: &Path| {
            let directory = resolved(directory);
            seen.borrow_mut().push(directory.clone());
            let error = failing.iter().find(|(path, _)| directory == Path::new(path));
            error.map_or(Ok(()), |(_, kind)| Err((*kind).into()))
        };
        let identity = |path: &Path| {
            let path = resolved(path);
            Ok((u64::from(path.starts_with(mount)), path.iter().count() as u64))
        };
        let synced = sync_each(Path::new("/mnt/n1/a/store"), sync, identity);
        (synced, seen.into_inner())
    }

    #[test]
    fn all_directories_above_a_new_store_are_synced_up_to_the_mount_point() {
        let (synced, seen) = tried(&[], "/");
        assert!(!synced.unwrap());
        assert_eq!(seen, ["/mnt/n1/a", "/mnt/n1", "/mnt", "/"].map(PathBuf::from));
        let (synced, seen) = tried(&[("/mnt", ErrorKind::Other)], "/mnt/n1");
        assert!(!synced.unwrap());
        assert_eq!(seen, ["/mnt/n1/a", "/mnt/n1"].map(PathBuf::from));
    }

    #[test]
    fn if_a_directory_cannot_be_opened_the_file_system_is_synced() {
        for path in ["/mnt/n1/a", "/mnt", "/"] {
            let (synced, seen) = tried(&[(path, ErrorKind::PermissionDenied)], "/");
            assert!(synced.unwrap(), "{path}");
            assert_eq!(seen.len(), 4, "{path}");
        }
    }

    #[test]
    fn a_sync_that_fails_fails_the_creation() {
        let cases =
            [("/mnt/n1/a", ErrorKind::InvalidInput), ("/mnt/n1/a", ErrorKind::Other), ("/mnt/n1", ErrorKind::Other)];
        for case in cases {
            let error = tried(&[case], "/").0.unwrap_err().to_string();
            assert!(error.starts_with("cannot sync "), "{error}");
        }
        assert!(!tried(&[("/mnt", ErrorKind::ReadOnlyFilesystem)], "/").0.unwrap());
    }
}
