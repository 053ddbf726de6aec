//! Transactions that lie in the store before they commit: large ones here, those that bypass the
//! memtable in `RocksDB`.

use percolite::Builder;

use crate::support::{Db, Rows, expect_conflict, small_memory};

/// Every transaction with more than a row is large.
fn tiny_limit() -> Builder {
    small_memory().large_transaction_bytes(1)
}

/// `SingleCFUpdate`: puts and deletes of many rows over existing ones.
#[test]
fn large_transaction_updates_and_deletes() {
    let db = Db::with(tiny_limit());
    for number in 0..100 {
        db.put(&format!("{number:03}"), "old");
    }
    let before = db.store.snapshot().unwrap();
    let mut txn = db.begin();
    for number in 0..200 {
        let key = format!("{number:03}");
        if number % 3 == 0 { txn.del(&db, &key) } else { txn.set(&db, &key, "new") }
    }
    assert_eq!(txn.read(&db, "001").as_deref(), Some("new"));
    assert_eq!(txn.read(&db, "003"), None);
    db.expect(&[("001", Some("old")), ("003", Some("old")), ("101", None)]);
    txn.commit().unwrap();
    for number in 0..200 {
        db.expect(&[(&format!("{number:03}"), (number % 3 != 0).then_some("new"))]);
    }
    assert_eq!(before.range(&db.rows, ..).filter(|row| row.as_ref().unwrap().value() == b"old").count(), 100);
}

/// `SingleCFUpdateWithOverWrite`, `MultiCFOverwrite`: rows are written again within the
/// transaction, in several keyspaces.
#[test]
fn large_transaction_overwrites_its_own_rows() {
    let db = Db::with(tiny_limit());
    let other = db.store.keyspace("other").unwrap();
    let mut txn = db.begin();
    for round in 0..3 {
        for number in 0..50 {
            txn.set(&db, &format!("{number:02}"), &format!("{round}"));
            txn.put(&other, format!("{number:02}"), format!("other {round}")).unwrap();
        }
    }
    for number in (0..50).step_by(2) {
        txn.del(&db, &format!("{number:02}"));
    }
    let shown: Vec<_> = txn.range(&db.rows, ..).map(|row| row.unwrap().key().to_vec()).collect();
    assert_eq!(shown.len(), 25);
    txn.commit().unwrap();
    for number in 0..50 {
        db.expect(&[(&format!("{number:02}"), (number % 2 == 1).then_some("2"))]);
    }
    assert!(db.store.range(&other, ..).unwrap().all(|row| row.unwrap().value() == b"other 2"));
}

/// `Recovery`: in a copy a committed large transaction is whole, an uncommitted one is gone.
#[test]
fn large_transactions_are_recovered_whole_or_not_at_all() {
    let db = Db::with(tiny_limit());
    db.put("0", "old");
    let mut committed = db.begin();
    let mut open = db.begin();
    for number in 0..100 {
        committed.set(&db, &format!("committed/{number}"), "x");
        open.set(&db, &format!("open/{number}"), "y");
    }
    open.set(&db, "0", "y");
    committed.commit().unwrap();
    let copy = db.copy();
    drop(open);
    assert_eq!(copy.store.prefix(&copy.rows, "committed/").unwrap().count(), 100);
    assert_eq!(copy.store.prefix(&copy.rows, "open/").unwrap().count(), 0);
    copy.put("0", "new");
    let copy = copy.reopen();
    copy.expect(&[("0", Some("new"))]);
    assert_eq!(copy.store.row_locks().unwrap().count(), 0);
}

/// `WriteConflictTest` of pessimistic transactions: the first to lock the row wins.
#[test]
fn row_of_a_large_transaction_refuses_other_writers() {
    let db = Db::with(tiny_limit());
    db.put("foo", "A");
    let mut large = db.begin();
    for number in 0..10 {
        large.set(&db, &format!("{number}"), "x");
    }
    large.set(&db, "foo", "A2");
    large.set(&db, "foo2", "B2");
    let mut small = db.begin();
    let result = small.put(&db.rows, "foo", "xxx").and_then(|()| small.commit());
    expect_conflict(result);
    db.expect(&[("foo", Some("A"))]);
    large.commit().unwrap();
    db.expect(&[("foo", Some("A2")), ("foo2", Some("B2"))]);
}

/// `SavepointTest` for writes that lie in the store already.
#[test]
fn large_transaction_rolls_back_to_a_savepoint() {
    let db = Db::with(tiny_limit());
    db.put("a", "0");
    let mut txn = db.begin();
    for number in 0..20 {
        txn.set(&db, &format!("kept/{number}"), "x");
    }
    let savepoint = txn.savepoint();
    txn.set(&db, "a", "1");
    for number in 0..20 {
        txn.set(&db, &format!("undone/{number}"), "x");
        txn.del(&db, &format!("kept/{number}"));
    }
    txn.rollback_to(savepoint).unwrap();
    assert_eq!(txn.read(&db, "a").as_deref(), Some("0"));
    assert_eq!(txn.prefix(&db.rows, "kept/").count(), 20);
    txn.commit().unwrap();
    assert_eq!(db.store.prefix(&db.rows, "kept/").unwrap().count(), 20);
    assert_eq!(db.store.prefix(&db.rows, "undone/").unwrap().count(), 0);
    db.expect(&[("a", Some("0"))]);
}
