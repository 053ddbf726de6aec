//! Closures that panic, that are nested, or that always conflict.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use percolite::{ConflictReason, Error, ErrorKind, Keyspace, RetryPolicy, Store, TxnOptions};

fn limited(attempts: u32, time: Duration) -> TxnOptions {
    TxnOptions::default().retry_policy(RetryPolicy::default().max_attempts(attempts).timeout(time))
}

const LONG: Duration = Duration::from_secs(3600);

/// Commits a row that the calling closure is about to write.
fn conflicting_commit(store: &Store, rows: &Keyspace) {
    let mut txn = store.begin().unwrap();
    txn.put(rows, "k", "rival").unwrap();
    txn.commit().unwrap();
}

#[test]
fn a_panic_in_the_closure_releases_everything() {
    // There is only one permit. If the panic does not release it, the next attempt waits until its
    // admission timeout.
    let store = Store::builder().admission_limit(1).large_transaction_bytes(20_000).in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    for large in [false, true] {
        for attempts_before in [0, 2] {
            let mut attempt = 0;
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                store.transact(|txn| {
                    let length = if large { 30_000 } else { 3 };
                    (0..10_u8).try_for_each(|key| txn.put(&rows, [key], vec![7; length]))?;
                    txn.get_for_update(&rows, "for update")?;
                    txn.put(&rows, "k", "v")?;
                    // Only an attempt after a conflict can have places in row queues.
                    if attempt == attempts_before {
                        panic!("the closure's own");
                    }
                    attempt += 1;
                    conflicting_commit(&store, &rows);
                    Ok::<(), Error>(())
                })
            }));
            assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"the closure's own"));
            // Later writes succeed immediately, on this thread and on another one. After the panic
            // this thread must not count as inside a closure any more.
            let write = || {
                let mut txn = store.begin().unwrap();
                txn.put(&rows, "for update", "v").unwrap();
                txn.put(&rows, "k", "v").unwrap();
                txn.commit().map(drop)
            };
            if large {
                store.resolve_orphan_locks().unwrap();
            }
            write().unwrap();
            std::thread::scope(|scope| scope.spawn(|| store.transact(|txn| txn.put(&rows, "k", "w"))).join().unwrap())
                .unwrap();
            let keys: Vec<_> =
                store.snapshot().unwrap().range(&rows, ..).map(|row| row.unwrap().key().to_vec()).collect();
            assert_eq!(keys, [&b"for update"[..], b"k"], "large: {large}");
            assert_eq!(store.stats().admission_timeouts, 0, "a permit was not released");
            assert_eq!(store.row_locks().unwrap().count(), 0);
        }
    }
    assert!(store.verify(|_| ()).unwrap().is_ok());
}

#[test]
fn nested_transactions_are_two() {
    let store = Store::builder().admission_limit(1).in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    // The inner transactions commit independently, and the outer one does not see their writes.
    let failed = store.transact(|txn| {
        txn.put(&rows, "outer", "v")?;
        store.transact(|inner| {
            assert_eq!(inner.get(&rows, "outer")?, None);
            store.transact(|innermost| innermost.put(&rows, "innermost", "v"))?;
            inner.put(&rows, "inner", "v")
        })?;
        assert_eq!(txn.get(&rows, "inner")?, None);
        Err::<(), Error>(ErrorKind::InvalidArgument("the outer one is rolled back".into()).into())
    });
    assert_eq!(failed.unwrap_err().to_string(), "the outer one is rolled back");
    let keys: Vec<_> = store.snapshot().unwrap().range(&rows, ..).map(|row| row.unwrap().key().to_vec()).collect();
    assert_eq!(keys, [&b"inner"[..], b"innermost"]);

    let error = store
        .transact_with(limited(5, LONG), |txn| {
            txn.put(&rows, "both", "outer")?;
            store.transact(|inner| inner.put(&rows, "both", "inner"))
        })
        .unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::RetriesExhausted { attempts: 5, .. }), "{error}");
    assert_eq!(store.snapshot().unwrap().get(&rows, "both").unwrap(), Some(b"inner".into()));
}

#[test]
fn endless_conflicts_exhaust_the_retries() {
    let store = Store::in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    let mut attempts = 0;
    let error = store.transact_with(limited(7, LONG), |txn| {
        attempts += 1;
        txn.put(&rows, "k", "loser")?;
        conflicting_commit(&store, &rows);
        Ok::<(), Error>(())
    });
    let error = error.unwrap_err();
    let ErrorKind::RetriesExhausted { attempts: 7, conflict } = error.kind() else { panic!("{error}") };
    assert_eq!((attempts, conflict.row.user_key()), (7, &b"k"[..]));
    assert!(matches!(conflict.reason, ConflictReason::NewerVersion(_)) && !error.is_retryable(), "{error}");
    assert!(error.to_string().starts_with("gave up after 7 attempts; last conflict: row "), "{error}");

    let error = store.transact_with(limited(u32::MAX, Duration::from_millis(50)), |txn| {
        txn.put(&rows, "k", "loser")?;
        conflicting_commit(&store, &rows);
        Ok::<(), Error>(())
    });
    let error = error.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::RetriesExhausted { .. }), "{error}");
    assert_eq!(store.snapshot().unwrap().get(&rows, "k").unwrap(), Some(b"rival".into()));
    // The failed calls left nothing that blocks another transaction.
    store.transact_with(limited(1, LONG), |txn| txn.put(&rows, "k", "winner")).unwrap();
}
