//! Single calls with invalid arguments, and calls after `close`.

use std::ops::{Bound, ControlFlow};

use percolite::{
    Error, ErrorKind, Keyspace, MAX_KEYSPACE_NAME_BYTES, MAX_VALUE_BYTES, OnExisting, OwnerId, Result, Savepoint,
    Snapshot, Store, Timestamp, Txn, TxnOptions, TypedKeyspace,
};

fn is_invalid(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidArgument(_))
}

#[test]
fn a_too_large_write_is_refused_and_changes_nothing() {
    let store =
        Store::builder().max_transaction_bytes(MAX_VALUE_BYTES + 1000).large_transaction_bytes(usize::MAX).in_memory();
    let store = store.unwrap();
    let rows = store.keyspace("rows").unwrap();
    let mut txn = store.begin().unwrap();
    txn.put(&rows, "small", "v").unwrap();
    let mut value = vec![7; MAX_VALUE_BYTES + 1];
    let refused = |error: Error, what: &str| {
        assert!(matches!(error.kind(), ErrorKind::TooLarge { .. }), "{error}");
        assert!(error.to_string().starts_with(what), "{error}");
    };
    refused(
        txn.put(&rows, "large", &value).unwrap_err(),
        "a value of 33554433 bytes exceeds the limit of 33554432 bytes",
    );
    refused(txn.insert(&rows, "large", &value).unwrap_err(), "a value of 33554433 bytes");
    value.pop();
    txn.put(&rows, "largest", &value).unwrap();
    refused(txn.put(&rows, "one more", vec![1; 1000]).unwrap_err(), "a transaction of ");
    assert_eq!([txn.get(&rows, "large").unwrap(), txn.get(&rows, "one more").unwrap()], [None, None]);
    txn.commit().unwrap();
    let snapshot = store.snapshot().unwrap();
    assert_eq!(snapshot.get(&rows, "largest").unwrap(), Some(value.into()));
    let keys: Vec<_> = snapshot.range(&rows, ..).map(|row| row.unwrap().key().to_vec()).collect();
    assert_eq!(keys, [&b"largest"[..], b"small"]);
}

/// Enough keys that `multi_get` does not read them one by one.
fn many_keys() -> impl Iterator<Item = [u8; 1]> {
    (0..20).map(|key| [key])
}

#[test]
fn every_call_returns_closed_after_close() {
    // Of the transactions below only `large` exceeds this size, so only it locks its rows in the
    // store before it commits.
    let store = Store::builder().large_transaction_bytes(100_000).in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    let typed = store.keyspace("typed").unwrap().typed::<u8, u8>();
    store.transact(|txn| (0..200_u8).try_for_each(|key| txn.put(&rows, [key], "v"))).unwrap();
    store.transact(|txn| (0..200_u8).try_for_each(|key| typed.put(txn, &key, &key))).unwrap();
    let mut dump = Vec::new();
    store.snapshot().unwrap().dump(&mut dump, |_| ()).unwrap();
    let [mut txn, other, left, reader, mut large] = [(); 5].map(|()| store.begin().unwrap());
    let snapshot = store.snapshot().unwrap();
    txn.put(&rows, "k", "v").unwrap();
    let savepoint = txn.savepoint();
    (0..200_u8).for_each(|key| large.put(&rows, [b'l', key], [7; 1000]).unwrap());

    // Scans in progress, with rows read ahead.
    let (mut scan, mut of_txn, mut lent) = (snapshot.range(&rows, ..), txn.range(&rows, ..), snapshot.range(&rows, ..));
    let mut of_large = large.range(&rows, ..);
    let (mut locks, mut versions) = (store.row_locks().unwrap(), snapshot.versions(&rows, [1]).unwrap());
    let mut of_typed = typed.range(&snapshot, ..).unwrap();
    scan.next().unwrap().unwrap();
    of_txn.next_back().unwrap().unwrap();
    of_large.next_back().unwrap().unwrap();
    assert!(lent.visit(|_, _| ControlFlow::Break(())).unwrap().is_break());
    locks.next().unwrap().unwrap();
    of_typed.next().unwrap().unwrap();
    let at = (snapshot.read_ts(), txn.owner_id());
    store.clone().close().unwrap();

    let mut answers = calls_of_store(&store, &rows, at, &dump);
    answers.extend(calls_of_snapshot(&snapshot, &rows));
    answers.extend([
        scan.next().unwrap().map(drop),
        of_txn.next_back().unwrap().map(drop),
        of_large.next_back().unwrap().map(drop),
        lent.visit(|_, _| ControlFlow::<()>::Continue(())).map(drop),
        locks.next().unwrap().map(drop),
        versions.next().unwrap().map(drop),
        of_typed.next().unwrap().map(drop),
    ]);
    answers.extend(calls_of_typed_keyspace(&typed, &snapshot, &mut txn));
    answers.extend(calls_of_txn(txn, &rows, savepoint));
    answers.extend([
        large.put(&rows, "k", "w"),
        large.commit().map(drop),
        reader.wait_reads_durable(),
        reader.commit().map(drop),
        left.rollback(),
        other.commit().map(drop),
    ]);
    for (number, answer) in answers.into_iter().enumerate() {
        let error = answer.expect_err(&format!("call {number}"));
        assert!(matches!(error.kind(), ErrorKind::Closed(_)), "call {number}: {error}");
        assert!(error.to_string().contains("the store is closed"), "call {number}: {error}");
    }
    assert!(scan.next().is_none() && of_txn.next().is_none() && locks.next().is_none() && versions.next().is_none());
    store.close().unwrap();
}

fn calls_of_store(store: &Store, rows: &Keyspace, at: (Timestamp, OwnerId), dump: &[u8]) -> Vec<Result<()>> {
    vec![
        store.begin().map(drop),
        store.begin_with(TxnOptions::with_label("late")).map(drop),
        store.snapshot().map(drop),
        store.snapshot_at(at.0).map(drop),
        store.sync(),
        store.keyspace("rows").map(drop),
        store.keyspace("new").map(drop),
        store.existing_keyspace("rows").map(drop),
        store.keyspace_names().map(drop),
        store.drop_keyspace("rows"),
        store.truncate_keyspace("rows").map(drop),
        store.rename_keyspace("rows", "lines").map(drop),
        store.transact(|txn| txn.put(rows, "k", "v")),
        store.transact_with(TxnOptions::default(), |_| Ok::<_, Error>(())),
        store.row_locks().map(drop),
        store.resolve_orphan_locks().map(drop),
        store.txn_status(&rows.row_key("k"), at.0, at.1).map(drop),
        store.verify(|_| ()).map(drop),
        store.engine_stats().map(drop),
        store.checkpoint("copy"),
        store.restore(dump, OnExisting::Replace, |_| ()).map(drop),
    ]
}

fn calls_of_snapshot(snapshot: &Snapshot, rows: &Keyspace) -> Vec<Result<()>> {
    vec![
        snapshot.get(rows, "k").map(drop),
        snapshot.multi_get(rows, many_keys()).map(drop),
        snapshot.contains_key(rows, "k").map(drop),
        snapshot.keyspaces().map(drop),
        snapshot.versions(rows, "k").map(drop),
        snapshot.dump(Vec::new(), |_| ()).map(drop),
        snapshot.range(rows, ..).next().unwrap().map(drop),
        snapshot.prefix(rows, "k").next_back().unwrap().map(drop),
        snapshot.with_label("late").get(rows, "k").map(drop),
    ]
}

fn calls_of_typed_keyspace(typed: &TypedKeyspace<u8, u8>, snapshot: &Snapshot, txn: &mut Txn) -> Vec<Result<()>> {
    vec![
        typed.get(snapshot, &1_u8).map(drop),
        typed.multi_get(snapshot, [&1_u8]).map(drop),
        typed.range(snapshot, ..).and_then(|mut rows| rows.next().unwrap()).map(drop),
        typed.put(txn, &1_u8, &1),
    ]
}

fn calls_of_txn(mut txn: Txn, rows: &Keyspace, savepoint: Savepoint) -> Vec<Result<()>> {
    vec![
        txn.get(rows, "k").map(drop),
        txn.contains_key(rows, "k").map(drop),
        txn.multi_get(rows, many_keys()).map(drop),
        txn.versions(rows, "k").map(drop),
        txn.put(rows, "k", "w"),
        txn.insert(rows, "new", "w"),
        txn.delete(rows, "k"),
        txn.delete_range(rows, ..).map(drop),
        txn.delete_prefix(rows, "k").map(drop),
        txn.get_for_update(rows, "k").map(drop),
        txn.range(rows, ..).next().unwrap().map(drop),
        txn.prefix(rows, "k").next().unwrap().map(drop),
        txn.rollback_to(savepoint),
        txn.wait_reads_durable(),
        txn.commit().map(drop),
    ]
}

#[test]
fn close_fails_calls_in_progress_with_closed() {
    for what in 0..3 {
        let store = Store::in_memory().unwrap();
        let rows = store.keyspace("rows").unwrap();
        store.transact(|txn| (0..200_u8).try_for_each(|key| txn.put(&rows, [key], [7; 20_000]))).unwrap();
        let snapshot = store.snapshot().unwrap();
        let mut dump = Vec::new();
        snapshot.dump(&mut dump, |_| ()).unwrap();
        let close = || store.clone().close().unwrap();
        let answer = match what {
            0 => snapshot.dump(Vec::new(), |_| close()).map(drop),
            1 => store.restore(&dump[..], OnExisting::Replace, |_| close()).map(drop),
            _ => store.verify(|_| close()).map(drop),
        };
        let error = answer.expect_err(&format!("work {what}"));
        assert!(matches!(error.kind(), ErrorKind::Closed(_)), "work {what}: {error}");
    }
}

#[test]
fn invalid_names_are_refused_before_creation() {
    let store = Store::in_memory().unwrap();
    let long = "n".repeat(MAX_KEYSPACE_NAME_BYTES + 1);
    for name in ["", "a\nb", "a\0", "\u{7f}", "\u{9b}31m", &long] {
        let error = store.keyspace(name).unwrap_err();
        assert!(is_invalid(&error) && error.to_string().contains("1 to 255 bytes"), "{name:?}: {error}");
        for error in [store.existing_keyspace(name).map(drop), store.drop_keyspace(name)].map(Result::unwrap_err) {
            assert_eq!(*error.kind(), ErrorKind::KeyspaceNotFound(name.into()));
        }
    }
    assert!(store.keyspace_names().unwrap().is_empty());
    let mut allowed = vec!["..", "/", "name/x", "next", "dropped/0000000001", " ", "\u{1f600}", &long[1..]];
    for name in &allowed {
        store.keyspace(name).unwrap();
    }
    allowed.sort_unstable();
    assert_eq!(store.keyspace_names().unwrap(), allowed);
}

#[test]
fn a_keyspace_of_another_store_is_refused() {
    let (store, other) = (Store::in_memory().unwrap(), Store::in_memory().unwrap());
    let (own, foreign) = (store.keyspace("rows").unwrap(), other.keyspace("rows").unwrap());
    let (mut txn, snapshot) = (store.begin().unwrap(), store.snapshot().unwrap());
    for error in [
        txn.put(&foreign, "k", "v").unwrap_err(),
        txn.get(&foreign, "k").unwrap_err(),
        txn.multi_get(&foreign, many_keys()).unwrap_err(),
        snapshot.get(&foreign, "k").unwrap_err(),
        snapshot.multi_get(&foreign, many_keys()).unwrap_err(),
        snapshot.range(&foreign, ..).next().unwrap().unwrap_err(),
    ] {
        assert!(is_invalid(&error) && error.to_string().contains("belongs to another store"), "{error}");
    }
    txn.put(&own, "k", "v").unwrap();
    txn.commit().unwrap();
    assert_eq!(other.snapshot().unwrap().range(&foreign, ..).count(), 0);
}

#[test]
fn a_range_that_starts_after_its_end_is_empty() {
    let store = Store::in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    store.transact(|txn| ["a", "b", "c"].iter().try_for_each(|key| txn.put(&rows, key, "v"))).unwrap();
    let (mut txn, snapshot) = (store.begin().unwrap(), store.snapshot().unwrap());
    // The transaction has own writes besides the committed rows, because a scan finds the two with
    // different code.
    ["a", "b", "d"].iter().for_each(|key| txn.put(&rows, key, "own").unwrap());
    let excluded = |from, to| (Bound::Excluded(from), Bound::Excluded(to));
    for range in
        [excluded("c", "a"), excluded("b", "b"), excluded("z", ""), (Bound::Included("c"), Bound::Included("a"))]
    {
        assert_eq!((txn.range(&rows, range).count(), txn.range(&rows, range).rev().count()), (0, 0), "{range:?}");
        assert_eq!(
            (snapshot.range(&rows, range).count(), snapshot.range(&rows, range).rev().count()),
            (0, 0),
            "{range:?}"
        );
    }
    assert_eq!((txn.range(&rows, "c".."a").count(), txn.range(&rows, "b".."b").count()), (0, 0));
    assert_eq!((txn.range(&rows, "c"..="a").count(), txn.range(&rows, .."").count()), (0, 0));
    assert_eq!(txn.range(&rows, "b"..="b").count(), 1);
}
