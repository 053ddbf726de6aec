//! Named locks as programs use them: locks on a name, taken by the user, as PostgreSQL's advisory
//! locks. They are not row locks, which the protocol sets on rows of a transaction.
//!
//! ```text
//!   lock ──> request (lock_manager) ──> granted in memory
//!        ──> activate: drain, smallest read_ts, token, lease row, durable, check ──> guard
//!   fence ──> condition of a transaction ──> checked by the leader of the commit pipeline
//! ```
//!
//! How a lost lock rejects a commit: `Txn::fence` adds the grant to the transaction. The submission
//! counts itself in the grant's word (`InFlightFences`). The leader reads
//! `InFlightFences::first_lost` when it decides. The coordinator turns the rejection into
//! [`LockLost`](crate::ErrorKind::LockLost). A transaction that only reads checks its grants when
//! it ends.
//!
//! `docs/locks.md` in the repository has the design: the purpose of each step, and what was
//! rejected.

mod acquire;
mod by_token;
mod fence;
mod guard;
mod inspect;
mod lease_renewer;
mod lease_rows;
mod load_leases;
mod locked_txn;
mod options;

use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "tokio")]
pub(crate) use crate::store::named_locks::acquire::{GrantPoll, RequestResult};
pub use crate::store::named_locks::fence::Fence;
pub use crate::store::named_locks::guard::LockGuard;
pub(in crate::store) use crate::store::named_locks::lease_rows::decode_leases;
pub(in crate::store) use crate::store::named_locks::locked_txn::TxnLock;
#[cfg(feature = "tokio")]
pub(crate) use crate::store::named_locks::locked_txn::check_no_lease;
pub use crate::store::named_locks::options::{LockOptions, LockWaitPolicy, MAX_LOCK_REASON_BYTES};

use crate::coordinator::LockAuthority;
use crate::env::Env;
use crate::error::{CLOSED_BY_USER, Error, Result};
use crate::lock_manager::{LockManager, LockTableContext};
use crate::store::Store;
use crate::store::named_locks::lease_renewer::LeaseRenewer;

/// The named locks of a store. Guards share it with the store; it does not keep the store open.
pub(crate) struct NamedLocks {
    heads: Arc<LockManager>,
    runtime: Arc<dyn Env>,
    label: Option<String>,
    store: u64,
    /// The time of opening by the runtime's clock and by the wall clock (ms since 1970).
    opened: (Duration, u64),
    keeper: LeaseRenewer,
}

impl NamedLocks {
    pub fn new(authority: &dyn LockAuthority, runtime: &Arc<dyn Env>, label: Option<&str>, store: u64) -> Arc<Self> {
        Arc::new(Self {
            heads: Arc::clone(authority.manager()),
            runtime: Arc::clone(runtime),
            label: label.map(Into::into),
            store,
            opened: read_clocks_together(&**runtime),
            keeper: LeaseRenewer::default(),
        })
    }

    fn clock(&self) -> LockTableContext<'_> {
        LockTableContext {
            now: self.runtime.elapsed(),
            set: self.opened,
            pid: std::process::id(),
            label: self.label.as_deref(),
        }
    }

    /// Held locks and waiting requests.
    #[cfg(feature = "metrics")]
    pub fn totals(&self) -> crate::lock_manager::Totals {
        self.heads.totals(self.runtime.elapsed())
    }

    /// Must be called after reading the lock manager, because a closed store has dropped its
    /// entries.
    fn check_open(&self) -> Result<()> {
        self.heads.closed().map_or(Ok(()), |why| Err(Error::closed(why)))
    }

    /// Ends all waits and grants of a store that closes. Leases with a guard are released durably,
    /// unless the store has failed.
    pub fn close(&self, store: &Store) {
        let mut over = self.heads.close(CLOSED_BY_USER);
        over.extend(self.keeper.stop());
        over.retain(|grant| grant.has_lease_row());
        let _ = store.remove_leases(&over).inspect_err(|why| _ = lease_renewer::is_transient(why));
    }
}

/// The row of an expired lease without a successor is removed after this time.
const STALE_LEASE_AFTER: Duration = Duration::from_secs(24 * 3600);

impl Store {
    /// Drops predecessors whose commits are durable. Removes the rows of ended leases, and of
    /// leases that expired [`STALE_LEASE_AFTER`] ago.
    pub(in crate::store) fn prune_locks(&self) -> Result<()> {
        let Some(locks) = &self.inner.locks else { return Ok(()) };
        if !locks.heads.was_used() {
            return Ok(());
        }
        let stale = locks.heads.stale_lease_rows(STALE_LEASE_AFTER, locks.runtime.elapsed());
        self.remove_leases(&stale)?;
        locks.heads.prune_all(self.lock_authority()?.durable_ts());
        Ok(())
    }

    /// The authority for tokens; a store that supports named locks has one. Guards do not share it,
    /// because it keeps the engine open.
    fn lock_authority(&self) -> Result<&dyn LockAuthority> {
        self.inner.lock_authority.as_deref().ok_or_else(locks_unsupported_error)
    }

    /// The named locks of a store that supports them.
    fn lock_manager(&self) -> Result<&Arc<NamedLocks>> {
        self.inner.check_open()?;
        self.inner.check_writable()?;
        self.inner.locks.as_ref().ok_or_else(locks_unsupported_error)
    }
}

fn locks_unsupported_error() -> Error {
    Error::invalid("not supported on a shared engine: named locks")
}

/// Reads the runtime's clock and the wall clock for the same time. A thread may be delayed between
/// the two readings, so they are repeated until they are close together.
fn read_clocks_together(runtime: &dyn Env) -> (Duration, u64) {
    const CLOSE: Duration = Duration::from_micros(100);
    const READINGS: usize = 20;
    let mut best = (runtime.elapsed(), runtime.unix_millis());
    let mut distance = runtime.elapsed().saturating_sub(best.0);
    for _ in 1..READINGS {
        if distance <= CLOSE {
            break;
        }
        let reading = (runtime.elapsed(), runtime.unix_millis());
        let next = runtime.elapsed().saturating_sub(reading.0);
        if next < distance {
            (best, distance) = (reading, next);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::env::{JoinHandle, Parker, SystemEnv};

    /// Each reading of the wall clock is slow, except the third.
    struct HeldUp(AtomicU64, AtomicU64);

    impl Env for HeldUp {
        fn unix_millis(&self) -> u64 {
            let readings = self.1.fetch_add(1, Ordering::Relaxed);
            if readings != 2 {
                self.0.fetch_add(7, Ordering::Relaxed);
            }
            self.0.load(Ordering::Relaxed)
        }

        fn elapsed(&self) -> Duration {
            Duration::from_millis(self.0.load(Ordering::Relaxed))
        }

        fn random(&self) -> u64 {
            0
        }

        fn sleep(&self, _: Duration) {}

        fn parker(&self) -> Arc<dyn Parker> {
            SystemEnv::default().parker()
        }

        fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<Box<dyn JoinHandle>> {
            SystemEnv::default().spawn(name, work)
        }
    }

    #[test]
    fn a_delay_between_the_clock_readings_is_detected() {
        let (elapsed, wall) = read_clocks_together(&HeldUp(AtomicU64::new(0), AtomicU64::new(0)));
        assert_eq!(elapsed, Duration::from_millis(wall));
    }
}
