//! Transactions that lose their lock before their end.

use std::time::Duration;

use percolite::engine::sim::SimStorage;
#[cfg_attr(not(feature = "tokio"), allow(unused_imports, reason = "for cases that need it"))]
use percolite::{
    Commit, CommitProtocol, ErrorKind, Fence, LockGuard, LockLostReason, LockOptions, Result, Store, Txn, TxnOptions,
};

#[cfg_attr(not(feature = "tokio"), allow(unused_imports, reason = "for cases that need it"))]
use crate::hooked_store::{TIMEOUT, World, assert_lost, eventually, some, spawn};

#[test]
fn a_reader_that_lost_its_lock_fails_at_its_end() {
    let world = World::open();
    world.put("k", "before").unwrap();
    let read = |end: &dyn Fn(LockGuard)| {
        let guard = world.store.lock("n").unwrap();
        let (token, mut txn) = (guard.token(), world.store.begin().unwrap());
        txn.fence(&guard.fence()).unwrap();
        assert!(txn.get(&world.rows, "k").unwrap().is_some());
        end(guard);
        (txn.commit(), token)
    };
    let (answer, token) = read(&drop);
    assert_lost(answer, token, LockLostReason::Released);
    let (answer, token) = read(&|guard| assert!(world.store.force_unlock("n", guard.token()).unwrap()));
    assert_lost(answer, token, LockLostReason::Forced);
    let held = std::cell::RefCell::new(None);
    read(&|guard| drop(held.replace(Some(guard)))).0.expect("its lock is held");
    assert_eq!((world.get("k"), world.row_locks()), (some("before"), 0));
}

#[test]
fn a_two_phase_commit_that_loses_its_lock_leaves_nothing() {
    let world = World::open();
    let guard = world.store.lock("n").unwrap();
    let gate = world.stop_prewrite("a");
    let (World { store, rows, .. }, fence) = (world.clone(), guard.fence());
    let commit = spawn(move || -> Result<Commit> {
        let options = TxnOptions::default().commit_protocol(CommitProtocol::TwoPhase);
        let mut txn = store.begin_with(options)?;
        txn.fence(&fence)?;
        ["a", "b", "c"].iter().try_for_each(|key| txn.put(&rows, key, "written"))?;
        txn.commit()
    });
    // The prewrite is decided, the commit point is not.
    gate.wait_for_arrival();
    let token = guard.token();
    drop(guard);
    gate.open();
    assert_lost(commit.join(), token, LockLostReason::Released);
    assert_eq!(["a", "b", "c"].map(|key| world.get(key)), [None, None, None]);
    assert_eq!(world.row_locks(), 0);
}

#[test]
fn a_large_transaction_that_loses_its_lock_leaves_nothing() {
    let world = World::open_at(&SimStorage::new(), Store::builder().large_transaction_bytes(1));
    let guard = world.store.lock("n").unwrap();
    let mut txn = world.store.begin().unwrap();
    txn.fence(&guard.fence()).unwrap();
    for number in 0..100 {
        txn.put(&world.rows, format!("row {number}"), "written").unwrap();
    }
    assert!(world.row_locks() > 0, "no row is locked in the store");
    let token = guard.token();
    drop(guard);
    assert_lost(txn.commit(), token, LockLostReason::Released);
    assert!((0..100).all(|number| world.get(&format!("row {number}")).is_none()));
    eventually("no row is locked", || world.row_locks() == 0);
}

#[test]
fn a_queued_commit_that_loses_its_lock_is_not_applied() {
    let world = World::open();
    let guard = world.store.lock("n").unwrap();
    let gate = world.stop_commit("first");
    let put = |key: &'static str, fence: Option<Fence>| {
        let World { store, rows, .. } = world.clone();
        spawn(move || -> Result<Commit> {
            let mut txn = store.begin()?;
            fence.iter().try_for_each(|fence| txn.fence(fence))?;
            txn.put(&rows, key, "written")?;
            txn.commit()
        })
    };
    let first = put("first", None);
    gate.wait_for_arrival();
    let late = put("late", Some(guard.fence()));
    std::thread::sleep(Duration::from_millis(100));
    let token = guard.token();
    drop(guard);
    gate.open();
    first.join().unwrap();
    assert_lost(late.join(), token, LockLostReason::Released);
    assert_eq!((world.get("late"), world.row_locks()), (None, 0));
}

#[cfg(feature = "tokio")]
#[test]
fn async_commit_under_a_lost_lock_leaves_nothing() {
    use percolite::AsyncStore;

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let world = World::open();
    let store = AsyncStore::from(world.store.clone());
    let options = TxnOptions::default().commit_protocol(CommitProtocol::TwoPhase);
    let joined = |task: tokio::task::JoinHandle<Result<()>>| {
        runtime.block_on(async { tokio::time::timeout(TIMEOUT, task).await.unwrap().unwrap() })
    };

    let guard = runtime.block_on(store.lock("n")).unwrap();
    let gate = world.stop_prewrite("a");
    let (with, rows, fence) = (store.clone(), world.rows.clone(), guard.fence());
    let task = runtime.spawn(async move {
        let work = move |txn: &mut Txn| {
            txn.fence(&fence)?;
            txn.put(&rows, "a", "")
        };
        with.transact_with::<_, percolite::Error, _>(options, work).await
    });
    gate.wait_for_arrival();
    let token = guard.token();
    runtime.block_on(guard.release()).unwrap();
    gate.open();
    assert_lost(joined(task), token, LockLostReason::Released);

    let gate = world.stop_prewrite("b");
    let (with, rows) = (store.clone(), world.rows.clone());
    let task = runtime.spawn(async move {
        let work = move |txn: &mut Txn| txn.put(&rows, "b", "");
        with.transact_with_lock::<_, percolite::Error, _>("n", LockOptions::exclusive(), options, work).await
    });
    gate.wait_for_arrival();
    let token = world.token_of("n");
    assert!(world.store.force_unlock("n", token).unwrap());
    gate.open();
    assert_lost(joined(task), token, LockLostReason::Forced);
    assert_eq!((world.get("a"), world.get("b"), world.row_locks()), (None, None, 0));
}

#[test]
fn losing_one_of_several_fences_refuses_the_commit() {
    let world = World::open();
    for lost in 0..3 {
        let guards = ["a", "b", "c"].map(|name| world.store.lock(name).unwrap());
        let token = guards[lost].token();
        let mut txn = world.store.begin().unwrap();
        guards.iter().try_for_each(|guard| txn.fence(&guard.fence())).unwrap();
        txn.put(&world.rows, "k", "written").unwrap();
        assert!(world.store.force_unlock(["a", "b", "c"][lost], token).unwrap());
        let error = txn.commit().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::LockLost(loss) if loss.token == token), "{error}");
        assert_eq!(world.get("k"), None);
    }
    let guards = ["a", "b", "c"].map(|name| world.store.lock(name).unwrap());
    let mut txn = world.store.begin().unwrap();
    guards.iter().try_for_each(|guard| txn.fence(&guard.fence())).unwrap();
    txn.put(&world.rows, "k", "written").unwrap();
    txn.commit().unwrap();
    assert_eq!(world.get("k"), some("written"));
}
