//! Waits of tasks, and how each of them ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use percolite::{AsyncStore, CancelToken, ErrorKind, LockOptions, LockWaitPolicy, Result, Txn, TxnOptions};

use super::common::{
    TIMEOUT, assert_nothing_left, both_runtimes, eventually, forever, in_memory, on_both, takes, until, waiting, waits,
};
use crate::hooked_store::Dice;
use crate::support::fair_order::{Turn, assert_one_batch_passes};

const READERS: u64 = 20;
const WRITERS: u64 = 8;
const ROUNDS: u64 = 10_000;

#[derive(Default)]
struct Crowd {
    inside: AtomicI64,
    grants: AtomicU64,
    rounds: AtomicU64,
    most: AtomicU64,
    turns: parking_lot::Mutex<Vec<Turn>>,
}

impl Crowd {
    fn enter(&self, alone: bool) {
        self.grants.fetch_add(1, Ordering::SeqCst);
        if alone {
            assert_eq!(self.inside.fetch_sub(1, Ordering::SeqCst), 0, "a writer is not alone");
        } else {
            assert!(self.inside.fetch_add(1, Ordering::SeqCst) >= 0, "a reader and a writer hold the lock together");
        }
    }

    fn leave(&self, alone: bool) {
        self.inside.fetch_add(if alone { 1 } else { -1 }, Ordering::SeqCst);
    }
}

async fn read_or_write(store: AsyncStore, crowd: Arc<Crowd>, number: u64) {
    let (holder, alone) = (number as usize, number < WRITERS);
    while crowd.rounds.fetch_add(1, Ordering::SeqCst) < ROUNDS {
        let options = forever(if alone { LockOptions::exclusive() } else { LockOptions::shared() });
        let mut lock = std::pin::pin!(store.lock_with("n", options));
        let mut queued_at = None;
        let guard = std::future::poll_fn(|context| {
            let answer = lock.as_mut().poll(context);
            // The first poll has queued the request: from here on, only the requests ahead of it
            // and one batch may be granted before it.
            queued_at = queued_at.or_else(|| Some(crowd.grants.load(Ordering::SeqCst)));
            answer
        });
        let guard = guard.await.unwrap();
        if alone {
            crowd.most.fetch_max(crowd.grants.load(Ordering::SeqCst) - queued_at.unwrap(), Ordering::SeqCst);
        }
        crowd.enter(alone);
        crowd.turns.lock().push(Turn { holder, writes: alone, id: guard.entry().id, token: guard.token() });
        tokio::task::yield_now().await;
        crowd.leave(alone);
        drop(guard);
    }
}

#[test]
fn writers_wait_for_one_batch_of_readers_at_most() {
    // The runtime determines the order of the requests. In some orders no reader passes a writer,
    // so the run is repeated.
    let passed = (0..20).map(|_| readers_that_pass_a_writer()).find(|passed| *passed > 0);
    assert!(passed.is_some(), "no reader joined a batch and passed a writer");
}

fn readers_that_pass_a_writer() -> u64 {
    let passed = &AtomicU64::new(0);
    on_both(|store| async move {
        let crowd = Arc::<Crowd>::default();
        let begin = |number| tokio::spawn(read_or_write(store.clone(), Arc::clone(&crowd), number));
        let tasks: Vec<_> = (0..READERS + WRITERS).map(begin).collect();
        for task in tasks {
            task.await.unwrap();
        }
        // While a writer waits, each reader is granted the lock at most twice: once ahead of the
        // writer, and once in the batch that passes it. Each other writer is granted the lock at
        // most once.
        let most = crowd.most.load(Ordering::SeqCst);
        assert!(most < 2 * READERS + WRITERS, "a writer has waited for {most} grants");
        let turns = std::mem::take(&mut *crowd.turns.lock());
        assert_eq!(turns.len() as u64, ROUNDS);
        passed.fetch_add(assert_one_batch_passes(turns) as u64, Ordering::SeqCst);
        assert!(store.store().lock_stats().exclusive.waits > 100);
    });
    passed.load(Ordering::SeqCst)
}

#[test]
fn waiters_are_granted_in_order_with_one_wake() {
    on_both(|store| async move {
        let held = takes(&store, LockOptions::exclusive());
        let order = Arc::<parking_lot::Mutex<Vec<usize>>>::default();
        let mut tasks = Vec::new();
        for number in 0..64 {
            let (with, order) = (store.clone(), Arc::clone(&order));
            tasks.push(tokio::spawn(async move {
                let mut polls = 0;
                let mut lock = Box::pin(with.lock_with("n", forever(LockOptions::exclusive())));
                let guard = std::future::poll_fn(|context| {
                    polls += 1;
                    lock.as_mut().poll(context)
                });
                let guard = guard.await.unwrap();
                order.lock().push(number);
                drop(guard);
                polls
            }));
            until("the request waits", || waiting(&store) == number + 1).await;
        }
        drop(held);
        for task in tasks {
            // There is a third poll if the oracle's reservation is used up and the token has to be
            // awaited.
            assert!((2..=3).contains(&task.await.unwrap()), "polled more often than at the request and at the grant");
        }
        assert!(order.lock().iter().copied().eq(0..64), "{:?}", order.lock());
        let stats = store.store().lock_stats();
        assert_eq!((stats.wakeups, stats.exclusive.waits, stats.exclusive.wait_time.count()), (64, 64, 64));
    });
}

#[test]
fn an_end_between_check_and_wait_is_not_missed() {
    for runtime in both_runtimes(8) {
        let _inside = runtime.enter();
        let store = in_memory();
        let mut dice = Dice::new();
        for _ in 0..10_000 {
            let held = takes(&store, LockOptions::exclusive());
            let (with, delay) = (store.clone(), dice.below(400));
            let barrier = Arc::new(std::sync::Barrier::new(2));
            let (begun, other) = (Arc::clone(&barrier), dice.below(400));
            // The holder releases on this thread, while the task requests on another one.
            let task = std::thread::scope(|scope| {
                let waits = scope.spawn(|| {
                    begun.wait();
                    (0..delay).for_each(|_| std::hint::spin_loop());
                    let lock = with.lock_with("n", LockOptions::exclusive().wait(LockWaitPolicy::Timeout(TIMEOUT)));
                    runtime.block_on(lock).map(drop)
                });
                barrier.wait();
                (0..other).for_each(|_| std::hint::spin_loop());
                drop(held);
                waits.join().unwrap()
            });
            task.unwrap();
        }
        let stats = store.store().lock_stats();
        assert!(stats.wakeups > 0, "the task never waited");
        assert_nothing_left(&store);
    }
}

#[test]
fn cancel_leaves_the_queue_unchanged() {
    on_both(|store| async move {
        let held = takes(&store, LockOptions::exclusive());
        let cancel = CancelToken::default();
        let first = waits(&store, LockOptions::exclusive());
        let (with, options) = (store.clone(), forever(LockOptions::exclusive()).cancel_token(&cancel));
        let cancelled = tokio::spawn(async move { with.lock_with("n", options).await.map(drop) });
        until("the request waits", || waiting(&store) == 2).await;
        let last = waits(&store, LockOptions::exclusive());
        let before: Vec<u64> = store.store().lock_table().unwrap().entries.iter().map(|entry| entry.id).collect();
        std::thread::spawn(move || cancel.cancel());
        let error = cancelled.await.unwrap().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Cancelled(_)), "{error}");
        let after: Vec<u64> = store.store().lock_table().unwrap().entries.iter().map(|entry| entry.id).collect();
        assert_eq!(after, [before[0], before[1], before[3]]);
        assert_eq!((first.wakes(), last.wakes(), store.store().lock_stats().exclusive.cancelled), (0, 0, 1));
        drop((first, last, held));
    });
}

#[test]
fn each_wait_policy_ends_as_documented() {
    for runtime in both_runtimes(8) {
        let store = in_memory();
        runtime.block_on(async {
            let held = takes(&store, LockOptions::exclusive());
            let ahead = waits(&store, LockOptions::exclusive());
            for time in [Duration::ZERO, Duration::from_millis(1), Duration::from_millis(50)] {
                let began = Instant::now();
                let error = store
                    .lock_with("n", LockOptions::exclusive().wait(LockWaitPolicy::Timeout(time)))
                    .await
                    .unwrap_err();
                let ErrorKind::LockNotAvailable(found) = error.kind() else { panic!("{error}") };
                assert_eq!((found.holders.len(), found.queue_position), (1, 1), "{error}");
                assert_eq!(found.holders[0].token, Some(held.token()));
                assert!(found.waited >= time && began.elapsed() >= time, "{error}");
            }
            let error = store.lock_with("n", LockOptions::exclusive().wait(LockWaitPolicy::NoWait)).await.unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::LockNotAvailable(_)), "{error}");
            // Waits with the longest timeout and without a timeout end when the store closes.
            let longest = LockWaitPolicy::Timeout(Duration::MAX);
            let waits = [longest, LockWaitPolicy::Forever].map(|wait| {
                let store = store.clone();
                tokio::spawn(async move { store.lock_with("n", LockOptions::exclusive().wait(wait)).await.map(drop) })
            });
            until("both wait", || waiting(&store) == 3).await;
            drop(ahead);
            store.clone().close().await.unwrap();
            for wait in waits {
                let answer = tokio::time::timeout(TIMEOUT, wait).await.expect("the wait does not end").unwrap();
                assert!(matches!(answer.unwrap_err().kind(), ErrorKind::Closed(_)));
            }
            assert!(!held.is_held());
        });
    }
}

#[test]
fn relocking_a_held_name_times_out() {
    on_both(|store| async move {
        let timeout = Duration::from_millis(30);
        let task = tokio::spawn(async move {
            let held = store.lock("n").await.unwrap();
            let again = store.lock_with("n", LockOptions::exclusive().wait(LockWaitPolicy::Timeout(timeout))).await;
            (again.map(drop), held.is_held(), held.token())
        });
        let (again, is_held, token) = task.await.unwrap();
        let error = again.unwrap_err();
        let ErrorKind::LockNotAvailable(found) = error.kind() else { panic!("{error}") };
        assert!(found.waited >= timeout && is_held);
        assert_eq!(found.holders.iter().map(|holder| holder.token).collect::<Vec<_>>(), [Some(token)]);
    });
}

#[test]
fn mutual_waiters_are_listed_and_time_out() {
    on_both(|store| async move {
        let both_hold = Arc::new(tokio::sync::Barrier::new(2));
        let timeout = Duration::from_millis(500);
        let tasks = [["a", "b"], ["b", "a"]].map(|names| {
            let (store, both_hold) = (store.clone(), Arc::clone(&both_hold));
            tokio::spawn(async move {
                let held = store.lock(names[0]).await.unwrap();
                both_hold.wait().await;
                let second =
                    store.lock_with(names[1], LockOptions::exclusive().wait(LockWaitPolicy::Timeout(timeout))).await;
                // Neither releases its lock before both have timed out.
                both_hold.wait().await;
                drop(held);
                second.map(drop)
            })
        });
        let mut cycle = Vec::new();
        until("the wait cycle is listed", || {
            let table = store.store().lock_table().unwrap();
            cycle = table.wait_cycles;
            !cycle.is_empty()
        })
        .await;
        assert_eq!((cycle.len(), cycle[0].len()), (1, 2), "{cycle:?}");
        for task in tasks {
            let error = task.await.unwrap().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::LockNotAvailable(_)), "{error}");
        }
    });
}

#[test]
fn closure_panic_releases_the_lock() {
    on_both(|store| async move {
        let rows = store.keyspace("rows").await.unwrap();
        let (with, put) = (store.clone(), rows.clone());
        let panics = move |txn: &mut Txn| -> Result<()> {
            txn.put(&put, "k", "v")?;
            panic!("on purpose")
        };
        let call =
            async move { with.transact_with_lock("n", LockOptions::exclusive(), TxnOptions::default(), panics).await };
        let panic = tokio::spawn(call).await.unwrap_err().into_panic();
        assert_eq!(*panic.downcast::<&str>().unwrap(), "on purpose");
        let read = move |txn: &mut Txn| txn.get(&rows, "k");
        let options = LockOptions::exclusive().wait(LockWaitPolicy::NoWait);
        let seen = store.transact_with_lock::<_, percolite::Error, _>("n", options, TxnOptions::default(), read).await;
        assert_eq!(seen.unwrap(), None);
        assert_eq!(store.store().row_locks().unwrap().count(), 0);
    });
}

#[test]
fn runtime_shutdown_leaves_no_waiters() {
    for from_within in [false, true] {
        for runtime in both_runtimes(2) {
            let store = in_memory();
            let began = Arc::<AtomicBool>::default();
            let held = (!from_within).then(|| takes(&store, LockOptions::exclusive()));
            for number in 0..100 {
                let (store, began) = (store.clone(), Arc::clone(&began));
                runtime.spawn(async move {
                    let modes = [LockOptions::exclusive(), LockOptions::shared()];
                    let options = forever(modes[number % 2].clone());
                    if number % 3 == 0 {
                        let work = |_: &mut Txn| Ok::<_, percolite::Error>(());
                        let _ = store.transact_with_lock("n", options, TxnOptions::default(), work).await;
                    }
                    let _guard = store.lock_with("n", forever(LockOptions::exclusive())).await;
                    began.store(true, Ordering::SeqCst);
                    std::future::pending::<()>().await;
                });
            }
            let wait = async {
                until("the tasks wait", || waiting(&store) + usize::from(began.load(Ordering::SeqCst)) >= 100).await;
            };
            runtime.block_on(async { tokio::time::timeout(TIMEOUT, wait).await.unwrap() });
            runtime.shutdown_timeout(TIMEOUT);
            assert_eq!(waiting(&store), 0);
            assert_eq!(store.store().lock_table().unwrap().held, usize::from(held.is_some()));
            drop(held);
            assert_nothing_left(&store);
            eventually("no row is locked", || store.store().row_locks().unwrap().count() == 0);
        }
    }
}
