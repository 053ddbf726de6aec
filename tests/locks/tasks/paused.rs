//! Tasks that are paused beyond the end of their grant: lost updates without a fence, none with
//! one, and fencing tokens for a resource outside of the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use percolite::engine::sim::SimStorage;
use percolite::{AsyncStore, CommitProtocol, Error, Store, Timestamp};
use tokio::runtime::Runtime;

use super::common::{TIMEOUT, both_runtimes};
use crate::hooked_store::{Dice, World, buffered, is_lost, spawn};
use crate::support::paused::{Pause, Set, Taken, Tally, assert_nothing_is_undone, assert_undone};

const TASKS: u64 = 4;

/// Adds a member to the set in each round.
async fn add(set: Arc<Set>, task: u64, rounds: u64, mut dice: Dice) -> Tally {
    let store = AsyncStore::from(set.world.store.clone());
    let mut tally = Tally::default();
    for _ in 0..rounds {
        let guard = match store.lock_with("n", set.options()).await {
            Ok(guard) => guard,
            // Another thread forced the lock away, or another pause let the lease expire.
            Err(error) if is_lost(&error) => continue,
            Err(error) => panic!("{error}"),
        };
        let (token, fence, pause) = (guard.token(), guard.fence(), set.draw(&mut dice));
        set.begins(token);
        let before = Arc::clone(&set);
        let read = store.run_blocking(move |_| {
            let text = before.with_one_more(task);
            Ok::<_, Error>((text, pause == Pause::Early && before.pause(token)))
        });
        let (text, is_outlived) = read.await.unwrap();
        let outlived = Arc::new(AtomicBool::new(is_outlived));
        let (with, notes, mut pause) = (Arc::clone(&set), Arc::clone(&outlived), pause);
        let write = store.transact_with(buffered(CommitProtocol::Auto), move |txn| {
            if with.fenced {
                txn.fence(&fence)?;
            }
            if std::mem::replace(&mut pause, Pause::No) == Pause::Late {
                notes.store(with.pause(token), Ordering::SeqCst);
            }
            txn.put(&with.world.rows, "set", &text)
        });
        let written = write.await;
        tally.note(task, outlived.load(Ordering::SeqCst), written);
        drop(guard);
    }
    set.ends();
    tally
}

fn run(runtime: &Runtime, taken: Taken, fenced: bool, rounds: u64) -> (Tally, u64) {
    let (mut dice, set) = (Dice::new(), Set::new(TASKS, taken, fenced));
    let operator = {
        let (set, mut dice) = (Arc::clone(&set), dice.fork());
        spawn(move || set.operate(&mut dice))
    };
    let begin = |task| runtime.spawn(add(Arc::clone(&set), task, rounds / TASKS, dice.fork()));
    let tasks: Vec<_> = (0..TASKS).map(begin).collect();
    let mut tally = Tally::default();
    for task in tasks {
        let task = async { tokio::time::timeout(2 * TIMEOUT, task).await.expect("the test hangs") };
        tally = tally.and(runtime.block_on(task).unwrap());
    }
    operator.join();
    let missing = set.missing(&tally);
    (tally, missing)
}

#[test]
fn without_a_fence_a_paused_holder_loses_updates() {
    for runtime in both_runtimes(8) {
        assert_undone(|taken| run(&runtime, taken, false, 4000));
    }
}

#[test]
fn with_a_fence_paused_holders_lose_no_update() {
    for runtime in both_runtimes(8) {
        assert_nothing_is_undone(10_000, |taken| run(&runtime, taken, true, 10_000));
    }
}

/// A resource outside of the store that refuses each token below the last accepted one.
#[derive(Default)]
struct Register(AtomicU64);

impl Register {
    fn takes(&self, token: Timestamp) -> bool {
        self.0.fetch_max(token.to_u64(), Ordering::SeqCst) <= token.to_u64()
    }
}

#[test]
fn fencing_tokens_stop_stale_writers_across_restarts() {
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
                    assert!(register.takes(guard.token()), "the write of the current holder is refused");
                    tokio::task::yield_now().await;
                    assert!(register.takes(guard.token()), "another holder has written under the lock");
                    guard.token()
                })
            };
            let tasks: Vec<_> = (0..8).map(|_| visit()).collect();
            let mut tokens = Vec::new();
            for task in tasks {
                let task = async { tokio::time::timeout(TIMEOUT, task).await.unwrap() };
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
