//! Admission: a limit of the attempts that run at once while there are conflicts.
//!
//! Under contention more running attempts make more conflicts and fewer commits. So for a while
//! after each conflict an attempt needs a permit. It waits for the permit before it takes its
//! snapshot, so that the snapshot is fresh when the attempt starts.
//!
//! Without conflicts an attempt needs no permit, because a queue would only add a wait. Attempts of
//! an `AsyncStore` always need one, because each takes a thread of the blocking pool.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::process::Process;
use crate::sync::Mutex;
use crate::tunables::CONTENDED_COMMITS;
use crate::waiter::Waiter;

/// See the [module](self).
pub struct AdmissionController {
    permits: Mutex<Permits>,
    /// Number of commits without a conflict until attempts need no permit; 0 if they need none now.
    contended_commits_left: AtomicUsize,
    process: Process,
}

struct Permits {
    free: usize,
    /// Attempts with row-queue tickets. They get permits first, because other attempts wait for
    /// their rows.
    with_tickets: VecDeque<Arc<Waiter>>,
    /// All other attempts, mostly first ones. Attempts with tickets cannot starve them: only
    /// retries have tickets, and under contention a transaction waits here before its first
    /// attempt.
    without_tickets: VecDeque<Arc<Waiter>>,
}

impl Permits {
    fn pop(&mut self) -> Option<Arc<Waiter>> {
        self.with_tickets.pop_front().or_else(|| self.without_tickets.pop_front())
    }

    /// Removes a waiter; returns whether it was still queued.
    fn remove(&mut self, own: &Arc<Waiter>) -> bool {
        [&mut self.with_tickets, &mut self.without_tickets].into_iter().any(|waiting| {
            let position = waiting.iter().position(|waiter| Arc::ptr_eq(waiter, own));
            position.and_then(|position| waiting.remove(position)).is_some()
        })
    }
}

/// A permit to run, or a place in the queue for one.
pub struct Permit {
    admission: Arc<AdmissionController>,
    own: Arc<Waiter>,
}

impl AdmissionController {
    /// Whether no permit is in use and no attempt waits for one.
    #[cfg(test)]
    pub fn is_idle(&self, permits: usize) -> bool {
        let now = self.permits.lock();
        now.free == permits && now.with_tickets.is_empty() && now.without_tickets.is_empty()
    }

    pub fn new(permits: usize) -> Self {
        let permits = Permits { free: permits, with_tickets: VecDeque::new(), without_tickets: VecDeque::new() };
        Self { permits: Mutex::new(permits), contended_commits_left: AtomicUsize::new(0), process: Process::current() }
    }

    /// Whether there was a conflict within the last [`CONTENDED_COMMITS`] commits.
    pub fn is_contended(&self) -> bool {
        self.contended_commits_left.load(Ordering::Relaxed) > 0
    }

    /// Records a conflict of an attempt.
    pub fn note_conflict(&self) {
        self.contended_commits_left.store(CONTENDED_COMMITS, Ordering::Relaxed);
    }

    /// Records a commit of an attempt.
    pub fn note_commit(&self) {
        if self.is_contended() {
            let _ = self
                .contended_commits_left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        }
    }

    /// Queues for a permit. Attempts with tickets get permits first; otherwise the order is FIFO.
    /// `own` is notified when the attempt has the permit. Dropping the result leaves the queue or
    /// returns the permit.
    pub fn enqueue(self: &Arc<Self>, own: Arc<Waiter>, has_tickets: bool) -> Permit {
        let mut permits = self.permits.lock();
        if permits.free > 0 {
            permits.free -= 1;
            own.notify_early();
        } else {
            let waiting = if has_tickets { &mut permits.with_tickets } else { &mut permits.without_tickets };
            waiting.push_back(Arc::clone(&own));
        }
        Permit { admission: Arc::clone(self), own }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.admission.process.is_current() {
            return;
        }
        let mut permits = self.admission.permits.lock();
        // A waiter that is still queued has no permit. Any other has one, even if it was taken from
        // the queue and is not notified yet, and this drop passes the permit on.
        if !self.own.is_notified() && permits.remove(&self.own) {
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
    use crate::contention::AdmissionWait;
    use crate::env::{Env, SystemEnv};
    use crate::row::{KeyspaceId, RowKey};

    fn enter(admission: &Arc<AdmissionController>, timeout: Duration) -> Option<Permit> {
        let env = SystemEnv::default();
        let mut wait = AdmissionWait::default();
        wait.queue_for_permit(admission, env.elapsed().saturating_add(timeout));
        wait.block(&env).permit
    }

    #[test]
    fn a_returned_permit_goes_to_the_next_waiter() {
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
    fn a_wait_for_a_permit_times_out() {
        let admission = Arc::new(AdmissionController::new(1));
        let held = enter(&admission, Duration::MAX);
        assert!(held.is_some());
        for timeout in [Duration::ZERO, Duration::from_millis(1), Duration::MAX] {
            assert!(enter(&admission, timeout).is_none(), "{timeout:?}");
        }
        drop(held);
        assert!(admission.is_idle(1));
    }

    #[test]
    fn a_permit_given_as_the_wait_times_out_is_not_lost() {
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
    fn permits_go_to_ticket_holders_first_else_in_order() {
        let (admission, row_queues) = (Arc::new(AdmissionController::new(1)), Arc::default());
        let first = enter(&admission, Duration::MAX);
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for number in 0..6 {
                let (admission, row_queues, order) = (&admission, &row_queues, &order);
                scope.spawn(move || {
                    let mut wait = AdmissionWait::default();
                    if number % 2 == 1 {
                        wait.queue_for_rows(row_queues, &[RowKey::new(KeyspaceId(1), number.to_string().as_bytes())]);
                    }
                    wait.queue_for_permit(admission, Duration::MAX);
                    let held = wait.block(&SystemEnv::default());
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
}
