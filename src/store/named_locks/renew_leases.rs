//! The renewal of a lease, and the thread of the [lease renewer](super::lease_renewer).

use std::sync::Arc;
use std::time::Duration;

use crate::coordinator::LockAuthority;
use crate::error::{Error, ErrorKind, Result};
use crate::lock_manager::Grant;
use crate::store::handle::Store;
use crate::store::named_locks::errors::is_transient;
use crate::store::named_locks::lease_row::LeaseRow;
use crate::store::named_locks::lease_rows::LeaseRows;
use crate::store::named_locks::service::LockService;
use crate::store::named_locks::state::NamedLocks;
use crate::timestamp::Timestamp;

/// The delay before a failed renewal of a lease, or a failed removal of its row, is repeated. For a
/// renewal the delay is at most an eighth of the lease's duration.
const RETRY_DELAY: Duration = Duration::from_millis(500);

impl NamedLocks {
    /// Renews a lease, durably, to expire when `time` has passed since this call. With `None`,
    /// `time` is the duration that the lease has; if another renewal changes the duration
    /// concurrently, the changed duration counts.
    pub fn renew_lease(&self, rows: LeaseRows<'_>, grant: &Arc<Grant>, time: Option<Duration>) -> Result<()> {
        if !grant.is_ready() {
            let what = format!("lock {} has no token yet: its conversion is incomplete, call it again", grant.target());
            return Err(Error::invalid(what));
        }
        let now = self.env.elapsed();
        // If the lease has not expired yet, it cannot expire from here on, because
        // `row_writes_in_flight` counts this write. Whether the grant has ended for another reason
        // is checked below.
        let begun = grant.with_lease(|lease| {
            let is_valid = lease.row_writes_in_flight > 0 || lease.expires_at > now;
            lease.row_writes_in_flight += u32::from(is_valid);
            is_valid
        });
        let lost = |reason| ErrorKind::LockLost(Box::new(grant.lost_error(reason))).into();
        match begun {
            None => return Err(Error::invalid(format!("lock {} was acquired without a lease", grant.target()))),
            Some(false) => return Err(lost(grant.end_reason_at(now).unwrap_or(crate::LockLostReason::Expired))),
            Some(true) => {}
        }
        let as_it_is = grant.lease().map(|lease| lease.duration).unwrap_or_default();
        let row = LeaseRow::new(self, grant, time.unwrap_or(as_it_is));
        let renewed = match grant.end_reason_at(now) {
            Some(reason) => Err(lost(reason)),
            None => rows.update(&grant.name, &[], (Some(&row), time.is_none()), Some(grant)),
        };
        let must_look = grant.with_lease(|lease| {
            let (before, written) = (lease.expires_at, self.env.elapsed());
            lease.row_writes_in_flight -= 1;
            // Two concurrent renewals with a `time` can come here in either order. The one with the
            // later commit counts.
            let is_last = renewed.as_ref().is_ok_and(|commit_ts| *commit_ts > lease.last_explicit_renewal_ts);
            match time.filter(|_| renewed.is_ok()) {
                Some(_) if !is_last => {}
                Some(time) => {
                    (lease.duration, lease.expires_at, lease.renewed_at_ms) =
                        (time, now.saturating_add(time), row.since_ms);
                }
                None if renewed.is_ok() => {
                    lease.expires_at = lease.expires_at.max(now.saturating_add(lease.duration));
                    lease.renewed_at_ms = lease.renewed_at_ms.max(row.since_ms);
                }
                None => {}
            }
            if let (Some(_), Ok(commit_ts)) = (time, &renewed) {
                lease.last_explicit_renewal_ts = lease.last_explicit_renewal_ts.max(*commit_ts);
            }
            before <= written || lease.expires_at < before
        });
        crash_point!(LockRenewed if renewed.is_ok());
        if must_look == Some(true) {
            self.manager.on_lease_renewed(grant);
        }
        self.renewer.reschedule(grant);
        renewed.map(drop)
    }
}

impl LockService<'_> {
    /// Starts the lease renewer, if it has not been started.
    pub(super) fn start_lease_renewer(self) -> Result<()> {
        let background = self.store.background_handle();
        self.locks.renewer.start(&*self.locks.env, move || run(&background))
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
        let removed = LeaseRows::new(store).remove(&over);
        let durable_ts = store.inner.lock_authority().map_or(Timestamp::ZERO, LockAuthority::durable_ts);
        over.iter().for_each(|grant| locks.manager.prune(&grant.name, durable_ts));
        over.retain(|grant| grant.has_lease_row());
        let failed = match removed {
            Err(error) if !is_transient(&error) => {
                over.clear();
                false
            }
            _ => !over.is_empty(),
        };
        // The rows that were not removed go back into the list. If the store is closing, the
        // closing thread removes them.
        locks.renewer.0.lock().over.append(&mut over);
        for grant in kept {
            let pause = renew_if_due(store, &grant);
            let mut state = locks.renewer.0.lock();
            if let Some((_, at)) = state.kept.iter_mut().find(|(kept, _)| Arc::ptr_eq(kept, &grant)) {
                // `renew_at` reads the expiry only now, because it may have changed during the
                // renewal.
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

/// Renews a lease if half of its time has passed. If the renewal fails, returns the time of the
/// next attempt: [`Duration::MAX`] if the lease or the store has ended. Otherwise returns `None`.
fn renew_if_due(store: &Store, grant: &Arc<Grant>) -> Option<Duration> {
    let now = store.inner.env.elapsed();
    let (lease, locks) = (grant.lease()?, store.inner.locks.as_ref()?);
    if now < renew_at(grant) {
        return None;
    }
    match locks.renew_lease(LeaseRows::new(store), grant, None) {
        Ok(()) => None,
        Err(error) if is_transient(&error) => Some(now.saturating_add((lease.duration / 8).min(RETRY_DELAY))),
        Err(_) => Some(Duration::MAX),
    }
}
