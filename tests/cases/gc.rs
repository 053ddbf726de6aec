//! Garbage collection: which cells and records it may remove, and when.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use percolite::engine::{PageRequest, RowRange};
use percolite::internal::protocol::{Prewrite, StepError, TxnStatus, delete_txn_record};
use percolite::row::{CellChange, Mutation, Precondition, TxnRecord};
use percolite::{CommitProtocol, Durability, ErrorKind, RowKey, Store, TxnOptions};

use crate::driver::{put, row, ts, txn, write};
use crate::environment::{Dice, Environment, HOUR_MS, Opened, assert_conflict, eventually, long, some, text};
use crate::hooked_engine::Act;
use crate::report::{Case, EMBEDDED, EMBEDDED_TWO, NO_COLLECTION, NO_LOCKS, ONE, SHARED, STEPS, TWO, WHOLE_STORE};

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("an older snapshot delays GC or gets SnapshotTooOld")
            .on(EMBEDDED, an_older_transaction_delays_gc)
            .on(EMBEDDED, a_snapshot_beyond_its_age_is_too_old)
            .on(EMBEDDED, a_read_view_that_expires_during_a_commit_commits_nothing)
            .not_on(STEPS, WHOLE_STORE)
            .not_on(SHARED, NO_COLLECTION),
        Case::new("a transaction that began at the safe point survives")
            .on(STEPS | TWO, a_transaction_that_began_at_the_safe_point_survives)
            .not_on(
                ONE,
                "a one-phase commit leaves no record that a late request needs: its preconditions name no safe point",
            ),
        Case::new("put, delete, GC, reopen: the row stays absent")
            .on(STEPS | TWO, gc_of_a_deletion_leaves_nothing)
            .on(EMBEDDED, a_row_removed_by_gc_stays_absent),
        Case::new("secondaries are resolved before GC removes records")
            .row_by_row()
            .on(EMBEDDED_TWO, secondaries_are_resolved_before_records_are_deleted)
            .on(EMBEDDED_TWO, a_record_outlives_the_last_lock)
            .not_on(STEPS, WHOLE_STORE)
            .not_on(SHARED, NO_COLLECTION)
            .not_on(ONE, NO_LOCKS),
        Case::new("a prewrite after GC of its rollback record is refused")
            .on(STEPS | TWO, a_prewrite_after_gc_of_its_record_is_refused)
            .not_on(ONE, NO_LOCKS),
        Case::new("a row that is being written is not garbage")
            .on(STEPS | TWO, gc_leaves_a_locked_row)
            .on(EMBEDDED, rows_written_during_gc_stay),
        Case::new("a crash among deletes of data and write cells loses no value")
            .on(EMBEDDED, a_crash_among_replaced_long_values_loses_none)
            .not_on(STEPS, WHOLE_STORE)
            .not_on(SHARED, NO_COLLECTION),
        Case::new("GC never removes a newest version")
            .on(STEPS | TWO, gc_leaves_a_newer_version)
            .on(EMBEDDED, gc_changes_no_read)
            .on(EMBEDDED, a_gc_page_begins_where_the_last_one_ended),
    ]
}

/// Waits for GC, which the background worker runs twice a second.
fn collected(store: &Opened, count: u64) {
    eventually("GC", || store.stats().gc_tombstones >= count);
}

fn an_older_transaction_delays_gc(environment: &Environment) {
    // The conflict set has only one slot, and a later commit takes it from the deletion: only the
    // tombstone in the store shows the conflict.
    let store = environment.open_with(environment.builder().conflict_set_rows(1));
    store.put_all(&["k", "other"], long("v"));
    let old = store.snapshot().unwrap();
    let mut late = store.begin().unwrap();
    late.put(&store.rows, "k", "late").unwrap();
    store.delete("k");
    store.put("other", "x");
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(store.stats().gc_tombstones, 0);
    assert_eq!(text(old.get(&store.rows, "k").unwrap()), Some(long("v")));
    assert_conflict(late.commit());
    drop(old);
    store.put("other", "y");
    collected(&store, 1);
    assert_eq!(store.get("k"), None);
    assert_eq!(store.engine.snapshot().unwrap().write(&store.row("k")).unwrap(), None);
}

fn a_snapshot_beyond_its_age_is_too_old(environment: &Environment) {
    let store = environment.open_with(environment.builder().max_snapshot_age(Duration::from_secs(3600)));
    store.put("k", "v");
    let (snapshot, mut txn) = (store.snapshot().unwrap(), store.begin().unwrap());
    store.put("other", "x");
    let newest = store.snapshot().unwrap();
    environment.clock.step(HOUR_MS / 2);
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(text(snapshot.get(&store.rows, "k").unwrap()), some("v"));
    environment.clock.step(HOUR_MS);
    eventually("the snapshot is too old", || snapshot.get(&store.rows, "k").is_err());
    let too_old = |error: percolite::Error| assert!(matches!(error.kind(), ErrorKind::SnapshotTooOld(_)), "{error}");
    too_old(snapshot.get(&store.rows, "k").unwrap_err());
    too_old(snapshot.range(&store.rows, ..).next().unwrap().unwrap_err());
    too_old(txn.put(&store.rows, "k", "w").unwrap_err());
    too_old(txn.commit().unwrap_err());
    // Nothing has replaced what this snapshot reads, so it does not expire.
    assert_eq!(text(newest.get(&store.rows, "k").unwrap()), some("v"));
}

fn a_transaction_that_began_at_the_safe_point_survives(environment: &Environment) {
    let driver = environment.driver();
    driver.0.set_safe_point(ts(10));
    driver.prewrite(&put(txn(10), "k", "v")).unwrap();
    assert_eq!(driver.commit(txn(10), "k", 20), Ok(ts(20)));
    assert_eq!(driver.prewrite(&put(txn(9), "j", "v")), Err(StepError::BelowSafePoint(ts(10))));
    assert_eq!((driver.value("k"), driver.lock("j")), (some("v"), None));
    let guard = Precondition::SafePointAtMost(ts(10));
    let holds =
        |safe_point| guard.is_met(&percolite::row::RowState { safe_point: ts(safe_point), ..Default::default() });
    assert_eq!([holds(9), holds(10), holds(11)], [true, true, false]);
}

fn gc_of_a_deletion_leaves_nothing(environment: &Environment) {
    let driver = environment.driver();
    for (key, value) in [("short", "v".to_owned()), ("long", long("v"))] {
        driver.write(txn(9), key, &value, 10);
        driver.prewrite(&write(txn(19), key, Mutation::Delete)).unwrap();
        driver.commit(txn(19), key, 20).unwrap();
        assert!(driver.collect(key, 20));
        assert_eq!((driver.record(key), driver.value(key)), (None, None));
        assert_eq!(driver.0.data(&row(key), ts(9)), None);
        driver.write(txn(30), key, "again", 31);
        assert!(driver.collect(key, 20));
        assert_eq!(driver.value(key), some("again"));
    }
}

fn a_row_removed_by_gc_stays_absent(environment: &Environment) {
    let keys: Vec<String> = (0..200).map(|number| format!("k{number:03}")).collect();
    let opened =
        || environment.open_with(environment.builder().write_buffer_bytes(1 << 20).durability(Durability::Buffered));
    let store = opened();
    // Enough other rows that puts, tombstones and the cells that GC writes are in different files.
    let bulk = |from: u32| {
        for number in from..from + 60 {
            store.put(&format!("bulk {number}"), long("bulk").repeat(16));
        }
    };
    let all = |work: &dyn Fn(&mut percolite::Txn, &str)| {
        let mut txn = store.begin().unwrap();
        keys.iter().for_each(|key| work(&mut txn, key));
        txn.commit().unwrap();
    };
    all(&|txn, key| txn.put(&store.rows, key, long(key)).unwrap());
    bulk(0);
    all(&|txn, key| txn.delete(&store.rows, key).unwrap());
    bulk(100);
    store.sync().unwrap();
    collected(&store, 200);
    bulk(200);
    drop(store);
    for _ in 0..2 {
        let store = opened();
        assert!(keys.iter().all(|key| store.get(key).is_none()));
        assert_eq!(store.begin().unwrap().prefix(&store.rows, "k").count(), 0);
        assert_eq!(store.begin().unwrap().prefix(&store.rows, "bulk").count(), 180);
    }
}

fn a_read_view_that_expires_during_a_commit_commits_nothing(environment: &Environment) {
    let store =
        environment.open_with(environment.builder().conflict_set_rows(1).max_snapshot_age(Duration::from_millis(300)));
    // Two-phase commits of long values store them out of line. From then on every commit reads a
    // row before it submits the row's new version.
    let two_phases = TxnOptions::default().commit_protocol(CommitProtocol::TwoPhase);
    let put = |key: &str| store.transact_with(two_phases, |txn| txn.put(&store.rows, key, long("v")));
    ["k", "other"].into_iter().try_for_each(put).unwrap();
    let mut late = store.begin().unwrap();
    assert!(late.get(&store.rows, "k").unwrap().is_some());
    late.put(&store.rows, "k", "over a deletion that it has not seen").unwrap();
    let (others, rows) = (Store::clone(&store), store.rows.clone());
    store.hooks.on_next_look_at(store.rows.row_key("k"), move || {
        let mut deletion = others.begin().unwrap();
        deletion.delete(&rows, "k").unwrap();
        // In two phases `late`, which is about to commit, has locked the row by now, so the
        // deletion fails.
        let deleted = deletion.commit().is_ok();
        let before = others.stats();
        others.transact(|txn| txn.put(&rows, "other", "v")).unwrap();
        eventually("expiry", || others.stats().snapshots_expired > 0);
        if deleted {
            eventually("GC", || others.stats().gc_tombstones > before.gc_tombstones);
        }
    });
    let refused = late.commit().unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::SnapshotTooOld(_)), "{refused}");
    assert_eq!(store.locks_left(), 0);
    let value = store.begin().unwrap().get(&store.rows, "k").unwrap();
    assert!(value.is_none_or(|value| value == long("v").as_bytes()));
}

fn secondaries_are_resolved_before_records_are_deleted(environment: &Environment) {
    // More locks than the sweep reads in one page.
    let keys: Vec<String> = (0..1200).map(|number| format!("k{number:04}")).collect();
    let driver = environment.driver();
    for (t, keys, committed) in [(txn(10), &keys[..600], true), (txn(11), &keys[600..], false)] {
        for key in keys {
            driver.prewrite(&Prewrite { primary: row(&keys[0]), ..put(t, key, "new") }).unwrap();
        }
        if committed {
            driver.commit(t, &keys[0], 20).unwrap();
        }
    }
    drop(driver);
    let hooks: Arc<crate::hooked_engine::Control> = Arc::default();
    let (engine, wrong, gone) =
        (Arc::new(std::sync::OnceLock::new()), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (early, count, below) = (Arc::clone(&wrong), Arc::clone(&gone), Arc::clone(&engine));
    hooks.on_write(move |groups| {
        let changes = || groups.iter().flat_map(|group| group.changes().into_owned());
        for change in changes().filter(|change| change.txn_record == CellChange::Delete && change.start_ts < ts(1000)) {
            count.fetch_add(1, Ordering::SeqCst);
            let engine: &Arc<dyn percolite::engine::Engine> = below.get().unwrap();
            let page = PageRequest { range: &RowRange::all(), backwards: false, limit: usize::MAX, cursor: None };
            let locks = engine.snapshot().unwrap().scan_locks(&page).unwrap();
            let goes = |row: &RowKey| changes().any(|change| change.row == *row && change.lock == CellChange::Delete);
            let left = locks.iter().filter(|(row, lock)| lock.txn.start_ts == change.start_ts && !goes(row)).count();
            early.fetch_add(left as u64, Ordering::SeqCst);
        }
        Act::Pass
    });
    let store = environment.try_open(environment.builder().background_resolve(false), hooks).unwrap();
    engine.set(Arc::clone(&store.engine)).ok().unwrap();
    assert_eq!(store.locks_left(), 1199);
    store.resolve_orphan_locks().unwrap();
    assert_eq!((wrong.load(Ordering::SeqCst), store.locks_left()), (0, 0));
    // Records were deleted, and none before the last lock of its transaction was removed.
    assert!(gone.load(Ordering::SeqCst) > 0);
    assert_eq!(store.engine.txn_records(ts(1000), None, usize::MAX).unwrap().records, []);
    assert!(store.engine.safe_point().unwrap() > ts(1000));
    let txn = store.begin().unwrap();
    for (number, key) in keys.iter().enumerate() {
        let expected = (number < 600).then(|| "new".to_owned());
        assert_eq!(text(txn.get(&store.rows, key).unwrap()), expected, "{key}");
    }
    // The hook owns the engine and the engine owns the hook: break the cycle.
    store.hooks.no_hooks();
}

fn a_record_outlives_the_last_lock(environment: &Environment) {
    let store = environment.open();
    let (wrong, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (early, count, engine) = (Arc::clone(&wrong), Arc::clone(&seen), Arc::downgrade(&store.engine));
    store.hooks.on_write(move |groups| {
        let changes = || groups.iter().flat_map(|group| group.changes().into_owned());
        for change in changes().filter(|change| change.txn_record == CellChange::Delete) {
            count.fetch_add(1, Ordering::SeqCst);
            let page = PageRequest { range: &RowRange::all(), backwards: false, limit: usize::MAX, cursor: None };
            let locks = engine.upgrade().unwrap().snapshot().unwrap().scan_locks(&page).unwrap();
            let goes = |row: &RowKey| changes().any(|change| change.row == *row && change.lock == CellChange::Delete);
            let left = locks.iter().filter(|(row, lock)| lock.txn.start_ts == change.start_ts && !goes(row)).count();
            early.fetch_add(left as u64, Ordering::SeqCst);
        }
        Act::Pass
    });
    for _ in 0..20 {
        store.put_all(&["a", "b", "c"], "v");
    }
    store.hooks.no_hooks();
    assert_eq!((wrong.load(Ordering::SeqCst), seen.load(Ordering::SeqCst)), (0, 20));
}

fn a_prewrite_after_gc_of_its_record_is_refused(environment: &Environment) {
    let driver = environment.driver();
    driver.prewrite(&put(txn(10), "k", "v")).unwrap();
    driver.roll_back(txn(10), "k").unwrap();
    driver.0.set_safe_point(ts(11));
    driver.0.make(delete_txn_record(row("k"), ts(10))).unwrap();
    assert_eq!(driver.status("k", txn(10)), None);
    assert_eq!(driver.prewrite(&put(txn(10), "k", "v")), Err(StepError::BelowSafePoint(ts(11))));
    assert_eq!(driver.commit(txn(10), "k", 20), Err(StepError::BelowSafePoint(ts(11))));
    assert_eq!((driver.lock("k"), driver.value("k")), (None, None));
}

/// Public issue: OMID-146.
fn gc_leaves_a_locked_row(environment: &Environment) {
    let driver = environment.driver();
    driver.write(txn(9), "k", "v", 10);
    driver.prewrite(&write(txn(19), "k", Mutation::Delete)).unwrap();
    driver.commit(txn(19), "k", 20).unwrap();
    driver.prewrite(&put(txn(30), "k", &long("new"))).unwrap();
    let (lock, record) = (driver.lock("k"), driver.record("k"));
    assert!(!driver.collect("k", 20), "its entry must stay in the GC queue");
    assert_eq!((driver.lock("k"), driver.record("k")), (lock, record));
    driver.commit(txn(30), "k", 40).unwrap();
    assert!(driver.collect("k", 20));
    assert_eq!(driver.value("k"), Some(long("new")));
    // GC skips a row with a lock-only lock, too, and removes the row once the lock is gone.
    driver.prewrite(&write(txn(50), "k", Mutation::Delete)).unwrap();
    driver.commit(txn(50), "k", 51).unwrap();
    driver.prewrite(&write(txn(60), "k", Mutation::LockOnly)).unwrap();
    assert!(!driver.collect("k", 51));
    driver.commit(txn(60), "k", 61).unwrap();
    assert!(driver.collect("k", 51));
    assert_eq!((driver.record("k"), driver.status("k", txn(60))), (None, Some(TxnRecord::Committed(ts(61)))));
    assert_eq!(
        driver.check(txn(60), "k", percolite::internal::protocol::OwnerLiveness::Ended),
        Ok(TxnStatus::Committed(ts(61)))
    );
}

fn rows_written_during_gc_stay(environment: &Environment) {
    let store = environment.open_with(environment.builder().durability(Durability::Buffered));
    let mut dice = environment.dice();
    let keys: Vec<String> = (0..40).map(|number| format!("k{number:02}")).collect();
    let mut model = vec![None; keys.len()];
    let end = std::time::Instant::now() + Duration::from_millis(2300);
    let mut writes = 0_u64;
    while std::time::Instant::now() < end {
        let index = dice.below(40) as usize;
        if dice.below(3) == 0 {
            store.delete(&keys[index]);
            model[index] = None;
        } else {
            let value = if dice.below(2) == 0 { long("v") } else { writes.to_string() };
            store.put(&keys[index], &value);
            model[index] = Some(value);
        }
        if writes.is_multiple_of(200) {
            store.sync().unwrap();
        }
        writes += 1;
        let checked = dice.below(40) as usize;
        assert_eq!(store.get(&keys[checked]), model[checked]);
    }
    assert!(store.stats().gc_tombstones > 0, "GC removed nothing meanwhile");
    for (key, value) in keys.iter().zip(&model) {
        assert_eq!(store.get(key), *value);
    }
}

fn a_crash_among_replaced_long_values_loses_none(environment: &Environment) {
    let keys = ["a", "b", "c", "d"];
    let mut dice = environment.dice();
    let rounds = if environment.is_rocks() { 12 } else { 60 };
    for round in 0..rounds {
        let environment = environment.another();
        let store = environment.open_with(environment.builder().durability(Durability::Buffered));
        let mut acknowledged: Vec<Vec<Option<String>>> = vec![vec![None; keys.len()]];
        store.hooks.cut_at(dice.below(40), if dice.below(2) == 0 { Act::Refuse } else { Act::Lose });
        work_until_cut(&store, &keys, &mut acknowledged, &mut dice);
        drop(store);
        environment.crash(&mut dice);
        let store = environment.open_unswept();
        let seen: Vec<_> = keys.iter().map(|key| store.get(key)).collect();
        assert!(acknowledged.contains(&seen), "round {round}: {seen:?} is no state of the history");
    }
}

/// Adds the state after each commit to `states`, including the commit that the cut left
/// undetermined.
fn work_until_cut(store: &Opened, keys: &[&str], states: &mut Vec<Vec<Option<String>>>, dice: &mut Dice) {
    while !store.hooks.is_dead() {
        let Ok(mut txn) = store.begin() else { return };
        let mut next = states.last().unwrap().clone();
        for _ in 0..2 {
            let index = dice.below(keys.len() as u64) as usize;
            if dice.below(4) == 0 {
                txn.delete(&store.rows, keys[index]).unwrap();
                next[index] = None;
            } else {
                let value = long(&dice.below(10).to_string());
                txn.put(&store.rows, keys[index], &value).unwrap();
                next[index] = Some(value);
            }
        }
        states.push(next);
        let _ = txn.commit();
    }
}

fn gc_leaves_a_newer_version(environment: &Environment) {
    let driver = environment.driver();
    driver.prewrite(&write(txn(9), "k", Mutation::Delete)).unwrap();
    driver.commit(txn(9), "k", 10).unwrap();
    driver.write(txn(19), "k", "new", 20);
    for deleted_at in [5, 10, 15, 20, 99] {
        driver.collect("k", deleted_at);
        assert_eq!(driver.value("k"), some("new"), "GC of {deleted_at}");
    }
    driver.prewrite(&write(txn(29), "k", Mutation::Delete)).unwrap();
    driver.commit(txn(29), "k", 30).unwrap();
    driver.collect("k", 10);
    assert_eq!(driver.record("k").map(|record| record.commit_ts), Some(ts(30)), "GC removed a later tombstone");
    // The row is put again between GC's read and its write.
    let stale = percolite::internal::protocol::gc_row(
        &driver.0.read(&row("k"), ts(0)),
        &percolite::internal::protocol::GcRequest {
            row: row("k"),
            replaced_at: vec![ts(30)],
            old_versions: Vec::new(),
        },
    );
    driver.write(txn(39), "k", "newer", 40);
    assert!(driver.0.make(stale).is_err());
    assert_eq!(driver.value("k"), some("newer"));
}

/// GC deletes the queue entries of each page. A page that began at the start of the queue would
/// have to skip all of these deleted entries again.
fn a_gc_page_begins_where_the_last_one_ended(environment: &Environment) {
    let store = environment.open();
    let keys: Vec<String> = (0..1100).map(|number| format!("k{number:04}")).collect();
    let in_one = |change: &dyn Fn(&mut percolite::Txn, &str)| {
        let mut txn = store.begin().unwrap();
        keys.iter().for_each(|key| change(&mut txn, key));
        txn.commit().unwrap().commit_ts
    };
    in_one(&|txn, key| txn.put(&store.rows, key, "v").unwrap());
    let old = store.snapshot().unwrap();
    let deleted_at = in_one(&|txn, key| txn.delete(&store.rows, key).unwrap());
    store.hooks.take_collections();
    drop(old);
    store.put("other", "x");
    collected(&store, 1100);
    let ends = [511, 1023].map(|number| Some((deleted_at, store.row(&keys[number]))));
    let pages = store.hooks.take_collections();
    assert!(pages.windows(3).any(|pages| pages == [&[None], &ends[..]].concat()), "{pages:?}");
}

fn gc_changes_no_read(environment: &Environment) {
    let store = environment.open_with(environment.builder().durability(Durability::Buffered));
    let mut snapshots = Vec::new();
    let mut dice = environment.dice();
    for round in 0..4_u64 {
        let mut txn = store.begin().unwrap();
        for number in 0..50 {
            let key = format!("k{number:02}");
            if dice.below(2) == 0 {
                txn.delete(&store.rows, key)
            } else {
                txn.put(&store.rows, key, long(&round.to_string()))
            }
            .unwrap();
        }
        txn.commit().unwrap();
        store.sync().unwrap();
        let snapshot = store.snapshot().unwrap();
        let seen: Vec<_> = snapshot.range(&store.rows, ..).map(Result::unwrap).collect();
        snapshots.push((snapshot, seen));
        if round == 1 {
            // Once the snapshot of round 0 is dropped, the deletions of rounds 0 and 1 are garbage.
            snapshots.remove(0);
        }
    }
    collected(&store, 1);
    for (snapshot, seen) in &snapshots {
        assert_eq!(&snapshot.range(&store.rows, ..).map(Result::unwrap).collect::<Vec<_>>(), seen);
    }
}
