//! Transactions over several keyspaces: column families, in `RocksDB`'s words.

use percolite::ErrorKind;

use crate::support::{Rows, expect_conflict, in_both_protocols};

/// `ColumnFamiliesTest`: the same key in several keyspaces is several rows, written and refused
/// together.
#[test]
fn transaction_over_keyspaces_is_atomic() {
    in_both_protocols(|db| {
        let (a, b) = (db.store.keyspace("CFA").unwrap(), db.store.keyspace("CFB").unwrap());
        let mut txn = db.begin();
        txn.put(&a, "foo", "a").unwrap();
        txn.put(&b, "foo", "b").unwrap();
        txn.set(&db, "foo", "0");
        assert_eq!(txn.get(&a, "foo").unwrap().as_deref(), Some(&b"a"[..]));
        txn.commit().unwrap();
        let mut txn = db.begin();
        txn.delete(&a, "foo").unwrap();
        txn.put(&b, "foo", "b2").unwrap();
        db.put("foo", "1");
        txn.commit().unwrap();
        assert_eq!(db.store.get(&a, "foo").unwrap(), None);
        let mut txn = db.begin();
        txn.put(&a, "foo", "a3").unwrap();
        txn.get_for_update(&b, "foo").unwrap();
        db.store.transact(|txn| txn.put(&b, "foo", "b3")).unwrap();
        expect_conflict(txn.commit());
        let db = db.reopen();
        let (a, b) = (db.store.keyspace("CFA").unwrap(), db.store.keyspace("CFB").unwrap());
        assert_eq!(db.store.get(&a, "foo").unwrap(), None);
        assert_eq!(db.store.get(&b, "foo").unwrap().as_deref(), Some(&b"b3"[..]));
        db.expect(&[("foo", Some("1"))]);
    });
}

/// `ColumnFamiliesTest`: reads of several keyspaces come from one snapshot.
#[test]
fn reads_of_several_keyspaces_come_from_one_snapshot() {
    in_both_protocols(|db| {
        let a = db.store.keyspace("CFA").unwrap();
        let write = |value: &str| {
            db.store.transact(|txn| txn.put(&a, "k", value).and_then(|()| txn.put(&db.rows, "k", value))).unwrap();
        };
        write("1");
        let txn = db.begin();
        let first = txn.get(&a, "k").unwrap().unwrap();
        write("2");
        assert_eq!(txn.read(&db, "k").unwrap().as_bytes(), &*first);
    });
}

/// `ColumnFamiliesTest2`: a dropped keyspace refuses writes, and a transaction that wrote to it
/// writes nothing at all. `RocksDB` lets the commit pass.
#[test]
fn transaction_with_a_dropped_keyspace_writes_nothing() {
    in_both_protocols(|db| {
        let (one, two) = (db.store.keyspace("ONE").unwrap(), db.store.keyspace("TWO").unwrap());
        let mut txn = db.begin();
        txn.put(&one, "X", "1").unwrap();
        txn.put(&two, "X", "2").unwrap();
        txn.set(&db, "X", "0");
        txn.commit().unwrap();
        let mut open = db.begin();
        open.put(&one, "X", "11").unwrap();
        open.put(&two, "X", "22").unwrap();
        db.store.drop_keyspace("ONE").unwrap();
        let error = open.commit().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::KeyspaceNotFound(_)), "{error}");
        let mut txn = db.begin();
        let error = txn.put(&one, "X", "111").unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::KeyspaceNotFound(_)), "{error}");
        txn.put(&two, "X", "222").unwrap();
        txn.set(&db, "X", "000");
        txn.commit().unwrap();
        assert_eq!(db.store.get(&two, "X").unwrap().as_deref(), Some(&b"222"[..]));
        db.expect(&[("X", Some("000"))]);
    });
}

/// `WriteWithBulkCreatedColumnFamilies`.
#[test]
fn one_transaction_writes_to_very_many_new_keyspaces() {
    in_both_protocols(|db| {
        let spaces: Vec<_> = (0..50).map(|n| db.store.keyspace(&format!("cf{n}")).unwrap()).collect();
        db.store.transact(|txn| spaces.iter().try_for_each(|space| txn.put(space, "k", space.name()))).unwrap();
        let db = db.copy();
        for number in 0..50 {
            let space = db.store.existing_keyspace(&format!("cf{number}")).unwrap();
            assert_eq!(db.store.get(&space, "k").unwrap().as_deref(), Some(space.name().as_bytes()));
        }
    });
}

/// `WriteImportedColumnFamilyTest`: a keyspace that came from elsewhere is written like any other.
#[test]
fn restored_keyspace_is_written_by_transactions() {
    in_both_protocols(|db| {
        db.put("foo", "bar");
        let mut dump = Vec::new();
        db.store.snapshot().unwrap().dump(&mut dump, |_| ()).unwrap();
        db.delete("foo");
        db.store.restore(&dump[..], percolite::OnExisting::Replace, |_| ()).unwrap();
        let rows = db.store.existing_keyspace("rows").unwrap();
        let mut txn = db.begin();
        assert_eq!(txn.get_for_update(&rows, "foo").unwrap().as_deref(), Some(&b"bar"[..]));
        txn.put(&rows, "foo", "bar2").unwrap();
        txn.commit().unwrap();
        assert_eq!(db.store.get(&rows, "foo").unwrap().as_deref(), Some(&b"bar2"[..]));
    });
}
