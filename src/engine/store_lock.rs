//! The lock on a store's directory, held while the store is open.
//!
//! The marker is locked. Where it is replaced beneath an open store, its lock excludes no other
//! store any more. So a store that is open for writing locks its directory of tables, too.
//! RocksDB's own lock excludes other processes only.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

use crate::disk::NamedFile;

/// A locked marker, unlocked on drop.
#[derive(Debug)]
pub struct StoreLock {
    marker: NamedFile,
    tables: Option<File>,
}

impl StoreLock {
    /// The lock of a marker that is locked.
    pub(super) fn new(marker: File) -> io::Result<Self> {
        NamedFile::new(marker).map(|marker| Self { marker, tables: None })
    }

    /// Locks the directory of tables. `false` if another store has it open, which can only be where
    /// the marker was replaced.
    pub(super) fn lock_tables(&mut self, tables: &Path) -> bool {
        // Some file systems cannot lock a directory; there the marker's lock has to do.
        let Ok(tables) = File::open(tables) else { return true };
        match tables.try_lock() {
            Ok(()) => self.tables = Some(tables),
            Err(TryLockError::WouldBlock) => return false,
            Err(TryLockError::Error(_)) => {}
        }
        true
    }

    pub(super) fn file(&self) -> &File {
        self.marker.file()
    }

    /// Fails if the marker was removed or replaced: then it locks nothing any more.
    pub(super) fn check_in_place(&self) -> io::Result<()> {
        self.marker.check_named()
    }
}

impl Drop for StoreLock {
    /// Unlocks explicitly, because closing is not enough: a child process that another thread
    /// starts inherits the open file until it executes its program, and would keep the lock
    /// meanwhile.
    fn drop(&mut self) {
        let _ = self.file().unlock();
        let _ = self.tables.as_ref().map(File::unlock);
    }
}
