//! The lock queue (in textbooks the lock head): the grants and the waiting requests of one named
//! lock. The queue is plain code, without I/O, clock or randomness.
//!
//! Requests are served in the order of their arrival. The tests compare the queue with this
//! specification:
//!
//! ```text
//! a new request is granted immediately if it is compatible with every grant, the waiting
//!    conversion and every waiting request
//! when a grant changes:
//!    1. the waiting conversion, at most one: granted if compatible with every other grant
//!    2. if the front of the queue is compatible with grants and conversion: it is granted, and
//!       then, in order, each request after it that is compatible with all grants by then
//! semaphore requests are compatible while fewer are granted than there are permits; on such a name
//!    rule 2 stops at the first request that is not granted: nothing passes
//! ```
//!
//! So shared requests that arrived later overtake a waiting exclusive request at most once: when a
//! shared request ahead of it reaches the front, all waiting shared requests are granted together.
//! Shared requests that arrive after that wait behind it.
//!
//! All grants of a name have the same mode, so the first one and their number decide compatibility.
//! If anything waits, a new request waits as well, because it is incompatible with the grants or
//! with something that waits. So a request is compared with the grants only if nothing waits, and
//! each decision is O(1). A second conversion would be a deadlock, and is rejected.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::mode::LockMode;

/// One request, waiting or granted.
#[derive(Clone, Debug)]
pub struct QueuedRequest<T> {
    /// Grows in the order of arrival.
    pub id: u64,
    pub mode: LockMode,
    pub value: T,
}

/// The effects of a change of the queue.
#[derive(Debug, PartialEq, Eq)]
pub struct QueueChanges<T> {
    /// Requests and conversions that the change granted.
    pub granted: Vec<T>,
    /// Shared grants that a conversion replaced by exclusive ones.
    pub replaced: Vec<T>,
    /// Waiting conversions whose shared grant was removed.
    pub aborted_upgrades: Vec<T>,
}

impl<T> Default for QueueChanges<T> {
    fn default() -> Self {
        Self { granted: Vec::new(), replaced: Vec::new(), aborted_upgrades: Vec::new() }
    }
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct LockQueue<T> {
    /// In the order of arrival.
    granted: SmallVec<[QueuedRequest<T>; 1]>,
    /// Allocated when the first request waits: on most names no request waits.
    wait_queue: Option<Box<WaitQueue<T>>>,
    /// Number of shared requests, granted or waiting.
    shared_requests: u32,
    /// Number of semaphore requests, granted or waiting. All of them have the same number of
    /// permits, `semaphore_permits`.
    semaphore_requests: u32,
    semaphore_permits: u32,
}

#[derive(Clone, Debug)]
struct WaitQueue<T> {
    /// In the order of arrival.
    queue: VecDeque<QueuedRequest<T>>,
    /// The number of shared requests before the first request of `queue` that is not shared. A
    /// request is counted once in its life, so keeping the number costs no more than the requests.
    leading_shared: usize,
    /// The id of the shared grant that waits to become exclusive, and its value after the
    /// conversion.
    converting: Option<(u64, T)>,
}

impl<T> Default for LockQueue<T> {
    fn default() -> Self {
        Self {
            granted: SmallVec::new(),
            wait_queue: None,
            shared_requests: 0,
            semaphore_requests: 0,
            semaphore_permits: 0,
        }
    }
}

impl<T> Default for WaitQueue<T> {
    fn default() -> Self {
        Self { queue: VecDeque::new(), leading_shared: 0, converting: None }
    }
}

impl<T> WaitQueue<T> {
    fn push(&mut self, request: QueuedRequest<T>) {
        self.queue.push_back(request);
        self.count_leading_shared();
    }

    fn remove(&mut self, at: usize) -> Option<QueuedRequest<T>> {
        let request = self.queue.remove(at)?;
        self.leading_shared -= usize::from(at < self.leading_shared);
        self.count_leading_shared();
        Some(request)
    }

    /// Removes all shared requests, also those behind others.
    fn take_shared(&mut self) -> VecDeque<QueuedRequest<T>> {
        let all = std::mem::take(&mut self.queue);
        let (shared, left) = all.into_iter().partition(|request| request.mode == LockMode::Shared);
        (self.queue, self.leading_shared) = (left, 0);
        shared
    }

    fn count_leading_shared(&mut self) {
        let is_shared = |at: usize| self.queue.get(at).is_some_and(|request| request.mode == LockMode::Shared);
        while is_shared(self.leading_shared) {
            self.leading_shared += 1;
        }
    }
}

/// Why the mode of a request does not fit the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModeMismatch {
    /// The name has semaphore requests with this number of permits.
    Semaphore(u32),
    /// The name has shared requests.
    Shared,
}

/// The result of a conversion to exclusive.
#[derive(Debug, PartialEq, Eq)]
pub enum UpgradeResult<T> {
    /// The grant is exclusive now. Holds its old value, which the new one has replaced.
    Granted(T),
    Waiting,
    /// Another holder waits to upgrade, and each would wait for the end of the other.
    Deadlock,
    /// The request has no shared grant.
    NoSuchGrant,
}

impl<T: Clone> LockQueue<T> {
    /// Whether there is neither a grant nor a waiting request.
    pub fn is_empty(&self) -> bool {
        self.granted.is_empty() && self.waiting().len() == 0
    }

    /// The granted requests, in the order of arrival.
    pub fn granted(&self) -> &[QueuedRequest<T>] {
        &self.granted
    }

    /// The waiting requests in the order of arrival. Conversions are not among them.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = &QueuedRequest<T>> + DoubleEndedIterator {
        self.wait_queue.as_ref().map(|waits| waits.queue.iter()).unwrap_or_default()
    }

    /// A request, granted or waiting.
    pub fn find(&self, id: u64) -> Option<&QueuedRequest<T>> {
        if let Some(at) = self.position(id) {
            return self.granted.get(at);
        }
        let queue = &self.wait_queue.as_ref()?.queue;
        queue.get(queue.binary_search_by_key(&id, |request| request.id).ok()?)
    }

    /// The number of waiting requests that wait for nothing ahead of them in the queue, but for the
    /// grants or for the conversion: the shared requests at the front, or else the first request.
    pub fn front_count(&self) -> usize {
        let front = |waits: &WaitQueue<T>| waits.leading_shared.max(usize::from(!waits.queue.is_empty()));
        self.wait_queue.as_deref().map_or(0, front)
    }

    /// The number of waiting requests that arrived before the request `id`.
    pub fn waiting_before(&self, id: u64) -> usize {
        let place = |waits: &WaitQueue<T>| waits.queue.partition_point(|request| request.id < id);
        self.wait_queue.as_deref().map_or(0, place)
    }

    /// Whether anything waits, including a conversion.
    pub fn has_waiting(&self) -> bool {
        self.wait_queue.as_ref().is_some_and(|waits| waits.converting.is_some() || !waits.queue.is_empty())
    }

    /// The id of the grant that waits to be converted, and its value after the conversion.
    pub fn converting(&self) -> Option<&(u64, T)> {
        self.wait_queue.as_ref()?.converting.as_ref()
    }

    /// Whether a request of this mode would be granted immediately.
    pub fn would_grant(&self, mode: LockMode) -> bool {
        !self.has_waiting() && self.is_compatible(mode)
    }

    /// Checks that requests of this mode may share the name with the present ones.
    pub fn check_mode(&self, mode: LockMode) -> Result<(), ModeMismatch> {
        match mode {
            LockMode::Shared if self.semaphore_requests > 0 => Err(ModeMismatch::Semaphore(self.semaphore_permits)),
            LockMode::Semaphore(_) if self.shared_requests > 0 => Err(ModeMismatch::Shared),
            LockMode::Semaphore(most) if self.semaphore_requests > 0 && most != self.semaphore_permits => {
                Err(ModeMismatch::Semaphore(self.semaphore_permits))
            }
            _ => Ok(()),
        }
    }

    /// Adds a request. Its `id` must exceed all earlier ones, and its mode must have passed
    /// [`LockQueue::check_mode`]. Returns whether it is granted.
    pub fn request(&mut self, id: u64, mode: LockMode, value: T) -> bool {
        self.adjust_counts(mode, 1);
        let granted = self.would_grant(mode);
        let request = QueuedRequest { id, mode, value };
        if granted {
            self.granted.push(request);
        } else {
            self.wait_queue.get_or_insert_default().push(request);
        }
        granted
    }

    /// Removes a request, waiting or granted.
    pub fn remove(&mut self, id: u64, changes: &mut QueueChanges<T>) -> Option<QueuedRequest<T>> {
        let left = if let Some(at) = self.position(id) {
            self.granted.remove(at)
        } else {
            let waits = self.wait_queue.as_mut()?;
            waits.remove(waits.queue.binary_search_by_key(&id, |request| request.id).ok()?)?
        };
        self.adjust_counts(left.mode, -1);
        changes.aborted_upgrades.extend(self.take_upgrade(id));
        self.grant_waiters(changes);
        Some(left)
    }

    /// Makes a shared grant exclusive, immediately if it is the only grant. Otherwise the
    /// conversion waits, ahead of all waiting requests; but if another conversion waits already,
    /// this is a deadlock. `value` replaces the value of the grant when it is exclusive.
    pub fn upgrade(&mut self, id: u64, value: T) -> UpgradeResult<T> {
        let Some(at) = self.position(id).filter(|at| self.mode_at(*at) == Some(LockMode::Shared)) else {
            return UpgradeResult::NoSuchGrant;
        };
        if self.granted.len() == 1 {
            return UpgradeResult::Granted(self.convert(at, LockMode::Exclusive, value));
        }
        if self.converting().is_some() {
            return UpgradeResult::Deadlock;
        }
        self.wait_queue.get_or_insert_default().converting = Some((id, value));
        UpgradeResult::Waiting
    }

    /// Cancels a waiting conversion. Returns whether there was one.
    pub fn cancel_upgrade(&mut self, id: u64, changes: &mut QueueChanges<T>) -> bool {
        let waited = self.take_upgrade(id).is_some();
        if waited {
            self.grant_waiters(changes);
        }
        waited
    }

    /// Makes an exclusive grant shared and replaces its value by `value`; returns the old value, or
    /// `None` if there is no such grant. Fails while semaphore requests wait, because a name cannot
    /// have shared and semaphore requests together.
    pub fn downgrade(&mut self, id: u64, value: T, changes: &mut QueueChanges<T>) -> Result<Option<T>, ModeMismatch> {
        let exclusive = self.position(id).filter(|at| self.mode_at(*at) == Some(LockMode::Exclusive));
        let Some(at) = exclusive else { return Ok(None) };
        self.check_mode(LockMode::Shared)?;
        let before = self.convert(at, LockMode::Shared, value);
        self.grant_waiters(changes);
        Ok(Some(before))
    }

    fn take_upgrade(&mut self, id: u64) -> Option<T> {
        let conversion = self.wait_queue.as_mut()?.converting.take_if(|(converting, _)| *converting == id);
        conversion.map(|(_, value)| value)
    }

    /// Grants what a change has made compatible.
    fn grant_waiters(&mut self, changes: &mut QueueChanges<T>) {
        if let Some(id) = self.converting().map(|(id, _)| *id) {
            let Some(at) = self.position(id) else {
                unreachable!("invariant: a conversion waits only while request {id} has its shared grant")
            };
            if self.granted.len() == 1
                && let Some(value) = self.take_upgrade(id)
            {
                changes.granted.push(value.clone());
                changes.replaced.push(self.convert(at, LockMode::Exclusive, value));
            }
            return;
        }
        while let Some(front) = self.front()
            && self.is_compatible(front)
            && let Some(waits) = self.wait_queue.as_deref_mut()
        {
            if front == LockMode::Shared {
                waits.take_shared().into_iter().for_each(|request| self.grant(request, changes));
            } else {
                let Some(next) = waits.remove(0) else { unreachable!("invariant: a queue with a front is not empty") };
                self.grant(next, changes);
            }
        }
    }

    fn front(&self) -> Option<LockMode> {
        self.wait_queue.as_ref()?.queue.front().map(|request| request.mode)
    }

    fn grant(&mut self, request: QueuedRequest<T>, changes: &mut QueueChanges<T>) {
        changes.granted.push(request.value.clone());
        self.granted.push(request);
    }

    fn is_compatible(&self, mode: LockMode) -> bool {
        self.granted.first().is_none_or(|first| mode.is_compatible_with(first.mode, self.granted.len()))
    }

    fn position(&self, id: u64) -> Option<usize> {
        self.granted.binary_search_by_key(&id, |request| request.id).ok()
    }

    fn mode_at(&self, at: usize) -> Option<LockMode> {
        self.granted.get(at).map(|request| request.mode)
    }

    fn convert(&mut self, at: usize, to: LockMode, value: T) -> T {
        let Some(request) = self.granted.get_mut(at) else {
            unreachable!("invariant: a grant that is converted is in the queue")
        };
        let before = std::mem::replace(&mut request.mode, to);
        let value = std::mem::replace(&mut request.value, value);
        self.adjust_counts(before, -1);
        self.adjust_counts(to, 1);
        value
    }

    /// With a wrong count, a name would accept a mode that its grants exclude, or refuse one that
    /// they allow.
    fn adjust_counts(&mut self, mode: LockMode, by: i32) {
        let count = match mode {
            LockMode::Exclusive => return,
            LockMode::Shared => &mut self.shared_requests,
            LockMode::Semaphore(most) => {
                self.semaphore_permits = most;
                &mut self.semaphore_requests
            }
        };
        let Some(adjusted) = count.checked_add_signed(by) else {
            unreachable!("invariant: a {mode:?} request that leaves its queue was counted when it came")
        };
        *count = adjusted;
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
