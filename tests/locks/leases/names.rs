//! Leases without a guard, by name and token: `get_lock`, `release_lock`, `is_free_lock`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::{Store, Timestamp};

use super::{assert_about, begin, has_row, left, open};
use crate::support::clocks::{Clocks, HOUR};
use crate::support::rows;

#[test]
fn a_name_is_free_then_taken_then_free() {
    let memory = SimStorage::new();
    let store = open(&memory, &Clocks::new());
    let mut printed = vec![store.is_free_lock("some_resource").unwrap()];
    let token = store.get_lock("some_resource", Duration::from_secs(3600)).unwrap().unwrap();
    printed.push(store.is_free_lock("some_resource").unwrap());
    assert!(store.release_lock("some_resource", token).unwrap());
    printed.push(store.is_free_lock("some_resource").unwrap());
    assert_eq!(printed, [true, false, true]);
    assert!(!has_row(&memory.exclusive_engine(), "some_resource"));
}

#[test]
fn a_second_get_lock_returns_none_and_changes_nothing() {
    let clocks = Clocks::new();
    let memory = SimStorage::new();
    let store = open(&memory, &clocks);
    let token = store.get_lock("some_resource", HOUR).unwrap().unwrap();
    clocks.pass(HOUR / 2);
    assert_eq!(store.get_lock("some_resource", 10 * HOUR).unwrap(), None);
    let other = begin("other", {
        let store = store.clone();
        move || store.get_lock("some_resource", 10 * HOUR).unwrap()
    });
    assert_eq!(super::answer(&other), None);
    // The holder and its lease time are unchanged.
    assert_eq!(store.lock_holders("some_resource").unwrap()[0].token, Some(token));
    assert_about(left(&store, "some_resource"), HOUR / 2);
    // One caller may hold any number of leases at a time.
    assert!(store.get_lock("another", HOUR).unwrap().is_some());
    assert!(!store.is_free_lock("some_resource").unwrap());
    assert_eq!(store.lock_stats().exclusive.timeouts, 2);
    assert_eq!(rows::names(&memory.exclusive_engine()), ["another", "some_resource"]);
}

#[test]
fn a_wrong_token_releases_nothing() {
    let memory = SimStorage::new();
    let clocks = Clocks::new();
    let store = open(&memory, &clocks);
    let earlier = store.get_lock("job", HOUR).unwrap().unwrap();
    assert!(store.release_lock("job", earlier).unwrap());
    let elsewhere = store.get_lock("other", HOUR).unwrap().unwrap();
    let token = store.get_lock("job", HOUR).unwrap().unwrap();
    for wrong in [earlier, elsewhere, Timestamp::ZERO, Timestamp::MAX] {
        assert!(!store.release_lock("job", wrong).unwrap());
        assert!(!store.force_unlock("job", wrong).unwrap());
        assert!(!store.release_lock("unused", wrong).unwrap());
    }
    memory.crash(0);
    let store = open(&memory, &Clocks::at(clocks.wall()));
    assert_eq!(store.lock_holders("job").unwrap()[0].token, Some(token));
    assert_about(left(&store, "job"), HOUR);
    assert!(store.release_lock("job", token).unwrap());
    assert!(!store.release_lock("job", token).unwrap(), "a token releases once");
    // The lease of the other name remains.
    assert_eq!(rows::names(&memory.exclusive_engine()), ["other"]);
    assert_eq!((store.lock_stats().lost, store.lock_table().unwrap().held), (0, 1));
}

#[test]
fn an_expired_lease_is_free_before_any_sweep() {
    let memory = SimStorage::new();
    let clocks = Clocks::new();
    let store = open(&memory, &clocks);
    let token = store.get_lock("job", HOUR).unwrap().unwrap();
    clocks.pass(HOUR);
    assert!(has_row(&memory.exclusive_engine(), "job"), "the row has been swept");
    assert!(store.is_free_lock("job").unwrap());
    assert!(!store.release_lock("job", token).unwrap(), "the lease had expired");
    assert!(store.lock_holders("job").unwrap().is_empty());
    let next = store.get_lock("job", HOUR).unwrap().unwrap();
    assert!(next > token && !store.is_free_lock("job").unwrap());
}

/// A new grant has no token for a short time. Zero must not count as the token of such a grant.
#[test]
fn no_grant_is_ended_by_the_zero_token() {
    let store = Store::in_memory().unwrap();
    let (takes, done) = (store.clone(), Arc::new(AtomicBool::new(false)));
    let taken = begin("takes", {
        let done = Arc::clone(&done);
        move || {
            while !done.load(Ordering::Relaxed) {
                takes.lock("job").map(drop)?;
            }
            Ok::<_, percolite::Error>(())
        }
    });
    let ended = (0..200_000).any(|_| store.force_unlock("job", Timestamp::ZERO).unwrap());
    done.store(true, Ordering::Relaxed);
    super::answer(&taken).unwrap();
    assert!(!ended);
}
