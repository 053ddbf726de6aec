//! What a transaction and a snapshot see.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use percolite::ErrorKind;

use crate::support::{Db, Rows, expect_conflict, in_both_protocols, small_memory};

/// `MultipleSnapshotTest`, first part: each transaction sees what was committed when it began, and
/// its own writes.
#[test]
fn each_transaction_sees_its_own_beginning() {
    in_both_protocols(|db| {
        for key in ["AAA", "BBB", "CCC"] {
            db.put(key, "bar");
        }
        db.put("AAA", "bar1");
        let mut txn = db.begin();
        assert_eq!(txn.lock(&db, "AAA").as_deref(), Some("bar1"));
        txn.set(&db, "AAA", "bar2");
        db.put("BBB", "bar1");
        assert_eq!(txn.read(&db, "BBB").as_deref(), Some("bar"));
        let mut txn2 = db.begin();
        assert_eq!(txn2.lock(&db, "BBB").as_deref(), Some("bar1"));
        txn2.set(&db, "BBB", "bar2");
        assert_eq!(txn2.read(&db, "AAA").as_deref(), Some("bar1"));
        assert_eq!(txn.read(&db, "AAA").as_deref(), Some("bar2"));
        db.expect(&[("AAA", Some("bar1")), ("BBB", Some("bar1"))]);
        txn.commit().unwrap();
        txn2.commit().unwrap();
        db.expect(&[("AAA", Some("bar2")), ("BBB", Some("bar2")), ("CCC", Some("bar"))]);
    });
}

/// `MultipleSnapshotTest`, second part: a write before the snapshot is no conflict, one after it
/// is.
#[test]
fn snapshot_divides_conflicts_from_what_was_before() {
    in_both_protocols(|db| {
        db.put("ZZZ", "zzz");
        let (mut txn, mut txn2) = (db.begin(), db.begin());
        txn.set(&db, "ZZZ", "zzzz");
        txn.commit().unwrap();
        txn2.set(&db, "ZZZ", "xxxxx");
        expect_conflict(txn2.commit());
        db.expect(&[("ZZZ", Some("zzzz"))]);
    });
}

/// `GetWithoutSnapshot`: a transaction that sets a row back to its value is seen by no other.
#[test]
fn readers_never_see_the_middle_of_a_transaction() {
    in_both_protocols(|db| {
        db.put("key", "value");
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut reads = 0_u64;
                while !is_done.load(Ordering::Relaxed) {
                    db.expect(&[("key", Some("value"))]);
                    reads += 1;
                }
                reads
            });
            for _ in 0..100 {
                let mut txn = db.begin();
                txn.set(&db, "key", "overridden");
                txn.set(&db, "key", "value");
                txn.commit().unwrap();
            }
            is_done.store(true, Ordering::Relaxed);
            assert!(reader.join().unwrap() > 0, "nothing was read");
        });
    });
}

/// `MultiGetBatchedTest`.
#[test]
fn reads_of_several_rows_show_own_writes_over_the_snapshot() {
    in_both_protocols(|db| {
        for (key, value) in [("aaa", "1"), ("bbb", "2"), ("ccc", "3"), ("ddd", "4")] {
            db.put(key, value);
        }
        let mut txn = db.begin();
        txn.del(&db, "bbb");
        txn.set(&db, "ccc", "3new");
        db.put("ddd", "4new");
        db.put("eee", "5");
        let values = txn.multi_get(&db.rows, ["aaa", "bbb", "ccc", "ddd", "eee", "fff"]).unwrap();
        let values: Vec<_> = values.iter().map(Option::as_deref).collect();
        let expected: [Option<&[u8]>; 6] = [Some(b"1"), None, Some(b"3new"), Some(b"4"), None, None];
        assert_eq!(values, expected);
    });
}

/// `MultiGetLargeBatchedTest`: more rows than one internal batch has, out of order and repeated.
#[test]
fn reads_of_very_many_rows_keep_their_order() {
    in_both_protocols(|db| {
        db.store
            .transact(|txn| (0..300).try_for_each(|n| txn.put(&db.rows, format!("{n:03}"), format!("v{n}"))))
            .unwrap();
        let mut txn = db.begin();
        for number in (0..300).step_by(3) {
            txn.del(&db, &format!("{number:03}"));
        }
        let numbers: Vec<u32> = (0..600).map(|n| n * 7 % 300).collect();
        let values = txn.multi_get(&db.rows, numbers.iter().map(|n| format!("{n:03}"))).unwrap();
        for (number, value) in numbers.iter().zip(&values) {
            let expected = (number % 3 != 0).then(|| format!("v{number}"));
            assert_eq!(value.as_deref(), expected.as_ref().map(String::as_bytes), "row {number}");
        }
    });
}

/// `MultiGetSnapshot`: a snapshot that is older than a commit does not show it, although the
/// transaction had written before.
#[test]
fn snapshot_before_the_commit_does_not_show_it() {
    in_both_protocols(|db| {
        let mut txn = db.begin();
        txn.set(&db, "foo", "bar");
        let before = db.store.snapshot().unwrap();
        txn.commit().unwrap();
        assert_eq!(before.multi_get(&db.rows, ["foo"]).unwrap(), [None]);
        let after = db.store.snapshot().unwrap();
        assert_eq!(after.get(&db.rows, "foo").unwrap().as_deref(), Some(&b"bar"[..]));
    });
}

/// `CreateSnapshotWhenCommit`, `MultipleTimestampedSnapshots`: the commit timestamp names the state
/// right after the commit.
#[test]
fn commit_timestamp_names_the_state_after_the_commit() {
    let db = Db::with(small_memory().history_retention(Duration::from_secs(3600)));
    let commits: Vec<_> = (0..10).map(|n| db.put("foo", &n.to_string()).commit_ts).collect();
    assert!(commits.is_sorted_by(|a, b| a < b));
    db.flush();
    for (number, commit_ts) in commits.iter().enumerate() {
        let snapshot = db.store.snapshot_at(*commit_ts).unwrap();
        let value = snapshot.get(&db.rows, "foo").unwrap();
        assert_eq!(value.as_deref(), Some(number.to_string().as_bytes()));
    }
}

/// `CreateSnapshot`, `SequenceAndTsOrder`: snapshots of one moment agree, and later ones are not
/// older.
#[test]
fn snapshots_follow_the_order_of_commits() {
    in_both_protocols(|db| {
        let mut last = db.store.snapshot().unwrap().read_ts();
        for number in 0..20 {
            let commit = db.put("foo", &number.to_string());
            let snapshot = db.store.snapshot().unwrap();
            assert!(snapshot.read_ts() >= commit.commit_ts && commit.commit_ts > last);
            last = snapshot.read_ts();
        }
    });
}

/// `CloseDbWithSnapshots`: an open snapshot does not keep a store from closing. It refuses reads
/// then, and the directory is free when it is dropped.
#[test]
fn store_closes_while_snapshots_are_open() {
    in_both_protocols(|db| {
        db.put("foo", "bar");
        let snapshot = db.store.snapshot().unwrap();
        db.store.clone().close().unwrap();
        let error = snapshot.get(&db.rows, "foo").unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Closed(_)), "{error}");
        drop(snapshot);
        db.reopen().expect(&[("foo", Some("bar"))]);
    });
}
