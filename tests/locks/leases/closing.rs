//! What closing does to leases that are about to come or go. Whoever got no token must not be kept out by a row.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::{ErrorKind, LockOptions};

use super::{answer, assert_waits, begin, has_row, lease, left, open};
use crate::support::clocks::{Clocks, HOUR};
use crate::support::gate::Gate;
use crate::support::{Random, asks, until};

/// A later life finds the name free, and no row.
#[track_caller]
fn assert_free(memory: &SimStorage, clocks: &Arc<Clocks>) {
    memory.crash(0);
    assert!(!has_row(&memory.exclusive_engine(), "job"), "the row is there");
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

/// Whatever the lock comes to, and wherever the close meets it.
#[test]
fn a_lease_that_is_taken_while_the_store_closes_leaves_no_row() {
    let (mut dice, clocks) = (Random::new("closing"), Clocks::new());
    let (mut taken, mut refused) = (0, 0);
    // Both ends of the race have to be met.
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
                // The guard lives beyond the close.
                store.lock_with("job", lease(HOUR))
            }
        });
        start.wait();
        (0..delay).for_each(|_| std::hint::spin_loop());
        store.close().unwrap();
        match answer(&lock) {
            Ok(guard) => {
                assert!(!guard.is_held(), "round {round}: it has outlived its store");
                taken += 1;
            }
            Err(why) => {
                assert!(matches!(why.kind(), ErrorKind::Closed(_)), "round {round}: {why}");
                refused += 1;
            }
        }
        assert_free(&memory, &clocks);
    }
    assert!(taken > 0 && refused > 0, "{taken} were taken and {refused} refused: nothing has met the close");
}

/// The call stands at each of its looks at the clock, one after the other.
#[test]
fn a_lease_that_a_close_overtakes_anywhere_is_refused_as_closed_and_leaves_no_row() {
    for looks in 0.. {
        let (memory, clocks) = (SimStorage::new(), Clocks::new());
        let store = open(&memory, &clocks);
        clocks.stall_after("locks", looks);
        let lock = begin("locks", {
            let store = store.clone();
            move || store.lock_with("job", lease(HOUR))
        });
        let mut early = None;
        until("it stands or is through", || {
            early = early.take().or_else(|| lock.try_recv().ok());
            early.is_some() || clocks.is_stalled()
        });
        if let Some(taken) = early {
            assert!(taken.is_ok() && looks > 3, "it has looked {looks} times");
            break;
        }
        let closing = begin("closes", move || store.close());
        // It may have to wait for the call.
        let closed = closing.recv_timeout(Duration::from_millis(20));
        clocks.let_go();
        closed.unwrap_or_else(|_| answer(&closing)).unwrap();
        match answer(&lock) {
            Ok(guard) => assert!(!guard.is_held(), "{looks} looks: it has outlived its store"),
            Err(why) => assert!(matches!(why.kind(), ErrorKind::Closed(_)), "{looks} looks: {why}"),
        }
        assert_free(&memory, &clocks);
    }
}

#[test]
fn an_orderly_close_counts_no_lock_as_lost() {
    let memory = SimStorage::new();
    let clocks = Clocks::new();
    let store = open(&memory, &clocks);
    let guard = store.lock("plain").unwrap();
    let shared = [(); 3].map(|()| store.lock_with("shared", LockOptions::shared()).unwrap());
    let leased = store.lock_with("leased", lease(HOUR)).unwrap();
    let over = store.lock_with("over", lease(HOUR / 2).once()).unwrap();
    store.get_lock("kept", HOUR).unwrap().unwrap();
    let waiting = asks(&store, "plain", LockOptions::exclusive());
    clocks.pass(HOUR / 2);
    until("it is renewed", || left(&store, "leased").unwrap() > HOUR / 2);
    let before = store.lock_stats();
    assert_eq!((before.lost, before.leases_expired), (0, 0));

    store.clone().close().unwrap();
    assert!(matches!(waiting.refused().kind(), ErrorKind::Closed(_)));
    assert!(shared.iter().chain([&guard, &leased, &over]).all(|guard| !guard.is_held()));
    // But for the wake-up of the one that waited, closing is no event of any lock.
    let mut expected = before;
    expected.wakeups += 1;
    assert_eq!(store.lock_stats(), expected);
    drop((guard, shared, leased, over));
    assert_eq!(store.lock_stats(), expected);
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

#[test]
fn a_store_that_closes_never_denies_a_lease_that_stays() {
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
    // The row of the other lease goes, and what is in memory went before.
    until("the row goes", || gate.holds_a_lease());
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
        assert!(answer.is_err_and(|why| matches!(why.kind(), ErrorKind::Closed(_))), "call {call}");
    }
    gate.open();
    answer(&closing).unwrap();
    assert!(!guard.is_held());
    drop((guard, store));
    let store = open(&memory, &clocks);
    assert_eq!(store.attach_lock("job", token).unwrap().token(), token);
    assert!(!has_row(&memory.exclusive_engine(), "other"));
}
