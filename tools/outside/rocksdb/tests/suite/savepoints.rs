//! Savepoints, and reads for update that are undone.

use percolite::ErrorKind;

use crate::support::{Rows, expect_conflict, in_both_protocols};

/// `SavepointTest`.
#[test]
fn rollback_to_a_savepoint_undoes_what_came_after_it() {
    in_both_protocols(|db| {
        let mut txn = db.begin();
        let start = txn.savepoint();
        txn.rollback_to(start).unwrap();
        txn.set(&db, "B", "b");
        txn.commit().unwrap();
        db.expect(&[("B", Some("b"))]);

        let mut txn = db.begin();
        let start = txn.savepoint();
        txn.set(&db, "A", "a");
        txn.set(&db, "B", "bb");
        txn.set(&db, "C", "c");
        let second = txn.savepoint();
        txn.del(&db, "B");
        txn.set(&db, "C", "cc");
        txn.set(&db, "D", "d");
        txn.rollback_to(second).unwrap();
        let seen = ["A", "B", "C", "D"].map(|key| txn.read(&db, key));
        assert_eq!(seen.each_ref().map(Option::as_deref), [Some("a"), Some("bb"), Some("c"), None]);
        txn.set(&db, "E", "e");
        txn.rollback_to(start).unwrap();
        let seen = ["A", "B", "C", "D", "E"].map(|key| txn.read(&db, key));
        assert_eq!(seen.each_ref().map(Option::as_deref), [None, Some("b"), None, None, None]);

        txn.set(&db, "A", "aa");
        txn.set(&db, "F", "f");
        let third = txn.savepoint();
        let fourth = txn.savepoint();
        txn.set(&db, "G", "g");
        txn.del(&db, "F");
        txn.del(&db, "B");
        assert_eq!(txn.read(&db, "F"), None);
        txn.rollback_to(fourth).unwrap();
        assert_eq!(txn.read(&db, "F").as_deref(), Some("f"));
        txn.rollback_to(third).unwrap();
        txn.commit().unwrap();
        db.expect(&[("A", Some("aa")), ("B", Some("b")), ("C", None), ("F", Some("f")), ("G", None)]);
    });
}

/// `SavepointTest2`: what is undone does not conflict, what stays does.
#[test]
fn undone_writes_do_not_conflict() {
    in_both_protocols(|db| {
        let mut txn1 = db.begin();
        txn1.set(&db, "A", "");
        let first = txn1.savepoint();
        txn1.set(&db, "A", "a");
        txn1.set(&db, "C", "c");
        let second = txn1.savepoint();
        txn1.set(&db, "B", "b");
        txn1.rollback_to(second).unwrap();
        db.put("B", "b2");
        txn1.rollback_to(first).unwrap();
        db.put("C", "c3po");
        txn1.commit().unwrap();
        db.expect(&[("A", Some("")), ("B", Some("b2")), ("C", Some("c3po"))]);

        let mut txn1 = db.begin();
        txn1.set(&db, "A", "a");
        let savepoint = txn1.savepoint();
        txn1.set(&db, "A", "aa");
        txn1.rollback_to(savepoint).unwrap();
        db.put("A", "a2");
        expect_conflict(txn1.commit());
    });
}

/// `SavepointTest3`, `SavepointTest4`: here a savepoint is a value, so it is popped by not being
/// used. Those set after the one that was rolled back to are invalid.
#[test]
fn inner_savepoints_end_with_a_rollback_to_an_outer_one() {
    in_both_protocols(|db| {
        let mut txn = db.begin();
        let outer = txn.savepoint();
        txn.set(&db, "A", "a");
        let inner = txn.savepoint();
        txn.set(&db, "B", "b");
        txn.rollback_to(outer).unwrap();
        assert_eq!([txn.read(&db, "A"), txn.read(&db, "B")], [None, None]);
        let error = txn.rollback_to(inner).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument(_)), "{error}");
        txn.set(&db, "A", "a2");
        txn.rollback_to(outer).unwrap();
        txn.set(&db, "B", "b2");
        let foreign = db.begin().savepoint();
        let error = txn.rollback_to(foreign).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument(_)), "{error}");
        txn.commit().unwrap();
        db.expect(&[("A", None), ("B", Some("b2"))]);
    });
}

/// `UndoGetForUpdateTest`, `UndoGetForUpdateTest2`: a read for update is undone by a savepoint.
#[test]
fn undone_read_for_update_does_not_conflict() {
    in_both_protocols(|db| {
        db.put("A", "");
        let mut txn = db.begin();
        let savepoint = txn.savepoint();
        txn.lock(&db, "A");
        txn.rollback_to(savepoint).unwrap();
        txn.set(&db, "B", "b");
        db.put("A", "x");
        txn.commit().unwrap();
        db.expect(&[("A", Some("x")), ("B", Some("b"))]);
    });
}

/// `UndoGetForUpdateTest`: a read for update from before the savepoint, or a write, stays.
#[test]
fn read_for_update_from_before_the_savepoint_stays() {
    in_both_protocols(|db| {
        db.put("A", "");
        let mut txn = db.begin();
        txn.lock(&db, "A");
        let savepoint = txn.savepoint();
        txn.lock(&db, "A");
        txn.rollback_to(savepoint).unwrap();
        db.put("A", "x");
        expect_conflict(txn.commit());

        let mut txn = db.begin();
        txn.set(&db, "A", "a");
        let savepoint = txn.savepoint();
        txn.lock(&db, "A");
        txn.rollback_to(savepoint).unwrap();
        db.put("A", "y");
        expect_conflict(txn.commit());
        db.expect(&[("A", Some("y"))]);
    });
}

/// `UndoGetForUpdateTest2`: a row written after its read for update, and undone together.
#[test]
fn undone_write_of_a_row_read_for_update_leaves_the_read() {
    in_both_protocols(|db| {
        db.put("A", "0");
        let mut txn = db.begin();
        txn.lock(&db, "A");
        let savepoint = txn.savepoint();
        txn.set(&db, "A", "1");
        txn.rollback_to(savepoint).unwrap();
        assert_eq!(txn.read(&db, "A").as_deref(), Some("0"));
        db.put("A", "2");
        expect_conflict(txn.commit());
        db.expect(&[("A", Some("2"))]);
    });
}

/// `DeferSnapshotSavePointTest`: the snapshot of a transaction does not move with its savepoints.
#[test]
fn savepoints_do_not_move_the_snapshot() {
    in_both_protocols(|db| {
        db.put("T", "1");
        let mut txn = db.begin();
        let first = txn.savepoint();
        db.put("T", "2");
        txn.set(&db, "A", "a");
        let second = txn.savepoint();
        db.put("T", "3");
        assert_eq!(txn.read(&db, "T").as_deref(), Some("1"));
        txn.rollback_to(second).unwrap();
        assert_eq!(txn.read(&db, "T").as_deref(), Some("1"));
        txn.rollback_to(first).unwrap();
        txn.del(&db, "A");
        assert_eq!(txn.read(&db, "T").as_deref(), Some("1"));
        txn.commit().unwrap();
        db.expect(&[("A", None), ("T", Some("3"))]);
    });
}
