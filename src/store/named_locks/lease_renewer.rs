//! The state of the lease renewer, a background thread that renews leases with a guard and removes
//! the rows of leases whose guard was dropped. [`renew_leases`](super::renew_leases) has the code
//! of the thread.
//!
//! The thread starts with the first lease. Dropping a guard passes the lock on in memory and leaves
//! the row to this thread, so dropping never waits. If the next holder still finds the row, it
//! removes the row itself, and does not wait for this thread. When the store closes, the thread
//! ends, and the closing thread removes the rows that are left.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::env::{Env, JoinHandle, Parker};
use crate::error::{Error, ErrorKind, Result};
use crate::lock_manager::Grant;
use crate::sync::Mutex;

/// See the [module](self).
#[derive(Default)]
pub(in crate::store) struct LeaseRenewer(pub(super) Mutex<State>);

#[derive(Default)]
pub(super) struct State {
    thread: Option<Box<dyn JoinHandle>>,
    pub parker: Option<Arc<dyn Parker>>,
    pub stopping: bool,
    /// Ended leases whose rows must be removed.
    pub over: Vec<Arc<Grant>>,
    /// Leases with guards, each with the time at which the thread next checks whether to renew it.
    pub kept: Vec<(Arc<Grant>, Duration)>,
}

impl LeaseRenewer {
    /// From this call on the thread renews the grant's lease, if `auto_renew` is set. The call does
    /// not start the thread: [`LeaseRenewer::start`] does.
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
    pub fn start(&self, env: &dyn Env, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let mut state = self.0.lock();
        if state.stopping {
            return Err(Error::closed_by_user());
        }
        if state.thread.is_none() {
            let thread = env.spawn("percolite-leases", Box::new(work));
            let failed = |error| Error::from(ErrorKind::Io(format!("cannot start a thread: {error}")));
            state.thread = Some(thread.map_err(failed)?);
        }
        Ok(())
    }

    /// To be called when the expiry of a lease has changed: the thread then checks the lease
    /// immediately, and computes the time of its next check.
    pub fn reschedule(&self, grant: &Arc<Grant>) {
        let mut state = self.0.lock();
        if let Some((_, at)) = state.kept.iter_mut().find(|(kept, _)| Arc::ptr_eq(kept, grant)) {
            *at = Duration::ZERO;
            state.wake();
        }
    }

    /// Sets when each lease whose check was due is checked again: a lease in `failed` at the time
    /// there, a lost one never, and any other when half of its time has passed.
    pub(super) fn set_next_checks(&self, failed: &[(u64, Duration)], now: Duration) {
        let failed: HashMap<u64, Duration> = failed.iter().copied().collect();
        let mut state = self.0.lock();
        for (grant, at) in state.kept.iter_mut().filter(|(_, at)| *at <= now) {
            // The expiry is read only now, because it may have changed during the renewal.
            *at = match failed.get(&grant.id) {
                Some(at) => *at,
                None if grant.end_reason_at(now).is_some() => Duration::MAX,
                None => renew_at(grant),
            };
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

/// The time at which half of the lease has passed.
pub(super) fn renew_at(grant: &Grant) -> Duration {
    grant.lease().map_or(Duration::MAX, |lease| lease.expires_at.saturating_sub(lease.duration / 2))
}

impl State {
    fn wake(&self) {
        if let Some(parker) = &self.parker {
            parker.unpark();
        }
    }
}
