//! Nested closures, and closures that conflict: none of them may deadlock.

use std::time::{Duration, Instant};

use percolite::{Error, Keyspace, Result, Txn};

use crate::environment::{Environment, some, spawn};

const DEADLOCK: Duration = Duration::from_secs(25);

fn add(txn: &mut Txn, rows: &Keyspace, key: &str) -> Result<()> {
    let before = txn.get(rows, key)?.map_or(0, |bytes| u64::from_be_bytes(bytes[..].try_into().unwrap()));
    txn.put(rows, key, (before + 1).to_be_bytes())
}

/// Only one attempt may have a permit at a time. A call inside a closure must run without a permit:
/// the outer attempt keeps the only permit until the inner call has returned.
pub fn nested_closures_need_no_second_permit(environment: &Environment) {
    let store = environment.open_with(environment.builder().admission_limit(1));
    let began = Instant::now();
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let (store, rows) = (store.store.clone(), store.rows.clone());
            spawn(move || {
                for number in 0..10 {
                    store
                        .transact(|outer| {
                            add(outer, &rows, &format!("outer {thread}"))?;
                            // The inner closures of all threads write the same row.
                            store.transact(|inner| add(inner, &rows, "inner"))?;
                            store.keyspace(&format!("made inside {thread} {number}"))?;
                            Ok::<_, Error>(())
                        })
                        .unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join());
    assert!(began.elapsed() < DEADLOCK, "{:?}", began.elapsed());
    let count = |key: &str| {
        let bytes = store.begin().unwrap().get(&store.rows, key).unwrap().unwrap();
        u64::from_be_bytes(bytes[..].try_into().unwrap())
    };
    assert!(count("inner") >= 40);
    assert_eq!((0..4).map(|thread| count(&format!("outer {thread}"))).collect::<Vec<_>>(), [10; 4]);
}

/// The closures write their rows in opposite orders, and every second attempt writes one row more.
/// If tickets were taken in the order of the writes, the closures would wait for each other until
/// their waits time out.
pub fn conflicting_closures_in_opposite_orders_all_commit(environment: &Environment) {
    const EACH: u64 = 60;
    let store = environment.open_with(environment.builder().admission_limit(2));
    let began = Instant::now();
    let orders: [&[&str]; 4] = [&["a", "b", "c"], &["c", "b", "a"], &["b", "a"], &["c", "a"]];
    let threads: Vec<_> = orders
        .into_iter()
        .map(|order| {
            let (store, rows) = (store.store.clone(), store.rows.clone());
            spawn(move || {
                for _ in 0..EACH {
                    let mut attempt = 0;
                    store
                        .transact(|txn| {
                            attempt += 1;
                            order.iter().try_for_each(|key| add(txn, &rows, key))?;
                            if attempt % 2 == 0 {
                                add(txn, &rows, "now and then")?;
                            }
                            Ok::<_, Error>(())
                        })
                        .unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join());
    assert!(began.elapsed() < DEADLOCK, "{:?}", began.elapsed());
    let snapshot = store.snapshot().unwrap();
    for key in ["a", "b", "c"] {
        let expected = orders.iter().filter(|order| order.contains(&key)).count() as u64 * EACH;
        let found = u64::from_be_bytes(snapshot.get(&store.rows, key).unwrap().unwrap()[..].try_into().unwrap());
        assert_eq!(found, expected, "{key}");
    }
    store.put("a", "free");
    assert_eq!(store.get("a"), some("free"));
}
