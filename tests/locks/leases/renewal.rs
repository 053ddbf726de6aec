//! Renewals of leases: by the background thread and by calls of `renew`.

use std::sync::Arc;
use std::time::Duration;

use percolite::LockLostReason;
use percolite::engine::sim::SimStorage;

use super::{answer, assert_about, assert_lost, begin, has_row, lease, left, open};
use crate::support::blocked_syncs::Gate;
use crate::support::clocks::{Clocks, HOUR};
use crate::support::rows::damage;
use crate::support::until;

const SECOND: Duration = Duration::from_secs(1);
const RENEWER: &str = "percolite-leases";

#[test]
fn renewal_interval_follows_the_last_renewal() {
    let clocks = Clocks::new();
    let store = clocks.builder().in_memory().unwrap();
    let guard = store.lock_with("job", lease(HOUR)).unwrap();
    until("the background thread waits", || clocks.is_parked(RENEWER));
    std::thread::sleep(Duration::from_millis(20));
    guard.renew(10 * SECOND).unwrap();
    for _ in 0..5 {
        assert_about(left(&store, "job"), 10 * SECOND);
        clocks.pass(6 * SECOND);
        until("the lease is renewed", || !guard.is_held() || left(&store, "job").unwrap() > 9 * SECOND);
        assert!(guard.is_held(), "the lease was renewed too late");
    }
}

#[test]
fn detach_then_attach_adds_no_extra_renewals() {
    let clocks = Clocks::new();
    let store = clocks.builder().in_memory().unwrap();
    let mut guard = store.lock_with("job", lease(HOUR)).unwrap();
    for _ in 0..20 {
        let token = guard.detach().unwrap();
        guard = store.attach_lock("job", token).unwrap();
    }
    std::thread::sleep(Duration::from_millis(50));
    let before = clocks.looks(RENEWER);
    std::thread::sleep(Duration::from_millis(50));
    assert!(clocks.looks(RENEWER) - before < 100, "the background thread does not wait");
    // The lease is still renewed.
    clocks.pass(HOUR / 2);
    until("the lease is renewed", || left(&store, "job").unwrap() > HOUR - SECOND);
}

/// The row and the memory agree, whichever renewal returns from its sync first.
#[test]
fn of_two_concurrent_renewals_the_last_written_counts() {
    let memory = SimStorage::new();
    let (clocks, gate) = (Clocks::new(), Gate::new(&memory));
    let store = clocks.builder().open_engine(Arc::<Gate>::clone(&gate)).unwrap();
    let guard = Arc::new(store.lock_with("job", lease(HOUR).auto_renew(false)).unwrap());
    let rows = store.keyspace("rows").unwrap();
    gate.shut();
    // The thread of this commit makes the sync that the gate blocks. So the thread of the first
    // renewal waits for a sync and makes none itself.
    let leader = begin("leads", {
        let store = store.clone();
        move || store.transact(|txn| txn.put(&rows, "key", "value"))
    });
    until("the leader syncs", || gate.is_held());
    let first = begin("first", {
        let guard = Arc::clone(&guard);
        move || guard.renew(2 * HOUR)
    });
    until("the renewal is being written", || gate.holds_a_lease());
    // The first renewal becomes durable, but its thread is stalled before it updates the lease in
    // memory.
    clocks.stall("first");
    gate.open();
    until("the renewal is stalled", || clocks.is_stalled());
    guard.renew(HOUR / 60).unwrap();
    clocks.resume();
    answer(&first).unwrap();
    answer(&leader).unwrap();
    clocks.pass(HOUR / 60 - SECOND);
    assert!(guard.is_held());
    clocks.pass(SECOND);
    assert!(!guard.is_held(), "the end that was written first counts");
    memory.crash(0);
    let store = open(&memory, &Clocks::new());
    assert_about(left(&store, "job"), HOUR / 60);
}

#[test]
fn a_renewal_overtaken_by_the_end_writes_nothing() {
    let memory = SimStorage::new();
    let clocks = Clocks::new();
    let store = open(&memory, &clocks);
    let guard = Arc::new(store.lock_with("job", lease(HOUR).auto_renew(false)).unwrap());
    // The renewal has checked that the lease is valid, and is about to begin its transaction.
    clocks.stall_after("renews", 3);
    let renewal = begin("renews", {
        let guard = Arc::clone(&guard);
        move || guard.renew(10 * HOUR)
    });
    until("the renewal is stalled", || clocks.is_stalled());
    assert!(store.force_unlock("job", guard.token()).unwrap());
    clocks.resume();
    assert_lost(answer(&renewal), LockLostReason::Forced);
    assert!(!has_row(&memory.exclusive_engine(), "job"));
}

#[test]
fn background_renewal_keeps_a_concurrent_renewal() {
    let memory = SimStorage::new();
    let (clocks, gate) = (Clocks::new(), Gate::new(&memory));
    let store = clocks.builder().open_engine(Arc::<Gate>::clone(&gate)).unwrap();
    let guard = Arc::new(store.lock_with("job", lease(HOUR)).unwrap());
    gate.shut();
    let renewal = begin("renews", {
        let guard = Arc::clone(&guard);
        move || guard.renew(10 * HOUR)
    });
    until("the renewal is being written", || gate.holds_a_lease());
    // Half of the old lease time has passed.
    let looks = clocks.looks(RENEWER);
    clocks.pass(HOUR / 2 + SECOND);
    until("the background thread has checked", || clocks.looks(RENEWER) > looks);
    std::thread::sleep(Duration::from_millis(20));
    gate.open();
    answer(&renewal).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert!(left(&store, "job").unwrap() > 9 * HOUR);
    memory.crash(0);
    let store = open(&memory, &Clocks::at(clocks.wall()));
    assert!(left(&store, "job").unwrap() > 9 * HOUR);
}

#[test]
fn a_renewal_counts_from_before_its_row_is_written() {
    let memory = SimStorage::new();
    let (clocks, gate) = (Clocks::new(), Gate::new(&memory));
    let store = clocks.builder().open_engine(Arc::<Gate>::clone(&gate)).unwrap();
    let guard = Arc::new(store.lock_with("job", lease(HOUR).auto_renew(false)).unwrap());
    for renews in [HOUR, HOUR / 2] {
        gate.shut();
        let renewal = {
            let guard = Arc::clone(&guard);
            begin("renews", move || guard.renew(renews))
        };
        until("the row is written", || gate.holds_a_lease());
        clocks.pass(600 * SECOND);
        gate.open();
        answer(&renewal).unwrap();
        assert_about(left(&store, "job"), renews - 600 * SECOND);
    }
}

#[test]
fn a_lease_ends_at_its_time_after_a_failed_renewal() {
    let memory = SimStorage::new();
    let clocks = Clocks::new();
    let store = open(&memory, &clocks);
    let guard = store.lock_with("job", lease(HOUR)).unwrap();
    damage(&memory, "job", guard.token(), false);
    store.get_lock("elsewhere", HOUR).unwrap().unwrap();
    assert!(guard.renew(HOUR).is_err());
    assert!(guard.is_held(), "the earlier lease time is still valid");
    clocks.pass(HOUR);
    assert!(!guard.is_held());
    assert!(guard.wait_lost(Duration::ZERO));
}

#[test]
fn renewals_that_are_due_together_are_one_commit() {
    let memory = SimStorage::new();
    let clocks = Clocks::new();
    let store = open(&memory, &clocks);
    let names: Vec<String> = (0..300).map(|number| format!("job {number}")).collect();
    let guards: Vec<_> = names.iter().map(|name| store.lock_with(name, lease(HOUR)).unwrap()).collect();
    until("the background thread waits", || clocks.is_parked(RENEWER));
    let before = store.stats().commits_one_phase;
    clocks.pass(HOUR / 2);
    until("all leases are renewed", || names.iter().all(|name| left(&store, name).unwrap() > HOUR - SECOND));
    assert_eq!(store.stats().commits_one_phase - before, 1);
    assert!(guards.iter().all(percolite::LockGuard::is_held));
    // The rows are renewed, too.
    memory.crash(0);
    let store = open(&memory, &Clocks::at(clocks.wall()));
    assert!(names.iter().all(|name| left(&store, name).unwrap() > HOUR - SECOND));
}

#[test]
fn a_lease_that_cannot_be_renewed_delays_no_other() {
    let memory = SimStorage::new();
    let clocks = Clocks::new();
    let store = open(&memory, &clocks);
    let names: Vec<String> = (0..20).map(|number| format!("job {number}")).collect();
    let guards: Vec<_> = names.iter().map(|name| store.lock_with(name, lease(HOUR)).unwrap()).collect();
    until("the background thread waits", || clocks.is_parked(RENEWER));
    damage(&memory, "job 7", guards[7].token(), false);
    store.get_lock("elsewhere", HOUR).unwrap().unwrap();
    let renewed = |name: &String| {
        let holders = store.lock_holders(name).unwrap_or_default();
        holders.first().and_then(|holder| holder.lease_remaining).is_some_and(|left| left > HOUR - SECOND)
    };
    clocks.pass(HOUR / 2);
    until("the others are renewed", || names.iter().filter(|name| renewed(name)).count() == 19);
    assert!(!renewed(&names[7]));
    clocks.pass(HOUR / 2);
    until("the others are renewed again", || names.iter().filter(|name| renewed(name)).count() == 19);
    let held: Vec<bool> = guards.iter().map(percolite::LockGuard::is_held).collect();
    assert_eq!(held.iter().filter(|held| !**held).count(), 1, "{held:?}");
}
