//! One thread that locks and unlocks, and requests that are refused beside waiting ones.

use std::collections::HashMap;
use std::future::Future as _;
use std::hash::{BuildHasher as _, RandomState};
use std::hint::black_box;
use std::sync::Arc;
use std::task::{Context as TaskContext, Waker};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use parking_lot::{ArcMutexGuard, Mutex, RawMutex};
use percolite::{AsyncStore, Durability, LockOptions, LockWaitPolicy};

use super::postgres::Server;
use super::{BenchEnv, Benchmark, Goal};

const SHARDS: usize = 64;
const NAME: &str = "nightly";
const WAITERS: usize = 16_000;

type Shard = Mutex<HashMap<String, Arc<Mutex<()>>>>;

/// What a program without a lock manager would write itself: names within one process, without FIFO
/// order, timeouts or tokens.
struct ShardedMap {
    shards: Vec<Shard>,
    hasher: RandomState,
}

impl ShardedMap {
    fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), hasher: RandomState::new() }
    }

    fn shard(&self, name: &str) -> Option<&Shard> {
        self.shards.get(usize::try_from(self.hasher.hash_one(name) % SHARDS as u64).unwrap_or_default())
    }

    fn lock(&self, name: &str) -> Option<ArcMutexGuard<RawMutex, ()>> {
        let mutex = {
            let mut shard = self.shard(name)?.lock();
            match shard.get(name) {
                Some(mutex) => Arc::clone(mutex),
                None => Arc::clone(shard.entry(name.to_owned()).or_default()),
            }
        };
        Some(mutex.lock_arc())
    }

    /// Unlocks, and removes the name if it has no other user, so that the map does not grow without
    /// bound.
    fn remove_if_last(&self, name: &str, guard: ArcMutexGuard<RawMutex, ()>) -> Option<()> {
        drop(guard);
        let mut shard = self.shard(name)?.lock();
        if shard.get(name).is_some_and(|mutex| Arc::strong_count(mutex) == 1) {
            shard.remove(name);
        }
        Some(())
    }
}

pub fn benchmarks<'a>(env: &'a BenchEnv, server: Option<&'a Server>) -> Result<Vec<Benchmark<'a>>> {
    let store = env.open("uncontended", Durability::Buffered)?;
    let (map, iterations) = (Arc::new(ShardedMap::new()), env.iterations);
    let lock_and_drop = Arc::new(move || {
        timed(iterations, || {
            drop(store.lock(NAME)?);
            Ok(())
        })
    });
    let alone = Arc::clone(&lock_and_drop);
    let (against_removing, removing_map) = (Arc::clone(&lock_and_drop), Arc::clone(&map));
    let against_keeping = Arc::clone(&lock_and_drop);
    let mut benchmarks = vec![
        Benchmark::single("lock and unlock, ns", Goal::AtMost(1000.0), move || alone()),
        Benchmark::ratio("lock and unlock / sharded map that removes names", Goal::AtMost(4.0), move || {
            let baseline = timed(iterations, || {
                let guard = black_box(removing_map.lock(NAME)).context("the shard is missing")?;
                removing_map.remove_if_last(NAME, guard).context("the shard is missing")
            });
            Ok((against_removing()?, baseline?))
        }),
        Benchmark::ratio("lock and unlock / sharded map that keeps names", Goal::None, move || {
            let baseline = timed(iterations, || {
                drop(black_box(map.lock(NAME)));
                Ok(())
            });
            Ok((against_keeping()?, baseline?))
        }),
    ];
    benchmarks.push(Benchmark::ratio("refusal beside 16,000 waiters / beside one", Goal::AtMost(2.0), move || {
        Ok((refusal(env, WAITERS)?, refusal(env, 1)?))
    }));
    if let Some(server) = server {
        benchmarks.push(Benchmark::ratio(
            "PostgreSQL's advisory lock / lock and unlock",
            Goal::AtLeast(20.0),
            move || Ok((server.lock_and_unlock_nanos(env.time)?, lock_and_drop()?)),
        ));
    }
    Ok(benchmarks)
}

/// The time of a request that does not wait for a held lock, beside tasks that wait for it.
fn refusal(env: &BenchEnv, waiters: usize) -> Result<f64> {
    let store = AsyncStore::from(env.open("refusal", Durability::Buffered)?);
    let held = store.store().lock(NAME)?;
    let options = |policy| LockOptions::exclusive().wait(policy);
    let mut waiting: Vec<_> =
        (0..waiters).map(|_| Box::pin(store.lock_with(NAME, options(LockWaitPolicy::Forever)))).collect();
    for request in &mut waiting {
        ensure!(request.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())).is_pending(), "the lock is free");
    }
    let time = timed(env.iterations / 10, || match store.store().lock_with(NAME, options(LockWaitPolicy::NoWait)) {
        Ok(_) => bail!("the lock is free"),
        Err(_) => Ok(()),
    });
    drop(waiting);
    drop(held);
    time
}

/// Nanoseconds per iteration.
#[allow(clippy::cast_precision_loss, reason = "approximate statistics")]
fn timed(iterations: u64, mut operation: impl FnMut() -> Result<()>) -> Result<f64> {
    let started = Instant::now();
    for _ in 0..iterations {
        operation()?;
    }
    Ok(started.elapsed().as_nanos() as f64 / iterations as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_user_removes_its_name() {
        let map = ShardedMap::new();
        let guard = map.lock(NAME).unwrap();
        assert!(map.shard(NAME).unwrap().lock().get(NAME).unwrap().try_lock().is_none());
        map.remove_if_last(NAME, guard).unwrap();
        assert!(map.shards.iter().all(|shard| shard.lock().is_empty()));
    }
}
