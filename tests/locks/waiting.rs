//! Waits of threads, and how each of them ends. A release just before the waiter parks is tested in
//! `src/lock_manager`; dropped futures and the end of a runtime are cases of tasks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, mpsc};
use std::time::{Duration, Instant};

use percolite::{
    CancelToken, ErrorKind, LockGuard, LockMode, LockNotAvailable, LockOptions, LockState, LockWaitPolicy, Store,
    Timestamp, TxnOptions,
};

use crate::support::fair_order::{Turn, assert_one_batch_passes};
use crate::support::{Asking, LIMIT, NO_REQUESTS, asks, asks_with, entries, held, queue, until, within_limit};

const NAME: &str = "name";

fn lock_held(error: &percolite::Error) -> &LockNotAvailable {
    let ErrorKind::LockNotAvailable(held) = error.kind() else { unreachable!("{error}") };
    held
}

#[test]
fn writers_wait_for_one_batch_of_readers_at_most() {
    const READERS: usize = 20;
    const WRITERS: usize = 8;
    const ROUNDS: usize = 10_000;
    const WRITES: u64 = 1 << 32;
    let store = Store::in_memory().unwrap();
    let (rounds, inside, turns) = (AtomicUsize::new(0), AtomicU64::new(0), Mutex::new(Vec::new()));
    let start = Barrier::new(READERS + WRITERS);
    std::thread::scope(|scope| {
        for thread in 0..READERS + WRITERS {
            let (store, rounds, inside, turns, start) = (&store, &rounds, &inside, &turns, &start);
            scope.spawn(move || {
                let writes = thread >= READERS;
                let (options, unit) =
                    if writes { (LockOptions::exclusive(), WRITES) } else { (LockOptions::shared(), 1) };
                let mut own = Vec::new();
                start.wait();
                while rounds.fetch_add(1, Ordering::Relaxed) < ROUNDS {
                    let guard = store.lock_with(NAME, options.clone()).unwrap();
                    let others = inside.fetch_add(unit, Ordering::SeqCst);
                    assert!(if writes { others == 0 } else { others < WRITES }, "{others:#x}");
                    own.push(Turn { holder: thread, writes, id: guard.entry().id, token: guard.token() });
                    if own.len().is_multiple_of(8) {
                        std::thread::yield_now();
                    }
                    inside.fetch_sub(unit, Ordering::SeqCst);
                }
                turns.lock().unwrap().extend(own);
            });
        }
    });
    let turns = turns.into_inner().unwrap();
    assert_eq!(turns.len(), ROUNDS);
    let passed = assert_one_batch_passes(turns);
    assert!(passed > 0, "no reader joined a batch and passed a writer");
    let stats = store.lock_stats();
    let waited = stats.exclusive.waits + stats.shared.waits;
    assert_eq!((stats.acquired(), stats.wakeups), (ROUNDS as u64, waited));
    let measured = stats.exclusive.wait_time.count() + stats.shared.wait_time.count();
    assert_eq!(measured, waited);
    assert_eq!(held(&store, NAME).len() + queue(&store, NAME).len(), 0);
}

#[test]
fn waiters_are_granted_in_order_with_one_wake() {
    let store = Store::in_memory().unwrap();
    let first = store.lock(NAME).unwrap();
    let waiting: Vec<Asking> = (0..64).map(|_| asks(&store, NAME, LockOptions::exclusive())).collect();
    let ids: Vec<u64> = waiting.iter().map(Asking::id).collect();
    assert_eq!(queue(&store, NAME), ids);
    assert_eq!(store.lock_stats().wakeups, 0);

    // Each granted request holds the lock for a short time on a thread of its own.
    let (enters, order) = mpsc::channel();
    let holding: Vec<_> = waiting
        .into_iter()
        .map(|asking| {
            let enters = enters.clone();
            std::thread::spawn(move || {
                let guard = asking.granted();
                enters.send((asking.id(), guard.token())).unwrap();
                drop(guard);
            })
        })
        .collect();
    let before = first.token();
    drop(first);
    let handed: Vec<(u64, Timestamp)> =
        (0..64).map(|_| order.recv_timeout(LIMIT).expect("the lock is not handed on")).collect();
    assert_eq!(handed.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ids);
    assert!(handed[0].1 > before && handed.is_sorted_by(|(_, one), (_, next)| one < next));
    holding.into_iter().for_each(|holding| holding.join().unwrap());
    let stats = store.lock_stats();
    assert_eq!((stats.exclusive.acquired, stats.exclusive.waits, stats.wakeups), (65, 64, 64));
    assert_eq!(held(&store, NAME), NO_REQUESTS);
}

#[test]
fn cancel_leaves_the_queue_unchanged() {
    let store = Store::in_memory().unwrap();
    let holder = store.lock(NAME).unwrap();
    let cancel = CancelToken::default();
    let first = asks(&store, NAME, LockOptions::exclusive());
    let cancelled = asks(&store, NAME, LockOptions::exclusive().cancel_token(&cancel));
    let elsewhere = store.lock("elsewhere").unwrap();
    let as_well = asks(&store, "elsewhere", LockOptions::shared().cancel_token(&cancel));
    let last = asks(&store, NAME, LockOptions::exclusive());
    assert_eq!(queue(&store, NAME), [first.id(), cancelled.id(), last.id()]);

    let by = cancel.clone();
    std::thread::spawn(move || by.cancel()).join().unwrap();
    for asking in [&cancelled, &as_well] {
        assert!(matches!(asking.refused().kind(), ErrorKind::Cancelled(_)));
    }
    assert_eq!((held(&store, NAME), queue(&store, NAME)), (vec![holder.entry().id], vec![first.id(), last.id()]));
    assert_eq!(queue(&store, "elsewhere"), NO_REQUESTS);
    assert!(first.answer().is_none() && last.answer().is_none());
    let stats = store.lock_stats();
    assert_eq!((stats.exclusive.cancelled, stats.shared.cancelled, stats.wakeups), (1, 1, 0));

    // A cancelled token stays cancelled. It only ends waits: a free lock is granted.
    let again = asks(&store, NAME, LockOptions::exclusive().cancel_token(&cancel));
    assert!(matches!(again.refused().kind(), ErrorKind::Cancelled(_)));
    drop(elsewhere);
    drop(store.lock_with("elsewhere", LockOptions::exclusive().cancel_token(&cancel)).unwrap());
    drop(holder);
    drop(first.granted());
    drop(last.granted());
}

#[test]
fn timeout_reports_holder_and_position() {
    let store = Store::in_memory().unwrap();
    let holder = store.lock_with(NAME, LockOptions::exclusive().reason("the holder")).unwrap();
    let ahead = asks(&store, NAME, LockOptions::shared());
    let millisecond = Duration::from_millis(1);
    for (wait, least) in [
        (LockWaitPolicy::NoWait, Duration::ZERO),
        (LockWaitPolicy::Timeout(Duration::ZERO), Duration::ZERO),
        (LockWaitPolicy::Timeout(millisecond), millisecond),
    ] {
        let error = asks_with(&store, NAME, LockOptions::shared().wait(wait)).refused();
        let error = lock_held(&error);
        assert_eq!(
            (error.target.to_string(), error.mode, error.queue_position),
            ("\"name\"".into(), LockMode::Shared, 1)
        );
        assert_eq!(error.holders.len(), 1, "{wait:?}");
        assert_eq!(
            (error.holders[0].token, error.holders[0].reason.as_deref()),
            (Some(holder.token()), Some("the holder"))
        );
        assert!(error.waited >= least && error.waited < LIMIT, "{wait:?}");
        assert_eq!(queue(&store, NAME), [ahead.id()], "{wait:?} has left an entry");
    }
    assert!(store.try_lock(NAME).unwrap().is_none());
    let stats = store.lock_stats();
    assert_eq!((stats.shared.waits, stats.shared.timeouts), (3, 3));
    assert_eq!((stats.exclusive.waits, stats.exclusive.timeouts, stats.wakeups), (0, 1, 0));

    let last = asks(&store, NAME, LockOptions::exclusive());
    let closing = store.clone();
    within_limit(move || closing.close()).unwrap();
    for asking in [ahead, last] {
        assert!(matches!(asking.refused().kind(), ErrorKind::Closed(_)));
    }
    assert!(!holder.is_held());
    assert_eq!(store.lock_stats().wakeups, 2);
    assert!(matches!(store.lock(NAME).unwrap_err().kind(), ErrorKind::Closed(_)));
}

#[test]
fn relocking_a_held_name_times_out() {
    let store = Store::in_memory().unwrap();
    let guard = store.lock(NAME).unwrap();
    let timeout = Duration::from_millis(60);
    let began = Instant::now();
    let error = store.lock_with(NAME, LockOptions::exclusive().wait(LockWaitPolicy::Timeout(timeout))).unwrap_err();
    assert!(began.elapsed() >= timeout);
    let error = lock_held(&error);
    assert_eq!((error.queue_position, error.holders.len(), error.holders[0].token), (0, 1, Some(guard.token())));
    assert!(error.waited >= timeout);
    assert!(guard.is_held());
    assert_eq!((held(&store, NAME), queue(&store, NAME)), (vec![guard.entry().id], vec![]));
    drop(guard);
    assert_eq!(held(&store, NAME), NO_REQUESTS);
}

#[test]
fn mutual_waiters_are_listed_and_time_out() {
    let store = Store::in_memory().unwrap();
    let timeout = Duration::from_secs(3);
    let both = Barrier::new(2);
    std::thread::scope(|scope| {
        let crossing: Vec<_> = [("a", "b"), ("b", "a")]
            .map(|(first, second)| {
                let (store, both) = (&store, &both);
                scope.spawn(move || {
                    let held = store.lock(first).unwrap();
                    both.wait();
                    let error = store
                        .lock_with(second, LockOptions::exclusive().wait(LockWaitPolicy::Timeout(timeout)))
                        .unwrap_err();
                    // Neither releases its lock before the other has timed out.
                    both.wait();
                    assert!(held.is_held());
                    (lock_held(&error).clone(), held.entry().id)
                })
            })
            .into();
        let mut shown = Vec::new();
        until("the wait cycle", || {
            let table = store.lock_table().unwrap();
            shown = table.wait_cycles.into_iter().flatten().collect();
            !shown.is_empty() || crossing.iter().any(std::thread::ScopedJoinHandle::is_finished)
        });
        let waiting: Vec<u64> = queue(&store, "a").into_iter().chain(queue(&store, "b")).collect();
        shown.sort_unstable();
        let mut expected = waiting.clone();
        expected.sort_unstable();
        assert_eq!((shown, waiting.len()), (expected, 2));

        let ended: Vec<(LockNotAvailable, u64)> = crossing.into_iter().map(|thread| thread.join().unwrap()).collect();
        for (at, (error, _)) in ended.iter().enumerate() {
            assert!(error.waited >= timeout, "{:?}", error.waited);
            assert_eq!((error.queue_position, error.holders.len(), error.holders[0].id), (0, 1, ended[1 - at].1));
        }
    });
    let table = store.lock_table().unwrap();
    assert_eq!((table.entries.len(), table.wait_cycles.len()), (0, 0));
    assert_eq!(store.lock_stats().deadlocks, 0);
}

#[test]
fn closure_panic_releases_the_lock() {
    let store = Store::in_memory().unwrap();
    let state = store.keyspace("state").unwrap();
    let mut next: Option<Asking> = None;
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        store.transact_with_lock(
            NAME,
            LockOptions::exclusive(),
            TxnOptions::default(),
            |txn| -> percolite::Result<()> {
                txn.put(&state, "row", "half done")?;
                next = Some(asks(&store, NAME, LockOptions::exclusive()));
                std::panic::resume_unwind(Box::new("on purpose"))
            },
        )
    }));
    assert_eq!(panicked.unwrap_err().downcast_ref::<&str>(), Some(&"on purpose"));
    let next = next.unwrap();
    assert_eq!(held(&store, NAME), [next.id()]);
    let guard: LockGuard = next.granted();
    assert_eq!(store.snapshot().unwrap().get(&state, "row").unwrap(), None);
    drop(guard);
    store
        .transact_with_lock(NAME, LockOptions::exclusive(), TxnOptions::default(), |txn| {
            assert_eq!(txn.get(&state, "row")?, None);
            txn.put(&state, "row", "done")
        })
        .unwrap();
    assert_eq!(store.snapshot().unwrap().get(&state, "row").unwrap().as_deref(), Some(&b"done"[..]));
    assert!(entries(&store, NAME).iter().all(|entry| entry.state != LockState::Held));
}
