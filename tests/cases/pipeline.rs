//! The commit pipeline: when a commit is visible, durable and acknowledged.

use std::time::Duration;

use percolite::Durability;
use percolite::Timestamp;
use percolite::engine::{PageRequest, RowRange};
use percolite::internal::protocol::{Prewrite, PrewriteResult, StepError};
use percolite::row::Mutation;

use crate::acknowledged;
use crate::driver::{put, row, ts, txn, write};
use crate::environment::{Environment, HOUR_MS, assert_conflict, eventually, long, some, spawn, text};
use crate::hooked_engine::{Act, Gate, commits};
use crate::report::{
    Case, EMBEDDED, EMBEDDED_TWO, NO_LOCKS, ONE, SHARED, SIM_ONE, SIM_TWO, STEPS, STORES, TWO, WHOLE_STORE,
};
#[cfg(feature = "rocks")]
use crate::report::{ROCKS_ONE, ROCKS_TWO};
use crate::undecided;
use crate::waiting;

pub fn cases() -> Vec<Case> {
    let no_drop = "keyspaces of a shared engine cannot be dropped";
    let cuts_logs =
        Case::new("an older segment loses its tail: a prefix or an error, no hole").not_on(STEPS, WHOLE_STORE).not_on(
            SIM_ONE | SIM_TWO | SHARED,
            "the in-memory engines have no log files; their crashes keep a prefix by construction",
        );
    #[cfg(feature = "rocks")]
    let cuts_logs = cuts_logs.on(ROCKS_ONE | ROCKS_TWO, crate::wal::an_older_segment_cut_at_a_frame_leaves_no_hole);
    vec![
        Case::new("a commit between read_ts and start_ts is a conflict")
            .on(STEPS | TWO, a_commit_between_read_ts_and_start_ts_is_a_conflict)
            .on(STORES, a_transaction_begun_during_a_commit_conflicts_with_it),
        Case::new("a snapshot sees acknowledged commits and never goes back")
            .on(STORES, acknowledged::a_snapshot_sees_what_was_acknowledged)
            .on(EMBEDDED, acknowledged::a_sync_acknowledges_no_commit_that_came_during_it)
            .on(ONE, acknowledged::a_commit_that_a_close_overtakes_is_not_acknowledged)
            .not_on(STEPS, WHOLE_STORE),
        Case::new("a closure's own error waits until its reads are durable")
            .on(STORES, acknowledged::a_closures_own_error_waits_until_its_reads_are_durable)
            .on(EMBEDDED, acknowledged::a_failed_sync_replaces_a_closures_own_error)
            .not_on(STEPS, WHOLE_STORE),
        Case::new("snapshots and recovery find the version being replaced")
            .on(STORES, a_snapshot_finds_the_version_that_is_being_replaced)
            .on(SIM_ONE | SIM_TWO, acknowledged::an_unsynced_commit_does_not_cost_the_durable_version)
            .not_on(STEPS, WHOLE_STORE),
        cuts_logs,
        Case::new("a dropped keyspace's primary still decides its secondaries")
            .row_by_row()
            .on(EMBEDDED_TWO, a_dropped_primary_still_rolls_its_secondary_forward)
            .not_on(STEPS, WHOLE_STORE)
            .not_on(SHARED, no_drop)
            .not_on(ONE, NO_LOCKS),
        Case::new("the last put wins; savepoints restore earlier puts")
            .on(STEPS | TWO, the_last_put_of_a_transaction_wins)
            .on(STORES, a_savepoint_restores_what_was_put_before_it),
        Case::new("nested and conflicting closures do not deadlock")
            .on(STORES, waiting::nested_closures_need_no_second_permit)
            .on(STORES, waiting::conflicting_closures_in_opposite_orders_all_commit)
            .not_on(STEPS, WHOLE_STORE),
        Case::new("a sync after a failed one acknowledges none of its commits")
            .on(EMBEDDED, undecided::a_failed_sync_fails_every_waiting_commit)
            .on(EMBEDDED, undecided::a_failed_sync_of_the_sweep_fails_waiting_commits)
            .not_on(STEPS, WHOLE_STORE)
            .not_on(SHARED, "a lost reply of a shared engine is not a failed disk: the client sends the request again"),
        Case::new("a panic of the engine answers every waiting commit")
            .on(EMBEDDED, undecided::a_panic_of_the_engine_answers_every_commit)
            .not_on(STEPS, WHOLE_STORE)
            .not_on(SHARED, "clients of a shared engine do not write each other's commits"),
        Case::new("the last lock of a commit is resolved during a read")
            .row_by_row()
            .on(TWO, a_reader_continues_when_the_last_lock_is_resolved)
            .on(TWO, an_old_read_view_shows_locks_resolved_since)
            .not_on(STEPS, WHOLE_STORE)
            .not_on(ONE, NO_LOCKS),
        Case::new("idle for an hour: a bounded conflict set, still a conflict")
            .on(STORES, an_idle_transaction_still_conflicts)
            .on(EMBEDDED, an_idle_transaction_has_no_spurious_conflict)
            .not_on(STEPS, WHOLE_STORE),
    ]
}

fn a_commit_between_read_ts_and_start_ts_is_a_conflict(environment: &Environment) {
    let driver = environment.driver();
    driver.write(txn(8), "k", "T0", 10);
    let late = Prewrite { read_ts: ts(9), ..put(txn(12), "k", "T1") };
    assert!(matches!(driver.prewrite(&late), Err(StepError::WriteConflict(found)) if found.commit_ts == ts(10)));
    let value = Mutation::Put(b"T1".into());
    assert!(matches!(driver.one_phase(txn(12), 9, "k", &value, 20), Err(StepError::WriteConflict(_))));
    assert_eq!(driver.value("k"), some("T0"));
    assert!(matches!(driver.prewrite(&Prewrite { read_ts: ts(10), ..late }), Ok(PrewriteResult::Locked { .. })));
}

fn a_transaction_begun_during_a_commit_conflicts_with_it(environment: &Environment) {
    let first = environment.open();
    let second_client = environment.is_shared().then(|| environment.open());
    let second = second_client.as_ref().unwrap_or(&first);
    first.put("k", "1");
    let (gate, barrier) = Gate::closed();
    let watched = first.row("k");
    first.hooks.on_write(move |groups| {
        if commits(groups, &watched) {
            barrier.pass();
        }
        Act::Pass
    });
    let (store, rows) = (first.store.clone(), first.rows.clone());
    let t0 = spawn(move || {
        let mut txn = store.begin().unwrap();
        txn.put(&rows, "k", "2").unwrap();
        txn.commit().unwrap().commit_ts
    });
    gate.wait_for_arrival();
    // T0 has its commit timestamp, but is stopped before its commit is visible.
    let mut t1 = second.begin().unwrap();
    let (read_ts, start_ts) = (t1.read_ts(), t1.start_ts());
    assert_eq!(text(t1.get(&second.rows, "k").unwrap()), some("1"));
    t1.put(&second.rows, "k", "1+1").unwrap();
    if environment.is_shared() {
        // On a shared engine read_ts equals start_ts, so no commit can be between them. Instead T1
        // meets the lock of T0, which waits at the gate. T0 then commits above T1's read_ts.
        assert_conflict(t1.commit());
        gate.open();
        assert!(t0.join() > read_ts);
    } else {
        let t1 = spawn(move || t1.commit());
        gate.open();
        let commit_ts = t0.join();
        assert!(read_ts < commit_ts && commit_ts < start_ts, "{read_ts} {commit_ts} {start_ts}");
        assert_conflict(t1.join());
    }
    assert_eq!(second.get("k"), some("2"));
}

fn a_snapshot_finds_the_version_that_is_being_replaced(environment: &Environment) {
    for deletes in [false, true] {
        let environment = environment.another();
        let store = environment.open();
        store.put("k", long("old"));
        let (gate, barrier) = Gate::closed();
        let watched = store.row("k");
        store.hooks.on_write(move |groups| {
            if commits(groups, &watched) {
                barrier.pass();
            }
            Act::Pass
        });
        let (inner, handle) = (store.store.clone(), store.rows.clone());
        let commit = spawn(move || {
            let mut txn = inner.begin().unwrap();
            if deletes { txn.delete(&handle, "k") } else { txn.put(&handle, "k", long("new")) }.unwrap();
            txn.commit().unwrap().commit_ts
        });
        gate.wait_for_arrival();
        let reader_client = environment.is_shared().then(|| environment.open());
        let reader = reader_client.as_ref().unwrap_or(&store);
        let (snapshot, txn) = (reader.snapshot().unwrap(), reader.begin().unwrap());
        if environment.is_shared() {
            // The writer has chosen its commit timestamp. The snapshot and the transaction push the
            // writer's lock, so the writer must commit above their read_ts.
            assert_eq!(text(snapshot.get(&reader.rows, "k").unwrap()), Some(long("old")));
            assert_eq!(text(txn.get(&reader.rows, "k").unwrap()), Some(long("old")));
        }
        gate.open();
        assert!(commit.join() > snapshot.read_ts());
        // A third version replaces the second one. The snapshot and the transaction still read the
        // first one.
        store.put("k", long("newer"));
        assert_eq!(text(snapshot.get(&reader.rows, "k").unwrap()), Some(long("old")));
        assert_eq!(text(txn.get(&reader.rows, "k").unwrap()), Some(long("old")));
        let scanned: Vec<_> = snapshot.range(&reader.rows, ..).map(|row| text(Some(row.unwrap().value()))).collect();
        assert_eq!(scanned, [Some(long("old"))]);
        assert_eq!(reader.get("k"), Some(long("newer")));
    }
}

fn a_dropped_primary_still_rolls_its_secondary_forward(environment: &Environment) {
    for sweep in [false, true] {
        let environment = environment.another();
        let (primary_space, other_space) = {
            let store = environment.open();
            let other = store.keyspace("other").unwrap();
            (store.rows.id(), other.id())
        };
        assert!(primary_space < other_space);
        environment.leave_behind(
            |store, txn| {
                let other = store.keyspace("other").unwrap();
                txn.put(&store.rows, "primary", "new").unwrap();
                txn.put(&other, "secondary", "new").unwrap();
            },
            |groups, rows| {
                let secondary = percolite::RowKey::new(percolite::KeyspaceId(rows.id().0 + 1), b"secondary");
                commits(groups, &secondary).then_some(Act::Refuse)
            },
        );
        let store = environment.open_with(environment.builder().background_resolve(sweep));
        store.drop_keyspace("rows").unwrap();
        let other = store.existing_keyspace("other").unwrap();
        let rows_left = || {
            let range = RowRange {
                start: std::ops::Bound::Included(percolite::RowKey::new(primary_space, b"").as_bytes().to_vec()),
                end: std::ops::Bound::Excluded(percolite::RowKey::new(other_space, b"").as_bytes().to_vec()),
            };
            store
                .engine
                .snapshot()
                .unwrap()
                .scan_writes(&PageRequest { range: &range, backwards: false, limit: 10, cursor: None })
                .unwrap()
                .len()
        };
        if sweep {
            eventually("the dropped rows are deleted", || rows_left() == 0);
        } else {
            // The secondary, which is in the other keyspace, is still locked. Until that lock is
            // resolved, the row of the primary must stay, because it has the transaction's status.
            std::thread::sleep(Duration::from_millis(700));
            assert_eq!((rows_left(), store.locks_left()), (1, 1));
        }
        let read = |key| text(store.begin().unwrap().get(&other, key).unwrap());
        assert_eq!((read("secondary"), store.locks_left()), (some("new"), 0));
        drop(store);
        let store = environment.open();
        let other = store.existing_keyspace("other").unwrap();
        assert_eq!(text(store.begin().unwrap().get(&other, "secondary").unwrap()), some("new"));
        assert_eq!(store.get("primary"), None);
    }
}

fn the_last_put_of_a_transaction_wins(environment: &Environment) {
    let driver = environment.driver();
    let nth = |sequence, mutation| Prewrite { write_seq: sequence, ..write(txn(10), "k", mutation) };
    let value = |text: &str| Mutation::Put(text.into());
    driver.prewrite(&nth(1, value("first"))).unwrap();
    driver.prewrite(&nth(3, value(&long("third")))).unwrap();
    assert_eq!(driver.prewrite(&nth(2, value("second"))), Err(StepError::StaleRequest));
    assert!(driver.0.data(&row("k"), ts(10)).is_some());
    driver.prewrite(&nth(4, value("fourth"))).unwrap();
    assert_eq!(driver.0.data(&row("k"), ts(10)), None, "the replaced long value is still stored");
    assert_eq!(driver.prewrite(&nth(3, value(&long("third")))), Err(StepError::StaleRequest));
    driver.commit(txn(10), "k", 20).unwrap();
    assert_eq!(driver.value("k"), some("fourth"));
    assert_eq!(driver.prewrite(&nth(5, value("late"))), Ok(PrewriteResult::Committed(ts(20))));
    assert_eq!(driver.value("k"), some("fourth"));
}

fn a_savepoint_restores_what_was_put_before_it(environment: &Environment) {
    let store = environment.open();
    store.put_all(&["there", "also there"], "old");
    let mut txn = store.begin().unwrap();
    let put = |txn: &mut percolite::Txn, key: &str, value: &str| txn.put(&store.rows, key, value).unwrap();
    put(&mut txn, "k", "1");
    put(&mut txn, "k", &long("2"));
    let outer = txn.savepoint();
    put(&mut txn, "k", "3");
    txn.delete(&store.rows, "there").unwrap();
    let inner = txn.savepoint();
    put(&mut txn, "k", "4");
    put(&mut txn, "there", "5");
    put(&mut txn, "new", "6");
    txn.get_for_update(&store.rows, "also there").unwrap();
    let seen =
        |txn: &percolite::Txn| ["k", "there", "new", "also there"].map(|key| text(txn.get(&store.rows, key).unwrap()));
    assert_eq!(seen(&txn), [some("4"), some("5"), some("6"), some("old")]);
    txn.rollback_to(inner).unwrap();
    assert_eq!(seen(&txn), [some("3"), None, None, some("old")]);
    put(&mut txn, "new", "7");
    txn.rollback_to(inner).unwrap();
    txn.rollback_to(outer).unwrap();
    assert!(txn.rollback_to(inner).is_err(), "the savepoint was rolled back");
    assert_eq!(seen(&txn), [Some(long("2")), some("old"), None, some("old")]);
    // Writes that were rolled back cause no conflict.
    store.put_all(&["there", "also there", "new"], "theirs");
    txn.commit().unwrap();
    assert_eq!(
        [store.get("k"), store.get("there"), store.get("new")],
        [Some(long("2")), some("theirs"), some("theirs")]
    );
}

fn a_reader_continues_when_the_last_lock_is_resolved(environment: &Environment) {
    let writer = environment.open();
    writer.put_all(&["a", "b", "c"], "old");
    let reader_client = environment.is_shared().then(|| environment.open());
    let reader = reader_client.as_ref().unwrap_or(&writer);
    let (gate, barrier) = Gate::closed();
    let rows = writer.rows.clone();
    writer.hooks.on_write(move |groups| {
        if commits(groups, &rows.row_key("b")) {
            barrier.pass();
        }
        Act::Pass
    });
    let (store, rows) = (writer.store.clone(), writer.rows.clone());
    let commit = spawn(move || {
        let mut txn = store.begin().unwrap();
        for key in ["a", "b", "c"] {
            txn.put(&rows, key, "new").unwrap();
        }
        txn.commit().unwrap();
    });
    gate.wait_for_arrival();
    // The writer is past its commit point, and its secondaries are locked.
    let txn = reader.begin().unwrap();
    assert_eq!(text(txn.get(&reader.rows, "a").unwrap()), some("new"));
    let scan = txn.range(&reader.rows, ..);
    gate.open();
    commit.join();
    assert_eq!(writer.locks_left(), 0);
    writer.put_all(&["a", "b", "c"], "newer");
    assert_eq!(["b", "c"].map(|key| text(txn.get(&reader.rows, key).unwrap())), [some("new"), some("new")]);
    let scanned: Vec<_> = scan.map(|row| row.unwrap().into_parts().1).collect();
    assert_eq!(scanned, [b"new", b"new", b"new"]);
}

fn an_old_read_view_shows_locks_resolved_since(environment: &Environment) {
    let keys = &["a", "b", "c"];
    // Rows overwritten before the reader continues: none, only secondaries, all.
    for overwritten in [&[][..], &["b", "c"], keys] {
        for committed in [false, true] {
            let environment = environment.another();
            leave_orphans(&environment, keys, committed);
            let store = environment.open_unswept();
            let (snapshot, txn) = (store.snapshot().unwrap(), store.begin().unwrap());
            // Other transactions resolve every lock, the records are deleted, and the rows are
            // written again.
            for key in keys {
                store.get(key);
            }
            store.resolve_orphan_locks().unwrap();
            for key in overwritten {
                store.put(key, "newer");
            }
            assert_eq!(store.locks_left(), 0);
            let then = if committed { some("new") } else { some("old") };
            for key in ["b", "c", "a"] {
                assert_eq!(text(snapshot.get(&store.rows, key).unwrap()), then, "{key}, overwritten: {overwritten:?}");
                assert_eq!(text(txn.get(&store.rows, key).unwrap()), then, "{key}, overwritten: {overwritten:?}");
            }
            let scanned: Vec<_> = snapshot.range(&store.rows, ..).map(|row| text(Some(row.unwrap().value()))).collect();
            assert_eq!(scanned, [then.clone(), then.clone(), then.clone()]);
            let now = keys.map(|key| if overwritten.contains(&key) { some("newer") } else { then.clone() });
            assert_eq!(keys.map(|key| store.get(key)), now);
            // The old reader's status checks must not record a second status that contradicts the
            // first.
            let records = store.engine.txn_records(Timestamp::MAX, None, usize::MAX).unwrap().records;
            let of_rolled_back = |(row, start_ts): &(percolite::RowKey, Timestamp)| {
                store.engine.read_row(row, *start_ts).unwrap().txn_record == Some(percolite::row::TxnRecord::RolledBack)
            };
            assert!(
                !committed || !records.iter().any(of_rolled_back),
                "committed, and recorded as rolled back: {records:?}"
            );
        }
    }
}

/// Leaves the locks of a transaction that was cut off just before or just after its commit point.
/// The primary is the first row.
fn leave_orphans(environment: &Environment, keys: &'static [&str; 3], committed: bool) {
    let store = environment.open();
    store.put_all(keys, "old");
    drop(store);
    environment.leave_behind(
        |store, txn| keys.iter().for_each(|key| txn.put(&store.rows, key, "new").unwrap()),
        move |groups, rows| commits(groups, &rows.row_key(keys[usize::from(committed)])).then_some(Act::Refuse),
    );
}

fn an_idle_transaction_still_conflicts(environment: &Environment) {
    let store = environment.open_with(
        environment
            .builder()
            .conflict_set_rows(64)
            .durability(Durability::Buffered)
            .max_snapshot_age(Duration::from_secs(3 * 3600)),
    );
    store.put("k", "old");
    let mut idle = store.begin().unwrap();
    assert_eq!(text(idle.get(&store.rows, "k").unwrap()), some("old"));
    store.put("k", "new");
    for step in 0..4 {
        for number in 0..500 {
            store.put(&format!("load {step} {number}"), "x");
        }
        environment.clock.step(HOUR_MS / 4);
    }
    idle.put(&store.rows, "k", "late").unwrap();
    assert_conflict(idle.commit());
    assert_eq!(store.get("k"), some("new"));
}

fn an_idle_transaction_has_no_spurious_conflict(environment: &Environment) {
    let store = environment.open_with(environment.builder().conflict_set_rows(16).durability(Durability::Buffered));
    store.put("k", "old");
    let mut idle = store.begin().unwrap();
    for number in 0..500 {
        store.put(&format!("load {number}"), "x");
    }
    idle.put(&store.rows, "k", "late").unwrap();
    idle.put(&store.rows, "new", "late").unwrap();
    idle.commit().unwrap();
    assert_eq!([store.get("k"), store.get("new")], [some("late"), some("late")]);
}
