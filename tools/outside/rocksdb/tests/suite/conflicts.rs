//! Which transactions exclude each other, and what a refused one leaves.

use std::thread;
use std::time::{Duration, Instant};

use percolite::ErrorKind;

use crate::support::{Db, Rows, expect_conflict, in_both_protocols, small_memory};

/// `SuccessTest`, `SuccessTestPinnable`.
#[test]
fn row_read_for_update_and_written_is_committed() {
    in_both_protocols(|db| {
        db.put("foo", "bar");
        db.put("foo2", "bar");
        let mut txn = db.begin();
        assert_eq!(txn.lock(&db, "foo").as_deref(), Some("bar"));
        txn.set(&db, "foo", "bar2");
        assert_eq!(txn.lock(&db, "foo").as_deref(), Some("bar2"));
        txn.commit().unwrap();
        db.expect(&[("foo", Some("bar2")), ("foo2", Some("bar"))]);
    });
}

/// `WriteConflictTest`, of both kinds: the first to commit wins, and the other writes nothing.
#[test]
fn write_after_own_write_conflicts_and_nothing_is_written() {
    in_both_protocols(|db| {
        db.put("foo", "bar");
        db.put("foo2", "bar");
        let mut txn = db.begin();
        txn.set(&db, "foo", "bar2");
        txn.set(&db, "foo2", "bar2");
        db.put("foo", "barz");
        db.expect(&[("foo", Some("barz"))]);
        expect_conflict(txn.commit());
        db.expect(&[("foo", Some("barz")), ("foo2", Some("bar"))]);
    });
}

/// `WriteConflictTest2`: the write lies between the snapshot and the own write. The transaction is
/// refused as a whole; pessimistic transactions go on without that row.
#[test]
fn write_between_snapshot_and_own_write_conflicts() {
    in_both_protocols(|db| {
        db.put("foo", "bar");
        let mut txn = db.begin();
        db.put("foo", "barz");
        txn.set(&db, "foo2", "X");
        txn.set(&db, "foo", "bar2");
        txn.set(&db, "foo3", "Y");
        db.expect(&[("foo", Some("barz"))]);
        expect_conflict(txn.commit());
        db.expect(&[("foo", Some("barz")), ("foo2", None), ("foo3", None)]);
    });
}

/// `WriteConflictTest3`: two appends that read the same value.
#[test]
fn two_appends_to_one_value_exclude_each_other() {
    in_both_protocols(|db| {
        db.put("foo", "bar");
        let mut txn = db.begin();
        let old = txn.lock(&db, "foo").unwrap();
        txn.set(&db, "foo", &(old + "bar3"));
        let mut outside = db.begin();
        let old = outside.read(&db, "foo").unwrap();
        outside.set(&db, "foo", &(old + "bar2"));
        outside.commit().unwrap();
        expect_conflict(txn.commit());
        db.expect(&[("foo", Some("barbar2"))]);
    });
}

/// `WriteConflict4`: the other write is a deletion of a range.
#[test]
fn deletion_of_a_range_conflicts_with_a_write_in_it() {
    in_both_protocols(|db| {
        db.put("foo", "bar");
        let mut txn = db.begin();
        assert_eq!(txn.lock(&db, "foo").as_deref(), Some("bar"));
        txn.set(&db, "foo", "bar3");
        assert_eq!(db.store.transact(|txn| txn.delete_range(&db.rows, "foo".."foo1")).unwrap(), 1);
        db.expect(&[("foo", None)]);
        expect_conflict(txn.commit());
        db.expect(&[("foo", None)]);
    });
}

/// `ReadConflictTest`: the transaction has only read the row, for update.
#[test]
fn row_read_for_update_and_written_by_another_conflicts() {
    in_both_protocols(|db| {
        db.put("foo", "bar");
        db.put("foo2", "bar");
        let mut txn = db.begin();
        assert_eq!(txn.lock(&db, "foo").as_deref(), Some("bar"));
        db.put("foo", "barz");
        assert_eq!(txn.read(&db, "foo").as_deref(), Some("bar"));
        expect_conflict(txn.commit());
        let mut next = db.begin();
        assert_eq!(next.lock(&db, "foo").as_deref(), Some("barz"));
        assert_eq!(next.lock(&db, "foo2").as_deref(), Some("bar"));
        next.commit().unwrap();
    });
}

/// A plain read of a written row is no conflict: `ReadConflictTest` without the read for update.
#[test]
fn row_only_read_and_written_by_another_does_not_conflict() {
    in_both_protocols(|db| {
        db.put("foo", "bar");
        let mut txn = db.begin();
        assert_eq!(txn.read(&db, "foo").as_deref(), Some("bar"));
        txn.set(&db, "foo2", "x");
        db.put("foo", "barz");
        txn.commit().unwrap();
        db.expect(&[("foo", Some("barz")), ("foo2", Some("x"))]);
    });
}

/// `TxnOnlyTest`.
#[test]
fn first_transaction_of_an_empty_store_commits() {
    in_both_protocols(|db| {
        let mut txn = db.begin();
        txn.set(&db, "x", "y");
        txn.commit().unwrap();
        db.expect(&[("x", Some("y"))]);
    });
}

/// `FirstWriteTest`: the very first write is before the snapshot.
#[test]
fn first_write_before_the_snapshot_does_not_conflict() {
    in_both_protocols(|db| {
        db.put("A", "a");
        let mut txn = db.begin();
        txn.set(&db, "A", "b");
        txn.commit().unwrap();
        db.expect(&[("A", Some("b"))]);
    });
}

/// `FirstWriteTest2`: the very first write is after the snapshot.
#[test]
fn first_write_after_the_snapshot_conflicts() {
    in_both_protocols(|db| {
        let mut txn = db.begin();
        db.put("A", "a");
        txn.set(&db, "A", "b");
        expect_conflict(txn.commit());
        db.expect(&[("A", Some("a"))]);
    });
}

/// `FlushTest`.
#[test]
fn transaction_commits_after_a_flush() {
    in_both_protocols(|db| {
        db.put("foo", "bar");
        let mut txn = db.begin();
        assert_eq!(txn.lock(&db, "foo").as_deref(), Some("bar"));
        txn.set(&db, "foo", "bar2");
        assert_eq!(txn.lock(&db, "foo").as_deref(), Some("bar2"));
        db.flush();
        txn.commit().unwrap();
        db.expect(&[("foo", Some("bar2"))]);
    });
}

/// `FlushTest2`: more flushes than memtables are kept. `RocksDB` must give up; here the tables
/// answer.
#[test]
fn transaction_is_judged_rightly_after_several_flushes() {
    in_both_protocols(|db| {
        db.put("foo", "bar");
        db.put("foo2", "bar");
        let (mut good, mut bad) = (db.begin(), db.begin());
        good.set(&db, "foo", "bar2");
        bad.set(&db, "foo2", "bar2");
        db.put("foo2", "barz");
        for _ in 0..3 {
            db.flush();
        }
        good.commit().unwrap();
        expect_conflict(bad.commit());
        db.expect(&[("foo", Some("bar2")), ("foo2", Some("barz"))]);
    });
}

/// `CheckKeySkipOldMemtable`: one of two transactions conflicts with a write that was flushed, and
/// a third began after it.
#[test]
fn only_the_transaction_of_the_flushed_write_conflicts() {
    in_both_protocols(|db| {
        db.put("foo", "bar");
        db.put("foo2", "bar");
        let (mut txn, mut txn2) = (db.begin(), db.begin());
        txn.lock(&db, "foo");
        txn.set(&db, "foo", "bar2");
        txn2.lock(&db, "foo2");
        txn2.set(&db, "foo2", "bar2");
        db.put("foo", "bar");
        db.flush();
        db.put("foo3", "bar");
        expect_conflict(txn.commit());
        txn2.commit().unwrap();
        let mut txn3 = db.begin();
        txn3.set(&db, "foo2", "bar3");
        txn3.commit().unwrap();
        db.expect(&[("foo", Some("bar")), ("foo2", Some("bar3"))]);
    });
}

/// `ValidateSnapshotTest`: the other transaction wrote before the snapshot and committed after it,
/// with flushes in between.
#[test]
fn commit_after_the_snapshot_counts_wherever_its_write_was() {
    in_both_protocols(|db| {
        let mut txn1 = db.begin();
        txn1.set(&db, "foo", "bar1");
        db.flush();
        let mut txn2 = db.begin();
        txn1.commit().unwrap();
        assert_eq!(txn2.lock(&db, "foo"), None);
        expect_conflict(txn2.commit());
    });
}

/// `AssumeExclusiveTracked`: a transaction that has met a newer commit keeps its snapshot, and its
/// refusal leaves no lock.
#[test]
fn refused_transaction_leaves_no_lock() {
    in_both_protocols(|db| {
        let mut txn = db.begin();
        db.put("foo", "bar");
        assert_eq!(txn.lock(&db, "foo"), None);
        txn.set(&db, "foo", "bar1");
        txn.del(&db, "other");
        expect_conflict(txn.commit());
        assert_eq!(db.store.row_locks().unwrap().count(), 0);
        db.put("foo", "bar2");
        db.put("other", "x");
        db.expect(&[("foo", Some("bar2")), ("other", Some("x"))]);
    });
}

/// `EmptyTest`.
#[test]
fn transactions_without_writes_commit_and_roll_back() {
    in_both_protocols(|db| {
        db.put("aaa", "aaa");
        db.begin().commit().unwrap();
        db.begin().rollback().unwrap();
        let mut txn = db.begin();
        assert_eq!(txn.lock(&db, "aaa").as_deref(), Some("aaa"));
        txn.commit().unwrap();
        let mut txn = db.begin();
        assert_eq!(txn.lock(&db, "aaa").as_deref(), Some("aaa"));
        db.put("aaa", "xxx");
        expect_conflict(txn.commit());
        db.expect(&[("aaa", Some("xxx"))]);
    });
}

/// `PredicateManyPreceders`, its first part: rows that were read for update and absent.
#[test]
fn absent_rows_read_for_update_conflict_with_their_creation() {
    in_both_protocols(|db| {
        let (mut txn1, mut txn2) = (db.begin(), db.begin());
        assert!(["1", "2", "3"].iter().all(|key| txn1.lock(&db, key).is_none()));
        txn2.set(&db, "2", "x");
        txn2.commit().unwrap();
        assert!(["1", "2", "3"].iter().all(|key| txn1.lock(&db, key).is_none()), "the snapshot has moved");
        expect_conflict(txn1.commit());
    });
}

/// `PredicateManyPreceders`, its second part: a deletion that is not committed yet hides nothing.
#[test]
fn deletion_of_a_row_created_meanwhile_conflicts() {
    in_both_protocols(|db| {
        let (mut txn1, mut txn2) = (db.begin(), db.begin());
        txn1.set(&db, "4", "x");
        txn2.del(&db, "4");
        txn1.commit().unwrap();
        assert_eq!(txn2.lock(&db, "4"), None);
        expect_conflict(txn2.commit());
        db.expect(&[("4", Some("x"))]);
    });
}

/// `LostUpdate`, both have written before the first commits.
#[test]
fn lost_update_of_two_open_transactions_is_refused() {
    in_both_protocols(|db| {
        let (mut txn1, mut txn2) = (db.begin(), db.begin());
        txn1.set(&db, "1", "1");
        txn2.set(&db, "1", "2");
        txn1.commit().unwrap();
        expect_conflict(txn2.commit());
        db.expect(&[("1", Some("1"))]);
    });
}

/// `LostUpdate`, the second writes after the first has committed.
#[test]
fn lost_update_of_a_later_write_is_refused() {
    in_both_protocols(|db| {
        db.put("1", "0");
        let (mut txn1, mut txn2) = (db.begin(), db.begin());
        assert_eq!(txn2.read(&db, "1").as_deref(), Some("0"));
        txn1.set(&db, "1", "5");
        txn1.commit().unwrap();
        txn2.set(&db, "1", "6");
        expect_conflict(txn2.commit());
        db.expect(&[("1", Some("5"))]);
    });
}

/// `LostUpdate`, the second takes its snapshot after the first has committed; also
/// `NoSnapshotTest`, whose read comes after the change.
#[test]
fn update_of_what_the_snapshot_shows_is_none_lost() {
    in_both_protocols(|db| {
        let mut txn1 = db.begin();
        txn1.set(&db, "1", "5");
        txn1.commit().unwrap();
        let mut txn2 = db.begin();
        assert_eq!(txn2.lock(&db, "1").as_deref(), Some("5"));
        txn2.set(&db, "1", "6");
        txn2.commit().unwrap();
        db.expect(&[("1", Some("6"))]);
    });
}

/// `UntrackedWrites`: what no conflict concerns is written with its transaction or not at all.
#[test]
fn writes_without_a_conflict_share_the_fate_of_their_transaction() {
    in_both_protocols(|db| {
        let mut txn = db.begin();
        txn.set(&db, "untracked", "0");
        txn.rollback().unwrap();
        db.expect(&[("untracked", None)]);
        let mut txn = db.begin();
        txn.set(&db, "tracked", "1");
        txn.set(&db, "untracked", "1");
        db.put("unrelated", "x");
        txn.commit().unwrap();
        db.expect(&[("tracked", Some("1")), ("untracked", Some("1"))]);
        let mut txn = db.begin();
        txn.set(&db, "tracked", "10");
        txn.set(&db, "untracked", "A");
        db.delete("tracked");
        expect_conflict(txn.commit());
        db.expect(&[("tracked", None), ("untracked", Some("1"))]);
    });
}

/// `Rollback`, `ReinitializeTest`: a transaction that ended without a commit stands in no way.
#[test]
fn rolled_back_transaction_blocks_no_other() {
    in_both_protocols(|db| {
        let (mut txn1, mut txn2) = (db.begin(), db.begin());
        txn1.set(&db, "X", "1");
        txn2.set(&db, "X", "3");
        txn1.rollback().unwrap();
        txn2.commit().unwrap();
        db.expect(&[("X", Some("3"))]);
        let mut dropped = db.begin();
        dropped.set(&db, "X", "4");
        dropped.set(&db, "Y", "4");
        let mut txn = db.begin();
        drop(dropped);
        txn.set(&db, "X", "5");
        txn.commit().unwrap();
        db.expect(&[("X", Some("5")), ("Y", None)]);
    });
}

/// `ExpiredTransaction`, `ExpiredTransactionDataRace1`: here the snapshot expires when it is no
/// longer the newest state, and with it the transaction.
#[test]
fn expired_transaction_does_not_commit() {
    let db = Db::with(small_memory().max_snapshot_age(Duration::from_millis(1)));
    let mut txn = db.begin();
    txn.set(&db, "X", "1");
    txn.set(&db, "Y", "1");
    db.put("Z", "2");
    let until = Instant::now() + Duration::from_secs(60);
    while !db.store.active_transactions().iter().any(|txn| txn.is_expired) {
        assert!(Instant::now() < until, "a transaction of 1 ms did not expire in 60 s");
        thread::sleep(Duration::from_millis(5));
    }
    let error = txn.commit().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::SnapshotTooOld(_)), "{error}");
    db.expect(&[("X", None), ("Y", None), ("Z", Some("2"))]);
    db.put("X", "3");
    db.expect(&[("X", Some("3"))]);
}

/// `MemoryLimitTest`: the write that exceeds the limit is refused, and the transaction goes on.
#[test]
fn write_over_the_limit_of_a_transaction_is_refused_alone() {
    let db = Db::with(small_memory().max_transaction_bytes(64 << 10).large_transaction_bytes(64 << 10));
    let mut txn = db.begin();
    txn.set(&db, "a", "....");
    let error = txn.put(&db.rows, "b", vec![0; 128 << 10]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TooLarge { .. }), "{error}");
    txn.set(&db, "c", "....");
    txn.commit().unwrap();
    db.expect(&[("a", Some("....")), ("b", None), ("c", Some("...."))]);
}

/// `DuplicateKeys`, `Optimizations`: the last write of a row counts, in every order of puts and
/// deletes, after a rollback of the same rows, and after a restart.
#[test]
fn last_write_of_a_row_counts() {
    in_both_protocols(|db| {
        let mut txn = db.begin();
        for (key, value) in [("key", "1"), ("key2", "2"), ("key", "3"), ("key2", "4"), ("key", "5")] {
            txn.set(&db, key, value);
        }
        txn.del(&db, "key2");
        txn.set(&db, "key3", "6");
        txn.del(&db, "key3");
        txn.set(&db, "key3", "7");
        txn.commit().unwrap();
        let expected = [("key", Some("5")), ("key2", None), ("key3", Some("7"))];
        db.expect(&expected);
        let mut txn = db.begin();
        txn.set(&db, "key", "8");
        txn.del(&db, "key");
        txn.set(&db, "key2", "9");
        txn.rollback().unwrap();
        db.expect(&expected);
        db.reopen().expect(&expected);
    });
}

/// `SingleDeleteTest`: deletions of absent and of own rows.
#[test]
fn deletions_of_absent_and_own_rows() {
    in_both_protocols(|db| {
        let mut txn = db.begin();
        txn.del(&db, "A");
        assert_eq!(txn.read(&db, "A"), None);
        txn.commit().unwrap();
        let mut txn = db.begin();
        txn.del(&db, "A");
        txn.set(&db, "A", "a");
        assert_eq!(txn.read(&db, "A").as_deref(), Some("a"));
        txn.commit().unwrap();
        db.expect(&[("A", Some("a"))]);
        let (mut txn, mut txn2) = (db.begin(), db.begin());
        txn.set(&db, "A", "a2");
        txn.del(&db, "A");
        txn.del(&db, "B");
        assert_eq!(txn.read(&db, "A"), None);
        txn2.set(&db, "B", "b");
        txn.commit().unwrap();
        expect_conflict(txn2.commit());
        db.expect(&[("A", None), ("B", None)]);
    });
}

/// `MergeTest`: an append reads own appends of the same transaction.
#[test]
fn appends_of_one_transaction_add_up() {
    in_both_protocols(|db| {
        db.put("A", "a0");
        let mut txn = db.begin();
        for part in ["1", "2", "3"] {
            let old = txn.lock(&db, "A").unwrap();
            txn.set(&db, "A", &format!("{old},{part}"));
        }
        assert_eq!(txn.read(&db, "A").as_deref(), Some("a0,1,2,3"));
        let mut other = db.begin();
        let old = other.lock(&db, "A").unwrap();
        other.set(&db, "A", &(old + ",4"));
        txn.commit().unwrap();
        expect_conflict(other.commit());
        db.expect(&[("A", Some("a0,1,2,3"))]);
    });
}
