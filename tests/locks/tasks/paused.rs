//! F3 and F4: tasks that lose their lock without knowing it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::{AsyncStore, CommitProtocol, Store, Timestamp};

use super::common::{PATIENCE, both_runtimes, in_worlds};
use crate::stops::{Dice, World, buffered, is_lost, text};

/// Adds members to a set that the lock alone protects, which says how many each task has added; an operator takes the lock away at any
/// moment. The answer is how many were acknowledged and refused.
async fn add(world: World, store: AsyncStore, task: u64, rounds: u64, fenced: bool) -> (u64, u64) {
    let (mut added, mut refused) = (0, 0);
    for _ in 0..rounds {
        let guard = match store.lock("n").await {
            Ok(guard) => guard,
            // The operator was quick.
            Err(why) if is_lost(&why) => continue,
            Err(why) => panic!("{why}"),
        };
        let (fence, rows) = (guard.fence(), world.rows.clone());
        // Not from a snapshot, which shows only what is durable.
        let reads = rows.clone();
        let set = store.with(move |store| store.begin()?.get(&reads, "set")).await;
        let mut set = members(text(set.unwrap()));
        *set.entry(task).or_default() += 1;
        let line: String = set.iter().map(|(task, members)| format!("{task}={members} ")).collect();
        let write = store.transact_with(buffered(CommitProtocol::Auto), move |txn| {
            if fenced {
                txn.fence(&fence)?;
            }
            txn.put(&rows, "set", &line)
        });
        match write.await {
            Ok(()) => added += 1,
            Err(why) if is_lost(&why) => refused += 1,
            Err(why) => panic!("{why}"),
        }
        drop(guard);
    }
    (added, refused)
}

fn members(set: Option<String>) -> BTreeMap<u64, u64> {
    let set = set.unwrap_or_default();
    let pairs = set.split_terminator(' ').map(|pair| pair.split_once('=').unwrap());
    pairs.map(|(task, members)| (task.parse().unwrap(), members.parse().unwrap())).collect()
}

/// How many members are missing, how many there are, and how many were refused.
async fn set_of_tasks(world: &World, store: &AsyncStore, rounds: u64, fenced: bool) -> (u64, u64, u64) {
    let stop = Arc::<AtomicBool>::default();
    let operator = {
        let (world, stop, mut dice) = (world.clone(), Arc::clone(&stop), Dice::new());
        tokio::task::spawn_blocking(move || {
            while !stop.load(Ordering::SeqCst) {
                for token in world.store.lock_holders("n").unwrap().iter().filter_map(|holder| holder.token) {
                    world.store.force_unlock("n", token).unwrap();
                }
                std::thread::sleep(Duration::from_micros(dice.below(200)));
            }
        })
    };
    let begin = |task| tokio::spawn(add(world.clone(), store.clone(), task, rounds / 4, fenced));
    let tasks: Vec<_> = (0..4).map(begin).collect();
    let (mut acknowledged, mut refused) = (BTreeMap::new(), 0);
    for (number, task) in tasks.into_iter().enumerate() {
        let (added, lost) = task.await.unwrap();
        acknowledged.insert(number as u64, added);
        refused += lost;
    }
    stop.store(true, Ordering::SeqCst);
    operator.await.unwrap();
    let left = members(world.get("set"));
    let missing = |(task, added): (&u64, &u64)| added.abs_diff(left.get(task).copied().unwrap_or(0));
    (acknowledged.iter().map(missing).sum(), left.values().sum(), refused)
}

#[test]
fn task_f3_a_without_a_fence_a_task_undoes_what_the_next_holder_has_done() {
    in_worlds(|world, store| async move {
        let (missing, left, refused) = set_of_tasks(&world, &store, 4000, false).await;
        assert!(missing > 0, "nothing is lost, so nothing is tested");
        assert!(left > 0 && refused == 0);
    });
}

#[test]
fn task_f3_b_with_a_fence_no_task_undoes_anything() {
    in_worlds(|world, store| async move {
        let (missing, left, refused) = set_of_tasks(&world, &store, 10_000, true).await;
        assert_eq!(missing, 0);
        assert!(left > 1000 && refused > 10, "{left} {refused}");
    });
}

/// Something outside of the store that takes only tokens at least as great as the last one it took.
#[derive(Default)]
struct Register(AtomicU64);

impl Register {
    fn takes(&self, token: Timestamp) -> bool {
        self.0.fetch_max(token.to_u64(), Ordering::SeqCst) <= token.to_u64()
    }
}

#[test]
fn task_f4_what_takes_growing_tokens_accepts_no_stale_write_of_a_task_over_restarts_and_power_cuts() {
    for runtime in both_runtimes(8) {
        let (memory, register, mut dice) = (SimStorage::new(), Arc::<Register>::default(), Dice::new());
        let mut stale = Vec::new();
        for _ in 0..30 {
            let world = World::open_at(&memory, Store::builder());
            let store = AsyncStore::from(world.store.clone());
            let visit = || {
                let (store, register) = (store.clone(), Arc::clone(&register));
                runtime.spawn(async move {
                    let guard = store.lock("n").await.unwrap();
                    assert!(register.takes(guard.token()), "a holder is taken for one that was paused");
                    tokio::task::yield_now().await;
                    assert!(register.takes(guard.token()), "the lock was shared");
                    guard.token()
                })
            };
            let tasks: Vec<_> = (0..8).map(|_| visit()).collect();
            let mut tokens = Vec::new();
            for task in tasks {
                let task = async { tokio::time::timeout(PATIENCE, task).await.unwrap() };
                tokens.push(runtime.block_on(task).unwrap());
            }
            let newest = *tokens.iter().max().unwrap();
            stale.extend(tokens.into_iter().filter(|token| *token < newest));
            assert!(stale.iter().all(|token| !register.takes(*token)), "a stale write is accepted");
            stale.push(newest);
            match dice.below(3) {
                0 => store.store().clone().close().unwrap(),
                1 => drop(memory.crash(0)),
                _ => drop(memory.crash(dice.below(100))),
            }
        }
    }
}
