//! Leases on a machine whose processes share a monotonic clock, beside a wall clock that is wrong.

use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::env::{Env, SystemEnv};

use super::{assert_about, has_row, lease, left, open};
use crate::support::clocks::{Clocks, DAY, HOUR, THEN};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap()
}

#[test]
fn a_lease_granted_while_the_clock_was_ahead_ends_after_its_time() {
    let memory = SimStorage::new();
    let clocks = Clocks::at(THEN + 2 * millis(HOUR)).of_boot(1);
    let store = open(&memory, &clocks);
    store.get_lock("job", MINUTE).unwrap().unwrap();
    store.close().unwrap();
    clocks.set_wall(THEN);
    // Many short openings, none of which lasts as long as the lease.
    for passed in 1..60 {
        clocks.pass(SECOND);
        let store = open(&memory, &clocks);
        assert_about(left(&store, "job"), MINUTE - passed * SECOND);
        assert!(store.try_lock("job").unwrap().is_none());
        store.close().unwrap();
    }
    clocks.pass(SECOND);
    assert!(open(&memory, &clocks).try_lock("job").unwrap().is_some());
}

/// Whatever the wall clock shows while a lease is held, another process finds it held until its
/// time is over, and no longer.
#[test]
fn no_jump_of_the_wall_clock_moves_the_end_of_a_lease() {
    for (at_grant, later) in [(THEN, THEN + 2 * millis(DAY)), (THEN, 0), (THEN + 2 * millis(HOUR), THEN), (0, THEN)] {
        let memory = SimStorage::new();
        let clocks = Clocks::at(at_grant).of_boot(1);
        let store = open(&memory, &clocks);
        let guard = store.lock_with("job", lease(HOUR)).unwrap();
        clocks.pass(HOUR / 4);
        guard.renew(HOUR).unwrap();
        clocks.set_wall(later);
        guard.renew(HOUR).unwrap();
        clocks.pass(HOUR / 4);
        memory.crash(0);
        clocks.set_wall(at_grant);
        let store = open(&memory, &clocks);
        assert_about(left(&store, "job"), HOUR / 4 * 3);
        memory.crash(0);
        clocks.set_wall(later);
        clocks.pass(HOUR / 4 * 3 - SECOND);
        let store = open(&memory, &clocks);
        assert!(store.try_lock("job").unwrap().is_none(), "{at_grant} {later}");
        memory.crash(0);
        clocks.pass(SECOND);
        assert!(open(&memory, &clocks).try_lock("job").unwrap().is_some(), "{at_grant} {later}");
    }
}

/// After a restart of the machine the wall clock decides once how much is left.
#[test]
fn after_a_restart_a_lease_from_the_future_ends_after_its_time() {
    let memory = SimStorage::new();
    let before = Clocks::at(THEN + 2 * millis(DAY)).of_boot(1);
    open(&memory, &before).get_lock("job", HOUR).unwrap().unwrap();
    memory.crash(0);
    let clocks = Clocks::at(THEN).of_boot(2);
    for quarter in 0..4 {
        let store = open(&memory, &clocks);
        assert_about(left(&store, "job"), HOUR - quarter * HOUR / 4);
        memory.crash(0);
        clocks.pass(HOUR / 4);
        // It does not decide again.
        clocks.set_wall(if quarter % 2 == 0 { THEN + 3 * millis(DAY) } else { 0 });
    }
    assert!(open(&memory, &clocks).try_lock("job").unwrap().is_some());
}

#[test]
fn a_wrong_clock_after_one_restart_does_not_end_a_lease_after_the_next() {
    let memory = SimStorage::new();
    open(&memory, &Clocks::at(THEN).of_boot(1)).get_lock("job", DAY).unwrap().unwrap();
    memory.crash(0);
    // The clock of a machine without a battery begins in 1970.
    let store = open(&memory, &Clocks::at(0).of_boot(2));
    assert_about(left(&store, "job"), DAY);
    memory.crash(0);
    let store = open(&memory, &Clocks::at(THEN + millis(HOUR)).of_boot(3));
    assert_about(left(&store, "job"), DAY - HOUR);
}

#[test]
fn rows_of_leases_that_ended_go_at_the_opening() {
    let memory = SimStorage::new();
    let clocks = Clocks::new().of_boot(1);
    let store = open(&memory, &clocks);
    for name in ["one", "two"] {
        store.get_lock(name, MINUTE).unwrap().unwrap();
    }
    store.get_lock("longer", HOUR).unwrap().unwrap();
    store.close().unwrap();
    clocks.pass(MINUTE);
    // A short opening, in which no lock is requested.
    open(&memory, &clocks).close().unwrap();
    let engine = memory.exclusive_engine();
    assert_eq!(["one", "two", "longer"].map(|name| has_row(&engine, name)), [false, false, true]);
}

#[cfg(target_os = "linux")]
#[test]
fn processes_of_this_machine_share_a_clock_that_is_not_ahead_of_theirs() {
    let (early, before) = (SystemEnv::default(), std::time::Instant::now());
    let first = early.boot_clock().expect("the machine has a clock");
    std::thread::sleep(Duration::from_millis(20));
    // Another process, or the same at a later time.
    let later = SystemEnv::default().boot_clock().unwrap();
    assert_eq!(first.boot, later.boot);
    let passed = later.elapsed - first.elapsed;
    assert!(passed >= Duration::from_millis(20) && passed <= before.elapsed(), "{passed:?}");
}
