//! Turns: waiting beats trying again.
//!
//! Under contention an attempt that fails and is repeated at once mostly fails again. So a second attempt first takes its
//! turn for the rows that the first one wrote, and only then its snapshot: those who retry on a row go one after the
//! other. And no more attempts run at a time than the machine can make progress on; the others wait outside instead of
//! growing old with a snapshot in their hands.
//!
//! Among themselves they cannot deadlock: row turns are taken all at once in the order of their hashes, never extended while
//! held, and before the permit to run; committing waits for neither. But a closure may wait for another thread that wants
//! one. So both are courtesies, not locks: they are waited for only so long, and whoever goes on without is still judged
//! by the guards.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::conflicts::hash;
use super::waiter::Waiter;
use crate::row::{Edit, RowChange, RowKey};
use crate::runtime::Runtime;

/// More rows than this are not worth queueing for.
const TURN_ROWS_MAX: usize = 64;
const TURN_WAIT_MAX: Duration = Duration::from_secs(1);
const PERMIT_WAIT_MAX: Duration = Duration::from_secs(1);
const UNLOCK_WAIT_MAX: Duration = Duration::from_millis(100);

/// What an attempt holds until its changes are visible.
#[derive(Default)]
pub struct Held {
    /// Turns end before the permit is given back.
    _turns: Vec<Turn>,
    _permit: Option<Permit>,
}

impl Held {
    pub fn new(turns: Vec<Turn>, permit: Option<Permit>) -> Self {
        Self { _turns: turns, _permit: permit }
    }
}

/// Queues of attempts, by row.
#[derive(Default)]
pub struct Turns(Mutex<HashMap<u64, VecDeque<Arc<Waiter>>>>);

/// The right to be next on a row.
pub struct Turn {
    turns: Arc<Turns>,
    row: u64,
    own: Arc<Waiter>,
}

impl Turns {
    /// Waits for the rows' turns.
    pub fn take(self: &Arc<Self>, runtime: &dyn Runtime, rows: &[RowKey]) -> Vec<Turn> {
        if rows.len() > TURN_ROWS_MAX {
            return Vec::new();
        }
        let mut hashes: Vec<u64> = rows.iter().map(hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        let end = runtime.elapsed() + TURN_WAIT_MAX;
        hashes.into_iter().map_while(|row| self.take_one(runtime, row, end)).collect()
    }

    fn take_one(self: &Arc<Self>, runtime: &dyn Runtime, row: u64, end: Duration) -> Option<Turn> {
        let own = Waiter::new(runtime);
        let first = {
            let mut queues = self.0.lock();
            let queue = queues.entry(row).or_default();
            queue.push_back(Arc::clone(&own));
            queue.len() == 1
        };
        let turn = Turn { turns: Arc::clone(self), row, own };
        // Dropped when the wait was in vain, which leaves the queue.
        let left = end.saturating_sub(runtime.elapsed());
        (first || turn.own.wait_at_most(runtime, left)).then_some(turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut queues = self.turns.0.lock();
        let Some(queue) = queues.get_mut(&self.row) else { return };
        let was_first = queue.front().is_some_and(|first| Arc::ptr_eq(first, &self.own));
        queue.retain(|waiter| !Arc::ptr_eq(waiter, &self.own));
        match queue.front() {
            Some(next) if was_first => next.notify(),
            Some(_) => {}
            None => {
                queues.remove(&self.row);
            }
        }
    }
}

/// Attempts that wait for a live transaction to let go of a row.
#[derive(Default)]
pub struct Unlocked {
    waiting: Mutex<HashMap<u64, Vec<Arc<Waiter>>>>,
    count: AtomicUsize,
}

impl Unlocked {
    /// Returns when the row's lock is gone, or after a bounded time. `is_locked` looks at the row.
    pub fn wait(&self, runtime: &dyn Runtime, row: &RowKey, is_locked: impl FnOnce() -> bool) {
        let own = Waiter::new(runtime);
        // Counted and listed before looking, so that a lock that goes after the look is heard of.
        self.count.fetch_add(1, Ordering::SeqCst);
        self.waiting.lock().entry(hash(row)).or_default().push(Arc::clone(&own));
        if is_locked() {
            own.wait_at_most(runtime, UNLOCK_WAIT_MAX);
        }
        let mut waiting = self.waiting.lock();
        if let Some(waiters) = waiting.get_mut(&hash(row)) {
            waiters.retain(|waiter| !Arc::ptr_eq(waiter, &own));
            if waiters.is_empty() {
                waiting.remove(&hash(row));
            }
        }
        self.count.fetch_sub(1, Ordering::SeqCst);
    }

    /// Tells who waits for rows that these changes, now applied, have unlocked.
    pub fn notify(&self, changes: &[RowChange]) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let waiting = self.waiting.lock();
        for change in changes.iter().filter(|change| change.lock == Edit::Delete) {
            for waiter in waiting.get(&hash(&change.row)).into_iter().flatten() {
                waiter.notify();
            }
        }
    }
}

/// Bounds how many attempts run at a time.
pub struct Admission(Mutex<Permits>);

struct Permits {
    free: usize,
    waiting: VecDeque<Arc<Waiter>>,
}

impl Permits {
    /// Whether it was still waiting.
    fn leave(&mut self, own: &Arc<Waiter>) -> bool {
        let position = self.waiting.iter().position(|waiter| Arc::ptr_eq(waiter, own));
        position.and_then(|position| self.waiting.remove(position)).is_some()
    }
}

/// The right to run.
pub struct Permit(Arc<Admission>);

impl Admission {
    pub fn new(permits: usize) -> Self {
        Self(Mutex::new(Permits { free: permits.max(1), waiting: VecDeque::new() }))
    }

    /// Waits for a permit, first come, first served; `None` when it took too long, or longer than `patience`.
    pub fn enter(self: &Arc<Self>, runtime: &dyn Runtime, patience: Duration) -> Option<Permit> {
        let own = {
            let mut permits = self.0.lock();
            if permits.free > 0 {
                permits.free -= 1;
                return Some(Permit(Arc::clone(self)));
            }
            let own = Waiter::new(runtime);
            permits.waiting.push_back(Arc::clone(&own));
            own
        };
        let in_time = own.wait_at_most(runtime, patience.min(PERMIT_WAIT_MAX));
        // Who is no longer queued has been handed a permit, in time or a moment too late, and must not lose it.
        let handed_over = in_time || !self.0.lock().leave(&own);
        handed_over.then(|| Permit(Arc::clone(self)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut permits = self.0.0.lock();
        match permits.waiting.pop_front() {
            Some(next) => next.notify(),
            None => permits.free += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::KeyspaceId;
    use crate::runtime::System;

    fn rows(names: &[&str]) -> Vec<RowKey> {
        names.iter().map(|name| RowKey::new(KeyspaceId(1), name.as_bytes())).collect()
    }

    #[test]
    fn turns_on_the_same_rows_in_opposite_order_exclude_each_other_without_deadlock() {
        let turns = Arc::new(Turns::default());
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for order in [["a", "b"], ["b", "a"]] {
                let (turns, inside) = (&turns, &inside);
                scope.spawn(move || {
                    let runtime = System::default();
                    for _ in 0..2000 {
                        let held = turns.take(&runtime, &rows(&order));
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
        let admission = Arc::new(Admission::new(2));
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let runtime = System::default();
                    for _ in 0..500 {
                        let _permit = admission.enter(&runtime, Duration::MAX).unwrap();
                        assert!(inside.fetch_add(1, Ordering::SeqCst) < 2);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(admission.0.lock().free, 2);
    }

    #[test]
    fn a_permit_that_never_comes_is_not_waited_for() {
        let (admission, runtime) = (Arc::new(Admission::new(1)), System::default());
        let held = admission.enter(&runtime, Duration::MAX);
        assert!(held.is_some());
        for patience in [Duration::ZERO, Duration::from_millis(1), Duration::MAX] {
            assert!(admission.enter(&runtime, patience).is_none(), "{patience:?}");
        }
        drop(held);
        let permits = admission.0.lock();
        assert_eq!((permits.free, permits.waiting.len()), (1, 0));
    }

    #[test]
    fn a_permit_handed_over_as_the_wait_ends_is_not_lost() {
        let admission = Arc::new(Admission::new(1));
        let (with, without) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let runtime = System::default();
                    for round in 0..2000 {
                        match admission.enter(&runtime, Duration::from_micros(round % 50)) {
                            Some(_permit) => with.fetch_add(1, Ordering::SeqCst),
                            None => without.fetch_add(1, Ordering::SeqCst),
                        };
                    }
                });
            }
        });
        assert_eq!(with.into_inner() + without.into_inner(), 8000);
        let permits = admission.0.lock();
        assert_eq!((permits.free, permits.waiting.len()), (1, 0));
    }

    #[test]
    fn permits_go_to_those_who_came_first() {
        let admission = Arc::new(Admission::new(1));
        let first = admission.enter(&System::default(), Duration::MAX);
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for number in 0..5 {
                let (admission, order) = (&admission, &order);
                scope.spawn(move || {
                    let permit = admission.enter(&System::default(), Duration::MAX);
                    order.lock().push(number);
                    drop(permit);
                });
                while admission.0.lock().waiting.len() <= number {
                    std::thread::yield_now();
                }
            }
            drop(first);
        });
        assert_eq!(order.into_inner(), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn too_many_rows_are_not_queued_for() {
        let turns = Arc::new(Turns::default());
        let names: Vec<String> = (0..=TURN_ROWS_MAX).map(|number| number.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(turns.take(&System::default(), &rows(&names)).is_empty());
    }
}
