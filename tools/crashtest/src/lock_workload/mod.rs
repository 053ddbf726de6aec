//! The workload `mutex`: locks by name, taken in every way that there is, and what is done under them.
//!
//! Lockers take names exclusively, shared and as semaphores, wait for a while, for ever or not at all, are cancelled, upgrade and
//! downgrade; they hold leases that are shorter than some of their pauses, leave some of them to others and to later lives, and take each
//! other's away by force. Under a lock they commit fenced transactions that append to a row, others that are not fenced and are expected to
//! lose something, look by `begin` and by `snapshot`, and write to a register outside of the store that takes only growing tokens.
//!
//! All of it is [noted](note), and judged by [`crate::fenced`]. [`after`] asks for the leases that a life has left.
//!
//! | file | what |
//! |---|---|
//! | `note` | what is noted |
//! | `locker` | how locks are taken |
//! | `under` | what is done while one is held |
//! | `after` | what is asked of a store that is opened again, and of one that is no longer used |

mod client;
pub mod event;
pub mod final_checks;
mod while_held;

use std::collections::BTreeMap;

use parking_lot::Mutex;
use percolite::{CancelToken, LockGuard, Timestamp};

pub use client::{EventWriter, LockClient, LockEnv};

/// The keyspace that lockers write to.
pub const LOCK_KEYSPACE: &str = "locked";
/// Names that are taken exclusively and shared, and leased.
pub const LOCK_NAMES: [&str; 2] = ["a", "b"];
/// One that is a semaphore.
pub const SEMAPHORE: &str = "permits";
/// Of so many.
pub const SEMAPHORE_PERMITS: u32 = 2;
/// The longest lease, in milliseconds.
pub const LEASE_MAX_MS: u64 = 1000;

/// What the lockers of a life share.
#[derive(Default)]
pub struct SharedLocks {
    /// Grants that are in hand, and those that are over.
    held: Mutex<Vec<(String, u64)>>,
    ended: Mutex<Vec<(String, u64)>>,
    /// Leases without a guard.
    detached: Mutex<Vec<(String, u64)>>,
    /// Guards that any locker may drop.
    shared_guards: Mutex<Vec<(String, u64, LockGuard)>>,
    cancels: Mutex<Vec<CancelToken>>,
    /// What is outside of the store: by name the newest token that it has taken.
    register: Mutex<BTreeMap<String, u64>>,
    counts: Mutex<Counts>,
}

/// How waits ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Without a grant when their time was over.
    pub timed_out: u64,
    /// Cancelled.
    pub cancelled: u64,
}

impl SharedLocks {
    /// For the next life: only what is outside of the store is left.
    #[must_use]
    pub fn next_incarnation(&self) -> Self {
        Self { register: Mutex::new(self.register.lock().clone()), ..Self::default() }
    }

    /// How waits ended.
    pub fn counts(&self) -> Counts {
        *self.counts.lock()
    }

    /// Hands a lease on that an earlier life has left.
    pub fn add_detached(&self, name: &str, token: Timestamp) {
        self.detached.lock().push((name.into(), token.to_u64()));
    }

    /// Drops every guard that is left.
    pub fn drop_guards(&self, writer: &EventWriter<'_>) {
        while let Some((name, token, guard)) = self.take_guard(0) {
            writer.record_end_attempt(&name, token);
            drop(guard);
        }
    }

    /// A guard that a locker has left.
    fn take_guard(&self, at: usize) -> Option<(String, u64, LockGuard)> {
        let mut shelf = self.shared_guards.lock();
        if shelf.is_empty() {
            return None;
        }
        let at = at % shelf.len();
        Some(shelf.swap_remove(at))
    }

    /// The guard of a token, if it is still there.
    fn reclaim_guard(&self, token: u64) -> Option<LockGuard> {
        let mut shelf = self.shared_guards.lock();
        let at = shelf.iter().position(|(_, other, _)| *other == token)?;
        Some(shelf.swap_remove(at).2)
    }
}
