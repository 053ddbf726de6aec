//! Locks by name, as programs use them.
//!
//! ```text
//!   lock ──> request (locking) ──> granted in memory ──> take: drain, floor, token, row, durable, check ──> guard
//!   fence ──> condition of a transaction ──> looked at by the leader of the commit pipeline
//! ```
//!
//! From a lost lock to the refused commit: `Txn::fence` notes the grant (`store/own.rs`); the submission counts itself in the
//! grant's word (`locking::Entered`, made in `pipeline/combiner.rs`); the leader asks `Entered::lost` when it decides
//! (`pipeline/decide.rs`), and `coordinator/embedded/commit.rs` makes [`LockLost`](crate::ErrorKind::LockLost) of its answer. A
//! transaction that only reads looks at its grants at its end (`store/own.rs`).
//!
//! `docs/locks.md` in the repository has the whole: what each step is for, and what was rejected.

mod fence;
mod guard;
mod keeper;
mod leases;
mod named;
mod opening;
mod options;
mod show;
mod take;
mod transact;

use std::sync::Arc;
use std::time::Duration;

pub use self::fence::Fence;
pub use self::guard::LockGuard;
pub(super) use self::leases::decode_leases;
pub use self::options::{LockOptions, LockWaitPolicy, MAX_LOCK_REASON_BYTES};
#[cfg(feature = "tokio")]
pub(crate) use self::take::{GrantPoll, RequestResult};
pub(super) use self::transact::TxnLock;
#[cfg(feature = "tokio")]
pub(crate) use self::transact::check_no_lease;

use self::keeper::LeaseRenewer;
use super::Store;
use crate::error::{Error, Result};
use crate::locking::{LockManager, LockTableContext};
use crate::runtime::Env;

/// What guards share with their store: nothing that keeps it open.
pub(crate) struct NamedLocks {
    heads: Arc<LockManager>,
    runtime: Arc<dyn Env>,
    label: Option<String>,
    store: u64,
    /// When the store was opened, by the runtime's clock and by the wall clock.
    opened: (Duration, u64),
    keeper: LeaseRenewer,
}

impl NamedLocks {
    pub fn new(heads: &Arc<LockManager>, runtime: &Arc<dyn Env>, label: Option<&str>, store: u64) -> Arc<Self> {
        Arc::new(Self {
            heads: Arc::clone(heads),
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

    /// To be asked after a look at what there is: a store that closes has none of it any more.
    fn check_open(&self) -> Result<()> {
        self.heads.closed().map_or(Ok(()), |why| Err(Error::closed(why)))
    }

    /// Ends all waits and all grants of a store that closes; leases with a guard are released, durably, unless the store has failed.
    pub fn close(&self, store: &Store) {
        let mut over = self.heads.close(crate::pipeline::CLOSED_MESSAGE);
        over.extend(self.keeper.stop());
        over.retain(|grant| grant.has_lease_row());
        let _ = store.remove_leases(&over).inspect_err(|why| _ = keeper::is_transient(why));
    }
}

/// Rows of leases that are over go after so long.
const STALE_LEASE_AFTER: Duration = Duration::from_secs(24 * 3600);

impl Store {
    /// Forgets what earlier grants have left, as far as it is durable, and removes the rows of leases that were over a day
    /// ago or were handed on.
    pub(super) fn prune_locks(&self) -> Result<()> {
        let (Some(locks), Some(embedded)) = (&self.inner.locks, &self.inner.embedded) else { return Ok(()) };
        if !locks.heads.was_used() {
            return Ok(());
        }
        let stale = locks.heads.stale_lease_rows(STALE_LEASE_AFTER, locks.runtime.elapsed());
        self.remove_leases(&stale)?;
        locks.heads.prune_all(embedded.pipeline().durable_ts());
        Ok(())
    }

    /// The locks of a store that can take any.
    fn lock_manager(&self) -> Result<&Arc<NamedLocks>> {
        self.inner.check_open()?;
        self.inner.check_writable()?;
        self.inner.locks.as_ref().ok_or_else(|| Error::invalid("locks cannot be taken where others share the engine"))
    }
}

/// A moment by the runtime's clock and by the wall clock. A thread may be held up between the two readings, so they are repeated until
/// they lie close together.
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
    use crate::runtime::{JoinHandle, Parker, SystemEnv};

    /// Each reading of the wall clock takes a while, the third none.
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
    fn the_clocks_are_read_together_though_the_thread_was_held_up() {
        let (elapsed, wall) = read_clocks_together(&HeldUp(AtomicU64::new(0), AtomicU64::new(0)));
        assert_eq!(elapsed, Duration::from_millis(wall));
    }
}
