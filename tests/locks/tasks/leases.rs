//! Leases that tasks hold, attach to and lose.

use std::time::{Duration, Instant};

use percolite::engine::sim::SimStorage;
use percolite::{
    AsyncLockGuard, AsyncStore, ErrorKind, LockLostReason, LockOptions, LockWaitPolicy, Result, Store, Timestamp, Txn,
};

use super::common::{
    Busy, Steps, TIMEOUT, assert_nothing_left, beside_worlds, both_runtimes, forever, has_row, in_memory, in_worlds,
    on_both, until, waiting,
};
use crate::hooked_store::{World, assert_lost, eventually};
use crate::support::clocks::{Clocks, HOUR, THEN};
use crate::support::rows;

const SHORT: Duration = Duration::from_millis(300);

fn lease(time: Duration) -> LockOptions {
    LockOptions::exclusive().lease(time)
}

async fn attach(store: &AsyncStore, token: Timestamp) -> Result<AsyncLockGuard> {
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
        let guard = attach(&store, token).await.unwrap();
        assert_eq!(guard.token(), token);
        // The attached lease is renewed and fences transactions.
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
            assert_lost(attach(&store, other).await, other, LockLostReason::UnknownToken);
        }
        let guard = attach(&store, token).await.unwrap();
        let error = attach(&store, token).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument(_)), "{error}");
        guard.release().await.unwrap();
        assert_lost(attach(&store, token).await, token, LockLostReason::UnknownToken);
    });
}

#[test]
fn dropped_lease_stays_released_after_a_power_cut() {
    in_worlds(|world, store| async move {
        let leased = store.lock_with("n", lease(HOUR)).await.unwrap();
        let token = leased.token();
        drop(leased);
        let next = store.lock("n").await.unwrap();
        assert!(!has_row(&world.memory, "n"), "the lock was returned before the row was deleted");
        world.memory.crash(0);
        drop(next);
        assert_free_after_reopening(&world.memory, Store::builder(), token).await;
    });
}

async fn assert_free_after_reopening(memory: &SimStorage, builder: percolite::Builder, token: Timestamp) {
    let again = AsyncStore::from(builder.open_in_memory(memory).unwrap());
    assert_lost(attach(&again, token).await, token, LockLostReason::UnknownToken);
    assert!(again.try_lock("n").await.unwrap().unwrap().token() > token);
}

#[test]
fn expired_lease_stays_expired_when_the_clock_goes_back() {
    for runtime in both_runtimes(8) {
        // The sweep does not run: it could delete the row before the next holder takes it over.
        let (memory, clocks) = (SimStorage::new(), Clocks::new().without("percolite-bg"));
        let store = AsyncStore::from(clocks.builder().open_in_memory(&memory).unwrap());
        runtime.block_on(async {
            let leased = store.lock_with("n", lease(HOUR).auto_renew(false)).await.unwrap();
            let token = leased.token();
            clocks.pass(HOUR);
            leased.wait_lost().await;
            let next = store.lock("n").await.unwrap();
            assert_eq!(next.entry().took_over.map(|expired| expired.token), Some(token));
            assert!(!has_row(&memory, "n"), "the lock was returned before the row was deleted");
            clocks.set_wall(THEN - 86_400_000);
            memory.crash(0);
            assert_free_after_reopening(&memory, clocks.builder(), token).await;
        });
    }
}

#[cfg(feature = "rocks")]
#[test]
fn a_lease_in_a_checkpoint_cannot_be_attached() {
    for runtime in both_runtimes(8) {
        let directory = tempfile::tempdir().unwrap();
        let (first, copy) = (directory.path().join("first"), directory.path().join("copy"));
        runtime.block_on(async {
            let store = AsyncStore::open(&first).await.unwrap();
            let token = store.lock_with("n", lease(HOUR)).await.unwrap().detach().unwrap();
            let to = copy.clone();
            store.run_blocking(move |store| store.checkpoint(&to)).await.unwrap();
            let copied = AsyncStore::open(&copy).await.unwrap();
            assert_lost(attach(&copied, token).await, token, LockLostReason::UnknownToken);
            assert!(copied.try_lock("n").await.unwrap().is_some());
            assert!(store.try_lock("n").await.unwrap().is_none());
            attach(&store, token).await.unwrap().release().await.unwrap();
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
        // No future is polled, and no blocking thread of the runtime is free.
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
        let guard = store.lock_with("n", lease(SHORT).auto_renew(false).reason("a job")).await.unwrap();
        let next = store.lock("n").await.unwrap();
        assert!(began.elapsed() >= SHORT, "the lock was granted before the lease expired");
        assert!(!guard.is_held());
        let expired = next.entry().took_over.expect("the expired lease is not named");
        assert_eq!((expired.token, expired.holder.pid), (guard.token(), std::process::id()));
        drop(guard);
        assert!(next.is_held(), "the drop of a lost guard has ended the next grant");
    });
}

#[test]
fn a_late_renewal_is_lost() {
    on_both(|store| async move {
        let guard = store.lock_with("n", lease(SHORT).auto_renew(false)).await.unwrap();
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
    // Even on a busy machine this lease must not expire before the renewal begins.
    let time = Duration::from_secs(2);
    beside_worlds(|world, store| {
        for is_awaited in [true, false] {
            let guard = Steps::new(store.lock_with("n", lease(time).auto_renew(false))).end().unwrap();
            let mut next = Steps::waiting(store.lock("n"));
            let mut lost = Steps::waiting(guard.wait_lost());
            let gate = world.stop_syncs(crate::hooked_engine::Act::Pass);
            let mut renewal = Some(Steps::waiting(guard.renew(HOUR)));
            gate.wait_for_arrival();
            if !is_awaited {
                // A renewal that has begun continues after its future is dropped.
                renewal = None;
            }
            std::thread::sleep(time + SHORT);
            assert!(guard.is_held() && next.poll().is_pending() && lost.poll().is_pending());
            gate.open();
            world.hooks.no_hooks();
            if let Some(renewal) = &mut renewal {
                renewal.end().unwrap();
            }
            eventually("the lease is renewed", || guard.entry().lease_remaining.unwrap() > HOUR / 2);
            assert!(guard.is_held() && next.poll().is_pending() && lost.poll().is_pending());
            drop((lost, renewal));
            drop(guard);
            drop(next.end().unwrap());
            // The background thread deletes the row with a write, which must not count as a renewal
            // of the next round.
            eventually("the row is deleted", || rows::names(&world.memory.exclusive_engine()).is_empty());
        }
    });
}

#[test]
fn second_waiter_is_granted_at_expiry_with_one_wake() {
    on_both(|store| async move {
        let (began, time) = (Instant::now(), Duration::from_secs(1));
        let _kept = store.lock_with("n", lease(time).auto_renew(false)).await.unwrap().detach().unwrap();
        let request = |wait| {
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
        for (place, wait) in [SHORT, TIMEOUT, TIMEOUT].into_iter().enumerate() {
            tasks.push(request(LockWaitPolicy::Timeout(wait)));
            until("the request waits", || waiting(&store) == place + 1).await;
        }
        let [third, second, first] = [(); 3].map(|()| tasks.pop().unwrap());
        let error = first.await.unwrap().0.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::LockNotAvailable(_)), "{error}");
        assert!(began.elapsed() < time, "the machine is too slow for the test");
        let (guard, _) = second.await.unwrap();
        let guard = guard.unwrap();
        assert!(began.elapsed() >= time, "the lock was granted before the lease expired");
        assert_eq!(
            (store.store().lock_stats().wakeups, waiting(&store)),
            (0, 1),
            "the second request sees the expiry itself, and no request is woken"
        );
        drop(guard);
        let (guard, polls) = third.await.unwrap();
        drop(guard.unwrap());
        // The task is polled at its request, at its grant, and after a thread has deleted the row
        // of the previous holder.
        assert!(polls <= 3, "the third was woken {polls} times");
        assert_eq!(store.store().lock_stats().wakeups, 1);
    });
}

#[test]
fn waiter_takes_over_an_expired_lease_by_itself() {
    for runtime in both_runtimes(1) {
        let _inside = runtime.enter();
        let store = in_memory();
        let kept = Steps::new(store.lock_with("n", lease(SHORT).auto_renew(false))).end().unwrap().detach().unwrap();
        let mut next = Steps::waiting(store.lock_with("n", forever(LockOptions::exclusive())));
        assert!(next.is_woken_within(TIMEOUT));
        assert!(next.end().unwrap().token() > kept);
    }
}
