//! Fences of other stores, closed stores, and stores without named locks.

use std::sync::Arc;
use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::env::SystemEnv;
use percolite::oracle::MemoryOracle;
use percolite::{
    ErrorKind, LockOptions, LockWaitPolicy, Result, SharedConfig, SleepingRowLockWaiter, Store, Timestamp, Txn,
    TxnOptions,
};

use super::{HOUR, assert_refused, put};
use crate::hooked_store::World;

#[test]
fn fence_of_another_store_is_refused() {
    let (world, other) = (World::open(), World::open());
    let guard = other.store.lock("n").unwrap();
    let mut txn = world.store.begin().unwrap();
    assert_refused(txn.fence(&guard.fence()), "another store");
    txn.put(&world.rows, "k", "v").unwrap();
    drop(guard);
    txn.commit().unwrap();
    assert_eq!(world.get("k").as_deref(), Some("v"));
    // The same storage, opened again, also counts as another store.
    let (memory, guard) = (world.memory.clone(), world.store.lock("n").unwrap());
    let fence = guard.fence();
    world.store.close().unwrap();
    let again = World::open_at(&memory, Store::builder());
    assert_refused(again.store.transact(|txn| put(txn, &again, &fence, "late")), "another store");
    assert_eq!(again.get("late"), None);
}

#[test]
fn a_guard_of_a_closed_store_does_nothing() {
    for options in [LockOptions::shared(), LockOptions::exclusive(), LockOptions::exclusive().lease(HOUR)] {
        let world = World::open();
        let mut guard = world.store.lock_with("n", options.clone()).unwrap();
        let token = guard.token();
        let store = world.store.clone();
        world.store.close().unwrap();
        let closed = |answer: Result<()>| {
            let error = answer.expect_err("the store is closed");
            assert!(matches!(error.kind(), ErrorKind::Closed(_)), "{error}");
            assert!(error.to_string().contains("closed"), "{error}");
        };
        assert!(!guard.is_held() && guard.wait_lost(Duration::ZERO));
        assert_eq!(guard.token(), token);
        closed(guard.upgrade(LockWaitPolicy::Forever));
        closed(guard.downgrade());
        closed(guard.renew(HOUR));
        closed(store.lock("n").map(drop));
        closed(store.try_lock("n").map(drop));
        closed(store.transact_with_lock("n", LockOptions::exclusive(), TxnOptions::default(), |_| Ok(())));
        closed(store.lock_holders("n").map(drop));
        closed(store.lock_table().map(drop));
        closed(store.attach_lock("n", token).map(drop));
        closed(store.force_unlock("n", token).map(drop));
        closed(store.get_lock("n", HOUR).map(drop));
        closed(store.release_lock("n", token).map(drop));
        closed(store.is_free_lock("n").map(drop));
        guard = guard.detach().expect_err("a guard of a closed store cannot be detached");
        if guard.entry().lease_remaining.is_some() {
            closed(guard.release());
        } else {
            guard.release().unwrap();
        }
        let again = World::open_at(&world.memory, Store::builder());
        assert!(again.store.is_free_lock("n").unwrap());
    }
}

#[test]
fn a_read_only_store_shows_leases_and_takes_no_locks() {
    let memory = SimStorage::new();
    let store = Store::builder().open_in_memory(&memory).unwrap();
    let token = store.get_lock("n", HOUR).unwrap().unwrap();
    store.close().unwrap();
    let store = Store::builder().read_only(true).open_in_memory(&memory).unwrap();
    takes_no_locks(&store, "read-only", token);
    let table = store.lock_table().unwrap();
    assert_eq!((table.held, table.entries[0].token), (1, Some(token)));
    assert_eq!(store.lock_holders("n").unwrap()[0].token, Some(token));
    assert!(store.lock_holders("m").unwrap().is_empty());
    store.close().unwrap();
    let store = Store::builder().open_in_memory(&memory).unwrap();
    assert!(store.release_lock("n", token).unwrap());
}

#[test]
fn a_store_on_a_shared_engine_takes_no_locks() {
    let config = SharedConfig {
        engine: Arc::new(SimStorage::new().shared_engine()),
        oracle: Arc::new(MemoryOracle::new(Arc::<SystemEnv>::default())),
        waiter: Arc::new(SleepingRowLockWaiter(Arc::new(SystemEnv::default()))),
        ttl_ms: 3000,
    };
    let store = Store::builder().open_shared(config).unwrap();
    let token = Timestamp::from_millis(1);
    takes_no_locks(&store, "shared engine", token);
    assert_refused(store.lock_holders("n"), "shared engine");
    assert_refused(store.lock_table(), "shared engine");
    let rows = store.keyspace("rows").unwrap();
    let own = Store::in_memory().unwrap();
    let guard = own.lock("n").unwrap();
    assert_refused(store.transact(|txn| txn.fence(&guard.fence())), "another store");
    store.transact(|txn| txn.put(&rows, "k", "v")).unwrap();
}

#[track_caller]
fn takes_no_locks(store: &Store, word: &str, token: Timestamp) {
    assert_refused(store.lock("n"), word);
    assert_refused(store.try_lock("n"), word);
    assert_refused(store.lock_with("n", LockOptions::shared().lease(HOUR)), word);
    let never = |_: &mut Txn| -> Result<()> { panic!("the closure is called") };
    assert_refused(store.transact_with_lock("n", LockOptions::exclusive(), TxnOptions::default(), never), word);
    assert_refused(store.attach_lock("n", token), word);
    assert_refused(store.force_unlock("n", token), word);
    assert_refused(store.get_lock("n", HOUR), word);
    assert_refused(store.release_lock("n", token), word);
    assert_refused(store.is_free_lock("n"), word);
    assert_eq!(store.lock_stats().acquired(), 0);
}
