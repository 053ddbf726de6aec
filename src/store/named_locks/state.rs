//! What the named locks of a store have in memory.

use std::sync::Arc;
use std::time::Duration;

use crate::coordinator::LockAuthority;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::lock_manager::{LockManager, LockTableContext};
use crate::store::named_locks::lease_renewer::LeaseRenewer;

/// The named locks of a store. The guards share this value with the store; it does not keep the
/// store open.
pub(crate) struct NamedLocks {
    pub manager: Arc<LockManager>,
    pub env: Arc<dyn Env>,
    application_name: Option<String>,
    pub store: u64,
    /// The time of opening by the monotonic clock and by the wall clock (ms since 1970).
    opened: (Duration, u64),
    pub(super) renewer: LeaseRenewer,
}

impl NamedLocks {
    pub fn new(
        authority: &dyn LockAuthority,
        env: &Arc<dyn Env>,
        application_name: Option<&str>,
        store: u64,
    ) -> Arc<Self> {
        Arc::new(Self {
            manager: Arc::clone(authority.manager()),
            env: Arc::clone(env),
            application_name: application_name.map(Into::into),
            store,
            opened: read_clocks_together(&**env),
            renewer: LeaseRenewer::default(),
        })
    }

    pub fn clock(&self) -> LockTableContext<'_> {
        LockTableContext {
            now: self.env.elapsed(),
            opened_at: self.opened,
            pid: std::process::id(),
            application_name: self.application_name.as_deref(),
        }
    }

    /// The numbers of held locks and of waiting requests, and when the oldest waiting request was
    /// made.
    #[cfg(feature = "metrics")]
    pub fn totals(&self) -> crate::lock_manager::LockTotals {
        self.manager.totals(self.env.elapsed())
    }

    /// Fails if the store is closed. To be called after a read of the lock manager, not before:
    /// closing the store drops the manager's entries, so what was read may be incomplete.
    pub fn check_open(&self) -> Result<()> {
        self.manager.closed().map_or(Ok(()), |reason| Err(Error::closed(reason)))
    }
}

/// Reads the monotonic clock and the wall clock at the same moment, or nearly so. A thread may be
/// delayed between the two readings, so they are repeated, up to twenty times, until they are close
/// together.
fn read_clocks_together(env: &dyn Env) -> (Duration, u64) {
    const CLOSE: Duration = Duration::from_micros(100);
    const READINGS: usize = 20;
    let mut best = (env.elapsed(), env.unix_millis());
    let mut distance = env.elapsed().saturating_sub(best.0);
    for _ in 1..READINGS {
        if distance <= CLOSE {
            break;
        }
        let reading = (env.elapsed(), env.unix_millis());
        let next = env.elapsed().saturating_sub(reading.0);
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

    /// Both clocks always show the same time. Each reading of the wall clock takes 7 ms, except the
    /// third, which takes none.
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
