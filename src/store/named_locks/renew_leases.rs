//! The renewal of a lease, and the thread of the [lease renewer](super::lease_renewer).

use std::sync::Arc;
use std::time::Duration;

use crate::coordinator::LockAuthority;
use crate::error::{Error, ErrorKind, Result};
use crate::lock_manager::{Grant, LockLostReason};
use crate::panic_guard::PanicGuard;
use crate::store::handle::Store;
use crate::store::named_locks::errors::is_transient;
use crate::store::named_locks::lease_renewer::renew_at;
use crate::store::named_locks::lease_row::LeaseRow;
use crate::store::named_locks::lease_rows::{LEASE_ROWS_PER_TXN, LeaseRows};
use crate::store::named_locks::service::LockService;
use crate::store::named_locks::state::NamedLocks;
use crate::timestamp::Timestamp;

/// The delay before a failed renewal of a lease, or a failed removal of its row, is repeated. For a
/// renewal the delay is at most an eighth of the lease's duration.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// A renewal in progress. While it is counted in the lease, the lease does not expire.
struct Renewal<'a> {
    grant: &'a Arc<Grant>,
    /// `None` keeps the duration that the lease has.
    time: Option<Duration>,
    began: Duration,
    row: LeaseRow,
}

impl NamedLocks {
    /// Renews a lease, durably, to expire when `time` has passed since this call. Later renewals by
    /// the thread are for `time`, too.
    pub fn renew_lease(&self, rows: LeaseRows<'_>, grant: &Arc<Grant>, time: Duration) -> Result<()> {
        let renewal = self.begin_renewal(grant, Some(time))?;
        let renewed = match grant.end_reason_at(renewal.began) {
            Some(reason) => Err(lost(grant, reason)),
            None => rows.update(&grant.name, &[], Some(&renewal.row), Some(grant)),
        };
        self.finish_renewal(&renewal, renewed.as_ref().ok().copied());
        renewed.map(drop)
    }

    /// Renews leases for the durations that they have, durably, in one transaction. If another
    /// renewal changes a duration concurrently, the changed duration counts. Leases that are lost
    /// are left out.
    fn renew_together(&self, rows: LeaseRows<'_>, grants: &[Arc<Grant>]) -> Result<()> {
        let begun = grants.iter().filter_map(|grant| self.begin_renewal(grant, None).ok());
        let (ended, begun): (Vec<_>, Vec<_>) =
            begun.partition(|renewal| renewal.grant.end_reason_at(renewal.began).is_some());
        ended.iter().for_each(|renewal| self.finish_renewal(renewal, None));
        if begun.is_empty() {
            return Ok(());
        }
        let entries: Vec<_> = begun.iter().map(|renewal| (&*renewal.grant.name, &renewal.row)).collect();
        let fences: Vec<_> = begun.iter().map(|renewal| renewal.grant).collect();
        let renewed = rows.renew(&entries, &fences);
        begun.iter().for_each(|renewal| self.finish_renewal(renewal, renewed.as_ref().ok().copied()));
        renewed.map(drop)
    }

    /// Renews these leases, in one transaction if no lease has an error of its own. Returns the
    /// leases that failed, each with the time of its next attempt: [`Duration::MAX`] if the lease
    /// or the store has ended.
    fn renew_due(&self, rows: LeaseRows<'_>, due: &[Arc<Grant>]) -> Vec<(u64, Duration)> {
        let Err(error) = self.renew_together(rows, due) else { return Vec::new() };
        // The error of one lease must not delay the others, so each half is tried by itself.
        if due.len() > 1 && matches!(error.kind(), ErrorKind::LockLost(_) | ErrorKind::Corruption(_)) {
            let (first, second) = due.split_at(due.len() / 2);
            let mut failed = self.renew_due(rows, first);
            failed.extend(self.renew_due(rows, second));
            return failed;
        }
        let (now, is_transient) = (self.env.elapsed(), is_transient(&error));
        let retry_at = |grant: &Grant| {
            let duration = grant.lease().map(|lease| lease.duration).filter(|_| is_transient);
            duration.map_or(Duration::MAX, |duration| now.saturating_add((duration / 8).min(RETRY_DELAY)))
        };
        due.iter().map(|grant| (grant.id, retry_at(grant))).collect()
    }

    fn begin_renewal<'a>(&self, grant: &'a Arc<Grant>, time: Option<Duration>) -> Result<Renewal<'a>> {
        if !grant.is_ready() {
            let what = format!("lock {} has no token yet: its conversion is incomplete, call it again", grant.target());
            return Err(Error::invalid(what));
        }
        let began = self.env.elapsed();
        // If the lease has not expired yet, it cannot expire from here on, because
        // `row_writes_in_flight` counts this write. Whether the grant has ended for another reason
        // is checked by the caller.
        let begun = grant.with_lease(|lease| {
            let is_valid = lease.row_writes_in_flight > 0 || lease.expires_at > began;
            lease.row_writes_in_flight += u32::from(is_valid);
            is_valid.then_some(lease.duration)
        });
        match begun {
            None => Err(Error::invalid(format!("lock {} was acquired without a lease", grant.target()))),
            Some(None) => Err(lost(grant, grant.end_reason_at(began).unwrap_or(LockLostReason::Expired))),
            Some(Some(as_it_is)) => {
                let row = LeaseRow::new(self, grant, time.unwrap_or(as_it_is));
                Ok(Renewal { grant, time, began, row })
            }
        }
    }

    /// Ends a renewal, whose row was committed at `commit_ts`, or not at all.
    fn finish_renewal(&self, renewal: &Renewal<'_>, commit_ts: Option<Timestamp>) {
        let Renewal { grant, time, began, row } = renewal;
        let must_look = grant.with_lease(|lease| {
            let (before, written) = (lease.expires_at, self.env.elapsed());
            lease.end_row_write();
            match (time, commit_ts) {
                (_, None) => {}
                // Two concurrent renewals with a `time` can come here in either order. The one with
                // the later commit counts.
                (Some(time), Some(commit_ts)) if commit_ts > lease.last_explicit_renewal_ts => {
                    lease.last_explicit_renewal_ts = commit_ts;
                    (lease.duration, lease.expires_at, lease.renewed_at_ms) =
                        (*time, began.saturating_add(*time), row.since_ms);
                }
                (Some(_), Some(_)) => {}
                (None, Some(_)) => {
                    lease.expires_at = lease.expires_at.max(began.saturating_add(lease.duration));
                    lease.renewed_at_ms = lease.renewed_at_ms.max(row.since_ms);
                }
            }
            before <= written || lease.expires_at < before
        });
        crash_point!(LockRenewed if commit_ts.is_some());
        if must_look == Some(true) {
            self.manager.on_lease_renewed(grant);
        }
        self.renewer.reschedule(grant);
    }
}

fn lost(grant: &Grant, reason: LockLostReason) -> Error {
    ErrorKind::LockLost(Box::new(grant.lost_error(reason))).into()
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
    // Otherwise the leases would expire one by one.
    let _guard = PanicGuard::new(|| {
        locks.manager.close("the lease renewer has panicked, and the store must be reopened");
    });
    let parker = store.inner.env.parker();
    locks.renewer.0.lock().parker = Some(Arc::clone(&parker));
    loop {
        let Some(RenewerRound { due, over }) = next_work(locks) else { return };
        for some in due.chunks(LEASE_ROWS_PER_TXN) {
            let failed = locks.renew_due(LeaseRows::new(store), some);
            locks.renewer.set_next_checks(&failed, locks.env.elapsed());
        }
        let failed = remove_rows(store, locks, over);
        let next = time_to_next_work(locks, failed);
        if next != Some(Duration::ZERO) {
            parker.park(next);
        }
    }
}

/// A round's work of the lease renewer.
struct RenewerRound {
    /// The leases to renew, those that expire first ahead of the others.
    due: Vec<Arc<Grant>>,
    /// The ended leases whose rows must be removed.
    over: Vec<Arc<Grant>>,
}

/// The work of the next round; `None` if the thread is to end.
fn next_work(locks: &NamedLocks) -> Option<RenewerRound> {
    let mut state = locks.renewer.0.lock();
    if state.stopping {
        return None;
    }
    state.kept.retain(|(grant, _)| {
        !grant.has_ended() && grant.with_lease(|lease| lease.has_guard && lease.auto_renew).unwrap_or(false)
    });
    let now = locks.env.elapsed();
    let mut due = Vec::new();
    for (grant, at) in state.kept.iter_mut().filter(|(_, at)| *at <= now) {
        // A lease that has been renewed or attached since its last check may not be due yet.
        match renew_at(grant) {
            renew_at if renew_at <= now => due.push(Arc::clone(grant)),
            renew_at => *at = renew_at,
        }
    }
    due.sort_by_cached_key(|grant| grant.lease().map(|lease| lease.expires_at));
    Some(RenewerRound { due, over: std::mem::take(&mut state.over) })
}

/// Removes the rows of ended leases. Returns whether that failed and is to be repeated.
fn remove_rows(store: &Store, locks: &NamedLocks, mut over: Vec<Arc<Grant>>) -> bool {
    let removed = LeaseRows::new(store).remove(&over);
    let durable_ts = store.inner.lock_authority().map_or(Timestamp::ZERO, LockAuthority::durable_ts);
    over.iter().for_each(|grant| locks.manager.prune(&grant.name, durable_ts));
    over.retain(|grant| grant.has_lease_row());
    if removed.is_err_and(|error| !is_transient(&error)) {
        return false;
    }
    let failed = !over.is_empty();
    // The rows that were not removed go back into the list. If the store is closing, the closing
    // thread removes them.
    locks.renewer.0.lock().over.append(&mut over);
    failed
}

/// The time until the thread has work again; `None` if it has none until it is woken.
fn time_to_next_work(locks: &NamedLocks, removal_failed: bool) -> Option<Duration> {
    let now = locks.env.elapsed();
    let state = locks.renewer.0.lock();
    if state.stopping || !state.over.is_empty() && !removal_failed {
        return Some(Duration::ZERO);
    }
    let next = state.kept.iter().map(|(_, at)| at.saturating_sub(now)).min();
    next.into_iter().chain(removal_failed.then_some(RETRY_DELAY)).min()
}
