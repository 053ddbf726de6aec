//! The thread of the [lease renewer](super::lease_renewer).

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::lock_manager::Grant;
use crate::store::handle::Store;
use crate::store::named_locks::errors::is_transient;

/// The delay after a failure that does not end the store.
const RETRY_DELAY: Duration = Duration::from_millis(500);

impl Store {
    /// Starts the thread, if it has not been started.
    pub(super) fn start_lease_renewer(&self) -> Result<()> {
        let (locks, background) = (self.lock_manager()?, self.background_handle());
        locks.renewer.start(&*self.inner.env, move || run(&background))
    }
}

fn run(store: &Store) {
    let Some(locks) = &store.inner.locks else { return };
    let env = &store.inner.env;
    let parker = env.parker();
    locks.renewer.0.lock().parker = Some(Arc::clone(&parker));
    loop {
        let (mut over, kept) = {
            let mut state = locks.renewer.0.lock();
            if state.stopping {
                return;
            }
            state.kept.retain(|(grant, _)| {
                !grant.has_ended() && grant.with_lease(|lease| lease.has_guard && lease.auto_renew).unwrap_or(false)
            });
            let now = env.elapsed();
            let due: Vec<_> =
                state.kept.iter().filter(|(_, at)| *at <= now).map(|(grant, _)| Arc::clone(grant)).collect();
            (std::mem::take(&mut state.over), due)
        };
        let removed = store.remove_leases(&over);
        let durable_ts = store.stats().durable_ts;
        over.iter().for_each(|grant| locks.manager.prune(&grant.name, durable_ts));
        over.retain(|grant| grant.has_lease_row());
        let failed = match removed {
            Err(why) if !is_transient(&why) => {
                over.clear();
                false
            }
            _ => !over.is_empty(),
        };
        // Rows that are left when the store closes are removed by the closing thread.
        locks.renewer.0.lock().over.append(&mut over);
        for grant in kept {
            let pause = renew_if_due(store, &grant);
            let mut state = locks.renewer.0.lock();
            if let Some((_, at)) = state.kept.iter_mut().find(|(kept, _)| Arc::ptr_eq(kept, &grant)) {
                // Read again, because the expiry may have changed during the renewal.
                *at = pause.unwrap_or_else(|| renew_at(&grant));
            }
        }
        let now = env.elapsed();
        let next = {
            let state = locks.renewer.0.lock();
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
    let now = store.inner.env.elapsed();
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
