//! Leases in the lock manager: their expiry, the leases that an earlier incarnation has left, and
//! names whose lease row is corrupt.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::grant::{Grant, Lease, Requester};
use super::info::LockLostReason;
use super::manager::LockManager;
use super::mode::LockMode;
use super::named_lock::{NamedLock, WakeList};
use crate::timestamp::Timestamp;

impl LockManager {
    /// Attaches a guard to the lease with this token, and returns its grant. `None` if the lease
    /// has expired or has a guard.
    pub fn attach_guard(&self, name: &str, token: Timestamp, now: Duration) -> Option<Arc<Grant>> {
        let shard = self.shard(name);
        self.check_open().ok()?;
        let grant = shard.get(name)?.grant_with_token(token)?;
        let resumed = grant.with_lease(|lease| {
            let free = !lease.has_guard && (lease.row_writes_in_flight > 0 || lease.expires_at > now);
            lease.has_guard |= free;
            lease.auto_renew |= free;
            free
        });
        resumed.filter(|resumed| *resumed).map(|_| grant)
    }

    /// Detaches the guard from a lease. Returns `false` if the lease has ended or expired.
    pub fn detach_guard(&self, grant: &Arc<Grant>, now: Duration) -> bool {
        // `close` holds the shard's mutex while it ends grants and reads whether they have a
        // guard. So the guard must be detached under that mutex, too.
        let _shard = self.shard(&grant.name);
        let is_valid = !grant.has_ended() && !grant.is_lease_expired(now);
        is_valid && grant.with_lease(|lease| (lease.has_guard, lease.auto_renew) = (false, false)).is_some()
    }

    /// If `grant` is the first waiter, ends the expired leases of the name, and returns the time to
    /// the next expiry. `None` if the request needs no timer: it is not the first waiter, no lease
    /// blocks it, or the row of the blocking lease is being written, and the writer will wake the
    /// request.
    pub fn expire_blocking_leases(&self, grant: &Arc<Grant>, now: Duration) -> Option<Duration> {
        self.with_shard(&grant.name, |shard, wakes| {
            let entry = shard.get_mut(&grant.name)?;
            if entry.front().is_none_or(|front| front.id != grant.id) {
                return None;
            }
            self.expire_leases(entry, now, wakes);
            // The first waiter itself makes this call, and needs no wake-up.
            wakes.granted.retain(|other| !Arc::ptr_eq(other, grant));
            entry.next_lease_expiry(now).map(|end| end.saturating_sub(now))
        })
    }

    /// To be called when the expiry of a lease has changed: wakes the first waiter and the watchers
    /// of the grant.
    pub fn on_lease_renewed(&self, grant: &Arc<Grant>) {
        self.with_shard(&grant.name, |shard, wakes| {
            wakes.front = shard.get(&grant.name).and_then(|entry| entry.front()).map(Arc::clone);
        });
        grant.watchers().iter().for_each(|watcher| watcher.notify());
    }

    /// Restores leases of an earlier incarnation. Those that have expired by `now` are ended, so
    /// that their rows are removed. Of leases that exclude each other, only the one with the
    /// greatest token is granted.
    pub fn restore_leases(
        &self,
        name: &str,
        mut leases: Vec<(LockMode, Requester, Lease, Timestamp)>,
        (min_read_ts, now): (Timestamp, Duration),
    ) {
        leases.sort_by_key(|(_, _, _, token)| std::cmp::Reverse(*token));
        let name: Arc<str> = name.into();
        let mut shard = self.shard(&name);
        let entry = shard.entry(Arc::clone(&name)).or_default();
        for (mode, owner, lease, token) in leases {
            let id = self.last_request_id.fetch_add(1, Ordering::Relaxed) + 1;
            let grant = Arc::new(Grant::new(Arc::clone(&name), id, mode, owner, Some(lease)));
            grant.set_token(token);
            grant.set_min_read_ts(min_read_ts);
            grant.set_lease_row(true);
            grant.set_ready();
            let is_valid = !grant.is_lease_expired(now);
            if is_valid && entry.queue.would_grant(mode) && entry.queue.request(id, mode, Arc::clone(&grant)) {
                entry.granted(&grant);
            } else {
                // It has expired, or a lease with a greater token excludes it.
                grant.end(LockLostReason::Expired);
                entry.add_ended(grant);
            }
        }
    }

    /// Makes requests of every name return this corruption.
    pub fn set_all_corrupt(&self, what: &str) {
        let _ = self.corruption.set(what.into());
    }

    /// Makes requests of the name return this corruption.
    pub fn set_corrupt(&self, name: &str, what: &str) {
        self.shard(name).entry(name.into()).or_default().set_corrupt(what);
    }

    /// Accepts requests of the name again, after the name's lease row was removed. Returns whether
    /// the name was corrupt.
    pub fn clear_corrupt(&self, name: &str) -> bool {
        let mut shard = self.shard(name);
        let Some(entry) = shard.get_mut(name) else { return false };
        let was_damaged = entry.clear_corrupt();
        if entry.is_unused() {
            shard.remove(name);
        }
        was_damaged
    }

    /// Why requests of the name return corruption; `None` if they do not.
    pub fn corruption(&self, name: &str) -> Option<Arc<str>> {
        self.shard(name).get(name)?.damage().cloned()
    }

    /// If a lease of a name expired at least `over_for` ago, ends all expired leases of this name.
    /// Returns, of all names, the ended leases whose rows the background worker must remove.
    pub fn stale_lease_rows(&self, over_for: Duration, now: Duration) -> Vec<Arc<Grant>> {
        let is_stale = |grant: &Arc<Grant>| {
            grant
                .with_lease(|lease| lease.row_writes_in_flight == 0 && lease.expires_at.saturating_add(over_for) <= now)
                .unwrap_or(false)
        };
        let mut wakes = WakeList::default();
        let mut stale = Vec::new();
        for mut shard in self.shards() {
            for entry in shard.values_mut().filter(|entry| entry.leased_grants > 0) {
                // A stale lease is still granted only if no request has come or waited since it
                // expired: a request ends the expired leases of its name.
                if entry.queue.granted().iter().any(|request| is_stale(&request.value)) {
                    self.expire_leases(entry, now, &mut wakes);
                }
            }
            // Names with a grant that is not ready yet are skipped: the activation of this grant
            // removes the rows of earlier leases itself, and reports an expired lease as taken over
            // only if that lease still has its row.
            let all_ready = |entry: &&NamedLock| entry.queue.granted().iter().all(|request| request.value.is_ready());
            let past = shard.values().map(|entry| &**entry).filter(all_ready).flat_map(NamedLock::past);
            stale.extend(past.filter(|grant| grant.has_lease_row()).map(Arc::clone));
        }
        self.wake(wakes);
        stale
    }
}
