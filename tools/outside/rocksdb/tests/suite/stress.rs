//! Many threads, as `RandomTransactionInserter` has them: each transaction adds the same number to
//! one row of every set, so the sums of all sets are equal at all times.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use percolite::{Durability, ErrorKind, TxnOptions};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use crate::support::{Db, in_both_protocols};

const SETS: u32 = 3;
const ROWS: u32 = 100;

fn number(value: Option<percolite::Value>) -> u64 {
    value.map_or(0, |value| String::from_utf8(value.to_vec()).unwrap().parse().unwrap())
}

/// The sum of each set, in one snapshot.
fn sums(db: &Db) -> Vec<u64> {
    let snapshot = db.store.snapshot().unwrap();
    let sum = |set| {
        let rows = snapshot.prefix(&db.rows, format!("{set}/"));
        rows.map(|row| number(Some(row.unwrap().into_parts().1))).sum()
    };
    (0..SETS).map(sum).collect()
}

/// A round of `threads`, each of which tries `count` transactions. Returns what was added.
fn insert(db: &Db, seed: u64, threads: u64, count: u32, reads_for_update: bool) -> u64 {
    let added = AtomicU64::new(0);
    thread::scope(|scope| {
        for worker in 0..threads {
            let added = &added;
            scope.spawn(move || {
                let mut rng = StdRng::seed_from_u64(seed + worker);
                let mut refused = 0;
                for _ in 0..count {
                    let by = rng.random_range(1..100_u64);
                    let mut txn = db.store.begin_with(TxnOptions::default().durability(Durability::Buffered)).unwrap();
                    for set in 0..SETS {
                        let key = format!("{set}/{:03}", rng.random_range(0..ROWS));
                        let old =
                            if reads_for_update { txn.get_for_update(&db.rows, &key) } else { txn.get(&db.rows, &key) };
                        txn.put(&db.rows, &key, (number(old.unwrap()) + by).to_string()).unwrap();
                    }
                    if rng.random_bool(0.1) {
                        txn.rollback().unwrap();
                        continue;
                    }
                    match txn.commit() {
                        Ok(_) => drop(added.fetch_add(by, Ordering::Relaxed)),
                        Err(error) if matches!(error.kind(), ErrorKind::Conflict(_)) => refused += 1,
                        Err(error) => panic!("{error}"),
                    }
                }
                assert!(refused <= count / 2, "{refused} of {count} transactions were refused");
            });
        }
        let checker = scope.spawn(|| {
            for _ in 0..20 {
                let sums = sums(db);
                assert!(sums.iter().all(|sum| *sum == sums[0]), "seed {seed}: {sums:?}");
            }
        });
        checker.join().unwrap();
    });
    added.into_inner()
}

fn run(reads_for_update: bool) {
    let seed = std::env::var("SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    in_both_protocols(|db| {
        let added = insert(&db, seed, 4, 2000, reads_for_update);
        assert!(added > 0);
        assert_eq!(sums(&db), [added; SETS as usize], "seed {seed}");
        let db = db.copy();
        assert_eq!(sums(&db), [added; SETS as usize], "in a copy, seed {seed}");
        let more = insert(&db, seed + 100, 4, 200, reads_for_update);
        assert_eq!(sums(&db.reopen()), [added + more; SETS as usize], "after a restart, seed {seed}");
    });
}

/// `OptimisticTransactionStressTest`.
#[test]
fn sums_of_all_sets_are_equal() {
    run(false);
}

/// `TransactionStressTest`, `MySQLStyleTransactionTest`: with reads for update.
#[test]
fn sums_of_all_sets_are_equal_with_reads_for_update() {
    run(true);
}

/// `DeadlockStress`: threads that lock rows in different orders all get through.
#[test]
fn opposite_orders_of_rows_all_get_through() {
    in_both_protocols(|db| {
        thread::scope(|scope| {
            for worker in 0..8_u32 {
                let db = &db;
                scope.spawn(move || {
                    let mut rng = StdRng::seed_from_u64(worker.into());
                    for _ in 0..50 {
                        let (a, b) = (rng.random_range(0..5), rng.random_range(0..5));
                        let bump = |txn: &mut percolite::Txn, key: u32| {
                            let old = number(txn.get_for_update(&db.rows, key.to_string())?);
                            txn.put(&db.rows, key.to_string(), (old + 1).to_string())
                        };
                        db.store.transact(|txn| bump(txn, a).and_then(|()| bump(txn, b))).unwrap();
                    }
                });
            }
        });
        let total: u64 =
            db.store.range(&db.rows, ..).unwrap().map(|row| number(Some(row.unwrap().into_parts().1))).sum();
        assert_eq!(total, 8 * 50 * 2);
    });
}
