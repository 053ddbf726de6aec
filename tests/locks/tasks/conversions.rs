//! Upgrades and downgrades of tasks, including those whose future is dropped.

use std::sync::Arc;
use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::{
    AsyncLockGuard, AsyncStore, ErrorKind, LockLostReason, LockMode, LockOptions, LockWaitPolicy, Timestamp, Txn,
};

use super::common::{Busy, Steps, both_runtimes, eventually, has_row, in_memory, on_both, takes, waits};
use crate::hooked_store::{World, assert_lost};
use crate::support::blocked_syncs::Gate;
use crate::support::clocks::Clocks;

const HOUR: Duration = Duration::from_secs(3600);

/// Writes a row in a transaction under the fence.
async fn writes(store: &AsyncStore, fence: percolite::Fence) -> percolite::Result<()> {
    let rows = store.keyspace("rows").await?;
    let work = move |txn: &mut Txn| {
        txn.fence(&fence)?;
        txn.put(&rows, "k", "v")
    };
    store.transact(work).await
}

fn mode(guard: &AsyncLockGuard) -> LockMode {
    guard.entry().mode
}

#[test]
fn a_sole_shared_lock_becomes_exclusive_with_a_new_token() {
    on_both(|store| async move {
        let mut guard = takes(&store, LockOptions::shared());
        let (token, fence) = (guard.token(), guard.fence());
        guard.upgrade(LockWaitPolicy::NoWait).await.unwrap();
        assert!(guard.token() > token);
        assert_eq!(mode(&guard), LockMode::Exclusive);
        assert!(store.try_lock("n").await.unwrap().is_none());
        assert_lost(writes(&store, fence).await, token, LockLostReason::Converted);
        writes(&store, guard.fence()).await.unwrap();
        // A second upgrade changes nothing.
        let token = guard.token();
        guard.upgrade(LockWaitPolicy::NoWait).await.unwrap();
        assert_eq!(guard.token(), token);
    });
}

#[test]
fn second_upgrader_gets_deadlock_and_stays_shared() {
    on_both(|store| async move {
        let [mut one, mut other] = [(); 2].map(|()| takes(&store, LockOptions::shared()));
        let token = other.token();
        let mut first = Steps::waiting(one.upgrade(LockWaitPolicy::Forever));
        let error = other.upgrade(LockWaitPolicy::Forever).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Deadlock(_)), "{error}");
        assert_eq!((mode(&other), other.token(), other.is_held()), (LockMode::Shared, token, true));
        assert_eq!(first.wakes(), 0);
        drop(other);
        first.answer().unwrap();
        drop(first);
        assert_eq!(mode(&one), LockMode::Exclusive);
        assert!(one.token() > token);
        assert_eq!(store.store().lock_stats().deadlocks, 1);
    });
}

#[test]
fn a_downgrade_grants_all_shared_tasks_and_no_exclusive_one() {
    on_both(|store| async move {
        let mut guard = takes(&store, LockOptions::exclusive());
        let mut shared = [(); 2].map(|()| waits(&store, LockOptions::shared()));
        let mut exclusive = waits(&store, LockOptions::exclusive());
        let token = guard.token();
        guard.downgrade().await.unwrap();
        assert!(guard.token() > token);
        assert_eq!((shared.each_ref().map(Steps::wakes), exclusive.wakes()), ([1, 1], 0));
        let shared = shared.each_mut().map(|shared| shared.answer().unwrap());
        drop(guard);
        assert_eq!(exclusive.wakes(), 0);
        drop(shared);
        drop(exclusive.answer().unwrap());
    });
}

#[test]
fn upgrade_timeout_or_drop_keeps_the_lock() {
    on_both(|store| async move {
        let [mut one, other] = [(); 2].map(|()| takes(&store, LockOptions::shared()));
        let (token, fence) = (one.token(), one.fence());
        let error = one.upgrade(LockWaitPolicy::Timeout(Duration::from_millis(20))).await.unwrap_err();
        let ErrorKind::LockNotAvailable(held) = error.kind() else { panic!("{error}") };
        assert!(held.holders.iter().any(|holder| holder.token == Some(other.token())), "{error}");
        assert!(matches!(
            one.upgrade(LockWaitPolicy::NoWait).await.unwrap_err().kind(),
            ErrorKind::LockNotAvailable(_)
        ));
        drop(Steps::waiting(one.upgrade(LockWaitPolicy::Forever)));
        assert_eq!((mode(&one), one.token(), one.is_held()), (LockMode::Shared, token, true));
        writes(&store, fence).await.unwrap();
        // The dropped upgrade blocks no other request.
        drop(other);
        drop(takes(&store, LockOptions::shared()));
    });
}

#[test]
fn downgrade_invalidates_older_fences() {
    on_both(|store| async move {
        let mut guard = takes(&store, LockOptions::exclusive());
        let rows = store.keyspace("rows").await.unwrap();
        let (token, fence) = (guard.token(), guard.fence());
        let txn = store.run_blocking(move |store| {
            let mut txn = store.begin()?;
            txn.fence(&fence)?;
            txn.put(&rows, "k", "v")?;
            Ok::<_, percolite::Error>(txn)
        });
        let txn = txn.await.unwrap();
        guard.downgrade().await.unwrap();
        let reader = takes(&store, LockOptions::shared());
        let committed = store.run_blocking(move |_| txn.commit()).await;
        assert_lost(committed, token, LockLostReason::Converted);
        let rows = store.keyspace("rows").await.unwrap();
        assert_eq!(store.get(&rows, "k").await.unwrap(), None);
        drop(reader);
    });
}

#[test]
fn upgrade_dropped_before_its_token_has_no_fence() {
    for runtime in both_runtimes(1) {
        let store = in_memory();
        let _inside = runtime.enter();
        let mut guard = leased(&store, LockOptions::shared());
        let old = runtime.block_on(store.run_blocking(|store| store.begin())).unwrap();
        {
            let _busy = Busy::begin(&runtime);
            drop(Steps::waiting(guard.upgrade(LockWaitPolicy::NoWait)));
            assert_eq!((mode(&guard), guard.token()), (LockMode::Exclusive, Timestamp::ZERO));
            let mut old = old;
            let error = old.fence(&guard.fence()).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::InvalidArgument(_)), "{error}");
            assert!(error.to_string().contains("call it again"), "{error}");
            guard = guard.detach().unwrap_err();
            // The zero token of the unfinished conversion is refused by other calls.
            assert!(!store.store().force_unlock("n", Timestamp::ZERO).unwrap());
            assert!(store.store().attach_lock("n", Timestamp::ZERO).is_err());
        }
        Steps::new(guard.upgrade(LockWaitPolicy::NoWait)).end().unwrap();
        assert!(guard.is_held() && guard.token() > Timestamp::ZERO);
        drop(guard);
    }
}

#[test]
fn upgrade_dropped_before_its_token_cannot_be_renewed() {
    for runtime in both_runtimes(1) {
        let _inside = runtime.enter();
        let world = World::open();
        let store = AsyncStore::from(world.store.clone());
        let mut guard = leased(&store, LockOptions::shared());
        let writes = {
            let _busy = Busy::begin(&runtime);
            drop(Steps::waiting(guard.upgrade(LockWaitPolicy::NoWait)));
            let writes = world.hooks.writes();
            let error = guard.guard().renew(HOUR).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::InvalidArgument(_)), "{error}");
            assert!(error.to_string().contains("no token"), "{error}");
            assert!(guard.is_held());
            world.hooks.writes() - writes
        };
        assert_eq!(writes, 0, "a row was written without a token");
        Steps::new(guard.upgrade(LockWaitPolicy::NoWait)).end().unwrap();
        Steps::new(guard.renew(HOUR)).end().unwrap();
        assert!(guard.entry().lease_remaining.unwrap() > HOUR / 2);
        Steps::new(guard.release()).end().unwrap();
        assert!(!has_row(&world.memory, "n"));
    }
}

#[test]
fn next_conversion_completes_a_dropped_one() {
    for runtime in both_runtimes(1) {
        let store = in_memory();
        let _inside = runtime.enter();
        let mut guard = leased(&store, LockOptions::shared());
        let token = guard.token();
        {
            let _busy = Busy::begin(&runtime);
            drop(Steps::waiting(guard.upgrade(LockWaitPolicy::NoWait)));
        }
        Steps::new(guard.downgrade()).end().unwrap();
        assert_eq!((mode(&guard), guard.is_held()), (LockMode::Shared, true));
        assert!(guard.token() > token);
        runtime.block_on(writes(&store, guard.fence())).unwrap();
        {
            let _busy = Busy::begin(&runtime);
            drop(Steps::waiting(guard.upgrade(LockWaitPolicy::NoWait)));
            drop(Steps::waiting(guard.downgrade()));
        }
        Steps::new(guard.upgrade(LockWaitPolicy::NoWait)).end().unwrap();
        assert_eq!((mode(&guard), guard.is_held()), (LockMode::Exclusive, true));
        runtime.block_on(writes(&store, guard.fence())).unwrap();
        runtime.block_on(guard.release()).unwrap();
    }
}

#[test]
fn dropped_conversion_leaves_no_lease_row() {
    for runtime in both_runtimes(1) {
        let _inside = runtime.enter();
        for releases in [true, false] {
            let world = World::open();
            let store = AsyncStore::from(world.store.clone());
            let mut guard = leased(&store, LockOptions::exclusive());
            {
                let _busy = Busy::begin(&runtime);
                drop(Steps::waiting(guard.downgrade()));
            }
            assert!(has_row(&world.memory, "n"));
            if releases {
                Steps::new(guard.release()).end().unwrap();
                assert!(!has_row(&world.memory, "n"), "the release returned before its row was deleted");
            } else {
                drop(guard);
                eventually("the row is deleted", || !has_row(&world.memory, "n"));
            }
            assert!(store.store().is_free_lock("n").unwrap());
        }
    }
}

fn leased(store: &AsyncStore, options: LockOptions) -> AsyncLockGuard {
    let options = options.lease(Duration::from_secs(60));
    Steps::new(store.lock_with("n", options)).end().unwrap()
}

#[test]
fn dropped_leased_conversion_is_completed_and_renewed() {
    for runtime in both_runtimes(2) {
        let clocks = Clocks::new();
        let gate = Gate::new(&SimStorage::new());
        let store = AsyncStore::from(clocks.builder().open_engine(Arc::<Gate>::clone(&gate)).unwrap());
        let _inside = runtime.enter();
        let mut guard = runtime.block_on(store.lock_with("n", LockOptions::shared().lease(HOUR))).unwrap();
        let token = guard.token();
        // Syncs are blocked, so the lease row is not durable when the future is dropped.
        gate.shut();
        drop(Steps::waiting(guard.upgrade(LockWaitPolicy::NoWait)));
        gate.open();
        eventually("the conversion is completed", || guard.token() > token);
        assert_eq!(mode(&guard), LockMode::Exclusive);
        eventually("the background thread waits", || clocks.is_parked("percolite-leases"));
        clocks.pass(HOUR / 2);
        eventually("the lease is renewed", || guard.entry().lease_remaining.is_some_and(|left| left > HOUR / 2));
        assert!(guard.is_held());
    }
}
