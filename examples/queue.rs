//! A job queue that survives crashes: each job is done by one worker, and none is lost if a worker
//! crashes.
//!
//! A worker removes a job and writes its result in one transaction, so after a crash before the
//! commit the job is still in the queue. If two workers take the same job, one of them conflicts,
//! and its retry takes the next job. To make conflicts rare, each worker starts at a different key.
//!
//! ```text
//! cargo run --release --example queue
//! ```

use std::sync::atomic::{AtomicUsize, Ordering};

use percolite::{Durability, Keyspace, Result, Store, TxnOptions};

const JOBS: u64 = 200;
const WORKERS: u64 = 4;

fn main() -> Result<()> {
    let store = Store::in_memory()?;
    let (jobs, results) = (store.keyspace("jobs")?, store.keyspace("results")?);
    // Rows are sorted by the bytes of their keys. Big-endian bytes sort as the numbers do.
    store.transact(|txn| (0..JOBS).try_for_each(|job| txn.put(&jobs, job.to_be_bytes(), format!("job {job}"))))?;

    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (store, jobs, results, done) = (&store, &jobs, &results, &done);
        let worker = |number: u64| {
            move || {
                while process_one(store, jobs, results, number)? {
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            }
        };
        let workers: Vec<_> = (0..WORKERS).map(|number| scope.spawn(worker(number))).collect();
        workers.into_iter().flat_map(std::thread::ScopedJoinHandle::join).collect::<Result<()>>()
    })?;

    println!("{} jobs done, {} retries", done.load(Ordering::Relaxed), store.stats().retries);
    assert_eq!((done.into_inner() as u64, store.range(&results, ..)?.count() as u64), (JOBS, JOBS));
    assert_eq!(store.range(&jobs, ..)?.count(), 0);
    Ok(())
}

/// Processes one job. Returns whether there was one.
fn process_one(store: &Store, jobs: &Keyspace, results: &Keyspace, worker: u64) -> Result<bool> {
    // A buffered commit does not wait for the disk. After a power cut the last jobs may be in the
    // queue again, which is fine if a job may be done twice.
    let options = TxnOptions::default().durability(Durability::Buffered);
    store.transact_with(options, |txn| {
        let start = (worker * JOBS / WORKERS).to_be_bytes();
        let next = txn.range(jobs, start..).next().or_else(|| txn.range(jobs, ..).next());
        let Some(job) = next.transpose()? else { return Ok(false) };
        txn.delete(jobs, job.key())?;
        txn.put(results, job.key(), format!("{} done by worker {worker}", String::from_utf8_lossy(job.value())))?;
        Ok(true)
    })
}
