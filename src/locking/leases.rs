//! What the lock heads know of leases: which are over, which an earlier life has left, and which names have a damaged row.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::grant::{Grant, Lease, LockLostReason, Requester};
use super::heads::{LockManager, RequestError};
use super::mode::LockMode;
use super::name::{NamedLock, WakeList};
use crate::timestamp::Timestamp;

impl LockManager {
    /// Takes charge of the lease that has this token: there is a guard from here on. `None` when it is over or has one.
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

    /// Leaves a lease without a guard, unless it is over. The answer is whether it was done.
    pub fn detach_guard(&self, grant: &Arc<Grant>, now: Duration) -> bool {
        // Closing, too, holds the mutex when it ends a grant, and then looks whether there is a guard.
        let _shard = self.shard(&grant.name);
        let stands = !grant.has_ended() && !grant.is_lease_expired(now);
        stands && grant.with_lease(|lease| (lease.has_guard, lease.auto_renew) = (false, false)).is_some()
    }

    /// Ends the leases of the name that are over. To be called by the request at the front, whose timer this is; returns the time
    /// until the next one may be over. `None` where there is no need to look: the request is not at the front, there is no lease
    /// before it, or one is being written, whose writer wakes it.
    pub fn expire_blocking_leases(&self, grant: &Arc<Grant>, now: Duration) -> Option<Duration> {
        self.with_shard(&grant.name, |shard, wakes| {
            let entry = shard.get_mut(&grant.name)?;
            if entry.front().is_none_or(|front| front.id != grant.id) {
                return None;
            }
            self.expire_leases(entry, now, wakes);
            // The request at the front is awake, and needs no wake-up.
            wakes.granted.retain(|other| !Arc::ptr_eq(other, grant));
            entry.next_lease_expiry(now).map(|end| end.saturating_sub(now))
        })
    }

    /// Notes that the end of a lease has changed: the request at the front, and those that watch the grant, have to look again.
    pub fn on_lease_renewed(&self, grant: &Arc<Grant>) {
        self.with_shard(&grant.name, |shard, wakes| {
            wakes.front = shard.get(&grant.name).and_then(|entry| entry.front()).map(Arc::clone);
        });
        grant.watchers().iter().for_each(|watcher| watcher.notify());
    }

    /// Takes leases over that an earlier life has left. Of those that exclude each other the one with the greatest token holds the name.
    pub fn restore_leases(
        &self,
        name: &str,
        mut leases: Vec<(LockMode, Requester, Lease, Timestamp)>,
        floor: Timestamp,
    ) {
        leases.sort_by_key(|(_, _, _, token)| std::cmp::Reverse(*token));
        let name: Arc<str> = name.into();
        let mut shard = self.shard(&name);
        let entry = shard.entry(Arc::clone(&name)).or_default();
        for (mode, owner, lease, token) in leases {
            let id = self.last_request_id.fetch_add(1, Ordering::Relaxed) + 1;
            let grant = Arc::new(Grant::new(Arc::clone(&name), id, mode, owner, Some(lease)));
            grant.set_token(token);
            grant.set_min_read_ts(floor);
            grant.set_lease_row(true);
            grant.set_ready();
            if entry.head.would_grant(mode) && entry.head.request(id, mode, Arc::clone(&grant)) {
                entry.granted(&grant);
            } else {
                // The later one took the name over.
                grant.end(LockLostReason::Expired);
                entry.add_ended(grant);
            }
        }
    }

    /// Closes all names.
    pub fn set_all_corrupt(&self, what: &str) {
        let _ = self.corruption.set(what.into());
    }

    /// Why nothing can be said of any name.
    pub fn check_not_corrupt(&self) -> Result<(), RequestError> {
        self.corruption.get().map_or(Ok(()), |what| Err(RequestError::Corrupt(Arc::clone(what))))
    }

    /// Closes a name of which nothing can be said.
    pub fn set_corrupt(&self, name: &str, what: &str) {
        self.shard(name).entry(name.into()).or_default().set_corrupt(what);
    }

    /// Opens a name again, whose row is gone. The answer is whether it was closed.
    pub fn clear_corrupt(&self, name: &str) -> bool {
        let mut shard = self.shard(name);
        let Some(entry) = shard.get_mut(name) else { return false };
        let was_damaged = entry.clear_corrupt();
        if entry.is_unused() {
            shard.remove(name);
        }
        was_damaged
    }

    /// Whether the name is closed.
    pub fn corruption(&self, name: &str) -> Option<Arc<str>> {
        self.shard(name).get(name)?.damage().cloned()
    }

    /// Rows of leases that were over `over_for` ago and have had no successor, and of those that were handed on.
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
                // None waits for it, or it would have ended the lease.
                if entry.head.granted().iter().any(|asked| is_stale(&asked.value)) {
                    self.expire_leases(entry, now, &mut wakes);
                }
            }
            // A grant that is on its way removes those before it, and reports whose they were.
            let settled = |entry: &&NamedLock| entry.head.granted().iter().all(|asked| asked.value.is_ready());
            let past = shard.values().map(|entry| &**entry).filter(settled).flat_map(NamedLock::past);
            stale.extend(past.filter(|grant| grant.has_lease_row()).map(Arc::clone));
        }
        self.wake(wakes);
        stale
    }

    pub(super) fn expire_leases(&self, entry: &mut NamedLock, now: Duration, wakes: &mut WakeList) {
        if entry.leased_grants == 0 {
            return;
        }
        let over: Vec<_> = entry
            .head
            .granted()
            .iter()
            .map(|asked| &asked.value)
            .filter(|grant| grant.try_expire(now))
            .cloned()
            .collect();
        for grant in &over {
            self.metrics.expired();
            entry.leave(grant, LockLostReason::Expired, wakes);
        }
    }
}
