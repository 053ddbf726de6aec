//! A review put mistakes into the code on purpose, to see which tests find them. Each test here
//! finds one that no layer of the crash harness had found.

use std::sync::Arc;
use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::{
    Builder, CommitProtocol, Durability, Keyspace, OnExisting, RowLock, Store, Txn, TxnOptions, TxnStatus,
};

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn an_early_row_of_a_large_transaction_stays_locked() {
    let memory = SimStorage::new();
    let store = Store::builder().large_transaction_bytes(10_000).open_in_memory(&memory).unwrap();
    let rows = store.keyspace("rows").unwrap();
    let mut large = store.begin().unwrap();
    for number in 0..12_000 {
        large.put(&rows, format!("{number:05}"), "large").unwrap();
    }
    let mut small = store.begin().unwrap();
    small.put(&rows, "00007", "small").unwrap();
    small.commit().unwrap_err();
    large.commit().unwrap();
}

#[test]
fn the_history_of_a_dropped_keyspace_survives_a_restart() {
    let memory = SimStorage::new();
    let open = || Store::builder().history_retention(HOUR).open_in_memory(&memory).unwrap();
    let store = open();
    let rows = store.keyspace("rows").unwrap();
    let mut txn = store.begin().unwrap();
    txn.put(&rows, "key", "1").unwrap();
    let first = txn.commit().unwrap().commit_ts;
    store.drop_keyspace("rows").unwrap();
    store.close().unwrap();
    let store = open();
    // Long enough for the background to delete the rows by mistake.
    std::thread::sleep(Duration::from_millis(1500));
    let past = store.snapshot_at(first).unwrap();
    let rows = past.keyspaces().unwrap().into_iter().find(|keyspace| keyspace.name() == "rows").unwrap();
    assert_eq!(past.get(&rows, "key").unwrap(), Some("1".into()));
}

#[test]
fn a_restore_into_a_buffered_store_survives_a_power_cut() {
    let other = Store::in_memory().unwrap();
    let rows = other.keyspace("restored").unwrap();
    other.transact(|txn| txn.put(&rows, "key", "1")).unwrap();
    let mut dump = Vec::new();
    other.snapshot().unwrap().dump(&mut dump, |_| ()).unwrap();
    for choice in 0..8 {
        let memory = SimStorage::new();
        let store = Store::builder().durability(Durability::Buffered).open_in_memory(&memory).unwrap();
        store.restore(dump.as_slice(), OnExisting::Replace, |_| ()).unwrap();
        memory.crash(choice);
        let store = Store::builder().open_in_memory(&memory).unwrap();
        assert_eq!(store.keyspace_names().unwrap(), ["restored"], "{choice}");
        let rows = store.existing_keyspace("restored").unwrap();
        assert_eq!(store.snapshot().unwrap().get(&rows, "key").unwrap(), Some("1".into()), "{choice}");
    }
}

#[test]
fn an_expired_view_cannot_commit_over_a_removed_delete() {
    let memory = SimStorage::new();
    let store = Store::builder()
        .conflict_set_rows(1)
        .max_snapshot_age(Duration::from_millis(300))
        .open_in_memory(&memory)
        .unwrap();
    let rows = store.keyspace("rows").unwrap();
    store.transact(|txn| txn.put(&rows, "key", "old")).unwrap();
    let mut idle = store.begin().unwrap();
    assert!(idle.get(&rows, "key").unwrap().is_some());
    idle.put(&rows, "key", "over a delete that it never saw").unwrap();
    store.transact(|txn| txn.delete(&rows, "key")).unwrap();
    for number in 0..20 {
        store.transact(|txn| txn.put(&rows, format!("x{number}"), "x")).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    idle.commit().unwrap_err();
    assert_eq!(store.snapshot().unwrap().get(&rows, "key").unwrap(), None);
}

#[test]
fn a_version_whose_row_is_still_locked_is_listed() {
    let memory = SimStorage::new();
    let store =
        Store::builder().large_transaction_bytes(10_000).history_retention(HOUR).open_in_memory(&memory).unwrap();
    let rows = store.keyspace("rows").unwrap();
    let mut large = store.begin().unwrap();
    for number in 0..20_000 {
        large.put(&rows, format!("{number:05}"), "large").unwrap();
    }
    let ts = large.commit().unwrap().commit_ts;
    let txn = store.begin().unwrap();
    let newest = txn.versions(&rows, "19999").unwrap().next().unwrap().unwrap();
    assert_eq!((newest.commit_ts, newest.value), (ts, Some("large".into())));
}

#[test]
fn a_conflict_among_many_rows_leaves_no_locks() {
    let memory = SimStorage::new();
    let store = Store::builder().commit_protocol(CommitProtocol::TwoPhase).open_in_memory(&memory).unwrap();
    let rows = store.keyspace("rows").unwrap();
    let put = |number: usize| store.transact(|txn| txn.put(&rows, format!("{number:05}"), "x"));
    let mut many = store.begin().unwrap();
    for number in 0..1500 {
        many.put(&rows, format!("{number:05}"), "many").unwrap();
    }
    put(1400).unwrap();
    many.commit().unwrap_err();
    assert_eq!(store.row_locks().unwrap().count(), 0);
}

#[test]
fn a_large_transaction_fails_on_a_truncated_keyspace() {
    let memory = SimStorage::new();
    let store = Store::builder().large_transaction_bytes(1).open_in_memory(&memory).unwrap();
    let (rows, other) = (store.keyspace("rows").unwrap(), store.keyspace("other").unwrap());
    let mut txn = store.begin().unwrap();
    txn.put(&other, "first", "1").unwrap();
    txn.put(&rows, "key", "1").unwrap();
    store.truncate_keyspace("rows").unwrap();
    txn.commit().unwrap_err();
    assert_eq!(store.snapshot().unwrap().get(&other, "first").unwrap(), None);
}

/// If recovery exceeded the engine's limit of rows in a batch, no incarnation of the store could
/// finish it.
#[test]
fn recovery_respects_the_batch_limit_of_the_engine() {
    const ROWS: usize = 8;
    let (mut forward, mut back) = (0, 0);
    // The write of "new" has eight batches. The crash keeps the first `kept % 9` of them. Each
    // number is tried several times, because a sync by the background may keep more.
    for kept in 0..40 {
        let memory = SimStorage::new();
        let open = |builder| open_limited(builder, &memory);
        let write = |store: &Store, rows: &Keyspace, value| {
            let buffered = TxnOptions::default().durability(Durability::Buffered);
            let mut put_all = |txn: &mut Txn| (0..ROWS).try_for_each(|row| txn.put(rows, format!("{row}"), value));
            store.transact_with(buffered, &mut put_all).unwrap();
        };
        let (store, rows) = open(Store::builder());
        write(&store, &rows, "old");
        store.sync().unwrap();
        write(&store, &rows, "new");
        memory.crash(kept);
        drop((store, rows));

        let (store, rows) = open(Store::builder().background_resolve(false));
        forward += store.row_locks().unwrap().filter(|lock| is_committed(lock.as_ref().unwrap())).count();
        back += store.row_locks().unwrap().filter(|lock| !is_committed(lock.as_ref().unwrap())).count();
        store.resolve_orphan_locks().unwrap();
        assert_eq!(store.row_locks().unwrap().count(), 0);
        let found: Vec<_> = store.snapshot().unwrap().range(&rows, ..).map(|row| row.unwrap().into_parts().1).collect();
        assert!([b"old", b"new"].iter().any(|whole| found == vec![whole.to_vec(); ROWS]), "{found:?}");
        store.close().unwrap();
    }
    assert!(forward > ROWS && back > ROWS, "{forward} locks to roll forward, {back} to roll back");
}

/// Each rolled-back transaction leaves a transaction record until all orphan locks are resolved.
#[test]
fn transaction_records_are_deleted_within_the_batch_limit() {
    let memory = SimStorage::new();
    let (store, rows) = open_limited(Store::builder().large_transaction_bytes(1), &memory);
    let begin = |number: usize| {
        let mut txn = store.begin().unwrap();
        ["first", "second"].iter().try_for_each(|row| txn.put(&rows, format!("{number} {row}"), "x")).unwrap();
        txn
    };
    let orphans: Vec<Txn> = (0..8).map(begin).collect();
    memory.crash(memory.unsynced());
    drop((orphans, store, rows));

    let (store, rows) = open_limited(Store::builder().background_resolve(false), &memory);
    assert!(store.row_locks().unwrap().count() >= 8);
    store.resolve_orphan_locks().unwrap();
    assert_eq!((store.row_locks().unwrap().count(), store.snapshot().unwrap().range(&rows, ..).count()), (0, 0));
    store.close().unwrap();
}

/// Opens the store on an engine with at most three rows in a batch.
fn open_limited(builder: Builder, memory: &SimStorage) -> (Store, Keyspace) {
    let store = builder.open_engine(Arc::new(memory.exclusive_engine().with_batch_rows_max(3))).unwrap();
    let rows = store.keyspace("rows").unwrap();
    (store, rows)
}

fn is_committed(lock: &RowLock) -> bool {
    matches!(lock.txn_status, TxnStatus::Committed(_))
}

/// A batch with the versions that it replaces can be far larger than what the transaction writes.
/// Written at once, it would not fit into a frame of the log, and the store would fail.
#[test]
fn a_commit_that_replaces_too_much_is_not_one_batch() {
    const LIMIT: usize = 32 << 10;
    let memory = SimStorage::new();
    let engine = memory.exclusive_engine().with_batch_bytes_max(LIMIT);
    let builder = Store::builder().history_retention(Duration::from_secs(3600));
    let store = builder.open_engine(Arc::new(engine)).unwrap();
    let rows = store.keyspace("rows").unwrap();
    for row in 0..100_u8 {
        store.transact(|txn| txn.put(&rows, [row], [row; 1000])).unwrap();
    }
    let before = store.snapshot().unwrap().read_ts();
    let two_phases = TxnOptions::default().commit_protocol(CommitProtocol::TwoPhase);
    for (options, rows_deleted) in [(two_phases, ..=[49]), (TxnOptions::default(), ..=[99])] {
        assert_eq!(store.transact_with(options, |txn| txn.delete_range(&rows, rows_deleted)).unwrap(), 50);
    }
    assert_eq!(store.range(&rows, ..).unwrap().count(), 0);
    assert_eq!((store.stats().commits_two_phase, store.stats().commits_large), (1, 1));
    store.resolve_orphan_locks().unwrap();
    assert_eq!(store.row_locks().unwrap().count(), 0);
    let past = store.snapshot_at(before).unwrap();
    assert!((0..100_u8).all(|row| past.get(&rows, [row]).unwrap().is_some_and(|value| value == [row; 1000])));
    assert!(store.verify(|_| ()).unwrap().is_ok());
    store.close().unwrap();
}
