//! Locks by name, from outside: the letters of `docs/locks.md`.

use std::time::Duration;

use percolite::{ErrorKind, LockOptions, Store, TxnOptions, Wait};

#[test]
fn smoke() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let store = Store::open(&path).unwrap();
    let ks = store.keyspace("k").unwrap();
    let guard = store.lock("a").unwrap();
    assert!(store.try_lock("a").unwrap().is_none());
    let held = store.lock_with("a", LockOptions::shared().wait(Wait::AtMost(Duration::from_millis(50)))).unwrap_err();
    println!("{held}");
    let fence = guard.fence();
    store
        .transact(|txn| {
            txn.fence(&fence)?;
            txn.put(&ks, "x", "y")
        })
        .unwrap();
    let first = guard.token();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let second = store.lock("a").unwrap();
            assert!(second.token() > first);
        });
        std::thread::sleep(Duration::from_millis(100));
        println!("{:#?}", store.lock_table().unwrap());
        drop(guard);
    });
    let lost = store.transact(|txn| {
        txn.fence(&fence)?;
        txn.put(&ks, "x", "z")
    });
    assert!(matches!(lost.unwrap_err().kind(), ErrorKind::LockLost(_)));
    store.lock_transact("a", LockOptions::exclusive(), TxnOptions::default(), |txn| txn.put(&ks, "x", "w")).unwrap();
    let leased = store.lock_with("job", LockOptions::exclusive().lease(Duration::from_millis(400))).unwrap();
    std::thread::sleep(Duration::from_millis(1000));
    assert!(leased.is_held());
    let token = store.get_lock("cron", Duration::from_secs(60)).unwrap().unwrap();
    println!("{:#?}\n{:?}", store.lock_stats(), store.lock_table().unwrap().entries);
    store.close().unwrap();
    assert!(!leased.is_held());
    let store = Store::open(&path).unwrap();
    println!("{:?}", store.lock_table().unwrap().entries);
    assert!(store.try_lock("job").unwrap().is_some());
    assert!(store.get_lock("cron", Duration::from_secs(60)).unwrap().is_none());
    let resumed = store.resume_lock("cron", token).unwrap();
    resumed.release().unwrap();
    assert!(store.is_free_lock("cron").unwrap());
}
