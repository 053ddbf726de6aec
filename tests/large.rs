//! Large transactions: they lock their rows before they commit, and their locks are cleaned up in
//! the background.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::pedantic, missing_docs, reason = "style of a library, not of its tests")]

mod support;

use std::time::{Duration, Instant};

use percolite::engine::sim::SimStorage;
use percolite::{Builder, ConflictReason, ErrorKind, Keyspace, Stats, Store};

use crate::support::Home;

const ROWS: usize = 20_000;

fn large_builder() -> Builder {
    Store::builder().large_transaction_bytes(64 << 10)
}

fn homes() -> Vec<Home> {
    vec![
        Home::embedded(),
        #[cfg(feature = "rocks")]
        Home::rocks(),
    ]
}

fn key(number: usize) -> Vec<u8> {
    format!("{number:06}").into_bytes()
}

fn count(store: &Store, rows: &Keyspace) -> usize {
    store.snapshot().unwrap().range(rows, ..).map(Result::unwrap).count()
}

fn wait(store: &Store, what: &str, done: impl Fn(&Stats) -> bool) {
    let began = Instant::now();
    while !done(&store.stats()) {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}: {:?}", store.stats());
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn wait_for_cleanup(store: &Store) {
    wait(store, "the lock cleanup does not end", |stats| stats.cleanup_pending == 0);
    assert_eq!(store.row_locks().unwrap().count(), 0);
}

#[test]
fn a_large_transaction_is_visible_from_its_commit_on() {
    for home in homes() {
        let store = home.open(large_builder());
        let rows = store.keyspace("rows").unwrap();
        let mut txn = store.begin().unwrap();
        for number in 0..ROWS {
            txn.put(&rows, key(number), [7; 100]).unwrap();
        }
        assert!(store.row_locks().unwrap().count() > ROWS / 2, "the rows were not locked before the commit");
        assert_eq!(count(&store, &rows), 0);
        let before = store.snapshot().unwrap();
        let commit = txn.commit().unwrap();
        // All rows are visible long before the last lock is rolled forward.
        assert_eq!(count(&store, &rows), ROWS);
        assert_eq!(store.begin().unwrap().range(&rows, ..).rev().count(), ROWS);
        assert_eq!(store.begin().unwrap().get(&rows, key(ROWS - 1)).unwrap(), Some([7; 100].into()));
        assert_eq!(before.range(&rows, ..).count(), 0);
        assert!(store.snapshot().unwrap().read_ts() >= commit.commit_ts);
        wait_for_cleanup(&store);
        assert_eq!(count(&store, &rows), ROWS);
        let stats = store.stats();
        assert_eq!(
            (stats.commits_large, stats.large_rows_locked, stats.cleanup_rows),
            (1, ROWS as u64, ROWS as u64 - 1)
        );
    }
}

#[test]
fn a_dropped_large_transaction_leaves_nothing() {
    for home in homes() {
        let store = home.open(large_builder());
        let rows = store.keyspace("rows").unwrap();
        store.transact(|txn| txn.put(&rows, key(ROWS - 1), "old")).unwrap();
        let mut txn = store.begin().unwrap();
        for number in 0..ROWS {
            txn.put(&rows, key(number), [7; 100]).unwrap();
        }
        drop(txn);
        // The cleanup releases the lock of this row last.
        let mut other = store.begin().unwrap();
        other.put(&rows, key(ROWS - 1), "new").unwrap();
        other.commit().unwrap();
        assert_eq!(count(&store, &rows), 1);
        wait_for_cleanup(&store);
        assert_eq!(count(&store, &rows), 1);
        assert_eq!(store.stats().commits_large, 0);
    }
}

#[test]
fn a_dropped_transaction_causes_no_conflict() {
    for home in homes() {
        let store = home.open(Store::builder().large_transaction_bytes(1));
        let rows = store.keyspace("rows").unwrap();
        for number in 0..5_000 {
            let mut dropped = store.begin().unwrap();
            dropped.put(&rows, "a", "never").unwrap();
            drop(dropped);
            // Varies the time between the drop and the next write.
            (0..number % 50 * 10).for_each(|_| std::hint::spin_loop());
            let mut txn = store.begin().unwrap();
            txn.put(&rows, "a", "then").unwrap();
            txn.commit().unwrap();
        }
    }
}

#[test]
fn a_conflict_ends_a_large_transaction() {
    for home in homes() {
        let store = home.open(large_builder());
        let rows = store.keyspace("rows").unwrap();
        let mut first = store.begin().unwrap();
        for number in 0..ROWS {
            first.put(&rows, key(number), [7; 100]).unwrap();
        }
        // A small transaction meets a lock of `first` at its commit, a large one at a write.
        let mut small = store.begin().unwrap();
        small.put(&rows, key(5), "small").unwrap();
        let error = small.commit().unwrap_err();
        assert_eq!(error.conflict().map(|conflict| conflict.reason), Some(ConflictReason::Locked));
        assert_eq!(error.conflict().and_then(|conflict| conflict.conflicting_owner), Some(first.owner_id()));
        let mut second = store.begin().unwrap();
        let met = (0..ROWS).find_map(|number| second.put(&rows, key(number), [8; 100]).err()).expect("a conflict");
        assert_eq!(met.conflict().and_then(|conflict| conflict.conflicting_owner), Some(first.owner_id()));
        for again in [
            second.get(&rows, "other").map(drop),
            second.put(&rows, "other", "").map(drop),
            second.range(&rows, ..).next().unwrap().map(drop),
            second.commit().map(drop),
        ] {
            assert!(matches!(again, Err(error) if matches!(error.kind(), ErrorKind::Conflict(_))));
        }
        first.commit().unwrap();
        wait_for_cleanup(&store);
        assert!(store.snapshot().unwrap().range(&rows, ..).all(|row| row.unwrap().value() == [7; 100]));
    }
}

#[test]
fn reads_and_writes_work_while_locks_are_rolled_forward() {
    for home in homes() {
        let store = home.open(large_builder());
        let rows = store.keyspace("rows").unwrap();
        let mut txn = store.begin().unwrap();
        for number in 0..ROWS {
            txn.put(&rows, key(number), 0_u64.to_be_bytes()).unwrap();
        }
        txn.commit().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..3_usize {
                let (store, rows) = (&store, &rows);
                scope.spawn(move || {
                    for step in 0..300_usize {
                        let at = key((step * 6151 + thread * 31) % ROWS);
                        let add = |txn: &mut percolite::Txn| {
                            let value = txn.get(rows, &at)?.expect("a row of the large transaction");
                            let number = u64::from_be_bytes(value[..].try_into().unwrap());
                            txn.put(rows, &at, (number + 1).to_be_bytes())
                        };
                        store.transact(add).unwrap();
                        if step % 100 == 0 {
                            assert_eq!(count(store, rows), ROWS);
                        }
                    }
                });
            }
        });
        wait_for_cleanup(&store);
        let values =
            store.snapshot().unwrap().range(&rows, ..).map(|row| row.unwrap().into_parts().1).collect::<Vec<_>>();
        let sum: u64 = values.into_iter().map(|value| u64::from_be_bytes(value[..].try_into().unwrap())).sum();
        assert_eq!(sum, 900);
    }
}

#[test]
fn locked_rows_are_read_rewritten_and_rolled_back() {
    for home in homes() {
        let store = home.open(large_builder());
        let rows = store.keyspace("rows").unwrap();
        let mut txn = store.begin().unwrap();
        for number in 0..ROWS {
            txn.put(&rows, key(number), "first").unwrap();
        }
        let savepoint = txn.savepoint();
        for number in 0..ROWS {
            match number % 3 {
                0 => txn.delete(&rows, key(number)).unwrap(),
                1 => txn.put(&rows, key(number), vec![1; 2000]).unwrap(),
                _ => assert_eq!(txn.get_for_update(&rows, key(number)).unwrap().as_deref(), Some(&b"first"[..])),
            }
        }
        for number in ROWS..ROWS + 500 {
            txn.put(&rows, key(number), [9; 1000]).unwrap();
        }
        assert_eq!(txn.range(&rows, ..).count(), ROWS - ROWS.div_ceil(3) + 500);
        assert_eq!(txn.get(&rows, key(1)).unwrap(), Some([1; 2000].into()));
        assert_eq!(txn.get(&rows, key(0)).unwrap(), None);
        txn.rollback_to(savepoint).unwrap();
        assert_eq!(txn.range(&rows, ..).rev().count(), ROWS);
        assert!(txn.range(&rows, ..).all(|row| row.unwrap().value() == b"first"));
        txn.commit().unwrap();
        wait_for_cleanup(&store);
        assert!(store.snapshot().unwrap().range(&rows, ..).all(|row| row.unwrap().value() == b"first"));
        assert_eq!(count(&store, &rows), ROWS);
    }
}

#[test]
fn a_large_transaction_is_atomic_across_a_crash() {
    for committed in [true, false] {
        let memory = SimStorage::new();
        let store = large_builder().open_in_memory(&memory).unwrap();
        let rows = store.keyspace("rows").unwrap();
        let mut txn = store.begin().unwrap();
        for number in 0..ROWS {
            txn.put(&rows, key(number), [7; 100]).unwrap();
        }
        if committed {
            txn.commit().unwrap();
        } else {
            store.sync().unwrap();
            std::mem::forget(txn);
        }
        memory.crash(1);
        let store = Store::builder().open_in_memory(&memory).unwrap();
        let rows = store.keyspace("rows").unwrap();
        let expected = if committed { ROWS } else { 0 };
        assert_eq!(count(&store, &rows), expected, "during the sweep");
        wait(&store, "orphans are left", |stats| !stats.may_have_orphan_locks);
        assert_eq!((count(&store, &rows), store.row_locks().unwrap().count()), (expected, 0));
    }
}

#[test]
fn locks_that_await_cleanup_are_resolved_together() {
    for committed in [true, false] {
        for home in homes() {
            let store = home.open(large_builder());
            let rows = store.keyspace("rows").unwrap();
            let before = store.keyspace("before").unwrap();
            // The background is busy with the lock cleanup of `first`, so the locks of `second` are
            // still there when `third` meets them.
            let mut first = store.begin().unwrap();
            for number in 0..5 * ROWS {
                first.put(&before, key(number), [7; 100]).unwrap();
            }
            let mut second = store.begin().unwrap();
            for number in 0..ROWS / 4 {
                second.put(&rows, key(number), [8; 100]).unwrap();
            }
            first.commit().unwrap();
            if committed {
                second.commit().unwrap();
            } else {
                drop(second);
            }
            let mut third = store.begin().unwrap();
            for number in 0..ROWS / 4 {
                third.put(&rows, key(number), [9; 100]).unwrap();
            }
            third.commit().unwrap();
            let stats = store.stats();
            assert!(stats.locks_rolled_forward < 200, "resolved one by one: {stats:?}");
            assert_eq!(count(&store, &rows), ROWS / 4);
            assert!(store.snapshot().unwrap().range(&rows, ..).all(|row| row.unwrap().value() == [9; 100]));
            wait_for_cleanup(&store);
        }
    }
}
