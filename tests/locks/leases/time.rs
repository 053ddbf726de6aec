//! How long a lease lasts while its process runs.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::{ErrorKind, LockGuard, LockLostReason, LockOptions, LockWaitPolicy, Result, Store};

use super::{answer, assert_about, assert_lost, assert_waits, begin, has_row, lease, left, open};
use crate::support::blocked_syncs::Gate;
use crate::support::clocks::{Clocks, DAY, HOUR};
use crate::support::{rows, until};

const SECOND: Duration = Duration::from_secs(1);

fn with_timeout(seconds: u64) -> LockOptions {
    LockOptions::exclusive().wait(LockWaitPolicy::Timeout(SECOND * u32::try_from(seconds).unwrap()))
}

#[test]
fn a_guard_is_renewed_for_many_times_its_lease() {
    let memory = SimStorage::new();
    let clocks = Clocks::new();
    let store = open(&memory, &clocks);
    let guard = store.lock_with("job", lease(HOUR)).unwrap();
    let waiter = begin("waiter", {
        let store = store.clone();
        move || store.lock_with("job", with_timeout(DAY.as_secs()))
    });
    until("the request waits", || clocks.is_parked("waiter"));
    for _ in 0..7 {
        // If the background thread were between its clock read and its wait, it would miss the time
        // that passes here.
        until("the background thread waits", || clocks.is_parked("percolite-leases"));
        clocks.pass(HOUR / 2);
        until("the lease is renewed", || left(&store, "job").unwrap() > HOUR - SECOND);
        assert!(guard.is_held());
    }
    assert_waits(&waiter);
    // The row is renewed too: a later incarnation finds the whole lease time.
    memory.crash(0);
    let later = open(&memory, &Clocks::at(clocks.wall()));
    assert_about(left(&later, "job"), HOUR);
    assert_eq!(later.lock_holders("job").unwrap()[0].token, Some(guard.token()));
}

#[test]
fn a_lease_without_renewal_is_lost_at_its_end() {
    let (memory, clocks) = (SimStorage::new(), Clocks::new());
    let store = clocks.builder().application_name("first").open_in_memory(&memory).unwrap();
    let guard = store.lock_with("job", lease(HOUR).auto_renew(false)).unwrap();
    clocks.pass(HOUR - SECOND);
    assert!(guard.is_held());
    assert!(store.try_lock("job").unwrap().is_none());
    clocks.pass(SECOND);
    assert!(!guard.is_held());
    assert!(guard.wait_lost(Duration::ZERO));
    let next = store.try_lock("job").unwrap().unwrap();
    let taken_over = next.entry().took_over.expect("the grant took over an expired lease");
    assert_eq!((taken_over.token, taken_over.holder.application_name.as_deref()), (guard.token(), Some("first")));
    assert!(
        !has_row(&memory.exclusive_engine(), "job"),
        "the lock was returned before the row of the first lease was deleted"
    );
    let stats = store.lock_stats();
    assert_eq!((stats.leases_expired, stats.leases_taken_over, stats.lost, stats.force_unlocked), (1, 1, 1, 0));
    // The late drop of the first guard does not end the next grant.
    drop(guard);
    assert!(next.is_held());
    drop(next);
    assert_eq!((store.lock_table().unwrap().entries.len(), store.lock_stats().lost), (0, 1));
    assert_eq!(rows::names(&memory.exclusive_engine()), [""; 0]);
}

#[test]
fn a_late_renewal_is_lost() {
    let clocks = Clocks::new();
    let store = clocks.builder().in_memory().unwrap();
    let guard = store.lock_with("job", lease(HOUR).auto_renew(false)).unwrap();
    clocks.pass(HOUR / 2);
    guard.renew(HOUR).unwrap();
    clocks.pass(HOUR - SECOND);
    assert!(guard.is_held());
    clocks.pass(SECOND);
    assert_lost(guard.renew(HOUR), LockLostReason::Expired);
    assert!(!guard.is_held());
    let next = store.lock_with("job", lease(HOUR).auto_renew(false)).unwrap();
    assert_lost(guard.renew(HOUR), LockLostReason::Expired);
    assert_about(left(&store, "job"), HOUR);
    assert!(next.is_held());
}

/// A lease of ten seconds that expires while its renewal is being written, and a waiting request.
fn renewed_on_the_edge(end: impl FnOnce(&SimStorage)) -> Edge {
    let memory = SimStorage::new();
    let (clocks, gate) = (Clocks::new(), Gate::new(&memory));
    let store = clocks.builder().open_engine(Arc::<Gate>::clone(&gate)).unwrap();
    let guard = store.lock_with("job", lease(10 * SECOND).auto_renew(false)).unwrap();
    let waiter = begin("waiter", {
        let store = store.clone();
        move || store.lock_with("job", with_timeout(3600))
    });
    until("the request waits", || clocks.is_parked("waiter"));
    clocks.pass(9 * SECOND);
    gate.shut();
    let renewal = begin("renewal", move || (guard.renew(10 * SECOND), guard));
    until("the renewal is being written", || gate.holds_a_lease());
    clocks.pass(2 * SECOND);
    assert_waits(&waiter);
    end(&memory);
    gate.open();
    let (renewed, guard) = answer(&renewal);
    if renewed.is_ok() {
        until("the request waits for the new end", || clocks.is_parked("waiter"));
    }
    Edge { clocks, store, renewed, guard, waiter }
}

struct Edge {
    clocks: Arc<Clocks>,
    store: Store,
    renewed: Result<()>,
    guard: LockGuard,
    waiter: Receiver<Result<LockGuard>>,
}

#[test]
fn the_result_of_a_late_renewal_says_if_the_lease_survived() {
    let Edge { clocks, store, renewed, guard, waiter } = renewed_on_the_edge(|_| ());
    renewed.unwrap();
    assert!(guard.is_held());
    let rows = store.keyspace("rows").unwrap();
    let mut txn = store.begin().unwrap();
    txn.fence(&guard.fence()).unwrap();
    txn.put(&rows, "by", "the renewed holder").unwrap();
    txn.commit().unwrap();
    // The renewal began at nine seconds, so the lease ends at nineteen. Eleven seconds have passed.
    clocks.pass(7 * SECOND);
    assert!(guard.is_held());
    assert_waits(&waiter);
    clocks.pass(SECOND);
    assert!(!guard.is_held());
    assert_eq!(answer(&waiter).unwrap().entry().took_over.unwrap().token, guard.token());

    let Edge { renewed, guard, waiter, .. } = renewed_on_the_edge(|memory| memory.fail_sync(1));
    let error = renewed.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Undetermined(_)), "{error}");
    assert!(!guard.is_held());
    let error = answer(&waiter).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Closed(_)), "{error}");
}

#[test]
fn front_waiter_watches_the_lease() {
    let (memory, clocks) = (SimStorage::new(), Clocks::new());
    let store = open(&memory, &clocks);
    let token = store.get_lock("job", 10 * SECOND).unwrap().unwrap();
    let waiting = [("first", 2), ("second", 60), ("third", 60)].map(|(name, seconds)| {
        let waiter = begin(name, {
            let store = store.clone();
            move || store.lock_with("job", with_timeout(seconds))
        });
        until("the request waits", || clocks.is_parked(name));
        waiter
    });
    let before = clocks.looks("second");
    clocks.pass(2 * SECOND);
    let error = answer(&waiting[0]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::LockNotAvailable(_)), "{error}");
    // Only the request at the front of the queue watches the lease.
    until("the second is woken", || clocks.looks("second") > before);
    assert_waits(&waiting[1]);
    until("the second waits", || clocks.is_parked("second"));
    let (second, third) = (clocks.looks("second"), clocks.looks("third"));
    clocks.pass(8 * SECOND - Duration::from_millis(100));
    assert_waits(&waiting[1]);
    assert_eq!((clocks.looks("second"), clocks.looks("third")), (second, third), "a request was woken early");
    clocks.pass(Duration::from_millis(100));
    let guard = answer(&waiting[1]).unwrap();
    assert_eq!(guard.entry().took_over.unwrap().token, token);
    assert_waits(&waiting[2]);
    assert_eq!(clocks.looks("third"), third, "a request was woken without a grant");
    assert_eq!(store.lock_stats().wakeups, 0, "the second request was awake");
    drop(guard);
    drop(answer(&waiting[2]).unwrap());
    assert_eq!(store.lock_stats().wakeups, 1);
    let stats = store.lock_stats();
    assert_eq!((stats.leases_expired, stats.leases_taken_over, stats.lost, stats.exclusive.timeouts), (1, 1, 1, 1));
    assert_eq!(store.lock_table().unwrap().entries.len(), 0);
    assert_eq!(rows::names(&memory.exclusive_engine()), [""; 0]);
}

#[test]
fn rows_of_expired_leases_are_deleted_after_a_day() {
    let memory = SimStorage::new();
    let clocks = Clocks::new();
    let engine = memory.exclusive_engine();
    let store = open(&memory, &clocks);
    store.get_lock("job", HOUR).unwrap().unwrap();
    store.get_lock("longer", 2 * DAY).unwrap().unwrap();
    let wait_for_checks = || {
        let before = clocks.looks("percolite-bg");
        until("the background thread has checked", || clocks.looks("percolite-bg") > before + 4);
    };
    clocks.pass(HOUR + DAY - SECOND);
    wait_for_checks();
    assert!(has_row(&engine, "job"));
    clocks.pass(2 * SECOND);
    until("the row is deleted", || !has_row(&engine, "job"));
    wait_for_checks();
    assert!(has_row(&engine, "longer"));
    assert_eq!(store.lock_table().unwrap().held, 1);
}

#[test]
fn wait_lost_misses_no_end_between_its_look_and_its_wait() {
    let clocks = Clocks::new();
    let store = clocks.builder().in_memory().unwrap();
    // The thread is stopped at each of its clock reads before it waits, and the grant ends there.
    for looks in 0..4 {
        let guard = Arc::new(store.lock_with("job", lease(HOUR).auto_renew(false)).unwrap());
        clocks.stall_after("loses", looks);
        let lost = begin("loses", {
            let guard = Arc::clone(&guard);
            move || guard.wait_lost(DAY)
        });
        until("the thread is stopped", || clocks.is_stalled());
        assert!(store.force_unlock("job", guard.token()).unwrap());
        clocks.resume();
        assert!(answer(&lost), "{looks}");
    }
}
