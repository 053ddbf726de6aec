//! Commits that lie in the queue while a sync runs that many wait for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use percolite::{Commit, Durability, ErrorKind, Result, TxnOptions};

use crate::tap::{Act, Gate};
use crate::world::{Opened, Thread, World, eventually, some, spawn};

/// More than enough for a sync of many.
const MANY: usize = 24;

/// A store whose running sync does not end before its gate is opened, with many who wait for it.
struct SyncOfMany {
    // Let go of in this order: a store that waits for its sync cannot be closed.
    gate: Gate,
    store: Opened,
    waiting: Vec<Thread<Result<Commit>>>,
    world: World,
}

/// Such a store, and a commit that came while that sync ran and is not seen.
fn deferred(world: &World, act: Act) -> (SyncOfMany, Thread<Result<Commit>>) {
    // A thread may stand still between making commits visible and having them wait; then too few wait for the sync.
    for _ in 0..20 {
        let sync = SyncOfMany::begin(world.another(), act);
        let late = commit(&sync.store, "late");
        std::thread::sleep(Duration::from_millis(100));
        if sync.store.get("late").is_none() {
            return (sync, late);
        }
    }
    panic!("nothing is deferred");
}

impl SyncOfMany {
    /// In the end the sync is to do this.
    fn begin(world: World, act: Act) -> Self {
        let store = world.open();
        // They have to be there when it begins, so they wait for another one first.
        let [(first, before), (gate, barrier)] = [Gate::closed(), Gate::closed()];
        let syncs = AtomicU64::new(0);
        store.tap.on_sync(move || match syncs.fetch_add(1, Ordering::SeqCst) {
            0 => {
                before.pass();
                Act::Pass
            }
            1 => {
                barrier.pass();
                act
            }
            _ => Act::Pass,
        });
        // Who makes that one, and whether it serves this commit, is left to chance: the background syncs, too.
        drop(commit(&store, "alone"));
        first.wait_for_arrival();
        let keys: Vec<String> = (0..MANY).map(|number| format!("waiting {number}")).collect();
        let waiting = keys.iter().map(|key| commit(&store, key)).collect();
        eventually("all are visible", || keys.iter().all(|key| store.get(key).is_some()));
        first.open();
        gate.wait_for_arrival();
        Self { gate, store, waiting, world }
    }
}

fn commit(store: &Opened, key: &str) -> Thread<Result<Commit>> {
    let (store, rows, key) = (store.store.clone(), store.rows.clone(), key.to_owned());
    spawn(move || {
        let mut txn = store.begin()?;
        txn.put(&rows, key, "written")?;
        txn.commit()
    })
}

pub fn a_commit_during_a_sync_of_many_is_written_when_that_has_ended(world: &World) {
    let (sync, late) = deferred(world, Act::Pass);
    assert!(!late.is_finished() && sync.waiting.iter().all(|thread| !thread.is_finished()));
    sync.gate.open();
    late.join().unwrap();
    for thread in sync.waiting {
        thread.join().unwrap();
    }
    assert_eq!(sync.store.get("late"), some("written"));
    if let Some(memory) = sync.world.sim() {
        memory.crash(0);
        drop((sync.gate, sync.store));
        assert_eq!(sync.world.open().get("late"), some("written"), "acknowledged and lost");
    }
}

pub fn a_deferred_commit_is_written_with_one_that_cannot_wait(world: &World) {
    let (sync, late) = deferred(world, Act::Pass);
    let options = TxnOptions { durability: Some(Durability::Buffered), ..TxnOptions::default() };
    // It may only be coming.
    eventually("it is visible", || {
        sync.store.store.transact_with(options, |txn| txn.put(&sync.store.rows, "now", "")).unwrap();
        sync.store.get("late").is_some()
    });
    assert!(!late.is_finished(), "acknowledged by the sync that it came during");
    sync.gate.open();
    late.join().unwrap();
}

pub fn a_commit_deferred_during_a_sync_that_fails_is_not_made(world: &World) {
    let (sync, late) = deferred(world, Act::Refuse);
    sync.gate.open();
    let why = late.join().unwrap_err();
    assert!(matches!(why.kind(), ErrorKind::Closed(_)), "{why}");
    for thread in sync.waiting {
        let why = thread.join().unwrap_err();
        assert!(matches!(why.kind(), ErrorKind::Undetermined(_)), "{why}");
    }
    drop((sync.gate, sync.store));
    assert_eq!(sync.world.open().get("late"), None);
}
