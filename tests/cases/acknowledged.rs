//! What an acknowledged commit guarantees, and what an acknowledgement waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use percolite::Timestamp;
use percolite::{Durability, ErrorKind, Txn, TxnOptions};

use crate::environment::{Environment, eventually, long, some, spawn, text};
use crate::hooked_engine::{Act, Gate};

pub fn a_snapshot_sees_what_was_acknowledged(environment: &Environment) {
    let store = environment.open();
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let (store, rows) = (store.store.clone(), store.rows.clone());
            let mut dice = crate::environment::Dice(environment.seed ^ thread);
            spawn(move || {
                let (mut last, mut key) = (Timestamp::ZERO, format!("own {thread}"));
                for number in 0..80_u64 {
                    let durability = Some(if dice.below(2) == 0 { Durability::Sync } else { Durability::Buffered });
                    let mut txn = store.begin_with(TxnOptions::default().durability(durability)).unwrap();
                    txn.put(&rows, &key, number.to_be_bytes()).unwrap();
                    let commit = txn.commit().unwrap();
                    for _ in 0..=dice.below(2) {
                        let snapshot = store.snapshot().unwrap();
                        assert_eq!(snapshot.get(&rows, &key).unwrap(), Some(number.to_be_bytes().into()));
                        assert!(snapshot.read_ts() >= commit.commit_ts && snapshot.read_ts() >= last);
                        last = snapshot.read_ts();
                    }
                    if dice.below(10) == 0 {
                        key = format!("own {thread} {number}");
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join());
}

pub fn a_sync_acknowledges_no_commit_that_came_during_it(environment: &Environment) {
    let store = environment.open();
    // The first sync is held after it has done its work and before its call returns.
    let (gate, barrier) = Gate::closed();
    let (engine, syncs) = (Arc::downgrade(&store.engine), Arc::new(AtomicU64::new(0)));
    let count = Arc::clone(&syncs);
    store.hooks.on_sync(move || {
        if count.fetch_add(1, Ordering::SeqCst) > 0 {
            return Act::Pass;
        }
        // This call runs the hook again, which lets it pass, because it is the second sync.
        engine.upgrade().unwrap().sync().unwrap();
        barrier.pass();
        Act::Done
    });
    let commit = |key: &'static str| {
        let (store, rows) = (store.store.clone(), store.rows.clone());
        spawn(move || {
            let mut txn = store.begin().unwrap();
            txn.put(&rows, key, "acknowledged").unwrap();
            txn.commit().unwrap();
        })
    };
    let first = commit("first");
    gate.wait_for_arrival();
    let second = commit("second");
    eventually("the second commit is visible", || store.get("second").is_some());
    gate.open();
    first.join();
    second.join();
    assert!(syncs.load(Ordering::SeqCst) >= 3, "a commit was acknowledged by a sync that had begun before it");
    if let Some(memory) = environment.sim() {
        memory.crash(0);
        drop((gate, store));
        let store = environment.open();
        assert_eq!([store.get("first"), store.get("second")], [some("acknowledged"), some("acknowledged")]);
    }
}

fn buffered() -> TxnOptions {
    TxnOptions::default().durability(Durability::Buffered)
}

pub fn a_closures_own_error_waits_until_its_reads_are_durable(environment: &Environment) {
    let store = environment.open();
    // The hook is set before the commit, because a background sync could follow the commit
    // immediately.
    let (gate, barrier) = Gate::closed();
    store.hooks.on_sync(move || {
        barrier.pass();
        Act::Pass
    });
    store.store.transact_with(buffered(), |txn| txn.put(&store.rows, "k", "unsynced")).unwrap();
    let works: [fn(&percolite::Store, &percolite::Keyspace) -> String; 3] = [
        |store, rows| {
            store
                .transact(|txn| anyhow::bail!("own: {:?}", text(txn.get(rows, "k")?)))
                .map(|()| String::new())
                .unwrap_err()
                .to_string()
        },
        |store, rows| {
            store.transact(|txn| Ok::<_, percolite::Error>(format!("own: {:?}", text(txn.get(rows, "k")?)))).unwrap()
        },
        |store, rows| {
            let txn = store.begin().unwrap();
            let seen = format!("own: {:?}", text(txn.get(rows, "k").unwrap()));
            txn.rollback().unwrap();
            seen
        },
    ];
    let waiting = works.map(|work| {
        let (store, rows) = (store.store.clone(), store.rows.clone());
        spawn(move || work(&store, &rows))
    });
    gate.wait_for_arrival();
    std::thread::sleep(Duration::from_millis(150));
    assert!(waiting.iter().all(|thread| !thread.is_finished()), "a call returned before its reads were durable");
    gate.open();
    for thread in waiting {
        assert_eq!(thread.join(), "own: Some(\"unsynced\")");
    }
    if let Some(memory) = environment.sim() {
        assert_eq!(memory.unsynced(), 0);
    }
}

pub fn a_failed_sync_replaces_a_closures_own_error(environment: &Environment) {
    let store = environment.open();
    // Each sync fails, but is held until the closure has read the row. Otherwise a background sync
    // could fail the store before that read.
    let (gate, barrier) = Gate::closed();
    store.hooks.on_sync(move || {
        barrier.pass();
        Act::Refuse
    });
    store.store.transact_with(buffered(), |txn| txn.put(&store.rows, "k", "unsynced")).unwrap();
    let answer = store.store.transact(|txn| {
        txn.get(&store.rows, "k")?;
        gate.open();
        Err::<(), _>(anyhow::anyhow!("own"))
    });
    let error = answer.unwrap_err();
    let kind = error.downcast_ref::<percolite::Error>().map(percolite::Error::kind);
    assert!(matches!(kind, Some(ErrorKind::Undetermined(_))), "{error:?}");
}

pub fn an_unsynced_commit_does_not_cost_the_durable_version(environment: &Environment) {
    let mut conclusive = 0;
    for choice in [0, 1, 2, 3, 0, 0, 0] {
        let environment = environment.another();
        let store = environment.open();
        store.put("k", long("durable"));
        store.sync().unwrap();
        let unsynced = [Some(long("lost")), Some("lost".into()), None].map(|value| {
            let work = |txn: &mut Txn| match &value {
                Some(value) => txn.put(&store.rows, "k", value),
                None => txn.delete(&store.rows, "k"),
            };
            store.store.transact_with(buffered(), work).unwrap();
            environment.sim().unwrap().unsynced()
        });
        let crash = environment.sim().unwrap().crash(choice);
        drop(store);
        let seen = environment.open().get("k");
        let past = [Some(long("durable")), Some(long("lost")), some("lost"), None];
        assert!(past.contains(&seen), "{seen:?}");
        // A background sync, or one for the oracle's reservation, may make some of the commits
        // durable. Such a round is not counted.
        let is_growing = unsynced[0] > 0 && unsynced.is_sorted_by(|a, b| a < b);
        let none_was_synced = is_growing && crash.lost >= unsynced[2];
        if choice == 0 && none_was_synced {
            assert_eq!(seen, Some(long("durable")));
            conclusive += 1;
        }
    }
    assert!(conclusive > 0);
}

/// A close that does not wait for a commit under way must not leave it acknowledged and unsynced.
pub fn a_commit_that_a_close_overtakes_is_not_acknowledged(environment: &Environment) {
    let store = environment.open();
    let (gate, barrier) = Gate::closed();
    let (hooks, rows, committer) = (store.hooks.clone(), store.rows.clone(), store.store.clone());
    let commit = spawn(move || {
        let mut txn = committer.begin_with(buffered())?;
        txn.put(&rows, "k", "late")?;
        // The batch is applied, and the view that shows it is not published yet.
        hooks.after_next_view(move || barrier.pass());
        txn.commit()
    });
    gate.wait_for_arrival();
    store.store.clone().close().unwrap();
    gate.open();
    let error = commit.join().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Undetermined(_)), "{error:?}");
}
