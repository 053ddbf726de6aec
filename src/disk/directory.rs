//! A directory that was opened once, and whose files are reached through it.
//!
//! A path may lead elsewhere later: the process changes its current directory, a symlink is
//! switched, or the directory is renamed, replaced by another one or covered by a mount. A store
//! that went on using the path would write to another store, and delete its files. So a path is
//! used once, to open the directory.
//!
//! On Linux `/proc/self/fd/N` leads to the directory that is open as descriptor `N`, wherever it is
//! now. Any code that takes a path can use it, RocksDB included. If the directory was removed, no
//! file can be created in it, which is an error. Without `/proc`, and on other systems, the files
//! are reached by the directory's canonical path. That path depends neither on the current
//! directory nor on symlinks, but a renamed directory is not followed.

use std::borrow::Cow;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::standard_streams::occupy_standard_streams;

/// What leads to an open directory, before the number of its descriptor.
const DESCRIPTORS: &str = "/proc/self/fd/";

/// An open directory; clones share the descriptor.
#[derive(Clone)]
pub struct Directory {
    handle: Arc<File>,
    path: PathBuf,
    location: PathBuf,
}

impl Directory {
    /// Opens an existing directory.
    pub fn open(path: &Path) -> io::Result<Self> {
        occupy_standard_streams()?;
        // With the dot, opening anything but a directory fails, and a pipe does not block.
        let handle = File::open(path.join("."))?;
        let reached = path_of_descriptor(&handle);
        let location = match &reached {
            // A path that is too long for a call of the system cannot be read either.
            Some(reached) => fs::read_link(reached).unwrap_or_else(|_| path.into()),
            None => path.canonicalize()?,
        };
        Ok(Self { path: reached.unwrap_or_else(|| location.clone()), handle: Arc::new(handle), location })
    }

    /// Opens a directory in this one.
    pub fn subdirectory(&self, name: &str) -> io::Result<Self> {
        Self::open(&self.path.join(name))
    }

    /// The path by which files are reached while the directory is open.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the directory was when it was opened, for texts: absolute and without symlinks, if
    /// that is known.
    pub fn location(&self) -> &Path {
        &self.location
    }

    /// Fails if the name does not lead to the open file or directory `what` any more.
    #[cfg(unix)]
    pub fn check_name(&self, name: &str, open: &File, what: &str) -> io::Result<()> {
        use rustix::fs::{AtFlags, fstat, statat};
        let lost = || {
            let text = format!("{what} was removed or replaced while it was open");
            Err(io::Error::new(io::ErrorKind::NotFound, text))
        };
        let id = |found: &rustix::fs::Stat| (found.st_dev, found.st_ino);
        match statat(&self.handle, name, AtFlags::empty()) {
            Ok(found) if id(&found) == id(&fstat(open)?) => Ok(()),
            Ok(_) | Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => lost(),
            Err(error) => Err(error.into()),
        }
    }

    /// The length of the file with this name, in bytes; `None` if there is none.
    #[cfg(unix)]
    pub fn length_of(&self, name: &str) -> io::Result<Option<u64>> {
        match rustix::fs::statat(&self.handle, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(u64::try_from(found.st_size).map_err(io::Error::other)?)),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    #[cfg(not(unix))]
    pub fn length_of(&self, name: &str) -> io::Result<Option<u64>> {
        match self.path.join(name).symlink_metadata() {
            Ok(found) => Ok(Some(found.len())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    #[cfg(not(unix))]
    pub fn check_name(&self, _: &str, _: &File, _: &str) -> io::Result<()> {
        Ok(())
    }

    /// The open directory, for locks.
    pub fn handle(&self) -> &File {
        &self.handle
    }

    /// Returns once every earlier change to the names in the directory would survive a power cut.
    pub fn sync(&self) -> io::Result<()> {
        self.handle.sync_all()
    }

    /// Makes the whole file system of the directory durable.
    #[cfg(target_os = "linux")]
    pub fn sync_file_system(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.handle)?)
    }

    #[cfg(not(target_os = "linux"))]
    pub fn sync_file_system(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl fmt::Debug for Directory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Directory").field(&self.location).finish()
    }
}

/// The path that leads to an open directory through its descriptor; `None` if there is none.
#[cfg(target_os = "linux")]
fn path_of_descriptor(directory: &File) -> Option<PathBuf> {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::MetadataExt as _;

    let path = PathBuf::from(format!("{DESCRIPTORS}{}", directory.as_raw_fd()));
    let (found, own) = (path.metadata().ok()?, directory.metadata().ok()?);
    ((found.dev(), found.ino()) == (own.dev(), own.ino())).then_some(path)
}

#[cfg(not(target_os = "linux"))]
fn path_of_descriptor(_: &File) -> Option<PathBuf> {
    None
}

/// The path as an error shows it: see [`readable`].
pub fn shown(path: &Path) -> String {
    readable(&path.to_string_lossy()).into_owned()
}

/// Replaces each path through a [`Directory`]'s descriptor by the directory's present path.
pub fn readable(text: &str) -> Cow<'_, str> {
    let Some((before, after)) = text.split_once(DESCRIPTORS) else { return text.into() };
    let digits = after.len() - after.trim_start_matches(|digit: char| digit.is_ascii_digit()).len();
    let (number, rest) = after.split_at(digits);
    let link = format!("{DESCRIPTORS}{number}");
    let directory = fs::read_link(&link).map_or(link, |found| found.to_string_lossy().into_owned());
    format!("{before}{directory}{}", readable(rest)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renamed_directory_is_followed_and_a_replaced_path_is_left_alone() {
        let parent = tempfile::tempdir().unwrap();
        let (old, new) = (parent.path().join("old"), parent.path().join("new"));
        fs::create_dir(&old).unwrap();
        let directory = Directory::open(&old).unwrap();
        fs::rename(&old, &new).unwrap();
        fs::create_dir(&old).unwrap();
        fs::write(directory.path().join("file"), "x").unwrap();
        assert!(new.join("file").exists() && !old.join("file").exists());
        assert_eq!(shown(&directory.path().join("file")), new.canonicalize().unwrap().join("file").to_string_lossy());
    }

    #[test]
    fn in_a_removed_directory_no_file_can_be_created() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("removed");
        fs::create_dir(&path).unwrap();
        let directory = Directory::open(&path).unwrap();
        fs::remove_dir(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(File::create(directory.path().join("file")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
    }

    #[test]
    fn every_path_through_a_descriptor_becomes_readable() {
        let directory = Directory::open(Path::new("/")).unwrap();
        let path = directory.path().display();
        assert_eq!(readable(&format!("a {path}/b: {path}/c, /proc/self/fd/x")), "a //b: //c, /proc/self/fd/x");
        assert_eq!(readable("/tmp/file"), "/tmp/file");
    }

    #[test]
    fn only_directories_are_opened_and_a_pipe_does_not_block() {
        let parent = tempfile::tempdir().unwrap();
        let file = parent.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(Directory::open(&file).unwrap_err().kind(), io::ErrorKind::NotADirectory);
        assert_eq!(Directory::open(&parent.path().join("missing")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
