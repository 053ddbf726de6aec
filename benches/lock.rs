//! What locks by name cost: alone, handed on, beside commits, with leases.
//!
//! A hand-over is counted where the lock goes from one thread or task to another, each of which asks again at once. The time of an iteration
//! is a share of the time in which all of them together make very many.
//!
//! `cargo bench --bench lock`, or with `-- hand-over` for one group of it; tasks with `--features tokio`.

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

fn open(folder: &TempDir, durability: Durability) -> Store {
    Store::builder().durability(durability).open(folder.path()).unwrap()
}

/// Has so many clients do this so often in all, together; the answer is how long that took.
fn together(clients: u64, wanted: u64, turn: impl Fn(u64) + Sync) -> Duration {
    let taken = AtomicU64::new(0);
    let start = Barrier::new(usize::try_from(clients).unwrap());
    let client = |client| {
        start.wait();
        let began = Instant::now();
        while taken.fetch_add(1, Ordering::Relaxed) < wanted {
            turn(client);
        }
        (began, Instant::now())
    };
    let client = &client;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..clients).map(|number| scope.spawn(move || client(number))).collect();
        let times: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let began = times.iter().map(|(began, _)| *began).min().unwrap();
        let ended = times.iter().map(|(_, ended)| *ended).max().unwrap();
        ended.duration_since(began)
    })
}

fn count(txn: &mut Txn, rows: &Keyspace) -> Result<(), Error> {
    let before = txn.get(rows, "counter")?.map_or(0, |value| u64::from_be_bytes(value[..8].try_into().unwrap()));
    txn.put(rows, "counter", (before + 1).to_be_bytes())
}

fn alone(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder, Durability::Buffered);
    let rows = store.keyspace("rows").unwrap();
    let mut group = criterion.benchmark_group("lock");
    group.bench_function("taken-and-dropped", |bencher| bencher.iter(|| drop(store.lock("nightly").unwrap())));
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

fn hand_over(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder, Durability::Buffered);
    let mut group = criterion.benchmark_group("lock/hand-over");
    group.sampling_mode(SamplingMode::Flat);
    let options = || LockOptions::exclusive().wait(LockWaitPolicy::Forever);
    for clients in CLIENTS {
        group.bench_function(format!("threads-{clients}"), |bencher| {
            bencher
                .iter_custom(|wanted| together(clients, wanted, |_| drop(store.lock_with("ring", options()).unwrap())));
        });
    }
    #[cfg(feature = "tokio")]
    #[allow(clippy::cast_precision_loss, reason = "figures for people")]
    for clients in CLIENTS {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        let store = percolite::AsyncStore::from(store.clone());
        group.bench_function(format!("tasks-{clients}"), |bencher| {
            bencher.iter_custom(|wanted| {
                let client = |turns| {
                    let store = store.clone();
                    runtime.spawn(async move {
                        for _ in 0..turns {
                            drop(store.lock_with("ring", options()).await.unwrap());
                        }
                    })
                };
                let began = Instant::now();
                let turns = wanted.div_ceil(clients);
                let tasks: Vec<_> = (0..clients).map(|_| client(turns)).collect();
                runtime.block_on(async {
                    for task in tasks {
                        task.await.unwrap();
                    }
                });
                began.elapsed().mul_f64(wanted as f64 / (turns * clients) as f64)
            });
        });
    }
}

fn durable(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder, Durability::Sync);
    let rows = store.keyspace("rows").unwrap();
    let mut group = criterion.benchmark_group("lock/durable");
    group.sampling_mode(SamplingMode::Flat);
    group.bench_function("lock-transact-16", |bencher| {
        bencher.iter_custom(|wanted| {
            together(16, wanted, |_| {
                let (lock, txn) = (LockOptions::exclusive(), TxnOptions::default());
                store.transact_with_lock("counter", lock, txn, |txn| count(txn, &rows)).unwrap();
            })
        });
    });
    group.bench_function("guard-over-the-sync-16", |bencher| {
        bencher.iter_custom(|wanted| {
            together(16, wanted, |_| {
                let guard = store.lock("counter").unwrap();
                let fence = guard.fence();
                store.transact(|txn| txn.fence(&fence).and_then(|()| count(txn, &rows))).unwrap();
            })
        });
    });
    for clients in [1, 64] {
        group.bench_function(format!("commit-{clients}"), |bencher| {
            bencher.iter_custom(|wanted| {
                together(clients, wanted, |client| {
                    store.transact(|txn| txn.put(&rows, client.to_be_bytes(), [1; 100])).unwrap();
                })
            });
        });
        group.bench_function(format!("lease-of-each-of-{clients}"), |bencher| {
            bencher.iter_custom(|wanted| {
                together(clients, wanted, |client| {
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
        let mut folder = None;
        group.bench_function(format!("leases-{leases}"), |bencher| {
            // Made by its first sample, so that one which is filtered out costs nothing.
            let folder = folder.get_or_insert_with(|| {
                let folder = tempfile::tempdir().unwrap();
                let store = open(&folder, Durability::Sync);
                let left = AtomicU64::new(leases);
                let is_left = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
                thread::scope(|scope| {
                    for _ in 0..64 {
                        scope.spawn(|| {
                            while let Ok(name) = is_left() {
                                store.get_lock(&format!("name {name:06}"), LEASE * 24).unwrap().unwrap();
                            }
                        });
                    }
                });
                store.close().unwrap();
                folder
            });
            bencher.iter_custom(|times| {
                let opened = (0..times).map(|_| {
                    let began = Instant::now();
                    let store = open(folder, Durability::Sync);
                    let took = began.elapsed();
                    assert_eq!(store.lock_table().unwrap().held as u64, leases);
                    store.close().unwrap();
                    took
                });
                opened.sum()
            });
        });
    }
}

criterion_group! {
    name = steps;
    config = common::of_steps();
    targets = alone
}
criterion_group! {
    name = stores;
    config = common::of_stores().sample_size(20);
    targets = hand_over, durable, opening
}
criterion_main!(steps, stores);
