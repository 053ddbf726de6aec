//! The lock table, the statistics against independent counts, the limits, and very many locks.

mod counted;
mod limits;
mod many;
mod totals;

use std::time::{Duration, SystemTime};

use percolite::{LockEntry, LockMode, LockOptions, LockState, LockWaitPolicy, Store};

use crate::support::{LIMIT, NO_REQUESTS, asks, entries, until, within_limit};

const NAME: &str = "name";

#[test]
fn the_table_shows_holders_waiters_and_blockers() {
    let store = Store::builder().application_name("the store").in_memory().unwrap();
    let before = SystemTime::now();
    let a = store.lock_with(NAME, LockOptions::exclusive().reason("a job")).unwrap();
    let b = asks(&store, NAME, LockOptions::exclusive());
    let c = asks(&store, NAME, LockOptions::shared().reason("a read"));
    let _elsewhere = store.lock_with("another", LockOptions::shared()).unwrap();
    std::thread::sleep(Duration::from_millis(30));

    let table = store.lock_table().unwrap();
    assert_eq!((table.held, table.waiting, table.entries.len()), (2, 2, 4));
    assert_eq!(table.entries.iter().filter(|entry| entry.target == "another".into()).count(), 1);
    assert!(table.longest_wait >= Duration::from_millis(30));
    assert_eq!(table.wait_cycles, Vec::<Vec<u64>>::new());

    let entries = entries(&store, NAME);
    let shown: Vec<_> = entries.iter().map(|entry| (entry.id, entry.mode, entry.state, entry.waiter_count)).collect();
    let (exclusive, shared) = (LockMode::Exclusive, LockMode::Shared);
    let id = a.entry().id;
    assert_eq!(
        shown,
        [
            (id, exclusive, LockState::Held, 1),
            (b.id(), exclusive, LockState::Waiting, 1),
            (c.id(), shared, LockState::Waiting, 0),
        ]
    );
    let blocked: Vec<_> = entries.iter().map(|entry| entry.blocked_by.clone()).collect();
    assert_eq!(blocked, [vec![], vec![id], vec![b.id()]]);
    let tokens: Vec<_> = entries.iter().map(|entry| entry.token).collect();
    assert_eq!(tokens, [Some(a.token()), None, None]);
    let notes: Vec<_> = entries.iter().map(|entry| entry.reason.as_deref()).collect();
    assert_eq!(notes, [Some("a job"), None, Some("a read")]);
    for entry in &entries {
        let millisecond = Duration::from_millis(1);
        assert!(entry.since >= before - millisecond && entry.since <= SystemTime::now() + millisecond);
        assert_eq!((entry.lease_remaining, &entry.took_over), (None, &None));
        assert_eq!(
            (entry.holder.pid, entry.holder.application_name.as_deref()),
            (std::process::id(), Some("the store"))
        );
    }
    let here = std::thread::current();
    assert_eq!(Some(entries[0].holder.thread.as_str()), here.name());
    assert!(entries[1].holder.thread != entries[2].holder.thread);
    // Each call computes the start of a grant from two clocks, so it may differ by a millisecond.
    let at = |entry: &LockEntry| {
        let mut entry = entry.clone();
        entry.since = before;
        entry
    };
    let holders = store.lock_holders(NAME).unwrap();
    assert_eq!(holders.iter().map(at).collect::<Vec<_>>(), [at(&entries[0])]);
    assert_eq!(at(&a.entry()), at(&entries[0]));
    let status = store.status();
    assert_eq!((status.held_locks_total, status.lock_waits_total), (2, 2));
    assert_eq!(status.lock_waits.iter().map(|entry| entry.id).collect::<Vec<_>>(), [b.id(), c.id()]);

    drop(a);
    let table = store.lock_table().unwrap();
    let of_name: Vec<_> = table.entries.iter().filter(|entry| entry.target == NAME.into()).collect();
    assert_eq!((of_name[0].id, of_name[0].state, of_name[0].waiter_count), (b.id(), LockState::Held, 1));
    assert_eq!((of_name[1].state, &of_name[1].blocked_by), (LockState::Waiting, &vec![b.id()]));
    drop(b.granted());
    drop(c.granted());
    assert_eq!(entries_of(&store, NAME), NO_REQUESTS);
}

fn entries_of(store: &Store, name: &str) -> Vec<u64> {
    entries(store, name).iter().map(|entry| entry.id).collect()
}

#[test]
fn conversion_goes_before_the_queue() {
    let store = Store::in_memory().unwrap();
    let take = || store.lock_with(NAME, LockOptions::shared()).unwrap();
    let (mut first, second, third) = (take(), take(), take());
    let (id, others, token) = (first.entry().id, vec![second.entry().id, third.entry().id], first.token());
    let converting = std::thread::spawn(move || first.upgrade(LockWaitPolicy::Forever).map(|()| first));
    until("the conversion", || entries(&store, NAME)[0].state == LockState::Converting);
    let queued = asks(&store, NAME, LockOptions::shared());
    let entries = entries(&store, NAME);
    assert_eq!((entries[0].id, entries[0].token, &entries[0].blocked_by), (id, Some(token), &others));
    assert_eq!(entries[0].waiter_count, 1);
    assert_eq!((entries[3].id, &entries[3].blocked_by), (queued.id(), &vec![id]));
    assert_eq!((entries[1].waiter_count, entries[2].waiter_count), (1, 1));
    let table = store.lock_table().unwrap();
    assert_eq!((table.held, table.waiting), (2, 2));
    drop((second, third));
    drop(within_limit(move || converting.join().unwrap()).unwrap());
    drop(queued.granted());
}

#[test]
fn threads_with_one_name_form_no_wait_cycle() {
    let store = Store::in_memory().unwrap();
    let named = |work: Box<dyn FnOnce() + Send>| std::thread::Builder::new().name("worker".into()).spawn(work).unwrap();
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    let (taken, is_taken) = std::sync::mpsc::channel();
    let holding = store.clone();
    let holder = named(Box::new(move || {
        let guard = holding.lock(NAME).unwrap();
        taken.send(()).unwrap();
        let _ = is_done.recv();
        drop(guard);
    }));
    is_taken.recv_timeout(LIMIT).expect("the thread does not get the lock");
    let waiting = store.clone();
    let waiter = named(Box::new(move || drop(waiting.lock(NAME).unwrap())));
    until("the wait", || store.lock_table().unwrap().waiting == 1);
    let table = store.lock_table().unwrap();
    assert_eq!(table.entries[0].holder, table.entries[1].holder);
    assert_eq!(table.wait_cycles, Vec::<Vec<u64>>::new());
    drop(done);
    within_limit(move || (holder.join().unwrap(), waiter.join().unwrap()));
}
