//! A queue of jobs that survives crashes: each job is done by one worker, and none is lost with the worker that had it.
//!
//! Taking a job and writing down its result is one transaction, so a worker that dies in between has not taken it. Workers that
//! reach for the same job conflict, and the one that lost takes the next. To spread them, each begins to look at a place
//! of its own.
//!
//! `cargo run --release --example queue`

use std::sync::atomic::{AtomicUsize, Ordering};

use percolite::{Durability, Keyspace, Result, Store, TxnOptions};

const JOBS: u64 = 200;
const WORKERS: u64 = 4;

fn main() -> Result<()> {
    let store = Store::in_memory()?;
    let (jobs, results) = (store.keyspace("jobs")?, store.keyspace("results")?);
    // In order of their numbers, because big-endian numbers sort as numbers do.
    store.transact(|txn| {
        (0..JOBS).try_for_each(|job| txn.put(&jobs, job.to_be_bytes(), format!("job {job} is done")))
    })?;

    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (store, jobs, results, done) = (&store, &jobs, &results, &done);
        let worker = |number: u64| {
            move || {
                while work(store, jobs, results, number)? {
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            }
        };
        let workers: Vec<_> = (0..WORKERS).map(|number| scope.spawn(worker(number))).collect();
        workers.into_iter().flat_map(std::thread::ScopedJoinHandle::join).collect::<Result<()>>()
    })?;

    let snapshot = store.snapshot()?;
    println!("{} jobs done, {} retries", done.load(Ordering::Relaxed), store.stats().retries);
    assert_eq!((done.into_inner() as u64, snapshot.range(&results, ..).count() as u64), (JOBS, JOBS));
    assert_eq!(snapshot.range(&jobs, ..).count(), 0);
    Ok(())
}

/// Does one job; whether there was one.
fn work(store: &Store, jobs: &Keyspace, results: &Keyspace, worker: u64) -> Result<bool> {
    // A job that is done twice after a power cut does no harm here, so nobody waits for the disk.
    let options = TxnOptions { durability: Some(Durability::Buffered), ..TxnOptions::default() };
    store.transact_with(options, |txn| {
        let from = (worker * JOBS / WORKERS).to_be_bytes();
        let own = txn.range(jobs, from..).next();
        let Some((key, job)) = own.or_else(|| txn.range(jobs, ..).next()).transpose()? else { return Ok(false) };
        txn.delete(jobs, &key)?;
        txn.put(results, &key, format!("{}, says worker {worker}", String::from_utf8_lossy(&job)))?;
        Ok(true)
    })
}
