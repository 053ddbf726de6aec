//! Commits and what is left of transactions after a restart, in a checkpoint, and over many
//! segments of the log.
//!
//! `RocksDB`'s prepared transactions wait for their client after a crash. percolite has no such
//! state for a client: a transaction whose commit was not requested is gone.

use std::thread;

use crate::support::{Db, Rows, expect_conflict, in_both_protocols, small_memory};

/// `SimpleTwoPhaseTransactionTest`: nothing is seen before the commit, all of it afterwards, and
/// again in a copy.
#[test]
fn commit_is_the_point_of_visibility() {
    in_both_protocols(|db| {
        let mut txn = db.begin();
        txn.set(&db, "foo", "bar");
        txn.set(&db, "gtid", "dogs");
        db.put("foo2", "bar2");
        db.expect(&[("foo", None), ("gtid", None), ("foo2", Some("bar2"))]);
        txn.commit().unwrap();
        let expected = [("foo", Some("bar")), ("gtid", Some("dogs")), ("foo2", Some("bar2"))];
        db.expect(&expected);
        db.flush();
        db.expect(&expected);
        let db = db.copy();
        db.expect(&expected);
        assert_eq!(db.store.row_locks().unwrap().count(), 0);
    });
}

/// `DoubleEmptyWrite`, `TwoPhaseEmptyWriteTest`, `CommitWithoutPrepare`.
#[test]
fn empty_commits_are_recovered() {
    in_both_protocols(|db| {
        db.begin().commit().unwrap();
        db.begin().commit().unwrap();
        db.put("foo", "bar");
        db.begin().commit().unwrap();
        let db = db.copy();
        db.begin().commit().unwrap();
        db.expect(&[("foo", Some("bar"))]);
        db.reopen().expect(&[("foo", Some("bar"))]);
    });
}

/// `TwoPhaseRollbackTest`: after a rollback nothing is there, now and in a copy.
#[test]
fn rollback_leaves_nothing_behind() {
    in_both_protocols(|db| {
        let mut txn = db.begin();
        txn.set(&db, "tfoo", "tbar");
        assert_eq!(txn.read(&db, "tfoo").as_deref(), Some("tbar"));
        txn.rollback().unwrap();
        let mut txn = db.begin();
        assert_eq!(txn.read(&db, "tfoo"), None);
        txn.set(&db, "tfoo2", "tbar2");
        db.put("foo", "bar");
        db.flush();
        txn.rollback().unwrap();
        let expected = [("tfoo", None), ("tfoo2", None), ("foo", Some("bar"))];
        db.expect(&expected);
        db.copy().expect(&expected);
    });
}

/// `PersistentTwoPhaseTransactionTest`, `TwoPhaseLongPrepareTest`: a transaction stays open during
/// very many others; a copy from before its commit does not have it.
#[test]
fn long_transaction_is_there_after_its_commit_only() {
    in_both_protocols(|db| {
        let mut lost = db.begin();
        lost.set(&db, "lost", "x");
        let mut kept = db.begin();
        kept.set(&db, "kept", "y");
        for number in 0..200 {
            db.put(&format!("other/{}", number % 20), &number.to_string());
            if number % 50 == 0 {
                db.flush();
            }
        }
        kept.commit().unwrap();
        let db = db.copy();
        db.expect(&[("lost", None), ("kept", Some("y")), ("other/19", Some("199"))]);
        drop(lost);
    });
}

/// `TwoPhaseSequenceTest`, `SequenceNumberAfterRecoverTest`: after a restart new commits are newer
/// than all old ones.
#[test]
fn commits_after_a_restart_are_newer() {
    in_both_protocols(|db| {
        let mut txn = db.begin();
        for key in ["foo", "foo2", "foo3", "foo4"] {
            txn.set(&db, key, "val");
        }
        let first = txn.commit().unwrap();
        let db = db.reopen();
        let mut txn = db.begin();
        assert!(txn.read_ts() >= first.commit_ts);
        txn.set(&db, "foo", "val2");
        let second = txn.commit().unwrap();
        let db = db.copy();
        let third = db.put("foo", "val3");
        assert!(first.commit_ts < second.commit_ts && second.commit_ts < third.commit_ts);
        db.expect(&[("foo", Some("val3")), ("foo4", Some("val"))]);
    });
}

/// `SequenceNumberAfterRecoverLargeTest`: a transaction of 64 MiB, a restart, and another one.
#[test]
fn transaction_of_64_mib_is_recovered() {
    let db = Db::with(small_memory().large_transaction_bytes(256 << 20).max_transaction_bytes(256 << 20));
    let value = "X".repeat(1 << 20);
    let mut txn = db.begin();
    for number in 1..=64 {
        txn.set(&db, &format!("{number:02}"), &value);
    }
    txn.commit().unwrap();
    let db = db.reopen();
    db.put("bar", "val");
    let lengths: Vec<_> =
        db.store.range(&db.rows, "01"..="64").unwrap().map(|row| row.unwrap().value().len()).collect();
    assert_eq!(lengths, [1 << 20; 64]);
    db.expect(&[("bar", Some("val"))]);
}

/// `TwoPhaseDoubleRecoveryTest`, `DoubleCrashInRecovery`: two copies in a row, with and without
/// commits in between.
#[test]
fn two_copies_in_a_row_lose_nothing() {
    in_both_protocols(|db| {
        db.put("foo", "bar");
        let db = db.copy().copy();
        db.expect(&[("foo", Some("bar"))]);
        db.put("foo2", "bar2");
        let db = db.copy();
        db.put("foo3", "bar3");
        let db = db.copy().copy().reopen();
        db.expect(&[("foo", Some("bar")), ("foo2", Some("bar2")), ("foo3", Some("bar3"))]);
    });
}

/// `TwoPhaseLogRollingTest`, `TwoPhaseLogRollingTest2`, `TwoPhaseLogMultiMemtableFlush`: segments
/// end between the writes of a transaction, in several keyspaces.
#[test]
fn transaction_over_several_log_segments_is_whole() {
    in_both_protocols(|db| {
        let other = db.store.keyspace("other").unwrap();
        let mut open = db.begin();
        open.set(&db, "open", "0");
        for number in 0..8 {
            let value = "v".repeat(100 << 10);
            let mut txn = db.begin();
            txn.set(&db, &format!("big/{number}"), &value);
            txn.put(&other, format!("big/{number}"), value).unwrap();
            txn.commit().unwrap();
            open.put(&other, format!("open/{number}"), "1").unwrap();
            if number % 3 == 0 {
                db.flush();
            }
        }
        open.commit().unwrap();
        let db = db.copy();
        let other = db.store.keyspace("other").unwrap();
        db.expect(&[("open", Some("0"))]);
        assert_eq!(db.store.prefix(&other, "open/").unwrap().count(), 8);
        assert_eq!(db.store.prefix(&other, "big/").unwrap().count(), 8);
        assert_eq!(db.store.prefix(&db.rows, "big/").unwrap().count(), 8);
    });
}

/// `TwoPhaseOutOfOrderDelete`: of several writes, some of them flushed, the last one is recovered.
#[test]
fn last_of_several_writes_is_recovered() {
    in_both_protocols(|db| {
        let mut open = db.begin();
        open.set(&db, "dummy", "dummy");
        db.put("first", "first");
        for value in ["dogs1", "dogs2", "dogs3"] {
            db.put("cats", value);
        }
        db.flush();
        db.put("cats", "dogs4");
        db.delete("first");
        let db = db.copy();
        db.expect(&[("first", None), ("cats", Some("dogs4")), ("dummy", None)]);
    });
}

/// `TwoPhaseMultiThreadTest`: transactions of several threads, committed in any order, and a copy.
#[test]
fn transactions_of_several_threads_are_recovered() {
    in_both_protocols(|db| {
        thread::scope(|scope| {
            for worker in 0..8 {
                let db = &db;
                scope.spawn(move || {
                    for round in 0..5 {
                        let mut txn = db.begin();
                        for row in 0..10 {
                            txn.set(db, &format!("{worker}/{row}"), &round.to_string());
                        }
                        txn.commit().unwrap();
                    }
                });
            }
        });
        let db = db.copy();
        for worker in 0..8 {
            for row in 0..10 {
                db.expect(&[(&format!("{worker}/{row}"), Some("4"))]);
            }
        }
    });
}

/// `TwoPhaseNameTest`: a transaction is named by its start timestamp, which no other has.
#[test]
fn names_of_open_transactions_differ() {
    in_both_protocols(|db| {
        let txns: Vec<_> = (0..50).map(|_| db.begin()).collect();
        let mut names: Vec<_> = txns.iter().map(percolite::Txn::start_ts).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), txns.len());
        let mut owners: Vec<_> = txns.iter().map(|txn| txn.owner_id().to_string()).collect();
        owners.sort_unstable();
        owners.dedup();
        assert_eq!(owners.len(), txns.len());
    });
}

/// Conflicts are judged against commits from before the copy, too: `CheckKey` after recovery.
#[test]
fn conflicts_are_judged_in_a_copy() {
    in_both_protocols(|db| {
        db.put("foo", "1");
        let db = db.copy();
        let mut txn = db.begin();
        assert_eq!(txn.lock(&db, "foo").as_deref(), Some("1"));
        txn.set(&db, "foo", "2");
        db.put("foo", "3");
        expect_conflict(txn.commit());
        db.expect(&[("foo", Some("3"))]);
    });
}
