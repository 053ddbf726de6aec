//! The workload of named locks: how they are taken, and what is done while they are held.
//!
//! Lock clients take names exclusively, shared and as semaphores. They wait for a time, for ever or
//! not at all, are cancelled, upgrade and downgrade. They hold leases that are shorter than some of
//! their pauses, leave some leases to other clients and to later incarnations, and end each other's
//! grants by force.
//!
//! Under a lock they commit fenced transactions that append to a row, and unfenced ones, which may
//! commit after the lock is lost. They read with `begin` and with `snapshot`, and write to a
//! register outside the store that accepts only growing tokens.
//!
//! All of this is recorded as [`event::LockEvent`]s, which [`crate::lock_checker`] checks.
//! [`final_checks`] checks the leases that an incarnation has left.
//!
//! | file | content |
//! |---|---|
//! | `event` | the events |
//! | `client` | how locks are taken and released |
//! | `waits` | how waits end |
//! | `while_held` | what is done while a lock is held |
//! | `final_checks` | checks after an opening, and after the last use of locks |

mod client;
pub mod event;
pub mod final_checks;
mod waits;
mod while_held;

use std::collections::BTreeMap;

use parking_lot::Mutex;
use percolite::{CancelToken, LockGuard, Timestamp};

pub use client::{EventWriter, LockClient, LockEnv};

/// The keyspace of the lock clients.
pub const LOCK_KEYSPACE: &str = "locked";
/// The names of exclusive and shared locks, and of leases.
pub const LOCK_NAMES: [&str; 2] = ["a", "b"];
/// The name of the semaphore.
pub const SEMAPHORE: &str = "permits";
/// The permits of the semaphore.
pub const SEMAPHORE_PERMITS: u32 = 2;
/// The longest lease, in milliseconds.
pub const LEASE_MAX_MS: u64 = 1000;

/// What the lock clients of one incarnation share.
#[derive(Default)]
pub struct SharedLocks {
    /// Grants that no client has tried to end.
    held: Mutex<Vec<(String, u64)>>,
    /// Grants that a client has ended, or has tried to end.
    ended: Mutex<Vec<(String, u64)>>,
    /// Leases without a guard.
    detached: Mutex<Vec<(String, u64)>>,
    /// Guards that any client may drop.
    shared_guards: Mutex<Vec<(String, u64, LockGuard)>>,
    /// The names and reasons of requests that can be cancelled.
    cancels: Mutex<Vec<(String, String, CancelToken)>>,
    /// When a call by token that ended a grant had returned, by the grant's token.
    end_times: Mutex<BTreeMap<u64, u64>>,
    /// A register outside the store: the largest token by name.
    register: Mutex<BTreeMap<String, u64>>,
    counts: Mutex<Counts>,
}

/// How many waits ended without a grant.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Waits that timed out.
    pub timed_out: u64,
    /// Waits that were cancelled.
    pub cancelled: u64,
}

impl SharedLocks {
    /// What the lock clients of the next incarnation share. Only the register outside the store is
    /// kept.
    #[must_use]
    pub fn next_incarnation(&self) -> Self {
        Self { register: Mutex::new(self.register.lock().clone()), ..Self::default() }
    }

    /// How many waits ended without a grant.
    pub fn counts(&self) -> Counts {
        *self.counts.lock()
    }

    /// Adds a lease without a guard.
    pub fn add_detached(&self, name: &str, token: Timestamp) {
        self.detached.lock().push((name.into(), token.to_u64()));
    }

    /// Drops all shared guards.
    pub fn drop_guards(&self, writer: &EventWriter<'_>) {
        while let Some((name, token, guard)) = self.take_guard(0) {
            writer.record_end_attempt(&name, token);
            drop(guard);
        }
    }

    /// Takes a shared guard.
    fn take_guard(&self, at: usize) -> Option<(String, u64, LockGuard)> {
        let mut shelf = self.shared_guards.lock();
        if shelf.is_empty() {
            return None;
        }
        let at = at % shelf.len();
        Some(shelf.swap_remove(at))
    }

    /// The guard of a token, if no other client has dropped it.
    fn reclaim_guard(&self, token: u64) -> Option<LockGuard> {
        let mut shelf = self.shared_guards.lock();
        let at = shelf.iter().position(|(_, other, _)| *other == token)?;
        Some(shelf.swap_remove(at).2)
    }
}
