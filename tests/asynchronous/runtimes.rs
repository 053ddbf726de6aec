//! Panics, ended and missing runtimes, closing, and the number of blocking threads.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use percolite::{AsyncStore, Durability, Error, ErrorKind, RetryPolicy, Store, Txn, TxnOptions};
use tokio::runtime::Builder;

use crate::common::{Gate, assert_no_permit_is_lost, both_runtimes, open, poll_once};

#[test]
fn a_closure_panic_reaches_the_task_and_leaves_nothing() {
    for runtime in both_runtimes(2) {
        let (store, rows) = open(1);
        let (panicking, put) = (store.clone(), rows.clone());
        let outcome = runtime.block_on(runtime.spawn(async move {
            let work = move |txn: &mut Txn| -> Result<(), Error> {
                txn.put(&put, "k", "v")?;
                panic!("on purpose")
            };
            panicking.transact(work).await
        }));
        let panic = outcome.unwrap_err().into_panic();
        assert_eq!(*panic.downcast::<&str>().unwrap(), "on purpose");
        assert_eq!(store.store().snapshot().unwrap().get(&rows, "k").unwrap(), None);
        assert_no_permit_is_lost(store.store(), &rows, 1);
        let put = rows.clone();
        runtime.block_on(store.transact(move |txn| txn.put(&put, "k", "v"))).unwrap();
    }
}

#[test]
fn a_runtime_shutdown_leaves_no_partial_transaction() {
    for round in 0..20_u64 {
        for runtime in both_runtimes(2) {
            let (store, rows) = open(2);
            for task in 0..50_u64 {
                let (store, rows) = (store.clone(), rows.clone());
                runtime.spawn(async move {
                    let work = move |txn: &mut Txn| {
                        txn.put(&rows, [b"a", &task.to_be_bytes()[..]].concat(), "")?;
                        txn.put(&rows, [b"b", &task.to_be_bytes()[..]].concat(), "")
                    };
                    store.transact(work).await
                });
            }
            runtime.block_on(async { tokio::time::sleep(Duration::from_micros(round * 50)).await });
            runtime.shutdown_timeout(Duration::from_secs(600));
            let snapshot = store.store().snapshot().unwrap();
            let (a, b) = (snapshot.prefix(&rows, "a").count(), snapshot.prefix(&rows, "b").count());
            assert_eq!(a, b);
            assert_eq!(store.store().row_locks().unwrap().count(), 0);
            assert_no_permit_is_lost(store.store(), &rows, 2);
        }
    }
}

#[test]
fn a_missing_or_ended_runtime_is_an_error() {
    let (store, rows) = open(1);
    let Poll::Ready(Err(error)) = poll_once(pin!(store.get(&rows, "k"))) else { panic!("the future is not ready") };
    assert!(matches!(error.kind(), ErrorKind::InvalidArgument(_)), "{error}");
    let Poll::Ready(Err(error)) = poll_once(pin!(store.transact(|_| Ok::<_, Error>(())))) else {
        panic!("the future is not ready")
    };
    assert!(matches!(error.kind(), ErrorKind::InvalidArgument(_)), "{error}");
    for runtime in both_runtimes(1) {
        let handle = runtime.handle().clone();
        drop(runtime);
        let _inside = handle.enter();
        let Poll::Ready(Err(error)) = poll_once(pin!(store.get(&rows, "k"))) else { panic!("the future is not ready") };
        assert!(matches!(error.kind(), ErrorKind::Cancelled(_)), "{error}");
        let mut scan = store.range(&rows, ..);
        let Poll::Ready(Some(Err(error))) = poll_once(pin!(scan.next())) else { panic!("the future is not ready") };
        assert!(matches!(error.kind(), ErrorKind::Cancelled(_)), "{error}");
        assert!(error.to_string().contains("the store is still open"), "{error}");
    }
    store.store().transact(|txn| txn.put(&rows, "k", "v")).unwrap();
    assert_no_permit_is_lost(store.store(), &rows, 1);
}

/// One blocking thread is enough for any number of tasks: a task that waits for another task does
/// not occupy the thread.
#[test]
fn tasks_on_one_row_all_commit_with_one_blocking_thread() {
    const TASKS: u8 = 50;
    for runtime in both_runtimes(1) {
        let (store, rows) = open(4);
        runtime.block_on(async {
            let tasks = (0..TASKS).map(|_| {
                let (store, rows) = (store.clone(), rows.clone());
                let rival = (store.store().clone(), rows.clone(), Arc::new(AtomicUsize::new(0)));
                tokio::spawn(async move {
                    let work = move |txn: &mut Txn| {
                        let before = txn.get(&rows, "k")?.map_or(0, |bytes| bytes[0]);
                        txn.put(&rows, "k", [before + 1])?;
                        // Makes the first attempt of each task conflict.
                        let (store, rows, attempts) = &rival;
                        if attempts.fetch_add(1, Ordering::SeqCst) == 0 {
                            let mut first = store.begin()?;
                            first.put(rows, "k", [before])?;
                            first.commit()?;
                        }
                        Ok::<_, Error>(())
                    };
                    store.transact(work).await
                })
            });
            for task in tasks.collect::<Vec<_>>() {
                task.await.unwrap().unwrap();
            }
        });
        assert_eq!(runtime.block_on(store.get(&rows, "k")).unwrap(), Some([TASKS].into()));
        assert!(store.store().stats().retries >= u64::from(TASKS));
    }
}

/// The waits in a row queue, for a lock and for admission time out without the runtime's timer.
#[test]
fn a_runtime_without_a_timer_works_under_load() {
    let builders = [Builder::new_current_thread(), Builder::new_multi_thread()];
    for mut builder in builders {
        let runtime = builder.worker_threads(2).max_blocking_threads(2).build().unwrap();
        let (store, rows) = open(1);
        let (gate, begun) = (Gate::default(), store.store().stats().transactions_started);
        let (passing, counted, other) = (gate.way(), rows.clone(), store.clone());
        runtime.block_on(async {
            let holder = tokio::spawn(async move {
                let work = move |_: &mut Txn| {
                    passing.pass();
                    Ok::<_, Error>(())
                };
                other.transact(work).await
            });
            while store.store().stats().transactions_started == begun {
                tokio::task::yield_now().await;
            }
            // The only permit is taken. After the admission timeout this attempt runs without one.
            let put = rows.clone();
            store.transact(move |txn| txn.put(&put, "k", [0])).await.unwrap();
            assert_eq!(store.store().stats().admission_timeouts, 1);
            gate.open();
            holder.await.unwrap().unwrap();
            let tasks = (0..50).map(|_| {
                let (store, rows) = (store.clone(), counted.clone());
                let count = move |txn: &mut Txn| {
                    let before = txn.get(&rows, "k")?.map_or(0, |bytes| bytes[0]);
                    txn.put(&rows, "k", [before + 1])
                };
                tokio::spawn(async move { store.transact(count).await })
            });
            for task in tasks.collect::<Vec<_>>() {
                task.await.unwrap().unwrap();
            }
        });
        assert_eq!(runtime.block_on(store.get(&rows, "k")).unwrap(), Some([50].into()));
    }
}

#[test]
fn async_reads_and_commits_return_what_the_store_does() {
    for runtime in both_runtimes(2) {
        let (store, rows) = open(1);
        runtime.block_on(async {
            let before = store.snapshot().await.unwrap();
            assert!(!store.contains_key(&rows, "k").await.unwrap());
            for durability in [Durability::Sync, Durability::Buffered] {
                let options = TxnOptions::default().durability(durability);
                let own = rows.clone();
                let work = move |txn: &mut Txn| txn.put(&own, "k", "v").map(|()| txn.start_ts());
                let (start_ts, commit) = store.transact_with_commit(options, work).await.unwrap();
                assert_eq!(commit.durable, durability == Durability::Sync);
                assert!(store.contains_key(&rows, "k").await.unwrap());
                let newest = store.store().snapshot().unwrap().versions(&rows, "k").unwrap().next().unwrap().unwrap();
                assert_eq!((newest.start_ts, newest.commit_ts), (start_ts, commit.commit_ts));
            }
            assert!(!before.contains_key(&rows, "k").await.unwrap());
            let error = store.contains_key(&rows, "").await.unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::InvalidArgument(_)), "{error}");
        });
    }
}

#[test]
fn every_async_call_returns_closed_after_close() {
    for runtime in both_runtimes(2) {
        let (store, rows) = open(1);
        let put = rows.clone();
        runtime.block_on(store.transact(move |txn| (0..100_u8).try_for_each(|key| txn.put(&put, [key], "v")))).unwrap();
        let snapshot = runtime.block_on(store.snapshot()).unwrap();
        let (mut scan, mut read_whole) = (store.range(&rows, ..), snapshot.range(&rows, ..[3_u8]));
        // Each scan returns a row and has others in its buffer. That of `read_whole` has all of its
        // rows; `scan` has yet to read more from the store.
        runtime.block_on(scan.next()).unwrap().unwrap();
        runtime.block_on(read_whole.next()).unwrap().unwrap();
        let mut unopened = store.prefix(&rows, "");
        runtime.block_on(store.clone().close()).unwrap();
        let (put, put_too) = (rows.clone(), rows.clone());
        let answers = runtime.block_on(async {
            [
                store.keyspace("rows").await.map(drop),
                store.snapshot().await.map(drop),
                store.snapshot_at(snapshot.read_ts()).await.map(drop),
                store.get(&rows, "k").await.map(drop),
                store.multi_get(&rows, ["k"]).await.map(drop),
                store.contains_key(&rows, "k").await.map(drop),
                store.run_blocking(Store::sync).await,
                store.transact(move |txn| txn.put(&put, "k", "v")).await,
                store
                    .transact_with_commit(TxnOptions::default(), move |txn| txn.put(&put_too, "k", "v"))
                    .await
                    .map(drop),
                store.range(&rows, ..).next().await.unwrap().map(drop),
                snapshot.get(&rows, "k").await.map(drop),
                snapshot.multi_get(&rows, ["k"]).await.map(drop),
                snapshot.contains_key(&rows, "k").await.map(drop),
                snapshot.prefix(&rows, "").next().await.unwrap().map(drop),
                scan.next().await.unwrap().map(drop),
                read_whole.next().await.unwrap().map(drop),
                unopened.next().await.unwrap().map(drop),
            ]
        });
        for (number, answer) in answers.into_iter().enumerate() {
            let error = answer.expect_err(&format!("call {number}"));
            assert!(matches!(error.kind(), ErrorKind::Closed(_)), "call {number}: {error}");
        }
        assert!(runtime.block_on(scan.next()).is_none() && runtime.block_on(read_whole.next()).is_none());
    }
}

#[test]
fn retries_are_bounded_as_in_the_synchronous_store() {
    for runtime in both_runtimes(2) {
        let (store, rows) = open(4);
        let rival = store.store().clone();
        let retry = Some(RetryPolicy::default().max_attempts(3));
        let work = move |txn: &mut Txn| {
            txn.put(&rows, "k", "second")?;
            let mut first = rival.begin()?;
            first.put(&rows, "k", "first")?;
            first.commit()
        };
        let options = TxnOptions::default().retry_policy(retry);
        let failed = runtime.block_on(store.transact_with(options, work));
        assert!(matches!(failed.unwrap_err().kind(), ErrorKind::RetriesExhausted { attempts: 3, .. }));
        let none = options.retry_policy(RetryPolicy::default().max_attempts(0));
        let refused = runtime.block_on(store.transact_with(none, |_| Ok::<_, Error>(()))).unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::InvalidArgument(_)), "{refused}");
        assert_eq!(refused.to_string(), "retry_policy.max_attempts is 0; it must be at least 1");
    }
}

/// The runtime has two blocking threads. The task with the only permit blocks one of them at the
/// gate, and nine tasks wait for the permit, so a read can use the other thread. On a slow machine
/// the read or a wait for the permit may time out, so it is enough that one of ten tries succeeds.
#[test]
fn tasks_that_wait_for_admission_hold_no_thread() {
    for runtime in both_runtimes(2) {
        let read_succeeds = || {
            let (store, rows) = open(1);
            let gate = Gate::default();
            runtime.block_on(async {
                let tasks = (0..10).map(|_| {
                    let (store, passing) = (store.clone(), gate.way());
                    tokio::spawn(async move {
                        let work = move |_: &mut Txn| {
                            passing.pass();
                            Ok::<_, Error>(())
                        };
                        store.transact(work).await
                    })
                });
                let tasks: Vec<_> = tasks.collect();
                while store.store().stats().transactions_started == 0 {
                    tokio::task::yield_now().await;
                }
                let got = tokio::time::timeout(Duration::from_millis(500), store.get(&rows, "k")).await.is_ok();
                let in_time = got && store.store().stats().admission_timeouts == 0;
                gate.open();
                for task in tasks {
                    task.await.unwrap().unwrap();
                }
                in_time
            })
        };
        assert!((0..10).any(|_| read_succeeds()));
    }
}

#[test]
fn a_nested_transact_does_not_wait_for_admission() {
    for runtime in both_runtimes(1) {
        let (store, rows) = open(1);
        let (inner, put) = (store.store().clone(), rows.clone());
        let work = move |_: &mut Txn| inner.transact(|txn| txn.put(&put, "k", "v"));
        runtime.block_on(store.transact(work)).unwrap();
        assert_eq!(store.store().stats().admission_timeouts, 0);
    }
}

#[test]
fn closing_closes_the_other_handles() {
    for runtime in both_runtimes(1) {
        let (store, rows) = open(1);
        let other = AsyncStore::from(Store::clone(store.store()));
        runtime.block_on(store.close()).unwrap();
        let error = runtime.block_on(other.get(&rows, "k")).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Closed(_)), "{error}");
    }
}

#[test]
fn futures_can_be_sent_to_other_threads() {
    fn is_send<T: Send>(_: &T) {}
    let (store, rows) = open(1);
    is_send(&store.transact(|_| Ok::<_, Error>(())));
    is_send(&store.get(&rows, "k"));
    is_send(&store.multi_get(&rows, ["k"]));
    is_send(&store.range(&rows, ..).next());
    is_send(&store.snapshot());
    is_send(&store.close());
}
