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

use super::conflicts::hash;
use crate::engine::RowBatch;
use crate::row::{Edit, RowKey};
use crate::sync::Mutex;
use crate::waiter::Waiter;

/// More rows than this are not worth queueing for.
const TURN_ROWS_MAX: usize = 64;

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
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// What to queue for, and in which order; nothing if the rows are too many.
    pub fn order(rows: &[RowKey]) -> Vec<u64> {
        if rows.len() > TURN_ROWS_MAX {
            return Vec::new();
        }
        let mut hashes: Vec<u64> = rows.iter().map(hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        hashes
    }

    /// Queues; `own` is notified when the turn has come. Dropping what is answered leaves the queue.
    pub fn queue(self: &Arc<Self>, row: u64, own: Arc<Waiter>) -> Turn {
        let mut queues = self.0.lock();
        let queue = queues.entry(row).or_default();
        if queue.is_empty() {
            own.notify_early();
        }
        queue.push_back(Arc::clone(&own));
        Turn { turns: Arc::clone(self), row, own }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut queues = self.turns.0.lock();
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
pub struct Unlocked {
    waiting: Mutex<HashMap<u64, Vec<Arc<Waiter>>>>,
    count: AtomicUsize,
}

/// A wait for a row's lock to go; dropping it ends the wait.
pub struct UnlockWait {
    unlocked: Arc<Unlocked>,
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

impl Unlocked {
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty() && self.count.load(Ordering::SeqCst) == 0
    }

    /// Has `own` notified when the row's lock goes. To be called before looking whether there is one, so that a lock that
    /// goes after the look is heard of.
    pub fn expect(self: &Arc<Self>, row: &RowKey, own: Arc<Waiter>) -> UnlockWait {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.waiting.lock().entry(hash(row)).or_default().push(Arc::clone(&own));
        UnlockWait { unlocked: Arc::clone(self), row: hash(row), own }
    }

    /// Tells who waits for rows that this group, now applied, has unlocked.
    pub fn notify(&self, group: &RowBatch) {
        // Only such a one takes locks away.
        let RowBatch::Changes(changes) = group else { return };
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let unlocked = changes.iter().filter(|change| change.lock == Edit::Delete);
        let waiters: Vec<Arc<Waiter>> = {
            let waiting = self.waiting.lock();
            unlocked.filter_map(|change| waiting.get(&hash(&change.row))).flatten().map(Arc::clone).collect()
        };
        for waiter in waiters {
            waiter.notify();
        }
    }
}

/// For so many commits after a conflict attempts have to ask before they run.
// Tests of crashes are short, and are to see the end of it.
const GUARDED_COMMITS: usize = if cfg!(feature = "crashtest") { 2 } else { 16 };

/// Bounds how many attempts run at a time, as long as some of them conflict. Without conflicts a queue would only be one wait
/// more.
pub struct Admission {
    permits: Mutex<Permits>,
    /// How many commits without a conflict are still to come before everybody is let in.
    guarded: AtomicUsize,
}

struct Permits {
    free: usize,
    /// They have turns, for which others wait meanwhile.
    with_turns: VecDeque<Arc<Waiter>>,
    /// They run first attempts. Those with turns do not keep them out for ever: only a first attempt that runs, and conflicts,
    /// becomes one more of them.
    others: VecDeque<Arc<Waiter>>,
}

impl Permits {
    fn next(&mut self) -> Option<Arc<Waiter>> {
        self.with_turns.pop_front().or_else(|| self.others.pop_front())
    }

    /// Whether it was still waiting.
    fn leave(&mut self, own: &Arc<Waiter>) -> bool {
        [&mut self.with_turns, &mut self.others].into_iter().any(|waiting| {
            let position = waiting.iter().position(|waiter| Arc::ptr_eq(waiter, own));
            position.and_then(|position| waiting.remove(position)).is_some()
        })
    }
}

/// The right to run, or a place in the queue for it.
pub struct Permit {
    admission: Arc<Admission>,
    own: Arc<Waiter>,
}

impl Admission {
    /// Whether nobody has a permit or waits for one.
    #[cfg(test)]
    pub fn is_whole(&self, permits: usize) -> bool {
        let now = self.permits.lock();
        now.free == permits && now.with_turns.is_empty() && now.others.is_empty()
    }

    pub fn new(permits: usize) -> Self {
        let permits = Permits { free: permits, with_turns: VecDeque::new(), others: VecDeque::new() };
        Self { permits: Mutex::new(permits), guarded: AtomicUsize::new(0) }
    }

    /// Whether attempts are to ask.
    pub fn is_guarded(&self) -> bool {
        self.guarded.load(Ordering::Relaxed) > 0
    }

    /// Notes that an attempt has met a conflict.
    pub fn note_conflict(&self) {
        self.guarded.store(GUARDED_COMMITS, Ordering::Relaxed);
    }

    /// Notes that an attempt has committed.
    pub fn note_commit(&self) {
        if self.is_guarded() {
            let _ = self.guarded.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        }
    }

    /// Queues, first come, first served, and those with turns before the others; `own` is notified when there is a permit. Dropping
    /// what is answered leaves the queue or gives the permit back.
    pub fn queue(self: &Arc<Self>, own: Arc<Waiter>, has_turns: bool) -> Permit {
        let mut permits = self.permits.lock();
        if permits.free > 0 {
            permits.free -= 1;
            own.notify_early();
        } else {
            let waiting = if has_turns { &mut permits.with_turns } else { &mut permits.others };
            waiting.push_back(Arc::clone(&own));
        }
        Permit { admission: Arc::clone(self), own }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut permits = self.admission.permits.lock();
        // Who is no longer queued has been handed a permit, perhaps this very moment, and must not lose it.
        if !self.own.is_notified() && permits.leave(&self.own) {
            return;
        }
        if mutated!(PermitKept) && !self.admission.is_guarded() {
            return;
        }
        match permits.next() {
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
    use crate::pipeline::Entrance;
    use crate::row::KeyspaceId;
    use crate::runtime::{Runtime, System};

    fn rows(names: &[&str]) -> Vec<RowKey> {
        names.iter().map(|name| RowKey::new(KeyspaceId(1), name.as_bytes())).collect()
    }

    fn take(turns: &Arc<Turns>, rows: &[RowKey]) -> Vec<Turn> {
        let mut entrance = Entrance::default();
        entrance.take_turns(turns, rows);
        entrance.wait(&System::default()).turns
    }

    fn enter(admission: &Arc<Admission>, patience: Duration) -> Option<Permit> {
        let runtime = System::default();
        let mut entrance = Entrance::default();
        entrance.ask_permit(admission, runtime.elapsed().saturating_add(patience));
        entrance.wait(&runtime).permit
    }

    #[test]
    fn turns_on_the_same_rows_in_opposite_order_exclude_each_other_without_deadlock() {
        let turns = Arc::new(Turns::default());
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
        let admission = Arc::new(Admission::new(2));
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
        let admission = Arc::new(Admission::new(1));
        let held = enter(&admission, Duration::MAX);
        assert!(held.is_some());
        for patience in [Duration::ZERO, Duration::from_millis(1), Duration::MAX] {
            assert!(enter(&admission, patience).is_none(), "{patience:?}");
        }
        drop(held);
        assert!(admission.is_whole(1));
    }

    #[test]
    fn a_permit_handed_over_as_the_wait_ends_is_not_lost() {
        let admission = Arc::new(Admission::new(1));
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
        assert!(admission.is_whole(1));
    }

    #[test]
    fn permits_go_to_those_with_turns_and_else_to_those_who_came_first() {
        let (admission, turns) = (Arc::new(Admission::new(1)), Arc::default());
        let first = enter(&admission, Duration::MAX);
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for number in 0..6 {
                let (admission, turns, order) = (&admission, &turns, &order);
                scope.spawn(move || {
                    let mut entrance = Entrance::default();
                    if number % 2 == 1 {
                        entrance.take_turns(turns, &rows(&[&number.to_string()]));
                    }
                    entrance.ask_permit(admission, Duration::MAX);
                    let held = entrance.wait(&System::default());
                    order.lock().push(number);
                    drop(held);
                });
                let waiting = |permits: &Permits| permits.with_turns.len() + permits.others.len();
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
        let turns = Arc::new(Turns::default());
        let names: Vec<String> = (0..=TURN_ROWS_MAX).map(|number| number.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(take(&turns, &rows(&names)).is_empty());
    }
}
