//! The lock on a store's directory, held while the store is open.
//!
//! The marker is locked. Where it is replaced beneath an open store, its lock excludes no other
//! store any more, and a copy of a store may share one of the subdirectories by a symlink. So these
//! are locked, too. RocksDB's own lock excludes other processes only.

use std::fs::{File, TryLockError};
use std::io;

use crate::disk::Directory;

/// [`File::try_lock`] or [`File::try_lock_shared`].
pub type LockFile = fn(&File) -> Result<(), TryLockError>;

/// A locked marker and the subdirectories of its store, unlocked on drop.
#[derive(Debug)]
pub struct StoreLock {
    marker: File,
    parts: Vec<(&'static str, Directory)>,
}

impl StoreLock {
    /// The lock of a marker that is locked.
    pub(super) fn new(marker: File) -> Self {
        Self { marker, parts: Vec::new() }
    }

    /// Locks a subdirectory by `lock`, exclusively or shared, as the marker. `false` if another
    /// store has it open, which can only be where the marker was replaced or the subdirectory is
    /// shared.
    pub(super) fn lock_part(&mut self, name: &'static str, part: &Directory, lock: LockFile) -> bool {
        // Some file systems cannot lock a directory; there the marker's lock has to do.
        let is_free = !matches!(lock(part.handle()), Err(TryLockError::WouldBlock));
        if is_free {
            self.parts.push((name, part.clone()));
        }
        is_free
    }

    pub(super) fn file(&self) -> &File {
        &self.marker
    }

    /// Fails if the marker was removed or replaced, which then locks nothing any more, or one of
    /// the subdirectories, in which no later opening would find what was written.
    pub(super) fn check_in_place(&self, directory: &Directory, marker: &str) -> io::Result<()> {
        directory.check_name(marker, &self.marker, "the store's marker")?;
        let mut parts = self.parts.iter();
        parts.try_for_each(|(name, part)| directory.check_name(name, part.handle(), &format!("its directory {name}")))
    }
}

impl Drop for StoreLock {
    /// Unlocks explicitly, because closing is not enough: a child process that another thread
    /// starts inherits the open file until it executes its program, and would keep the lock
    /// meanwhile.
    fn drop(&mut self) {
        let _ = self.marker.unlock();
        for (_, part) in &self.parts {
            let _ = part.handle().unlock();
        }
    }
}
