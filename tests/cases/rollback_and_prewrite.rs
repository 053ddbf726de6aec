//! Roll-back and prewrite: requests that come late, twice, or in the wrong order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use percolite::engine::{ApplyResult, RowBatch};
use percolite::protocol::{OwnerLiveness, Prewrite, PrewriteResult, StepError, TransactionStatus};
use percolite::row::{CellChange, Lock, Mutation, RowChange, RowKey, TxnId, TxnRecord};
use percolite::{ConflictReason, OwnerId};

use crate::hand::{put, row, ts, txn, write};
use crate::report::{Case, NEVER_LATE, NO_LOCKS, ONE, SHARED, STEPS, TWO};
use crate::tap::{Act, Gate, locks};
use crate::world::{World, assert_conflict, long, some, spawn};

pub fn cases() -> Vec<Case> {
    let by_hand = STEPS | TWO;
    vec![
        Case::new(1, "a prewrite that arrives after its roll-back is refused")
            .on(by_hand, a_prewrite_after_its_roll_back_is_refused)
            .on(SHARED, late_copies_of_a_rolled_back_transaction_are_refused)
            .not_on(ONE, NEVER_LATE),
        Case::new(2, "another transaction's roll-back keeps the first one's record")
            .on(by_hand, another_roll_back_keeps_the_first_record)
            .not_on(ONE, NO_LOCKS),
        Case::new(3, "a status check on a missing primary is final")
            .on(by_hand, a_status_check_on_a_missing_primary_is_final)
            .not_on(ONE, NO_LOCKS),
        Case::new(4, "a roll-back leaves another transaction's lock alone")
            .on(by_hand, a_roll_back_leaves_another_lock_alone)
            .not_on(ONE, NO_LOCKS),
        Case::new(5, "a roll-back after the commit is told so and changes nothing")
            .on(by_hand, a_roll_back_after_the_commit_changes_nothing)
            .on(STEPS | ONE, a_roll_back_after_a_one_phase_commit_changes_nothing),
        Case::new(6, "a commit after its primary was rolled back fails")
            .on(by_hand, a_commit_after_the_roll_back_fails)
            .on(SHARED, an_owner_taken_for_dead_hears_that_it_was_rolled_back)
            .not_on(ONE, NO_LOCKS),
        Case::new(7, "rolled back twice, committed twice: the same answer")
            .on(by_hand, twice_gives_the_same_answer)
            .on(by_hand, a_repeated_commit_clears_a_lock_left_behind)
            .on(STEPS | ONE, one_phase_twice_gives_the_same_answer),
        Case::new(8, "an identical prewrite changes nothing of the lock")
            .on(by_hand, an_identical_prewrite_changes_nothing)
            .not_on(ONE, NO_LOCKS),
        Case::new(9, "a prewrite repeated after a resolver committed succeeds")
            .on(by_hand, a_prewrite_after_a_resolver_committed_succeeds)
            .on(SHARED, late_copies_of_a_committed_transaction_change_nothing)
            .not_on(ONE, NO_LOCKS),
        Case::new(10, "rolling back a long value removes its own entry only")
            .on(by_hand, rolling_back_a_long_value_removes_its_own_entry_only)
            .on(TWO, an_aborted_long_value_leaves_the_committed_one)
            .not_on(ONE, "one phase keeps long values in the record: there is no entry to remove"),
    ]
}

/// tikv #1649
fn a_prewrite_after_its_roll_back_is_refused(world: &World) {
    let hand = world.hand();
    hand.roll_back(txn(10), "k").unwrap();
    assert_eq!(hand.prewrite(&put(txn(10), "k", "late")), Err(StepError::AlreadyRolledBack));
    assert_eq!((hand.lock("k"), hand.value("k")), (None, None));
}

/// Sends every request of `victim` once more, as a network that kept copies would.
fn deliver_copies(world: &World, copies: &Mutex<Vec<RowBatch>>) -> usize {
    let engine = world.engine();
    let copies = copies.lock().unwrap();
    let prewrites: Vec<&RowBatch> = copies
        .iter()
        .filter(|group| group.changes().iter().any(|change| matches!(change.lock, CellChange::Put(_))))
        .collect();
    for copy in copies.iter().chain(prewrites.clone()) {
        let outcome = engine.apply(std::slice::from_ref(copy)).unwrap().remove(0);
        assert!(matches!(outcome, ApplyResult::PreconditionFailed { .. }), "a late copy was carried out: {copy:?}");
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
    let kept = Arc::clone(&copies);
    victim.tap.on_write(move |groups| {
        kept.lock().unwrap().extend(groups.to_vec());
        Act::Pass
    });
    assert_conflict(txn.commit());
    assert_eq!(deliver_copies(world, &copies), 3);
    assert_eq!(winner.locks_left(), 0);
    assert_eq!([winner.get("a"), winner.get("b"), winner.get("c")], [some("old"), some("old"), some("won")]);
}

/// tikv #7364, #16620
fn another_roll_back_keeps_the_first_record(world: &World) {
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
    for (start_ts, asker) in [(10, OwnerLiveness::Dead), (20, shared)] {
        let late = txn(start_ts);
        assert_eq!(hand.check(late, "k", asker), Ok(TransactionStatus::RolledBack));
        assert_eq!(hand.status("k", late), Some(TxnRecord::RolledBack));
        assert_eq!(hand.prewrite(&put(late, "k", "late")), Err(StepError::AlreadyRolledBack));
    }
    assert_eq!(hand.lock("k"), None);
}

fn a_roll_back_leaves_another_lock_alone(world: &World) {
    let hand = world.hand();
    hand.prewrite(&put(txn(20), "k", "twenty")).unwrap();
    let held = hand.lock("k");
    hand.roll_back(txn(10), "k").unwrap();
    // The same start_ts, another owner: not its lock either.
    hand.roll_back(TxnId { owner: OwnerId::from_u64(9), ..txn(11) }, "k").unwrap();
    assert_eq!(hand.lock("k"), held);
    assert_eq!(hand.commit(txn(20), "k", 30), Ok(ts(30)));
    assert_eq!(hand.value("k"), some("twenty"));
}

fn a_roll_back_after_the_commit_changes_nothing(world: &World) {
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
    // The primary still knows when a later transaction has overwritten it.
    hand.write(txn(30), "p", "later", 40);
    assert_eq!(hand.roll_back(txn(10), "p"), Err(StepError::AlreadyCommitted(ts(20))));
    assert_eq!(hand.value("p"), some("later"));
}

fn a_roll_back_after_a_one_phase_commit_changes_nothing(world: &World) {
    let hand = world.hand();
    assert_eq!(hand.one_phase(txn(10), 9, "k", &Mutation::Put(b"v".into()), 20), Ok(ts(20)));
    assert_eq!(hand.roll_back(txn(10), "k"), Err(StepError::AlreadyCommitted(ts(20))));
    assert_eq!(hand.value("k"), some("v"));
}

fn a_commit_after_the_roll_back_fails(world: &World) {
    let hand = world.hand();
    hand.write(txn(5), "k", "old", 6);
    hand.prewrite(&put(txn(10), "k", "new")).unwrap();
    assert_eq!(hand.check(txn(10), "k", OwnerLiveness::Dead), Ok(TransactionStatus::RolledBack));
    assert_eq!(hand.commit(txn(10), "k", 20), Err(StepError::AlreadyRolledBack));
    assert_eq!((hand.lock("k"), hand.value("k")), (None, some("old")));
}

fn an_owner_taken_for_dead_hears_that_it_was_rolled_back(world: &World) {
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

fn twice_gives_the_same_answer(world: &World) {
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

fn one_phase_twice_gives_the_same_answer(world: &World) {
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
    let asker = OwnerLiveness::ByTtl { current_ts: ts(20), push_above: Some(ts(15)) };
    assert_eq!(hand.check(txn(10), "k", asker), Ok(TransactionStatus::Pending));
    let before = hand.lock("k").unwrap();
    assert_eq!((before.ttl_ms, before.min_commit_ts), (5000, ts(20)));
    assert_eq!(hand.prewrite(&request), Ok(PrewriteResult::Locked { min_commit_ts: ts(20) }));
    // Nor does one of the same number that says something else: the first one counts.
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
    let verdict = hand.check(txn(10), "p", OwnerLiveness::Dead).unwrap();
    hand.resolve(txn(10), "s", verdict).unwrap();
    for request in [primary, secondary] {
        assert_eq!(hand.prewrite(&request), Ok(PrewriteResult::Committed(ts(20))));
    }
    assert_eq!([hand.lock("p"), hand.lock("s")], [None, None]);
    // The primary answers so even when somebody has written over it.
    hand.write(txn(30), "p", "later", 40);
    assert_eq!(hand.prewrite(&put(txn(10), "p", "v")), Ok(PrewriteResult::Committed(ts(20))));
    assert_eq!(hand.value("p"), some("later"));
}

fn late_copies_of_a_committed_transaction_change_nothing(world: &World) {
    let client = world.open();
    let copies = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&copies);
    client.tap.on_write(move |groups| {
        kept.lock().unwrap().extend(groups.to_vec());
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

fn rolling_back_a_long_value_removes_its_own_entry_only(world: &World) {
    let hand = world.hand();
    let entry = |start_ts| hand.0.data(&row("k"), ts(start_ts)).is_some();
    hand.write(txn(10), "k", &long("a"), 11);
    hand.prewrite(&put(txn(20), "k", &long("b"))).unwrap();
    assert_eq!([entry(10), entry(20)], [true, true]);
    hand.roll_back(txn(20), "k").unwrap();
    assert_eq!([entry(10), entry(20)], [true, false]);
    hand.roll_back(txn(10), "k").unwrap_err();
    hand.roll_back(txn(30), "k").unwrap();
    // A short put over a long one takes the entry back with it, and the roll-back finds nothing more to take.
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
    // So many rows that the first ones are locked before the conflict on the last one is met.
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
    assert!(seen.load(Ordering::SeqCst), "the long value was never written, so nothing was rolled back");
    assert!(!entry(&first) && !entry(&store.row("z")));
    assert_eq!((store.get("a"), store.get("z")), (Some(long("a")), some("won")));
    assert_eq!((store.locks_left(), store.get("m7")), (0, None));
}
