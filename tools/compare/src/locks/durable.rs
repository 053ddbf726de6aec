//! Operations with a sync: transactions under a lock, leases, and opening a store with many leases.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use percolite::{Durability, Keyspace, LockOptions, Store, Txn, TxnOptions};

use super::{BenchEnv, Benchmark, Goal};

const LEASE: Duration = Duration::from_secs(3600);
const CLIENTS: u64 = 16;
const NAMES: u64 = 64;
/// How many leases are renewed beside each other, and for how long each is granted.
const RENEWED: u64 = 2000;
const RENEWED_LEASE: Duration = Duration::from_secs(2);
/// The result of [`open_with_leases`] is scaled to this number of leases.
const LEASES: u64 = 100_000;

pub fn benchmarks(env: &BenchEnv) -> Result<Vec<Benchmark<'_>>> {
    let store = env.open("durable", Durability::Sync)?;
    let rows = store.keyspace("rows")?;
    let time = env.time;
    let (under, alone, many) = ((store.clone(), rows.clone()), (store.clone(), rows.clone()), (store, rows));
    let benchmarks = vec![
        Benchmark::ratio(
            "transact_with_lock, 16 threads, per second / guard held during the sync",
            Goal::AtLeast(3.0),
            {
                move || {
                    let (store, rows) = &under;
                    let baseline = rate(CLIENTS, time, |_| {
                        let guard = store.lock("counter")?;
                        let fence = guard.fence();
                        store.transact(|txn| {
                            txn.fence(&fence)?;
                            count(txn, rows)
                        })?;
                        Ok(())
                    })?;
                    let value = rate(CLIENTS, time, |_| {
                        let count = |txn: &mut Txn| count(txn, rows);
                        Ok(store.transact_with_lock(
                            "counter",
                            LockOptions::exclusive(),
                            TxnOptions::default(),
                            count,
                        )?)
                    })?;
                    Ok((value, baseline))
                }
            },
        ),
        Benchmark::ratio("lease and release, 1 thread, µs / durable commit", Goal::AtMost(2.2), move || {
            let (store, rows) = &alone;
            let commit = rate(1, time, |client| Ok(put(store, rows, client)?))?;
            let lease = rate(1, time, |client| lease(store, client))?;
            Ok((1e6 / lease, 1e6 / commit))
        }),
        Benchmark::ratio(
            "leases of 64 names, per second / half of the durable commits",
            Goal::AtLeast(0.8),
            move || {
                let (store, rows) = &many;
                let commits = rate(NAMES, time, |client| Ok(put(store, rows, client)?))?;
                Ok((rate(NAMES, time, |client| lease(store, client))?, commits / 2.0))
            },
        ),
        Benchmark::single("additional time to open with 100,000 leases, s", Goal::AtMost(1.0), move || {
            open_with_leases(env)
        }),
        Benchmark::single("lost of 2,000 leases of 2 s, in a minute (quick: 18 s)", Goal::AtMost(0.0), move || {
            lost_leases(env)
        }),
    ];
    Ok(benchmarks)
}

fn count(txn: &mut Txn, rows: &Keyspace) -> percolite::Result<()> {
    let before = txn.get(rows, "counter")?.map_or([0; 8], |value| value[..].try_into().unwrap_or_default());
    txn.put(rows, "counter", (u64::from_be_bytes(before) + 1).to_be_bytes())
}

fn put(store: &Store, rows: &Keyspace, client: u64) -> percolite::Result<()> {
    store.transact(|txn| txn.put(rows, client.to_be_bytes(), [1; 100]))
}

fn lease(store: &Store, client: u64) -> Result<()> {
    Ok(store.lock_with(format!("name {client}"), LockOptions::exclusive().lease(LEASE))?.release()?)
}

/// The rate of an operation by all clients together, per second.
#[allow(clippy::cast_precision_loss, reason = "approximate statistics")]
fn rate(clients: u64, time: Duration, operation: impl Fn(u64) -> Result<()> + Sync) -> Result<f64> {
    let (operations, stopped, operation) = (&AtomicU64::new(0), &AtomicBool::new(false), &operation);
    let started = Instant::now();
    std::thread::scope(|scope| {
        let client = |client| {
            scope.spawn(move || {
                while !stopped.load(Ordering::Relaxed) {
                    operation(client)?;
                    operations.fetch_add(1, Ordering::Relaxed);
                }
                anyhow::Ok(())
            })
        };
        let threads: Vec<_> = (0..clients).map(client).collect();
        std::thread::sleep(time);
        stopped.store(true, Ordering::Relaxed);
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
    })?;
    Ok(operations.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64())
}

/// How many of many short leases are lost, although their holder is there.
#[allow(clippy::cast_precision_loss, reason = "approximate statistics")]
fn lost_leases(env: &BenchEnv) -> Result<f64> {
    let store = env.open("renewed", Durability::Sync)?;
    let take = &|client: u64| {
        let names = (client..RENEWED).step_by(usize::try_from(NAMES)?);
        let options = || LockOptions::exclusive().lease(RENEWED_LEASE);
        names.map(|name| Ok(store.lock_with(format!("name {name}"), options())?)).collect::<Result<Vec<_>>>()
    };
    let mut guards = Vec::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..NAMES).map(|client| scope.spawn(move || take(client))).collect();
        for thread in threads {
            guards.extend(thread.join().map_err(|_| anyhow!("a thread panicked"))??);
        }
        anyhow::Ok(())
    })?;
    std::thread::sleep(env.time * 60);
    Ok(guards.iter().filter(|guard| !guard.is_held()).count() as f64)
}

/// The time that leases add to an opening, scaled to [`LEASES`] of them. The first round creates a
/// store with leases and one without.
#[allow(clippy::cast_precision_loss, reason = "approximate statistics")]
fn open_with_leases(env: &BenchEnv) -> Result<f64> {
    let names = env.names / NAMES * NAMES;
    if !env.path().join("leases").exists() {
        let store = env.open("leases", Durability::Sync)?;
        std::thread::scope(|scope| {
            let some = |client| {
                let store = &store;
                scope.spawn(move || {
                    for name in (client..names).step_by(usize::try_from(NAMES)?) {
                        store.get_lock(&format!("name {name:06}"), LEASE * 24)?.context("the lock is already held")?;
                    }
                    anyhow::Ok(())
                })
            };
            let threads: Vec<_> = (0..NAMES).map(some).collect();
            threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
        })?;
        store.close()?;
        env.open("no-leases", Durability::Sync)?.close()?;
    }
    let open = |name, held: u64| {
        let started = Instant::now();
        let store = env.open(name, Durability::Sync)?;
        let elapsed = started.elapsed().as_secs_f64();
        ensure!(store.lock_table()?.held as u64 == held, "the store does not have all leases");
        store.close()?;
        Ok(elapsed)
    };
    let (without, with) = (open("no-leases", 0)?, open("leases", names)?);
    Ok((with - without) * LEASES as f64 / names as f64)
}
