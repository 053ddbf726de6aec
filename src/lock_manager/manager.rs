//! The lock manager: all named locks of a store, by [name](super::named_lock). Row locks are
//! elsewhere, in the store's lock column.
//!
//! The map has 64 shards, each with a mutex. No call that may block is made under that mutex. A
//! change collects the requests whose wait it ends, mostly because they are granted, and wakes each
//! of them once, after the mutex is free. Of the requests that still wait, a change wakes at most
//! the first, if the request must set its timer for the expiry of a lease: the request has just
//! become the first, or the lease was renewed. A change also wakes the watchers of ended grants.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};

use super::grant::{Grant, Lease, Requester};
use super::info::LockLostReason;
use super::metrics::LockMetrics;
use super::mode::LockMode;
use super::named_lock::{NamedLock, Predecessors, WakeList};
use super::queue::{QueueChanges, UpgradeResult};
use super::request_error::RequestError;
use crate::panic_guard::PanicGuard;
use crate::process::Process;
use crate::sync::{Mutex, MutexGuard};
use crate::timestamp::Timestamp;
use crate::waiter::Waiter;

const SHARDS: usize = 64;

/// See the [module](self).
pub struct LockManager {
    shards: Box<[Mutex<Shard>]>,
    secrets: RapidSecrets,
    pub(super) last_request_id: AtomicU64,
    close_reason: OnceLock<String>,
    /// Set if the lease rows cannot be listed: every request then returns this corruption.
    pub(super) corruption: OnceLock<Arc<str>>,
    pub metrics: LockMetrics,
    /// The process whose threads hold the locks.
    pub process: Process,
}

/// A `BTreeMap`, because its order makes simulated runs repeatable. The values are boxed, because
/// each B-tree node has space for eleven, used or not.
pub(super) type Shard = BTreeMap<Arc<str>, Box<NamedLock>>;

impl LockManager {
    pub fn new(seed: u64, counters: LockMetrics) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            secrets: RapidSecrets::seed(seed),
            last_request_id: AtomicU64::new(0),
            close_reason: OnceLock::new(),
            corruption: OnceLock::new(),
            metrics: counters,
            process: Process::current(),
        }
    }

    pub(super) fn shard(&self, name: &str) -> MutexGuard<'_, Shard> {
        let hash = rapidhash_v3_seeded(name.as_bytes(), &self.secrets);
        let index = usize::try_from(hash % SHARDS as u64).unwrap_or_default();
        #[allow(clippy::indexing_slicing, reason = "there are as many shards as the remainder has values")]
        self.shards[index].lock()
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = MutexGuard<'_, Shard>> {
        self.shards.iter().map(Mutex::lock)
    }

    /// Runs a change under the shard's mutex. Once the mutex is free, wakes the requests and
    /// watchers that the change has added to its [`WakeList`].
    pub(super) fn with_shard<T>(&self, name: &str, change: impl FnOnce(&mut Shard, &mut WakeList) -> T) -> T {
        // If an invariant is broken, the name may be in any state: its other holders and waiters
        // must not go on with it. Dropped after the mutex of the shard, which a close takes.
        let _guard = PanicGuard::new(|| _ = self.close("the lock manager has panicked; reopen the store"));
        let mut wakes = WakeList::default();
        let answer = change(&mut self.shard(name), &mut wakes);
        self.wake(wakes);
        answer
    }

    /// Whether any lock was requested in this incarnation, or a lease restored.
    pub fn was_used(&self) -> bool {
        self.last_request_id.load(Ordering::Relaxed) > 0
    }

    /// Checks that the manager accepts requests.
    pub fn check_open(&self) -> Result<(), RequestError> {
        self.closed().map_or(Ok(()), |reason| Err(RequestError::Closed(reason.into())))
    }

    /// Why the manager accepts no requests; `None` while it does.
    pub fn closed(&self) -> Option<&str> {
        self.close_reason.get().map(String::as_str)
    }

    /// Makes a request, which is granted immediately or waits. `waiter` makes the waiter that is
    /// woken when the wait ends. Without `waiter`, a request that cannot be granted immediately is
    /// rejected.
    pub fn request(
        &self,
        name: &str,
        mode: LockMode,
        owner: impl FnOnce() -> Requester,
        lease: Option<Lease>,
        (now, waiter): (Duration, Option<&dyn Fn() -> Arc<Waiter>>),
    ) -> Result<Arc<Grant>, RequestError> {
        self.with_shard(name, |shard, wakes| {
            self.check_open()?;
            self.check_not_corrupt()?;
            if let Some(entry) = shard.get_mut(name) {
                self.expire_leases(entry, now, wakes);
            }
            self.request_in(shard, name, mode, owner, lease, waiter)
        })
    }

    fn request_in(
        &self,
        shard: &mut Shard,
        name: &str,
        mode: LockMode,
        owner: impl FnOnce() -> Requester,
        lease: Option<Lease>,
        waiter: Option<&dyn Fn() -> Arc<Waiter>>,
    ) -> Result<Arc<Grant>, RequestError> {
        let known = shard.get_key_value(name);
        if let Some((_, entry)) = known {
            entry.check_not_corrupt()?;
            entry.queue.check_mode(mode).map_err(RequestError::ModeMismatch)?;
            if waiter.is_none() && !entry.queue.would_grant(mode) {
                return Err(RequestError::WouldBlock);
            }
        }
        let is_first = known.is_none();
        let name: Arc<str> = known.map_or_else(|| name.into(), |(name, _)| Arc::clone(name));
        let id = self.last_request_id.fetch_add(1, Ordering::Relaxed) + 1;
        let mut grant = Grant::new(Arc::clone(&name), id, mode, owner(), lease);
        grant.has_no_predecessors = is_first;
        let grant = Arc::new(grant);
        let entry = shard.entry(name).or_default();
        if entry.queue.request(id, mode, Arc::clone(&grant)) {
            entry.granted(&grant);
        } else if let Some(waiter) = waiter {
            grant.set_waiter(waiter());
        }
        Ok(grant)
    }

    /// Cancels a waiting request; returns the number of requests ahead of it. `None` if it is
    /// granted.
    pub fn cancel_request(&self, grant: &Arc<Grant>) -> Option<usize> {
        self.with_shard(&grant.name, |shard, wakes| {
            if grant.is_granted() {
                return None;
            }
            let queue = shard.get(&grant.name).map(|entry| &entry.queue);
            let ahead = queue.map_or(0, |queue| queue.waiting_before(grant.id));
            Self::remove_in(shard, grant, LockLostReason::Released, wakes);
            Some(ahead)
        })
    }

    /// Ends a grant or cancels a waiting request. Returns `false` if the name no longer had
    /// it. A lease that had expired by `now` counts as lost.
    pub fn release(&self, grant: &Arc<Grant>, now: Duration) -> bool {
        self.with_shard(&grant.name, |shard, wakes| {
            let was_over = grant.is_lease_expired(now);
            let released = Self::remove_in(shard, grant, LockLostReason::Released, wakes);
            if released && was_over {
                self.metrics.expired();
                wakes.lost.push(Arc::clone(grant));
            }
            released
        })
    }

    fn remove_in(shard: &mut Shard, grant: &Arc<Grant>, reason: LockLostReason, wakes: &mut WakeList) -> bool {
        let Some(entry) = shard.get_mut(&grant.name) else { return false };
        let left = entry.leave(grant, reason, wakes);
        if entry.is_unused() {
            shard.remove(&grant.name);
        }
        left
    }

    /// Ends the grant that has this token, unless its lease has expired.
    pub fn release_by_token(
        &self,
        name: &str,
        token: Timestamp,
        reason: LockLostReason,
        now: Duration,
    ) -> Option<Arc<Grant>> {
        self.with_shard(name, |shard, wakes| {
            let found = shard.get(name)?.grant_with_token(token).filter(|grant| !grant.is_lease_expired(now))?;
            Self::remove_in(shard, &found, reason, wakes);
            Some(found)
        })
    }

    /// Makes a shared grant exclusive, immediately if it is the only grant of the name; otherwise
    /// the conversion waits until it is. `next` then replaces the shared grant.
    pub fn upgrade(
        &self,
        grant: &Arc<Grant>,
        next: &Arc<Grant>,
        waiter: &dyn Fn() -> Arc<Waiter>,
    ) -> UpgradeResult<()> {
        self.with_shard(&grant.name, |shard, wakes| {
            let entry = shard.get_mut(&grant.name).filter(|_| !grant.has_ended());
            let Some(entry) = entry else { return UpgradeResult::NoSuchGrant };
            match entry.queue.upgrade(grant.id, Arc::clone(next)) {
                UpgradeResult::Granted(before) => {
                    entry.granted(next);
                    entry.ended(&before, LockLostReason::Converted, wakes);
                    UpgradeResult::Granted(())
                }
                UpgradeResult::Waiting => {
                    next.set_waiter(waiter());
                    UpgradeResult::Waiting
                }
                UpgradeResult::Deadlock => UpgradeResult::Deadlock,
                UpgradeResult::NoSuchGrant => UpgradeResult::NoSuchGrant,
            }
        })
    }

    /// Cancels a waiting conversion. Returns 0, since no request is ahead of a conversion; `None`
    /// if it is granted.
    pub fn cancel_upgrade(&self, next: &Arc<Grant>) -> Option<usize> {
        self.with_shard(&next.name, |shard, wakes| {
            if next.is_granted() {
                return None;
            }
            if let Some(entry) = shard.get_mut(&next.name) {
                entry.rearm_front_after(wakes, |entry, wakes| {
                    let mut changes = QueueChanges::default();
                    entry.queue.cancel_upgrade(next.id, &mut changes);
                    entry.changed(changes, wakes);
                });
            }
            Some(0)
        })
    }

    /// Makes an exclusive grant shared: `next` replaces it. Returns `false` if `grant` has ended or
    /// is not exclusive.
    pub fn downgrade(&self, grant: &Arc<Grant>, next: &Arc<Grant>) -> Result<bool, RequestError> {
        self.with_shard(&grant.name, |shard, wakes| {
            let entry = shard.get_mut(&grant.name).filter(|_| !grant.has_ended());
            let Some(entry) = entry else { return Ok(false) };
            entry.rearm_front_after(wakes, |entry, wakes| {
                let mut changes = QueueChanges::default();
                let before = entry
                    .queue
                    .downgrade(grant.id, Arc::clone(next), &mut changes)
                    .map_err(RequestError::ModeMismatch)?;
                if let Some(before) = &before {
                    entry.granted(next);
                    entry.ended(before, LockLostReason::Converted, wakes);
                    entry.changed(changes, wakes);
                }
                Ok(before.is_some())
            })
        })
    }

    /// What the new grant must wait for.
    pub fn predecessors_of(&self, grant: &Grant) -> Predecessors {
        let mut past = Predecessors::default();
        if grant.has_no_predecessors {
            return past;
        }
        let shard = self.shard(&grant.name);
        let Some(entry) = shard.get(&grant.name) else {
            // Without the name nothing would be waited for.
            let is_over = self.closed().is_some() || grant.has_ended();
            assert!(is_over, "invariant: a name has an entry while it has a grant: {}", grant.name);
            return past;
        };
        past.unsynced_commit_ts = entry.unsynced_commit_of(grant.mode);
        for other in entry.past().iter().filter(|other| grant.mode.excludes(other.mode)) {
            past.has_in_flight |= other.in_flight_commits() > 0;
            past.unsynced_commit_ts = past.unsynced_commit_ts.max(other.unsynced_commit_ts());
            if other.has_lease_row() {
                past.leases.push(Arc::clone(other));
            }
        }
        past
    }

    /// Drops what later grants of the name need not wait for any more: ended grants without a
    /// fenced commit in flight, without one above `durable_ts` and without a lease row.
    pub fn prune(&self, name: &str, durable_ts: Timestamp) {
        let mut shard = self.shard(name);
        if let Some(entry) = shard.get_mut(name) {
            entry.tidy(durable_ts);
            if entry.is_unused() {
                shard.remove(name);
            }
        }
    }

    /// [`LockManager::prune`] for every name.
    pub fn prune_all(&self, durable_ts: Timestamp) {
        for mut shard in self.shards() {
            shard.retain(|_, entry| {
                entry.tidy(durable_ts);
                !entry.is_unused()
            });
        }
    }

    /// Closes the manager: requests are rejected, waits fail, and all grants end. Returns, of the
    /// grants that this call ends, the leases with a guard; of those that had ended before, the
    /// ones with a lease row.
    pub fn close(&self, reason: &str) -> Vec<Arc<Grant>> {
        let _ = self.close_reason.set(reason.into());
        let mut leases = Vec::new();
        for mut shard in self.shards() {
            let mut wakes = WakeList::default();
            for entry in shard.values() {
                for grant in entry.queue.granted().iter().map(|request| &request.value) {
                    grant.end(LockLostReason::Closed);
                    wakes.ended(grant);
                    if grant.with_lease(|lease| lease.has_guard).unwrap_or(false) {
                        leases.push(Arc::clone(grant));
                    }
                }
                leases.extend(entry.past().iter().filter(|grant| grant.has_lease_row()).map(Arc::clone));
                let converting = entry.queue.converting().map(|(_, grant)| grant);
                let waiting = entry.queue.waiting().map(|request| &request.value).chain(converting);
                wakes.granted.extend(waiting.map(Arc::clone));
            }
            shard.clear();
            drop(shard);
            self.wake(wakes);
        }
        leases
    }

    /// Whether no name has an entry.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.shards().all(|shard| shard.is_empty())
    }

    pub(super) fn wake(&self, wakes: WakeList) {
        self.metrics.lost(wakes.lost.len());
        #[cfg(feature = "tracing")]
        for lost in &wakes.lost {
            event!(WARN, lock = %lost.name, token = %lost.token(), "lock lost");
        }
        for grant in wakes.granted {
            if let Some(waiter) = grant.waiter() {
                self.metrics.wakeup();
                waiter.notify();
            }
        }
        if let Some(waiter) = wakes.front.as_ref().and_then(|front| front.waiter()) {
            waiter.notify();
        }
        for watcher in wakes.watchers {
            watcher.notify();
        }
    }

    /// Checks that the lease rows could be listed.
    pub fn check_not_corrupt(&self) -> Result<(), RequestError> {
        self.corruption.get().map_or(Ok(()), |what| Err(RequestError::Corrupt(Arc::clone(what))))
    }

    pub(super) fn expire_leases(&self, entry: &mut NamedLock, now: Duration, wakes: &mut WakeList) {
        if entry.leased_grants == 0 {
            return;
        }
        let over: Vec<_> = entry
            .queue
            .granted()
            .iter()
            .map(|request| &request.value)
            .filter(|grant| grant.try_expire(now))
            .cloned()
            .collect();
        for grant in &over {
            self.metrics.expired();
            entry.leave(grant, LockLostReason::Expired, wakes);
        }
    }
}

#[cfg(test)]
#[path = "manager_tests.rs"]
mod tests;
