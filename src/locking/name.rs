//! What there is of one name: its lock head, and what grants that have ended leave for the next one.
//!
//! The entry of a name stays while a grant that has ended leaves something for the next one to wait for: fenced commits under way,
//! fenced commits that are not durable yet, or the row of a lease. These grants are in `past`, and, once only a timestamp is left
//! of them, in `debts`.

use std::sync::Arc;
use std::time::Duration;

use super::grant::{Grant, LostReason};
use super::head::{Changes, Head};
use super::heads::NotAsked;
use super::mode::LockMode;
use crate::timestamp::Timestamp;
use crate::waiter::Waiter;

/// Everything about one name.
#[derive(Default)]
pub struct Name {
    pub head: Head<Arc<Grant>>,
    /// How many of the grants are leased.
    pub leases: usize,
    left: Option<Box<Left>>,
}

/// What there is of few names: what grants have left that have ended.
#[derive(Default)]
struct Left {
    /// Those with commits under way or the row of a lease on the disk.
    past: Vec<Arc<Grant>>,
    /// The newest fenced durable commit of the others, by the kind of their mode.
    debts: [Timestamp; 3],
    /// Of which semaphores the third of them is.
    semaphore: u32,
    /// Why nothing can be said of the name: its row cannot be read.
    damage: Option<Arc<str>>,
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

/// What to wake once the shard's mutex is free.
#[derive(Default)]
pub struct Wakes {
    pub granted: Vec<Arc<Grant>>,
    /// Grants that were lost.
    pub lost: Vec<Arc<Grant>>,
    /// What waits for the end of grants that have ended.
    pub watchers: Vec<Arc<Waiter>>,
    /// Is to look at the lease before it.
    pub front: Option<Arc<Grant>>,
}

impl Wakes {
    pub fn ended(&mut self, grant: &Arc<Grant>) {
        let why = grant.lost(Duration::ZERO);
        if matches!(why, Some(LostReason::Expired | LostReason::Forced)) {
            self.lost.push(Arc::clone(grant));
        }
        self.watchers.append(&mut grant.take_watchers());
    }
}

impl Name {
    /// The first request that waits: its timer ends the leases before it.
    pub fn front(&self) -> Option<&Arc<Grant>> {
        let converting = self.head.converting().map(|(_, grant)| grant);
        converting.or_else(|| self.head.waiting().next().map(|asked| &asked.value))
    }

    /// Makes a change after which another request may be the front: that one sets its timer, if there is a lease before it.
    pub fn moving_front<T>(&mut self, wakes: &mut Wakes, change: impl FnOnce(&mut Self, &mut Wakes) -> T) -> T {
        let before = self.front().map(|front| front.id);
        let answer = change(self, wakes);
        if self.leases > 0
            && let Some(front) = self.front().filter(|front| Some(front.id) != before && !mutated!(TimerNotPassedOn))
        {
            wakes.front = Some(Arc::clone(front));
        }
        answer
    }

    pub fn granted_as(&self, token: Timestamp) -> Option<Arc<Grant>> {
        let mut granted = self.head.granted().iter().map(|asked| &asked.value);
        // Without a token it cannot be ended by one.
        granted
            .find(|grant| grant.token() == token && token > Timestamp::ZERO || mutated!(ReleasedByName))
            .map(Arc::clone)
    }

    /// One that is over by now is being written, and its writer wakes the front.
    pub fn next_lease_end(&self, now: Duration) -> Option<Duration> {
        if self.leases == 0 {
            return None;
        }
        let ends = self.head.granted().iter().filter_map(|asked| asked.value.lease()).map(|lease| lease.ends);
        ends.filter(|ends| *ends > now && *ends < Duration::MAX).min()
    }

    pub fn leave(&mut self, grant: &Arc<Grant>, why: LostReason, wakes: &mut Wakes) -> bool {
        // The grant of a request may have been replaced by a conversion; then it is no longer there.
        if self.head.find(grant.id).is_none_or(|asked| !Arc::ptr_eq(&asked.value, grant)) {
            return false;
        }
        self.moving_front(wakes, |name, wakes| {
            if grant.is_granted() {
                name.ended(grant, why, wakes);
            }
            let mut changes = Changes::default();
            name.head.leave(grant.id, &mut changes);
            for conversion in changes.orphaned.drain(..) {
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
    pub fn ended(&mut self, grant: &Arc<Grant>, why: LostReason, wakes: &mut Wakes) {
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

    pub fn granted(&mut self, grant: &Arc<Grant>) {
        grant.set_granted();
        self.leases += usize::from(grant.has_lease());
    }

    pub fn changed(&mut self, changes: Changes<Arc<Grant>>, wakes: &mut Wakes) {
        for before in &changes.converted {
            self.ended(before, LostReason::Converted, wakes);
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

    pub fn debt_of(&self, mode: LockMode) -> Timestamp {
        let Some(left) = &self.left else { return Timestamp::ZERO };
        let [exclusive, shared, semaphore] = left.debts;
        match mode {
            LockMode::Shared => exclusive.max(semaphore),
            LockMode::Semaphore(most) if most == left.semaphore => exclusive.max(shared),
            LockMode::Exclusive | LockMode::Semaphore(_) => exclusive.max(shared).max(semaphore),
        }
    }

    pub fn past(&self) -> &[Arc<Grant>] {
        self.left.as_ref().map_or(&[], |left| &left.past)
    }

    /// Whether anything can be said of the name.
    pub fn check_readable(&self) -> Result<(), NotAsked> {
        self.damage().map_or(Ok(()), |what| Err(NotAsked::Damaged(Arc::clone(what))))
    }

    pub fn damage(&self) -> Option<&Arc<str>> {
        self.left.as_ref()?.damage.as_ref()
    }

    pub fn set_damage(&mut self, what: &str) {
        self.left.get_or_insert_default().damage = Some(what.into());
    }

    /// The answer is whether there was any.
    pub fn take_damage(&mut self) -> bool {
        self.left.as_mut().is_some_and(|left| left.damage.take().is_some())
    }

    /// Adds a lease that another one has followed.
    pub fn add_past(&mut self, grant: Arc<Grant>) {
        self.left.get_or_insert_default().past.push(grant);
    }

    pub fn tidy(&mut self, durable_ts: Timestamp) {
        if let Some(left) = self.left.as_deref_mut() {
            left.merge();
            for debt in left.debts.iter_mut().filter(|debt| **debt <= durable_ts) {
                *debt = Timestamp::ZERO;
            }
        }
    }

    pub fn is_gone(&self) -> bool {
        self.head.is_empty() && self.left.as_ref().is_none_or(|left| left.is_empty())
    }
}

impl Left {
    /// Of grants with nothing under way and no row only a timestamp is kept.
    fn merge(&mut self) {
        let Self { past, debts: [exclusive, shared, semaphore], semaphore: most, .. } = self;
        past.retain(|grant| {
            if grant.is_open() {
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
            *debt = grant.debt().max(*debt);
            false
        });
    }

    fn is_empty(&self) -> bool {
        self.past.is_empty() && self.debts == [Timestamp::ZERO; 3] && self.damage.is_none()
    }
}
