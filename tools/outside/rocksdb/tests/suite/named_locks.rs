//! Locks that a client waits for: row locks of pessimistic transactions in `RocksDB`, named locks
//! here.

use std::thread;
use std::time::Duration;

use percolite::{Error, ErrorKind, LockOptions, LockWaitPolicy, Result};

use crate::support::{Db, Rows, small_memory};

const SHORT: LockWaitPolicy = LockWaitPolicy::Timeout(Duration::from_millis(1));

fn db() -> Db {
    Db::with(small_memory())
}

#[track_caller]
fn expect_timeout<T: std::fmt::Debug>(result: Result<T>) {
    match result.as_ref().map_err(Error::kind) {
        Err(ErrorKind::LockNotAvailable(_)) => {}
        other => panic!("a refused lock was expected, and there is {other:?}"),
    }
}

/// `WaitingTxn`: a waiter is refused after its time, and the error names the holder.
#[test]
fn waiter_is_refused_after_its_time_with_the_name_of_the_holder() {
    let db = db();
    let holder = db.store.lock("foo").unwrap();
    let error = db.store.lock_with("foo", LockOptions::exclusive().wait(SHORT)).unwrap_err();
    let ErrorKind::LockNotAvailable(refused) = error.kind() else { panic!("{error}") };
    assert_eq!(refused.holders.len(), 1);
    assert_eq!(refused.holders[0].token, Some(holder.token()));
    let table = db.store.lock_table().unwrap();
    assert_eq!((table.held, table.waiting), (1, 0));
    drop(db.store.lock_with("foo2", LockOptions::exclusive().wait(SHORT)).unwrap());
}

/// `SharedLocks`: shared grants exclude an exclusive one, until the last of them ends.
#[test]
fn shared_grants_exclude_an_exclusive_one() {
    let db = db();
    let shared = || db.store.lock_with("foo", LockOptions::shared().wait(SHORT));
    let exclusive = || db.store.lock_with("foo", LockOptions::exclusive().wait(SHORT));
    let (first, second) = (shared().unwrap(), shared().unwrap());
    expect_timeout(exclusive());
    first.release().unwrap();
    expect_timeout(exclusive());
    second.release().unwrap();
    let alone = exclusive().unwrap();
    expect_timeout(shared());
    alone.release().unwrap();
    drop(shared().unwrap());
}

/// `SharedLocks`: an upgrade waits for the other shared grants, and a downgrade admits them.
#[test]
fn grants_are_upgraded_and_downgraded() {
    let db = db();
    let shared = || db.store.lock_with("foo", LockOptions::shared().wait(SHORT));
    let (mut first, second) = (shared().unwrap(), shared().unwrap());
    expect_timeout(first.upgrade(SHORT));
    second.release().unwrap();
    first.upgrade(SHORT).unwrap();
    expect_timeout(shared());
    first.downgrade().unwrap();
    drop(shared().unwrap());
}

/// `DeadlockCycleShared`: of two shared holders that both upgrade one is refused at once.
#[test]
fn second_upgrade_is_a_deadlock_and_refused_at_once() {
    let db = db();
    let long = LockWaitPolicy::Timeout(Duration::from_secs(60));
    let shared = || db.store.lock_with("foo", LockOptions::shared()).unwrap();
    let (mut first, mut second) = (shared(), shared());
    thread::scope(|scope| {
        let waiting = scope.spawn(move || first.upgrade(long));
        while db.store.lock_holders("foo").unwrap().iter().all(|entry| entry.state != percolite::LockState::Converting)
        {
            thread::sleep(Duration::from_millis(1));
        }
        let error = second.upgrade(long).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Deadlock(_)), "{error}");
        second.release().unwrap();
        waiting.join().unwrap().unwrap();
    });
}

/// `TimeoutTest`: a holder that expires makes room for the waiter, and commits nothing any more.
#[test]
fn expired_lease_makes_room_and_its_fence_refuses() {
    let db = db();
    let lease_of = |millis| LockOptions::exclusive().lease(Duration::from_millis(millis)).auto_renew(false);
    let first = db.store.lock_with("aaa", lease_of(100)).unwrap();
    let fence = first.fence();
    let second = db.store.lock_with("aaa", LockOptions::exclusive()).unwrap();
    assert!(second.token() > fence.token());
    let mut late = db.begin();
    let error = late.fence(&fence).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::LockLost(_)), "{error}");
    let mut fenced_in_time = db.begin();
    let third = db.store.lock_with("bbb", lease_of(100)).unwrap();
    fenced_in_time.fence(&third.fence()).unwrap();
    fenced_in_time.set(&db, "aaa", "late");
    drop(db.store.lock("bbb").unwrap());
    let error = fenced_in_time.commit().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::LockLost(_)), "{error}");
    db.expect(&[("aaa", None)]);
    let mut txn = db.begin();
    txn.fence(&second.fence()).unwrap();
    txn.set(&db, "aaa", "xxx");
    txn.commit().unwrap();
    db.expect(&[("aaa", Some("xxx"))]);
}

/// `TimeoutTest`, last part: a waiter whose time is shorter than the lease is refused, and succeeds
/// after the release.
#[test]
fn refused_waiter_succeeds_after_the_release() {
    let db = db();
    let held = db.store.lock("asdf").unwrap();
    expect_timeout(db.store.lock_with("asdf", LockOptions::exclusive().wait(SHORT)));
    held.release().unwrap();
    drop(db.store.lock_with("asdf", LockOptions::exclusive().wait(SHORT)).unwrap());
    assert!(db.store.is_free_lock("asdf").unwrap());
}

/// `DeadlockCycle`, `SelfDeadlockBug`: here waits of different names are not searched for cycles;
/// each waiter has its time, after which all of the cycle is free again.
#[test]
fn cycle_of_waiters_ends_by_time() {
    let db = db();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|worker| {
                let store = &db.store;
                scope.spawn(move || {
                    let own = store.lock(&*format!("{worker}")).unwrap();
                    let next = format!("{}", (worker + 1) % 3);
                    let wait = LockOptions::exclusive().wait(LockWaitPolicy::Timeout(Duration::from_millis(200)));
                    let refused = store.lock_with(&*next, wait).is_err();
                    drop(own);
                    refused
                })
            })
            .collect();
        let refused = workers.into_iter().map(|worker| worker.join().unwrap()).filter(|refused| *refused).count();
        println!("{refused} of 3 waiters were refused");
    });
    let table = db.store.lock_table().unwrap();
    assert_eq!((table.held, table.waiting), (0, 0));
}
