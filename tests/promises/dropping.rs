//! Which snapshots and transactions can still use a dropped keyspace.

use std::time::Duration;

use percolite::{Error, ErrorKind, Keyspace, Store};

fn with_a_row() -> (Store, Keyspace, Keyspace) {
    let store = Store::in_memory().unwrap();
    let (kept, dropped) = (store.keyspace("kept").unwrap(), store.keyspace("going").unwrap());
    store.transact(|txn| txn.put(&dropped, "k", "v")).unwrap();
    (store, kept, dropped)
}

#[track_caller]
fn assert_not_found(error: &Error) {
    assert_eq!(*error.kind(), ErrorKind::KeyspaceNotFound("going".into()));
    assert_eq!(error.to_string(), "keyspace \"going\" not found");
}

#[test]
fn only_snapshots_from_before_a_drop_read_the_keyspace() {
    let (store, _, going) = with_a_row();
    let (snapshot, txn) = (store.snapshot().unwrap(), store.begin().unwrap());
    store.drop_keyspace("going").unwrap();
    // Long enough for the background to delete the rows if it ignored the open readers.
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(snapshot.get(&going, "k").unwrap(), Some(b"v".into()));
    assert_eq!(txn.get(&going, "k").unwrap(), Some(b"v".into()));
    assert_eq!([snapshot.range(&going, ..).count(), txn.prefix(&going, "k").count()], [1, 1]);
    txn.commit().unwrap();

    let (snapshot, txn) = (store.snapshot().unwrap(), store.begin().unwrap());
    assert_not_found(&snapshot.get(&going, "k").unwrap_err());
    assert_not_found(&txn.get(&going, "k").unwrap_err());
    assert_not_found(&snapshot.range(&going, ..).next().unwrap().unwrap_err());
    assert_not_found(&txn.prefix(&going, "k").next().unwrap().unwrap_err());
}

#[test]
fn a_keyspace_of_the_same_name_is_another_one() {
    let (store, _, going) = with_a_row();
    let before = store.snapshot().unwrap();
    store.drop_keyspace("going").unwrap();
    let new = store.keyspace("going").unwrap();
    store.transact(|txn| txn.put(&new, "k", "new")).unwrap();
    assert_eq!(before.get(&going, "k").unwrap(), Some(b"v".into()));
    let after = store.snapshot().unwrap();
    assert_not_found(&after.get(&going, "k").unwrap_err());
    assert_eq!(after.get(&new, "k").unwrap(), Some(b"new".into()));
}

#[test]
fn writes_to_a_dropped_keyspace_are_refused() {
    let (store, kept, going) = with_a_row();
    let (mut early, mut late) = (store.begin().unwrap(), store.begin().unwrap());
    early.put(&going, "early", "").unwrap();
    early.put(&kept, "early", "").unwrap();
    store.drop_keyspace("going").unwrap();
    assert_not_found(&early.commit().unwrap_err());
    assert_not_found(&late.put(&going, "late", "").unwrap_err());
    assert_not_found(&late.get_for_update(&going, "k").unwrap_err());
    late.put(&kept, "late", "").unwrap();
    late.commit().unwrap();
    let keys: Vec<_> = store.snapshot().unwrap().range(&kept, ..).map(|row| row.unwrap().key().to_vec()).collect();
    assert_eq!(keys, [b"late"]);
}

#[test]
fn a_rolled_back_write_to_a_dropped_keyspace_is_ignored() {
    let (store, kept, going) = with_a_row();
    let mut txn = store.begin().unwrap();
    txn.put(&kept, "k", "v").unwrap();
    let savepoint = txn.savepoint();
    txn.put(&going, "k", "w").unwrap();
    txn.rollback_to(savepoint).unwrap();
    store.drop_keyspace("going").unwrap();
    txn.commit().unwrap();
    assert_eq!(store.snapshot().unwrap().get(&kept, "k").unwrap(), Some(b"v".into()));
}
