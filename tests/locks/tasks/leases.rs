//! L2 and L3: leases that tasks hold, go on with and lose.

use std::time::{Duration, Instant};

use percolite::engine::sim::SimStorage;
use percolite::{
    AsyncLockGuard, AsyncStore, ErrorKind, LockLostReason, LockOptions, LockWaitPolicy, Result, Store, Timestamp, Txn,
};

use super::common::{
    Busy, PATIENCE, Steps, assert_nothing_left, beside_worlds, both_runtimes, forever, has_row, in_memory, in_worlds,
    on_both, until, waiting,
};
use crate::stops::{World, assert_lost, eventually};
use crate::support::clocks::{Clocks, HOUR, THEN};
use crate::support::rows;

const SHORT: Duration = Duration::from_millis(300);

fn lease(time: Duration) -> LockOptions {
    LockOptions::exclusive().lease(time)
}

async fn resume(store: &AsyncStore, token: Timestamp) -> Result<AsyncLockGuard> {
    store.run_blocking(move |store| store.attach_lock("n", token)).await.map(Into::into)
}

#[test]
fn attaching_with_the_token_continues_the_lease() {
    in_worlds(|world, store| async move {
        let token = store.lock_with("n", lease(SHORT)).await.unwrap().detach().unwrap();
        drop(store.lock("other").await.unwrap());
        store.close().await.unwrap();
        let again = World::open_at(&world.memory, Store::builder());
        let store = AsyncStore::from(again.store.clone());
        let guard = resume(&store, token).await.unwrap();
        assert_eq!(guard.token(), token);
        // It is renewed from here on, and fences.
        tokio::time::sleep(3 * SHORT).await;
        assert!(guard.is_held());
        let (fence, rows) = (guard.fence(), again.rows.clone());
        let put = move |txn: &mut Txn| {
            txn.fence(&fence)?;
            txn.put(&rows, "k", "v")
        };
        store.transact::<_, percolite::Error, _>(put).await.unwrap();
        guard.release().await.unwrap();
        assert!(!has_row(&again.memory, "n"));
    });
}

#[test]
fn attaching_with_a_wrong_or_ended_token_is_lost() {
    on_both(|store| async move {
        let token = store.lock_with("n", lease(HOUR)).await.unwrap().detach().unwrap();
        for other in [token.next(), token.previous()] {
            assert_lost(resume(&store, other).await, other, LockLostReason::UnknownToken);
        }
        let guard = resume(&store, token).await.unwrap();
        let why = resume(&store, token).await.unwrap_err();
        assert!(matches!(why.kind(), ErrorKind::InvalidArgument(_)), "{why}");
        guard.release().await.unwrap();
        assert_lost(resume(&store, token).await, token, LockLostReason::UnknownToken);
    });
}

#[test]
fn dropped_lease_stays_released_after_a_power_cut() {
    in_worlds(|world, store| async move {
        let leased = store.lock_with("n", lease(HOUR)).await.unwrap();
        let token = leased.token();
        drop(leased);
        let next = store.lock("n").await.unwrap();
        assert!(!has_row(&world.memory, "n"), "returned before the row was gone");
        world.memory.crash(0);
        drop(next);
        check_that_nobody_holds(&world.memory, Store::builder(), token).await;
    });
}

async fn check_that_nobody_holds(memory: &SimStorage, builder: percolite::Builder, token: Timestamp) {
    let again = AsyncStore::from(builder.open_in_memory(memory).unwrap());
    assert_lost(resume(&again, token).await, token, LockLostReason::UnknownToken);
    assert!(again.try_lock("n").await.unwrap().unwrap().token() > token);
}

#[test]
fn expired_lease_stays_expired_when_the_clock_goes_back() {
    for runtime in both_runtimes(8) {
        // The background might remove the row first, and then nothing would be taken over.
        let (memory, clocks) = (SimStorage::new(), Clocks::new().without("percolite-sweep"));
        let store = AsyncStore::from(clocks.builder().open_in_memory(&memory).unwrap());
        runtime.block_on(async {
            let leased = store.lock_with("n", lease(HOUR).once()).await.unwrap();
            let token = leased.token();
            clocks.pass(HOUR);
            leased.wait_lost().await;
            let next = store.lock("n").await.unwrap();
            assert_eq!(next.entry().took_over.map(|over| over.token), Some(token));
            assert!(!has_row(&memory, "n"), "returned before the row was gone");
            clocks.set_wall(THEN - 86_400_000);
            memory.crash(0);
            check_that_nobody_holds(&memory, clocks.builder(), token).await;
        });
    }
}

#[cfg(feature = "rocks")]
#[test]
fn a_lease_in_a_checkpoint_cannot_be_attached() {
    for runtime in both_runtimes(8) {
        let folder = tempfile::tempdir().unwrap();
        let (first, copy) = (folder.path().join("first"), folder.path().join("copy"));
        runtime.block_on(async {
            let store = AsyncStore::open(&first).await.unwrap();
            let token = store.lock_with("n", lease(HOUR)).await.unwrap().detach().unwrap();
            let to = copy.clone();
            store.run_blocking(move |store| store.checkpoint(&to)).await.unwrap();
            let copied = AsyncStore::open(&copy).await.unwrap();
            assert_lost(resume(&copied, token).await, token, LockLostReason::UnknownToken);
            assert!(copied.try_lock("n").await.unwrap().is_some());
            assert!(store.try_lock("n").await.unwrap().is_none());
            resume(&store, token).await.unwrap().release().await.unwrap();
            copied.close().await.unwrap();
            store.close().await.unwrap();
        });
    }
}

#[test]
fn leases_are_renewed_independently_of_the_runtime() {
    for runtime in both_runtimes(1) {
        let _inside = runtime.enter();
        let store = in_memory();
        let guard = Steps::new(store.lock_with("n", lease(SHORT))).end().unwrap();
        // Nobody polls anything, and no thread of the runtime is free.
        let _busy = Busy::begin(&runtime);
        assert!(!guard.guard().wait_lost(3 * SHORT));
        assert!(guard.entry().lease_remaining.unwrap() > Duration::ZERO);
        drop(guard);
        assert_nothing_left(&store);
    }
}

#[test]
fn unrenewed_lease_expires_and_names_its_holder() {
    on_both(|store| async move {
        let began = Instant::now();
        let guard = store.lock_with("n", lease(SHORT).once().reason("a job")).await.unwrap();
        let next = store.lock("n").await.unwrap();
        assert!(began.elapsed() >= SHORT, "before its time");
        assert!(!guard.is_held());
        let over = next.entry().took_over.expect("it is not named");
        assert_eq!((over.token, over.holder.pid), (guard.token(), std::process::id()));
        drop(guard);
        assert!(next.is_held(), "a guard that was lost has taken the next one's lock along");
    });
}

#[test]
fn a_late_renewal_is_lost() {
    on_both(|store| async move {
        let guard = store.lock_with("n", lease(SHORT).once()).await.unwrap();
        guard.wait_lost().await;
        assert_lost(guard.renew(HOUR).await, guard.token(), LockLostReason::Expired);
        assert!(store.store().is_free_lock("n").unwrap());
        let next = store.lock("n").await.unwrap();
        assert_lost(guard.renew(HOUR).await, guard.token(), LockLostReason::Expired);
        assert!(next.is_held());
    });
}

#[test]
fn the_result_of_a_late_renewal_says_if_the_lease_survived() {
    // Long enough for a busy machine to get to the renewal.
    let time = Duration::from_secs(2);
    beside_worlds(|world, store| {
        for is_awaited in [true, false] {
            let guard = Steps::new(store.lock_with("n", lease(time).once())).end().unwrap();
            let mut next = Steps::waiting(store.lock("n"));
            let mut lost = Steps::waiting(guard.wait_lost());
            let gate = world.stop_syncs(crate::tap::Act::Pass);
            let mut renewal = Some(Steps::waiting(guard.renew(HOUR)));
            gate.wait_for_arrival();
            if !is_awaited {
                // What has begun goes on.
                renewal = None;
            }
            std::thread::sleep(time + SHORT);
            assert!(guard.is_held() && next.poll().is_pending() && lost.poll().is_pending());
            gate.open();
            world.tap.no_hooks();
            if let Some(renewal) = &mut renewal {
                renewal.end().unwrap();
            }
            eventually("it is renewed", || guard.entry().lease_remaining.unwrap() > HOUR / 2);
            assert!(guard.is_held() && next.poll().is_pending() && lost.poll().is_pending());
            drop((lost, renewal));
            drop(guard);
            drop(next.end().unwrap());
            // The background writes, too, and is not to be taken for the next renewal.
            eventually("the row is gone", || rows::names(&world.memory.exclusive_engine()).is_empty());
        }
    });
}

#[test]
fn second_waiter_is_granted_at_expiry_with_one_wake() {
    on_both(|store| async move {
        let (began, time) = (Instant::now(), Duration::from_secs(1));
        let _kept = store.lock_with("n", lease(time).once()).await.unwrap().detach().unwrap();
        let ask = |wait| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut polls = 0;
                let mut lock = Box::pin(store.lock_with("n", LockOptions::exclusive().wait(wait)));
                let guard = std::future::poll_fn(|context| {
                    polls += 1;
                    lock.as_mut().poll(context)
                });
                (guard.await, polls)
            })
        };
        let mut tasks = Vec::new();
        for (place, wait) in [SHORT, PATIENCE, PATIENCE].into_iter().enumerate() {
            tasks.push(ask(LockWaitPolicy::Timeout(wait)));
            until("it waits", || waiting(&store) == place + 1).await;
        }
        let [third, second, first] = [(); 3].map(|()| tasks.pop().unwrap());
        let why = first.await.unwrap().0.unwrap_err();
        assert!(matches!(why.kind(), ErrorKind::LockNotAvailable(_)), "{why}");
        assert!(began.elapsed() < time, "this machine is too slow for the test");
        let (guard, _) = second.await.unwrap();
        let guard = guard.unwrap();
        assert!(began.elapsed() >= time, "before its time");
        assert_eq!((store.store().lock_stats().wakeups, waiting(&store)), (0, 1), "it looks itself, and wakes nobody");
        drop(guard);
        let (guard, polls) = third.await.unwrap();
        drop(guard.unwrap());
        // Asking, granted, and, as its predecessor has had a row to remove, the thread for that.
        assert!(polls <= 3, "the third was woken {polls} times");
        assert_eq!(store.store().lock_stats().wakeups, 1);
    });
}

#[test]
fn waiter_takes_over_an_expired_lease_by_itself() {
    for runtime in both_runtimes(1) {
        let _inside = runtime.enter();
        let store = in_memory();
        let kept = Steps::new(store.lock_with("n", lease(SHORT).once())).end().unwrap().detach().unwrap();
        let mut next = Steps::waiting(store.lock_with("n", forever(LockOptions::exclusive())));
        assert!(next.is_woken_within(PATIENCE));
        assert!(next.end().unwrap().token() > kept);
    }
}
