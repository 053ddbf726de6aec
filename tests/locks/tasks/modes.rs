//! Modes of tasks: which requests are granted, and in which order.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use percolite::{AsyncLockGuard, AsyncStore, CancelToken, ErrorKind, LockOptions, LockWaitPolicy, Result};

use super::common::{Steps, forever, on_both, takes, waiting, waits};
use crate::hooked_store::Dice;

type Waits<'a> = Vec<Steps<'a, Result<AsyncLockGuard>>>;

fn wakes(waits: &Waits<'_>) -> Vec<u64> {
    waits.iter().map(Steps::wakes).collect()
}

#[test]
fn six_shared_requests_are_granted_without_a_wake() {
    on_both(|store| async move {
        let together = Arc::new(tokio::sync::Barrier::new(6));
        let lock_shared = |_| {
            let (store, together) = (store.clone(), Arc::clone(&together));
            tokio::spawn(async move {
                let guard = store.lock_with("n", LockOptions::shared()).await.unwrap();
                together.wait().await;
                guard.token()
            })
        };
        let tasks: Vec<_> = (0..6).map(lock_shared).collect();
        let mut tokens = Vec::new();
        for task in tasks {
            tokens.push(task.await.unwrap());
        }
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), 6);
        let stats = store.store().lock_stats();
        assert_eq!((stats.shared.acquired, stats.shared.waits, stats.wakeups), (6, 0, 0));
    });
}

#[test]
fn each_end_of_an_exclusive_grant_wakes_only_the_next() {
    on_both(|store| async move {
        let mut guard = takes(&store, LockOptions::exclusive());
        let mut queue: Waits = (0..5).map(|_| waits(&store, LockOptions::exclusive())).collect();
        for next in 0..5 {
            let token = guard.token();
            drop(guard);
            assert_eq!(wakes(&queue), (0..5).map(|at| u64::from(at <= next)).collect::<Vec<_>>());
            guard = queue[next].answer().unwrap();
            assert!(guard.token() > token);
        }
        assert_eq!(store.store().lock_stats().wakeups, 5);
    });
}

#[test]
fn shared_request_queues_behind_a_waiting_exclusive() {
    on_both(|store| async move {
        let held = takes(&store, LockOptions::shared());
        let mut exclusive = waits(&store, LockOptions::exclusive());
        let mut shared = waits(&store, LockOptions::shared());
        drop(held);
        assert_eq!((exclusive.wakes(), shared.wakes()), (1, 0));
        drop(exclusive.answer().unwrap());
        drop(shared.answer().unwrap());
    });
}

#[test]
fn shared_waiters_are_granted_as_one_batch() {
    on_both(|store| async move {
        let held = takes(&store, LockOptions::exclusive());
        let modes = [true, false, true, false, true];
        let request = |shared| waits(&store, if shared { LockOptions::shared() } else { LockOptions::exclusive() });
        let mut queue: Waits = modes.into_iter().map(request).collect();
        drop(held);
        assert_eq!(wakes(&queue), [1, 0, 1, 0, 1]);
        let shared: Vec<_> = [0, 2, 4].map(|at| queue[at].answer().unwrap()).into();
        for (number, guard) in shared.into_iter().enumerate() {
            assert_eq!(wakes(&queue), [1, 0, 1, 0, 1], "{number} are released");
            drop(guard);
        }
        assert_eq!(wakes(&queue), [1, 1, 1, 0, 1]);
        drop(queue[1].answer().unwrap());
        assert_eq!(wakes(&queue), [1, 1, 1, 1, 1]);
        drop(queue[3].answer().unwrap());
    });
}

/// The number of shared or semaphore holders of a name, or -1 for an exclusive holder.
#[derive(Default)]
struct Inside(AtomicI64);

impl Inside {
    async fn visit(&self, exclusive: bool, most: i64) {
        if exclusive {
            assert_eq!(self.0.fetch_sub(1, Ordering::SeqCst), 0, "an exclusive holder is not alone");
        } else {
            assert!((0..most).contains(&self.0.fetch_add(1, Ordering::SeqCst)), "too many holders");
        }
        tokio::task::yield_now().await;
        self.0.fetch_add(if exclusive { 1 } else { -1 }, Ordering::SeqCst);
    }
}

/// Counts polls of a request that are neither its first nor its last.
async fn counted<F: Future>(future: F, extra_polls: &AtomicU64) -> F::Output {
    let mut future = std::pin::pin!(future);
    let mut polls = 0;
    std::future::poll_fn(|context| {
        let answer = future.as_mut().poll(context);
        extra_polls.fetch_add(u64::from(polls > 0 && answer.is_pending()), Ordering::SeqCst);
        polls += 1;
        answer
    })
    .await
}

async fn visit_at_random(store: AsyncStore, names: Arc<Vec<Inside>>, extra_polls: Arc<AtomicU64>, mut dice: Dice) {
    for _ in 0..5000 {
        let number = dice.below(names.len() as u64) as usize;
        let name = number.to_string();
        // Even names are locked in shared mode, odd ones as semaphores, and both exclusively.
        let (options, exclusive, most) = match dice.below(3) {
            0 => (LockOptions::exclusive(), true, 0),
            _ if number.is_multiple_of(2) => (LockOptions::shared(), false, i64::MAX),
            _ => (LockOptions::semaphore(3), false, 3),
        };
        let lock = store.lock_with(&name, forever(options));
        if dice.below(8) == 0 {
            let mut dropped = Steps::new(lock);
            let _may_be_granted_meanwhile = dropped.poll();
            tokio::task::yield_now().await;
        } else {
            let guard = counted(lock, &extra_polls).await.unwrap();
            names[number].visit(exclusive, most).await;
            drop(guard);
        }
    }
}

#[test]
fn random_requests_exclude_and_wake_once() {
    on_both(|store| async move {
        let mut dice = Dice::new();
        let names: Arc<Vec<Inside>> = Arc::new((0..4).map(|_| Inside::default()).collect());
        let extra_polls = Arc::<AtomicU64>::default();
        let begin = |_| {
            let (names, extra_polls) = (Arc::clone(&names), Arc::clone(&extra_polls));
            tokio::spawn(visit_at_random(store.clone(), names, extra_polls, dice.fork()))
        };
        let tasks: Vec<_> = (0..32).map(begin).collect();
        for task in tasks {
            task.await.unwrap();
        }
        // A few extra polls are allowed: when the oracle's reservation is used up, a granted task
        // also waits for a blocking thread.
        assert!(extra_polls.load(Ordering::SeqCst) < 20, "wakes without a result");
        let stats = store.store().lock_stats();
        let modes = [&stats.exclusive, &stats.shared, &stats.semaphore];
        let waited: u64 = modes.iter().map(|mode| mode.waits - mode.cancelled).sum();
        assert!(modes.iter().all(|mode| mode.waits > 100 && mode.cancelled > 10), "{stats:?}");
        assert_eq!(stats.wakeups, waited);
        assert_eq!(store.store().lock_table().unwrap().entries, []);
    });
}

/// How a waiting request leaves the queue.
#[derive(Clone, Copy, Debug)]
enum Way {
    Dropped,
    TimedOut,
    Cancelled,
}

/// Queues three requests, makes the one at `place` leave, and checks the other two.
async fn leave(store: &AsyncStore, place: usize, way: Way) {
    let held = takes(store, LockOptions::exclusive());
    let (mut queue, cancel) = (Waits::new(), CancelToken::default());
    for at in 0..3 {
        let options = match way {
            _ if at != place => forever(LockOptions::exclusive()),
            Way::TimedOut => LockOptions::exclusive().wait(LockWaitPolicy::Timeout(Duration::from_millis(20))),
            _ => forever(LockOptions::exclusive()).cancel_token(&cancel),
        };
        queue.push(Steps::waiting(store.lock_with("n", options)));
    }
    let mut leaving = queue.remove(place);
    match way {
        Way::Dropped => drop(leaving),
        Way::TimedOut => {
            let error = leaving.end().unwrap_err();
            let ErrorKind::LockNotAvailable(held) = error.kind() else { panic!("{error}") };
            assert_eq!(held.queue_position, place, "{error}");
        }
        Way::Cancelled => {
            cancel.cancel();
            assert!(matches!(leaving.answer().unwrap_err().kind(), ErrorKind::Cancelled(_)));
        }
    }
    assert_eq!((wakes(&queue), waiting(store)), (vec![0, 0], 2), "{place} {way:?}");
    drop(held);
    assert_eq!(wakes(&queue), [1, 0], "{place} {way:?}");
    drop(queue[0].answer().unwrap());
    drop(queue[1].answer().unwrap());
}

const WAYS: [Way; 3] = [Way::Dropped, Way::TimedOut, Way::Cancelled];

#[test]
fn the_first_waiter_leaves_without_a_trace() {
    on_both(|store| async move {
        for way in WAYS {
            leave(&store, 0, way).await;
        }
    });
}

#[test]
fn a_waiter_in_the_middle_leaves_without_a_trace() {
    on_both(|store| async move {
        for way in WAYS {
            leave(&store, 1, way).await;
        }
    });
}

#[test]
fn the_last_waiter_leaves_without_a_trace() {
    on_both(|store| async move {
        for way in WAYS {
            leave(&store, 2, way).await;
        }
    });
}

#[test]
fn granted_but_unpolled_request_passes_the_lock_on_or_has_it() {
    on_both(|store| async move {
        for way in WAYS {
            let held = takes(&store, LockOptions::exclusive());
            let cancel = CancelToken::default();
            let options = LockOptions::exclusive()
                .wait(LockWaitPolicy::Timeout(Duration::from_millis(300)))
                .cancel_token(&cancel);
            let mut granted = Steps::waiting(store.lock_with("n", options));
            let mut next = waits(&store, LockOptions::exclusive());
            drop(held);
            assert_eq!((granted.wakes(), next.wakes()), (1, 0));
            match way {
                Way::Dropped => drop(granted),
                Way::TimedOut => {
                    tokio::time::sleep(Duration::from_millis(400)).await;
                    drop(granted.answer().unwrap());
                }
                Way::Cancelled => {
                    cancel.cancel();
                    drop(granted.answer().unwrap());
                }
            }
            drop(next.answer().unwrap());
        }
    });
}

#[test]
fn a_fourth_request_of_a_semaphore_of_three_waits() {
    on_both(|store| async move {
        let mut three: Vec<_> = (0..3).map(|_| takes(&store, LockOptions::semaphore(3))).collect();
        let mut fourth = waits(&store, LockOptions::semaphore(3));
        three.pop();
        drop(fourth.answer().unwrap());
    });
}

#[test]
fn an_exclusive_request_waits_for_all_permits() {
    on_both(|store| async move {
        let three: Vec<_> = (0..3).map(|_| takes(&store, LockOptions::semaphore(3))).collect();
        let mut exclusive = waits(&store, LockOptions::exclusive());
        for guard in three {
            assert_eq!(exclusive.wakes(), 0);
            drop(guard);
        }
        drop(exclusive.answer().unwrap());
    });
}

#[test]
fn other_limits_and_shared_do_not_mix_with_a_semaphore() {
    on_both(|store| async move {
        let held = takes(&store, LockOptions::semaphore(3));
        for options in [LockOptions::semaphore(4), LockOptions::shared()] {
            let error = store.lock_with("n", options).await.unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::InvalidArgument(_)), "{error}");
            assert!(error.to_string().contains("semaphore of 3"), "{error}");
        }
        assert!(held.is_held());
        assert_eq!(store.store().lock_table().unwrap().entries.len(), 1);
        drop(takes(&store, LockOptions::semaphore(3)));
    });
}

#[test]
fn semaphore_requests_are_fifo() {
    on_both(|store| async move {
        let semaphore = || LockOptions::semaphore(2);
        let (one, other) = (takes(&store, semaphore()), takes(&store, semaphore()));
        let mut queue = vec![waits(&store, semaphore()), waits(&store, LockOptions::exclusive())];
        queue.push(waits(&store, semaphore()));
        drop(one);
        assert_eq!(wakes(&queue), [1, 0, 0]);
        let first = queue[0].answer().unwrap();
        drop(other);
        // A permit is free, but the exclusive request is ahead.
        assert_eq!(wakes(&queue), [1, 0, 0]);
        drop(first);
        assert_eq!(wakes(&queue), [1, 1, 0]);
        drop(queue[1].answer().unwrap());
        drop(queue[2].answer().unwrap());
    });
}
