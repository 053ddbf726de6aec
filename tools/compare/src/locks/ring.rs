//! Threads and tasks that hand one lock on: each asks again as soon as it has let go, so the longest waiter is next.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use parking_lot::{Mutex, MutexGuard};
use percolite::{AsyncStore, Durability, LockOptions, Store, Wait};
use tokio::runtime::Runtime;

use super::{Bench, Goal, Line};

const NAME: &str = "ring";
const CLIENTS: [u64; 3] = [2, 16, 64];
/// Theirs have no limit of time. Ours have one by default.
const PATIENCE: [(&str, Wait, Goal); 2] = [
    ("", Wait::Forever, Goal::AtMost(1.5)),
    (" that wait 30 s at most", Wait::AtMost(Duration::from_secs(30)), Goal::None),
];
const NOBODY: u64 = u64::MAX;
/// As many as there are processors in the machine that the goals are for.
const WORKERS: usize = 2;

/// Under the lock: which had it last. Only what goes from one to another is a hand-over.
struct Turns {
    last: AtomicU64,
    handed_over: AtomicU64,
    is_over: AtomicBool,
}

impl Turns {
    fn new() -> Self {
        Self { last: AtomicU64::new(NOBODY), handed_over: AtomicU64::new(0), is_over: AtomicBool::new(false) }
    }

    /// Whether the time is over.
    fn take(&self, client: u64) -> bool {
        if self.last.swap(client, Ordering::Relaxed) != client {
            self.handed_over.fetch_add(1, Ordering::Relaxed);
        }
        self.is_over.load(Ordering::Relaxed)
    }

    /// Lets them go on for so long; the answer is nanoseconds of a hand-over.
    #[allow(clippy::cast_precision_loss, reason = "figures for people")]
    fn measure(&self, time: Duration) -> f64 {
        let (began, before) = (Instant::now(), self.handed_over.load(Ordering::Relaxed));
        std::thread::sleep(time);
        let (took, after) = (began.elapsed(), self.handed_over.load(Ordering::Relaxed));
        self.is_over.store(true, Ordering::Relaxed);
        took.as_nanos() as f64 / (after - before).max(1) as f64
    }
}

pub fn lines(bench: &Bench) -> Result<Vec<Line<'_>>> {
    let store = bench.open("ring", Durability::Buffered)?;
    let runtime = Arc::new(tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).build()?);
    let mut lines = Vec::new();
    for (clients, (patience, wait, goal)) in CLIENTS.into_iter().flat_map(|clients| PATIENCE.map(|it| (clients, it))) {
        let (store, time) = (store.clone(), bench.time / 2);
        lines.push(Line::ratio(format!("hand-over, {clients} threads{patience}, ns"), goal, move || {
            let mutex = Mutex::new(());
            let theirs = threads(clients, time, |turns, client| {
                let guard = mutex.lock();
                let is_over = turns.take(client);
                MutexGuard::unlock_fair(guard);
                Ok(is_over)
            })?;
            let ours = threads(clients, time, |turns, client| {
                let guard = store.lock_with(NAME, LockOptions::exclusive().wait(wait))?;
                let is_over = turns.take(client);
                drop(guard);
                Ok(is_over)
            })?;
            Ok((ours, theirs))
        }));
    }
    for (clients, (patience, wait, goal)) in CLIENTS.into_iter().flat_map(|clients| PATIENCE.map(|it| (clients, it))) {
        let (store, runtime, time) = (AsyncStore::from(Store::clone(&store)), Arc::clone(&runtime), bench.time / 2);
        lines.push(Line::ratio(format!("hand-over, {clients} tasks{patience}, ns"), goal, move || {
            let theirs = tasks(&runtime, clients, time, &Lock::Theirs(Arc::default()))?;
            Ok((tasks(&runtime, clients, time, &Lock::Ours(store.clone(), wait))?, theirs))
        }));
    }
    Ok(lines)
}

/// Nanoseconds of a hand-over.
fn threads(clients: u64, time: Duration, turn: impl Fn(&Turns, u64) -> Result<bool> + Sync) -> Result<f64> {
    let (turns, turn) = (&Turns::new(), &turn);
    std::thread::scope(|scope| {
        let client = |client| {
            scope.spawn(move || {
                while !turn(turns, client)? {}
                anyhow::Ok(())
            })
        };
        let threads: Vec<_> = (0..clients).map(client).collect();
        let nanos = turns.measure(time);
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)?;
        Ok(nanos)
    })
}

#[derive(Clone)]
enum Lock {
    Ours(AsyncStore, Wait),
    Theirs(Arc<tokio::sync::Mutex<()>>),
}

impl Lock {
    async fn turn(&self, turns: &Turns, client: u64) -> Result<bool> {
        Ok(match self {
            Self::Ours(store, wait) => {
                let _guard = store.lock_with(NAME, LockOptions::exclusive().wait(*wait)).await?;
                turns.take(client)
            }
            Self::Theirs(mutex) => {
                let _guard = mutex.lock().await;
                turns.take(client)
            }
        })
    }
}

fn tasks(runtime: &Runtime, clients: u64, time: Duration, lock: &Lock) -> Result<f64> {
    let turns = Arc::new(Turns::new());
    let client = |client| {
        let (lock, turns) = (lock.clone(), Arc::clone(&turns));
        runtime.spawn(async move {
            while !lock.turn(&turns, client).await? {}
            anyhow::Ok(())
        })
    };
    let tasks: Vec<_> = (0..clients).map(client).collect();
    let nanos = turns.measure(time);
    for task in tasks {
        runtime.block_on(task)??;
    }
    Ok(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_it_again_was_handed_nothing() {
        let turns = Turns::new();
        assert!(![1, 1, 2, 2, 1].into_iter().any(|client| turns.take(client)));
        assert_eq!(turns.handed_over.load(Ordering::Relaxed), 3);
        turns.measure(Duration::ZERO);
        assert!(turns.take(1));
    }
}
