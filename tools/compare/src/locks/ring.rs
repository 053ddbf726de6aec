//! Threads and tasks that hand one lock on: each asks again as soon as it has let go, so whoever has waited longest is next.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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

/// Under the lock: who had it last. Only what goes from one to another is a hand-over.
struct Turns {
    last: AtomicU64,
    handed_over: AtomicU64,
    wanted: u64,
}

impl Turns {
    fn new(wanted: u64) -> Self {
        Self { last: AtomicU64::new(NOBODY), handed_over: AtomicU64::new(0), wanted }
    }

    /// Whether there have been enough.
    fn take(&self, client: u64) -> bool {
        let before = self.handed_over.load(Ordering::Relaxed);
        if self.last.swap(client, Ordering::Relaxed) != client {
            self.handed_over.store(before + 1, Ordering::Relaxed);
        }
        before >= self.wanted
    }
}

pub fn lines(bench: &Bench) -> Result<Vec<Line<'_>>> {
    let store = bench.open("ring", Durability::Buffered)?;
    let runtime = Arc::new(tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).build()?);
    let mut lines = Vec::new();
    for (clients, (patience, wait, goal)) in CLIENTS.into_iter().flat_map(|clients| PATIENCE.map(|it| (clients, it))) {
        let (store, wanted) = (store.clone(), bench.turns / 2);
        lines.push(Line::ratio(format!("hand-over, {clients} threads{patience}, ns"), goal, move || {
            let mutex = Mutex::new(());
            let theirs = threads(clients, wanted, |turns, client| {
                let guard = mutex.lock();
                let is_over = turns.take(client);
                MutexGuard::unlock_fair(guard);
                Ok(is_over)
            })?;
            let ours = threads(clients, wanted, |turns, client| {
                let guard = store.lock_with(NAME, LockOptions::exclusive().wait(wait))?;
                let is_over = turns.take(client);
                drop(guard);
                Ok(is_over)
            })?;
            Ok((ours, theirs))
        }));
    }
    for (clients, (patience, wait, goal)) in CLIENTS.into_iter().flat_map(|clients| PATIENCE.map(|it| (clients, it))) {
        let (store, runtime, wanted) = (AsyncStore::from(Store::clone(&store)), Arc::clone(&runtime), bench.turns);
        lines.push(Line::ratio(format!("hand-over, {clients} tasks{patience}, ns"), goal, move || {
            let theirs = tasks(&runtime, clients, wanted, &Lock::Theirs(Arc::default()))?;
            Ok((tasks(&runtime, clients, wanted, &Lock::Ours(store.clone(), wait))?, theirs))
        }));
    }
    Ok(lines)
}

/// Nanoseconds of a hand-over.
fn threads(clients: u64, wanted: u64, turn: impl Fn(&Turns, u64) -> Result<bool> + Sync) -> Result<f64> {
    let (turns, turn) = (&Turns::new(wanted), &turn);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let client = |client| {
            scope.spawn(move || {
                while !turn(turns, client)? {}
                anyhow::Ok(())
            })
        };
        let threads: Vec<_> = (0..clients).map(client).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
    })?;
    Ok(nanos(began, turns))
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

fn tasks(runtime: &Runtime, clients: u64, wanted: u64, lock: &Lock) -> Result<f64> {
    let turns = Arc::new(Turns::new(wanted));
    let began = Instant::now();
    runtime.block_on(async {
        let client = |client| {
            let (lock, turns) = (lock.clone(), Arc::clone(&turns));
            runtime.spawn(async move {
                while !lock.turn(&turns, client).await? {}
                anyhow::Ok(())
            })
        };
        let tasks: Vec<_> = (0..clients).map(client).collect();
        for task in tasks {
            task.await??;
        }
        anyhow::Ok(())
    })?;
    Ok(nanos(began, &turns))
}

#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn nanos(began: Instant, turns: &Turns) -> f64 {
    began.elapsed().as_nanos() as f64 / turns.handed_over.load(Ordering::Relaxed).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_it_again_was_handed_nothing() {
        let turns = Turns::new(2);
        let over: Vec<bool> = [1, 1, 2, 2, 1].into_iter().map(|client| turns.take(client)).collect();
        assert_eq!(over, [false, false, false, true, true]);
        assert_eq!(turns.handed_over.load(Ordering::Relaxed), 3);
    }
}
