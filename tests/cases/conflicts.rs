//! Conflicts: which writes are refused, how soon, and what the error names.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use percolite::Timestamp;
use percolite::internal::protocol::{Prewrite, PrewriteResult, StepError};
use percolite::row::Mutation;
use percolite::{ConflictReason, Durability, TxnStatus};

use crate::driver::{put, row, ts, txn, write};
use crate::environment::{Environment, assert_conflict, some, spawn, text};
use crate::hooked_engine::{Act, Gate, commits};
use crate::report::{Case, ONE, SHARED, STEPS, STORES, TWO, WHOLE_STORE};

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("a commit after the snapshot is a conflict that names both")
            .on(STEPS | TWO, a_newer_commit_refuses_a_prewrite)
            .on(STEPS | ONE, a_newer_commit_refuses_one_phase)
            .on(STORES, a_conflict_names_the_row_and_both_sides),
        Case::new("blind writes, deletes of nothing and inserts conflict too")
            .on(STEPS | TWO, a_commit_at_the_snapshot_is_no_conflict)
            .on(STORES, every_kind_of_write_conflicts),
        Case::new("locks in opposite orders: one aborts immediately")
            .on(STEPS | TWO, locks_in_opposite_orders_do_not_wait)
            .on(STORES, writers_in_opposite_orders_never_wait)
            .on(SHARED, a_live_lock_is_an_immediate_conflict)
            .on(SHARED, of_many_clients_one_gets_the_lock),
        Case::new("an abort during prewrite releases every lock")
            .on(STORES, an_abort_during_prewrite_releases_every_lock)
            .on(STORES, a_rolled_back_lock_only_releases_its_row)
            .not_on(STEPS, WHOLE_STORE),
        Case::new("write skew occurs; get_for_update on one side prevents it")
            .on(STORES, write_skew_is_possible)
            .on(STORES, lock_only_on_one_side_prevents_write_skew)
            .not_on(STEPS, WHOLE_STORE),
        Case::new("no timestamp means 'no conflict'; needed conflicts are kept")
            .on(STEPS | TWO, the_lowest_timestamps_are_like_any_other)
            .on(STEPS | ONE, the_lowest_timestamps_are_like_any_other_in_one_phase)
            .on(STORES, conflicts_of_open_transactions_are_kept),
    ]
}

fn a_newer_commit_refuses_a_prewrite(environment: &Environment) {
    let driver = environment.driver();
    driver.write(txn(20), "k", "theirs", 30);
    let theirs = driver.record("k").unwrap();
    // Only read_ts decides, not whether the transaction began before or after the commit.
    for start_ts in [10, 31, 99] {
        let request = Prewrite { read_ts: ts(29), ..put(txn(start_ts), "k", "mine") };
        assert_eq!(driver.prewrite(&request), Err(StepError::WriteConflict(Box::new(theirs.clone()))));
    }
    assert_eq!((driver.lock("k"), driver.value("k")), (None, some("theirs")));
}

fn a_newer_commit_refuses_one_phase(environment: &Environment) {
    let driver = environment.driver();
    driver.one_phase(txn(20), 19, "k", &Mutation::Put(b"theirs".into()), 30).unwrap();
    let theirs = driver.record("k").unwrap();
    for mutation in [Mutation::Put(b"mine".into()), Mutation::Delete, Mutation::LockOnly] {
        for start_ts in [10, 31, 99] {
            let refused = driver.one_phase(txn(start_ts), 29, "k", &mutation, 100);
            assert_eq!(refused, Err(StepError::WriteConflict(Box::new(theirs.clone()))));
        }
    }
    assert_eq!(driver.value("k"), some("theirs"));
    assert_eq!(driver.one_phase(txn(40), 30, "k", &Mutation::Put(b"mine".into()), 50), Ok(ts(50)));
}

fn a_conflict_names_the_row_and_both_sides(environment: &Environment) {
    let store = environment.open();
    let mut loser = store.begin().unwrap();
    loser.put(&store.rows, "j", "mine").unwrap();
    loser.put(&store.rows, "k", "mine").unwrap();
    let read_ts = loser.read_ts();
    let mut winner = store.begin().unwrap();
    winner.put(&store.rows, "k", "theirs").unwrap();
    let (start_ts, owner) = (winner.start_ts(), winner.owner_id());
    let commit = winner.commit().unwrap();
    let error = loser.commit().unwrap_err();
    assert!(error.is_retryable());
    let conflict = error.conflict().unwrap();
    assert_eq!((&conflict.row, conflict.reason), (&store.row("k"), ConflictReason::NewerVersion(commit.commit_ts)));
    assert_eq!((conflict.conflicting_owner, conflict.conflicting_start_ts), (Some(owner), Some(start_ts)));
    assert_eq!(conflict.read_ts, read_ts);
    assert_eq!((store.get("j"), store.get("k"), store.locks_left()), (None, some("theirs"), 0));
}

fn a_commit_at_the_snapshot_is_no_conflict(environment: &Environment) {
    let driver = environment.driver();
    driver.write(txn(20), "k", "theirs", 30);
    let sorts = [Mutation::Put(b"v".into()), Mutation::Delete, Mutation::LockOnly];
    for (number, mutation) in sorts.into_iter().enumerate() {
        let me = txn(40 + number as u64);
        let too_old = Prewrite { read_ts: ts(29), ..write(me, "k", mutation.clone()) };
        assert!(matches!(driver.prewrite(&too_old), Err(StepError::WriteConflict(_))));
        let seen = Prewrite { read_ts: ts(30), ..write(me, "k", mutation) };
        assert!(matches!(driver.prewrite(&seen), Ok(PrewriteResult::Locked { .. })));
        driver.roll_back(me, "k").unwrap();
    }
}

fn every_kind_of_write_conflicts(environment: &Environment) {
    let store = environment.open();
    for theirs_deletes in [false, true] {
        for sort in ["blind put", "delete", "insert", "lock-only"] {
            let key = format!("{sort} {theirs_deletes}");
            if theirs_deletes {
                store.put(&key, "there");
                store.delete(&key);
            }
            let mut mine = store.begin().unwrap();
            match sort {
                "blind put" => mine.put(&store.rows, &key, "mine").unwrap(),
                "delete" => mine.delete(&store.rows, &key).unwrap(),
                "insert" => mine.insert(&store.rows, &key, "mine").unwrap(),
                _ => drop(mine.get_for_update(&store.rows, &key).unwrap()),
            }
            mine.put(&store.rows, "mine", "mine").unwrap();
            if theirs_deletes {
                store.delete(&key)
            } else {
                store.put(&key, "theirs")
            };
            assert_conflict(mine.commit());
            assert_eq!(store.get(&key), if theirs_deletes { None } else { some("theirs") });
            assert_eq!(store.get("mine"), None, "{sort}");
        }
    }
}

fn locks_in_opposite_orders_do_not_wait(environment: &Environment) {
    let driver = environment.driver();
    let request =
        |t, primary: &str, key: &str| driver.prewrite(&Prewrite { primary: row(primary), ..put(t, key, "v") });
    request(txn(10), "a", "a").unwrap();
    request(txn(11), "b", "b").unwrap();
    let (a, b) = (driver.lock("a").unwrap(), driver.lock("b").unwrap());
    assert_eq!(request(txn(10), "a", "b"), Err(StepError::KeyIsLocked(Box::new(b))));
    assert_eq!(request(txn(11), "b", "a"), Err(StepError::KeyIsLocked(Box::new(a))));
    driver.roll_back(txn(10), "a").unwrap();
    driver.roll_back(txn(10), "b").unwrap();
    request(txn(11), "b", "a").unwrap();
    driver.commit(txn(11), "b", 20).unwrap();
    driver.commit_secondary(txn(11), "a", 20).unwrap();
    assert_eq!([driver.value("a"), driver.value("b")], [some("v"), some("v")]);
}

fn writers_in_opposite_orders_never_wait(environment: &Environment) {
    let store = environment.open_with(environment.builder().durability(Durability::Buffered));
    let began = Instant::now();
    let threads: Vec<_> = [["a", "b"], ["b", "a"]]
        .into_iter()
        .map(|order| {
            let (store, rows) = (store.store.clone(), store.rows.clone());
            spawn(move || {
                let (mut won, mut lost) = (0, 0);
                // The limit of lost attempts is high: while one thread is descheduled in the middle
                // of its commit, very many attempts of the other one may fail.
                while won < 150 {
                    assert!(lost < 1_000_000, "only {won} commits");
                    let mut txn = store.begin().unwrap();
                    for key in order {
                        txn.get_for_update(&rows, key).unwrap();
                        txn.put(&rows, key, format!("{} {won}", order[0])).unwrap();
                    }
                    match txn.commit() {
                        Ok(_) => won += 1,
                        Err(error) => {
                            assert!(error.is_retryable(), "{error}");
                            lost += 1;
                        }
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join());
    assert!(began.elapsed() < Duration::from_secs(20), "a commit waited: {:?}", began.elapsed());
    assert_eq!((store.get("a"), store.locks_left()), (store.get("b"), 0));
}

fn a_live_lock_is_an_immediate_conflict(environment: &Environment) {
    let (holder, rival) = (environment.open(), environment.open());
    let (gate, barrier) = Gate::closed();
    let primary = holder.row("a");
    holder.hooks.on_write(move |groups| {
        if commits(groups, &primary) {
            barrier.pass();
        }
        Act::Pass
    });
    let (store, rows) = (holder.store.clone(), holder.rows.clone());
    let commit = spawn(move || {
        let mut txn = store.begin().unwrap();
        txn.put(&rows, "a", "held").unwrap();
        txn.put(&rows, "b", "held").unwrap();
        txn.commit()
    });
    gate.wait_for_arrival();
    let began = Instant::now();
    let mut txn = rival.begin().unwrap();
    txn.put(&rival.rows, "0", "rival").unwrap();
    txn.put(&rival.rows, "b", "rival").unwrap();
    let error = txn.commit().unwrap_err();
    assert_eq!(error.conflict().map(|conflict| conflict.reason), Some(ConflictReason::Locked));
    assert!(began.elapsed() < Duration::from_secs(10));
    gate.open();
    commit.join().unwrap();
    assert_eq!((rival.get("0"), rival.get("b"), rival.locks_left()), (None, some("held"), 0));
}

/// Each thread is a client with a driver of its own. Only the row's preconditions can exclude the
/// clients from each other.
fn of_many_clients_one_gets_the_lock(environment: &Environment) {
    const ROUNDS: u64 = 4000;
    let together = Arc::new(Barrier::new(3));
    let threads: Vec<_> = (0..3)
        .map(|client| {
            let (driver, together) = (environment.driver(), Arc::clone(&together));
            spawn(move || {
                let try_lock = |round: u64| {
                    together.wait();
                    driver.race_for(&put(txn(10 + client), &format!("k{round}"), "v")).is_ok()
                };
                (0..ROUNDS).map(try_lock).collect::<Vec<bool>>()
            })
        })
        .collect();
    let got: Vec<Vec<bool>> = threads.into_iter().map(|thread| thread.join()).collect();
    for round in 0..ROUNDS as usize {
        assert_eq!(got.iter().filter(|client| client[round]).count(), 1, "clients that locked row {round}");
    }
}

fn an_abort_during_prewrite_releases_every_lock(environment: &Environment) {
    let store = environment.open();
    let mut loser = store.begin().unwrap();
    // More rows than one batch locks, and the conflict is on the last row.
    let keys: Vec<String> = (0..1100).map(|number| format!("k{number:04}")).collect();
    for key in &keys {
        loser.put(&store.rows, key, "lost").unwrap();
    }
    loser.put(&store.rows, "z", "lost").unwrap();
    store.put("z", "won");
    let aborted = (loser.start_ts(), loser.owner_id());
    assert_conflict(loser.commit());
    assert_eq!(store.locks_left(), 0);
    assert_eq!(store.begin().unwrap().prefix(&store.rows, "k").count(), 0);
    let status = store.txn_status(&store.row("k0000"), aborted.0, aborted.1).unwrap();
    assert!(matches!(status, Some(TxnStatus::RolledBack) | None), "{status:?}");
    let mut next = store.begin().unwrap();
    for key in &keys {
        next.put(&store.rows, key, "next").unwrap();
    }
    next.commit().unwrap();
    assert_eq!(store.get("k1099"), some("next"));
}

fn a_rolled_back_lock_only_releases_its_row(environment: &Environment) {
    let store = environment.open();
    store.put("k", "v");
    let mut waiting = store.begin().unwrap();
    waiting.put(&store.rows, "k", "waited").unwrap();
    for explicit in [true, false] {
        let mut holder = store.begin().unwrap();
        assert_eq!(text(holder.get_for_update(&store.rows, "k").unwrap()), some("v"));
        holder.put(&store.rows, "k2", "never").unwrap();
        if explicit { holder.rollback().unwrap() } else { drop(holder) }
    }
    assert_eq!(store.locks_left(), 0);
    waiting.commit().unwrap();
    assert_eq!((store.get("k"), store.get("k2")), (some("waited"), None));
}

fn write_skew_is_possible(environment: &Environment) {
    let store = environment.open();
    store.put_all(&["a", "b"], "on call");
    let (mut one, mut two) = (store.begin().unwrap(), store.begin().unwrap());
    for (txn, mine, other) in [(&mut one, "a", "b"), (&mut two, "b", "a")] {
        assert_eq!(text(txn.get(&store.rows, other).unwrap()), some("on call"));
        txn.put(&store.rows, mine, "off").unwrap();
    }
    one.commit().unwrap();
    two.commit().unwrap();
    assert_eq!([store.get("a"), store.get("b")], [some("off"), some("off")]);
}

fn lock_only_on_one_side_prevents_write_skew(environment: &Environment) {
    let store = environment.open();
    for holder_first in [true, false] {
        for absent in [false, true] {
            let name = |key: &str| format!("{key} {holder_first} {absent}");
            let (a, b) = (name("a"), name("b"));
            if !absent {
                store.put_all(&[&a, &b], "on call");
            }
            let expected = if absent { None } else { some("on call") };
            let (mut holder, mut plain) = (store.begin().unwrap(), store.begin().unwrap());
            assert_eq!(text(holder.get_for_update(&store.rows, &b).unwrap()), expected);
            holder.put(&store.rows, &a, "off").unwrap();
            assert_eq!(text(plain.get(&store.rows, &a).unwrap()), expected);
            plain.put(&store.rows, &b, "off").unwrap();
            let (first, second) = if holder_first { (holder, plain) } else { (plain, holder) };
            first.commit().unwrap();
            assert_conflict(second.commit());
            let off = [store.get(&a), store.get(&b)].iter().filter(|value| **value == some("off")).count();
            assert_eq!(off, 1, "holder first: {holder_first}, rows absent: {absent}");
        }
    }
}

/// badger PR 1716: the timestamp 0 was used for "no conflict".
fn the_lowest_timestamps_are_like_any_other(environment: &Environment) {
    let driver = environment.driver();
    driver.write(txn(1), "k", "first", 2);
    assert_eq!(driver.record("k").unwrap().commit_ts, ts(2));
    for read_ts in [Timestamp::ZERO, ts(1)] {
        let request = Prewrite { read_ts, ..put(txn(5), "k", "blind") };
        assert!(matches!(driver.prewrite(&request), Err(StepError::WriteConflict(_))), "at {read_ts}");
    }
    // A row without versions has no conflict, whatever the read timestamp is.
    driver.prewrite(&Prewrite { read_ts: Timestamp::ZERO, ..put(txn(5), "new", "blind") }).unwrap();
    let last = Timestamp::MAX.to_u64() - 1;
    driver.prewrite(&put(txn(last), "last", "v")).unwrap();
    assert_eq!(driver.commit(txn(last), "last", u64::MAX), Ok(Timestamp::MAX));
    let late = Prewrite { read_ts: ts(u64::MAX - 1), ..put(txn(7), "last", "blind") };
    assert!(matches!(driver.prewrite(&late), Err(StepError::WriteConflict(_))));
}

fn the_lowest_timestamps_are_like_any_other_in_one_phase(environment: &Environment) {
    let driver = environment.driver();
    let value = Mutation::Put(b"v".into());
    driver.one_phase(txn(1), 0, "k", &value, 2).unwrap();
    for read_ts in [0, 1] {
        assert!(matches!(driver.one_phase(txn(5), read_ts, "k", &value, 9), Err(StepError::WriteConflict(_))));
    }
    assert_eq!(driver.one_phase(txn(5), 0, "new", &value, 9), Ok(ts(9)));
}

/// badger PR 594: conflict entries were dropped while an open transaction needed them.
fn conflicts_of_open_transactions_are_kept(environment: &Environment) {
    for slots in [1, 64, 1 << 12] {
        let environment = environment.another();
        let store =
            environment.open_with(environment.builder().conflict_set_rows(slots).durability(Durability::Buffered));
        store.put("deleted", "there");
        let begin = |key: &str| {
            let mut txn = store.begin().unwrap();
            txn.put(&store.rows, key, "late").unwrap();
            txn
        };
        let late = ["written", "deleted", "held"].map(begin);
        store.put("written", "early");
        store.delete("deleted");
        let mut holder = store.begin().unwrap();
        holder.get_for_update(&store.rows, "held").unwrap();
        holder.put(&store.rows, "holder", "x").unwrap();
        holder.commit().unwrap();
        for number in 0..300 {
            store.put(&format!("other {number}"), "x");
        }
        for txn in late {
            assert_conflict(txn.commit());
        }
        assert_eq!([store.get("written"), store.get("deleted"), store.get("held")], [some("early"), None, None]);
        store.put_all(&["written", "deleted", "held"], "free");
    }
}
