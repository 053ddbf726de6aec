//! What closing does to leases that are about to come or go. Whoever got no token must not be kept out by a row.

use std::sync::Arc;

use percolite::ErrorKind;
use percolite::engine::sim::SimStorage;

use super::{answer, assert_waits, begin, has_row, lease, open};
use crate::support::clocks::{Clocks, HOUR};
use crate::support::gate::Gate;
use crate::support::until;

/// A later life finds the name free, and no row.
#[track_caller]
fn assert_free(memory: &SimStorage, clocks: &Arc<Clocks>) {
    memory.crash(0);
    assert!(!has_row(&memory.embedded(), "job"), "the row is there");
    assert!(open(memory, clocks).try_lock("job").unwrap().is_some());
}

#[test]
fn closing_waits_for_a_release_under_way() {
    let memory = SimStorage::new();
    let (clocks, gate) = (Clocks::new(), Gate::new(&memory));
    let store = clocks.builder().open_engine(Arc::<Gate>::clone(&gate)).unwrap();
    let guard = store.lock_with("job", lease(HOUR)).unwrap();
    gate.shut();
    let release = begin("releases", move || guard.release());
    until("the row goes", || gate.holds_a_lease());
    let closing = begin("closes", move || store.close());
    assert_waits(&closing);
    gate.open();
    answer(&closing).unwrap();
    let released = answer(&release);
    assert!(released.is_ok() || matches!(released.unwrap_err().kind(), ErrorKind::Closed(_)));
    assert_free(&memory, &clocks);
}

#[test]
fn closing_ends_the_row_of_a_release_that_comes_too_late_to_do_it() {
    let memory = SimStorage::new();
    let clocks = Clocks::new();
    let store = open(&memory, &clocks);
    let guard = store.lock_with("job", lease(HOUR)).unwrap();
    // It has released the lock in memory, and is about to begin a transaction.
    clocks.stall("releases");
    let release = begin("releases", move || guard.release());
    until("it is stalled", || clocks.is_stalled());
    let closing = begin("closes", move || store.close());
    answer(&closing).unwrap();
    clocks.let_go();
    let why = answer(&release).unwrap_err();
    assert!(matches!(why.kind(), ErrorKind::Closed(_)), "{why}");
    assert_free(&memory, &clocks);
}

#[test]
fn closing_ends_a_lease_that_is_being_granted() {
    let memory = SimStorage::new();
    let (clocks, gate) = (Clocks::new(), Gate::new(&memory));
    let store = clocks.builder().open_engine(Arc::<Gate>::clone(&gate)).unwrap();
    gate.shut();
    let lock = begin("locks", {
        let store = store.clone();
        move || store.lock_with("job", lease(HOUR)).map(drop)
    });
    until("the row comes", || gate.holds_a_lease());
    let closing = begin("closes", move || store.close());
    assert_waits(&closing);
    gate.open();
    answer(&closing).unwrap();
    let why = answer(&lock).unwrap_err();
    assert!(matches!(why.kind(), ErrorKind::Closed(_)), "{why}");
    assert_free(&memory, &clocks);
}

#[test]
fn a_dropped_guard_leaves_no_row_behind_a_close() {
    let memory = SimStorage::new();
    let clocks = Clocks::new();
    for _ in 0..50 {
        let store = open(&memory, &clocks);
        let guard = store.lock_with("job", lease(HOUR)).unwrap();
        let dropping = begin("drops", move || drop(guard));
        store.close().unwrap();
        answer(&dropping);
        assert_free(&memory, &clocks);
    }
}
