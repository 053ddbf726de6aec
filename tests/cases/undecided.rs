//! A commit that may or may not have taken effect returns `Undetermined`, never success and never a
//! definite abort.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use percolite::{Commit, ErrorKind, Result};

use percolite::internal::protocol::Prewrite;

use crate::driver;
use crate::environment::{Environment, Opened, assert_undetermined, eventually, some, spawn};
use crate::hooked_engine::{Act, commits};

fn write(store: &Opened) -> Result<Commit> {
    let mut txn = store.begin()?;
    txn.put(&store.rows, "a", "new")?;
    txn.put(&store.rows, "b", "new")?;
    txn.commit()
}

fn at_commit_point(store: &Opened, act: Act) {
    let primary = store.row("a");
    let once = AtomicBool::new(false);
    store.hooks.on_write(move |groups| {
        let first = commits(groups, &primary) && !once.swap(true, Ordering::SeqCst);
        if first { act } else { Act::Pass }
    });
}

pub fn a_lost_reply_is_undetermined(environment: &Environment) {
    let store = environment.open();
    store.put_all(&["a", "b"], "old");
    at_commit_point(&store, Act::Lose);
    assert_undetermined(write(&store));
    // Later calls to the engine would succeed, but the store has failed until it is reopened.
    let error = write(&store).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Closed(_)), "{error}");
    drop(store);
    let store = environment.open();
    assert_eq!([store.get("b"), store.get("a")], [some("new"), some("new")]);
}

pub fn a_lost_reply_is_read_back(environment: &Environment) {
    let store = environment.open();
    store.put_all(&["a", "b"], "old");
    at_commit_point(&store, Act::Lose);
    let commit = write(&store).unwrap();
    let record = store.engine.snapshot().unwrap().write(&store.row("a")).unwrap().unwrap();
    assert_eq!(record.commit_ts, commit.commit_ts);
    assert_eq!([store.get("a"), store.get("b")], [some("new"), some("new")]);
}

pub fn a_reply_that_cannot_be_read_back_is_undetermined(environment: &Environment) {
    for act in [Act::Lose, Act::Refuse] {
        let environment = environment.another();
        let (store, other) = (environment.open(), environment.open());
        other.put_all(&["a", "b"], "old");
        let (control, primary) = (Arc::downgrade(&store.hooks), store.row("a"));
        store.hooks.on_write(move |groups| {
            if commits(groups, &primary) {
                control.upgrade().unwrap().cut_at(0, act);
            }
            Act::Pass
        });
        assert_undetermined(write(&store));
        environment.let_locks_expire();
        let expected = if act == Act::Lose { some("new") } else { some("old") };
        assert_eq!([other.get("b"), other.get("a")], [expected.clone(), expected]);
    }
}

pub fn a_repeated_commit_point_keeps_its_timestamp(environment: &Environment) {
    let (store, other) = (environment.open(), environment.open());
    // The commit point takes effect and its reply is lost. A reader reads the rows before the owner
    // repeats its request.
    let read = Arc::new(AtomicU64::new(0));
    let (reader, rows, seen, primary) = (other.store.clone(), other.rows.clone(), Arc::clone(&read), store.row("a"));
    let applied = Arc::new(AtomicBool::new(false));
    let made = Arc::clone(&applied);
    store.hooks.on_write(move |groups| {
        if commits(groups, &primary) && !made.swap(true, Ordering::SeqCst) {
            return Act::Lose;
        }
        if made.load(Ordering::SeqCst) && seen.load(Ordering::SeqCst) == 0 {
            let found = reader.begin().unwrap().get(&rows, "b").unwrap();
            seen.store(u64::from(found.is_some()) + 1, Ordering::SeqCst);
        }
        Act::Pass
    });
    let commit = write(&store).unwrap();
    assert_eq!(read.load(Ordering::SeqCst), 2, "the reader must see the commit before its owner has a result");
    for key in ["a", "b"] {
        let record = store.engine.snapshot().unwrap().write(&store.row(key)).unwrap().unwrap();
        assert_eq!(record.commit_ts, commit.commit_ts);
    }
}

/// If the request for the commit point returns an error, it may have taken effect all the same. So
/// the result of the commit must not be a definite abort.
pub fn a_failed_commit_point_is_not_called_aborted(environment: &Environment) {
    let environment = environment.another();
    let store = environment.open();
    store.put_all(&["a", "b"], "old");
    let (control, primary) = (Arc::downgrade(&store.hooks), store.row("a"));
    store.hooks.on_write(move |groups| {
        if commits(groups, &primary) {
            control.upgrade().unwrap().cut_at(0, Act::Refuse);
        }
        Act::Pass
    });
    assert_undetermined(write(&store));
    drop(store);
    environment.let_locks_expire();
    let store = environment.open();
    assert_eq!([store.get("b"), store.get("a")], [some("old"), some("old")]);
}

/// A sync after the failed one would succeed, but prove nothing about what the failed one lost. So
/// none may follow.
pub fn a_failed_sync_fails_every_waiting_commit(environment: &Environment) {
    let store = environment.open();
    store.put("k", "old");
    // Each commit waits for the failing sync, or, if it became visible during that sync, for the
    // next one.
    let (arrived, failing) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(true)));
    let (gate, barrier) = crate::hooked_engine::Gate::closed();
    let (count, fails) = (Arc::clone(&arrived), Arc::clone(&failing));
    store.hooks.on_sync(move || {
        count.fetch_add(1, Ordering::SeqCst);
        barrier.pass();
        if fails.swap(false, Ordering::SeqCst) { Act::Refuse } else { Act::Pass }
    });
    let threads: Vec<_> = (0..8)
        .map(|number| {
            let (store, rows) = (store.store.clone(), store.rows.clone());
            spawn(move || {
                let mut txn = store.begin()?;
                txn.put(&rows, format!("k{number}"), "new")?;
                txn.commit()
            })
        })
        .collect();
    gate.wait_for_arrival();
    eventually("all commits are visible", || (0..8).all(|number| store.get(&format!("k{number}")).is_some()));
    gate.open();
    for thread in threads {
        assert_undetermined(thread.join());
    }
    assert_eq!(arrived.load(Ordering::SeqCst), 1, "a sync followed the failed one");
    for _ in 0..3 {
        let outcomes = [store.put_now("k"), store.sync(), store.snapshot().map(drop), store.begin().map(drop)];
        for outcome in outcomes {
            let error = outcome.unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Closed(_) | ErrorKind::Undetermined(_)), "{error}");
        }
    }
    drop((gate, store));
    assert_eq!(environment.open().get("k"), some("old"));
}

/// When the write of a group panics, the commits of the group and of the queue return an error
/// instead of waiting forever.
pub fn a_panic_of_the_engine_answers_every_commit(environment: &Environment) {
    let store = environment.open();
    store.put("k", "old");
    let (gate, barrier) = crate::hooked_engine::Gate::closed();
    let (before_panic, panic_barrier) = crate::hooked_engine::Gate::closed();
    let (writes, panicked) = (AtomicU64::new(0), Arc::new(AtomicBool::new(false)));
    let panics = Arc::clone(&panicked);
    store.hooks.on_write(move |groups| {
        if writes.fetch_add(1, Ordering::SeqCst) == 0 {
            barrier.pass();
        } else if groups.len() > 1 && !panics.swap(true, Ordering::SeqCst) {
            panic_barrier.pass();
            panic!("the engine panics");
        }
        Act::Pass
    });
    let (still_open, wakes) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (seen_open, seen, handle) = (Arc::clone(&still_open), Arc::clone(&wakes), store.store.clone());
    environment.clock.on_wake_by_panic(move || {
        seen.fetch_add(1, Ordering::SeqCst);
        seen_open.fetch_add(u64::from(handle.begin().is_ok()), Ordering::SeqCst);
    });
    let commit = |number: usize| {
        let (store, rows) = (store.store.clone(), store.rows.clone());
        spawn(move || {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let mut txn = store.begin()?;
                txn.put(&rows, format!("k{number}"), "new")?;
                txn.commit()
            }))
        })
    };
    // The first thread leads and is held in its write, so all other commits form the next group.
    let first = commit(0);
    gate.wait_for_arrival();
    let others: Vec<_> = (1..8).map(commit).collect();
    std::thread::sleep(std::time::Duration::from_millis(200));
    gate.open();
    before_panic.wait_for_arrival();
    let queued = commit(8);
    std::thread::sleep(std::time::Duration::from_millis(200));
    before_panic.open();
    let error = queued.join().unwrap().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Closed(_)), "the round had not taken this commit: {error}");
    let threads: Vec<_> = std::iter::once(first).chain(others).collect();
    eventually("every commit has returned", || threads.iter().all(|thread| thread.is_finished()));
    assert!(panicked.load(Ordering::SeqCst), "no group had two commits");
    let mut leaders = 0;
    for thread in threads {
        match thread.join() {
            Err(_) => leaders += 1,
            Ok(answer) => {
                let error = answer.unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Closed(_) | ErrorKind::Undetermined(_)), "{error}");
            }
        }
    }
    assert_eq!(leaders, 1, "the panic goes to the thread that wrote");
    assert!(wakes.load(Ordering::SeqCst) > 0);
    assert_eq!(still_open.load(Ordering::SeqCst), 0, "the store fails before a reply");
    environment.clock.on_wake_by_panic(|| {});
    assert!(matches!(store.begin().map(drop).unwrap_err().kind(), ErrorKind::Closed(_)));
    drop((gate, store));
    assert_eq!(environment.open().get("k"), some("old"));
}

/// The sweep syncs too. If its sync fails, the commits that wait for this sync must fail with it.
pub fn a_failed_sync_of_the_sweep_fails_waiting_commits(environment: &Environment) {
    let driver = environment.driver();
    for key in ["a", "b"] {
        driver.prewrite(&Prewrite { primary: driver::row("a"), ..driver::put(driver::txn(10), key, "new") }).unwrap();
    }
    driver.commit(driver::txn(10), "a", 20).unwrap();
    drop(driver);
    let store = environment.open_unswept();
    let (gate, barrier) = crate::hooked_engine::Gate::closed();
    let arrived = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&arrived);
    store.hooks.on_sync(move || {
        if count.fetch_add(1, Ordering::SeqCst) > 0 {
            return Act::Pass;
        }
        barrier.pass();
        Act::Refuse
    });
    let sweeping = store.store.clone();
    let sweep = spawn(move || sweeping.resolve_orphan_locks());
    gate.wait_for_arrival();
    let (writing, rows) = (store.store.clone(), store.rows.clone());
    let writer = spawn(move || {
        let mut txn = writing.begin()?;
        txn.put(&rows, "k", "new")?;
        txn.commit()
    });
    eventually("the commit is visible", || store.get("k").is_some());
    gate.open();
    sweep.join().unwrap_err();
    assert_undetermined(writer.join());
    assert_eq!(arrived.load(Ordering::SeqCst), 1, "another sync ran during the failed one or after it");
}

impl Opened {
    fn put_now(&self, key: &str) -> Result<()> {
        let mut txn = self.begin()?;
        txn.put(&self.rows, key, "later")?;
        txn.commit().map(drop)
    }
}
