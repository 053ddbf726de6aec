//! The lock on a store's directory, held while the store is open.

use std::fs::File;
use std::io;

use crate::disk::NamedFile;

/// A locked marker, unlocked on drop.
#[derive(Debug)]
pub struct StoreLock(NamedFile);

impl StoreLock {
    /// The lock of a marker that is locked.
    pub(super) fn new(marker: File) -> io::Result<Self> {
        NamedFile::new(marker).map(Self)
    }

    pub(super) fn file(&self) -> &File {
        self.0.file()
    }

    /// Fails if the marker was removed or replaced: then it locks nothing any more.
    pub(super) fn check_in_place(&self) -> io::Result<()> {
        self.0.check_named()
    }
}

impl Drop for StoreLock {
    /// Unlocks explicitly, because closing is not enough: a child process that another thread
    /// starts inherits the open file until it executes its program, and would keep the lock
    /// meanwhile.
    fn drop(&mut self) {
        let _ = self.file().unlock();
    }
}
