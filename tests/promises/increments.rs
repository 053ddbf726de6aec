//! Incremental dumps: a chain of them equals a full dump, and each restores only onto its base.

mod chains;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use percolite::engine::sim::SimStorage;
use percolite::env::{Env, SystemEnv};
use percolite::oracle::MemoryOracle;
use percolite::{
    Compression, DumpBase, DumpHeader, DumpOptions, Durability, ErrorKind, OnExisting, RetryPolicy, SharedConfig,
    SleepingRowLockWaiter, Snapshot, Store, Timestamp, Value,
};

type Rows = BTreeMap<String, Vec<(Vec<u8>, Value)>>;

const HISTORY: Duration = Duration::from_secs(3600);

fn with_history() -> Store {
    Store::builder().history_retention(HISTORY).in_memory().unwrap()
}

/// A store without a store id, because its engine is shared.
fn on_a_shared_engine() -> Store {
    let env: Arc<dyn Env> = Arc::new(SystemEnv::default());
    let config = SharedConfig {
        engine: Arc::new(SimStorage::new().shared_engine()),
        oracle: Arc::new(MemoryOracle::new(Arc::clone(&env))),
        waiter: Arc::new(SleepingRowLockWaiter(env)),
        ttl_ms: 3000,
    };
    Store::builder().open_shared(config).unwrap()
}

fn content_of(snapshot: &Snapshot) -> Rows {
    let rows = |keyspace| snapshot.range(keyspace, ..).map(|row| row.unwrap().into_parts()).collect();
    snapshot.keyspaces().unwrap().iter().map(|keyspace| (keyspace.name().to_owned(), rows(keyspace))).collect()
}

fn content(store: &Store) -> Rows {
    content_of(&store.snapshot().unwrap())
}

fn full(snapshot: &Snapshot) -> Vec<u8> {
    let mut dump = Vec::new();
    snapshot.dump(&mut dump, |_| ()).unwrap();
    dump
}

fn after(snapshot: &Snapshot, before: &[u8]) -> Vec<u8> {
    let mut dump = Vec::new();
    let options = DumpOptions::default().since(DumpHeader::read(before).unwrap());
    snapshot.dump_with(options, &mut dump, |_| ()).unwrap();
    dump
}

fn restore(store: &Store, dump: &[u8]) {
    store.restore(dump, OnExisting::Fail, |_| ()).unwrap();
}

fn refused(store: &Store, dump: &[u8], existing: OnExisting, what: &str) {
    let before = content(store);
    let error = store.restore(dump, existing, |_| ()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidArgument(_)) && error.to_string().contains(what), "{error}");
    assert_eq!(content(store), before);
}

fn put(store: &Store, keyspace: &str, rows: &[(&str, &str)]) {
    let keyspace = store.keyspace(keyspace).unwrap();
    store.transact(|txn| rows.iter().try_for_each(|(key, value)| txn.put(&keyspace, key, *value))).unwrap();
}

fn delete(store: &Store, keyspace: &str, key: &str) {
    let keyspace = store.keyspace(keyspace).unwrap();
    store.transact(|txn| txn.delete(&keyspace, key)).unwrap();
}

#[test]
fn an_increment_applies_puts_deletes_and_keyspace_changes() {
    let store = with_history();
    put(&store, "fruit", &[("apple", "red"), ("fig", "blue"), ("pear", "yellow")]);
    put(&store, "untouched", &[("row", "x")]);
    put(&store, "emptied", &[("row", "x")]);
    put(&store, "gone", &[("row", "x")]);
    put(&store, "old name", &[("row", "x")]);
    put(&store, "a", &[("this was", "a")]);
    put(&store, "b", &[("this was", "b")]);
    let base = full(&store.snapshot().unwrap());
    let copy = Store::in_memory().unwrap();
    restore(&copy, &base);
    let moved = copy.keyspace("old name").unwrap();

    put(&store, "fruit", &[("apple", "green"), ("kiwi", "brown"), ("plum", "blue")]);
    delete(&store, "fruit", "fig");
    delete(&store, "fruit", "plum");
    store.truncate_keyspace("emptied").unwrap();
    store.drop_keyspace("gone").unwrap();
    put(&store, "gone", &[("another", "y")]);
    store.rename_keyspace("old name", "new name").unwrap();
    for (name, to) in [("a", "c"), ("b", "a"), ("c", "b")] {
        store.rename_keyspace(name, to).unwrap();
    }
    put(&store, "added", &[("row", "z")]);
    let snapshot = store.snapshot().unwrap();
    let increment = after(&snapshot, &base);
    put(&store, "fruit", &[("late", "x")]);

    let restored = copy.restore(increment.as_slice(), OnExisting::Fail, |_| ()).unwrap();
    assert_eq!(content(&copy), content_of(&snapshot));
    // The increment puts apple, kiwi, and the rows of two new keyspaces. It deletes fig, and plum,
    // which was put and deleted after the base.
    assert_eq!((restored.keyspaces, restored.rows, restored.deleted_rows), (8, 4, 2));
    assert_eq!(
        (restored.since, copy.restored_ts().unwrap()),
        (Some(DumpHeader::read(base.as_slice()).unwrap().read_ts), Some(snapshot.read_ts()))
    );
    assert!(copy.verify(|_| ()).unwrap().is_ok());
    // A handle from before the restore stays valid.
    assert_eq!(copy.snapshot().unwrap().get(&moved, "row").unwrap(), Some("x".into()));
    copy.transact(|txn| txn.put(&moved, "row", "own")).unwrap();
}

#[test]
fn an_increment_restores_only_onto_its_base() {
    let store = with_history();
    put(&store, "rows", &[("a", "1")]);
    let base = full(&store.snapshot().unwrap());
    put(&store, "rows", &[("a", "2")]);
    let first = after(&store.snapshot().unwrap(), &base);
    put(&store, "rows", &[("a", "3")]);
    let second = after(&store.snapshot().unwrap(), &first);

    let copy = Store::in_memory().unwrap();
    refused(&copy, &first, OnExisting::Fail, "nothing was restored here");
    refused(&copy, &first, OnExisting::Replace, "nothing was restored here");
    restore(&copy, &base);
    let read_ts_of = |dump: &[u8]| format!("{:#}", DumpHeader::read(dump).unwrap().read_ts);
    // The error names the timestamp that `second` follows, and that of the copy.
    refused(&copy, &second, OnExisting::Replace, &read_ts_of(&first));
    refused(&copy, &second, OnExisting::Replace, &read_ts_of(&base));
    restore(&copy, &first);
    refused(&copy, &first, OnExisting::Replace, &read_ts_of(&base));
    restore(&copy, &second);
    assert_eq!(content(&copy), content(&store));

    // Another store is refused, whatever its timestamps are.
    let other = with_history();
    let at = DumpHeader::read(second.as_slice()).unwrap().read_ts;
    let elsewhere = full(&other.snapshot().unwrap());
    put(&other, "rows", &[("a", "x")]);
    let foreign = after(&other.snapshot().unwrap(), &elsewhere);
    refused(&copy, &foreign, OnExisting::Replace, "another store");
    let follows = DumpOptions::default().since(DumpHeader::read(second.as_slice()).unwrap());
    let error = other.snapshot().unwrap().dump_with(follows, Vec::new(), |_| ()).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::InvalidArgument(_)) && error.to_string().contains("not of this store"),
        "{error}"
    );

    // A full dump starts a new chain, but a dump without a store id starts none.
    copy.restore(base.as_slice(), OnExisting::Replace, |_| ()).unwrap();
    restore(&copy, &first);
    let nameless = full(&on_a_shared_engine().snapshot().unwrap());
    assert_eq!(DumpHeader::read(nameless.as_slice()).unwrap().store_id, None);
    copy.restore(nameless.as_slice(), OnExisting::Replace, |_| ()).unwrap();
    assert_eq!(copy.restored_ts().unwrap(), None);
    refused(&copy, &second, OnExisting::Replace, "nothing was restored here");
    assert!(at > Timestamp::ZERO);
}

#[test]
fn an_increment_needs_history_back_to_its_base() {
    let memory = SimStorage::new();
    let store = Store::builder().open_in_memory(&memory).unwrap();
    put(&store, "rows", &[("a", "1")]);
    let before = store.snapshot().unwrap().read_ts();
    let error = |store: &Store, since: DumpBase| {
        let options = DumpOptions::default().since(since);
        let mut dump = Vec::new();
        let error = store.snapshot().unwrap().dump_with(options, &mut dump, |_| ()).unwrap_err();
        assert!(dump.is_empty());
        error
    };
    let none = error(&store, before.into());
    assert!(matches!(none.kind(), ErrorKind::InvalidArgument(_)) && none.to_string().contains("no history"), "{none}");
    store.close().unwrap();
    let store = Store::builder().history_retention(HISTORY).open_in_memory(&memory).unwrap();
    let old = error(&store, before.into());
    assert!(
        matches!(old.kind(), ErrorKind::SnapshotTooOld(_)) && old.to_string().contains("history, which begins at"),
        "{old}"
    );
    let late = error(&store, Timestamp::MAX.into());
    assert!(
        matches!(late.kind(), ErrorKind::InvalidArgument(_)) && late.to_string().contains("after the snapshot"),
        "{late}"
    );
    // An increment since the snapshot's own timestamp is empty.
    let snapshot = store.snapshot().unwrap();
    let dumped = snapshot.dump_with(DumpOptions::default().since(snapshot.read_ts()), Vec::new(), |_| ()).unwrap();
    assert_eq!((dumped.rows, dumped.deleted_rows, dumped.keyspaces), (0, 0, 1));
}

#[test]
fn an_increment_overwrites_only_rows_the_source_changed() {
    let store = with_history();
    put(&store, "rows", &[("a", "1"), ("b", "1"), ("c", "1")]);
    let base = full(&store.snapshot().unwrap());
    let copy = Store::in_memory().unwrap();
    restore(&copy, &base);
    put(&copy, "rows", &[("a", "here"), ("b", "here"), ("c", "here"), ("d", "here")]);
    put(&copy, "own", &[("row", "here")]);
    put(&store, "rows", &[("a", "2")]);
    delete(&store, "rows", "b");
    restore(&copy, &after(&store.snapshot().unwrap(), &base));
    let row = |key: &str, value: &str| (key.as_bytes().to_vec(), value.into());
    let rows = vec![row("a", "2"), row("c", "here"), row("d", "here")];
    assert_eq!(content(&copy), Rows::from([("own".into(), vec![row("row", "here")]), ("rows".into(), rows)]));
}

#[test]
fn dropped_or_taken_keyspaces_refuse_an_increment() {
    let store = with_history();
    put(&store, "rows", &[("a", "1")]);
    put(&store, "goes", &[("a", "1")]);
    let base = full(&store.snapshot().unwrap());
    put(&store, "rows", &[("a", "2")]);
    put(&store, "added", &[("a", "2")]);
    store.drop_keyspace("goes").unwrap();
    let increment = after(&store.snapshot().unwrap(), &base);
    let copy = || {
        let copy = Store::in_memory().unwrap();
        restore(&copy, &base);
        copy
    };
    let truncated = copy();
    truncated.truncate_keyspace("rows").unwrap();
    refused(&truncated, &increment, OnExisting::Replace, "was dropped or truncated here");
    // A keyspace that the source dropped may already be dropped in the copy.
    let dropped = copy();
    dropped.drop_keyspace("goes").unwrap();
    restore(&dropped, &increment);
    assert_eq!(content(&dropped), content(&store));
    let taken = copy();
    put(&taken, "added", &[("own", "row")]);
    refused(&taken, &increment, OnExisting::Fail, "exists here and was not restored");
    taken.restore(increment.as_slice(), OnExisting::Replace, |_| ()).unwrap();
    assert_eq!(content(&taken), content(&store));
    // A keyspace that was renamed in the copy gets the source's name again.
    let renamed = copy();
    renamed.rename_keyspace("rows", "mine").unwrap();
    restore(&renamed, &increment);
    assert_eq!(renamed.keyspace_names().unwrap(), ["added", "mine"].map(|name| name.replace("mine", "rows")));
}

#[test]
fn a_keyspace_dropped_by_an_increment_ends_its_handles() {
    let store = with_history();
    put(&store, "goes", &[("a", "1")]);
    let base = full(&store.snapshot().unwrap());
    store.drop_keyspace("goes").unwrap();
    let increment = after(&store.snapshot().unwrap(), &base);
    let copy = Store::in_memory().unwrap();
    restore(&copy, &base);
    let goes = copy.existing_keyspace("goes").unwrap();
    let mut open = copy.begin().unwrap();
    open.put(&goes, "b", "2").unwrap();
    restore(&copy, &increment);
    for error in [open.commit().unwrap_err(), copy.transact(|txn| txn.put(&goes, "c", "3")).unwrap_err()] {
        assert_eq!(*error.kind(), ErrorKind::KeyspaceNotFound("goes".into()), "{error}");
    }
}

#[test]
fn an_increment_has_the_committed_value_of_a_locked_row() {
    let store = Store::builder().history_retention(HISTORY).large_transaction_bytes(1000).in_memory().unwrap();
    put(&store, "rows", &[("k", "1")]);
    let base = full(&store.snapshot().unwrap());
    put(&store, "rows", &[("k", "2")]);
    let rows = store.existing_keyspace("rows").unwrap();
    let mut holding = store.begin().unwrap();
    holding.get_for_update(&rows, "k").unwrap();
    holding.put(&rows, "other", [1; 2000]).unwrap();
    // Until the lock cleanup of a large transaction ends, a dump reads the lock column too.
    let many = |txn: &mut percolite::Txn| (0..30_000_u32).try_for_each(|n| txn.put(&rows, n.to_be_bytes(), "v"));
    store.transact(many).unwrap();
    let increment = after(&store.snapshot().unwrap(), &base);
    let copy = Store::in_memory().unwrap();
    restore(&copy, &base);
    restore(&copy, &increment);
    let copied = copy.existing_keyspace("rows").unwrap();
    assert_eq!(copy.snapshot().unwrap().get(&copied, "k").unwrap().as_deref(), Some(&b"2"[..]));
    assert_eq!(content(&copy), content(&store));
}

#[test]
fn a_rename_during_the_restore_of_an_increment_conflicts() {
    let store = with_history();
    put(&store, "rows", &[("a", "1")]);
    let base = full(&store.snapshot().unwrap());
    put(&store, "rows", &[("a", "2")]);
    let increment = after(&store.snapshot().unwrap(), &base);
    let once = RetryPolicy::default().max_attempts(1);
    let copy = Store::builder().retry_policy(once).in_memory().unwrap();
    restore(&copy, &base);
    let mut renames = Vec::new();
    let rename = |so_far: &percolite::DumpStats| {
        if so_far.rows > 0 {
            renames.push(copy.rename_keyspace("rows", "mine").map(drop));
        }
    };
    copy.restore(increment.as_slice(), OnExisting::Fail, rename).unwrap();
    let refused = |rename: &percolite::Result<()>| rename.as_ref().is_err_and(|error| error.conflict().is_some());
    assert!(renames.last().is_some_and(refused), "{renames:?}");
    assert_eq!(content(&copy), content(&store));
}

#[test]
fn a_dump_has_only_commits_that_survive_a_power_cut() {
    let memory = SimStorage::new();
    let open = || {
        Store::builder().durability(Durability::Buffered).history_retention(HISTORY).open_in_memory(&memory).unwrap()
    };
    let store = open();
    put(&store, "rows", &[("a", "1")]);
    store.sync().unwrap();
    put(&store, "rows", &[("a", "visible"), ("b", "visible")]);
    let base = full(&store.snapshot().unwrap());
    memory.crash(0);
    drop(store);
    let store = open();
    put(&store, "rows", &[("c", "later")]);
    let increment = after(&store.snapshot().unwrap(), &base);
    let copy = Store::in_memory().unwrap();
    restore(&copy, &base);
    restore(&copy, &increment);
    assert_eq!(content(&copy), content(&store));
}

#[test]
fn a_failed_increment_changes_nothing_and_can_be_repeated() {
    let store = with_history();
    put(&store, "rows", &[("a", "1")]);
    let base = full(&store.snapshot().unwrap());
    let many = store.keyspace("rows").unwrap();
    store.transact(|txn| (0..20_000_u32).try_for_each(|n| txn.put(&many, n.to_be_bytes(), "v"))).unwrap();
    put(&store, "added", &[("a", "2")]);
    let increment = after(&store.snapshot().unwrap(), &base);
    let copy = Store::builder().large_transaction_bytes(1000).in_memory().unwrap();
    restore(&copy, &base);
    let before = content(&copy);
    // The increment meets the lock on the first row while it locks its rows, and the lock on the
    // last row at its commit.
    for row in [0_u32, 19_999] {
        let mut locking = copy.begin().unwrap();
        locking.put(&copy.existing_keyspace("rows").unwrap(), row.to_be_bytes(), [1; 2000]).unwrap();
        let error = copy.restore(increment.as_slice(), OnExisting::Fail, |_| ()).unwrap_err();
        assert!(error.conflict().unwrap().read_ts <= copy.snapshot().unwrap().read_ts(), "{error}");
        drop(locking);
        assert_eq!(content(&copy), before);
    }
    for stop_at in [1, 5_000, 20_000] {
        let stopped = copy.restore(increment.as_slice(), OnExisting::Fail, |so_far| {
            if so_far.rows >= stop_at { std::ops::ControlFlow::Break(()) } else { std::ops::ControlFlow::Continue(()) }
        });
        assert!(matches!(stopped.unwrap_err().kind(), ErrorKind::Cancelled(_)));
        assert_eq!(content(&copy), before);
    }
    for length in [increment.len() - 1, increment.len() / 2, 40] {
        let error = copy.restore(&increment[..length], OnExisting::Fail, |_| ()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Corruption(_)), "{error}");
        assert_eq!(content(&copy), before);
    }
    restore(&copy, &increment);
    assert_eq!(content(&copy), content(&store));
}

#[test]
fn restoring_an_increment_is_atomic_across_crashes() {
    let store = with_history();
    let rows = store.keyspace("rows").unwrap();
    store.transact(|txn| (0..3_000_u32).try_for_each(|n| txn.put(&rows, n.to_be_bytes(), "old"))).unwrap();
    put(&store, "goes", &[("a", "1")]);
    let base = full(&store.snapshot().unwrap());
    let old = content(&store);
    store
        .transact(|txn| {
            (0..40_000_u32).try_for_each(|n| txn.put(&rows, n.to_be_bytes(), "x".repeat(n as usize % 300)))?;
            (0..2_000_u32).try_for_each(|n| txn.delete(&rows, n.to_be_bytes()))
        })
        .unwrap();
    store.drop_keyspace("goes").unwrap();
    store.rename_keyspace("rows", "lines").unwrap();
    put(&store, "rows", &[("new", "keyspace")]);
    let increment = after(&store.snapshot().unwrap(), &base);
    let new = content(&store);
    let (mut died, mut acknowledged) = (0, false);
    for block in 0.. {
        let memory = SimStorage::new();
        let copy = Store::builder().open_in_memory(&memory).unwrap();
        restore(&copy, &base);
        let mut blocks = 0;
        let restored = copy.restore(increment.as_slice(), OnExisting::Fail, |_| {
            if blocks == block {
                // The blocks that are restored by now are durable when the power is cut.
                copy.sync().unwrap();
                memory.crash(0);
            }
            blocks += 1;
        });
        if restored.is_ok() {
            acknowledged = true;
            // After the acknowledgement a crash must lose nothing.
            memory.crash(0);
        }
        drop(copy);
        let copy = Store::builder().open_in_memory(&memory).unwrap();
        assert_eq!(content(&copy), if acknowledged { new.clone() } else { old.clone() }, "block {block}");
        assert!(copy.verify(|_| ()).unwrap().is_ok());
        if acknowledged {
            break;
        }
        died += 1;
        restore(&copy, &increment);
        assert_eq!(content(&copy), new, "block {block}");
    }
    assert!(died > 10 && acknowledged, "{died}");
}

#[test]
fn an_increment_of_few_changes_is_small() {
    let store = with_history();
    let rows = store.keyspace("rows").unwrap();
    store.transact(|txn| (0..5_000_u32).try_for_each(|n| txn.put(&rows, n.to_be_bytes(), "value"))).unwrap();
    let base = full(&store.snapshot().unwrap());
    put(&store, "rows", &[("a", "1")]);
    for compression in [Compression::None, Compression::Lz4] {
        let mut dump = Vec::new();
        let options = DumpOptions::default().since(DumpHeader::read(base.as_slice()).unwrap()).compression(compression);
        store.snapshot().unwrap().dump_with(options, &mut dump, |_| ()).unwrap();
        assert!(dump.len() < 200, "{}", dump.len());
    }
}
