//! Transactions that run while a lock is held: `transact_with_lock`, and whether the commits that
//! the next holder sees are durable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use percolite::{
    Commit, CommitProtocol, ErrorKind, LockGuard, LockOptions, LockState, Result, Snapshot, Store, TxnOptions,
};

use crate::hooked_engine::{Act, Gate};
use crate::hooked_store::{TIMEOUT, Worker, World, eventually, some, spawn, text};

#[test]
fn many_threads_under_one_lock_see_each_other_and_share_syncs() {
    const THREADS: u64 = 16;
    const EACH: u64 = 25;
    let world = World::open();
    let [attempts, syncs] = [(); 2].map(|()| Arc::<AtomicU64>::default());
    let counted = Arc::clone(&syncs);
    world.hooks.on_sync(move || {
        counted.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(1));
        Act::Pass
    });
    let count = || {
        let (World { store, rows, .. }, attempts) = (world.clone(), Arc::clone(&attempts));
        spawn(move || -> Result<Vec<u64>> {
            let once = || {
                store.transact_with_lock("n", LockOptions::exclusive(), TxnOptions::default(), |txn| {
                    attempts.fetch_add(1, Ordering::SeqCst);
                    let before = text(txn.get(&rows, "count")?).map_or(0, |count| count.parse().unwrap());
                    txn.put(&rows, "count", (before + 1).to_string())?;
                    Ok(before)
                })
            };
            (0..EACH).map(|_| once()).collect()
        })
    };
    let threads: Vec<_> = (0..THREADS).map(|_| count()).collect();
    let mut seen: Vec<u64> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..THREADS * EACH), "each transaction must see all before it");
    assert_eq!(attempts.load(Ordering::SeqCst), THREADS * EACH, "an attempt conflicted");
    assert!(syncs.load(Ordering::SeqCst) < THREADS * EACH, "no two commits shared a sync");
    world.memory.crash(0);
    assert_eq!(World::open_at(&world.memory, Store::builder()).get("count"), some("400"));
}

/// How the first holder commits. In each way the lock is free before the commit is durable.
#[derive(Clone, Copy, Debug)]
enum First {
    Call(CommitProtocol),
    Guard,
}

const CALLS: [First; 2] = [First::Call(CommitProtocol::Auto), First::Call(CommitProtocol::TwoPhase)];

/// The first holder's commit, which is visible, but not durable until the gate opens. Its lock is
/// already free for the next holder.
struct Unsynced {
    // Dropped before `world`: this opens the gate, so that the store can sync and close.
    gate: Gate,
    opened: Arc<AtomicBool>,
    first: Worker<Result<()>>,
    world: World,
}

/// What the next holder finds.
struct Next {
    /// Whether the lock was granted after the sync.
    after_sync: bool,
    /// The row in the next holder's snapshot.
    seen: Option<String>,
}

impl Unsynced {
    /// Makes the first holder commit while syncs are stopped, and calls `next`, which starts the
    /// next holder. If `waits`, `next` is called while the first holder is in its closure;
    /// otherwise once the commit is visible and the lock has left the lock table.
    fn begin(
        how: First,
        next: impl FnOnce(&World, &Arc<AtomicBool>) -> Worker<Next>,
        waits: bool,
    ) -> (Self, Worker<Next>) {
        let world = World::open();
        world.put("before", "").unwrap();
        let gate = world.stop_syncs(Act::Pass);
        let opened = Arc::<AtomicBool>::default();
        let [(arrives, arrived), (resumes, resume)] = [channel(), channel()];
        let first = {
            let world = world.clone();
            spawn(move || {
                hold(how, &world, || {
                    arrives.send(()).unwrap();
                    resume.recv_timeout(TIMEOUT).expect("the test does not let the closure continue");
                })
            })
        };
        arrived.recv_timeout(TIMEOUT).expect("the closure does not run");
        let table = || world.store.lock_table().unwrap();
        let next = if waits {
            let next = next(&world, &opened);
            eventually("the next holder waits", || table().waiting == 1);
            resumes.send(()).unwrap();
            eventually("the commit is visible", || world.get("k").is_some());
            next
        } else {
            resumes.send(()).unwrap();
            eventually("the commit is visible", || world.get("k").is_some());
            eventually("the lock is free and idle", || table().entries.is_empty());
            assert!(world.store.is_free_lock("n").unwrap());
            next(&world, &opened)
        };
        let granted = || next.is_finished() || (table().held, table().waiting) == (1, 0);
        eventually("the next holder has the lock in memory", granted);
        (Self { gate, opened, first, world }, next)
    }

    /// Opens the gate after 100 ms. A call that does not wait for the sync would return before the
    /// gate opens.
    fn end(self, next: Worker<Next>) -> (World, Next, Result<()>) {
        std::thread::sleep(Duration::from_millis(100));
        self.opened.store(true, Ordering::SeqCst);
        self.gate.open();
        let next = next.join();
        (self.world, next, self.first.join())
    }
}

fn hold(how: First, world: &World, work: impl Fn()) -> Result<()> {
    let World { store, rows, .. } = world;
    match how {
        First::Call(protocol) => {
            let options = TxnOptions::default().commit_protocol(protocol);
            store.transact_with_lock("n", LockOptions::exclusive(), options, |txn| {
                work();
                // Several rows, so that a two-phase commit has secondaries left after its commit
                // point.
                ["k", "l", "m"].iter().try_for_each(|key| txn.put(rows, key, "first"))
            })
        }
        First::Guard => {
            let guard = store.lock("n")?;
            let mut txn = store.begin()?;
            txn.fence(&guard.fence())?;
            work();
            txn.put(rows, "k", "first")?;
            let commit = spawn(move || -> Result<Commit> { txn.commit() });
            eventually("the commit is visible", || world.get("k").is_some());
            drop(guard);
            commit.join().map(drop)
        }
    }
}

/// Takes the lock, reads the row in a snapshot, then calls `then`.
fn take(world: &World, opened: &Arc<AtomicBool>, then: impl FnOnce(&World) + Send + 'static) -> Worker<Next> {
    let (world, opened) = (world.clone(), Arc::clone(opened));
    spawn(move || {
        let guard: LockGuard = world.store.lock("n").unwrap();
        let after_sync = opened.load(Ordering::SeqCst);
        let snapshot = world.store.snapshot().and_then(|snapshot: Snapshot| snapshot.get(&world.rows, "k"));
        then(&world);
        drop(guard);
        Next { after_sync, seen: text(snapshot.unwrap()) }
    })
}

fn cut_power(world: &World) {
    world.memory.crash(0);
}

#[test]
fn a_guard_after_a_call_waits_until_its_commit_is_durable() {
    for how in CALLS {
        let (unsynced, next) = Unsynced::begin(how, |world, opened| take(world, opened, |_| {}), true);
        assert!(!unsynced.first.is_finished(), "{how:?}: the call does not wait until its commit is durable");
        let (_world, Next { after_sync, seen }, first) = unsynced.end(next);
        assert!(after_sync, "{how:?}: the guard was returned before the commit was durable");
        assert_eq!(seen, some("first"), "{how:?}: the commit is not in its snapshot");
        first.unwrap();
    }
}

#[test]
fn reads_of_a_guard_after_a_call_survive_a_power_cut() {
    for how in CALLS {
        // The next holder may have sent what it read to another process before the power cut, so
        // the commit must survive.
        let (unsynced, next) = Unsynced::begin(how, |world, opened| take(world, opened, cut_power), true);
        let (world, Next { seen, .. }, _) = unsynced.end(next);
        assert_eq!(seen, some("first"), "{how:?}");
        let again = World::open_at(&world.memory, Store::builder());
        assert_eq!(["k", "l", "m"].map(|key| again.get(key)), ["first"; 3].map(some), "{how:?}");
    }
}

#[test]
fn a_guard_on_an_idle_lock_also_survives_a_power_cut() {
    for how in [CALLS[0], CALLS[1], First::Guard] {
        let (unsynced, next) = Unsynced::begin(how, |world, opened| take(world, opened, cut_power), false);
        let (world, Next { after_sync, seen }, _) = unsynced.end(next);
        assert!(after_sync, "{how:?}: the guard was returned before the commit was durable");
        assert_eq!(seen, some("first"), "{how:?}: the commit is not in its snapshot");
        assert_eq!(World::open_at(&world.memory, Store::builder()).get("k"), some("first"), "{how:?}");
    }
}

#[test]
fn guard_after_a_failed_sync_returns_closed() {
    let world = World::open();
    let gate = world.stop_syncs(Act::Refuse);
    let first = {
        let world = world.clone();
        spawn(move || hold(CALLS[0], &world, || {}))
    };
    eventually("the commit is visible", || world.get("k").is_some());
    let next = {
        let world = world.clone();
        spawn(move || world.store.lock("n").map(drop))
    };
    let granted = || next.is_finished() || world.store.lock_table().unwrap().held == 1;
    eventually("the next holder has the lock in memory", granted);
    gate.open();
    let error = next.join().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Closed(_)), "the guard itself commits nothing: {error}");
    let error = first.join().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Undetermined(_)), "{error}");
}

#[test]
fn retry_after_outside_conflicts_keeps_grant_and_queue() {
    const LOSES: usize = 10;
    let world = World::open();
    let World { store, rows, .. } = &world;
    let (arrives, arrived) = channel();
    let mut waiters = Vec::new();
    let mut wait = |number| {
        let (world, arrives) = (world.clone(), arrives.clone());
        waiters.push(spawn(move || {
            let guard = world.store.lock("n").unwrap();
            arrives.send((number, guard.token())).unwrap();
        }));
        eventually("the request waits", || store.lock_table().unwrap().waiting > number);
    };
    let queue = || -> Vec<u64> {
        let entries = store.lock_table().unwrap().entries;
        entries.iter().filter(|entry| entry.state == LockState::Waiting).map(|entry| entry.id).collect()
    };
    let (mut tokens, mut queues) = (Vec::new(), Vec::new());
    let answer: Result<()> = store.transact_with_lock("n", LockOptions::exclusive(), TxnOptions::default(), |txn| {
        if tokens.is_empty() {
            (0..5).for_each(&mut wait);
        }
        tokens.push(world.token_of("n"));
        queues.push(queue());
        txn.get(rows, "k")?;
        if tokens.len() <= LOSES {
            world.put("k", "another writer's")?;
        }
        txn.put(rows, "k", "the call's own")
    });
    answer.unwrap();
    assert_eq!(tokens.len(), LOSES + 1, "the number of attempts");
    assert!(tokens.iter().all(|token| *token == tokens[0]), "{tokens:?}");
    assert!(queues.iter().all(|queue| queue.len() == 5 && *queue == queues[0]), "{queues:?}");
    waiters.into_iter().for_each(Worker::join);
    let order: Vec<_> = arrived.try_iter().collect();
    assert!(order.iter().map(|(number, _)| *number).eq(0..5), "{order:?}");
    assert!(order.iter().map(|(_, token)| token).is_sorted() && order[0].1 > tokens[0], "{order:?}");
    assert_eq!(world.get("k"), some("the call's own"));
}
