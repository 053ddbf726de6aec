//! Turns: waiting beats trying again.
//!
//! Under contention an attempt that fails and is repeated at once mostly fails again. So a second attempt first takes its
//! turn for the rows that the first one wrote, and only then its snapshot: those who retry on a row go one after the
//! other. And no more attempts run at a time than the machine can make progress on; the others wait outside instead of
//! growing old with a snapshot in their hands, and those for whose turns somebody may wait go in first.
//!
//! Among themselves they cannot deadlock: row turns are taken all at once in the order of their hashes, never extended while
//! held, and before the permit to run; committing waits for neither. But a closure may wait for another thread that wants
//! one. So both are courtesies, not locks: they are waited for only so long, and whoever goes on without is still judged
//! by the guards.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::conflicts::row_hash;
use crate::engine::RowBatch;
use crate::row::{CellChange, RowKey};
use crate::sync::Mutex;
use crate::waiter::Waiter;

/// More rows than this are not worth queueing for.
const ROW_QUEUE_ROWS_MAX: usize = 64;

/// Queues of attempts, by row.
#[derive(Default)]
pub struct RowQueues(Mutex<HashMap<u64, VecDeque<Arc<Waiter>>>>);

/// The right to be next on a row.
pub struct RowQueueTicket {
    queues: Arc<RowQueues>,
    row: u64,
    own: Arc<Waiter>,
}

impl RowQueues {
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// What to queue for, and in which order; nothing if the rows are too many.
    pub fn lock_order(rows: &[RowKey]) -> Vec<u64> {
        if rows.len() > ROW_QUEUE_ROWS_MAX {
            return Vec::new();
        }
        let mut hashes: Vec<u64> = rows.iter().map(row_hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        hashes
    }

    /// Queues; `own` is notified when the turn has come. Dropping what is answered leaves the queue.
    pub fn enqueue(self: &Arc<Self>, row: u64, own: Arc<Waiter>) -> RowQueueTicket {
        let mut queues = self.0.lock();
        let queue = queues.entry(row).or_default();
        if queue.is_empty() {
            own.notify_early();
        }
        queue.push_back(Arc::clone(&own));
        RowQueueTicket { queues: Arc::clone(self), row, own }
    }
}

impl Drop for RowQueueTicket {
    fn drop(&mut self) {
        let mut queues = self.queues.0.lock();
        let Some(queue) = queues.get_mut(&self.row) else { return };
        let was_first = queue.front().is_some_and(|first| Arc::ptr_eq(first, &self.own));
        queue.retain(|waiter| !Arc::ptr_eq(waiter, &self.own));
        let next = queue.front().filter(|_| was_first).map(Arc::clone);
        if queue.is_empty() {
            queues.remove(&self.row);
        }
        // Waking a task may drop another one, which may be in this queue too.
        drop(queues);
        if let Some(next) = next {
            next.notify();
        }
    }
}

/// Attempts that wait for a live transaction to let go of a row.
#[derive(Default)]
pub struct UnlockWaiters {
    waiting: Mutex<HashMap<u64, Vec<Arc<Waiter>>>>,
    count: AtomicUsize,
}

/// A wait for a row's lock to go; dropping it ends the wait.
pub struct UnlockWait {
    unlocked: Arc<UnlockWaiters>,
    row: u64,
    own: Arc<Waiter>,
}

impl Drop for UnlockWait {
    fn drop(&mut self) {
        let mut waiting = self.unlocked.waiting.lock();
        if let Some(waiters) = waiting.get_mut(&self.row) {
            waiters.retain(|waiter| !Arc::ptr_eq(waiter, &self.own));
            if waiters.is_empty() {
                waiting.remove(&self.row);
            }
        }
        self.unlocked.count.fetch_sub(1, Ordering::SeqCst);
    }
}

impl UnlockWaiters {
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty() && self.count.load(Ordering::SeqCst) == 0
    }

    /// Has `own` notified when the row's lock goes. To be called before looking whether there is one, so that a lock that
    /// goes after the look is heard of.
    pub fn register(self: &Arc<Self>, row: &RowKey, own: Arc<Waiter>) -> UnlockWait {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.waiting.lock().entry(row_hash(row)).or_default().push(Arc::clone(&own));
        UnlockWait { unlocked: Arc::clone(self), row: row_hash(row), own }
    }

    /// Tells who waits for rows that this group, now applied, has unlocked.
    pub fn notify(&self, group: &RowBatch) {
        // Only such a one takes locks away.
        let RowBatch::Changes(changes) = group else { return };
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let unlocked = changes.iter().filter(|change| change.lock == CellChange::Delete);
        let waiters: Vec<Arc<Waiter>> = {
            let waiting = self.waiting.lock();
            unlocked.filter_map(|change| waiting.get(&row_hash(&change.row))).flatten().map(Arc::clone).collect()
        };
        for waiter in waiters {
            waiter.notify();
        }
    }
}

/// For so many commits after a conflict attempts have to ask before they run.
// Tests of crashes are short, and are to see the end of it.
const CONTENDED_COMMITS: usize = if cfg!(feature = "crashtest") { 2 } else { 16 };

/// Bounds how many attempts run at a time, as long as some of them conflict. Without conflicts a queue would only be one wait
/// more.
pub struct AdmissionController {
    permits: Mutex<Permits>,
    /// How many commits without a conflict are still to come before everybody is let in.
    contended_commits_left: AtomicUsize,
}

struct Permits {
    free: usize,
    /// They have turns, for which others wait meanwhile.
    with_tickets: VecDeque<Arc<Waiter>>,
    /// They run first attempts. Those with turns do not keep them out for ever: only a first attempt that runs, and conflicts,
    /// becomes one more of them.
    without_tickets: VecDeque<Arc<Waiter>>,
}

impl Permits {
    fn pop(&mut self) -> Option<Arc<Waiter>> {
        self.with_tickets.pop_front().or_else(|| self.without_tickets.pop_front())
    }

    /// Whether it was still waiting.
    fn remove(&mut self, own: &Arc<Waiter>) -> bool {
        [&mut self.with_tickets, &mut self.without_tickets].into_iter().any(|waiting| {
            let position = waiting.iter().position(|waiter| Arc::ptr_eq(waiter, own));
            position.and_then(|position| waiting.remove(position)).is_some()
        })
    }
}

/// The right to run, or a place in the queue for it.
pub struct Permit {
    admission: Arc<AdmissionController>,
    own: Arc<Waiter>,
}

impl AdmissionController {
    /// Whether nobody has a permit or waits for one.
    #[cfg(test)]
    pub fn is_idle(&self, permits: usize) -> bool {
        let now = self.permits.lock();
        now.free == permits && now.with_tickets.is_empty() && now.without_tickets.is_empty()
    }

    pub fn new(permits: usize) -> Self {
        let permits = Permits { free: permits, with_tickets: VecDeque::new(), without_tickets: VecDeque::new() };
        Self { permits: Mutex::new(permits), contended_commits_left: AtomicUsize::new(0) }
    }

    /// Whether attempts are to ask.
    pub fn is_contended(&self) -> bool {
        self.contended_commits_left.load(Ordering::Relaxed) > 0
    }

    /// Notes that an attempt has met a conflict.
    pub fn note_conflict(&self) {
        self.contended_commits_left.store(CONTENDED_COMMITS, Ordering::Relaxed);
    }

    /// Notes that an attempt has committed.
    pub fn note_commit(&self) {
        if self.is_contended() {
            let _ = self
                .contended_commits_left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        }
    }

    /// Queues, first come, first served, and those with turns before the others; `own` is notified when there is a permit. Dropping
    /// what is answered leaves the queue or gives the permit back.
    pub fn enqueue(self: &Arc<Self>, own: Arc<Waiter>, has_turns: bool) -> Permit {
        let mut permits = self.permits.lock();
        if permits.free > 0 {
            permits.free -= 1;
            own.notify_early();
        } else {
            let waiting = if has_turns { &mut permits.with_tickets } else { &mut permits.without_tickets };
            waiting.push_back(Arc::clone(&own));
        }
        Permit { admission: Arc::clone(self), own }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut permits = self.admission.permits.lock();
        // Who is no longer queued has been handed a permit, perhaps this very moment, and must not lose it.
        if !self.own.is_notified() && permits.remove(&self.own) {
            return;
        }
        if mutated!(PermitLeaked) && !self.admission.is_contended() {
            return;
        }
        match permits.pop() {
            Some(next) => {
                drop(permits);
                next.notify();
            }
            None => permits.free += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::pipeline::AdmissionWait;
    use crate::row::KeyspaceId;
    use crate::runtime::{Env, SystemEnv};

    fn rows(names: &[&str]) -> Vec<RowKey> {
        names.iter().map(|name| RowKey::new(KeyspaceId(1), name.as_bytes())).collect()
    }

    fn take(turns: &Arc<RowQueues>, rows: &[RowKey]) -> Vec<RowQueueTicket> {
        let mut entrance = AdmissionWait::default();
        entrance.queue_for_rows(turns, rows);
        entrance.block(&SystemEnv::default()).row_queue_tickets
    }

    fn enter(admission: &Arc<AdmissionController>, patience: Duration) -> Option<Permit> {
        let runtime = SystemEnv::default();
        let mut entrance = AdmissionWait::default();
        entrance.queue_for_permit(admission, runtime.elapsed().saturating_add(patience));
        entrance.block(&runtime).permit
    }

    #[test]
    fn turns_on_the_same_rows_in_opposite_order_exclude_each_other_without_deadlock() {
        let turns = Arc::new(RowQueues::default());
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for order in [["a", "b"], ["b", "a"]] {
                let (turns, inside) = (&turns, &inside);
                scope.spawn(move || {
                    for _ in 0..2000 {
                        let held = take(turns, &rows(&order));
                        assert_eq!(held.len(), 2);
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(turns.0.lock().is_empty());
    }

    #[test]
    fn a_permit_is_handed_on_and_never_lost() {
        let admission = Arc::new(AdmissionController::new(2));
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let _permit = enter(&admission, Duration::MAX).unwrap();
                        assert!(inside.fetch_add(1, Ordering::SeqCst) < 2);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(admission.permits.lock().free, 2);
    }

    #[test]
    fn a_permit_that_never_comes_is_not_waited_for() {
        let admission = Arc::new(AdmissionController::new(1));
        let held = enter(&admission, Duration::MAX);
        assert!(held.is_some());
        for patience in [Duration::ZERO, Duration::from_millis(1), Duration::MAX] {
            assert!(enter(&admission, patience).is_none(), "{patience:?}");
        }
        drop(held);
        assert!(admission.is_idle(1));
    }

    #[test]
    fn a_permit_handed_over_as_the_wait_ends_is_not_lost() {
        let admission = Arc::new(AdmissionController::new(1));
        let (with, without) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..2000 {
                        match enter(&admission, Duration::from_micros(round % 50)) {
                            Some(_permit) => with.fetch_add(1, Ordering::SeqCst),
                            None => without.fetch_add(1, Ordering::SeqCst),
                        };
                    }
                });
            }
        });
        assert_eq!(with.into_inner() + without.into_inner(), 8000);
        assert!(admission.is_idle(1));
    }

    #[test]
    fn permits_go_to_those_with_turns_and_else_to_those_who_came_first() {
        let (admission, turns) = (Arc::new(AdmissionController::new(1)), Arc::default());
        let first = enter(&admission, Duration::MAX);
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for number in 0..6 {
                let (admission, turns, order) = (&admission, &turns, &order);
                scope.spawn(move || {
                    let mut entrance = AdmissionWait::default();
                    if number % 2 == 1 {
                        entrance.queue_for_rows(turns, &rows(&[&number.to_string()]));
                    }
                    entrance.queue_for_permit(admission, Duration::MAX);
                    let held = entrance.block(&SystemEnv::default());
                    order.lock().push(number);
                    drop(held);
                });
                let waiting = |permits: &Permits| permits.with_tickets.len() + permits.without_tickets.len();
                while waiting(&admission.permits.lock()) <= number {
                    std::thread::yield_now();
                }
            }
            drop(first);
        });
        assert_eq!(order.into_inner(), [1, 3, 5, 0, 2, 4]);
    }

    #[test]
    fn too_many_rows_are_not_queued_for() {
        let turns = Arc::new(RowQueues::default());
        let names: Vec<String> = (0..=ROW_QUEUE_ROWS_MAX).map(|number| number.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(take(&turns, &rows(&names)).is_empty());
    }
}
