//! Rollback and prewrite: requests that are late, repeated or out of order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use percolite::engine::{ApplyResult, RowBatch};
use percolite::internal::protocol::{OwnerLiveness, Prewrite, PrewriteResult, StepError, TxnStatus};
use percolite::row::{CellChange, Lock, Mutation, RowChange, RowKey, TxnId, TxnRecord};
use percolite::{ConflictReason, OwnerId};

use crate::driver::{put, row, ts, txn, write};
use crate::environment::{Environment, assert_conflict, long, some, spawn};
use crate::hooked_engine::{Act, Gate, locks};
use crate::report::{Case, NEVER_LATE, NO_LOCKS, ONE, SHARED, STEPS, TWO};

pub fn cases() -> Vec<Case> {
    let requests = STEPS | TWO;
    vec![
        Case::new("a prewrite that arrives after its rollback is refused")
            .on(requests, a_prewrite_after_its_rollback_is_refused)
            .on(SHARED, late_copies_of_a_rolled_back_transaction_are_refused)
            .not_on(ONE, NEVER_LATE),
        Case::new("another transaction's rollback keeps the first one's record")
            .on(requests, another_rollback_keeps_the_first_record)
            .not_on(ONE, NO_LOCKS),
        Case::new("a status check on a missing primary is final")
            .on(requests, a_status_check_on_a_missing_primary_is_final)
            .not_on(ONE, NO_LOCKS),
        Case::new("a rollback leaves another transaction's lock unchanged")
            .on(requests, a_rollback_leaves_another_lock)
            .not_on(ONE, NO_LOCKS),
        Case::new("a rollback after the commit fails and changes nothing")
            .on(requests, a_rollback_after_the_commit_changes_nothing)
            .on(STEPS | ONE, a_rollback_after_a_one_phase_commit_changes_nothing),
        Case::new("a commit after its primary was rolled back fails")
            .on(requests, a_commit_after_the_rollback_fails)
            .on(SHARED, an_owner_past_its_ttl_returns_rolled_back_by_other)
            .not_on(ONE, NO_LOCKS),
        Case::new("rollback and commit are idempotent")
            .on(requests, commit_and_rollback_are_idempotent)
            .on(requests, a_repeated_commit_clears_a_lock_left_behind)
            .on(STEPS | ONE, a_one_phase_commit_is_idempotent),
        Case::new("an identical prewrite leaves the lock unchanged")
            .on(requests, an_identical_prewrite_changes_nothing)
            .not_on(ONE, NO_LOCKS),
        Case::new("a prewrite repeated after a roll forward succeeds")
            .on(requests, a_prewrite_after_a_resolver_committed_succeeds)
            .on(SHARED, late_copies_of_a_committed_transaction_change_nothing)
            .not_on(ONE, NO_LOCKS),
        Case::new("rolling back a long value removes only its own data cell")
            .on(requests, rolling_back_a_long_value_removes_only_its_data_cell)
            .on(TWO, an_aborted_long_value_leaves_the_committed_one)
            .not_on(ONE, "a one-phase commit stores long values in the write cell: there is no data cell"),
    ]
}

/// Public issue: tikv #1649.
fn a_prewrite_after_its_rollback_is_refused(environment: &Environment) {
    let driver = environment.driver();
    driver.roll_back(txn(10), "k").unwrap();
    assert_eq!(driver.prewrite(&put(txn(10), "k", "late")), Err(StepError::AlreadyRolledBack));
    assert_eq!((driver.lock("k"), driver.value("k")), (None, None));
}

/// Applies every request in `copies` again, as a network that delivers duplicates would.
fn deliver_copies(environment: &Environment, copies: &Mutex<Vec<RowBatch>>) -> usize {
    let engine = environment.engine();
    let copies = copies.lock().unwrap();
    let prewrites: Vec<&RowBatch> = copies
        .iter()
        .filter(|group| group.changes().iter().any(|change| matches!(change.lock, CellChange::Put(_))))
        .collect();
    for copy in copies.iter().chain(prewrites.clone()) {
        let outcome = engine.apply(std::slice::from_ref(copy)).unwrap().remove(0);
        assert!(matches!(outcome, ApplyResult::PreconditionFailed { .. }), "a late copy was applied: {copy:?}");
    }
    prewrites.len()
}

fn late_copies_of_a_rolled_back_transaction_are_refused(environment: &Environment) {
    let (winner, victim) = (environment.open(), environment.open());
    winner.put_all(&["a", "b", "c"], "old");
    let mut txn = victim.begin().unwrap();
    for key in ["a", "b", "c"] {
        txn.put(&victim.rows, key, "lost").unwrap();
    }
    winner.put("c", "won");
    let copies = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&copies);
    victim.hooks.on_write(move |groups| {
        recorded.lock().unwrap().extend(groups.to_vec());
        Act::Pass
    });
    assert_conflict(txn.commit());
    assert_eq!(deliver_copies(environment, &copies), 3);
    assert_eq!(winner.locks_left(), 0);
    assert_eq!([winner.get("a"), winner.get("b"), winner.get("c")], [some("old"), some("old"), some("won")]);
}

/// Public issues: tikv #7364, #16620.
fn another_rollback_keeps_the_first_record(environment: &Environment) {
    let driver = environment.driver();
    driver.prewrite(&put(txn(10), "k", "one")).unwrap();
    driver.roll_back(txn(10), "k").unwrap();
    driver.roll_back(txn(20), "k").unwrap();
    assert_eq!(driver.prewrite(&put(txn(10), "k", "one")), Err(StepError::AlreadyRolledBack));
    assert_eq!(driver.commit(txn(10), "k", 30), Err(StepError::AlreadyRolledBack));
    assert_eq!(driver.prewrite(&put(txn(20), "k", "two")), Err(StepError::AlreadyRolledBack));
}

/// Public issue: tikv PR 5673.
fn a_status_check_on_a_missing_primary_is_final(environment: &Environment) {
    let driver = environment.driver();
    let shared = OwnerLiveness::ByTtl { current_ts: ts(1000), push_above: Some(ts(999)) };
    for (start_ts, liveness) in [(10, OwnerLiveness::Ended), (20, shared)] {
        let late = txn(start_ts);
        assert_eq!(driver.check(late, "k", liveness), Ok(TxnStatus::RolledBack));
        assert_eq!(driver.status("k", late), Some(TxnRecord::RolledBack));
        assert_eq!(driver.prewrite(&put(late, "k", "late")), Err(StepError::AlreadyRolledBack));
    }
    assert_eq!(driver.lock("k"), None);
}

fn a_rollback_leaves_another_lock(environment: &Environment) {
    let driver = environment.driver();
    driver.prewrite(&put(txn(20), "k", "twenty")).unwrap();
    let held = driver.lock("k");
    driver.roll_back(txn(10), "k").unwrap();
    // The lock also stays if the owner id of the transaction that is rolled back is below that of
    // the lock.
    driver.roll_back(TxnId { owner: OwnerId::from_u64(9), ..txn(11) }, "k").unwrap();
    assert_eq!(driver.lock("k"), held);
    assert_eq!(driver.commit(txn(20), "k", 30), Ok(ts(30)));
    assert_eq!(driver.value("k"), some("twenty"));
}

fn a_rollback_after_the_commit_changes_nothing(environment: &Environment) {
    let driver = environment.driver();
    for (primary, secondary, value) in [("p", "s", "short".to_owned()), ("q", "t", long("x"))] {
        let t = if primary == "p" { txn(10) } else { txn(11) };
        driver.prewrite(&put(t, primary, &value)).unwrap();
        driver.prewrite(&Prewrite { primary: row(primary), ..put(t, secondary, &value) }).unwrap();
        driver.commit(t, primary, 20).unwrap();
        driver.commit_secondary(t, secondary, 20).unwrap();
        for key in [primary, secondary] {
            assert_eq!(driver.roll_back(t, key), Err(StepError::AlreadyCommitted(ts(20))));
            assert_eq!(driver.value(key), Some(value.clone()));
        }
    }
    // The primary still has the record after a later transaction has overwritten the row.
    driver.write(txn(30), "p", "later", 40);
    assert_eq!(driver.roll_back(txn(10), "p"), Err(StepError::AlreadyCommitted(ts(20))));
    assert_eq!(driver.value("p"), some("later"));
}

fn a_rollback_after_a_one_phase_commit_changes_nothing(environment: &Environment) {
    let driver = environment.driver();
    assert_eq!(driver.one_phase(txn(10), 9, "k", &Mutation::Put(b"v".into()), 20), Ok(ts(20)));
    assert_eq!(driver.roll_back(txn(10), "k"), Err(StepError::AlreadyCommitted(ts(20))));
    assert_eq!(driver.value("k"), some("v"));
}

fn a_commit_after_the_rollback_fails(environment: &Environment) {
    let driver = environment.driver();
    driver.write(txn(5), "k", "old", 6);
    driver.prewrite(&put(txn(10), "k", "new")).unwrap();
    assert_eq!(driver.check(txn(10), "k", OwnerLiveness::Ended), Ok(TxnStatus::RolledBack));
    assert_eq!(driver.commit(txn(10), "k", 20), Err(StepError::AlreadyRolledBack));
    assert_eq!((driver.lock("k"), driver.value("k")), (None, some("old")));
}

fn an_owner_past_its_ttl_returns_rolled_back_by_other(environment: &Environment) {
    let (owner, other) = (environment.open(), environment.open());
    other.put_all(&["a", "b"], "old");
    let (gate, barrier) = Gate::closed();
    let secondary = owner.row("b");
    owner.hooks.on_write(move |groups| {
        if locks(groups, &secondary) {
            barrier.pass();
        }
        Act::Pass
    });
    let (store, rows) = (owner.store.clone(), owner.rows.clone());
    let commit = spawn(move || {
        let mut txn = store.begin().unwrap();
        txn.put(&rows, "a", "new").unwrap();
        txn.put(&rows, "b", "new").unwrap();
        txn.commit()
    });
    gate.wait_for_arrival();
    environment.let_locks_expire();
    assert_eq!(other.get("a"), some("old"));
    gate.open();
    let error = commit.join().unwrap_err();
    assert_eq!(error.conflict().map(|conflict| conflict.reason), Some(ConflictReason::RolledBackByOther), "{error}");
    assert_eq!([other.get("a"), other.get("b")], [some("old"), some("old")]);
    assert_eq!(other.locks_left(), 0);
}

fn commit_and_rollback_are_idempotent(environment: &Environment) {
    let driver = environment.driver();
    driver.prewrite(&put(txn(10), "k", "v")).unwrap();
    assert_eq!([driver.roll_back(txn(10), "k"), driver.roll_back(txn(10), "k")], [Ok(()), Ok(())]);
    driver.prewrite(&put(txn(20), "k", "v")).unwrap();
    assert_eq!([driver.commit(txn(20), "k", 30), driver.commit(txn(20), "k", 30)], [Ok(ts(30)), Ok(ts(30))]);
    assert_eq!(driver.commit_secondary(txn(20), "k", 30), Ok(ts(30)));
    assert_eq!(driver.record("k").map(|record| record.commit_ts), Some(ts(30)));
}

fn a_repeated_commit_clears_a_lock_left_behind(environment: &Environment) {
    let driver = environment.driver();
    for (key, start_ts) in [("short", 10), ("long", 20)] {
        let t = txn(start_ts);
        let value = if key == "long" { long("x") } else { key.to_owned() };
        driver.prewrite(&put(t, key, &value)).unwrap();
        let own: Lock = driver.lock(key).unwrap();
        driver.commit(t, key, start_ts + 5).unwrap();
        driver.0.make(RowChange { lock: CellChange::Put(own), ..RowChange::new(row(key), t.start_ts) }).unwrap();
        assert_eq!(driver.commit(t, key, start_ts + 7), Ok(ts(start_ts + 5)));
        assert_eq!((driver.lock(key), driver.value(key)), (None, Some(value)));
        assert_eq!(driver.record(key).map(|record| record.commit_ts), Some(ts(start_ts + 5)));
    }
}

fn a_one_phase_commit_is_idempotent(environment: &Environment) {
    let driver = environment.driver();
    for (key, mutation) in [("put", Mutation::Put(b"v".into())), ("delete", Mutation::Delete)] {
        let send = || driver.one_phase(txn(10), 9, key, &mutation, 20);
        assert_eq!(send(), Ok(ts(20)));
        let made = driver.record(key);
        assert_eq!(driver.one_phase(txn(10), 9, key, &mutation, 25), Ok(ts(20)));
        assert_eq!(driver.record(key), made);
    }
    driver.roll_back(txn(30), "rolled back").unwrap();
    let late = driver.one_phase(txn(30), 29, "rolled back", &Mutation::Delete, 40);
    assert_eq!(late, Err(StepError::AlreadyRolledBack));
}

/// Public issue: tikv PR 9884.
fn an_identical_prewrite_changes_nothing(environment: &Environment) {
    let driver = environment.driver();
    let request = Prewrite { ttl_ms: 100, ..put(txn(10), "k", "v") };
    driver.prewrite(&request).unwrap();
    driver.heartbeat(txn(10), "k", 5000).unwrap();
    let liveness = OwnerLiveness::ByTtl { current_ts: ts(20), push_above: Some(ts(15)) };
    assert_eq!(driver.check(txn(10), "k", liveness), Ok(TxnStatus::Pending));
    let before = driver.lock("k").unwrap();
    assert_eq!((before.ttl_ms, before.min_commit_ts), (5000, ts(20)));
    assert_eq!(driver.prewrite(&request), Ok(PrewriteResult::Locked { min_commit_ts: ts(20) }));
    // A different request with the same write_seq changes nothing, either: the first request
    // counts.
    let other = Prewrite { mutation: Mutation::Delete, min_commit_ts: ts(99), ..request };
    assert_eq!(driver.prewrite(&other), Ok(PrewriteResult::Locked { min_commit_ts: ts(20) }));
    assert_eq!(driver.lock("k"), Some(before));
}

/// From tikv PR 10522.
fn a_prewrite_after_a_resolver_committed_succeeds(environment: &Environment) {
    let driver = environment.driver();
    let primary = put(txn(10), "p", "v");
    let secondary = Prewrite { primary: row("p"), ..put(txn(10), "s", "v") };
    driver.prewrite(&primary).unwrap();
    driver.prewrite(&secondary).unwrap();
    driver.commit(txn(10), "p", 20).unwrap();
    let status = driver.check(txn(10), "p", OwnerLiveness::Ended).unwrap();
    driver.resolve(txn(10), "s", status).unwrap();
    for request in [primary, secondary] {
        assert_eq!(driver.prewrite(&request), Ok(PrewriteResult::Committed(ts(20))));
    }
    assert_eq!([driver.lock("p"), driver.lock("s")], [None, None]);
    // A repeated prewrite of the primary has the same result after a later transaction has
    // overwritten the row.
    driver.write(txn(30), "p", "later", 40);
    assert_eq!(driver.prewrite(&put(txn(10), "p", "v")), Ok(PrewriteResult::Committed(ts(20))));
    assert_eq!(driver.value("p"), some("later"));
}

fn late_copies_of_a_committed_transaction_change_nothing(environment: &Environment) {
    let client = environment.open();
    let copies = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&copies);
    client.hooks.on_write(move |groups| {
        recorded.lock().unwrap().extend(groups.to_vec());
        Act::Pass
    });
    client.put_all(&["a", "b"], "new");
    client.hooks.no_hooks();
    assert_eq!(deliver_copies(environment, &copies), 2);
    client.put("a", "newer");
    client.delete("b");
    assert_eq!(deliver_copies(environment, &copies), 2);
    assert_eq!((client.get("a"), client.get("b"), client.locks_left()), (some("newer"), None, 0));
}

fn rolling_back_a_long_value_removes_only_its_data_cell(environment: &Environment) {
    let driver = environment.driver();
    let entry = |start_ts| driver.0.data(&row("k"), ts(start_ts)).is_some();
    driver.write(txn(10), "k", &long("a"), 11);
    driver.prewrite(&put(txn(20), "k", &long("b"))).unwrap();
    assert_eq!([entry(10), entry(20)], [true, true]);
    driver.roll_back(txn(20), "k").unwrap();
    assert_eq!([entry(10), entry(20)], [true, false]);
    driver.roll_back(txn(10), "k").unwrap_err();
    driver.roll_back(txn(30), "k").unwrap();
    // Transaction 40 deletes the row after its long put. That has removed the data cell, so the
    // rollback finds no cell to remove.
    driver.prewrite(&put(txn(40), "k", &long("c"))).unwrap();
    driver.prewrite(&Prewrite { write_seq: 2, ..write(txn(40), "k", Mutation::Delete) }).unwrap();
    assert!(!entry(40));
    driver.roll_back(txn(40), "k").unwrap();
    assert_eq!(driver.value("k"), Some(long("a")));
}

fn an_aborted_long_value_leaves_the_committed_one(environment: &Environment) {
    let store = environment.open();
    store.put("a", long("a"));
    let mut loser = store.begin().unwrap();
    // More rows than one batch locks: the first ones are locked before the last one conflicts.
    for number in 0..1100 {
        loser.put(&store.rows, format!("m{number}"), "filler").unwrap();
    }
    loser.put(&store.rows, "a", long("b")).unwrap();
    loser.put(&store.rows, "z", long("b")).unwrap();
    store.put("z", "won");
    let (aborted, first) = (loser.start_ts(), store.row("a"));
    let entry = {
        let engine = Arc::clone(&store.engine);
        move |row: &RowKey| engine.snapshot().unwrap().data(row, aborted).unwrap().is_some()
    };
    let seen = Arc::new(AtomicBool::new(false));
    let (is_seen, look, watched) = (Arc::clone(&seen), entry.clone(), first.clone());
    store.hooks.on_write(move |_| {
        is_seen.fetch_or(look(&watched), Ordering::SeqCst);
        Act::Pass
    });
    assert_conflict(loser.commit());
    assert!(seen.load(Ordering::SeqCst), "the long value was not written, so its rollback is not tested");
    assert!(!entry(&first) && !entry(&store.row("z")));
    assert_eq!((store.get("a"), store.get("z")), (Some(long("a")), some("won")));
    assert_eq!((store.locks_left(), store.get("m7")), (0, None));
}
