//! Damaged lease rows, and very many lease rows.

#[cfg(feature = "rocks")]
use std::collections::HashSet;
use std::ops::Bound;
#[cfg(feature = "rocks")]
use std::sync::Arc;
#[cfg(feature = "rocks")]
use std::time::{Duration, Instant};

use percolite::engine::sim::SimStorage;
use percolite::engine::storage::Column;
use percolite::engine::{Engine, RowBatch};
use percolite::{ErrorKind, LockGuard, LockLostReason, Result, Store, Timestamp};

use super::{assert_about, assert_lost, has_row, lease, left, open, row_of};
use crate::hooked_engine::Walk;
use crate::hooked_store::World;
use crate::support::clocks::{Clocks, HOUR, THEN};
use crate::support::rows::{self, change, damage, row_bytes};

#[track_caller]
fn assert_corruption<T>(answer: Result<T>, name: &str) {
    let error = answer.err().expect("the row is damaged");
    assert!(matches!(error.kind(), ErrorKind::Corruption(_)), "{error}");
    assert!(error.to_string().contains(name), "{error}");
}

fn check_damaged(store: &Store, token: Timestamp) {
    assert_corruption(store.lock("bad"), "bad");
    assert_corruption(store.try_lock("bad"), "bad");
    assert_corruption(store.lock_with("bad", lease(HOUR)), "bad");
    assert_corruption(store.get_lock("bad", HOUR), "bad");
    assert_corruption(store.release_lock("bad", token), "bad");
    assert_corruption(store.is_free_lock("bad"), "bad");
    assert_corruption(store.attach_lock("bad", token), "bad");
    assert_corruption(store.lock_holders("bad"), "bad");
}

#[test]
fn a_damaged_row_blocks_its_name_and_no_other() {
    // First the whole cell is damaged, then only the lease record in its value.
    for whole_cell in [true, false] {
        let memory = SimStorage::new();
        let clocks = Clocks::new();
        let store = open(&memory, &clocks);
        let tokens = ["a", "bad", "good"].map(|name| store.get_lock(name, HOUR).unwrap().unwrap());
        store.close().unwrap();
        damage(&memory, "bad", tokens[1], whole_cell);
        for _ in 0..2 {
            let store = open(&memory, &clocks);
            check_damaged(&store, tokens[1]);
            for (name, token) in [("a", tokens[0]), ("good", tokens[2])] {
                assert_eq!(store.lock_holders(name).unwrap()[0].token, Some(token));
                assert_about(left(&store, name), HOUR);
            }
            drop(store.lock_with("other", lease(HOUR)).unwrap());
            let problems = store.verify(|_| ()).unwrap().issues;
            assert!(problems.iter().any(|problem| problem.to_string().contains("lock/bad")), "{problems:?}");
            store.close().unwrap();
        }
        let store = open(&memory, &clocks);
        assert!(store.release_lock("good", tokens[2]).unwrap());
        assert!(store.force_unlock("bad", Timestamp::from_u64(12345)).unwrap(), "any token");
        assert!(!has_row(&memory.exclusive_engine(), "bad"));
        assert!(!store.force_unlock("bad", Timestamp::from_u64(12345)).unwrap());
        assert_lost(store.attach_lock("bad", tokens[1]), LockLostReason::UnknownToken);
        let token = store.get_lock("bad", HOUR).unwrap().unwrap();
        memory.crash(0);
        let store = open(&memory, &clocks);
        assert_eq!(store.lock_holders("bad").unwrap()[0].token, Some(token));
        assert_eq!(store.verify(|_| ()).unwrap().issues, []);
    }
}

/// Damages the row of a lease that was granted by this incarnation. `first` is the first call that
/// reads the damaged row.
fn damaged_meanwhile(whole_cell: bool, first: impl FnOnce(LockGuard) -> (Result<()>, Option<LockGuard>)) {
    let memory = SimStorage::new();
    let clocks = Clocks::new();
    let store = open(&memory, &clocks);
    let other = store.lock_with("other", lease(HOUR)).unwrap();
    let guard = store.lock_with("bad", lease(HOUR).auto_renew(false)).unwrap();
    let token = guard.token();
    damage(&memory, "bad", token, whole_cell);
    // The damage did not go through the store, so it is visible only after another commit.
    store.get_lock("elsewhere", HOUR).unwrap().unwrap();
    // The grant in memory counts until a call reads the row.
    assert!(guard.is_held());
    assert_eq!(store.lock_holders("bad").unwrap()[0].token, Some(token));

    let (answer, guard) = first(guard);
    assert_corruption(answer, "bad");
    check_damaged(&store, token);
    other.renew(HOUR).unwrap();
    drop(store.lock_with("a third", lease(HOUR)).unwrap());
    other.release().unwrap();
    let problems = store.verify(|_| ()).unwrap().issues;
    assert!(problems.iter().any(|problem| problem.to_string().contains("lock/bad")), "{problems:?}");

    assert!(store.force_unlock("bad", Timestamp::from_u64(12345)).unwrap(), "any token");
    assert!(!has_row(&memory.exclusive_engine(), "bad"));
    if let Some(guard) = guard {
        // The forced unlock with another token has deleted the row. It has not ended the guard's
        // grant: only a forced unlock with the grant's own token does.
        assert_eq!(store.lock_holders("bad").unwrap()[0].token, Some(token));
        assert!(store.force_unlock("bad", token).unwrap());
        assert!(!guard.is_held());
    }
    assert!(store.is_free_lock("bad").unwrap());
    let next = store.lock_with("bad", lease(HOUR)).unwrap();
    assert!(next.token() > token);
    let kept = next.detach().unwrap();
    memory.crash(0);
    let store = open(&memory, &clocks);
    assert_eq!(store.lock_holders("bad").unwrap()[0].token, Some(kept));
    assert_eq!(store.verify(|_| ()).unwrap().issues, []);
}

#[test]
fn damaged_row_blocks_its_name_at_release() {
    for whole_cell in [true, false] {
        damaged_meanwhile(whole_cell, |guard| (guard.release(), None));
    }
}

#[test]
fn damaged_row_blocks_its_name_at_renewal() {
    for whole_cell in [true, false] {
        damaged_meanwhile(whole_cell, |guard| (guard.renew(HOUR), Some(guard)));
    }
}

/// A row with two exclusive leases: the one with the later token counts, as if it had taken over
/// the name.
#[test]
fn of_two_conflicting_leases_in_a_row_the_later_wins() {
    let memory = SimStorage::new();
    let clocks = Clocks::new();
    let store = open(&memory, &clocks);
    let tokens = ["one", "two"].map(|name| store.get_lock(name, HOUR).unwrap().unwrap());
    store.close().unwrap();
    let (one, two) = (row_bytes(tokens[0], THEN), row_bytes(tokens[1], THEN));
    let both = [&[1, 2], &one[2..], &two[2..]].concat();
    memory.exclusive_engine().apply(&[RowBatch::Changes(vec![change("both", tokens[1], both)])]).unwrap();
    let store = open(&memory, &clocks);
    assert_lost(store.attach_lock("both", tokens[0]), LockLostReason::UnknownToken);
    assert_eq!(store.attach_lock("both", tokens[1]).unwrap().token(), tokens[1]);
}

/// Opening reads the lease rows once, page by page, and writes no more with many leases than with
/// one.
#[test]
fn opening_reads_each_row_of_leases_once() {
    const MANY: usize = 10_000;
    let (memory, clocks) = (SimStorage::new(), Clocks::new());
    let store = open(&memory, &clocks);
    let token = store.get_lock("first", HOUR).unwrap().unwrap();
    store.close().unwrap();
    let opens = || {
        let world = World::open_at(&memory, clocks.builder());
        let range = row_of("").as_bytes().to_vec();
        let is_of_leases = |walk: &Walk| match &walk.over.start {
            Bound::Included(start) | Bound::Excluded(start) => start.starts_with(&range),
            Bound::Unbounded => true,
        };
        let mut walks = world.hooks.take_walks();
        walks.retain(|walk| walk.column == Column::Write && is_of_leases(walk));
        (world.hooks.writes(), walks, world)
    };
    let (writes, _, world) = opens();
    world.store.close().unwrap();
    rows::write_many(&memory.exclusive_engine(), MANY, token);
    let (writes_with, walks, world) = opens();
    assert!(writes_with <= writes, "{writes_with} writes instead of {writes}");
    assert!((2..MANY / 16).contains(&walks.len()), "{} pages", walks.len());
    for (at, walk) in walks.iter().enumerate() {
        assert!(walks[..at].iter().all(|before| !before.overlaps(walk)), "rows were read twice");
    }
    assert_eq!(world.store.lock_table().unwrap().held, MANY + 1);
}

/// Opens a store with very many leases. In at least one of ten attempts, opening must take at most
/// a second longer than without leases.
#[cfg(feature = "rocks")]
pub fn with_very_many(look: impl FnOnce(Store, &Clocks, Timestamp, usize)) {
    const MANY: usize = 100_000;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let clocks = Clocks::new();
    let open = || {
        let began = Instant::now();
        (clocks.builder().open(&path).unwrap(), began.elapsed())
    };
    let (store, _) = open();
    let token = store.get_lock("first", HOUR).unwrap().unwrap();
    store.close().unwrap();
    let (store, without) = open();
    store.close().unwrap();
    let engine: Arc<dyn Engine> = clocks.builder().durable_engine(&path).unwrap();
    rows::write_many(&*engine, MANY, token);
    drop(engine);
    // The bound of one second is part of the design. On a machine that is busy with other tests,
    // not every attempt meets it. `compare locks` (`tools/compare/src/locks/durable.rs`) measures
    // the time without other load.
    let mut times = Vec::new();
    let store = loop {
        let (store, with) = open();
        times.push(with);
        if with <= without + Duration::from_secs(1) {
            break store;
        }
        assert!(times.len() < 10, "{without:?} without leases, {times:?} with them");
        store.close().unwrap();
    };
    look(store, &clocks, token, MANY);
}

#[cfg(feature = "rocks")]
#[test]
fn a_hundred_thousand_leases_open_fast_and_are_held() {
    with_very_many(|store, clocks, token, many| {
        let table = store.lock_table().unwrap();
        assert_eq!((table.held, table.waiting), (many + 1, 0));
        let held: HashSet<String> = table.entries.iter().map(|entry| entry.target.to_string()).collect();
        assert!((0..many).all(|at| held.contains(&format!("{:?}", rows::job(at)))), "a lease is not held");
        assert!(table.entries.iter().all(|entry| entry.token == Some(token) && entry.lease_remaining == Some(HOUR)));
        for at in (0..many).step_by(997) {
            let name = rows::job(at);
            assert_eq!(store.lock_holders(&name).unwrap()[0].token, Some(token));
            assert!(store.try_lock(&name).unwrap().is_none());
        }
        assert_eq!(store.attach_lock("job 000007", token).unwrap().token(), token);
        clocks.pass(HOUR);
        assert!(store.try_lock("job 000008").unwrap().is_some());
    });
}
