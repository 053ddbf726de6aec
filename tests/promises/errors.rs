//! Errors: what they say about the call, and that they agree with the state of the store.

use percolite::engine::Engine as _;
use percolite::engine::sim::SimStorage;
use percolite::row::{CellChange, RowChange};
use percolite::{CommitProtocol, ConflictReason, Durability, ErrorKind, Keyspace, MAX_KEY_BYTES, OnExisting, Store};

#[test]
fn an_invalid_key_is_refused_by_reads_and_writes() {
    let store = Store::in_memory().unwrap();
    let rows = store.keyspace("rows").unwrap();
    let (mut txn, snapshot) = (store.begin().unwrap(), store.snapshot().unwrap());
    let long = vec![b'k'; MAX_KEY_BYTES + 1];
    let text = format!("a key of {} bytes exceeds the limit of {MAX_KEY_BYTES} bytes", long.len());
    let answers =
        [txn.put(&rows, &long, ""), txn.get(&rows, &long).map(drop), snapshot.contains_key(&rows, &long).map(drop)];
    for error in answers.map(Result::unwrap_err) {
        assert!(matches!(error.kind(), ErrorKind::TooLarge { .. }), "{error}");
        assert_eq!(error.to_string(), text);
    }
    for error in [txn.put(&rows, "", ""), txn.get(&rows, "").map(drop), snapshot.get(&rows, "").map(drop)] {
        let error = error.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument(_)), "{error}");
    }
    txn.put(&rows, "k", "v").unwrap();
    // A bound of a range may be longer than any row's key.
    assert_eq!(txn.range(&rows, Vec::new()..long).count(), 1);
}

/// A failure that the simulated disk injects.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The write takes effect, and its call fails.
    WriteMade,
    /// The write has no effect.
    WriteRefused,
    Sync,
}

/// A call that writes both rows `a` and `b`, or neither.
type Call = fn(&Store, &Keyspace) -> percolite::Result<()>;

const CALLS: [(&str, Call); 9] = [
    ("commit", |store, rows| {
        let mut txn = store.begin()?;
        txn.put(rows, "a", "")?;
        txn.put(rows, "b", "")?;
        txn.commit().map(drop)
    }),
    ("transact", |store, rows| store.transact(|txn| ["a", "b"].iter().try_for_each(|key| txn.put(rows, key, "")))),
    ("long values", |store, rows| {
        store.transact(|txn| ["a", "b"].iter().try_for_each(|key| txn.put(rows, key, [7; 1000])))
    }),
    ("large", |store, rows| {
        store.transact(|txn| ["a", "b"].iter().try_for_each(|key| txn.put(rows, key, [7; 30_000])))
    }),
    ("begin", |store, _| store.begin().map(drop)),
    ("snapshot", |store, _| store.snapshot().map(drop)),
    ("read", |store, rows| store.snapshot()?.get(rows, "a").map(drop)),
    ("sync", |store, _| store.sync()),
    ("close", |store, _| store.clone().close()),
];

/// An error says whether the call may have committed and whether the store still works. A reopened
/// store must agree.
#[test]
fn every_error_agrees_with_what_a_reopened_store_shows() {
    let may_have = "may or may not";
    let (mut closed, mut undetermined, mut committed_after_all) = (0, 0, 0);
    for protocol in [CommitProtocol::Auto, CommitProtocol::TwoPhase] {
        for durability in [Durability::Sync, Durability::Buffered] {
            for fault in [Fault::WriteMade, Fault::WriteRefused, Fault::Sync] {
                for (nth, (what, call)) in (1..6).flat_map(|nth| CALLS.iter().map(move |call| (nth, call))) {
                    let case = format!("{what}, {protocol:?}, {durability:?}, {fault:?} {nth}");
                    let memory = SimStorage::new();
                    let builder = || {
                        Store::builder()
                            .commit_protocol(protocol)
                            .background_resolve(false)
                            .large_transaction_bytes(20_000)
                    };
                    let store = builder().durability(durability).open_in_memory(&memory).unwrap();
                    let rows = store.keyspace("rows").unwrap();
                    store.transact(|txn| txn.put(&rows, "before", "")).unwrap();
                    store.sync().unwrap();
                    store.transact(|txn| txn.put(&rows, "not yet durable", "")).unwrap();
                    match fault {
                        Fault::WriteMade => memory.fail_write(nth),
                        Fault::WriteRefused => memory.reject_write(nth),
                        Fault::Sync => memory.fail_sync(nth),
                    }
                    let answer = call(&store, &rows);
                    let still_works = store.begin().is_ok();
                    drop(store);
                    memory.crash(u64::MAX);
                    let store = builder().open_in_memory(&memory).unwrap();
                    let rows = store.existing_keyspace("rows").unwrap();
                    let snapshot = store.snapshot().unwrap();
                    let found = ["a", "b"].map(|key| snapshot.contains_key(&rows, key).unwrap());
                    assert!(found[0] == found[1] && snapshot.contains_key(&rows, "before").unwrap(), "{case}");
                    let Err(error) = answer else { continue };
                    match error.kind() {
                        ErrorKind::Closed(_) => {
                            closed += 1;
                            assert!(
                                !found[0] && !still_works && !error.to_string().contains(may_have),
                                "{case}: {error}"
                            );
                        }
                        ErrorKind::Undetermined(_) => {
                            undetermined += 1;
                            committed_after_all += u32::from(found[0]);
                            assert!(!still_works && error.to_string().contains(may_have), "{case}: {error}");
                        }
                        other => panic!("{case}: {other:?}"),
                    }
                    let failed = "the store has failed and must be reopened: the engine failed:";
                    assert!(error.to_string().contains(failed), "{error}");
                }
            }
        }
    }
    assert!(
        closed > 20 && undetermined > 20 && committed_after_all > 5,
        "{closed} {undetermined} {committed_after_all}"
    );
}

/// The reader or writer of the dump fails, not the engine.
#[test]
fn an_io_error_commits_nothing_and_the_store_still_works() {
    struct Broken;
    impl std::io::Write for Broken {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("full"))
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    impl std::io::Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("gone"))
        }
    }
    let store = Store::in_memory().unwrap();
    let refused = store.restore(Broken, OnExisting::Fail, |_| ()).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::Io(_)), "{refused}");
    assert!(store.keyspace_names().unwrap().is_empty());
    let rows = store.keyspace("rows").unwrap();
    store.transact(|txn| txn.put(&rows, "k", "v")).unwrap();
    let refused = store.snapshot().unwrap().dump(Broken, |_| ()).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::Io(_)), "{refused}");
    store.transact(|txn| txn.put(&rows, "k", "w")).unwrap();
    assert_eq!(store.snapshot().unwrap().get(&rows, "k").unwrap(), Some("w".into()));
}

/// The test deletes the lock on a large transaction's primary in the engine, as if another process
/// had resolved it as an orphan lock.
#[test]
fn a_lost_primary_lock_is_a_conflict_that_names_the_row() {
    let memory = SimStorage::new();
    let store =
        Store::builder().background_resolve(false).large_transaction_bytes(1000).open_in_memory(&memory).unwrap();
    let rows = store.keyspace("rows").unwrap();
    let mut txn = store.begin().unwrap();
    txn.put(&rows, "a", [7; 600]).unwrap();
    txn.put(&rows, "b", [7; 600]).unwrap();
    let row = rows.row_key("a");
    let change = RowChange { lock: CellChange::Delete, ..RowChange::new(row.clone(), txn.start_ts()) };
    memory.exclusive_engine().apply(&[vec![change].into()]).unwrap();
    let read_ts = txn.read_ts();
    let error = txn.commit().unwrap_err();
    let conflict = error.conflict().expect("no conflict");
    assert_eq!((&conflict.row, conflict.reason, conflict.read_ts), (&row, ConflictReason::RolledBackByOther, read_ts));
    assert!(error.is_retryable() && error.to_string().starts_with("conflict: row rows/a was rolled back"), "{error}");
    // The lock on the other row is cleaned up, and the store still works.
    store.transact(|txn| txn.put(&rows, "a", "again")).unwrap();
    assert_eq!(store.snapshot().unwrap().range(&rows, ..).count(), 1);
}

#[test]
fn the_error_of_a_failed_sync_names_no_transaction() {
    // The background syncs a buffered commit after half a second. If this thread is delayed for
    // longer, the sync of the background fails first, and `Store::sync` returns `Closed`.
    let error = (0..10).find_map(|_| {
        let memory = SimStorage::new();
        let store = Store::builder().durability(Durability::Buffered).open_in_memory(&memory).unwrap();
        let rows = store.keyspace("rows").unwrap();
        store.sync().unwrap();
        memory.fail_sync(1);
        store.transact(|txn| txn.put(&rows, "k", "v")).unwrap();
        let error = store.sync().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Undetermined(_) | ErrorKind::Closed(_)), "{error}");
        matches!(error.kind(), ErrorKind::Undetermined(_)).then_some(error)
    });
    let error = error.expect("the sync of the background was first, ten times");
    assert!(!error.to_string().contains("transaction"), "{error}");
}

#[test]
fn the_error_of_a_failed_open_names_no_transaction() {
    let memory = SimStorage::new();
    memory.fail_sync(1);
    let Err(error) = Store::builder().open_in_memory(&memory) else { panic!("the store was opened") };
    assert_eq!(error.to_string(), "the engine failed: the simulated disk has failed to sync");
}
