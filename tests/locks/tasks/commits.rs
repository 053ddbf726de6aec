//! Transactions that tasks run while a lock is held, and whether the commits that the next holder
//! sees are durable.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use percolite::{
    AsyncStore, CommitProtocol, Error, Fence, LockOptions, LockState, Result, Store, Timestamp, Txn, TxnOptions,
};

use super::common::{Steps, TIMEOUT, beside_worlds, in_worlds, waiting};
use crate::hooked_engine::Act;
use crate::hooked_store::{World, eventually, some, text};

const PROTOCOLS: [CommitProtocol; 2] = [CommitProtocol::Auto, CommitProtocol::TwoPhase];

#[test]
fn many_tasks_under_one_lock_see_each_other_and_share_syncs() {
    const TASKS: u64 = 16;
    const EACH: u64 = 25;
    in_worlds(|world, store| async move {
        let [attempts, syncs] = [(); 2].map(|()| Arc::<AtomicU64>::default());
        let counted = Arc::clone(&syncs);
        world.hooks.on_sync(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
            Act::Pass
        });
        let count = |_| {
            let (store, rows, attempts) = (store.clone(), world.rows.clone(), Arc::clone(&attempts));
            tokio::spawn(async move {
                let mut seen = Vec::new();
                for _ in 0..EACH {
                    let (rows, attempts) = (rows.clone(), Arc::clone(&attempts));
                    let work = move |txn: &mut Txn| {
                        attempts.fetch_add(1, Ordering::SeqCst);
                        let before = text(txn.get(&rows, "count")?).map_or(0, |count| count.parse().unwrap());
                        txn.put(&rows, "count", (before + 1).to_string())?;
                        Ok::<u64, Error>(before)
                    };
                    let options = TxnOptions::default();
                    seen.push(store.transact_with_lock("n", LockOptions::exclusive(), options, work).await.unwrap());
                }
                seen
            })
        };
        let tasks: Vec<_> = (0..TASKS).map(count).collect();
        let mut seen = Vec::new();
        for task in tasks {
            seen.extend(task.await.unwrap());
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..TASKS * EACH), "each transaction must see all before it");
        assert_eq!(attempts.load(Ordering::SeqCst), TASKS * EACH, "an attempt conflicted");
        assert!(syncs.load(Ordering::SeqCst) < TASKS * EACH, "no two commits shared a sync");
        world.memory.crash(0);
        assert_eq!(World::open_at(&world.memory, Store::builder()).get("count"), some("400"));
    });
}

const KEYS: [&str; 3] = ["k", "l", "m"];

/// A call of `transact_with_lock` that commits several rows.
fn call<'a>(world: &World, store: &'a AsyncStore, protocol: CommitProtocol) -> Steps<'a, Result<()>> {
    let rows = world.rows.clone();
    let work = move |txn: &mut Txn| KEYS.iter().try_for_each(|key| txn.put(&rows, key, "first"));
    let options = TxnOptions::default().commit_protocol(protocol);
    Steps::new(store.transact_with_lock("n", LockOptions::exclusive(), options, work))
}

/// Polls the call whenever it is woken, until `holds` is true.
fn poll_until<T>(call: &mut Steps<'_, T>, what: &str, holds: impl Fn() -> bool) {
    let call = std::cell::RefCell::new(call);
    eventually(what, || {
        let call = &mut *call.borrow_mut();
        if call.is_woken_within(Duration::ZERO) {
            assert!(call.poll().is_pending(), "the call does not wait for its sync");
        }
        holds()
    });
}

#[test]
fn a_guard_after_a_call_waits_until_its_commit_is_durable() {
    beside_worlds(|world, store| {
        for protocol in PROTOCOLS {
            let held = Steps::new(store.lock("n")).end().unwrap();
            let mut first = call(world, store, protocol);
            assert!(first.poll().is_pending());
            let mut next = Steps::waiting(store.lock("n"));
            let gate = world.stop_syncs(crate::hooked_engine::Act::Pass);
            drop(held);
            poll_until(&mut first, "the commit is visible and the lock passed on", || {
                world.get("k").is_some() && waiting(store) == 0
            });
            // The poll starts a thread that waits for the sync, so the future stays pending.
            assert!(next.is_woken_within(TIMEOUT) && next.poll().is_pending());
            assert!(
                !next.is_woken_within(Duration::from_millis(50)),
                "the guard was returned before the commit was durable"
            );
            gate.open();
            let guard = next.end().unwrap();
            let seen = store.store().snapshot().unwrap().get(&world.rows, "k").unwrap();
            assert_eq!(text(seen), some("first"));
            first.end().unwrap();
            drop(guard);
            world.hooks.no_hooks();
            world.put("k", "again").unwrap();
        }
    });
}

/// A call of `transact_with_lock` frees its lock when its commit is visible but not durable, so the
/// request of the next holder must wait for the sync. Cuts the power while the next holder has its
/// guard.
fn cut_power_under_the_next_guard(protocol: CommitProtocol, waits_before: bool, world: &World, store: &AsyncStore) {
    let held = Steps::new(store.lock("n")).end().unwrap();
    let mut first = call(world, store, protocol);
    assert!(first.poll().is_pending());
    let waits = waits_before.then(|| Steps::waiting(store.lock("n")));
    let gate = world.stop_syncs(crate::hooked_engine::Act::Pass);
    drop(held);
    let passed_on = || if waits_before { waiting(store) == 0 } else { store.store().is_free_lock("n").unwrap() };
    poll_until(&mut first, "the commit is visible and its lock is free", || world.get("k").is_some() && passed_on());
    let mut next = waits.unwrap_or_else(|| Steps::new(store.lock("n")));
    assert!(next.poll().is_pending(), "the request does not wait for the sync");
    assert!(!next.is_woken_within(Duration::from_millis(50)), "the guard was returned before the commit was durable");
    gate.open();
    let guard = next.end().unwrap();
    let seen = store.store().snapshot().unwrap().get(&world.rows, "k").unwrap();
    // The next holder may have sent what it read to another process before the power cut, so the
    // commit must survive.
    world.memory.crash(0);
    assert_eq!(text(seen), some("first"), "{protocol:?}");
    let again = World::open_at(&world.memory, Store::builder());
    assert_eq!(KEYS.map(|key| again.get(key)), ["first"; 3].map(some), "{protocol:?}");
    drop((guard, first));
}

#[test]
fn reads_of_a_guard_after_a_call_survive_a_power_cut() {
    for protocol in PROTOCOLS {
        beside_worlds(|world, store| cut_power_under_the_next_guard(protocol, true, world, store));
    }
}

#[test]
fn a_guard_on_an_idle_lock_also_survives_a_power_cut() {
    for protocol in PROTOCOLS {
        beside_worlds(|world, store| cut_power_under_the_next_guard(protocol, false, world, store));
    }
}

#[test]
fn retry_after_outside_conflicts_keeps_grant_and_queue() {
    const LOSES: usize = 10;
    type Seen = (Timestamp, Vec<u64>);
    in_worlds(|world, store| async move {
        let (arrives, arrived) = std::sync::mpsc::channel();
        let (runs, with) = (tokio::runtime::Handle::current(), store.clone());
        let wait = move |number: usize| {
            let (store, arrives) = (with.clone(), arrives.clone());
            runs.spawn(async move {
                let guard = store.lock("n").await.unwrap();
                arrives.send((number, guard.token())).unwrap();
            });
            eventually("the request waits", || waiting(&with) == number + 1);
        };
        let seen = Arc::<parking_lot::Mutex<Vec<Seen>>>::default();
        let (notes, inside) = (Arc::clone(&seen), world.clone());
        let work = move |txn: &mut Txn| {
            let first = notes.lock().is_empty();
            if first {
                (0..5).for_each(&wait);
            }
            let entries = inside.store.lock_table()?.entries;
            let queue = entries.iter().filter(|entry| entry.state == LockState::Waiting).map(|entry| entry.id);
            let tries = {
                let mut notes = notes.lock();
                notes.push((inside.token_of("n"), queue.collect()));
                notes.len()
            };
            txn.get(&inside.rows, "k")?;
            if tries <= LOSES {
                inside.put("k", "another writer's")?;
            }
            txn.put(&inside.rows, "k", "the call's own")
        };
        let answer: Result<()> =
            store.transact_with_lock("n", LockOptions::exclusive(), TxnOptions::default(), work).await;
        answer.unwrap();
        let seen = std::mem::take(&mut *seen.lock());
        assert_eq!((seen.len(), seen[0].1.len()), (LOSES + 1, 5));
        assert!(seen.iter().all(|attempt| *attempt == seen[0]), "{seen:?}");
        let last = store.lock("n").await.unwrap();
        let order: Vec<(usize, Timestamp)> = arrived.try_iter().collect();
        assert!(order.iter().map(|(number, _)| *number).eq(0..5), "{order:?}");
        assert!(order.iter().map(|(_, token)| token).is_sorted() && seen[0].0 < order[0].1, "{order:?}");
        assert!(order[4].1 < last.token());
        assert_eq!(world.get("k"), some("the call's own"));
    });
}

#[test]
fn dropping_a_call_in_its_closure_releases_the_lock() {
    beside_worlds(|world, store| {
        let [(arrives, arrived), (resumes, resume)] = [std::sync::mpsc::channel(), std::sync::mpsc::channel()];
        let rows = world.rows.clone();
        let work = move |txn: &mut Txn| -> Result<()> {
            txn.put(&rows, "k", "v")?;
            arrives.send(()).unwrap();
            resume.recv_timeout(TIMEOUT).expect("the test does not let the closure continue");
            Ok(())
        };
        let mut calling =
            Steps::new(store.transact_with_lock("n", LockOptions::exclusive(), TxnOptions::default(), work));
        assert!(calling.poll().is_pending());
        arrived.recv_timeout(TIMEOUT).expect("the closure does not run");
        drop(calling);
        // The call is dropped, but its closure is still running, so the lock is held.
        assert!(Steps::new(store.try_lock("n")).end().unwrap().is_none());
        resumes.send(()).unwrap();
        eventually("the lock is free", || world.store.is_free_lock("n").unwrap());
        assert_eq!((world.get("k"), world.row_locks()), (None, 0));
    });
}

/// A fence can be moved into the closures of many tasks.
#[test]
fn a_fence_serves_many_tasks_while_the_lock_is_held() {
    in_worlds(|world, store| async move {
        let guard = store.lock("n").await.unwrap();
        let put = |fence: Fence, number: usize| {
            let (store, rows) = (store.clone(), world.rows.clone());
            tokio::spawn(async move {
                let work = move |txn: &mut Txn| {
                    txn.fence(&fence)?;
                    txn.put(&rows, number.to_string(), "")
                };
                store.transact::<_, Error, _>(work).await
            })
        };
        let tasks: Vec<_> = (0..20).map(|number| put(guard.fence(), number)).collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        let fence = guard.fence();
        guard.release().await.unwrap();
        assert!(put(fence, 99).await.unwrap().is_err());
        assert_eq!((world.get("19"), world.get("99")), (some(""), None));
    });
}
