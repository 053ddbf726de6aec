//! The result of `release` on a guard with a lease.

use std::sync::Arc;

use percolite::engine::sim::SimStorage;
use percolite::{ErrorKind, LockGuard, Store};

use super::{answer, assert_waits, begin, has_row, lease, open};
use crate::hooked_engine::Act;
use crate::hooked_store::World;
use crate::support::blocked_syncs::Gate;
use crate::support::clocks::{Clocks, HOUR};
use crate::support::until;

#[test]
fn release_on_a_failed_store_is_an_error() {
    for had_failed in [false, true] {
        let world = World::open();
        let guard = world.store.lock_with("n", lease(HOUR)).unwrap();
        let gate = world.stop_syncs(Act::Refuse);
        gate.open();
        if had_failed {
            world.put("k", "v").unwrap_err();
        }
        let error = guard.release().expect_err("the deletion of its row is not durable");
        let expected = |kind: &ErrorKind| match kind {
            ErrorKind::Closed(_) => had_failed,
            ErrorKind::Undetermined(_) => !had_failed,
            _ => false,
        };
        assert!(expected(error.kind()), "{had_failed}: {error}");
        world.hooks.no_hooks();
        // The crash undoes the deletion of the row, so the lock is held again until the lease
        // expires or is released by its token.
        drop(world.store);
        world.memory.crash(0);
        let again = World::open_at(&world.memory, Store::builder());
        let held = !again.store.is_free_lock("n").unwrap();
        assert_eq!(has_row(&world.memory.exclusive_engine(), "n"), held);
        assert!(held, "the release failed, so the row must be there");
    }
}

/// A guard with an expired lease, its store, and a gate that can block the store's syncs.
fn expired() -> (Arc<Gate>, Store, LockGuard) {
    let memory = SimStorage::new();
    let (clocks, gate) = (Clocks::new(), Gate::new(&memory));
    let store = clocks.builder().open_engine(Arc::<Gate>::clone(&gate)).unwrap();
    let guard = store.lock_with("job", lease(HOUR).auto_renew(false)).unwrap();
    clocks.pass(HOUR);
    assert!(!guard.is_held());
    (gate, store, guard)
}

#[test]
fn releasing_an_expired_lease_waits_for_its_row() {
    let (gate, _store, guard) = expired();
    assert!(has_row(&*gate, "job"));
    gate.shut();
    let release = begin("releases", move || guard.release());
    until("the row is being deleted", || gate.holds_a_lease());
    assert_waits(&release);
    gate.open();
    answer(&release).unwrap();
    assert!(!has_row(&*gate, "job"));
}

#[test]
fn release_after_takeover_succeeds() {
    let (gate, store, guard) = expired();
    let next = store.lock("job").unwrap();
    assert!(!has_row(&*gate, "job"));
    guard.release().unwrap();
    assert!(next.is_held(), "a late release has ended the next grant");
}

#[test]
fn a_returned_release_is_durable() {
    let memory = SimStorage::new();
    let store = open(&memory, &Clocks::new());
    for _ in 0..20 {
        store.lock_with("job", lease(HOUR)).unwrap().release().unwrap();
        assert!(!has_row(&memory.exclusive_engine(), "job"));
    }
    memory.crash(0);
    assert!(!has_row(&memory.exclusive_engine(), "job"));
}
