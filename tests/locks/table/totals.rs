//! The totals of held, waiting, expired and lost locks in cases where an entry could be counted
//! twice or not at all.

use std::time::Duration;

use percolite::{LockOptions, LockTable, LockWaitPolicy, Store};

use crate::support::clocks::Clocks;
use crate::support::{asks, until};

const LEASE: Duration = Duration::from_secs(1);

fn totals(table: &LockTable) -> (usize, usize, usize) {
    (table.held, table.waiting, table.entries.len())
}

#[test]
fn held_and_waiting_totals_match_the_entries() {
    let clocks = Clocks::new();
    let store = clocks.builder().in_memory().unwrap();
    // A waiting conversion is one entry, which counts as waiting.
    let (mut converting, _other) =
        (store.lock_with("a", LockOptions::shared()).unwrap(), store.lock_with("a", LockOptions::shared()).unwrap());
    let upgrade = std::thread::spawn(move || converting.upgrade(LockWaitPolicy::Forever).map(|()| converting));
    until("the upgrade waits", || store.lock_table().unwrap().waiting == 1);
    let queued = asks(&store, "a", LockOptions::exclusive().wait(LockWaitPolicy::Forever));
    assert_eq!(totals(&store.lock_table().unwrap()), (1, 2, 3));

    // An expired lease is not counted, even before another request for its name.
    let leased = store.lock_with("b", LockOptions::exclusive().lease(LEASE).auto_renew(false)).unwrap();
    assert_eq!(totals(&store.lock_table().unwrap()), (2, 2, 4));
    assert_eq!((store.status().held_locks_total, store.status().lock_waits_total), (2, 2));
    clocks.pass(LEASE);
    assert_eq!(totals(&store.lock_table().unwrap()), (1, 2, 3));
    assert_eq!((store.status().held_locks_total, store.status().lock_waits_total), (1, 2));
    drop(leased);

    store.close().unwrap();
    assert!(upgrade.join().unwrap().is_err());
    assert!(queued.refused().to_string().contains("closed"));
}

#[test]
fn an_expired_lease_counts_as_lost_when_its_guard_ends() {
    let clocks = Clocks::new();
    let store = clocks.builder().in_memory().unwrap();
    let take = || store.lock_with("name", LockOptions::exclusive().lease(LEASE).auto_renew(false)).unwrap();
    let counts = |store: &Store| (store.lock_stats().leases_expired, store.lock_stats().lost);

    take().release().unwrap();
    drop(take());
    assert_eq!(counts(&store), (0, 0));
    let (dropped, released) =
        (take(), store.lock_with("other", LockOptions::exclusive().lease(LEASE).auto_renew(false)).unwrap());
    clocks.pass(LEASE);
    drop(dropped);
    assert_eq!(counts(&store), (1, 1));
    released.release().unwrap();
    assert_eq!(counts(&store), (2, 2));
}
