//! `verify` finds each kind of damage, says where it is, and continues after it.

use percolite::engine::sim::SimStorage;
use percolite::internal::codec::Record;
use std::ops::ControlFlow;
use std::time::Duration;

use percolite::engine::RowRange;
use percolite::engine::storage::{Batch, CellReader, Column, Storage};
use percolite::internal::keys::data_key;
use percolite::row::{KeyspaceId, Lock, LockType, StoredValue, TxnId, WriteRecord};
use percolite::{CommitProtocol, ErrorKind, OwnerId, RowKey, Store, Timestamp, VerifyReport};

/// A store with short and long values, and a deleted row.
fn filled(memory: &SimStorage) -> KeyspaceId {
    let store = Store::builder()
        .commit_protocol(CommitProtocol::TwoPhase)
        .background_resolve(false)
        .open_in_memory(memory)
        .unwrap();
    let rows = store.keyspace("rows").unwrap();
    let _keeps_the_deletion = store.snapshot().unwrap();
    store
        .transact(|txn| {
            txn.put(&rows, "short", "value")?;
            txn.put(&rows, "long", vec![7; 1000])?;
            txn.put(&rows, "deleted", "value")
        })
        .unwrap();
    let _keeps_it_too = store.snapshot().unwrap();
    store.transact(|txn| txn.delete(&rows, "deleted")).unwrap();
    store.close().unwrap();
    rows.id()
}

fn verified(memory: &SimStorage) -> VerifyReport {
    let store = Store::builder().read_only(true).open_in_memory(memory).unwrap();
    store.verify(|_| ()).unwrap()
}

fn bytes(record: &impl Record) -> Vec<u8> {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    bytes
}

/// The issues of a store after `change` has put or deleted cells.
fn issues(change: impl FnOnce(KeyspaceId, &mut dyn FnMut(Column, &[u8], Option<Vec<u8>>))) -> Vec<String> {
    let memory = SimStorage::new();
    let id = filled(&memory);
    let mut batch = memory.new_batch(0);
    change(id, &mut |column, key, value| match value {
        Some(value) => batch.put(column, key, &value),
        None => batch.delete(column, key),
    });
    memory.write(batch).unwrap();
    let verified = verified(&memory);
    assert_eq!(verified.issue_count, verified.issues.len() as u64);
    verified.issues.iter().map(ToString::to_string).collect()
}

fn txn(start: u64) -> TxnId {
    TxnId { start_ts: Timestamp::from_millis(start), owner: OwnerId::new(start, 1) }
}

fn write(start: u64, commit: u64, value: Option<StoredValue>) -> Vec<u8> {
    bytes(&WriteRecord { commit_ts: Timestamp::from_millis(commit), txn: txn(start), value, lock_only_ts: None })
}

fn lock(primary: RowKey, intent: LockType) -> Vec<u8> {
    let txn = txn(1_700_000_000_000);
    bytes(&Lock { txn, primary, lock_type: intent, write_seq: 1, ttl_ms: 0, min_commit_ts: txn.start_ts.next() })
}

#[test]
fn an_intact_store_has_no_issues() {
    let memory = SimStorage::new();
    filled(&memory);
    let verified = verified(&memory);
    assert!(verified.is_ok(), "{:?}", verified.issues);
    assert_eq!(verified.out_of_line_values, 1);
    assert!(verified.versions >= 5 && verified.meta_entries >= 2 && verified.bytes > 1000, "{verified:?}");
    assert!(issues(|_, _| ()).is_empty());
}

#[test]
fn each_kind_of_damage_is_found_and_named() {
    let row = |id, key: &str| RowKey::new(id, key.as_bytes());
    let one = |issues: Vec<String>, what: &str| {
        assert!(issues.len() == 1 && issues[0].contains(what), "wanted {what:?}: {issues:?}");
    };
    one(
        issues(|id, put| put(Column::Write, row(id, "x").as_bytes(), Some(b"\x01nonsense".to_vec()))),
        "does not decode",
    );
    one(issues(|id, put| put(Column::Write, row(id, "x").as_bytes(), Some(b"\x09".to_vec()))), "format version 9");
    one(issues(|_, put| put(Column::Write, b"abc", Some(Vec::new()))), "invalid row key");
    one(
        issues(|id, put| {
            put(Column::Write, row(id, "x").as_bytes(), Some(write(5, 5, Some(StoredValue::Inline(b"".into())))))
        }),
        "is not above the start timestamp",
    );
    one(
        issues(|id, put| put(Column::Write, row(id, "x").as_bytes(), Some(write(5, 6, Some(StoredValue::OutOfLine))))),
        "is missing",
    );
    one(
        issues(|id, put| put(Column::Write, row(id, "x").as_bytes(), Some(write(5, 6, None)))),
        "missing from the GC queue",
    );
    let future = 1 << 45;
    one(
        issues(|id, put| {
            put(Column::Write, row(id, "x").as_bytes(), Some(write(5, future, Some(StoredValue::Inline(b"".into())))))
        }),
        "above the high-water mark",
    );
    let unknown = KeyspaceId(4711);
    one(
        issues(|_, put| {
            put(Column::Write, row(unknown, "x").as_bytes(), Some(write(5, 6, Some(StoredValue::Inline(b"".into())))))
        }),
        "keyspace is not in the catalog",
    );
    one(
        issues(|id, put| put(Column::Data, &data_key(&row(id, "long"), Timestamp::from_millis(9)), Some(vec![1]))),
        "no version or lock refers to",
    );
    one(issues(|_, put| put(Column::Data, b"short", Some(vec![1]))), "invalid key");
    one(issues(|_, put| put(Column::History, b"short", Some(vec![1]))), "invalid key");
    one(issues(|_, put| put(Column::Meta, b"safe point", Some(vec![1]))), "is not a timestamp");
    one(issues(|_, put| put(Column::Meta, b"gc/", Some(vec![]))), "is not a GC queue entry");
    one(
        issues(|id, put| {
            put(Column::Lock, row(id, "x").as_bytes(), Some(lock(row(id, "x"), LockType::Put(StoredValue::OutOfLine))))
        }),
        "the value of its lock",
    );
    one(
        issues(|id, put| put(Column::Lock, row(id, "x").as_bytes(), Some(lock(row(unknown, "x"), LockType::Delete)))),
        "unknown keyspace",
    );
    let other_primary = issues(|id, put| {
        put(Column::Lock, row(id, "x").as_bytes(), Some(lock(row(id, "y"), LockType::Delete)));
        put(Column::Lock, row(id, "y").as_bytes(), Some(lock(row(id, "z"), LockType::Delete)));
    });
    one(other_primary, "names another primary");
    one(
        issues(|id, put| {
            put(Column::Lock, row(id, "x").as_bytes(), Some(lock(row(id, "y"), LockType::Delete)));
            put(Column::Meta, b"safe point", Some(Timestamp::from_millis(1 << 42).to_u64().to_be_bytes().to_vec()));
        }),
        "below the safe point",
    );
}

#[test]
fn a_replaced_version_without_a_gc_entry_is_found() {
    let memory = SimStorage::new();
    let store = Store::builder()
        .history_retention(Duration::from_secs(3600))
        .background_resolve(false)
        .open_in_memory(&memory)
        .unwrap();
    let rows = store.keyspace("rows").unwrap();
    for value in ["first", "second", "third"] {
        store.transact(|txn| txn.put(&rows, "key", value)).unwrap();
    }
    store.close().unwrap();
    assert!(verified(&memory).is_ok(), "{:?}", verified(&memory).issues);

    let named = |key: &[u8]| key.starts_with(b"gc/") && key.ends_with(b"key");
    let mut list = Vec::new();
    let all = RowRange::all();
    let keep = |key: &[u8], _: &[u8]| {
        list.extend(named(key).then(|| key.to_vec()));
        true
    };
    memory.scan(Column::Meta, &all, false, keep).unwrap();
    assert_eq!(list.len(), 2, "two versions were replaced");
    for entry in &list {
        let mut batch = memory.new_batch(0);
        batch.delete(Column::Meta, entry);
        memory.write(batch).unwrap();
        let issues: Vec<String> = verified(&memory).issues.iter().map(ToString::to_string).collect();
        assert!(issues.len() == 1 && issues[0].contains("missing from the GC queue"), "{issues:?}");
        let mut batch = memory.new_batch(0);
        batch.put(Column::Meta, entry, b"");
        memory.write(batch).unwrap();
    }
}

#[test]
fn damage_in_one_place_does_not_hide_damage_in_another() {
    let issues = issues(|id, put| {
        put(Column::Write, RowKey::new(id, b"a").as_bytes(), Some(b"\x01nonsense".to_vec()));
        put(Column::Write, RowKey::new(id, b"z").as_bytes(), Some(b"\x01nonsense".to_vec()));
        put(Column::Write, &[0, 0, 0, 0, b'n', b'a', b'm', b'e', b'/', b'z'], Some(b"\x01nonsense".to_vec()));
    });
    assert_eq!(issues.len(), 4, "{issues:?}");
    assert!(issues[0].contains("cannot read the catalog"), "{issues:?}");
}

#[test]
fn a_verification_can_be_cancelled() {
    let store = Store::in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    store.transact(|txn| (0..5000_u32).try_for_each(|n| txn.put(&rows, n.to_be_bytes(), "v"))).unwrap();
    let whole = store.verify(|_| ()).unwrap().cells();
    let mut seen = 0;
    let stopped = store
        .verify(|so_far| {
            seen = so_far.cells();
            if seen > 1000 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap_err();
    assert!(matches!(stopped.kind(), ErrorKind::Cancelled(_)), "{stopped}");
    assert!(seen < whole && stopped.to_string().contains(&format!("after {seen} cells")), "{stopped}, {whole} in all");
    assert_eq!(store.verify(|_| ControlFlow::Continue(())).unwrap().cells(), whole, "the next one reads everything");
}
