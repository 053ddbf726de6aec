//! Situations of tasks: futures of the asynchronous store, dropped at each of their awaits.
//!
//! Each task is polled by hand on an explored thread, and again only when its waker was called. So
//! a task may be replaced by another one, or by a thread, at each lock in a poll or in a drop. What
//! would run on a blocking thread of tokio runs on an explored thread. Timers of tasks never fire:
//! an event that must end a wait has to wake it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use percolite::{AsyncLockGuard, AsyncStore, CancelToken, ErrorKind, LockOptions, LockWaitPolicy};

use super::situations::{WAIT_MAX, buffered, wait};
use super::{World, harness};
use crate::sim::{Scheduler, ThreadId};
use crate::violation::Violation;

/// A future is dropped after at most this number of polls.
const POLLS_MAX: usize = 2;

struct TaskWaker {
    scheduler: Arc<Scheduler>,
    thread: ThreadId,
    is_woken: AtomicBool,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
        self.scheduler.unpark(self.thread);
    }
}

impl TaskWaker {
    /// Wakes this thread.
    fn new(scheduler: &Arc<Scheduler>) -> Arc<Self> {
        let thread = Scheduler::own();
        Arc::new(Self { scheduler: Arc::clone(scheduler), thread, is_woken: AtomicBool::new(false) })
    }

    fn wait(&self) {
        while !self.is_woken.swap(false, Ordering::SeqCst) {
            self.scheduler.park(self.thread, None);
        }
    }
}

/// When a future is dropped.
#[derive(Clone, Copy)]
struct Drops {
    /// After this number of polls.
    polls: usize,
    /// Only when it has been woken again.
    is_woken: bool,
}

impl Drops {
    const NEVER: Self = Self { polls: usize::MAX, is_woken: true };

    /// At each await and wake-up, as one interleaving after the other.
    fn choose(world: &World) -> Self {
        Self { polls: 1 + world.scheduler.choose(POLLS_MAX), is_woken: world.scheduler.choose(2) == 1 }
    }
}

/// Polls a future on this thread until it is ready, or drops it.
fn poll<T>(waker: &Arc<TaskWaker>, drops: Drops, future: impl Future<Output = T>) -> Option<T> {
    let own = Waker::from(Arc::clone(waker));
    let mut future = pin!(future);
    for polls in 1..=drops.polls {
        if let Poll::Ready(answer) = future.as_mut().poll(&mut Context::from_waker(&own)) {
            return Some(answer);
        }
        if polls < drops.polls || drops.is_woken {
            waker.wait();
        }
    }
    None
}

fn run<T>(scheduler: &Arc<Scheduler>, future: impl Future<Output = T>) -> Result<T, Violation> {
    poll(&TaskWaker::new(scheduler), Drops::NEVER, future).ok_or_else(|| harness("a task was polled too often"))
}

fn check_nothing_left(world: &World) -> Result<(), Violation> {
    let left = world.store.lock_table().map_err(harness)?.entries;
    if left.is_empty() { Ok(()) } else { Err(Violation::new("lock: cleanup", format!("the lock table has {left:?}"))) }
}

/// A wait that is dropped while its lock is released passes the lock on, and leaves nothing.
pub fn drop_beside_release(world: &World) -> Result<(), Violation> {
    let (store, scheduler, drops) =
        (AsyncStore::from(world.store.clone()), Arc::clone(&world.scheduler), Drops::choose(world));
    let guard = world.store.lock("lock").map_err(harness)?;
    let other = store.clone();
    world.spawn("drops", {
        let scheduler = Arc::clone(&scheduler);
        move || {
            let granted = poll(&TaskWaker::new(&scheduler), drops, store.lock_with("lock", wait()));
            granted.transpose().map(drop).map_err(harness)
        }
    });
    world.spawn("waits", move || run(&scheduler, other.lock_with("lock", wait()))?.map(drop).map_err(harness));
    world.spawn("releases", move || {
        drop(guard);
        Ok(())
    });
    world.join()?;
    check_nothing_left(world)
}

/// A cancellation beside a grant ends the wait in one of the two ways, and leaves nothing.
pub fn cancel_beside_grant(world: &World) -> Result<(), Violation> {
    let (store, scheduler, cancel) =
        (AsyncStore::from(world.store.clone()), Arc::clone(&world.scheduler), CancelToken::default());
    let guard = world.store.lock("lock").map_err(harness)?;
    let options = wait().cancel_token(&cancel);
    world.spawn("waits", move || match run(&scheduler, store.lock_with("lock", options))? {
        Err(error) if !matches!(error.kind(), ErrorKind::Cancelled(_)) => Err(harness(error)),
        _ => Ok(()),
    });
    world.spawn("cancels", move || {
        cancel.cancel();
        Ok(())
    });
    world.spawn("releases", move || {
        drop(guard);
        Ok(())
    });
    world.join()?;
    check_nothing_left(world)
}

/// An upgrade that is dropped while it is granted leaves the lock with its guard.
pub fn upgrade_dropped(world: &World) -> Result<(), Violation> {
    let shared = || world.store.lock_with("lock", LockOptions::shared());
    let (mut guard, other) = (AsyncLockGuard::from(shared().map_err(harness)?), shared().map_err(harness)?);
    let (scheduler, drops) = (Arc::clone(&world.scheduler), Drops::choose(world));
    world.spawn("upgrades", move || {
        let upgraded = poll(&TaskWaker::new(&scheduler), drops, guard.upgrade(LockWaitPolicy::Timeout(WAIT_MAX)));
        if guard.is_held() {
            return Ok(());
        }
        Err(Violation::new("lock: ownership", format!("the lock is lost after an upgrade that returned {upgraded:?}")))
    });
    world.spawn("releases", move || {
        drop(other);
        Ok(())
    });
    world.join()?;
    check_nothing_left(world)
}

/// A task that waits for the loss of a lock is woken by it.
pub fn loss_beside_task(world: &World) -> Result<(), Violation> {
    let (store, scheduler) = (world.store.clone(), Arc::clone(&world.scheduler));
    let guard = AsyncLockGuard::from(world.store.lock("lock").map_err(harness)?);
    let token = guard.token();
    world.spawn("waits", move || run(&scheduler, guard.wait_lost()));
    world.spawn("ends", move || store.force_unlock("lock", token).map(drop).map_err(harness));
    world.join()
}

/// A transaction whose future is dropped while its closure runs does not commit.
pub fn transaction_dropped(world: &World) -> Result<(), Violation> {
    let (store, scheduler, drops) =
        (AsyncStore::from(world.store.clone()), Arc::clone(&world.scheduler), Drops::choose(world));
    let (is_dropped, must_roll_back) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (dropped, rolls_back, rows) = (Arc::clone(&is_dropped), Arc::clone(&must_roll_back), world.rows.clone());
    world.spawn("drops", move || {
        let waker = TaskWaker::new(&scheduler);
        let (woken, seen) = (Arc::clone(&waker), Arc::clone(&dropped));
        let work = store.transact_with(buffered(), move |txn| -> percolite::Result<()> {
            // The task may be dropped from here on.
            Arc::clone(&woken).wake();
            txn.put(&rows, "row", "1")?;
            woken.scheduler.yield_point("in the closure");
            // Another attempt decides anew.
            rolls_back.store(seen.load(Ordering::SeqCst), Ordering::SeqCst);
            Ok(())
        });
        let Some(answer) = poll(&waker, drops, work) else {
            dropped.store(true, Ordering::SeqCst);
            return Ok(());
        };
        answer.map_err(harness)
    });
    world.join()?;
    let row = world.store.begin_with(buffered()).and_then(|txn| txn.get(&world.rows, "row")).map_err(harness)?;
    match (row.is_some(), is_dropped.load(Ordering::SeqCst), must_roll_back.load(Ordering::SeqCst)) {
        (true, _, true) => {
            Err(Violation::new("cancellation", "a transaction was dropped in its closure, and committed"))
        }
        (false, false, _) => Err(Violation::new("durability", "an acknowledged commit is missing")),
        _ => Ok(()),
    }
}
