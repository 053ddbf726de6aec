//! Named locks: uncontended, handed over between clients, with durable commits, with leases, and
//! the opening of a store with many leases.
//!
//! A hand-over is a grant to a client that waits; each client requests the lock again as soon as it
//! has released it. The time of an iteration is the time from the start of the first client to the
//! end of the last, divided by the number of iterations of all clients.
//!
//! `cargo bench --bench lock`, or with `-- hand-over` for one group. With `--features tokio` it
//! also measures hand-overs between tasks.

#![allow(clippy::unwrap_used, reason = "a failure stops the bench")]

mod common;

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, SamplingMode, criterion_group, criterion_main};
use percolite::{Durability, Error, Keyspace, LockOptions, LockWaitPolicy, Store, Txn, TxnOptions};
use tempfile::TempDir;

const LEASE: Duration = Duration::from_secs(3600);
const LEASES: u64 = 100_000;
const CLIENTS: [u64; 3] = [2, 16, 64];

fn open(dir: &TempDir, durability: Durability) -> Store {
    Store::builder().durability(durability).open(dir.path()).unwrap()
}

/// Calls `iteration` from concurrent clients, `total` times in all. Returns the elapsed time.
fn run_clients(clients: u64, total: u64, iteration: impl Fn(u64) + Sync) -> Duration {
    let claimed = AtomicU64::new(0);
    let barrier = Barrier::new(usize::try_from(clients).unwrap());
    let client = |client| {
        barrier.wait();
        let started = Instant::now();
        while claimed.fetch_add(1, Ordering::Relaxed) < total {
            iteration(client);
        }
        (started, Instant::now())
    };
    let client = &client;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..clients).map(|number| scope.spawn(move || client(number))).collect();
        let times: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let started = times.iter().map(|(started, _)| *started).min().unwrap();
        let ended = times.iter().map(|(_, ended)| *ended).max().unwrap();
        ended.duration_since(started)
    })
}

fn increment(txn: &mut Txn, rows: &Keyspace) -> Result<(), Error> {
    let before = txn.get(rows, "counter")?.map_or(0, |value| u64::from_be_bytes(value[..8].try_into().unwrap()));
    txn.put(rows, "counter", (before + 1).to_be_bytes())
}

fn uncontended(criterion: &mut Criterion) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir, Durability::Buffered);
    let rows = store.keyspace("rows").unwrap();
    let mut group = criterion.benchmark_group("lock");
    group.bench_function("acquire-and-drop", |bencher| bencher.iter(|| drop(store.lock("nightly").unwrap())));
    let held = store.lock("held").unwrap();
    group.bench_function("try-held", |bencher| bencher.iter(|| assert!(store.try_lock("held").unwrap().is_none())));
    let fence = held.fence();
    for (name, is_fenced) in [("commit", false), ("commit-fenced", true)] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let mut txn = store.begin().unwrap();
                if is_fenced {
                    txn.fence(&fence).unwrap();
                }
                txn.put(&rows, "row", [1; 100]).unwrap();
                txn.commit().unwrap()
            });
        });
    }
}

/// The error of a request that does not wait, beside tasks that wait for the lock.
#[cfg(feature = "tokio")]
fn refused(criterion: &mut Criterion) {
    use std::future::Future as _;
    use std::task::{Context, Waker};

    let dir = tempfile::tempdir().unwrap();
    let store = percolite::AsyncStore::from(open(&dir, Durability::Buffered));
    let mut group = criterion.benchmark_group("lock/refused");
    for waiters in [1, 16_000] {
        let held = store.store().lock("held").unwrap();
        let waits = || Box::pin(store.lock_with("held", LockOptions::exclusive().wait(LockWaitPolicy::Forever)));
        let mut waiting: Vec<_> = (0..waiters).map(|_| waits()).collect();
        for request in &mut waiting {
            assert!(request.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        group.bench_function(format!("waiters-{waiters}"), |bencher| {
            let options = || LockOptions::exclusive().wait(LockWaitPolicy::NoWait);
            bencher.iter(|| store.store().lock_with("held", options()).unwrap_err());
        });
        drop(waiting);
        drop(held);
    }
}

#[cfg(not(feature = "tokio"))]
fn refused(_: &mut Criterion) {}

fn hand_over(criterion: &mut Criterion) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir, Durability::Buffered);
    let mut group = criterion.benchmark_group("lock/hand-over");
    group.sampling_mode(SamplingMode::Flat);
    let options = || LockOptions::exclusive().wait(LockWaitPolicy::Forever);
    for clients in CLIENTS {
        group.bench_function(format!("threads-{clients}"), |bencher| {
            bencher.iter_custom(|total| {
                run_clients(clients, total, |_| drop(store.lock_with("ring", options()).unwrap()))
            });
        });
    }
    #[cfg(feature = "tokio")]
    #[allow(clippy::cast_precision_loss, reason = "a measured time")]
    for clients in CLIENTS {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        let store = percolite::AsyncStore::from(store.clone());
        group.bench_function(format!("tasks-{clients}"), |bencher| {
            bencher.iter_custom(|total| {
                let client = |iterations| {
                    let store = store.clone();
                    runtime.spawn(async move {
                        for _ in 0..iterations {
                            drop(store.lock_with("ring", options()).await.unwrap());
                        }
                    })
                };
                let started = Instant::now();
                let iterations = total.div_ceil(clients);
                let tasks: Vec<_> = (0..clients).map(|_| client(iterations)).collect();
                runtime.block_on(async {
                    for task in tasks {
                        task.await.unwrap();
                    }
                });
                started.elapsed().mul_f64(total as f64 / (iterations * clients) as f64)
            });
        });
    }
}

/// `lock-transact-16` releases the lock when the commit is visible, so several commits share a WAL
/// sync. `guard-until-durable-16` releases it when the commit is durable, so each commit needs a
/// sync of its own.
fn durable(criterion: &mut Criterion) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir, Durability::Sync);
    let rows = store.keyspace("rows").unwrap();
    let mut group = criterion.benchmark_group("lock/durable");
    group.sampling_mode(SamplingMode::Flat);
    group.bench_function("lock-transact-16", |bencher| {
        bencher.iter_custom(|total| {
            run_clients(16, total, |_| {
                let (lock, txn) = (LockOptions::exclusive(), TxnOptions::default());
                store.transact_with_lock("counter", lock, txn, |txn| increment(txn, &rows)).unwrap();
            })
        });
    });
    group.bench_function("guard-until-durable-16", |bencher| {
        bencher.iter_custom(|total| {
            run_clients(16, total, |_| {
                let guard = store.lock("counter").unwrap();
                let fence = guard.fence();
                store.transact(|txn| txn.fence(&fence).and_then(|()| increment(txn, &rows))).unwrap();
            })
        });
    });
    for clients in [1, 64] {
        group.bench_function(format!("commit-{clients}"), |bencher| {
            bencher.iter_custom(|total| {
                run_clients(clients, total, |client| {
                    store.transact(|txn| txn.put(&rows, client.to_be_bytes(), [1; 100])).unwrap();
                })
            });
        });
        group.bench_function(format!("lease-{clients}"), |bencher| {
            bencher.iter_custom(|total| {
                run_clients(clients, total, |client| {
                    let lock = LockOptions::exclusive().lease(LEASE);
                    store.lock_with(format!("name {client}"), lock).unwrap().release().unwrap();
                })
            });
        });
    }
}

fn opening(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("lock/open");
    group.sampling_mode(SamplingMode::Flat).sample_size(10);
    for leases in [0, LEASES] {
        let mut dir = None;
        group.bench_function(format!("leases-{leases}"), |bencher| {
            // The first sample creates the store, so a group that the command line filters out
            // costs nothing.
            let dir = dir.get_or_insert_with(|| {
                let dir = tempfile::tempdir().unwrap();
                let store = open(&dir, Durability::Sync);
                let left = AtomicU64::new(leases);
                let next = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
                thread::scope(|scope| {
                    for _ in 0..64 {
                        scope.spawn(|| {
                            while let Ok(name) = next() {
                                store.get_lock(&format!("name {name:06}"), LEASE * 24).unwrap().unwrap();
                            }
                        });
                    }
                });
                store.close().unwrap();
                dir
            });
            bencher.iter_custom(|total| {
                let times = (0..total).map(|_| {
                    let started = Instant::now();
                    let store = open(dir, Durability::Sync);
                    let elapsed = started.elapsed();
                    assert_eq!(store.lock_table().unwrap().held as u64, leases);
                    store.close().unwrap();
                    elapsed
                });
                times.sum()
            });
        });
    }
}

criterion_group! {
    name = micro;
    config = common::micro();
    targets = uncontended, refused
}
criterion_group! {
    name = concurrent;
    config = common::store().sample_size(20);
    targets = hand_over, durable, opening
}
criterion_main!(micro, concurrent);
