//! What grows with time, and must not.

use std::path::Path;
use std::time::{Duration, Instant};

use percolite::{LockOptions, Store};

use crate::rows::{Acknowledged, ascending, small};
use crate::{Limit, Scenario};

pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "a dropped keyspace gives its space back in an idle store",
        limit: Limit::OpenFiles(1024),
        run: dropped_space,
    },
    Scenario {
        name: "keyspaces that were created and dropped leave nothing",
        limit: Limit::OpenFiles(128),
        run: created_and_dropped,
    },
    Scenario {
        name: "locks that were taken and released leave nothing",
        limit: Limit::OpenFiles(128),
        run: taken_and_released,
    },
];

/// Waits until the condition holds, which takes some rounds of the background worker.
fn wait_until(what: &str, is_done: impl Fn() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !is_done() {
        assert!(Instant::now() < limit, "after a minute not yet: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn table_bytes(store: &Store) -> u64 {
    store.engine_stats().unwrap().columns.iter().map(|column| column.sst_bytes).sum()
}

fn dropped_space(directory: &Path) {
    let path = directory.join("store");
    let store = small().open(&path).unwrap();
    let (mut rows, mut kept) = (Acknowledged::default(), Acknowledged::named("kept"));
    for _ in 0..200 {
        rows.write(&store, ascending, 100).unwrap();
    }
    kept.write(&store, ascending, 500).unwrap();
    store.close().unwrap();
    let store = small().open(&path).unwrap();
    assert!(table_bytes(&store) > 10_000_000, "{} bytes", table_bytes(&store));
    store.drop_keyspace("rows").unwrap();
    wait_until("the space of the keyspace is free", || table_bytes(&store) < 2_000_000);
    store.close().unwrap();
    kept.check(&path);
}

/// The cells of a store.
fn cells(store: &Store) -> u64 {
    store.verify(|_| ()).unwrap().cells()
}

fn created_and_dropped(directory: &Path) {
    let path = directory.join("store");
    let mut before = 0;
    for opening in 0..10 {
        let store = small().open(&path).unwrap();
        for number in 0..50 {
            let name = format!("keyspace {number}");
            let rows = store.keyspace(&name).unwrap();
            store.transact(|txn| txn.put(&rows, "key", "value")).unwrap();
            store.drop_keyspace(&name).unwrap();
        }
        if opening == 0 {
            wait_until("the keyspaces are purged", || cells(&store) < 20);
            before = cells(&store);
        }
        store.close().unwrap();
    }
    let store = small().open(&path).unwrap();
    wait_until("the keyspaces are purged", || cells(&store) <= before);
    let stats = store.engine_stats().unwrap();
    assert!(stats.wal_segments < 20 && stats.other_table_bytes < 3 << 20, "{stats:?}");
    let tables: u64 = stats.columns.iter().map(|column| column.sst_files).sum();
    assert!(tables < 60, "{stats:?}");
    store.close().unwrap();
}

fn taken_and_released(directory: &Path) {
    let path = directory.join("store");
    let mut before = 0;
    for opening in 0..10 {
        let store = small().open(&path).unwrap();
        for number in 0..50 {
            let lease = LockOptions::exclusive().lease(Duration::from_secs(60));
            drop(store.lock_with(format!("lock {number}").as_str(), lease).unwrap());
        }
        if opening == 0 {
            wait_until("the rows of the leases are gone", || cells(&store) < 20);
            before = cells(&store);
        }
        store.close().unwrap();
    }
    let store = small().open(&path).unwrap();
    wait_until("the rows of the leases are gone", || cells(&store) <= before);
    store.close().unwrap();
}
