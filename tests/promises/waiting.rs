//! Closures that wait for a `transact` of another thread.

use std::time::Duration;

use percolite::{Builder, ErrorKind, Keyspace, Result, RetryPolicy, Store, Txn, TxnOptions};

fn one_at_a_time() -> Builder {
    Store::builder().admission_limit(1)
}

fn add(txn: &mut Txn, rows: &Keyspace, key: &str) -> Result<()> {
    let before = txn.get(rows, key)?.map_or(0, |bytes| bytes[0]);
    txn.put(rows, key, [before + 1])
}

/// Makes a conflict, because the store limits admission only after a conflict.
fn conflict_once(store: &Store, rows: &Keyspace) {
    let mut first = true;
    store
        .transact(|txn| {
            if std::mem::take(&mut first) {
                let mut rival = store.begin()?;
                rival.put(rows, "contended", "")?;
                rival.commit()?;
            }
            txn.put(rows, "contended", "")
        })
        .unwrap();
}

#[test]
fn a_closure_may_wait_for_a_transact_of_another_thread() {
    let store = one_at_a_time().in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    conflict_once(&store, &rows);
    store
        .transact(|outer| {
            let inner = || store.transact(|inner| add(inner, &rows, "inner"));
            std::thread::scope(|scope| scope.spawn(inner).join().unwrap())?;
            add(outer, &rows, "outer")
        })
        .unwrap();
    let snapshot = store.snapshot().unwrap();
    assert_eq!(snapshot.multi_get(&rows, ["inner", "outer"]).unwrap(), [Some([1].into()), Some([1].into())]);
    assert_eq!(store.stats().admission_timeouts, 1);
}

#[test]
fn a_closure_may_wait_for_a_keyspace_of_another_thread() {
    let store = one_at_a_time().in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    conflict_once(&store, &rows);
    let made = store.transact(|txn| {
        txn.put(&rows, "k", "v")?;
        std::thread::scope(|scope| scope.spawn(|| store.keyspace("new")).join().unwrap())
    });
    assert_eq!(made.unwrap().name(), "new");
}

#[test]
fn as_many_waiting_closures_as_permits_all_commit() {
    const CLOSURES: u8 = 4;
    let store = Store::builder().admission_limit(CLOSURES.into()).in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    conflict_once(&store, &rows);
    let together = std::sync::Barrier::new(CLOSURES.into());
    std::thread::scope(|scope| {
        for number in 0..CLOSURES {
            let (store, rows, together) = (&store, &rows, &together);
            scope.spawn(move || {
                let mut first = true;
                let work = |outer: &mut Txn| {
                    if std::mem::take(&mut first) {
                        together.wait();
                    }
                    let inner = || store.transact(|inner| add(inner, rows, "inner"));
                    std::thread::scope(|scope| scope.spawn(inner).join().unwrap())?;
                    outer.put(rows, [number], "outer")
                };
                store.transact(work).unwrap();
            });
        }
    });
    let inner = store.snapshot().unwrap().get(&rows, "inner").unwrap();
    assert_eq!(inner, Some([CLOSURES].into()));
}

#[test]
fn waiting_for_admission_counts_towards_the_retry_timeout() {
    let store = one_at_a_time().in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    conflict_once(&store, &rows);
    let retry = Some(RetryPolicy::default().max_attempts(u32::MAX).timeout(Duration::from_millis(100)));
    let mut attempts = 0;
    store
        .transact(|outer| {
            outer.put(&rows, "outer", "")?;
            let rival = || {
                store.transact_with(TxnOptions::default().retry_policy(retry), |txn| {
                    attempts += 1;
                    add(txn, &rows, "k")?;
                    // Another transaction always commits first.
                    let mut first = store.begin()?;
                    add(&mut first, &rows, "k")?;
                    first.commit()
                })
            };
            let gave_up = std::thread::scope(|scope| scope.spawn(rival).join().unwrap()).unwrap_err();
            assert!(matches!(gave_up.kind(), ErrorKind::RetriesExhausted { attempts: 1, .. }), "{gave_up}");
            Ok::<_, percolite::Error>(())
        })
        .unwrap();
    assert_eq!(attempts, 1);
}

#[test]
fn without_conflicts_no_call_waits_for_admission() {
    let store = one_at_a_time().in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    let nested = |key: &str| {
        store
            .transact(|outer| {
                outer.put(&rows, key, "")?;
                std::thread::scope(|scope| scope.spawn(|| store.transact(|txn| txn.put(&rows, "inner", ""))).join())
                    .unwrap()
            })
            .unwrap();
        store.latencies().admission_wait.count()
    };
    assert_eq!(nested("at first"), 0);
    conflict_once(&store, &rows);
    let waits = store.latencies().admission_wait.count();
    assert_eq!(nested("after a conflict"), waits + 1);
    for _ in 0..16 {
        store.transact(|txn| txn.put(&rows, "calm", "")).unwrap();
    }
    assert_eq!(nested("after commits without one"), waits + 1);
}

#[test]
fn a_nested_call_waits_for_a_lock_before_it_retries() {
    let limits = RetryPolicy::default().max_attempts(20);
    let store = Store::builder().large_transaction_bytes(1).retry_policy(limits).in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    let mut large = store.begin().unwrap();
    large.put(&rows, "k", "large").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            large.commit().unwrap();
        });
        // `large` has a lock on the row until it commits, 50 ms later. If the inner call did not
        // wait for that lock, its twenty attempts would end within a millisecond.
        store.transact(|_| store.transact(|inner| inner.put(&rows, "k", "inner"))).unwrap();
    });
    assert_eq!(store.snapshot().unwrap().get(&rows, "k").unwrap(), Some("inner".into()));
}

#[test]
fn a_nested_call_does_not_wait_long_for_its_caller() {
    // The outer transaction has a lock on the row during the inner call. If each of the thousand
    // inner attempts waited the usual 0.1 s for that lock, they would take 100 s.
    let limits = RetryPolicy::default().max_attempts(1000).timeout(Duration::from_secs(3600));
    let store = Store::builder().large_transaction_bytes(1).retry_policy(limits).in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    let began = std::time::Instant::now();
    store
        .transact(|outer| {
            outer.put(&rows, "k", "outer")?;
            let error = store.transact(|inner| inner.put(&rows, "k", "inner")).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::RetriesExhausted { attempts: 1000, .. }), "{error}");
            Ok::<_, percolite::Error>(())
        })
        .unwrap();
    assert!(began.elapsed() < Duration::from_secs(50), "{:?}", began.elapsed());
    assert_eq!(store.snapshot().unwrap().get(&rows, "k").unwrap(), Some("outer".into()));
}
