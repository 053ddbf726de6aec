//! The lock on a store's directory, held while the store is open.

use std::fs::File;

/// A locked marker, unlocked on drop.
#[derive(Debug)]
pub struct StoreLock(pub(super) File);

impl Drop for StoreLock {
    /// Unlocks explicitly, because closing is not enough: a child process that another thread
    /// starts inherits the open file until it executes its program, and would keep the lock
    /// meanwhile.
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}
