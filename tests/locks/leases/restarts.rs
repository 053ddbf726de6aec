//! Leases across restarts and power cuts, with clocks that are wrong.

use std::sync::Arc;
use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::{
    Durability, ErrorKind, LockGuard, LockLostReason, LockOptions, LockWaitPolicy, OnExisting, Store, Timestamp,
};

use super::{answer, assert_about, assert_lost, assert_waits, begin, has_row, lease, left, open};
use crate::support::blocked_syncs::Gate;
use crate::support::clocks::{Clocks, DAY, HOUR, THEN};
use crate::support::until;

const SECOND: Duration = Duration::from_secs(1);

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap()
}

/// Grants a lease of an hour and cuts the power after half an hour. Returns the token.
fn cut_off(memory: &SimStorage) -> Timestamp {
    let clocks = Clocks::new();
    let store = open(memory, &clocks);
    let token = store.lock_with("job", lease(HOUR)).unwrap().detach().unwrap();
    clocks.pass(HOUR / 2);
    memory.crash(0);
    token
}

#[test]
fn a_clock_set_back_a_day_leaves_the_whole_lease_and_no_more() {
    let memory = SimStorage::new();
    let token = cut_off(&memory);
    let clocks = Clocks::at(THEN + millis(HOUR / 2) - millis(DAY));
    let store = open(&memory, &clocks);
    assert_about(left(&store, "job"), HOUR);
    assert!(store.try_lock("job").unwrap().is_none());
    clocks.pass(HOUR - 2 * SECOND);
    assert!(!store.is_free_lock("job").unwrap());
    clocks.pass(2 * SECOND);
    let next = store.try_lock("job").unwrap().expect("the lease has expired");
    assert!(next.token() > token);
    assert_eq!(next.entry().took_over.unwrap().token, token);
}

#[test]
fn a_clock_set_ahead_a_day_ends_a_lease_immediately() {
    let memory = SimStorage::new();
    let clocks = Clocks::new();
    let before = open(&memory, &clocks);
    let guard = before.lock_with("job", lease(HOUR)).unwrap();
    let (token, old_fence) = (guard.token(), guard.fence());
    memory.crash(0);

    let clocks = Clocks::at(THEN + millis(DAY));
    let store = open(&memory, &clocks);
    assert!(store.is_free_lock("job").unwrap());
    assert_lost(store.attach_lock("job", token), LockLostReason::UnknownToken);
    let rows = store.keyspace("rows").unwrap();
    let mut of_next_incarnation = store.begin().unwrap();
    assert!(matches!(of_next_incarnation.fence(&old_fence).unwrap_err().kind(), ErrorKind::InvalidArgument(_)));

    // In the incarnation that has granted a lease, the wall clock does not matter.
    let next = store.lock_with("job", lease(HOUR).wait(LockWaitPolicy::NoWait).auto_renew(false)).unwrap();
    assert!(next.token() > token);
    let mut txn = store.begin().unwrap();
    txn.fence(&next.fence()).unwrap();
    txn.put(&rows, "by", "next").unwrap();
    clocks.set_wall(THEN + 2 * millis(DAY));
    assert!(next.is_held());
    assert!(store.try_lock("job").unwrap().is_none());
    clocks.pass(HOUR);
    let last = store.lock_with("job", lease(HOUR).wait(LockWaitPolicy::NoWait)).unwrap();
    assert!(last.token() > next.token());
    assert_lost(txn.commit(), LockLostReason::Expired);
    assert_eq!(store.snapshot().unwrap().get(&rows, "by").unwrap(), None);
}

#[test]
fn restoring_a_dump_of_next_year_keeps_the_lease_time() {
    let source = Clocks::at(THEN + 365 * millis(DAY)).builder().in_memory().unwrap();
    let rows = source.keyspace("rows").unwrap();
    source.transact(|txn| txn.put(&rows, "key", "of the dump")).unwrap();
    // A lease of the source is not part of the dump.
    source.get_lock("of the source", HOUR).unwrap().unwrap();
    let mut dump = Vec::new();
    source.snapshot().unwrap().dump(&mut dump, |_| ()).unwrap();

    let memory = SimStorage::new();
    let clocks = Clocks::new();
    let store = open(&memory, &clocks);
    store.keyspace("rows").unwrap();
    let before = store.get_lock("before", HOUR).unwrap().unwrap();
    store.restore(dump.as_slice(), OnExisting::Replace, |_| ()).unwrap();
    let after = store.get_lock("after", HOUR).unwrap().unwrap();
    assert!(after.millis() > THEN + 364 * millis(DAY), "the oracle did not jump");
    clocks.pass(HOUR / 4);
    let check = |store: &Store| {
        for name in ["before", "after"] {
            assert_about(left(store, name), HOUR / 4 * 3);
        }
        assert!(store.is_free_lock("of the source").unwrap());
    };
    check(&store);
    memory.crash(0);
    let store = open(&memory, &Clocks::at(clocks.wall()));
    check(&store);
    assert_eq!(store.attach_lock("before", before).unwrap().token(), before);
    assert_eq!(store.attach_lock("after", after).unwrap().token(), after);
}

#[test]
fn attaching_with_the_token_continues_the_lease() {
    let memory = SimStorage::new();
    let token = cut_off(&memory);
    let clocks = Clocks::at(THEN + millis(HOUR / 2));
    let store = open(&memory, &clocks);
    let rows = store.keyspace("rows").unwrap();
    let guard = store.attach_lock("job", token).unwrap();
    assert_eq!(guard.token(), token);
    // Half of the lease time has passed, so the attached lease is renewed immediately.
    until("the lease is renewed", || left(&store, "job").unwrap() > HOUR - SECOND);
    clocks.pass(HOUR / 2 + SECOND);
    until("the lease is renewed again", || left(&store, "job").unwrap() > HOUR - SECOND);
    assert!(store.try_lock("job").unwrap().is_none());
    store
        .transact(|txn| {
            txn.fence(&guard.fence())?;
            txn.put(&rows, "by", "the attached guard")
        })
        .unwrap();
    let error = store.attach_lock("job", token).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidArgument(_)), "the lease has a guard already: {error}");
    drop(guard);
    let next = store.lock("job").unwrap();
    assert!(next.token() > token);
}

#[test]
fn attaching_with_a_wrong_or_ended_token_is_lost() {
    let clocks = Clocks::new();
    let store = clocks.builder().in_memory().unwrap();
    let token = store.get_lock("job", HOUR).unwrap().unwrap();
    for other in [token.to_u64() - 1, token.to_u64() + 1, 0, u64::MAX] {
        assert_lost(store.attach_lock("job", Timestamp::from_u64(other)), LockLostReason::UnknownToken);
    }
    assert_about(left(&store, "job"), HOUR);
    // The lease was released.
    assert!(store.release_lock("job", token).unwrap());
    assert_lost(store.attach_lock("job", token), LockLostReason::UnknownToken);
    // The lease expired, and there is no next holder.
    let token = store.get_lock("job", HOUR).unwrap().unwrap();
    clocks.pass(HOUR);
    assert_lost(store.attach_lock("job", token), LockLostReason::UnknownToken);
    // The lease expired, and there is a next holder.
    let token = store.get_lock("job", HOUR).unwrap().unwrap();
    clocks.pass(HOUR);
    let next = store.get_lock("job", HOUR).unwrap().unwrap();
    assert_lost(store.attach_lock("job", token), LockLostReason::UnknownToken);
    assert_eq!(store.attach_lock("job", next).unwrap().token(), next);
}

/// Calls `first`, which returns the token of an expired lease, or of a lease with its guard. Shuts
/// the gate and drops the guard. The next holder requests the lock without a lease, and waits until
/// the gate opens and the deletion of the lease's row is durable. Then cuts the power.
fn handed_on_and_cut_off(
    first: impl FnOnce(&Store, &Clocks) -> (Timestamp, Option<LockGuard>),
) -> (SimStorage, Timestamp) {
    let memory = SimStorage::new();
    let (clocks, gate) = (Clocks::new(), Gate::new(&memory));
    let store = clocks.builder().open_engine(Arc::<Gate>::clone(&gate)).unwrap();
    let (token, guard) = first(&store, &clocks);
    assert!(has_row(&*gate, "job"));
    gate.shut();
    drop(guard);
    let next = begin("next", {
        let store = store.clone();
        move || store.lock("job")
    });
    until("the row is being deleted", || gate.holds_a_lease());
    assert_waits(&next);
    gate.open();
    let next = answer(&next).unwrap();
    assert!(next.token() > token);
    memory.crash(0);
    (memory, token)
}

#[test]
fn dropped_lease_stays_released_after_a_power_cut() {
    let (memory, token) = handed_on_and_cut_off(|store, _| {
        let guard = store.lock_with("job", lease(HOUR)).unwrap();
        (guard.token(), Some(guard))
    });
    let store = open(&memory, &Clocks::new());
    assert_lost(store.attach_lock("job", token), LockLostReason::UnknownToken);
    assert!(store.is_free_lock("job").unwrap());
}

#[test]
fn expired_lease_stays_expired_when_the_clock_goes_back() {
    let (memory, token) = handed_on_and_cut_off(|store, clocks| {
        let token = store.get_lock("job", HOUR).unwrap().unwrap();
        clocks.pass(HOUR);
        (token, None)
    });
    let store = open(&memory, &Clocks::at(THEN - millis(DAY)));
    assert_lost(store.attach_lock("job", token), LockLostReason::UnknownToken);
    assert!(store.is_free_lock("job").unwrap());
}

#[test]
fn close_releases_leases_with_a_guard() {
    let memory = SimStorage::new();
    let clocks = Clocks::new();
    let store = open(&memory, &clocks);
    let guard = store.lock_with("job", lease(HOUR)).unwrap();
    let shared = || store.lock_with("shared", LockOptions::shared().lease(HOUR)).unwrap();
    let shared = [shared(), shared(), shared()];
    store.close().unwrap();
    assert!(!guard.is_held() && shared.iter().all(|guard| !guard.is_held()));
    assert!(matches!(guard.renew(HOUR).unwrap_err().kind(), ErrorKind::Closed(_)));
    memory.crash(0);
    for name in ["job", "shared"] {
        assert!(!has_row(&memory.exclusive_engine(), name));
    }
    let store = open(&memory, &clocks);
    for name in ["job", "shared"] {
        assert!(store.is_free_lock(name).unwrap());
        assert!(store.try_lock(name).unwrap().is_some());
    }
}

#[test]
fn a_detached_lease_is_held_after_close() {
    let memory = SimStorage::new();
    let clocks = Clocks::new();
    let store = open(&memory, &clocks);
    let token = store.lock_with("job", lease(HOUR).reason("kept")).unwrap().detach().unwrap();
    let without_lease = store.lock("other").unwrap();
    assert!(without_lease.detach().is_err(), "a guard without a lease cannot be detached");
    store.close().unwrap();
    clocks.pass(HOUR / 4);
    let store = open(&memory, &clocks);
    assert!(store.try_lock("job").unwrap().is_none());
    let holders = store.lock_holders("job").unwrap();
    assert_eq!((holders[0].token, holders[0].reason.as_deref()), (Some(token), Some("kept")));
    assert_about(left(&store, "job"), HOUR / 4 * 3);
    assert_eq!(store.attach_lock("job", token).unwrap().token(), token);
}

#[test]
fn a_returned_release_survives_a_power_cut() {
    let memory = SimStorage::new();
    let clocks = Clocks::new();
    let store = clocks.builder().durability(Durability::Buffered).open_in_memory(&memory).unwrap();
    let token = store.get_lock("by token", HOUR).unwrap().unwrap();
    let forced = store.get_lock("forced", HOUR).unwrap().unwrap();
    let guard = store.lock_with("guard", lease(HOUR)).unwrap();
    // A lease is durable when it is granted, in a buffered store too.
    memory.crash(0);
    let store = clocks.builder().durability(Durability::Buffered).open_in_memory(&memory).unwrap();
    for (name, token) in [("by token", token), ("forced", forced), ("guard", guard.token())] {
        assert_eq!(store.lock_holders(name).unwrap()[0].token, Some(token));
    }
    let guard = store.attach_lock("guard", guard.token()).unwrap();
    assert!(store.release_lock("by token", token).unwrap());
    assert!(store.force_unlock("forced", forced).unwrap());
    guard.release().unwrap();
    memory.crash(0);
    let store = open(&memory, &clocks);
    for name in ["by token", "forced", "guard"] {
        assert!(store.is_free_lock(name).unwrap(), "{name}");
    }
}
