//! The lock heads of a store, by name.
//!
//! A head is made by the first request of its name and goes with the last, but not while a grant that has ended leaves something
//! for the next one to wait for: fenced commits under way, fenced commits that are not durable yet, or the row of a lease. What
//! these are is in the entry's `past`, and, once only a timestamp is left of them, in its `debts`.
//!
//! The map is in shards, each with a mutex that is held for no call that may wait. Every change answers whom it has granted, and
//! they are woken when the mutex is free again: each of them once, and nobody else.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};

use super::counters::LockCounters;
use super::entry::LockEntry;
use super::grant::{Grant, Lease, LostReason, Owner};
use super::head::{Changes, Conversion, Head, Unfit};
use super::mode::LockMode;
use super::table;
use crate::sync::{Mutex, MutexGuard};
use crate::timestamp::Timestamp;
use crate::waiter::Waiter;

const SHARDS: usize = 64;

/// See the [module](self).
pub struct Heads {
    shards: Box<[Mutex<Shard>]>,
    secrets: RapidSecrets,
    last_id: AtomicU64,
    closed: OnceLock<String>,
    /// Why nothing can be said of any name.
    unreadable: OnceLock<Arc<str>>,
    pub counters: LockCounters,
}

/// In order, so that simulated runs repeat. Boxed, because a node of the tree has room for eleven.
pub(super) type Shard = BTreeMap<Arc<str>, Box<Entry>>;

/// Everything about one name.
#[derive(Default)]
pub(super) struct Entry {
    pub head: Head<Arc<Grant>>,
    /// How many of the grants are leased.
    leases: usize,
    left: Option<Box<Left>>,
}

/// What there is of few names: what grants have left that have ended.
#[derive(Default)]
struct Left {
    /// Those with commits under way or the row of a lease on the disk.
    past: Vec<Arc<Grant>>,
    /// The newest fenced durable commit of the others, by the kind of their mode.
    debts: [Timestamp; 3],
    /// Why nothing can be said of the name: its row cannot be read.
    damage: Option<Arc<str>>,
}

/// Why a request was not made.
#[derive(Debug)]
pub enum NotAsked {
    Unfit(Unfit),
    /// The row of the name's leases is damaged.
    Damaged(Arc<str>),
    /// The store takes no requests any more.
    Closed(String),
    /// It would have to wait, and was not to.
    Busy,
}

/// What a grant finds of those before it.
#[derive(Default)]
pub struct Past {
    /// Whether fenced commits of them are under way.
    pub is_under_way: bool,
    /// The newest of their fenced commits that is to be durable before the grant is used.
    pub debt: Timestamp,
    /// The leases among them whose rows may be on the disk.
    pub leases: Vec<Arc<Grant>>,
}

impl Past {
    pub fn is_empty(&self) -> bool {
        !self.is_under_way && self.debt == Timestamp::ZERO && self.leases.is_empty()
    }
}

/// Whom to wake once no lock is held.
#[derive(Default)]
pub(super) struct Wakes {
    granted: Vec<Arc<Grant>>,
    /// Grants that were lost.
    lost: Vec<Arc<Grant>>,
    /// Those who wait for the end of grants that have ended.
    watchers: Vec<Arc<Waiter>>,
    /// Is to look at the lease before it.
    front: Option<Arc<Grant>>,
}

impl Heads {
    pub fn new(seed: u64, counters: LockCounters) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            secrets: RapidSecrets::seed(seed),
            last_id: AtomicU64::new(0),
            closed: OnceLock::new(),
            unreadable: OnceLock::new(),
            counters,
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

    /// Whether any lock was ever asked for, or left by an earlier life.
    pub fn were_used(&self) -> bool {
        self.last_id.load(Ordering::Relaxed) > 0
    }

    /// Why no requests are taken any more.
    pub fn closed(&self) -> Option<&str> {
        self.closed.get().map(String::as_str)
    }

    /// Makes a request: granted at once, or waiting, to be woken by what `waiter` makes. Without one it is only made if it is
    /// granted.
    pub fn ask(
        &self,
        name: &str,
        mode: LockMode,
        owner: impl FnOnce() -> Owner,
        lease: Option<Lease>,
        (now, waiter): (Duration, Option<&dyn Fn() -> Arc<Waiter>>),
    ) -> Result<Arc<Grant>, NotAsked> {
        let mut wakes = Wakes::default();
        let asked = {
            let mut shard = self.shard(name);
            if let Some(why) = self.closed.get() {
                return Err(NotAsked::Closed(why.clone()));
            }
            if let Some(what) = self.unreadable.get() {
                return Err(NotAsked::Damaged(Arc::clone(what)));
            }
            if let Some(entry) = shard.get_mut(name) {
                self.expire(entry, now, &mut wakes);
            }
            self.ask_in(&mut shard, name, mode, owner, lease, waiter)
        };
        self.wake(wakes);
        asked
    }

    fn ask_in(
        &self,
        shard: &mut Shard,
        name: &str,
        mode: LockMode,
        owner: impl FnOnce() -> Owner,
        lease: Option<Lease>,
        waiter: Option<&dyn Fn() -> Arc<Waiter>>,
    ) -> Result<Arc<Grant>, NotAsked> {
        let known = shard.get_key_value(name);
        if let Some((_, entry)) = known {
            if let Some(what) = entry.damage() {
                return Err(NotAsked::Damaged(Arc::clone(what)));
            }
            entry.head.check(mode).map_err(NotAsked::Unfit)?;
            if waiter.is_none() && !entry.head.is_free_for(mode) {
                return Err(NotAsked::Busy);
            }
        }
        let is_first = known.is_none();
        let name: Arc<str> = known.map_or_else(|| name.into(), |(name, _)| Arc::clone(name));
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let mut grant = Grant::new(Arc::clone(&name), id, mode, owner(), lease);
        grant.is_first = is_first;
        let grant = Arc::new(grant);
        let entry = shard.entry(name).or_default();
        if entry.head.ask(id, mode, Arc::clone(&grant)) {
            entry.granted(&grant);
        } else if let Some(waiter) = waiter {
            grant.set_waiter(waiter());
        }
        Ok(grant)
    }

    /// Takes a request back that still waits; the answer is how many were before it. `None` when it is granted.
    pub fn give_up(&self, grant: &Arc<Grant>) -> Option<usize> {
        let mut wakes = Wakes::default();
        let ahead = {
            let mut shard = self.shard(&grant.name);
            let waits = !grant.is_granted();
            let queue = shard.get(&grant.name).map(|entry| &entry.head);
            let ahead = queue.map_or(0, |head| head.waiting().take_while(|asked| asked.id < grant.id).count());
            if waits && !mutated!(RequestKept) {
                Self::leave_in(&mut shard, grant, LostReason::Released, &mut wakes);
            }
            waits.then_some(ahead)
        };
        self.wake(wakes);
        ahead
    }

    /// Ends a grant, or takes a request that waits back. The answer is whether it was there.
    pub fn leave(&self, grant: &Arc<Grant>, why: LostReason) -> bool {
        let mut wakes = Wakes::default();
        let left = {
            let mut shard = self.shard(&grant.name);
            Self::leave_in(&mut shard, grant, why, &mut wakes)
        };
        self.wake(wakes);
        left
    }

    fn leave_in(shard: &mut Shard, grant: &Arc<Grant>, why: LostReason, wakes: &mut Wakes) -> bool {
        let Some(entry) = shard.get_mut(&grant.name) else { return false };
        let front = entry.front().map(|front| front.id);
        let left = entry.leave(grant, why, wakes);
        if left && !mutated!(TimerNotPassedOn) {
            entry.pass_timer_on(front, wakes);
        }
        let gone = entry.is_gone() || (mutated!(HeadForgotten) && entry.head.is_empty());
        if gone {
            shard.remove(&grant.name);
        }
        left
    }

    /// Ends the grant that has this token; by its name alone where the token is not looked at.
    pub fn end_by_token(&self, name: &str, token: Timestamp, why: LostReason) -> Option<Arc<Grant>> {
        let mut wakes = Wakes::default();
        let found = {
            let mut shard = self.shard(name);
            let found = shard.get(name).and_then(|entry| entry.granted_as(token));
            if let Some(grant) = &found {
                Self::leave_in(&mut shard, grant, why, &mut wakes);
            }
            found
        };
        self.wake(wakes);
        found
    }

    /// Takes charge of the lease that has this token: there is a guard from here on. `None` when it is over or has one.
    pub fn resume(&self, name: &str, token: Timestamp, now: Duration) -> Option<Arc<Grant>> {
        let shard = self.shard(name);
        let grant = shard.get(name)?.granted_as(token)?;
        let resumed = grant.with_lease(|lease| {
            let free = !lease.has_guard && (lease.writing > 0 || lease.ends > now);
            lease.has_guard |= free;
            lease.renews |= free;
            free
        });
        resumed.filter(|resumed| *resumed).map(|_| grant)
    }

    /// Has a shared grant become exclusive, as soon as it is the only one. `next` takes its place then.
    pub fn upgrade(&self, grant: &Arc<Grant>, next: &Arc<Grant>, waiter: &dyn Fn() -> Arc<Waiter>) -> Conversion<()> {
        let mut wakes = Wakes::default();
        let conversion = {
            let mut shard = self.shard(&grant.name);
            let entry = shard.get_mut(&grant.name).filter(|_| !grant.has_ended());
            let Some(entry) = entry else { return Conversion::Unknown };
            match entry.head.upgrade(grant.id, Arc::clone(next)) {
                Conversion::Granted(before) => {
                    entry.granted(next);
                    entry.replaced(&before, &mut wakes);
                    Conversion::Granted(())
                }
                Conversion::Waits => {
                    next.set_waiter(waiter());
                    Conversion::Waits
                }
                Conversion::Deadlock => Conversion::Deadlock,
                Conversion::Unknown => Conversion::Unknown,
            }
        };
        self.wake(wakes);
        conversion
    }

    /// Takes a conversion that still waits back; none is before it in the queue. `None` when it is granted.
    pub fn cancel_upgrade(&self, next: &Arc<Grant>) -> Option<usize> {
        let mut wakes = Wakes::default();
        let waited = {
            let mut shard = self.shard(&next.name);
            let waits = !next.is_granted();
            if waits && let Some(entry) = shard.get_mut(&next.name) {
                let mut changes = Changes::default();
                entry.head.cancel_upgrade(next.id, &mut changes);
                entry.changed(changes, &mut wakes);
            }
            waits.then_some(0)
        };
        self.wake(wakes);
        waited
    }

    /// Has an exclusive grant become shared, in the place of which `next` is granted. The answer is whether it stood.
    pub fn downgrade(&self, grant: &Arc<Grant>, next: &Arc<Grant>) -> Result<bool, NotAsked> {
        let mut wakes = Wakes::default();
        let converted = {
            let mut shard = self.shard(&grant.name);
            let entry = shard.get_mut(&grant.name).filter(|_| !grant.has_ended());
            let Some(entry) = entry else { return Ok(false) };
            let mut changes = Changes::default();
            let before = entry.head.downgrade(grant.id, Arc::clone(next), &mut changes).map_err(NotAsked::Unfit)?;
            if let Some(before) = &before {
                entry.granted(next);
                entry.replaced(before, &mut wakes);
                entry.changed(changes, &mut wakes);
            }
            before.is_some()
        };
        self.wake(wakes);
        Ok(converted)
    }

    /// Ends the leases of the name that are over. To be called by the request at the front, whose timer this is; the answer is how long it
    /// is until the next one may be over. `None` where it need not look: it is not at the front, there is no lease before it, or
    /// one is being written, whose writer wakes it.
    pub fn end_leases_before(&self, grant: &Arc<Grant>, now: Duration) -> Option<Duration> {
        let mut wakes = Wakes::default();
        let left = {
            let mut shard = self.shard(&grant.name);
            let entry = shard.get_mut(&grant.name)?;
            if entry.front().is_none_or(|front| front.id != grant.id) {
                return None;
            }
            self.expire(entry, now, &mut wakes);
            // Its own wake-up is not needed: it is awake.
            wakes.granted.retain(|other| !Arc::ptr_eq(other, grant));
            entry.next_lease_end(now).map(|end| end.saturating_sub(now))
        };
        self.wake(wakes);
        left
    }

    /// Notes that the end of a lease has changed: the request at the front, and who waits for its end, have to look again.
    pub fn lease_written(&self, grant: &Arc<Grant>) {
        let mut wakes = Wakes::default();
        {
            let shard = self.shard(&grant.name);
            wakes.front = shard.get(&grant.name).and_then(|entry| entry.front()).map(Arc::clone);
        }
        self.wake(wakes);
        grant.watchers().iter().for_each(|watcher| watcher.notify());
    }

    /// What the grants before this one have left for it.
    pub fn past_of(&self, grant: &Grant) -> Past {
        let mut past = Past::default();
        if grant.is_first {
            return past;
        }
        let shard = self.shard(&grant.name);
        let Some(entry) = shard.get(&grant.name) else { return past };
        past.debt = entry.debt_of(grant.mode);
        for other in entry.past().iter().filter(|other| grant.mode.conflicts(other.mode)) {
            past.is_under_way |= other.under_way() > 0;
            past.debt = past.debt.max(other.debt());
            if other.has_row() {
                past.leases.push(Arc::clone(other));
            }
        }
        past
    }

    /// Forgets what was left of grants that have ended, as far as nothing of it is under way or not durable yet.
    pub fn tidy(&self, name: &str, durable_ts: Timestamp) {
        let mut shard = self.shard(name);
        if let Some(entry) = shard.get_mut(name) {
            entry.tidy(durable_ts);
            if entry.is_gone() {
                shard.remove(name);
            }
        }
    }

    /// [`Heads::tidy`] for every name.
    pub fn tidy_all(&self, durable_ts: Timestamp) {
        for mut shard in self.shards() {
            shard.retain(|_, entry| {
                entry.tidy(durable_ts);
                !entry.is_gone()
            });
        }
    }

    /// Takes leases over that an earlier life has left. Of those that exclude each other the one with the greatest token holds the name.
    pub fn load(&self, name: &str, mut leases: Vec<(LockMode, Owner, Lease, Timestamp)>, floor: Timestamp) {
        leases.sort_by_key(|(_, _, _, token)| std::cmp::Reverse(*token));
        let name: Arc<str> = name.into();
        let mut shard = self.shard(&name);
        let entry = shard.entry(Arc::clone(&name)).or_default();
        for (mode, owner, lease, token) in leases {
            let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
            let grant = Arc::new(Grant::new(Arc::clone(&name), id, mode, owner, Some(lease)));
            grant.set_token(token);
            grant.set_floor(floor);
            grant.set_row(true);
            grant.set_settled();
            if entry.head.is_free_for(mode) && entry.head.ask(id, mode, Arc::clone(&grant)) {
                entry.granted(&grant);
            } else {
                // The later one took the name over.
                grant.end(LostReason::Expired);
                entry.left.get_or_insert_default().past.push(grant);
            }
        }
    }

    /// Closes all names.
    pub fn unreadable(&self, what: &str) {
        let _ = self.unreadable.set(what.into());
    }

    /// Why nothing can be said of any name.
    pub fn check_readable(&self) -> Result<(), NotAsked> {
        self.unreadable.get().map_or(Ok(()), |what| Err(NotAsked::Damaged(Arc::clone(what))))
    }

    /// Closes a name of which nothing can be said.
    pub fn damaged(&self, name: &str, what: &str) {
        self.shard(name).entry(name.into()).or_default().left.get_or_insert_default().damage = Some(what.into());
    }

    /// Opens a name again, whose row is gone. The answer is whether it was closed.
    pub fn mended(&self, name: &str) -> bool {
        let mut shard = self.shard(name);
        let Some(entry) = shard.get_mut(name) else { return false };
        let was_damaged = entry.left.as_mut().is_some_and(|left| left.damage.take().is_some());
        if entry.is_gone() {
            shard.remove(name);
        }
        was_damaged
    }

    /// Whether the name is closed.
    pub fn damage(&self, name: &str) -> Option<Arc<str>> {
        self.shard(name).get(name)?.damage().cloned()
    }

    /// Ends everything: no request is taken any more, those that wait are refused, and all grants are lost. The answer is the leases with a
    /// guard among them, and those that are over with rows.
    pub fn close(&self, why: &str) -> Vec<Arc<Grant>> {
        let _ = self.closed.set(why.into());
        let mut leases = Vec::new();
        for mut shard in self.shards() {
            let mut wakes = Wakes::default();
            for entry in shard.values() {
                for grant in entry.head.granted().iter().map(|asked| &asked.value) {
                    grant.end(LostReason::Closed);
                    wakes.ended(grant);
                    if grant.with_lease(|lease| lease.has_guard).unwrap_or(false) {
                        leases.push(Arc::clone(grant));
                    }
                }
                leases.extend(entry.past().iter().filter(|grant| grant.has_row()).map(Arc::clone));
                let converting = entry.head.converting().map(|(_, grant)| grant);
                wakes.granted.extend(entry.head.waiting().map(|asked| &asked.value).chain(converting).map(Arc::clone));
            }
            shard.clear();
            drop(shard);
            self.wake(wakes);
        }
        leases
    }

    /// Rows of leases that are over for so long that nobody asks for them any more, and of those that were handed on.
    pub fn stale_rows(&self, over_for: Duration, now: Duration) -> Vec<Arc<Grant>> {
        let is_stale = |grant: &Arc<Grant>| {
            grant.with_lease(|lease| lease.writing == 0 && lease.ends.saturating_add(over_for) <= now).unwrap_or(false)
        };
        let mut wakes = Wakes::default();
        let mut stale = Vec::new();
        for mut shard in self.shards() {
            for entry in shard.values_mut().filter(|entry| entry.leases > 0) {
                if entry.head.granted().iter().any(|asked| is_stale(&asked.value)) {
                    self.expire(entry, now, &mut wakes);
                }
            }
            stale.extend(shard.values().flat_map(|entry| entry.past()).filter(|grant| grant.has_row()).map(Arc::clone));
        }
        self.wake(wakes);
        stale
    }

    /// The entries of a name, those that are granted first.
    pub fn entries(&self, name: &str, clock: &table::Clock<'_>) -> Vec<LockEntry> {
        let shard = self.shard(name);
        shard.get(name).map(|entry| table::entries(&entry.head, clock)).unwrap_or_default()
    }

    /// Whether the name is free for an exclusive request; an expired lease counts as free.
    pub fn is_free(&self, name: &str, now: Duration) -> Result<bool, NotAsked> {
        let mut wakes = Wakes::default();
        let free = {
            let mut shard = self.shard(name);
            if let Some(why) = self.closed.get() {
                return Err(NotAsked::Closed(why.clone()));
            }
            match shard.get_mut(name) {
                None => Ok(true),
                Some(entry) => {
                    if let Some(what) = entry.damage() {
                        return Err(NotAsked::Damaged(Arc::clone(what)));
                    }
                    self.expire(entry, now, &mut wakes);
                    Ok(entry.head.is_free_for(LockMode::Exclusive))
                }
            }
        };
        self.wake(wakes);
        free
    }

    /// Whether nothing is kept of any name.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.shards().all(|shard| shard.is_empty())
    }

    fn expire(&self, entry: &mut Entry, now: Duration, wakes: &mut Wakes) {
        if entry.leases == 0 {
            return;
        }
        let over: Vec<_> =
            entry.head.granted().iter().map(|asked| &asked.value).filter(|grant| grant.expire(now)).cloned().collect();
        let front = entry.front().map(|front| front.id);
        for grant in &over {
            self.counters.expired();
            entry.leave(grant, LostReason::Expired, wakes);
        }
        if !over.is_empty() {
            entry.pass_timer_on(front, wakes);
        }
    }

    fn wake(&self, wakes: Wakes) {
        self.counters.lost(wakes.lost.len());
        #[cfg(feature = "tracing")]
        for lost in &wakes.lost {
            event!(WARN, lock = %lost.name, token = %lost.token(), "lock lost");
        }
        for grant in wakes.granted {
            if let Some(waiter) = grant.waiter() {
                self.counters.woken();
                waiter.notify();
            }
            if mutated!(WakeBeforeGrant) && !grant.is_granted() {
                // Its waiter looks meanwhile, and waits again.
                if let Some(entry) = self.shard(&grant.name).get_mut(&grant.name) {
                    entry.granted(&grant);
                }
            }
        }
        if let Some(waiter) = wakes.front.as_ref().and_then(|front| front.waiter()) {
            waiter.notify();
        }
        for watcher in wakes.watchers {
            watcher.notify();
        }
    }
}

impl Wakes {
    fn ended(&mut self, grant: &Arc<Grant>) {
        let why = grant.lost(Duration::ZERO);
        if matches!(why, Some(LostReason::Expired | LostReason::Forced | LostReason::Closed)) {
            self.lost.push(Arc::clone(grant));
        }
        self.watchers.append(&mut grant.take_watchers());
    }
}

impl Entry {
    /// Who has to see to it that a lease before it ends in time.
    fn front(&self) -> Option<&Arc<Grant>> {
        let converting = self.head.converting().map(|(_, grant)| grant);
        converting.or_else(|| self.head.waiting().next().map(|asked| &asked.value))
    }

    fn granted_as(&self, token: Timestamp) -> Option<Arc<Grant>> {
        let mut granted = self.head.granted().iter().map(|asked| &asked.value);
        // Without a number it is nobody's to end.
        granted
            .find(|grant| grant.token() == token && token > Timestamp::ZERO || mutated!(ReleasedByName))
            .map(Arc::clone)
    }

    /// One that is over by now is being written, and its writer wakes the front.
    fn next_lease_end(&self, now: Duration) -> Option<Duration> {
        if self.leases == 0 {
            return None;
        }
        let ends = self.head.granted().iter().filter_map(|asked| asked.value.lease()).map(|lease| lease.ends);
        ends.filter(|ends| *ends > now && *ends < Duration::MAX).min()
    }

    fn leave(&mut self, grant: &Arc<Grant>, why: LostReason, wakes: &mut Wakes) -> bool {
        // The grant of a request may have been replaced by a conversion; then it is no longer there.
        if self.head.find(grant.id).is_none_or(|asked| !Arc::ptr_eq(&asked.value, grant)) {
            return false;
        }
        if grant.is_granted() {
            self.ended(grant, why, wakes);
        }
        let mut changes = Changes::default();
        self.head.leave(grant.id, &mut changes);
        for conversion in changes.orphaned.drain(..) {
            // What is said of it names the grant that there was.
            conversion.set_token(grant.token());
            conversion.end(why);
            wakes.granted.push(conversion);
        }
        self.changed(changes, wakes);
        if mutated!(WakeAll) {
            wakes.granted.extend(self.head.waiting().map(|asked| Arc::clone(&asked.value)));
        }
        true
    }

    /// A grant has ended, and may have left something.
    fn ended(&mut self, grant: &Arc<Grant>, why: LostReason, wakes: &mut Wakes) {
        if !(mutated!(ConvertKeepsFence) && why == LostReason::Converted) {
            grant.end(why);
        }
        self.leases -= usize::from(grant.has_lease()).min(self.leases);
        if self.left.is_some() || grant.is_open() || grant.debt() > Timestamp::ZERO {
            let left = self.left.get_or_insert_default();
            left.past.push(Arc::clone(grant));
            left.merge();
        }
        wakes.ended(grant);
    }

    fn granted(&mut self, grant: &Arc<Grant>) {
        grant.set_granted();
        self.leases += usize::from(grant.has_lease());
    }

    fn replaced(&mut self, before: &Arc<Grant>, wakes: &mut Wakes) {
        self.ended(before, LostReason::Converted, wakes);
    }

    fn changed(&mut self, changes: Changes<Arc<Grant>>, wakes: &mut Wakes) {
        for before in &changes.converted {
            self.replaced(before, wakes);
        }
        for granted in changes.granted {
            if mutated!(WakeBeforeGrant) {
                wakes.granted.push(granted);
                continue;
            }
            self.granted(&granted);
            wakes.granted.push(granted);
        }
    }

    /// The timer of the request at the front goes to the next one, if there is a lease before it.
    fn pass_timer_on(&self, before: Option<u64>, wakes: &mut Wakes) {
        if self.leases > 0
            && let Some(front) = self.front().filter(|front| Some(front.id) != before)
        {
            wakes.front = Some(Arc::clone(front));
        }
    }

    fn debt_of(&self, mode: LockMode) -> Timestamp {
        let [exclusive, shared, semaphore] = self.left.as_ref().map(|left| left.debts).unwrap_or_default();
        match mode {
            LockMode::Exclusive => exclusive.max(shared).max(semaphore),
            LockMode::Shared => exclusive.max(semaphore),
            LockMode::Semaphore(_) => exclusive.max(shared),
        }
    }

    fn past(&self) -> &[Arc<Grant>] {
        self.left.as_ref().map_or(&[], |left| &left.past)
    }

    fn damage(&self) -> Option<&Arc<str>> {
        self.left.as_ref()?.damage.as_ref()
    }

    fn tidy(&mut self, durable_ts: Timestamp) {
        if let Some(left) = self.left.as_deref_mut() {
            left.merge();
            for debt in left.debts.iter_mut().filter(|debt| **debt <= durable_ts) {
                *debt = Timestamp::ZERO;
            }
        }
    }

    fn is_gone(&self) -> bool {
        self.head.is_empty() && self.left.as_ref().is_none_or(|left| left.is_empty())
    }
}

impl Left {
    /// Of grants with nothing under way and no row only a timestamp is kept.
    fn merge(&mut self) {
        let Self { past, debts: [exclusive, shared, semaphore], .. } = self;
        past.retain(|grant| {
            if grant.is_open() {
                return true;
            }
            let debt = match grant.mode {
                LockMode::Exclusive => &mut *exclusive,
                LockMode::Shared => &mut *shared,
                LockMode::Semaphore(_) => &mut *semaphore,
            };
            *debt = grant.debt().max(*debt);
            false
        });
    }

    fn is_empty(&self) -> bool {
        self.past.is_empty() && self.debts == [Timestamp::ZERO; 3] && self.damage.is_none()
    }
}

#[cfg(test)]
#[path = "heads_tests.rs"]
mod tests;
