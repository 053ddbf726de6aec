//! Waits for the release of a row's lock.
//!
//! After a conflict with the lock of a running transaction, a retry waits until the lock is
//! released: a retry before the release would conflict again. The commit leader notifies the
//! waiters of each row that it has unlocked.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::process::Process;
use crate::row::{CellChange, RowChange, RowKey};
use crate::row_hash::row_hash;
use crate::sync::Mutex;
use crate::waiter::Waiter;

/// Waiters by the hash of their row. A collision of two rows causes a spurious wake-up.
#[derive(Default)]
pub struct UnlockWaiters {
    waiting: Mutex<HashMap<u64, Vec<Arc<Waiter>>>>,
    count: AtomicUsize,
    process: Process,
}

/// A registered wait for one row. Dropping it ends the wait.
pub struct UnlockWait {
    unlocked: Arc<UnlockWaiters>,
    row: u64,
    own: Arc<Waiter>,
}

impl Drop for UnlockWait {
    fn drop(&mut self) {
        if !self.unlocked.process.is_current() {
            return;
        }
        let mut waiting = self.unlocked.waiting.lock();
        let Some(waiters) = waiting.get_mut(&self.row) else {
            unreachable!("invariant: a wait for a row's lock is listed until it is dropped")
        };
        waiters.retain(|waiter| !Arc::ptr_eq(waiter, &self.own));
        if waiters.is_empty() {
            waiting.remove(&self.row);
        }
        self.unlocked.count.fetch_sub(1, Ordering::SeqCst);
    }
}

impl UnlockWaiters {
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty() && self.count.load(Ordering::SeqCst) == 0
    }

    /// Registers `own` to be notified when the row's lock is released. Call this before reading
    /// whether the row is locked: a release after the read then still wakes the waiter.
    pub fn register(self: &Arc<Self>, row: &RowKey, own: Arc<Waiter>) -> UnlockWait {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.waiting.lock().entry(row_hash(row)).or_default().push(Arc::clone(&own));
        UnlockWait { unlocked: Arc::clone(self), row: row_hash(row), own }
    }

    /// Wakes the waiters of the rows whose locks these applied changes have removed.
    pub fn notify(&self, changes: &[RowChange]) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let unlocked = changes.iter().filter(|change| change.lock == CellChange::Delete);
        let waiters: Vec<Arc<Waiter>> = {
            let waiting = self.waiting.lock();
            unlocked.filter_map(|change| waiting.get(&row_hash(&change.row))).flatten().map(Arc::clone).collect()
        };
        for waiter in waiters {
            waiter.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::SystemEnv;
    use crate::row::KeyspaceId;

    #[test]
    #[should_panic(expected = "invariant: a wait for a row's lock is listed until it is dropped")]
    fn a_wait_that_is_not_listed_breaks_an_invariant() {
        let unlocked = Arc::new(UnlockWaiters::default());
        let row = RowKey::new(KeyspaceId(1), b"row");
        let wait = unlocked.register(&row, Arc::new(Waiter::new(&SystemEnv::default())));
        unlocked.waiting.lock().clear();
        drop(wait);
    }
}
