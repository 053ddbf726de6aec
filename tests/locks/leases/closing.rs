//! `close` during the grant or release of a lease. A request that got no token must leave no row:
//! the row would block later requests.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::{ErrorKind, LockOptions};

use super::{answer, assert_waits, begin, has_row, lease, left, open};
use crate::support::blocked_syncs::Gate;
use crate::support::clocks::{Clocks, HOUR};
use crate::support::{Random, asks, until};

/// A later incarnation finds the name free and no row.
#[track_caller]
fn assert_free(memory: &SimStorage, clocks: &Arc<Clocks>) {
    memory.crash(0);
    assert!(!has_row(&memory.exclusive_engine(), "job"), "the row is still there");
    assert!(open(memory, clocks).try_lock("job").unwrap().is_some());
}

#[test]
fn close_waits_for_a_release_in_progress() {
    let memory = SimStorage::new();
    let (clocks, gate) = (Clocks::new(), Gate::new(&memory));
    let store = clocks.builder().open_engine(Arc::<Gate>::clone(&gate)).unwrap();
    let guard = store.lock_with("job", lease(HOUR)).unwrap();
    gate.shut();
    let release = begin("releases", move || guard.release());
    until("the row is being deleted", || gate.holds_a_lease());
    let closing = begin("closes", move || store.close());
    assert_waits(&closing);
    gate.open();
    answer(&closing).unwrap();
    let released = answer(&release);
    assert!(released.is_ok() || matches!(released.unwrap_err().kind(), ErrorKind::Closed(_)));
    assert_free(&memory, &clocks);
}

#[test]
fn close_removes_the_row_of_a_late_release() {
    let memory = SimStorage::new();
    let clocks = Clocks::new();
    let store = open(&memory, &clocks);
    let guard = store.lock_with("job", lease(HOUR)).unwrap();
    // The release has ended the grant in memory, and is about to begin its transaction.
    clocks.stall("releases");
    let release = begin("releases", move || guard.release());
    until("the release is stalled", || clocks.is_stalled());
    let closing = begin("closes", move || store.close());
    answer(&closing).unwrap();
    clocks.resume();
    let error = answer(&release).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Closed(_)), "{error}");
    assert_free(&memory, &clocks);
}

#[test]
fn close_ends_a_lease_that_is_being_granted() {
    let memory = SimStorage::new();
    let (clocks, gate) = (Clocks::new(), Gate::new(&memory));
    let store = clocks.builder().open_engine(Arc::<Gate>::clone(&gate)).unwrap();
    gate.shut();
    let lock = begin("locks", {
        let store = store.clone();
        move || store.lock_with("job", lease(HOUR)).map(drop)
    });
    until("the row is being written", || gate.holds_a_lease());
    let closing = begin("closes", move || store.close());
    assert_waits(&closing);
    gate.open();
    answer(&closing).unwrap();
    let error = answer(&lock).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Closed(_)), "{error}");
    assert_free(&memory, &clocks);
}

/// The request succeeds or fails, depending on how far it has come when the store closes.
#[test]
fn a_lease_granted_during_close_leaves_no_row() {
    let (mut dice, clocks) = (Random::new("closing"), Clocks::new());
    let (mut taken, mut refused) = (0, 0);
    // Enough rounds for both results: the request is granted before the close, or refused.
    for round in 0..1000 {
        let memory = SimStorage::new();
        let store = open(&memory, &clocks);
        let start = Arc::new(Barrier::new(2));
        let (delay, before) = (dice.below(40_000), dice.below(20_000));
        let lock = begin("locks", {
            let (store, start) = (store.clone(), Arc::clone(&start));
            move || {
                start.wait();
                (0..before).for_each(|_| std::hint::spin_loop());
                // The guard is dropped after the close.
                store.lock_with("job", lease(HOUR))
            }
        });
        start.wait();
        (0..delay).for_each(|_| std::hint::spin_loop());
        store.close().unwrap();
        match answer(&lock) {
            Ok(guard) => {
                assert!(!guard.is_held(), "round {round}: the lock is held after the close");
                taken += 1;
            }
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Closed(_)), "round {round}: {error}");
                refused += 1;
            }
        }
        assert_free(&memory, &clocks);
    }
    assert!(taken > 0 && refused > 0, "{taken} granted, {refused} refused: the close never met a request");
}

/// The request is stopped at each of its clock reads, one after the other.
#[test]
fn a_close_at_any_step_of_a_lease_leaves_no_row() {
    for looks in 0.. {
        let (memory, clocks) = (SimStorage::new(), Clocks::new());
        let store = open(&memory, &clocks);
        clocks.stall_after("locks", looks);
        let lock = begin("locks", {
            let store = store.clone();
            move || store.lock_with("job", lease(HOUR))
        });
        let mut early = None;
        until("the request is stalled or has returned", || {
            early = early.take().or_else(|| lock.try_recv().ok());
            early.is_some() || clocks.is_stalled()
        });
        if let Some(taken) = early {
            assert!(taken.is_ok() && looks > 3, "the request has read the clock {looks} times");
            break;
        }
        let closing = begin("closes", move || store.close());
        // The close may wait for the request, and then returns only after `resume`.
        let closed = closing.recv_timeout(Duration::from_millis(20));
        clocks.resume();
        closed.unwrap_or_else(|_| answer(&closing)).unwrap();
        match answer(&lock) {
            Ok(guard) => assert!(!guard.is_held(), "{looks} clock reads: the lock is held after the close"),
            Err(error) => assert!(matches!(error.kind(), ErrorKind::Closed(_)), "{looks} clock reads: {error}"),
        }
        assert_free(&memory, &clocks);
    }
}

#[test]
fn a_close_counts_no_lock_as_lost() {
    let memory = SimStorage::new();
    let clocks = Clocks::new();
    let store = open(&memory, &clocks);
    let guard = store.lock("plain").unwrap();
    let shared = [(); 3].map(|()| store.lock_with("shared", LockOptions::shared()).unwrap());
    let leased = store.lock_with("leased", lease(HOUR)).unwrap();
    let over = store.lock_with("over", lease(HOUR / 2).auto_renew(false)).unwrap();
    store.get_lock("kept", HOUR).unwrap().unwrap();
    let waiting = asks(&store, "plain", LockOptions::exclusive());
    clocks.pass(HOUR / 2);
    until("the lease is renewed", || left(&store, "leased").unwrap() > HOUR / 2);
    let before = store.lock_stats();
    assert_eq!((before.lost, before.leases_expired), (0, 0));

    store.clone().close().unwrap();
    assert!(matches!(waiting.refused().kind(), ErrorKind::Closed(_)));
    assert!(shared.iter().chain([&guard, &leased, &over]).all(|guard| !guard.is_held()));
    // The close changes one statistic only, the wakeups: it wakes the waiting request.
    let mut expected = before;
    expected.wakeups += 1;
    assert_eq!(store.lock_stats(), expected);
    drop((guard, shared, leased, over));
    assert_eq!(store.lock_stats(), expected);
}

#[test]
fn a_guard_dropped_during_close_leaves_no_row() {
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

#[test]
fn close_never_denies_a_lease_that_remains() {
    let memory = SimStorage::new();
    let (clocks, gate) = (Clocks::new(), Gate::new(&memory));
    let store = clocks.builder().open_engine(Arc::<Gate>::clone(&gate)).unwrap();
    let token = store.get_lock("job", HOUR).unwrap().unwrap();
    let guard = store.lock_with("other", lease(HOUR)).unwrap();
    gate.shut();
    let closing = {
        let store = store.clone();
        begin("closes", move || store.close())
    };
    // The row of the lease `other` is being deleted; its grant in memory has ended.
    until("the row is being deleted", || gate.holds_a_lease());
    let answers = [
        store.attach_lock("job", token).map(drop),
        store.release_lock("job", token).map(drop),
        store.force_unlock("job", token).map(drop),
        store.lock_holders("job").map(drop),
        store.is_free_lock("job").map(drop),
        store.lock_table().map(drop),
        store.get_lock("job", HOUR).map(drop),
    ];
    for (call, answer) in answers.into_iter().enumerate() {
        assert!(answer.is_err_and(|error| matches!(error.kind(), ErrorKind::Closed(_))), "call {call}");
    }
    gate.open();
    answer(&closing).unwrap();
    assert!(!guard.is_held());
    drop((guard, store));
    let store = open(&memory, &clocks);
    assert_eq!(store.attach_lock("job", token).unwrap().token(), token);
    assert!(!has_row(&memory.exclusive_engine(), "other"));
}
