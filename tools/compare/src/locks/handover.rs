//! Threads and tasks that pass one lock on. Each requests the lock again immediately after
//! releasing it, so all of them hold it in turn, in the order of their requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use parking_lot::{Mutex, MutexGuard};
use percolite::{AsyncStore, Durability, LockOptions, LockWaitPolicy, Store};
use tokio::runtime::Runtime;

use super::{BenchEnv, Benchmark, Goal};

const NAME: &str = "handover";
const CLIENTS: [u64; 3] = [2, 16, 64];
/// The baselines have no timeout. percolite has one by default, so it is measured without and with
/// one.
const WAITS: [(&str, LockWaitPolicy, Goal); 2] = [
    ("", LockWaitPolicy::Forever, Goal::AtMost(1.5)),
    (", timeout 30 s", LockWaitPolicy::Timeout(Duration::from_secs(30)), Goal::None),
];
const NO_CLIENT: u64 = u64::MAX;
/// The threads of the runtime: one for each core of the machine for which the goals are set.
const WORKERS: usize = 2;

/// The state under the lock. A grant to the previous holder is not a hand-over.
struct Handovers {
    last: AtomicU64,
    count: AtomicU64,
    stopped: AtomicBool,
}

impl Handovers {
    fn new() -> Self {
        Self { last: AtomicU64::new(NO_CLIENT), count: AtomicU64::new(0), stopped: AtomicBool::new(false) }
    }

    /// Records a grant. Returns whether the client has to stop.
    fn record(&self, client: u64) -> bool {
        if self.last.swap(client, Ordering::Relaxed) != client {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        self.stopped.load(Ordering::Relaxed)
    }

    /// Measures for this time, then stops the clients. Returns nanoseconds per hand-over.
    #[allow(clippy::cast_precision_loss, reason = "approximate statistics")]
    fn measure(&self, time: Duration) -> f64 {
        let (started, before) = (Instant::now(), self.count.load(Ordering::Relaxed));
        std::thread::sleep(time);
        let (elapsed, after) = (started.elapsed(), self.count.load(Ordering::Relaxed));
        self.stopped.store(true, Ordering::Relaxed);
        elapsed.as_nanos() as f64 / (after - before).max(1) as f64
    }
}

pub fn benchmarks(env: &BenchEnv) -> Result<Vec<Benchmark<'_>>> {
    let store = env.open("handover", Durability::Buffered)?;
    let runtime = Arc::new(tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).build()?);
    let mut benchmarks = Vec::new();
    for (clients, (label, wait, goal)) in CLIENTS.into_iter().flat_map(|clients| WAITS.map(|it| (clients, it))) {
        let (store, time) = (store.clone(), env.time / 2);
        benchmarks.push(Benchmark::ratio(format!("hand-over, {clients} threads{label}, ns"), goal, move || {
            let mutex = Mutex::new(());
            let baseline = threads(clients, time, |handovers, client| {
                let guard = mutex.lock();
                let stopped = handovers.record(client);
                MutexGuard::unlock_fair(guard);
                Ok(stopped)
            })?;
            let value = threads(clients, time, |handovers, client| {
                let guard = store.lock_with(NAME, LockOptions::exclusive().wait(wait))?;
                let stopped = handovers.record(client);
                drop(guard);
                Ok(stopped)
            })?;
            Ok((value, baseline))
        }));
    }
    for (clients, (label, wait, goal)) in CLIENTS.into_iter().flat_map(|clients| WAITS.map(|it| (clients, it))) {
        let (store, runtime, time) = (AsyncStore::from(Store::clone(&store)), Arc::clone(&runtime), env.time / 2);
        benchmarks.push(Benchmark::ratio(format!("hand-over, {clients} tasks{label}, ns"), goal, move || {
            let baseline = tasks(&runtime, clients, time, &Lock::Tokio(Arc::default()))?;
            Ok((tasks(&runtime, clients, time, &Lock::Percolite(store.clone(), wait))?, baseline))
        }));
    }
    Ok(benchmarks)
}

/// Runs the clients in threads. Returns nanoseconds per hand-over.
fn threads(clients: u64, time: Duration, hold_once: impl Fn(&Handovers, u64) -> Result<bool> + Sync) -> Result<f64> {
    let (handovers, hold_once) = (&Handovers::new(), &hold_once);
    std::thread::scope(|scope| {
        let client = |client| {
            scope.spawn(move || {
                while !hold_once(handovers, client)? {}
                anyhow::Ok(())
            })
        };
        let threads: Vec<_> = (0..clients).map(client).collect();
        let nanos = handovers.measure(time);
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)?;
        Ok(nanos)
    })
}

#[derive(Clone)]
enum Lock {
    Percolite(AsyncStore, LockWaitPolicy),
    Tokio(Arc<tokio::sync::Mutex<()>>),
}

impl Lock {
    async fn hold_once(&self, handovers: &Handovers, client: u64) -> Result<bool> {
        Ok(match self {
            Self::Percolite(store, wait) => {
                let _guard = store.lock_with(NAME, LockOptions::exclusive().wait(*wait)).await?;
                handovers.record(client)
            }
            Self::Tokio(mutex) => {
                let _guard = mutex.lock().await;
                handovers.record(client)
            }
        })
    }
}

fn tasks(runtime: &Runtime, clients: u64, time: Duration, lock: &Lock) -> Result<f64> {
    let handovers = Arc::new(Handovers::new());
    let client = |client| {
        let (lock, handovers) = (lock.clone(), Arc::clone(&handovers));
        runtime.spawn(async move {
            while !lock.hold_once(&handovers, client).await? {}
            anyhow::Ok(())
        })
    };
    let tasks: Vec<_> = (0..clients).map(client).collect();
    let nanos = handovers.measure(time);
    for task in tasks {
        runtime.block_on(task)??;
    }
    Ok(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_grant_is_no_handover() {
        let handovers = Handovers::new();
        assert!(![1, 1, 2, 2, 1].into_iter().any(|client| handovers.record(client)));
        assert_eq!(handovers.count.load(Ordering::Relaxed), 3);
        handovers.measure(Duration::ZERO);
        assert!(handovers.record(1));
    }
}
