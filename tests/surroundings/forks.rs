//! `fork` while a store is open.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use percolite::{
    Durability, Error, ErrorKind, Keyspace, LockOptions, LockWaitPolicy, OnExisting, Store, StoreStatus, Timestamp,
    TxnOptions,
};

use crate::rows::{append, assert_rows, create, key, put, small};
use crate::unix::{self, fork};
use crate::{Scenario, helper, scenario};

pub const SCENARIOS: &[Scenario] = &[
    scenario("fork_then_commits_in_both_processes", commits_in_both),
    scenario("fork_every_call_in_the_child_is_an_error", every_call),
    scenario("fork_and_drop_of_every_handle", every_drop),
    scenario("fork_while_other_threads_commit", busy),
    scenario("fork_inside_of_a_transaction", inside_transact),
    scenario("fork_and_the_parent_reopens_while_the_child_lives", reopen_beside_child),
    scenario("fork_and_the_opener_ends_as_daemons_do", daemon),
    scenario("fork_and_the_opener_is_killed", opener_killed),
    scenario("fork_then_a_store_of_the_child", own_store_of_child),
    scenario("fork_before_any_store_is_open", fork_first),
    scenario("fork_of_a_read_only_store", read_only),
    scenario("fork_of_a_store_in_memory", in_memory),
    scenario("fork_of_a_process_that_has_only_an_engine", engine_only),
    #[cfg(target_os = "linux")]
    scenario("a_child_by_a_bare_system_call_writes_nothing", unnoticed_child),
];

pub const HELPERS: &[Scenario] = &[scenario("forks_and_waits", forks_and_waits)];

fn open(path: &Path) -> (Store, Keyspace) {
    create(path, 10);
    let store = small().open(path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    (store, rows)
}

#[track_caller]
fn assert_refused<T>(result: Result<T, Error>) {
    let Err(error) = result else { panic!("the call succeeded in the child") };
    assert!(matches!(error.kind(), ErrorKind::Closed(_)), "{error}");
    assert!(error.to_string().contains("was forked from process"), "{error}");
}

fn commits_in_both(place: &Path) {
    let path = place.join("store");
    let (store, rows) = open(&path);
    append(&store, &rows, 10..11).unwrap();
    let child = fork(|| {
        for number in 0..500 {
            assert_refused(put(&store, &rows, 1000 + number, Durability::Sync));
            assert_refused(put(&store, &rows, 1000 + number, Durability::Buffered));
        }
    });
    append(&store, &rows, 11..500).unwrap();
    child.succeeds();
    append(&store, &rows, 500..600).unwrap();
    store.close().unwrap();
    drop(rows);
    assert_rows(&path, 600);
}

/// Such a child is not noticed by reads. Nothing of what it does reaches the files.
#[cfg(target_os = "linux")]
fn unnoticed_child(place: &Path) {
    let path = place.join("store");
    let (store, rows) = open(&path);
    let guard = store.lock_with("leased", LockOptions::exclusive().lease(Duration::from_secs(60))).unwrap();
    let Some(child) = unix::clone_here() else {
        // The engine refuses, after the leader has decided, so a commit may be *undetermined*.
        let refused = |result: Result<(), Error>| {
            let text = result.unwrap_err().to_string();
            assert!(text.contains("was forked from process"), "{text}");
        };
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for number in 0..50 {
                refused(put(&store, &rows, 1000 + number, Durability::Sync));
                refused(put(&store, &rows, 1000 + number, Durability::Buffered));
            }
            refused(store.sync());
            refused(store.checkpoint(place.join("copy")));
            refused(store.lock_with("other", LockOptions::exclusive().lease(Duration::from_secs(60))).map(drop));
            refused(store.clone().close());
            drop((guard, rows, store));
        }));
        unix::end_child(if worked.is_ok() { 0 } else { 101 });
    };
    append(&store, &rows, 10..300).unwrap();
    child.succeeds();
    append(&store, &rows, 300..600).unwrap();
    guard.release().unwrap();
    store.close().unwrap();
    drop(rows);
    assert_rows(&path, 600);
}

/// Every call of a store that returns a result.
fn calls_of_store(store: &Store, rows: &Keyspace, detached: Timestamp, copy: &Path) {
    let minute = Duration::from_secs(60);
    assert_refused(store.get(rows, key(1)));
    assert_refused(store.multi_get(rows, [key(1), key(2)]));
    assert_refused(store.range(rows, ..));
    assert_refused(store.snapshot());
    assert_refused(store.begin());
    assert_refused(store.transact(|txn| txn.put(rows, key(99), "x")));
    assert_refused(store.keyspace("new"));
    assert_refused(store.keyspace_names());
    assert_refused(store.drop_keyspace("rows"));
    assert_refused(store.truncate_keyspace("rows"));
    assert_refused(store.rename_keyspace("rows", "columns"));
    assert_refused(store.sync());
    assert_refused(store.checkpoint(copy));
    assert_refused(store.verify(|_| ()));
    assert_refused(store.restore(&b""[..], OnExisting::Fail, |_| ()));
    assert_refused(store.resolve_orphan_locks());
    assert_refused(store.engine_stats());
    assert_refused(store.row_locks());
    assert_refused(store.lock("free"));
    assert_refused(store.try_lock("free"));
    assert_refused(store.get_lock("free", minute));
    assert_refused(store.release_lock("detached", detached));
    assert_refused(store.force_unlock("detached", detached));
    assert_refused(store.attach_lock("detached", detached));
    assert_refused(store.is_free_lock("free"));
    assert_refused(store.lock_table());
    assert_refused(store.lock_holders("leased"));
}

fn every_call(place: &Path) {
    let path = place.join("store");
    let (store, rows) = open(&path);
    let mut txn = store.begin().unwrap();
    txn.put(&rows, key(10), "in the parent").unwrap();
    let other = store.begin().unwrap();
    let snapshot = store.snapshot().unwrap();
    let mut scan = snapshot.range(&rows, ..);
    scan.next().unwrap().unwrap();
    let mut guard = store.lock_with("shared", LockOptions::shared()).unwrap();
    let leased = store.lock_with("leased", LockOptions::exclusive().lease(Duration::from_secs(60))).unwrap();
    let detached = store.get_lock("detached", Duration::from_secs(60)).unwrap().unwrap();
    // The child may consume the handles, because it does not come back.
    let Some(child) = unix::fork_here() else {
        let minute = Duration::from_secs(60);
        calls_of_store(&store, &rows, detached, &place.join("copy"));
        assert_refused(snapshot.dump(Vec::new(), |_| ()));
        assert_refused(leased.renew(minute));
        assert_refused(guard.upgrade(LockWaitPolicy::Timeout(minute)));
        assert_refused(guard.downgrade());
        assert!(!leased.is_held() && leased.wait_lost(minute));
        assert_refused(txn.put(&rows, key(11), "x"));
        assert_refused(txn.delete(&rows, key(11)));
        assert_refused(txn.get(&rows, key(1)));
        assert_refused(txn.get_for_update(&rows, key(1)));
        assert_refused(txn.range(&rows, ..).next().unwrap());
        assert_refused(txn.wait_reads_durable());
        assert_refused(txn.commit());
        assert_refused(other.rollback());
        assert_refused(snapshot.get(&rows, key(1)));
        assert_refused(snapshot.range(&rows, ..).next().unwrap());
        assert_refused(scan.next().unwrap());
        let leased = leased.detach().unwrap_err();
        assert_refused(leased.release());
        assert_refused(guard.release());
        assert_refused(store.close());
        assert!(!place.join("copy").exists());
        unix::end_child(0);
    };
    child.succeeds();
    // In the parent everything is as it was.
    assert!(StoreStatus::read_from(&path).unwrap().is_none());
    assert_eq!(scan.filter(|row| row.is_ok()).count(), 9);
    assert!(guard.is_held() && leased.is_held());
    assert!(store.release_lock("detached", detached).unwrap());
    leased.release().unwrap();
    txn.commit().unwrap();
    store.close().unwrap();
    drop((rows, snapshot, guard, other));
    assert_rows(&path, 11);
}

/// Handles of every kind, dropped in the child.
fn every_drop(place: &Path) {
    let path = place.join("store");
    create(&path, 10);
    let store = small().status_file_interval(Duration::from_millis(50)).open(&path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    while StoreStatus::read_from(&path).unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut txn = store.begin().unwrap();
    txn.put(&rows, key(10), "x").unwrap();
    let snapshot = store.snapshot().unwrap();
    let mut scan = snapshot.range(&rows, ..);
    scan.next().unwrap().unwrap();
    let guard = store.lock_with("leased", LockOptions::exclusive().lease(Duration::from_secs(60))).unwrap();
    let clone = store.clone();
    let mut handles = Some((txn, scan, snapshot, guard, rows, clone, store));
    fork(|| drop(handles.take())).succeeds();
    let (txn, scan, snapshot, guard, rows, clone, store) = handles.take().unwrap();
    assert!(StoreStatus::read_from(&path).unwrap().is_some(), "the child removed the status file");
    let error = small().open(&path).map(drop).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::AlreadyOpen(_)), "the child unlocked the store: {error}");
    assert!(guard.is_held());
    txn.commit().unwrap();
    append(&store, &rows, 11..3000).unwrap();
    guard.release().unwrap();
    drop((scan, snapshot, clone));
    store.close().unwrap();
    drop(rows);
    assert_rows(&path, 3000);
}

/// Other threads commit, read, scan and lock all the time, so a fork finds mutexes locked.
fn busy(place: &Path) {
    let path = place.join("store");
    let (store, rows) = open(&path);
    let (stop, next) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(10)));
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let (store, rows, stop, next) = (store.clone(), rows.clone(), Arc::clone(&stop), Arc::clone(&next));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if thread == 0 {
                        append(&store, &rows, next.fetch_add(1, Ordering::Relaxed)..next.load(Ordering::Relaxed))
                            .unwrap();
                        continue;
                    }
                    let buffered = TxnOptions::default().durability(Durability::Buffered);
                    store.transact_with(buffered, |txn| txn.put(&rows, key(0), vec![b'x'; 1000])).unwrap();
                    let lock = store.lock("busy").unwrap();
                    let snapshot = store.snapshot().unwrap();
                    assert!(snapshot.range(&rows, ..).take(100).all(|row| row.is_ok()));
                    drop(lock);
                }
            })
        })
        .collect();
    for _ in 0..100 {
        let mut txn = store.begin().unwrap();
        txn.put(&rows, key(5), "x").unwrap();
        let snapshot = store.snapshot().unwrap();
        let mut scan = snapshot.range(&rows, ..);
        scan.next().unwrap().unwrap();
        let mut handles = Some((txn, scan, snapshot, store.clone()));
        let child = fork(|| {
            let (txn, mut scan, snapshot, store) = handles.take().unwrap();
            assert_refused(txn.commit());
            assert_refused(store.begin());
            assert_refused(store.lock("busy"));
            assert_refused(store.sync());
            assert_refused(snapshot.get(&rows, key(1)));
            drop((scan.by_ref(), snapshot));
            assert_refused(store.close());
        });
        child.succeeds();
        drop(handles);
    }
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    store.close().unwrap();
    drop(rows);
    assert_rows(&path, next.load(Ordering::Relaxed));
}

fn inside_transact(place: &Path) {
    let path = place.join("store");
    let (store, rows) = open(&path);
    store
        .transact(|txn| {
            fork(|| {
                assert_refused(txn.get(&rows, key(1)));
                assert_refused(txn.put(&rows, key(50), "x"));
            })
            .succeeds();
            txn.put(&rows, key(10), "x")
        })
        .unwrap();
    // The child returns from the closure.
    let mut child = None;
    let own = std::process::id();
    let outcome = store.transact(|txn| {
        txn.put(&rows, key(11), "x")?;
        child = unix::fork_here();
        Ok::<_, Error>(())
    });
    if std::process::id() != own {
        assert_refused(outcome);
        drop((store, rows));
        unix::end_child(0);
    }
    outcome.unwrap();
    child.unwrap().succeeds();
    store.close().unwrap();
    drop(rows);
    assert_rows(&path, 12);
}

fn reopen_beside_child(place: &Path) {
    let path = place.join("store");
    let (store, rows) = open(&path);
    let child = fork(|| std::thread::sleep(Duration::from_secs(30)));
    append(&store, &rows, 10..20).unwrap();
    drop(rows);
    store.close().unwrap();
    for number in 0..3 {
        let store = small().open(&path).unwrap();
        let rows = store.keyspace("rows").unwrap();
        append(&store, &rows, 20 + number..21 + number).unwrap();
        store.close().unwrap();
    }
    assert_rows(&path, 23);
    child.kill();
}

/// The child of a child stays, as a daemon does; the opener goes on.
fn daemon(place: &Path) {
    let path = place.join("store");
    let (store, rows) = open(&path);
    fork(|| {
        fork(|| {
            assert_refused(put(&store, &rows, 99, Durability::Sync));
            assert_refused(store.sync());
        })
        .succeeds();
        assert_refused(put(&store, &rows, 98, Durability::Sync));
    })
    .succeeds();
    store.close().unwrap();
    drop(rows);
    assert_rows(&path, 10);
}

fn forks_and_waits(place: &Path) {
    let path = place.join("store");
    let store = small().open(&path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    append(&store, &rows, 10..20).unwrap();
    let child = fork(|| {
        println!("ready");
        std::thread::sleep(Duration::from_secs(30));
    });
    child.succeeds();
}

/// The child keeps the store locked: an error, until the child ends.
fn opener_killed(place: &Path) {
    use std::io::BufRead as _;
    let path = place.join("store");
    create(&path, 10);
    let mut opener = helper("forks_and_waits", place).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufReader::new(opener.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", opener.id())).unwrap();
    opener.kill().unwrap();
    opener.wait().unwrap();
    let error = small().open(&path).map(drop).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::AlreadyOpen(_)), "{error}");
    unix::kill(children.trim().parse().unwrap());
    while small().open(&path).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_rows(&path, 20);
}

/// RocksDB's threads do not exist in the child.
fn own_store_of_child(place: &Path) {
    let path = place.join("store");
    let (store, rows) = open(&path);
    fork(|| {
        for builder in [small(), small().read_only(true)] {
            let error = builder.open(place.join("other")).map(drop).unwrap_err();
            assert!(error.to_string().contains("forked"), "{error}");
        }
        assert!(!place.join("other").exists());
    })
    .succeeds();
    store.close().unwrap();
    drop(rows);
    fork(|| assert!(small().open(&path).map(drop).unwrap_err().to_string().contains("forked"))).succeeds();
    assert_rows(&path, 10);
}

fn fork_first(place: &Path) {
    let path = place.join("store");
    fork(|| {
        create(&path, 3000);
        assert_rows(&path, 3000);
    })
    .succeeds();
    assert_rows(&path, 3000);
}

fn read_only(place: &Path) {
    let path = place.join("store");
    create(&path, 3000);
    let store = small().read_only(true).open(&path).unwrap();
    let rows = store.keyspace("rows").unwrap();
    let mut handles = Some((store, rows));
    fork(|| {
        let (store, rows) = handles.take().unwrap();
        assert_refused(store.get(&rows, key(1)));
        assert_refused(store.begin());
        assert_refused(store.close());
    })
    .succeeds();
    let (store, rows) = handles.unwrap();
    assert_eq!(store.range(&rows, ..).unwrap().filter(|row| row.is_ok()).count(), 3000);
}

fn in_memory(_: &Path) {
    let store = Store::in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    append(&store, &rows, 0..10).unwrap();
    let mut handles = Some((store, rows));
    fork(|| {
        let (store, rows) = handles.take().unwrap();
        assert_refused(put(&store, &rows, 10, Durability::Sync));
        assert_refused(store.close());
    })
    .succeeds();
    let (store, rows) = handles.unwrap();
    append(&store, &rows, 10..20).unwrap();
    assert_eq!(store.range(&rows, ..).unwrap().count(), 20);
    store.close().unwrap();
}

/// An engine without a store: dropping it waits for no thread and unlocks nothing.
fn engine_only(place: &Path) {
    let path = place.join("store");
    create(&path, 10);
    let mut engine = Some(small().durable_engine(&path).unwrap());
    fork(|| {
        let engine = engine.take().unwrap();
        assert!(engine.sync().unwrap_err().to_string().contains("forked"));
        assert!(engine.checkpoint(&place.join("copy")).unwrap_err().to_string().contains("forked"));
        drop(engine);
    })
    .succeeds();
    let error = small().open(&path).map(drop).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::AlreadyOpen(_)), "{error}");
    drop(engine);
    assert_rows(&path, 10);
}
