//! One damaged record, in each column of a store with rows and history.

use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::engine::storage::{Batch, Column, Storage};
use percolite::internal::codec::{HistoryEntry, Record};
use percolite::internal::keys::{data_key, history_key};
use percolite::row::{Lock, LockType, TxnId, TxnRecord};
use percolite::{CommitProtocol, Error, ErrorKind, OwnerId, RowKey, Store, Timestamp};

const NONSENSE: &[u8] = b"\x01nonsense";

struct Damaged {
    store: Store,
    memory: SimStorage,
    row: RowKey,
    /// A timestamp before the row was overwritten.
    before: Timestamp,
}

/// Closes a store with history, calls `change` to write or delete cells, and opens the store again.
/// The arguments of `change` are a function that writes or deletes one cell, the key of the row
/// `bad`, and four timestamps: the start timestamp of the row's version, the commit timestamp of
/// the version that it replaced, and the start timestamps of two transactions that wrote nothing.
fn damaged(
    change: impl FnOnce(&mut dyn FnMut(Column, &[u8], Option<&[u8]>), &RowKey, [Timestamp; 4]),
) -> Result<Damaged, Error> {
    let memory = SimStorage::new();
    let builder =
        || Store::builder().history_retention(Duration::from_secs(3600)).commit_protocol(CommitProtocol::TwoPhase);
    let store = builder().open_in_memory(&memory).unwrap();
    let rows = store.keyspace("rows").unwrap();
    let mut written = Vec::new();
    for value in [1, 2] {
        let mut txn = store.begin().unwrap();
        for key in ["after", "bad", "good"] {
            txn.put(&rows, key, vec![value; 1000]).unwrap();
        }
        written.push((txn.start_ts(), txn.commit().unwrap().commit_ts));
    }
    let row = rows.row_key("bad");
    let unused = [(); 2].map(|()| store.begin().unwrap().start_ts());
    store.close().unwrap();
    let mut batch = memory.new_batch(0);
    change(
        &mut |column, key, value| match value {
            Some(value) => batch.put(column, key, value),
            None => batch.delete(column, key),
        },
        &row,
        [written[1].0, written[0].1, unused[0], unused[1]],
    );
    memory.write(batch).unwrap();
    let store = builder().open_in_memory(&memory)?;
    Ok(Damaged { store, memory, row, before: written[0].1 })
}

fn encoded(record: &impl Record) -> Vec<u8> {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    bytes
}

#[track_caller]
fn assert_corruption(error: &Error, names: &str) {
    assert!(matches!(error.kind(), ErrorKind::Corruption(_)), "{error}");
    assert!(error.to_string().contains(names), "{names:?} is missing: {error}");
}

#[test]
fn a_corrupt_record_is_named_and_affects_no_other() {
    let stray = |row: &RowKey| {
        let txn = TxnId { start_ts: Timestamp::from_millis(1_700_000_000_000), owner: OwnerId::new(5, 5) };
        let lock = Lock {
            txn,
            primary: row.clone(),
            lock_type: LockType::Delete,
            write_seq: 1,
            ttl_ms: 0,
            min_commit_ts: txn.start_ts,
        };
        let mut bytes = encoded(&lock);
        bytes.truncate(bytes.len() - 1);
        bytes
    };
    for column in [Column::Write, Column::Lock, Column::Data, Column::History] {
        let Damaged { store, memory, row, before } = damaged(|put, row, [start_ts, replaced, ..]| match column {
            Column::Write => put(column, row.as_bytes(), Some(NONSENSE)),
            Column::Lock => put(column, row.as_bytes(), Some(&stray(row))),
            Column::Data => put(column, &data_key(row, start_ts), None),
            Column::History => put(column, &history_key(row, replaced), Some(NONSENSE)),
            Column::Meta => unreachable!(),
        })
        .unwrap();
        let rows = store.existing_keyspace("rows").unwrap();
        let (newest, past) = (store.snapshot().unwrap(), store.snapshot_at(before).unwrap());
        // A read of the damaged record returns an error that names its row.
        let (needs, other) = if column == Column::History { (&past, &newest) } else { (&newest, &past) };
        let names = if column == Column::Data { "the value" } else { "column" };
        let error = needs.get(&rows, "bad").unwrap_err();
        assert_corruption(&error, names);
        assert!(error.to_string().contains("bad"), "{error}");
        let mut scan = needs.range(&rows, ..);
        assert!(scan.any(|row| row.is_err_and(|error| matches!(error.kind(), ErrorKind::Corruption(_)))), "{column:?}");
        assert!(scan.next().is_none());
        if column == Column::History {
            assert_eq!(other.get(&rows, "bad").unwrap(), Some([2; 1000].into()));
        }
        // Other rows can be read and written, and the store can be opened again.
        for round in 0..2_u8 {
            let rows = store.existing_keyspace("rows").unwrap();
            for key in ["after", "good"] {
                assert_eq!(past.get(&rows, key).unwrap(), Some([1; 1000].into()), "{column:?}");
                assert_eq!(newest.get(&rows, key).unwrap(), Some([2; 1000].into()), "{column:?}");
            }
            store.transact(|txn| txn.put(&rows, "new", [round])).unwrap();
            assert_eq!(store.transact(|txn| txn.get(&rows, "new")).unwrap(), Some([round].into()));
        }
        let problems = store.verify(|_| ()).unwrap().issues;
        assert!(
            problems.iter().any(|problem| problem.row.as_ref() == Some(&row) || problem.column == column),
            "{problems:?}"
        );
        drop((newest, past, scan));
        store.close().unwrap();
        let store = Store::builder().open_in_memory(&memory).unwrap();
        let rows = store.existing_keyspace("rows").unwrap();
        assert_eq!(store.snapshot().unwrap().get(&rows, "new").unwrap(), Some([1].into()));
    }
}

#[test]
#[cfg(feature = "rocks")]
fn a_failed_opening_does_not_keep_the_directory_locked() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    Store::open(&path).unwrap().close().unwrap();
    let engine = Store::builder().durable_engine(&path).unwrap();
    engine.write_meta(&[("history".into(), Some(vec![1]))]).unwrap();
    engine.sync().unwrap();
    drop(engine);
    // A failed opening must release the directory, so that another opening finds the same damage,
    // and not a store that is already open.
    for _ in 0..2 {
        let error = Store::open(&path).map(drop).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Corruption(_)), "{error}");
    }
}

#[test]
fn open_and_verify_name_damaged_metadata() {
    for name in ["oracle", "safe point", "history"] {
        let issues = match damaged(|put, _, _| put(Column::Meta, name.as_bytes(), Some(&[1]))) {
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Corruption(_)), "{name}: {error}");
                continue;
            }
            Ok(damaged) => damaged.store.verify(|_| ()).unwrap().issues,
        };
        assert_eq!(issues.len(), 1, "{name}: {issues:?}");
    }
    // GC skips an entry that it cannot read, and verify reports it.
    let Damaged { store, .. } = damaged(|put, _, _| put(Column::Meta, b"gc/", Some(&[]))).unwrap();
    let issues = store.verify(|_| ()).unwrap().issues;
    assert!(issues.iter().any(|problem| problem.to_string().contains("is not a GC queue entry")), "{issues:?}");
}

#[test]
fn a_damaged_catalog_leaves_other_keyspaces_usable() {
    let catalog = |name: &str| [&[0; 4][..], b"name/", name.as_bytes()].concat();
    let Damaged { store, .. } = damaged(|put, _, _| put(Column::Write, &catalog("other"), Some(NONSENSE))).unwrap();
    let rows = store.existing_keyspace("rows").unwrap();
    assert_eq!(store.snapshot().unwrap().get(&rows, "good").unwrap(), Some([2; 1000].into()));
    for error in [
        store.keyspace_names().map(drop),
        store.existing_keyspace("other").map(drop),
        store.keyspace("other").map(drop),
    ] {
        assert_corruption(&error.unwrap_err(), "column");
    }
}

#[test]
fn a_lock_above_its_commit_ts_is_an_error_not_a_loop() {
    let Damaged { store, .. } = damaged(|put, primary, [.., start_ts, commit_ts]| {
        let txn = TxnId { start_ts, owner: OwnerId::from_u64(1) };
        let committed = HistoryEntry::Ended(TxnRecord::Committed(commit_ts));
        put(Column::History, &history_key(primary, txn.start_ts), Some(&encoded(&committed)));
        // The lock on `good` was pushed above its transaction's commit timestamp.
        for (key, min_commit_ts) in [("after", Timestamp::ZERO), ("good", Timestamp::MAX)] {
            let row = RowKey::new(primary.keyspace_id(), key.as_bytes());
            let (primary, intent) = (primary.clone(), LockType::Delete);
            let lock = Lock { txn, primary, lock_type: intent, write_seq: 1, ttl_ms: 0, min_commit_ts };
            put(Column::Lock, row.as_bytes(), Some(&encoded(&lock)));
        }
    })
    .unwrap();
    let (done, answer) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let resolved = store.resolve_orphan_locks();
        let rows = store.existing_keyspace("rows").unwrap();
        let other = store.transact(|txn| txn.put(&rows, "new", "1"));
        done.send((resolved, other, store.close())).unwrap();
    });
    let (resolved, other, closed) = answer.recv_timeout(Duration::from_secs(20)).expect("no result after 20 s");
    assert_corruption(&resolved.unwrap_err(), "good");
    other.unwrap();
    closed.unwrap();
}

/// After the orphan locks are resolved, the sweep searches the history column for transaction
/// records, and an unreadable entry ends the search with an error. The locks must count as resolved
/// before the search begins: otherwise every later commit would have to read its rows.
#[test]
fn a_corrupt_history_entry_does_not_keep_orphan_locks() {
    let Damaged { store, row, .. } = damaged(|put, row, [_, replaced, unused, _]| {
        put(Column::History, &history_key(row, replaced), Some(NONSENSE));
        let txn = TxnId { start_ts: unused, owner: OwnerId::new(5, 5) };
        let (primary, lock_type, min_commit_ts) = (row.clone(), LockType::LockOnly, unused.next());
        let lock = Lock { txn, primary, lock_type, write_seq: 1, ttl_ms: 0, min_commit_ts };
        put(Column::Lock, row.as_bytes(), Some(&encoded(&lock)));
    })
    .unwrap();
    assert_corruption(&store.resolve_orphan_locks().unwrap_err(), "column");
    assert_eq!(store.row_locks().unwrap().count(), 0);
    assert!(!store.stats().may_have_orphan_locks);
    let rows = store.existing_keyspace("rows").unwrap();
    store.transact(|txn| txn.put(&rows, row.user_key(), "new")).unwrap();
    store.close().unwrap();
}
