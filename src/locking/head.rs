//! The lock head: the grants and the queue of one name. Plain code, without I/O, clock or randomness.
//!
//! Requests are served in the order in which they ask, by this definition, which the tests print and compare with:
//!
//! ```text
//! a new request is granted at once if it is compatible with every grant, every conversion that waits, and every waiting request
//! when a grant changes: 1. conversions in order of asking: granted if compatible with every other grant
//!                       2. if the front of the queue is compatible with grants and conversions: it is granted, and then, in
//!                          order, each request after it that is compatible with all grants by then
//! semaphore requests are compatible while fewer than n are granted; on such a name rule 2 stops at the first request that is
//! not granted: nothing passes
//! ```
//!
//! So an exclusive request is passed by shared ones at most once: by those that waited together with the one at the front.
//!
//! All grants of a name have the same mode, so the first of them speaks for all. And a request that waits is never compatible with
//! everything before it, so a new request is granted at once only where the queue is empty. Both make a decision O(1). No more
//! than one conversion waits: a second one is a deadlock, and is refused.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::mode::LockMode;

/// One request, waiting or granted.
#[derive(Clone, Debug)]
pub struct QueuedRequest<T> {
    /// Grows in the order of asking.
    pub id: u64,
    pub mode: LockMode,
    pub value: T,
}

/// What a change of a head has led to.
#[derive(Debug, PartialEq, Eq)]
pub struct QueueChanges<T> {
    /// Requests and conversions that are granted by it.
    pub granted: Vec<T>,
    /// Shared grants that have become exclusive ones.
    pub replaced: Vec<T>,
    /// Conversions that waited for a grant that is gone.
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
    /// In the order of asking.
    granted: SmallVec<[QueuedRequest<T>; 1]>,
    /// Made by the first request that waits: of most names none does.
    wait_queue: Option<Box<WaitQueue<T>>>,
    /// How many requests are shared, granted or waiting.
    shared_requests: u32,
    /// How many are of a semaphore, and its number, which is the same for all of them.
    semaphore_requests: u32,
    semaphore_permits: u32,
}

#[derive(Clone, Debug)]
struct WaitQueue<T> {
    /// In the order of asking.
    queue: VecDeque<QueuedRequest<T>>,
    /// The shared grant that waits to become exclusive, and what it is to be then.
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
        Self { queue: VecDeque::new(), converting: None }
    }
}

/// Why a request cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModeMismatch {
    /// The name is a semaphore of this number.
    Semaphore(u32),
    /// The name has shared requests.
    Shared,
}

/// What a conversion to exclusive comes to.
#[derive(Debug, PartialEq, Eq)]
pub enum UpgradeResult<T> {
    /// In the place of the grant that is handed back.
    Granted(T),
    Waiting,
    /// Another holder waits for the same, and each would wait for the other's end.
    Deadlock,
    /// There is no such shared grant.
    NoSuchGrant,
}

impl<T: Clone> LockQueue<T> {
    /// Whether nothing is granted or waits.
    pub fn is_empty(&self) -> bool {
        self.granted.is_empty() && self.waiting().len() == 0
    }

    /// Those that are granted, in the order of asking.
    pub fn granted(&self) -> &[QueuedRequest<T>] {
        &self.granted
    }

    /// Those that wait, in the order of asking.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = &QueuedRequest<T>> + DoubleEndedIterator {
        self.wait_queue.as_ref().map(|waits| waits.queue.iter()).unwrap_or_default()
    }

    /// A request that is granted or waits.
    pub fn find(&self, id: u64) -> Option<&QueuedRequest<T>> {
        if let Some(at) = self.position(id) {
            return self.granted.get(at);
        }
        let queue = &self.wait_queue.as_ref()?.queue;
        queue.get(queue.binary_search_by_key(&id, |asked| asked.id).ok()?)
    }

    /// Whether anything waits, a conversion included.
    pub fn has_waiting(&self) -> bool {
        self.wait_queue.as_ref().is_some_and(|waits| waits.converting.is_some() || !waits.queue.is_empty())
    }

    /// The grant that waits to be converted, and what it is to be then.
    pub fn converting(&self) -> Option<&(u64, T)> {
        self.wait_queue.as_ref()?.converting.as_ref()
    }

    /// Whether a request of this mode would be granted at once.
    pub fn would_grant(&self, mode: LockMode) -> bool {
        let is_queued = self.has_waiting() && !(mutated!(QueueJumped) && self.converting().is_none());
        !is_queued && self.is_compatible(mode)
    }

    /// Whether requests of this mode go together with those that are there.
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

    /// Adds a request, whose `id` is greater than all before, and which goes together with those that are there. The answer is
    /// whether it is granted.
    pub fn request(&mut self, id: u64, mode: LockMode, value: T) -> bool {
        self.adjust_counts(mode, 1);
        let granted = self.would_grant(mode);
        let asked = QueuedRequest { id, mode, value };
        if granted {
            self.granted.push(asked);
        } else {
            self.wait_queue.get_or_insert_default().queue.push_back(asked);
        }
        granted
    }

    /// Takes a request out, waiting or granted.
    pub fn remove(&mut self, id: u64, changes: &mut QueueChanges<T>) -> Option<QueuedRequest<T>> {
        let left = if let Some(at) = self.position(id) {
            self.granted.remove(at)
        } else {
            let queue = &mut self.wait_queue.as_mut()?.queue;
            queue.remove(queue.binary_search_by_key(&id, |asked| asked.id).ok()?)?
        };
        self.adjust_counts(left.mode, -1);
        changes.aborted_upgrades.extend(self.take_upgrade(id));
        self.grant_waiters(changes);
        Some(left)
    }

    /// Has a shared grant become exclusive, before everything that waits; `value` takes its place then.
    pub fn upgrade(&mut self, id: u64, value: T) -> UpgradeResult<T> {
        let Some(at) = self.position(id).filter(|at| self.mode_at(*at) == Some(LockMode::Shared)) else {
            return UpgradeResult::NoSuchGrant;
        };
        if self.granted.len() == 1 {
            return self
                .convert(at, LockMode::Exclusive, value)
                .map_or(UpgradeResult::NoSuchGrant, UpgradeResult::Granted);
        }
        if self.converting().is_some() {
            return if mutated!(SecondUpgraderWaits) { UpgradeResult::Waiting } else { UpgradeResult::Deadlock };
        }
        self.wait_queue.get_or_insert_default().converting = Some((id, value));
        UpgradeResult::Waiting
    }

    /// Takes a conversion that waits back. The answer is whether it waited.
    pub fn cancel_upgrade(&mut self, id: u64, changes: &mut QueueChanges<T>) -> bool {
        let waited = self.take_upgrade(id).is_some();
        if waited {
            self.grant_waiters(changes);
        }
        waited
    }

    /// Has an exclusive grant become shared, and `value` take its place; the answer is what was there. Not while requests of a semaphore
    /// wait for it to end.
    pub fn downgrade(&mut self, id: u64, value: T, changes: &mut QueueChanges<T>) -> Result<Option<T>, ModeMismatch> {
        let exclusive = self.position(id).filter(|at| self.mode_at(*at) == Some(LockMode::Exclusive));
        let Some(at) = exclusive else { return Ok(None) };
        self.check_mode(LockMode::Shared)?;
        let before = self.convert(at, LockMode::Shared, value);
        self.grant_waiters(changes);
        Ok(before)
    }

    fn take_upgrade(&mut self, id: u64) -> Option<T> {
        let conversion = self.wait_queue.as_mut()?.converting.take_if(|(converting, _)| *converting == id);
        conversion.map(|(_, value)| value)
    }

    /// Grants what can be granted after a change.
    fn grant_waiters(&mut self, changes: &mut QueueChanges<T>) {
        if let Some(id) = self.converting().map(|(id, _)| *id) {
            if let (1, Some(at)) = (self.granted.len(), self.position(id))
                && let Some(value) = self.take_upgrade(id)
            {
                changes.granted.push(value.clone());
                changes.replaced.extend(self.convert(at, LockMode::Exclusive, value));
            }
            return;
        }
        while let Some(front) = self.front()
            && self.is_compatible(front)
            && let Some(WaitQueue { queue, .. }) = self.wait_queue.as_deref_mut()
        {
            if front == LockMode::Shared {
                // They pass the exclusive requests that wait between them and the front.
                let (shared, left): (VecDeque<_>, _) =
                    std::mem::take(queue).into_iter().partition(|asked| asked.mode == LockMode::Shared);
                *queue = left;
                shared.into_iter().for_each(|asked| self.grant(asked, changes));
            } else if let Some(next) = queue.pop_front() {
                self.grant(next, changes);
            }
        }
    }

    fn front(&self) -> Option<LockMode> {
        self.wait_queue.as_ref()?.queue.front().map(|asked| asked.mode)
    }

    fn grant(&mut self, asked: QueuedRequest<T>, changes: &mut QueueChanges<T>) {
        changes.granted.push(asked.value.clone());
        self.granted.push(asked);
    }

    fn is_compatible(&self, mode: LockMode) -> bool {
        self.granted.first().is_none_or(|first| mode.is_compatible_with(first.mode, self.granted.len()))
    }

    fn position(&self, id: u64) -> Option<usize> {
        self.granted.binary_search_by_key(&id, |asked| asked.id).ok()
    }

    fn mode_at(&self, at: usize) -> Option<LockMode> {
        self.granted.get(at).map(|asked| asked.mode)
    }

    fn convert(&mut self, at: usize, to: LockMode, value: T) -> Option<T> {
        let before = self.mode_at(at)?;
        self.adjust_counts(before, -1);
        self.adjust_counts(to, 1);
        let asked = self.granted.get_mut(at)?;
        asked.mode = to;
        Some(std::mem::replace(&mut asked.value, value))
    }

    fn adjust_counts(&mut self, mode: LockMode, by: i32) {
        match mode {
            LockMode::Exclusive => {}
            LockMode::Shared => self.shared_requests = self.shared_requests.saturating_add_signed(by),
            LockMode::Semaphore(most) => {
                self.semaphore_requests = self.semaphore_requests.saturating_add_signed(by);
                self.semaphore_permits = most;
            }
        }
    }
}

#[cfg(test)]
#[path = "head_tests.rs"]
mod tests;
