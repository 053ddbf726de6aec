//! One named lock: its queue, and the predecessors: ended grants that a new grant must wait for.
//!
//! The lock manager keeps a name's [`NamedLock`], even without requests, while an ended grant
//! leaves something to wait for: fenced commits in flight, fenced commits that are not durable yet,
//! or a lease row. If it were removed earlier, the next holder would wait for nothing, and a power
//! cut could revert commits that this holder has read.
//!
//! Ended grants that leave commits in flight or a lease row are in `past`. Once an unsynced commit
//! is all that a grant leaves, the timestamp of this commit is merged into `unsynced_commits`, and
//! the grant is dropped.

use std::sync::Arc;
use std::time::Duration;

use super::grant::Grant;
use super::info::LockLostReason;
use super::mode::LockMode;
use super::queue::{LockQueue, QueueChanges};
use super::request_error::RequestError;
use crate::timestamp::Timestamp;
use crate::waiter::Waiter;

/// See the [module](self).
#[derive(Default)]
pub struct NamedLock {
    pub queue: LockQueue<Arc<Grant>>,
    /// Number of grants with a lease.
    pub leased_grants: usize,
    ended: Option<Box<EndedGrants>>,
}

/// What the ended grants of a name leave. Few names need this.
#[derive(Default)]
struct EndedGrants {
    /// Ended grants with commits in flight or a lease row on disk.
    past: Vec<Arc<Grant>>,
    /// All that is kept of the ended grants that are not in `past`: for each mode (exclusive,
    /// shared, semaphore) the timestamp of their newest unsynced commit, or zero. It must be
    /// durable before a new conflicting grant is used. When the number of permits changes, the
    /// semaphore's timestamp is merged into the exclusive one, for which every mode waits.
    unsynced_commits: [Timestamp; 3],
    /// The number of permits of the semaphore grants whose commit is the third entry of
    /// `unsynced_commits`.
    semaphore_permits: u32,
    /// Why the lease row of the name cannot be read: requests return this corruption.
    corruption: Option<Arc<str>>,
}

/// What a new grant must wait for.
#[derive(Default)]
pub struct Predecessors {
    /// Whether fenced commits of conflicting predecessors are in flight.
    pub has_in_flight: bool,
    /// The newest unsynced commit of a conflicting predecessor, or zero. It must be durable before
    /// the new grant is used.
    pub unsynced_commit_ts: Timestamp,
    /// Conflicting predecessors whose lease row may be on disk.
    pub leases: Vec<Arc<Grant>>,
}

impl Predecessors {
    pub fn is_empty(&self) -> bool {
        !self.has_in_flight && self.unsynced_commit_ts == Timestamp::ZERO && self.leases.is_empty()
    }
}

/// What to wake and to report once the mutex of the name's shard in the lock manager is free.
#[derive(Default)]
pub struct WakeList {
    pub granted: Vec<Arc<Grant>>,
    /// Ended grants to be counted and reported as lost.
    pub lost: Vec<Arc<Grant>>,
    /// Waiters for the end of a grant.
    pub watchers: Vec<Arc<Waiter>>,
    /// The first waiter, if it must be woken to set its timer to the expiry of the lease that
    /// blocks it: it has just become the first waiter, or the lease was renewed.
    pub front: Option<Arc<Grant>>,
}

impl WakeList {
    pub fn ended(&mut self, grant: &Arc<Grant>) {
        let reason = grant.end_reason_at(Duration::ZERO);
        if matches!(reason, Some(LockLostReason::Expired | LockLostReason::Forced)) {
            self.lost.push(Arc::clone(grant));
        }
        self.watchers.append(&mut grant.take_watchers());
    }
}

impl NamedLock {
    /// The first waiter, whose timer ends the expired leases that block it.
    pub fn front(&self) -> Option<&Arc<Grant>> {
        let converting = self.queue.converting().map(|(_, grant)| grant);
        converting.or_else(|| self.queue.waiting().next().map(|request| &request.value))
    }

    /// Makes a change. If another request is the first waiter afterwards, and the name has a lease,
    /// the new first waiter is woken to arm its timer.
    pub fn rearm_front_after<T>(
        &mut self,
        wakes: &mut WakeList,
        change: impl FnOnce(&mut Self, &mut WakeList) -> T,
    ) -> T {
        let before = self.front().map(|front| front.id);
        let answer = change(self, wakes);
        if self.leased_grants > 0
            && let Some(front) = self.front().filter(|front| Some(front.id) != before)
        {
            wakes.front = Some(Arc::clone(front));
        }
        answer
    }

    pub fn grant_with_token(&self, token: Timestamp) -> Option<Arc<Grant>> {
        let mut granted = self.queue.granted().iter().map(|request| &request.value);
        // Token 0 means that the grant has none yet.
        granted.find(|grant| grant.token() == token && token > Timestamp::ZERO).map(Arc::clone)
    }

    /// The next expiry of a lease after `now`. A lease that has expired but is still granted is
    /// skipped: a write of its row is in flight, and the writer wakes the first waiter.
    pub fn next_lease_expiry(&self, now: Duration) -> Option<Duration> {
        if self.leased_grants == 0 {
            return None;
        }
        let ends =
            self.queue.granted().iter().filter_map(|request| request.value.lease()).map(|lease| lease.expires_at);
        ends.filter(|ends| *ends > now && *ends < Duration::MAX).min()
    }

    pub fn leave(&mut self, grant: &Arc<Grant>, reason: LockLostReason, wakes: &mut WakeList) -> bool {
        // Nothing to do if the request has left the queue already, or if a conversion has replaced
        // its grant by another one.
        if self.queue.find(grant.id).is_none_or(|request| !Arc::ptr_eq(&request.value, grant)) {
            return false;
        }
        self.rearm_front_after(wakes, |name, wakes| {
            if grant.is_granted() {
                name.ended(grant, reason, wakes);
            }
            let mut changes = QueueChanges::default();
            name.queue.remove(grant.id, &mut changes);
            for conversion in changes.aborted_upgrades.drain(..) {
                // The conversion has no token of its own: its `LockLost` error has the token of the
                // shared grant.
                conversion.set_token(grant.token());
                conversion.end(reason);
                wakes.granted.push(conversion);
            }
            name.changed(changes, wakes);
        });
        true
    }

    /// Ends a grant. Keeps it as a predecessor if it leaves anything that later grants must wait
    /// for.
    pub fn ended(&mut self, grant: &Arc<Grant>, reason: LockLostReason, wakes: &mut WakeList) {
        grant.end(reason);
        // With too low a count, the leases of the name would never expire.
        let Some(leased_grants) = self.leased_grants.checked_sub(usize::from(grant.has_lease())) else {
            unreachable!("invariant: a lease that ends was counted when it was granted: {}", grant.name)
        };
        self.leased_grants = leased_grants;
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

    /// Checks that the lease row of the name could be read.
    pub fn check_not_corrupt(&self) -> Result<(), RequestError> {
        self.damage().map_or(Ok(()), |what| Err(RequestError::Corrupt(Arc::clone(what))))
    }

    pub fn damage(&self) -> Option<&Arc<str>> {
        self.ended.as_ref()?.corruption.as_ref()
    }

    pub fn set_corrupt(&mut self, what: &str) {
        self.ended.get_or_insert_default().corruption = Some(what.into());
    }

    /// Returns whether the name was corrupt.
    pub fn clear_corrupt(&mut self) -> bool {
        self.ended.as_mut().is_some_and(|left| left.corruption.take().is_some())
    }

    /// Adds a lease of an earlier incarnation that has already ended: a later lease excludes it.
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
        self.queue.is_empty() && self.ended.as_ref().is_none_or(|left| left.is_empty())
    }
}

impl EndedGrants {
    /// Drops each grant that has neither a commit in flight nor a lease row. The timestamp of its
    /// unsynced commit is merged into `unsynced_commits`.
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
                        // The number of permits has changed. The commits under the earlier number
                        // move to the exclusive entry, for which later grants of every mode wait.
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
