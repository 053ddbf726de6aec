//! Rollback and prewrite: requests that are late, repeated or out of order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use percolite::engine::{ApplyResult, RowBatch};
use percolite::internal::protocol::{OwnerLiveness, Prewrite, PrewriteResult, StepError, TxnStatus};
use percolite::row::{CellChange, Lock, Mutation, RowChange, RowKey, TxnId, TxnRecord};
use percolite::{ConflictReason, OwnerId};

use crate::hand::{put, row, ts, txn, write};
use crate::report::{Case, NEVER_LATE, NO_LOCKS, ONE, SHARED, STEPS, TWO};
use crate::tap::{Act, Gate, locks};
use crate::world::{World, assert_conflict, long, some, spawn};

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

/// tikv #1649
fn a_prewrite_after_its_rollback_is_refused(world: &World) {
    let hand = world.hand();
    hand.roll_back(txn(10), "k").unwrap();
    assert_eq!(hand.prewrite(&put(txn(10), "k", "late")), Err(StepError::AlreadyRolledBack));
    assert_eq!((hand.lock("k"), hand.value("k")), (None, None));
}

/// Applies every request in `copies` again, as a network that delivers duplicates would.
fn deliver_copies(world: &World, copies: &Mutex<Vec<RowBatch>>) -> usize {
    let engine = world.engine();
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

fn late_copies_of_a_rolled_back_transaction_are_refused(world: &World) {
    let (winner, victim) = (world.open(), world.open());
    winner.put_all(&["a", "b", "c"], "old");
    let mut txn = victim.begin().unwrap();
    for key in ["a", "b", "c"] {
        txn.put(&victim.rows, key, "lost").unwrap();
    }
    winner.put("c", "won");
    let copies = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&copies);
    victim.tap.on_write(move |groups| {
        recorded.lock().unwrap().extend(groups.to_vec());
        Act::Pass
    });
    assert_conflict(txn.commit());
    assert_eq!(deliver_copies(world, &copies), 3);
    assert_eq!(winner.locks_left(), 0);
    assert_eq!([winner.get("a"), winner.get("b"), winner.get("c")], [some("old"), some("old"), some("won")]);
}

/// tikv #7364, #16620
fn another_rollback_keeps_the_first_record(world: &World) {
    let hand = world.hand();
    hand.prewrite(&put(txn(10), "k", "one")).unwrap();
    hand.roll_back(txn(10), "k").unwrap();
    hand.roll_back(txn(20), "k").unwrap();
    assert_eq!(hand.prewrite(&put(txn(10), "k", "one")), Err(StepError::AlreadyRolledBack));
    assert_eq!(hand.commit(txn(10), "k", 30), Err(StepError::AlreadyRolledBack));
    assert_eq!(hand.prewrite(&put(txn(20), "k", "two")), Err(StepError::AlreadyRolledBack));
}

/// tikv PR 5673
fn a_status_check_on_a_missing_primary_is_final(world: &World) {
    let hand = world.hand();
    let shared = OwnerLiveness::ByTtl { current_ts: ts(1000), push_above: Some(ts(999)) };
    for (start_ts, liveness) in [(10, OwnerLiveness::Dead), (20, shared)] {
        let late = txn(start_ts);
        assert_eq!(hand.check(late, "k", liveness), Ok(TxnStatus::RolledBack));
        assert_eq!(hand.status("k", late), Some(TxnRecord::RolledBack));
        assert_eq!(hand.prewrite(&put(late, "k", "late")), Err(StepError::AlreadyRolledBack));
    }
    assert_eq!(hand.lock("k"), None);
}

fn a_rollback_leaves_another_lock(world: &World) {
    let hand = world.hand();
    hand.prewrite(&put(txn(20), "k", "twenty")).unwrap();
    let held = hand.lock("k");
    hand.roll_back(txn(10), "k").unwrap();
    // Nor is it the lock of a transaction with another owner id.
    hand.roll_back(TxnId { owner: OwnerId::from_u64(9), ..txn(11) }, "k").unwrap();
    assert_eq!(hand.lock("k"), held);
    assert_eq!(hand.commit(txn(20), "k", 30), Ok(ts(30)));
    assert_eq!(hand.value("k"), some("twenty"));
}

fn a_rollback_after_the_commit_changes_nothing(world: &World) {
    let hand = world.hand();
    for (primary, secondary, value) in [("p", "s", "short".to_owned()), ("q", "t", long("x"))] {
        let t = if primary == "p" { txn(10) } else { txn(11) };
        hand.prewrite(&put(t, primary, &value)).unwrap();
        hand.prewrite(&Prewrite { primary: row(primary), ..put(t, secondary, &value) }).unwrap();
        hand.commit(t, primary, 20).unwrap();
        hand.commit_secondary(t, secondary, 20).unwrap();
        for key in [primary, secondary] {
            assert_eq!(hand.roll_back(t, key), Err(StepError::AlreadyCommitted(ts(20))));
            assert_eq!(hand.value(key), Some(value.clone()));
        }
    }
    // The primary still has the record after a later transaction has overwritten the row.
    hand.write(txn(30), "p", "later", 40);
    assert_eq!(hand.roll_back(txn(10), "p"), Err(StepError::AlreadyCommitted(ts(20))));
    assert_eq!(hand.value("p"), some("later"));
}

fn a_rollback_after_a_one_phase_commit_changes_nothing(world: &World) {
    let hand = world.hand();
    assert_eq!(hand.one_phase(txn(10), 9, "k", &Mutation::Put(b"v".into()), 20), Ok(ts(20)));
    assert_eq!(hand.roll_back(txn(10), "k"), Err(StepError::AlreadyCommitted(ts(20))));
    assert_eq!(hand.value("k"), some("v"));
}

fn a_commit_after_the_rollback_fails(world: &World) {
    let hand = world.hand();
    hand.write(txn(5), "k", "old", 6);
    hand.prewrite(&put(txn(10), "k", "new")).unwrap();
    assert_eq!(hand.check(txn(10), "k", OwnerLiveness::Dead), Ok(TxnStatus::RolledBack));
    assert_eq!(hand.commit(txn(10), "k", 20), Err(StepError::AlreadyRolledBack));
    assert_eq!((hand.lock("k"), hand.value("k")), (None, some("old")));
}

fn an_owner_past_its_ttl_returns_rolled_back_by_other(world: &World) {
    let (owner, other) = (world.open(), world.open());
    other.put_all(&["a", "b"], "old");
    let (gate, barrier) = Gate::closed();
    let secondary = owner.row("b");
    owner.tap.on_write(move |groups| {
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
    world.let_locks_expire();
    assert_eq!(other.get("a"), some("old"));
    gate.open();
    let why = commit.join().unwrap_err();
    assert_eq!(why.conflict().map(|conflict| conflict.reason), Some(ConflictReason::RolledBackByOther), "{why}");
    assert_eq!([other.get("a"), other.get("b")], [some("old"), some("old")]);
    assert_eq!(other.locks_left(), 0);
}

fn commit_and_rollback_are_idempotent(world: &World) {
    let hand = world.hand();
    hand.prewrite(&put(txn(10), "k", "v")).unwrap();
    assert_eq!([hand.roll_back(txn(10), "k"), hand.roll_back(txn(10), "k")], [Ok(()), Ok(())]);
    hand.prewrite(&put(txn(20), "k", "v")).unwrap();
    assert_eq!([hand.commit(txn(20), "k", 30), hand.commit(txn(20), "k", 30)], [Ok(ts(30)), Ok(ts(30))]);
    assert_eq!(hand.commit_secondary(txn(20), "k", 30), Ok(ts(30)));
    assert_eq!(hand.record("k").map(|record| record.commit_ts), Some(ts(30)));
}

fn a_repeated_commit_clears_a_lock_left_behind(world: &World) {
    let hand = world.hand();
    for (key, start_ts) in [("short", 10), ("long", 20)] {
        let t = txn(start_ts);
        let value = if key == "long" { long("x") } else { key.to_owned() };
        hand.prewrite(&put(t, key, &value)).unwrap();
        let own: Lock = hand.lock(key).unwrap();
        hand.commit(t, key, start_ts + 5).unwrap();
        hand.0.make(RowChange { lock: CellChange::Put(own), ..RowChange::new(row(key), t.start_ts) }).unwrap();
        assert_eq!(hand.commit(t, key, start_ts + 7), Ok(ts(start_ts + 5)));
        assert_eq!((hand.lock(key), hand.value(key)), (None, Some(value)));
        assert_eq!(hand.record(key).map(|record| record.commit_ts), Some(ts(start_ts + 5)));
    }
}

fn a_one_phase_commit_is_idempotent(world: &World) {
    let hand = world.hand();
    for (key, mutation) in [("put", Mutation::Put(b"v".into())), ("delete", Mutation::Delete)] {
        let send = || hand.one_phase(txn(10), 9, key, &mutation, 20);
        assert_eq!(send(), Ok(ts(20)));
        let made = hand.record(key);
        assert_eq!(hand.one_phase(txn(10), 9, key, &mutation, 25), Ok(ts(20)));
        assert_eq!(hand.record(key), made);
    }
    hand.roll_back(txn(30), "rolled back").unwrap();
    let late = hand.one_phase(txn(30), 29, "rolled back", &Mutation::Delete, 40);
    assert_eq!(late, Err(StepError::AlreadyRolledBack));
}

/// tikv PR 9884
fn an_identical_prewrite_changes_nothing(world: &World) {
    let hand = world.hand();
    let request = Prewrite { ttl_ms: 100, ..put(txn(10), "k", "v") };
    hand.prewrite(&request).unwrap();
    hand.heartbeat(txn(10), "k", 5000).unwrap();
    let liveness = OwnerLiveness::ByTtl { current_ts: ts(20), push_above: Some(ts(15)) };
    assert_eq!(hand.check(txn(10), "k", liveness), Ok(TxnStatus::Pending));
    let before = hand.lock("k").unwrap();
    assert_eq!((before.ttl_ms, before.min_commit_ts), (5000, ts(20)));
    assert_eq!(hand.prewrite(&request), Ok(PrewriteResult::Locked { min_commit_ts: ts(20) }));
    // Nor does a different request with the same write_seq: the first one counts.
    let other = Prewrite { mutation: Mutation::Delete, min_commit_ts: ts(99), ..request };
    assert_eq!(hand.prewrite(&other), Ok(PrewriteResult::Locked { min_commit_ts: ts(20) }));
    assert_eq!(hand.lock("k"), Some(before));
}

/// tikv PR 10522
fn a_prewrite_after_a_resolver_committed_succeeds(world: &World) {
    let hand = world.hand();
    let primary = put(txn(10), "p", "v");
    let secondary = Prewrite { primary: row("p"), ..put(txn(10), "s", "v") };
    hand.prewrite(&primary).unwrap();
    hand.prewrite(&secondary).unwrap();
    hand.commit(txn(10), "p", 20).unwrap();
    let status = hand.check(txn(10), "p", OwnerLiveness::Dead).unwrap();
    hand.resolve(txn(10), "s", status).unwrap();
    for request in [primary, secondary] {
        assert_eq!(hand.prewrite(&request), Ok(PrewriteResult::Committed(ts(20))));
    }
    assert_eq!([hand.lock("p"), hand.lock("s")], [None, None]);
    // The primary returns the same after a later transaction has overwritten the row.
    hand.write(txn(30), "p", "later", 40);
    assert_eq!(hand.prewrite(&put(txn(10), "p", "v")), Ok(PrewriteResult::Committed(ts(20))));
    assert_eq!(hand.value("p"), some("later"));
}

fn late_copies_of_a_committed_transaction_change_nothing(world: &World) {
    let client = world.open();
    let copies = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&copies);
    client.tap.on_write(move |groups| {
        recorded.lock().unwrap().extend(groups.to_vec());
        Act::Pass
    });
    client.put_all(&["a", "b"], "new");
    client.tap.no_hooks();
    assert_eq!(deliver_copies(world, &copies), 2);
    client.put("a", "newer");
    client.delete("b");
    assert_eq!(deliver_copies(world, &copies), 2);
    assert_eq!((client.get("a"), client.get("b"), client.locks_left()), (some("newer"), None, 0));
}

fn rolling_back_a_long_value_removes_only_its_data_cell(world: &World) {
    let hand = world.hand();
    let entry = |start_ts| hand.0.data(&row("k"), ts(start_ts)).is_some();
    hand.write(txn(10), "k", &long("a"), 11);
    hand.prewrite(&put(txn(20), "k", &long("b"))).unwrap();
    assert_eq!([entry(10), entry(20)], [true, true]);
    hand.roll_back(txn(20), "k").unwrap();
    assert_eq!([entry(10), entry(20)], [true, false]);
    hand.roll_back(txn(10), "k").unwrap_err();
    hand.roll_back(txn(30), "k").unwrap();
    // A deletion over the long put removes the data cell, and the rollback finds no cell to remove.
    hand.prewrite(&put(txn(40), "k", &long("c"))).unwrap();
    hand.prewrite(&Prewrite { write_seq: 2, ..write(txn(40), "k", Mutation::Delete) }).unwrap();
    assert!(!entry(40));
    hand.roll_back(txn(40), "k").unwrap();
    assert_eq!(hand.value("k"), Some(long("a")));
}

fn an_aborted_long_value_leaves_the_committed_one(world: &World) {
    let store = world.open();
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
    let (see, look, watched) = (Arc::clone(&seen), entry.clone(), first.clone());
    store.tap.on_write(move |_| {
        see.fetch_or(look(&watched), Ordering::SeqCst);
        Act::Pass
    });
    assert_conflict(loser.commit());
    assert!(seen.load(Ordering::SeqCst), "the long value was not written, so its rollback is not tested");
    assert!(!entry(&first) && !entry(&store.row("z")));
    assert_eq!((store.get("a"), store.get("z")), (Some(long("a")), some("won")));
    assert_eq!((store.locks_left(), store.get("m7")), (0, None));
}
