//! Row queues: attempts that retry on a row run one after the other.
//!
//! A retry queues for all rows that its failed attempt wrote, before it begins. All attempts queue
//! in the order of the rows' hashes, and while an attempt runs, it queues for no other row. So
//! tickets cannot deadlock. If the hashes of two rows collide, the only effect is that the rows
//! share a queue.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::process::Process;
use crate::row::RowKey;
use crate::row_hash::row_hash;
use crate::sync::Mutex;
use crate::waiter::Waiter;

/// A retry of a transaction that wrote more rows than this does not queue.
const ROW_QUEUE_ROWS_MAX: usize = 64;

/// One FIFO queue of retrying attempts for each row, by the row's hash.
#[derive(Default)]
pub struct RowQueues(Mutex<HashMap<u64, VecDeque<Arc<Waiter>>>>, Process);

/// A place in the queue of one row. Dropping it leaves the queue and wakes the next attempt.
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

    /// The hashes to queue for, in the order that all attempts use; none if there are too many
    /// rows.
    pub fn lock_order(rows: &[RowKey]) -> Vec<u64> {
        if rows.len() > ROW_QUEUE_ROWS_MAX {
            return Vec::new();
        }
        let mut hashes: Vec<u64> = rows.iter().map(row_hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        hashes
    }

    /// Appends `own` to the row's queue; `own` is notified when it is at the front.
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
        if !self.queues.1.is_current() {
            return;
        }
        let mut queues = self.queues.0.lock();
        let Some(queue) = queues.get_mut(&self.row) else {
            unreachable!("invariant: a ticket is in the queue of its row until it is dropped")
        };
        let was_first = queue.front().is_some_and(|first| Arc::ptr_eq(first, &self.own));
        queue.retain(|waiter| !Arc::ptr_eq(waiter, &self.own));
        let next = queue.front().filter(|_| was_first).map(Arc::clone);
        if queue.is_empty() {
            queues.remove(&self.row);
        }
        // The mutex is released first: waking a task may drop another task, and the drop of that
        // task's ticket takes this mutex.
        drop(queues);
        if let Some(next) = next {
            next.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::contention::AdmissionWait;
    use crate::env::SystemEnv;
    use crate::row::KeyspaceId;

    fn rows(names: &[&str]) -> Vec<RowKey> {
        names.iter().map(|name| RowKey::new(KeyspaceId(1), name.as_bytes())).collect()
    }

    fn take(queues: &Arc<RowQueues>, rows: &[RowKey]) -> Vec<RowQueueTicket> {
        let mut wait = AdmissionWait::default();
        wait.queue_for_rows(queues, rows);
        wait.block(&SystemEnv::default()).row_queue_tickets
    }

    #[test]
    fn queues_for_rows_in_opposite_order_do_not_deadlock() {
        let queues = Arc::new(RowQueues::default());
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for order in [["a", "b"], ["b", "a"]] {
                let (queues, inside) = (&queues, &inside);
                scope.spawn(move || {
                    for _ in 0..2000 {
                        let held = take(queues, &rows(&order));
                        assert_eq!(held.len(), 2);
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(queues.0.lock().is_empty());
    }

    #[test]
    fn too_many_rows_are_not_queued_for() {
        let queues = Arc::new(RowQueues::default());
        let names: Vec<String> = (0..=ROW_QUEUE_ROWS_MAX).map(|number| number.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(take(&queues, &rows(&names)).is_empty());
    }

    #[test]
    #[should_panic(expected = "invariant: a ticket is in the queue of its row until it is dropped")]
    fn a_ticket_without_a_queue_breaks_an_invariant() {
        let queues = Arc::new(RowQueues::default());
        let held = take(&queues, &rows(&["a"]));
        queues.0.lock().clear();
        drop(held);
    }
}
