//! Scans of a transaction, own writes over the snapshot, and deletions of ranges.

use std::ops::Bound;

use percolite::{KeyRange, Txn};

use crate::support::{Db, Rows, expect_conflict, in_both_protocols};

fn keys(txn: &Txn, db: &Db, range: impl KeyRange) -> Vec<String> {
    let rows = txn.range(&db.rows, range).map(|row| String::from_utf8(row.unwrap().key().to_vec()).unwrap());
    rows.collect()
}

fn values(txn: &Txn, db: &Db, range: impl KeyRange) -> Vec<String> {
    let rows = txn.range(&db.rows, range).map(|row| String::from_utf8(row.unwrap().value().to_vec()).unwrap());
    rows.collect()
}

/// `IteratorTest`.
#[test]
fn scan_merges_own_writes_with_the_snapshot() {
    in_both_protocols(|db| {
        for key in ["A", "G", "F", "C", "D"] {
            db.put(key, &key.to_lowercase());
        }
        let mut txn = db.begin();
        txn.set(&db, "B", "b");
        txn.set(&db, "H", "h");
        txn.del(&db, "D");
        txn.set(&db, "E", "e");
        db.put("BB", "xx");
        db.put("C", "xx");

        assert_eq!(values(&txn, &db, ..), ["a", "b", "c", "e", "f", "g", "h"]);
        for key in keys(&txn, &db, ..) {
            txn.lock(&db, &key);
        }
        assert_eq!(values(&txn, &db, "G"..), ["g", "h"]);
        assert_eq!(values(&txn, &db, "D"..), ["e", "f", "g", "h"]);
        assert_eq!(values(&txn, &db, "C".."F"), ["c", "e"]);
        assert!(values(&txn, &db, "X"..).is_empty());
        let last = txn.range(&db.rows, ..).next_back().unwrap().unwrap();
        assert_eq!(last.value(), b"h");
        let before_g = txn.range(&db.rows, .."G").next_back().unwrap().unwrap();
        assert_eq!(before_g.value(), b"f");
        // C was written after the snapshot, and read for update.
        expect_conflict(txn.commit());
        db.expect(&[("B", None), ("C", Some("xx")), ("D", Some("d")), ("E", None)]);
    });
}

/// `TestUpperBoundUponDeletion`: the bound is a key that the transaction has deleted.
#[test]
fn own_deletion_at_the_bound_is_not_shown() {
    in_both_protocols(|db| {
        let mut txn = db.begin();
        txn.set(&db, "2", "2");
        txn.set(&db, "1", "1");
        txn.del(&db, "2");
        assert_eq!(keys(&txn, &db, .."2"), ["1"]);
        assert_eq!(keys(&txn, &db, ..="2"), ["1"]);
        assert_eq!(keys(&txn, &db, ..), ["1"]);
    });
}

/// `TestTxnRespectBoundsInReadOption`.
#[test]
fn bounds_hold_for_own_and_for_committed_rows_in_both_directions() {
    in_both_protocols(|db| {
        for key in ["a", "c", "e", "f"] {
            db.put(key, key);
        }
        let mut txn = db.begin();
        for key in ["b", "c", "f"] {
            txn.set(&db, key, "own");
        }
        assert_eq!(keys(&txn, &db, "c".."f"), ["c", "e"]);
        assert_eq!(keys(&txn, &db, "c"..="f"), ["c", "e", "f"]);
        assert_eq!(keys(&txn, &db, (Bound::Excluded("b"), Bound::Excluded("f"))), ["c", "e"]);
        assert!(keys(&txn, &db, "f".."f").is_empty());
        assert!(keys(&txn, &db, "f".."c").is_empty());
        let mut backwards: Vec<_> = txn.range(&db.rows, "c".."f").rev().map(|row| row.unwrap()).collect();
        backwards.reverse();
        let forwards: Vec<_> = txn.range(&db.rows, "c".."f").map(|row| row.unwrap()).collect();
        assert_eq!(forwards, backwards);
        let mut both_ends = txn.range(&db.rows, "a"..="f");
        let order: Vec<_> =
            std::iter::from_fn(|| Some([both_ends.next()?, both_ends.next_back()?])).flatten().collect();
        let order: Vec<_> = order.into_iter().map(|row| row.unwrap().key().to_vec()).collect();
        assert_eq!(order, [b"a", b"f", b"b", b"e"].map(|key| key.to_vec()));
    });
}

/// `ReseekOptimization`: many versions and many uncommitted writes of a row are passed over.
#[test]
fn scan_passes_over_many_versions_and_uncommitted_writes() {
    in_both_protocols(|db| {
        db.put("foo0", "initv");
        let mut uncommitted = db.begin();
        for number in 0..100 {
            uncommitted.set(&db, "foo1", &number.to_string());
            db.put("foo2", &number.to_string());
        }
        let txn = db.begin();
        assert_eq!(keys(&txn, &db, ..), ["foo0", "foo2"]);
        assert_eq!(txn.range(&db.rows, ..).rev().count(), 2);
        assert_eq!(values(&txn, &db, "foo1"..), ["99"]);
        uncommitted.rollback().unwrap();
    });
}

/// A scan does not show what is written after it began: `IteratorTest` of the snapshot's kind.
#[test]
fn open_scan_shows_neither_later_commits_nor_later_own_writes() {
    in_both_protocols(|db| {
        for number in 0..100 {
            db.put(&format!("{number:03}"), "old");
        }
        let mut txn = db.begin();
        let mut scan = txn.range(&db.rows, ..);
        assert_eq!(scan.next().unwrap().unwrap().value(), b"old");
        txn.set(&db, "050", "own");
        db.put("051", "new");
        db.delete("052");
        assert!(scan.all(|row| row.unwrap().value() == b"old"));
        assert_eq!(txn.read(&db, "050").as_deref(), Some("own"));
    });
}

/// `DeleteRangeSupportTest`: `RocksDB` refuses what cannot be checked for conflicts. Here a range
/// is deleted row by row, and each row is checked.
#[test]
fn deletion_of_a_range_is_checked_row_by_row() {
    in_both_protocols(|db| {
        for key in ["a", "b", "c"] {
            db.put(key, "val");
        }
        let mut txn = db.begin();
        assert_eq!(txn.delete_range(&db.rows, "a".."c").unwrap(), 2);
        db.put("b", "new");
        expect_conflict(txn.commit());
        db.expect(&[("a", Some("val")), ("b", Some("new")), ("c", Some("val"))]);
        assert_eq!(db.store.transact(|txn| txn.delete_range(&db.rows, "a".."c")).unwrap(), 2);
        db.expect(&[("a", None), ("b", None), ("c", Some("val"))]);
    });
}
