//! Leases in copies of a store: checkpoints, dumps and repaired stores.

use std::path::Path;
use std::sync::Arc;

use percolite::{LockLostReason, OnExisting, Store};

use super::{assert_about, assert_lost, has_row, lease, left};
use crate::support::clocks::{Clocks, HOUR};

fn open_at(path: &Path, clocks: &Arc<Clocks>) -> Store {
    clocks.builder().open(path).unwrap()
}

fn row_is_in(path: &Path, name: &str) -> bool {
    has_row(&*Store::builder().read_only(true).durable_engine(path).unwrap(), name)
}

#[test]
fn a_lease_is_lost_and_its_name_free_in_a_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let (path, copy) = (directory.path().join("store"), directory.path().join("copy"));
    let clocks = Clocks::new();
    let store = open_at(&path, &clocks);
    let token = store.get_lock("job", HOUR).unwrap().unwrap();
    let guard = store.lock_with("with guard", lease(HOUR)).unwrap();
    store.checkpoint(&copy).unwrap();
    assert!(row_is_in(&copy, "job"), "the copy has the rows until it is opened for writing");

    // A read-only open finds no lock, even before the copy is opened for writing for the first
    // time.
    let looking = clocks.builder().read_only(true).open(&copy).unwrap();
    assert_eq!(looking.lock_table().unwrap().held, 0);
    assert!(looking.lock_holders("job").unwrap().is_empty());
    drop(looking);

    let of_copy = open_at(&copy, &clocks);
    for (name, token) in [("job", token), ("with guard", guard.token())] {
        assert_lost(of_copy.attach_lock(name, token), LockLostReason::UnknownToken);
        assert!(of_copy.is_free_lock(name).unwrap());
    }
    let own = of_copy.get_lock("job", HOUR).unwrap().unwrap();
    // The original keeps its leases.
    assert_about(left(&store, "job"), HOUR);
    assert!(guard.is_held());
    of_copy.close().unwrap();
    store.close().unwrap();
    let store = open_at(&path, &clocks);
    assert_eq!(store.attach_lock("job", token).unwrap().token(), token);

    // The first open for writing has removed the original's leases from the copy. The second open
    // keeps the lease that the copy has granted.
    assert!(!row_is_in(&copy, "with guard"));
    let of_copy = open_at(&copy, &clocks);
    assert_eq!(of_copy.lock_holders("job").unwrap()[0].token, Some(own));
    assert!(of_copy.is_free_lock("with guard").unwrap());
    assert_eq!(of_copy.attach_lock("job", own).unwrap().token(), own);
}

#[test]
fn dumps_and_repaired_stores_have_no_leases() {
    let directory = tempfile::tempdir().unwrap();
    let (path, repaired) = (directory.path().join("store"), directory.path().join("repaired"));
    let clocks = Clocks::new();
    let store = open_at(&path, &clocks);
    let rows = store.keyspace("rows").unwrap();
    store.transact(|txn| txn.put(&rows, "key", "value")).unwrap();
    let token = store.get_lock("job", HOUR).unwrap().unwrap();
    let mut dump = Vec::new();
    store.snapshot().unwrap().dump(&mut dump, |_| ()).unwrap();
    store.close().unwrap();

    let restored = clocks.builder().in_memory().unwrap();
    restored.restore(dump.as_slice(), OnExisting::Fail, |_| ()).unwrap();
    let made = clocks.builder().repair(&path, &repaired, |_| ()).unwrap();
    assert!(made.is_complete(), "{made:?}");
    assert!(!row_is_in(&repaired, "job"));
    for store in [restored, open_at(&repaired, &clocks)] {
        let rows = store.existing_keyspace("rows").unwrap();
        assert!(store.snapshot().unwrap().get(&rows, "key").unwrap().is_some());
        assert!(store.is_free_lock("job").unwrap());
        assert_lost(store.attach_lock("job", token), LockLostReason::UnknownToken);
    }
    assert_about(left(&open_at(&path, &clocks), "job"), HOUR);
}
