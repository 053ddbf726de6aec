//! Reads: what a reader sees during a commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use percolite::engine::RowBatch;
use percolite::internal::protocol::{OwnerLiveness, Prewrite};
use percolite::row::{Mutation, StoredValue, TxnRecord};
use percolite::{Commit, Keyspace, Result, Snapshot, TxnStatus};

use crate::driver::{put, row, ts, txn, write};
use crate::environment::{Environment, Opened, Thread, assert_conflict, long, some, spawn, text};
use crate::hooked_engine::{Act, Gate, commits, locks};
use crate::races;
use crate::report::{Case, EMBEDDED, EMBEDDED_TWO, NO_LOCKS, ONE, SHARED, STEPS, STORES, TWO, WHOLE_STORE};
use crate::scans;

pub fn cases() -> Vec<Case> {
    vec![
        Case::new("a locked secondary committed before the reader reads new")
            .row_by_row()
            .on(TWO, a_locked_secondary_committed_before_the_reader_is_new)
            .on(TWO, an_orphan_secondary_committed_before_the_reader_is_new)
            .not_on(STEPS, WHOLE_STORE)
            .not_on(ONE, NO_LOCKS),
        Case::new("a locked secondary committed after the reader reads old")
            .row_by_row()
            .on(TWO, a_locked_secondary_committed_after_the_reader_is_old)
            .not_on(STEPS, WHOLE_STORE)
            .not_on(ONE, NO_LOCKS),
        Case::new("a lock's status is not reused for another snapshot")
            .row_by_row()
            .on(TWO, a_status_read_for_one_snapshot_is_not_reused)
            .not_on(STEPS, WHOLE_STORE)
            .not_on(ONE, NO_LOCKS),
        Case::new("no reader begins between a commit's timestamp and its lock")
            .on(STORES, a_reader_before_the_first_lock_is_below_the_commit)
            .on(SHARED, a_commit_after_the_engine_snapshot_is_above_it)
            .not_on(STEPS, WHOLE_STORE),
        Case::new("reads are repeatable while a chosen commit_ts is not applied")
            .on(STORES, a_read_repeats_over_a_commit_that_is_not_applied)
            .not_on(STEPS, WHOLE_STORE),
        Case::new("a commit of many rows is visible as a whole or not at all")
            .on(STORES, races::a_spinning_reader_sees_all_or_nothing)
            .not_on(STEPS, WHOLE_STORE),
        Case::new("lock and write columns are read from one state")
            .on(STORES, a_commit_between_column_reads_is_not_half_seen)
            .on(STORES, races::an_acknowledged_commit_is_always_visible)
            .not_on(STEPS, WHOLE_STORE),
        Case::new("lock-only and rollback records do not hide or redate a put")
            .on(STEPS | TWO, lock_only_and_rollback_leave_the_version)
            .on(STORES, a_lock_only_row_reads_unchanged),
        Case::new("a scan over locks misses no row and repeats none")
            .row_by_row()
            .on(TWO, scans::locks_at_page_borders_hide_nothing)
            .on(TWO, scans::no_part_of_a_column_is_read_twice)
            .not_on(STEPS, WHOLE_STORE)
            .not_on(ONE, NO_LOCKS),
        Case::new("a transaction reads its own writes, in scans too")
            .on(STORES, scans::own_writes_are_read_everywhere)
            .not_on(STEPS, WHOLE_STORE),
        Case::new("keys are read without their values")
            .on(STORES, scans::keys_are_read_without_long_values)
            .not_on(STEPS, WHOLE_STORE),
        Case::new("keys are read from locks without their values")
            .row_by_row()
            .on(TWO, scans::keys_are_read_from_locks_without_long_values)
            .not_on(STEPS, WHOLE_STORE)
            .not_on(ONE, NO_LOCKS),
        Case::new("keys that are prefixes of each other never mix")
            .on(STORES, scans::prefixes_of_each_other_never_mix)
            .not_on(STEPS, WHOLE_STORE),
        Case::new("two transactions with one read_ts stay separate")
            .on(STEPS | TWO, one_read_ts_is_not_one_transaction)
            .on(EMBEDDED, transactions_with_one_read_ts_stay_separate)
            .on(EMBEDDED_TWO, orphans_with_one_read_ts_are_resolved_separately),
    ]
}

/// Starts a commit of the rows `a`, the primary, and `b`. The commit is blocked at the write that
/// `stop` selects.
fn stopped_commit(
    writer: &Opened,
    stop: impl Fn(&[RowBatch], &Keyspace) -> bool + Send + Sync + 'static,
) -> (Gate, Thread<Result<Commit>>) {
    let (gate, barrier) = Gate::closed();
    let watched = writer.rows.clone();
    writer.hooks.on_write(move |groups| {
        if stop(groups, &watched) {
            barrier.pass();
        }
        Act::Pass
    });
    let (store, rows) = (writer.store.clone(), writer.rows.clone());
    let commit = spawn(move || {
        let mut txn = store.begin().unwrap();
        txn.put(&rows, "a", "new")?;
        txn.put(&rows, "b", long("new"))?;
        txn.commit()
    });
    gate.wait_for_arrival();
    (gate, commit)
}

fn at_secondary(groups: &[RowBatch], rows: &Keyspace) -> bool {
    commits(groups, &rows.row_key("b")) && !commits(groups, &rows.row_key("a"))
}

fn at_commit_point(groups: &[RowBatch], rows: &Keyspace) -> bool {
    commits(groups, &rows.row_key("a"))
}

pub fn prepared(environment: &Environment) -> (Opened, Opened) {
    let writer = environment.open();
    writer.put_all(&["a", "b"], "old");
    let reader = if environment.is_shared() {
        environment.open()
    } else {
        let (store, rows) = (writer.store.clone(), writer.rows.clone());
        Opened { store, rows, hooks: Arc::clone(&writer.hooks), engine: Arc::clone(&writer.engine) }
    };
    (writer, reader)
}

fn read(snapshot: &Snapshot, rows: &Keyspace) -> [Option<String>; 2] {
    ["b", "a"].map(|key| text(snapshot.get(rows, key).unwrap()))
}

fn old() -> [Option<String>; 2] {
    [some("old"), some("old")]
}

fn new() -> [Option<String>; 2] {
    [Some(long("new")), some("new")]
}

/// Reads in a transaction, because a snapshot of an exclusive engine would wait until its reads are
/// durable.
fn read_now(reader: &Opened) -> [Option<String>; 2] {
    let txn = reader.begin().unwrap();
    ["b", "a"].map(|key| text(txn.get(&reader.rows, key).unwrap()))
}

fn a_locked_secondary_committed_before_the_reader_is_new(environment: &Environment) {
    let (writer, reader) = prepared(environment);
    let (gate, commit) = stopped_commit(&writer, at_secondary);
    assert!(writer.engine.snapshot().unwrap().lock(&writer.row("b")).unwrap().is_some());
    assert_eq!(read_now(&reader), new());
    let scanned: Vec<_> =
        reader.begin().unwrap().range(&reader.rows, ..).map(|row| row.unwrap().into_parts().1).collect();
    assert_eq!(scanned, [b"new".to_vec(), long("new").into_bytes()]);
    gate.open();
    commit.join().unwrap();
    assert_eq!(read_now(&reader), new());
    assert_eq!(reader.locks_left(), 0);
}

fn an_orphan_secondary_committed_before_the_reader_is_new(environment: &Environment) {
    let before = environment.open();
    before.put_all(&["a", "b"], "old");
    drop(before);
    environment.leave_behind(
        |store, txn| {
            txn.put(&store.rows, "a", "new").unwrap();
            txn.put(&store.rows, "b", long("new")).unwrap();
        },
        |groups, rows| at_secondary(groups, rows).then_some(Act::Refuse),
    );
    let store = environment.open_unswept();
    assert_eq!(store.locks_left(), 1);
    assert_eq!(text(store.begin().unwrap().get(&store.rows, "b").unwrap()), Some(long("new")));
    assert_eq!((store.locks_left(), store.stats().locks_rolled_forward), (0, 1));
    assert_eq!(read_now(&store), new());
}

fn a_locked_secondary_committed_after_the_reader_is_old(environment: &Environment) {
    let (writer, reader) = prepared(environment);
    let early = reader.snapshot().unwrap();
    let (first, commit) = stopped_commit(&writer, at_commit_point);
    // The engine snapshot of this reader contains the locks.
    let late = reader.snapshot().unwrap();
    let late_txn = reader.begin().unwrap();
    if environment.is_shared() {
        // The writer has chosen its commit timestamp. `late` and `late_txn` push the writer's lock,
        // so the writer must commit above their read_ts.
        assert_eq!(read(&late, &reader.rows), old());
        assert_eq!(text(late_txn.get(&reader.rows, "b").unwrap()), some("old"));
    }
    let (second, barrier) = Gate::closed();
    let watched = writer.rows.clone();
    writer.hooks.on_write(move |groups| {
        if at_secondary(groups, &watched) {
            barrier.pass();
        }
        Act::Pass
    });
    first.open();
    second.wait_for_arrival();
    assert_eq!([read(&early, &reader.rows), read(&late, &reader.rows)], [old(), old()]);
    assert_eq!(text(late_txn.get(&reader.rows, "b").unwrap()), some("old"));
    second.open();
    let commit = commit.join().unwrap();
    assert!(commit.commit_ts > late.read_ts() && commit.commit_ts > late_txn.read_ts());
    assert_eq!([read(&early, &reader.rows), read(&late, &reader.rows)], [old(), old()]);
    assert_eq!(read_now(&reader), new());
}

/// Public issue: tikv #10570.
fn a_status_read_for_one_snapshot_is_not_reused(environment: &Environment) {
    let (writer, reader) = prepared(environment);
    let (first, commit) = stopped_commit(&writer, at_commit_point);
    let before = reader.snapshot().unwrap();
    assert_eq!(read(&before, &reader.rows), old());
    let (second, barrier) = Gate::closed();
    let watched = writer.rows.clone();
    writer.hooks.on_write(move |groups| {
        if at_secondary(groups, &watched) {
            barrier.pass();
        }
        Act::Pass
    });
    first.open();
    second.wait_for_arrival();
    for _ in 0..3 {
        assert_eq!(read(&before, &reader.rows), old());
        assert_eq!(read_now(&reader), new());
    }
    second.open();
    commit.join().unwrap();
    assert_eq!((read(&before, &reader.rows), read_now(&reader)), (old(), new()));
}

/// After TiKV's test `test_atomic_getting_max_ts_and_storing_memory_lock`.
fn a_reader_before_the_first_lock_is_below_the_commit(environment: &Environment) {
    let (writer, reader) = prepared(environment);
    let first_write = |groups: &[RowBatch], rows: &Keyspace| {
        let row = rows.row_key("a");
        locks(groups, &row) || commits(groups, &row)
    };
    let stopped = stopped_commit(&writer, first_write);
    let (snapshot, txn) = (reader.snapshot().unwrap(), reader.begin().unwrap());
    assert_eq!(read(&snapshot, &reader.rows), old());
    let (gate, commit) = stopped;
    gate.open();
    let commit = commit.join().unwrap();
    assert!(commit.commit_ts > snapshot.read_ts() && commit.commit_ts > txn.read_ts());
    assert_eq!(read(&snapshot, &reader.rows), old());
    assert_eq!(text(txn.get(&reader.rows, "b").unwrap()), some("old"));
    assert_eq!(read_now(&reader), new());
}

/// If a transaction took its engine snapshot before its read timestamp, it would miss a commit
/// below that timestamp, and its own write would overwrite the commit.
fn a_commit_after_the_engine_snapshot_is_above_it(environment: &Environment) {
    let (writer, reader) = prepared(environment);
    let (store, rows) = (writer.store.clone(), writer.rows.clone());
    reader.hooks.after_next_view(move || {
        let mut txn = store.begin().unwrap();
        txn.put(&rows, "a", "theirs").unwrap();
        txn.commit().unwrap();
    });
    let mut txn = reader.begin().unwrap();
    assert_eq!(writer.get("a"), some("theirs"));
    assert_eq!(text(txn.get(&reader.rows, "a").unwrap()), some("old"));
    txn.put(&reader.rows, "a", "old+1").unwrap();
    assert_conflict(txn.commit());
    assert_eq!(reader.get("a"), some("theirs"));
}

/// Badger makes such a read repeatable by a wait, until all commits up to the read's timestamp are
/// applied. Public issue: matrixone #3990.
fn a_read_repeats_over_a_commit_that_is_not_applied(environment: &Environment) {
    let (writer, reader) = prepared(environment);
    let (gate, commit) = stopped_commit(&writer, at_commit_point);
    let readers: Vec<_> = (0..3).map(|_| reader.begin().unwrap()).collect();
    let look = || readers.iter().map(|txn| text(txn.get(&reader.rows, "b").unwrap())).collect::<Vec<_>>();
    let first = look();
    assert_eq!(first, [some("old"), some("old"), some("old")]);
    gate.open();
    let commit = commit.join().unwrap();
    assert_eq!(look(), first);
    assert!(readers.iter().all(|txn| txn.read_ts() < commit.commit_ts));
    assert_eq!(read_now(&reader), new());
}

fn a_commit_between_column_reads_is_not_half_seen(environment: &Environment) {
    for scan in [false, true] {
        let environment = environment.another();
        let (writer, reader) = prepared(&environment);
        writer.put("k", "old");
        let txn = reader.begin().unwrap();
        // The commit takes place between the read of the lock column and the read of the write
        // column.
        let (store, rows) = (writer.store.clone(), writer.rows.clone());
        let committed = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&committed);
        reader.hooks.on_next_read(move || {
            let mut txn = store.begin().unwrap();
            txn.put(&rows, "k", "new").unwrap();
            txn.put(&rows, "k2", "new").unwrap();
            txn.commit().unwrap();
            done.store(true, Ordering::SeqCst);
        });
        let look = || match scan {
            true => txn.prefix(&reader.rows, "k").map(|row| text(Some(row.unwrap().value()))).collect::<Vec<_>>(),
            false => ["k", "k2"].into_iter().map(|key| text(txn.get(&reader.rows, key).unwrap())).collect(),
        };
        let expected = if scan { vec![some("old")] } else { vec![some("old"), None] };
        assert_eq!(look(), expected);
        assert!(committed.load(Ordering::SeqCst), "there was no commit between the reads");
        assert_eq!(look(), expected);
        assert_eq!([reader.get("k"), reader.get("k2")], [some("new"), some("new")]);
    }
}

fn lock_only_and_rollback_leave_the_version(environment: &Environment) {
    let driver = environment.driver();
    driver.write(txn(10), "k", "v", 11);
    let version = driver.record("k");
    driver.prewrite(&write(txn(20), "k", Mutation::LockOnly)).unwrap();
    assert_eq!(driver.value("k"), some("v"));
    driver.commit(txn(20), "k", 21).unwrap();
    driver.roll_back(txn(30), "k").unwrap();
    assert_eq!(driver.check(txn(40), "k", OwnerLiveness::Ended), Ok(TxnStatus::RolledBack));
    assert_eq!((driver.record("k"), driver.lock("k")), (version, None));
    assert_eq!(driver.status("k", txn(20)), Some(TxnRecord::Committed(ts(21))));
    assert_eq!(driver.value("k"), some("v"));
}

fn a_lock_only_row_reads_unchanged(environment: &Environment) {
    let store = environment.open();
    let put_at = store.put("k", "v").commit_ts;
    let before = store.snapshot().unwrap();
    for _ in 0..3 {
        let mut holder = store.begin().unwrap();
        assert_eq!(text(holder.get_for_update(&store.rows, "k").unwrap()), some("v"));
        assert_eq!(holder.get_for_update(&store.rows, "absent").unwrap(), None);
        holder.put(&store.rows, "other", "w").unwrap();
        holder.commit().unwrap();
    }
    let found = store.engine.snapshot().unwrap().write(&store.row("k")).unwrap().unwrap();
    assert_eq!((found.commit_ts, &found.value), (put_at, &Some(StoredValue::Inline(b"v".into()))));
    for snapshot in [before, store.snapshot().unwrap()] {
        assert_eq!(text(snapshot.get(&store.rows, "k").unwrap()), some("v"));
        assert_eq!(snapshot.get(&store.rows, "absent").unwrap(), None);
        let keys: Vec<_> = snapshot.range(&store.rows, .."l").map(|row| row.unwrap().key().to_vec()).collect();
        assert_eq!(keys, [b"k"]);
    }
}

fn one_read_ts_is_not_one_transaction(environment: &Environment) {
    let driver = environment.driver();
    let (one, two) = (txn(10), txn(11));
    let both_read_at = |request: Prewrite| Prewrite { read_ts: ts(9), ..request };
    driver.prewrite(&both_read_at(put(one, "a", "one"))).unwrap();
    driver.prewrite(&both_read_at(put(two, "b", "two"))).unwrap();
    driver.commit(one, "a", 20).unwrap();
    assert_eq!(driver.check(two, "b", OwnerLiveness::Ended), Ok(TxnStatus::RolledBack));
    assert_eq!(driver.check(one, "a", OwnerLiveness::Ended), Ok(TxnStatus::Committed(ts(20))));
    assert_eq!(driver.check(two, "a", OwnerLiveness::Ended), Ok(TxnStatus::RolledBack));
    assert!(driver.prewrite(&both_read_at(put(txn(12), "a", "three"))).is_err());
    assert_eq!((driver.value("a"), driver.value("b")), (some("one"), None));
}

fn transactions_with_one_read_ts_stay_separate(environment: &Environment) {
    let store = environment.open();
    store.put("k", "old");
    let (mut one, mut two, three) = (store.begin().unwrap(), store.begin().unwrap(), store.begin().unwrap());
    assert_eq!([one.read_ts(), two.read_ts()], [three.read_ts(); 2]);
    assert!(one.start_ts() < two.start_ts() && two.start_ts() < three.start_ts());
    let names = [(one.start_ts(), one.owner_id()), (two.start_ts(), two.owner_id())];
    one.put(&store.rows, "k", "one").unwrap();
    two.put(&store.rows, "k", "two").unwrap();
    let commit = one.commit().unwrap();
    assert_conflict(two.commit());
    assert_eq!(text(three.get(&store.rows, "k").unwrap()), some("old"));
    let status = |(start_ts, owner)| store.txn_status(&store.row("k"), start_ts, owner).unwrap();
    let [winner, loser] = names.map(status);
    assert_eq!(winner, Some(TxnStatus::Committed(commit.commit_ts)));
    assert!(matches!(loser, Some(TxnStatus::RolledBack) | None), "{loser:?}");
}

fn orphans_with_one_read_ts_are_resolved_separately(environment: &Environment) {
    let driver = environment.driver();
    for (t, [primary, secondary]) in [(txn(10), ["a", "b"]), (txn(11), ["c", "d"])] {
        for key in [primary, secondary] {
            driver.prewrite(&Prewrite { read_ts: ts(9), primary: row(primary), ..put(t, key, "new") }).unwrap();
        }
    }
    driver.commit(txn(10), "a", 12).unwrap();
    drop(driver);
    let store = environment.open_unswept();
    assert_eq!(store.locks_left(), 3);
    assert_eq!([store.get("d"), store.get("b")], [None, some("new")]);
    assert_eq!([store.get("c"), store.get("a")], [None, some("new")]);
    assert_eq!(store.locks_left(), 0);
}
