//! Readers that read in a loop during commits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use percolite::{Durability, Keyspace, Result, Row, Store, TxnOptions};

use crate::environment::{Environment, spawn};
use crate::reads::prepared;

pub fn a_spinning_reader_sees_all_or_nothing(environment: &Environment) {
    const ROWS: u64 = 60;
    let buffered = || environment.open_with(environment.builder().durability(Durability::Buffered));
    let writer = buffered();
    let reader_client = environment.is_shared().then(buffered);
    let reader = reader_client.as_ref().unwrap_or(&writer);
    let fill = |store: &Store, rows: &Keyspace, round: u64| {
        let mut txn = store.begin().unwrap();
        for row in 0..ROWS {
            txn.put(rows, row.to_be_bytes(), round.to_be_bytes()).unwrap();
        }
        txn.commit()
    };
    fill(&writer, &writer.rows, 0).unwrap();
    let (stop, changes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (store, rows) = (reader.store.clone(), reader.rows.clone());
            let (stop, changes) = (Arc::clone(&stop), Arc::clone(&changes));
            spawn(move || {
                let mut last = 0;
                while !stop.load(Ordering::SeqCst) {
                    let txn = store.begin().unwrap();
                    let scan = |row: Result<Row>| u64::from_be_bytes(row.unwrap().value().try_into().unwrap());
                    let seen: Vec<u64> = txn.range(&rows, ..).map(scan).collect();
                    assert_eq!(seen.len() as u64, ROWS);
                    assert!(seen.iter().all(|round| *round == seen[0]), "torn: {seen:?}");
                    let point = txn.get(&rows, 7_u64.to_be_bytes()).unwrap().unwrap();
                    assert_eq!(u64::from_be_bytes(point[..].try_into().unwrap()), seen[0]);
                    assert!(seen[0] >= last, "back from {last} to {}", seen[0]);
                    changes.fetch_add(u64::from(seen[0] > last), Ordering::SeqCst);
                    last = seen[0];
                }
            })
        })
        .collect();
    // Commits until the readers have seen enough changes, for ten seconds at most.
    let began = Instant::now();
    for round in 1.. {
        let enough = round > 150 && changes.load(Ordering::SeqCst) > 20;
        if enough || began.elapsed() > Duration::from_secs(10) {
            break;
        }
        // Readers that push the writer may make attempts fail, but not every attempt.
        while let Err(error) = fill(&writer, &writer.rows, round) {
            assert!(error.is_retryable(), "{error}");
        }
    }
    stop.store(true, Ordering::SeqCst);
    readers.into_iter().for_each(|reader| reader.join());
    assert!(changes.load(Ordering::SeqCst) > 0, "the readers saw no change");
}

pub fn an_acknowledged_commit_is_always_visible(environment: &Environment) {
    let (writer, reader) = prepared(environment);
    let acknowledged = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    for key in ["a", "b"] {
        writer.put(key, 0_u64.to_be_bytes());
    }
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (store, rows) = (reader.store.clone(), reader.rows.clone());
            let (acknowledged, stop) = (Arc::clone(&acknowledged), Arc::clone(&stop));
            spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let least = acknowledged.load(Ordering::SeqCst);
                    let txn = store.begin().unwrap();
                    let [b, a] = ["b", "a"]
                        .map(|key| u64::from_be_bytes(txn.get(&rows, key).unwrap().unwrap()[..].try_into().unwrap()));
                    assert!(b >= least && a >= least, "{least} was acknowledged, {b} and {a} seen");
                    assert_eq!(a, b);
                }
            })
        })
        .collect();
    for number in 1..=300_u64 {
        let options = TxnOptions::default().durability(Durability::Buffered);
        let mut txn = writer.begin_with(options).unwrap();
        for key in ["a", "b"] {
            txn.put(&writer.rows, key, number.to_be_bytes()).unwrap();
        }
        txn.commit().unwrap();
        acknowledged.store(number, Ordering::SeqCst);
    }
    stop.store(true, Ordering::SeqCst);
    readers.into_iter().for_each(|reader| reader.join());
}
