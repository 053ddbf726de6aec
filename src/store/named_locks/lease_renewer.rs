//! The lease renewer of named locks: a background thread that renews leases with a guard, and
//! removes the rows of dropped ones.
//!
//! It starts with the first lease. Dropping a guard passes the lock on in memory and leaves the row
//! to this thread, so dropping never waits. The next holder removes the row as well, and does not
//! wait for this thread. When the store closes, the thread ends, and the closing thread removes the
//! rows that are left.

use std::sync::Arc;
use std::time::Duration;

use crate::env::{JoinHandle, Parker};
use crate::error::{Error, ErrorKind, Result};
use crate::lock_manager::Grant;
use crate::store::Store;
use crate::sync::Mutex;

/// The delay after a failure that does not end the store.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// See the [module](self).
#[derive(Default)]
pub(in crate::store) struct LeaseRenewer(Mutex<State>);

#[derive(Default)]
struct State {
    thread: Option<Box<dyn JoinHandle>>,
    parker: Option<Arc<dyn Parker>>,
    stopping: bool,
    /// Ended leases whose rows must be removed.
    over: Vec<Arc<Grant>>,
    /// Leases with guards, and the time of the next check of each.
    kept: Vec<(Arc<Grant>, Duration)>,
}

impl LeaseRenewer {
    /// Renews a lease with a guard from here on. Must be called after [`LeaseRenewer::start`].
    pub fn watch(&self, grant: &Arc<Grant>) {
        let mut state = self.0.lock();
        if !grant.with_lease(|lease| lease.auto_renew).unwrap_or(false) {
            return;
        }
        // A lease that was detached and attached again may still be in the list.
        state.kept.retain(|(kept, _)| !Arc::ptr_eq(kept, grant));
        state.kept.push((Arc::clone(grant), Duration::ZERO));
        state.wake();
    }

    /// Starts the thread, if it has not been started.
    pub fn start(&self, store: &Store) -> Result<()> {
        let mut state = self.0.lock();
        if state.stopping {
            return Err(Error::closed_by_user());
        }
        if state.thread.is_none() {
            let background = store.background_handle();
            let thread = store.inner.runtime.spawn("percolite-leases", Box::new(move || run(&background)));
            let failed = |why| Error::from(ErrorKind::Io(format!("cannot start a thread: {why}")));
            state.thread = Some(thread.map_err(failed)?);
        }
        Ok(())
    }

    /// The expiry of a lease has changed: computes the time of its next check again.
    pub fn reschedule(&self, grant: &Arc<Grant>) {
        let mut state = self.0.lock();
        if let Some((_, at)) = state.kept.iter_mut().find(|(kept, _)| Arc::ptr_eq(kept, grant)) {
            *at = Duration::ZERO;
            state.wake();
        }
    }

    /// Removes the row of an ended lease, in the background.
    pub fn remove_row(&self, grant: &Arc<Grant>) {
        let mut state = self.0.lock();
        state.over.push(Arc::clone(grant));
        state.wake();
    }

    /// Ends the thread. Returns the leases whose rows it has not removed.
    pub fn stop(&self) -> Vec<Arc<Grant>> {
        let thread = {
            let mut state = self.0.lock();
            state.stopping = true;
            state.wake();
            state.thread.take()
        };
        if let Some(thread) = thread {
            thread.join();
        }
        std::mem::take(&mut self.0.lock().over)
    }
}

impl State {
    fn wake(&self) {
        if let Some(parker) = &self.parker {
            parker.unpark();
        }
    }
}

fn run(store: &Store) {
    let Some(locks) = &store.inner.locks else { return };
    let runtime = &store.inner.runtime;
    let parker = runtime.parker();
    locks.keeper.0.lock().parker = Some(Arc::clone(&parker));
    loop {
        let (mut over, kept) = {
            let mut state = locks.keeper.0.lock();
            if state.stopping {
                return;
            }
            state.kept.retain(|(grant, _)| {
                !grant.has_ended() && grant.with_lease(|lease| lease.has_guard && lease.auto_renew).unwrap_or(false)
            });
            let now = runtime.elapsed();
            let due: Vec<_> =
                state.kept.iter().filter(|(_, at)| *at <= now).map(|(grant, _)| Arc::clone(grant)).collect();
            (std::mem::take(&mut state.over), due)
        };
        let removed = store.remove_leases(&over);
        let durable_ts = store.stats().durable_ts;
        over.iter().for_each(|grant| locks.heads.prune(&grant.name, durable_ts));
        over.retain(|grant| grant.has_lease_row());
        let failed = match removed {
            Err(why) if !is_transient(&why) => {
                over.clear();
                false
            }
            _ => !over.is_empty(),
        };
        // Rows that are left when the store closes are removed by the closing thread.
        locks.keeper.0.lock().over.append(&mut over);
        for grant in kept {
            let pause = renew_if_due(store, &grant);
            let mut state = locks.keeper.0.lock();
            if let Some((_, at)) = state.kept.iter_mut().find(|(kept, _)| Arc::ptr_eq(kept, &grant)) {
                // Read again, because the expiry may have changed during the renewal.
                *at = pause.unwrap_or_else(|| renew_at(&grant));
            }
        }
        let now = runtime.elapsed();
        let next = {
            let state = locks.keeper.0.lock();
            let is_idle = state.over.is_empty() || failed;
            let next = state.kept.iter().map(|(_, at)| at.saturating_sub(now)).min();
            if is_idle && !state.stopping {
                next.into_iter().chain(failed.then_some(RETRY_DELAY)).min()
            } else {
                Some(Duration::ZERO)
            }
        };
        if next != Some(Duration::ZERO) {
            parker.park(next);
        }
    }
}

/// The time at which half of the lease has passed.
fn renew_at(grant: &Grant) -> Duration {
    grant.lease().map_or(Duration::MAX, |lease| lease.expires_at.saturating_sub(lease.duration / 2))
}

/// Renews a lease if half of it has passed. Returns the time of the next attempt after a failure.
fn renew_if_due(store: &Store, grant: &Arc<Grant>) -> Option<Duration> {
    let now = store.inner.runtime.elapsed();
    let (lease, locks) = (grant.lease()?, store.inner.locks.as_ref()?);
    if now < renew_at(grant) {
        return None;
    }
    match store.renew_lease(locks, grant, None) {
        Ok(()) => None,
        Err(why) if is_transient(&why) => Some(now.saturating_add((lease.duration / 8).min(RETRY_DELAY))),
        Err(_) => Some(Duration::MAX),
    }
}

/// Whether the error ends neither the store nor the lease. Such an error is logged.
pub(in crate::store) fn is_transient(why: &Error) -> bool {
    let ends = matches!(why.kind(), ErrorKind::Closed(_) | ErrorKind::Undetermined(_) | ErrorKind::LockLost(_));
    if !ends {
        event!(WARN, task = "leases", error = %why, "background work failed");
    }
    !ends
}
