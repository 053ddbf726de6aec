//! F5: transactions under a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use percolite::{
    Commit, CommitProtocol, ErrorKind, LockGuard, LockOptions, LockState, Result, Snapshot, Store, TxnOptions,
};

use crate::stops::{PATIENCE, Worker, World, eventually, some, spawn, text};
use crate::tap::{Act, Gate};

#[test]
fn f5_a_many_threads_under_one_lock_see_each_other_and_share_syncs() {
    const THREADS: u64 = 16;
    const EACH: u64 = 25;
    let world = World::open();
    let [attempts, syncs] = [(); 2].map(|()| Arc::<AtomicU64>::default());
    let counted = Arc::clone(&syncs);
    world.tap.on_sync(move || {
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
    assert!(seen.into_iter().eq(0..THREADS * EACH), "each has to see all before it");
    assert_eq!(attempts.load(Ordering::SeqCst), THREADS * EACH, "one has met another");
    assert!(syncs.load(Ordering::SeqCst) < THREADS * EACH, "each has waited for a sync of its own");
    world.memory.crash(0);
    assert_eq!(World::open_at(&world.memory, Store::builder()).get("count"), some("400"));
}

/// How a holder commits that is done before its commit is durable.
#[derive(Clone, Copy, Debug)]
enum First {
    Call(CommitProtocol),
    Guard,
}

const CALLS: [First; 2] = [First::Call(CommitProtocol::Auto), First::Call(CommitProtocol::TwoPhase)];

/// A commit that is visible, whose lock is free for the next one, and which is not durable before the gate is opened.
struct Unsynced {
    // Let go of first: a store that waits for a sync cannot be closed.
    gate: Gate,
    opened: Arc<AtomicBool>,
    first: Worker<Result<()>>,
    world: World,
}

/// What the next holder has found.
struct Next {
    /// Whether the commit was durable.
    after_sync: bool,
    /// In its snapshot.
    seen: Option<String>,
}

impl Unsynced {
    /// Has `next` run while the first holder is in its closure, which goes on when `next` says so.
    fn begin(
        how: First,
        next: impl FnOnce(&World, &Arc<AtomicBool>) -> Worker<Next>,
        waits: bool,
    ) -> (Self, Worker<Next>) {
        let world = World::open();
        world.put("before", "").unwrap();
        let gate = world.stop_syncs(Act::Pass);
        let opened = Arc::<AtomicBool>::default();
        let [(holds, held), (goes, go)] = [channel(), channel()];
        let first = {
            let world = world.clone();
            spawn(move || {
                hold(how, &world, || {
                    holds.send(()).unwrap();
                    go.recv_timeout(PATIENCE).unwrap();
                })
            })
        };
        held.recv_timeout(PATIENCE).unwrap();
        let table = || world.store.lock_table().unwrap();
        let next = if waits {
            let next = next(&world, &opened);
            eventually("the next one waits", || table().waiting == 1);
            goes.send(()).unwrap();
            eventually("it is visible", || world.get("k").is_some());
            next
        } else {
            goes.send(()).unwrap();
            eventually("it is visible", || world.get("k").is_some());
            eventually("the lock is free and idle", || table().entries.is_empty());
            assert!(world.store.is_free_lock("n").unwrap());
            next(&world, &opened)
        };
        let granted = || next.is_finished() || (table().held, table().waiting) == (1, 0);
        eventually("the next one has it in memory", granted);
        (Self { gate, opened, first, world }, next)
    }

    /// Opens the gate, when the others have had their time.
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
            let options = TxnOptions { commit_protocol: Some(protocol), ..TxnOptions::default() };
            store.transact_with_lock("n", LockOptions::exclusive(), options, |txn| {
                work();
                // Several, so that two phases have rows behind the commit point.
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
            eventually("it is visible", || world.get("k").is_some());
            drop(guard);
            commit.join().map(drop)
        }
    }
}

/// Takes the lock by a guard, and then does this.
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
fn f5_b_a_guard_behind_a_call_is_returned_when_the_commit_is_durable() {
    for how in CALLS {
        let (unsynced, next) = Unsynced::begin(how, |world, opened| take(world, opened, |_| {}), true);
        assert!(!unsynced.first.is_finished(), "{how:?}: the call does not wait for its commit");
        let (_world, Next { after_sync, seen }, first) = unsynced.end(next);
        assert!(after_sync, "{how:?}: returned before the commit was durable");
        assert_eq!(seen, some("first"), "{how:?}: not in its snapshot");
        first.unwrap();
    }
}

#[test]
fn f5_c_what_a_guard_behind_a_call_acts_upon_survives_a_power_cut() {
    for how in CALLS {
        // Outside is this test, which remembers that there was a guard, and what it has read.
        let (unsynced, next) = Unsynced::begin(how, |world, opened| take(world, opened, cut_power), true);
        let (world, Next { seen, .. }, _) = unsynced.end(next);
        assert_eq!(seen, some("first"), "{how:?}");
        let again = World::open_at(&world.memory, Store::builder());
        assert_eq!(["k", "l", "m"].map(|key| again.get(key)), ["first"; 3].map(some), "{how:?}");
    }
}

#[test]
fn f5_d_so_it_is_where_nobody_waited_and_the_lock_was_free_and_idle_in_between() {
    for how in [CALLS[0], CALLS[1], First::Guard] {
        let (unsynced, next) = Unsynced::begin(how, |world, opened| take(world, opened, cut_power), false);
        let (world, Next { after_sync, seen }, _) = unsynced.end(next);
        assert!(after_sync, "{how:?}: returned before the commit was durable");
        assert_eq!(seen, some("first"), "{how:?}: not in its snapshot");
        assert_eq!(World::open_at(&world.memory, Store::builder()).get("k"), some("first"), "{how:?}");
    }
}

#[test]
fn a_guard_behind_a_commit_that_cannot_be_made_durable_is_refused_as_closed() {
    let world = World::open();
    let gate = world.stop_syncs(Act::Refuse);
    let first = {
        let world = world.clone();
        spawn(move || hold(CALLS[0], &world, || {}))
    };
    eventually("it is visible", || world.get("k").is_some());
    let next = {
        let world = world.clone();
        spawn(move || world.store.lock("n").map(drop))
    };
    let granted = || next.is_finished() || world.store.lock_table().unwrap().held == 1;
    eventually("the next one has it in memory", granted);
    gate.open();
    let why = next.join().unwrap_err();
    assert!(matches!(why.kind(), ErrorKind::Closed(_)), "nothing of it is undetermined: {why}");
    let why = first.join().unwrap_err();
    assert!(matches!(why.kind(), ErrorKind::Undetermined(_)), "{why}");
}

#[test]
fn f5_e_a_call_that_loses_to_outsiders_keeps_its_grant_and_its_waiters_their_order() {
    const LOSES: usize = 10;
    let world = World::open();
    let World { store, rows, .. } = &world;
    let (tells, told) = channel();
    let mut waiters = Vec::new();
    let mut wait = |number| {
        let (world, tells) = (world.clone(), tells.clone());
        waiters.push(spawn(move || {
            let guard = world.store.lock("n").unwrap();
            tells.send((number, guard.token())).unwrap();
        }));
        eventually("it waits", || store.lock_table().unwrap().waiting > number);
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
            world.put("k", "an outsider's")?;
        }
        txn.put(rows, "k", "its own")
    });
    answer.unwrap();
    assert_eq!(tokens.len(), LOSES + 1, "how often it was tried");
    assert!(tokens.iter().all(|token| *token == tokens[0]), "{tokens:?}");
    assert!(queues.iter().all(|queue| queue.len() == 5 && *queue == queues[0]), "{queues:?}");
    waiters.into_iter().for_each(Worker::join);
    let order: Vec<_> = told.try_iter().collect();
    assert!(order.iter().map(|(number, _)| *number).eq(0..5), "{order:?}");
    assert!(order.iter().map(|(_, token)| token).is_sorted() && order[0].1 > tokens[0], "{order:?}");
    assert_eq!(world.get("k"), some("its own"));
}
