//! Transactions too large for memory: they stream, and end in the background.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::pedantic, missing_docs, reason = "style of a library, not of its tests")]

mod support;

use std::time::{Duration, Instant};

use percolite::engine::sim::SimStorage;
use percolite::{Builder, ConflictReason, ErrorKind, Keyspace, Stats, Store};

use crate::support::Home;

const ROWS: usize = 20_000;

fn streaming() -> Builder {
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

fn finished(store: &Store) {
    wait(store, "large transactions do not end", |stats| stats.cleanup_pending == 0);
    assert_eq!(store.row_locks().unwrap().count(), 0);
}

#[test]
fn it_is_seen_whole_from_its_commit_on_and_not_at_all_before() {
    for home in homes() {
        let store = home.open(streaming());
        let rows = store.keyspace("rows").unwrap();
        let mut txn = store.begin().unwrap();
        for number in 0..ROWS {
            txn.put(&rows, key(number), [7; 100]).unwrap();
        }
        assert!(store.row_locks().unwrap().count() > ROWS / 2, "nothing was streamed");
        assert_eq!(count(&store, &rows), 0);
        let before = store.snapshot().unwrap();
        let commit = txn.commit().unwrap();
        // Long before the last row is a version.
        assert_eq!(count(&store, &rows), ROWS);
        assert_eq!(store.begin().unwrap().range(&rows, ..).rev().count(), ROWS);
        assert_eq!(store.begin().unwrap().get(&rows, key(ROWS - 1)).unwrap(), Some(vec![7; 100]));
        assert_eq!(before.range(&rows, ..).count(), 0);
        assert!(store.snapshot().unwrap().read_ts() >= commit.commit_ts);
        finished(&store);
        assert_eq!(count(&store, &rows), ROWS);
        let stats = store.stats();
        assert_eq!(
            (stats.commits_large, stats.large_rows_locked, stats.cleanup_rows),
            (1, ROWS as u64, ROWS as u64 - 1)
        );
    }
}

#[test]
fn one_that_is_dropped_leaves_nothing_and_is_in_nobodys_way() {
    for home in homes() {
        let store = home.open(streaming());
        let rows = store.keyspace("rows").unwrap();
        store.transact(|txn| txn.put(&rows, key(ROWS - 1), "old")).unwrap();
        let mut txn = store.begin().unwrap();
        for number in 0..ROWS {
            txn.put(&rows, key(number), [7; 100]).unwrap();
        }
        drop(txn);
        // The last of its rows to be let go.
        let mut other = store.begin().unwrap();
        other.put(&rows, key(ROWS - 1), "new").unwrap();
        other.commit().unwrap();
        assert_eq!(count(&store, &rows), 1);
        finished(&store);
        assert_eq!(count(&store, &rows), 1);
        assert_eq!(store.stats().commits_large, 0);
    }
}

#[test]
fn nobody_meets_one_that_was_dropped_while_it_is_taken_away() {
    for home in homes() {
        let store = home.open(Store::builder().large_transaction_bytes(1));
        let rows = store.keyspace("rows").unwrap();
        for number in 0..5_000 {
            let mut dropped = store.begin().unwrap();
            dropped.put(&rows, "a", "never").unwrap();
            drop(dropped);
            // The moment at which the writer comes, between the drop and the last of its end.
            (0..number % 50 * 10).for_each(|_| std::hint::spin_loop());
            let mut txn = store.begin().unwrap();
            txn.put(&rows, "a", "then").unwrap();
            txn.commit().unwrap();
        }
    }
}

#[test]
fn a_write_that_meets_a_conflict_ends_it() {
    for home in homes() {
        let store = home.open(streaming());
        let rows = store.keyspace("rows").unwrap();
        let mut first = store.begin().unwrap();
        for number in 0..ROWS {
            first.put(&rows, key(number), [7; 100]).unwrap();
        }
        // One that meets a streamed lock when it commits, and one that meets it while it is written.
        let mut small = store.begin().unwrap();
        small.put(&rows, key(5), "small").unwrap();
        let why = small.commit().unwrap_err();
        assert_eq!(why.conflict().map(|conflict| conflict.reason), Some(ConflictReason::Locked));
        assert_eq!(why.conflict().and_then(|conflict| conflict.conflicting_owner), Some(first.owner_id()));
        let mut second = store.begin().unwrap();
        let met = (0..ROWS).find_map(|number| second.put(&rows, key(number), [8; 100]).err()).expect("a conflict");
        assert_eq!(met.conflict().and_then(|conflict| conflict.conflicting_owner), Some(first.owner_id()));
        for again in [
            second.get(&rows, "other").map(drop),
            second.put(&rows, "other", "").map(drop),
            second.range(&rows, ..).next().unwrap().map(drop),
            second.commit().map(drop),
        ] {
            assert!(matches!(again, Err(why) if matches!(why.kind(), ErrorKind::Conflict(_))));
        }
        first.commit().unwrap();
        finished(&store);
        assert!(store.snapshot().unwrap().range(&rows, ..).all(|row| row.unwrap().1 == [7; 100]));
    }
}

#[test]
fn readers_and_writers_go_on_while_it_is_rolled_forward() {
    for home in homes() {
        let store = home.open(streaming());
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
                            let number = u64::from_be_bytes(value.try_into().unwrap());
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
        finished(&store);
        let values = store.snapshot().unwrap().range(&rows, ..).map(|row| row.unwrap().1).collect::<Vec<_>>();
        let sum: u64 = values.into_iter().map(|value| u64::from_be_bytes(value.try_into().unwrap())).sum();
        assert_eq!(sum, 900);
    }
}

#[test]
fn what_streamed_is_read_back_written_again_and_taken_back() {
    for home in homes() {
        let store = home.open(streaming());
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
        assert_eq!(txn.get(&rows, key(1)).unwrap(), Some(vec![1; 2000]));
        assert_eq!(txn.get(&rows, key(0)).unwrap(), None);
        txn.rollback_to(savepoint).unwrap();
        assert_eq!(txn.range(&rows, ..).rev().count(), ROWS);
        assert!(txn.range(&rows, ..).all(|row| row.unwrap().1 == b"first"));
        txn.commit().unwrap();
        finished(&store);
        assert!(store.snapshot().unwrap().range(&rows, ..).all(|row| row.unwrap().1 == b"first"));
        assert_eq!(count(&store, &rows), ROWS);
    }
}

#[test]
fn a_crash_after_the_commit_point_leaves_it_whole_and_one_before_leaves_nothing() {
    for committed in [true, false] {
        let memory = SimStorage::new();
        let store = streaming().open_in_memory(&memory).unwrap();
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
        assert_eq!(count(&store, &rows), expected, "while it is swept");
        wait(&store, "orphans are left", |stats| !stats.may_have_orphan_locks);
        assert_eq!((count(&store, &rows), store.row_locks().unwrap().count()), (expected, 0));
    }
}

#[test]
fn rows_that_wait_for_their_end_are_taken_over_together() {
    for committed in [true, false] {
        for home in homes() {
            let store = home.open(streaming());
            let rows = store.keyspace("rows").unwrap();
            let before = store.keyspace("before").unwrap();
            // Its end comes first and keeps the background busy.
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
            assert!(stats.locks_rolled_forward < 200, "one by one: {stats:?}");
            assert_eq!(count(&store, &rows), ROWS / 4);
            assert!(store.snapshot().unwrap().range(&rows, ..).all(|row| row.unwrap().1 == [9; 100]));
            finished(&store);
        }
    }
}
