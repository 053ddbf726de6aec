//! What there is of one name: its lock head, and what grants that have ended leave for the next one.
//!
//! The entry of a name stays while a grant that has ended leaves something for the next one to wait for: fenced commits under way,
//! fenced commits that are not durable yet, or the row of a lease. These grants are in `past`, and, once only a timestamp is left
//! of them, in `unsynced_commits`.

use std::sync::Arc;
use std::time::Duration;

use super::grant::{Grant, LockLostReason};
use super::head::{LockQueue, QueueChanges};
use super::heads::RequestError;
use super::mode::LockMode;
use crate::timestamp::Timestamp;
use crate::waiter::Waiter;

/// Everything about one name.
#[derive(Default)]
pub struct NamedLock {
    pub head: LockQueue<Arc<Grant>>,
    /// How many of the grants are leased.
    pub leased_grants: usize,
    ended: Option<Box<EndedGrants>>,
}

/// What there is of few names: what grants have left that have ended.
#[derive(Default)]
struct EndedGrants {
    /// Those with commits under way or the row of a lease on the disk.
    past: Vec<Arc<Grant>>,
    /// The newest fenced durable commit of the others, by the kind of their mode.
    unsynced_commits: [Timestamp; 3],
    /// Of which semaphores the third of them is.
    semaphore_permits: u32,
    /// Why nothing can be said of the name: its row cannot be read.
    corruption: Option<Arc<str>>,
}

/// What a grant finds of those before it.
#[derive(Default)]
pub struct Predecessors {
    /// Whether fenced commits of them are under way.
    pub has_in_flight: bool,
    /// The newest of their fenced commits that is to be durable before the grant is used.
    pub unsynced_commit_ts: Timestamp,
    /// The leases among them whose rows may be on the disk.
    pub leases: Vec<Arc<Grant>>,
}

impl Predecessors {
    pub fn is_empty(&self) -> bool {
        !self.has_in_flight && self.unsynced_commit_ts == Timestamp::ZERO && self.leases.is_empty()
    }
}

/// What to wake once the shard's mutex is free.
#[derive(Default)]
pub struct WakeList {
    pub granted: Vec<Arc<Grant>>,
    /// Grants that were lost.
    pub lost: Vec<Arc<Grant>>,
    /// What waits for the end of grants that have ended.
    pub watchers: Vec<Arc<Waiter>>,
    /// Is to look at the lease before it.
    pub front: Option<Arc<Grant>>,
}

impl WakeList {
    pub fn ended(&mut self, grant: &Arc<Grant>) {
        let why = grant.end_reason_at(Duration::ZERO);
        if matches!(why, Some(LockLostReason::Expired | LockLostReason::Forced)) {
            self.lost.push(Arc::clone(grant));
        }
        self.watchers.append(&mut grant.take_watchers());
    }
}

impl NamedLock {
    /// The first request that waits: its timer ends the leases before it.
    pub fn front(&self) -> Option<&Arc<Grant>> {
        let converting = self.head.converting().map(|(_, grant)| grant);
        converting.or_else(|| self.head.waiting().next().map(|asked| &asked.value))
    }

    /// Makes a change after which another request may be the front: that one sets its timer, if there is a lease before it.
    pub fn rearm_front_after<T>(
        &mut self,
        wakes: &mut WakeList,
        change: impl FnOnce(&mut Self, &mut WakeList) -> T,
    ) -> T {
        let before = self.front().map(|front| front.id);
        let answer = change(self, wakes);
        if self.leased_grants > 0
            && let Some(front) = self.front().filter(|front| Some(front.id) != before && !mutated!(TimerNotPassedOn))
        {
            wakes.front = Some(Arc::clone(front));
        }
        answer
    }

    pub fn grant_with_token(&self, token: Timestamp) -> Option<Arc<Grant>> {
        let mut granted = self.head.granted().iter().map(|asked| &asked.value);
        // Without a token it cannot be ended by one.
        granted
            .find(|grant| grant.token() == token && token > Timestamp::ZERO || mutated!(ReleasedByName))
            .map(Arc::clone)
    }

    /// One that is over by now is being written, and its writer wakes the front.
    pub fn next_lease_expiry(&self, now: Duration) -> Option<Duration> {
        if self.leased_grants == 0 {
            return None;
        }
        let ends = self.head.granted().iter().filter_map(|asked| asked.value.lease()).map(|lease| lease.expires_at);
        ends.filter(|ends| *ends > now && *ends < Duration::MAX).min()
    }

    pub fn leave(&mut self, grant: &Arc<Grant>, why: LockLostReason, wakes: &mut WakeList) -> bool {
        // The grant of a request may have been replaced by a conversion; then it is no longer there.
        if self.head.find(grant.id).is_none_or(|asked| !Arc::ptr_eq(&asked.value, grant)) {
            return false;
        }
        self.rearm_front_after(wakes, |name, wakes| {
            if grant.is_granted() {
                name.ended(grant, why, wakes);
            }
            let mut changes = QueueChanges::default();
            name.head.remove(grant.id, &mut changes);
            for conversion in changes.aborted_upgrades.drain(..) {
                // What is said of it names the grant that there was.
                conversion.set_token(grant.token());
                conversion.end(why);
                wakes.granted.push(conversion);
            }
            name.changed(changes, wakes);
        });
        if mutated!(WakeAll) {
            wakes.granted.extend(self.head.waiting().map(|asked| Arc::clone(&asked.value)));
        }
        true
    }

    /// A grant has ended, and may have left something.
    pub fn ended(&mut self, grant: &Arc<Grant>, why: LockLostReason, wakes: &mut WakeList) {
        if !(mutated!(ConvertKeepsFence) && why == LockLostReason::Converted) {
            grant.end(why);
        }
        self.leased_grants -= usize::from(grant.has_lease()).min(self.leased_grants);
        if self.ended.is_some() || grant.has_leftovers() || grant.unsynced_commit_ts() > Timestamp::ZERO {
            let left = self.ended.get_or_insert_default();
            left.past.push(Arc::clone(grant));
            left.merge();
        }
        wakes.ended(grant);
    }

    pub fn granted(&mut self, grant: &Arc<Grant>) {
        grant.set_granted();
        self.leased_grants += usize::from(grant.has_lease());
    }

    pub fn changed(&mut self, changes: QueueChanges<Arc<Grant>>, wakes: &mut WakeList) {
        for before in &changes.replaced {
            self.ended(before, LockLostReason::Converted, wakes);
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

    pub fn unsynced_commit_of(&self, mode: LockMode) -> Timestamp {
        let Some(left) = &self.ended else { return Timestamp::ZERO };
        let [exclusive, shared, semaphore] = left.unsynced_commits;
        match mode {
            LockMode::Shared => exclusive.max(semaphore),
            LockMode::Semaphore(most) if most == left.semaphore_permits => exclusive.max(shared),
            LockMode::Exclusive | LockMode::Semaphore(_) => exclusive.max(shared).max(semaphore),
        }
    }

    pub fn past(&self) -> &[Arc<Grant>] {
        self.ended.as_ref().map_or(&[], |left| &left.past)
    }

    /// Whether anything can be said of the name.
    pub fn check_not_corrupt(&self) -> Result<(), RequestError> {
        self.damage().map_or(Ok(()), |what| Err(RequestError::Corrupt(Arc::clone(what))))
    }

    pub fn damage(&self) -> Option<&Arc<str>> {
        self.ended.as_ref()?.corruption.as_ref()
    }

    pub fn set_corrupt(&mut self, what: &str) {
        self.ended.get_or_insert_default().corruption = Some(what.into());
    }

    /// The answer is whether there was any.
    pub fn clear_corrupt(&mut self) -> bool {
        self.ended.as_mut().is_some_and(|left| left.corruption.take().is_some())
    }

    /// Adds a lease that another one has followed.
    pub fn add_ended(&mut self, grant: Arc<Grant>) {
        self.ended.get_or_insert_default().past.push(grant);
    }

    pub fn tidy(&mut self, durable_ts: Timestamp) {
        if let Some(left) = self.ended.as_deref_mut() {
            left.merge();
            for debt in left.unsynced_commits.iter_mut().filter(|debt| **debt <= durable_ts) {
                *debt = Timestamp::ZERO;
            }
        }
    }

    pub fn is_unused(&self) -> bool {
        self.head.is_empty() && self.ended.as_ref().is_none_or(|left| left.is_empty())
    }
}

impl EndedGrants {
    /// Of grants with nothing under way and no row only a timestamp is kept.
    fn merge(&mut self) {
        let Self { past, unsynced_commits: [exclusive, shared, semaphore], semaphore_permits: most, .. } = self;
        past.retain(|grant| {
            if grant.has_leftovers() {
                return true;
            }
            let debt = match grant.mode {
                LockMode::Exclusive => &mut *exclusive,
                LockMode::Shared => &mut *shared,
                LockMode::Semaphore(its) => {
                    if its != std::mem::replace(most, its) {
                        // What all that comes now has to wait for.
                        *exclusive = std::mem::take(semaphore).max(*exclusive);
                    }
                    &mut *semaphore
                }
            };
            *debt = grant.unsynced_commit_ts().max(*debt);
            false
        });
    }

    fn is_empty(&self) -> bool {
        self.past.is_empty() && self.unsynced_commits == [Timestamp::ZERO; 3] && self.corruption.is_none()
    }
}
