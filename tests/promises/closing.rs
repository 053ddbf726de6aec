//! What `close` returns, and what the next incarnation of the store starts with.

use percolite::engine::sim::SimStorage;
use percolite::{Durability, ErrorKind, Keyspace, Store};

fn put_five(store: &Store, rows: &Keyspace) {
    for number in 0..5u8 {
        store.transact(|txn| txn.put(rows, [number], "v")).unwrap();
    }
}

#[test]
fn closing_a_failed_store_returns_undetermined() {
    let memory = SimStorage::new();
    let store = Store::builder().durability(Durability::Buffered).open_in_memory(&memory).unwrap();
    let rows = store.keyspace("rows").unwrap();
    store.sync().unwrap();
    put_five(&store, &rows);
    memory.fail_sync(1);
    // The background may have synced the five commits before `fail_sync`. This commit gives the
    // next sync something to sync. The commit fails if a sync of the background has just failed.
    let _ = store.transact(|txn| txn.put(&rows, "last", "v"));
    let failed = store.sync().unwrap_err();
    assert!(matches!(failed.kind(), ErrorKind::Undetermined(_) | ErrorKind::Closed(_)), "{failed}");
    let again = store.sync().unwrap_err();
    assert!(matches!(again.kind(), ErrorKind::Closed(_)), "{again}");
    let closed = store.close().unwrap_err();
    assert!(matches!(closed.kind(), ErrorKind::Undetermined(_)), "{closed}");
    assert!(closed.to_string().contains("the simulated disk has failed to sync"), "{closed}");
}

#[test]
fn closing_makes_buffered_commits_durable() {
    let memory = SimStorage::new();
    let store = Store::builder().durability(Durability::Buffered).open_in_memory(&memory).unwrap();
    let rows = store.keyspace("rows").unwrap();
    put_five(&store, &rows);
    store.close().unwrap();
    assert_eq!(memory.crash(0).lost, 0);
    let store = Store::builder().open_in_memory(&memory).unwrap();
    let rows = store.existing_keyspace("rows").unwrap();
    assert_eq!(store.snapshot().unwrap().range(&rows, ..).count(), 5);
}

#[test]
fn no_timestamp_is_reused_after_a_concurrent_close() {
    let memory = SimStorage::new();
    let mut newest = percolite::Timestamp::ZERO;
    for _ in 0..50 {
        let store = Store::builder().background_resolve(false).open_in_memory(&memory).unwrap();
        let first = store.begin().unwrap().start_ts();
        assert!(first > newest, "{first} {newest}");
        let draw = || std::iter::from_fn(|| Some(store.begin().ok()?.start_ts())).last();
        let closing = store.clone();
        let drawn = std::thread::scope(|scope| {
            let threads = [scope.spawn(draw), scope.spawn(draw)];
            scope.spawn(|| closing.close().unwrap());
            threads.map(|thread| thread.join().unwrap())
        });
        newest = drawn.into_iter().flatten().max().unwrap_or(newest).max(first);
    }
}
