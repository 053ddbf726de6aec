//! Conflicts: how `transact` retries, and how to handle a conflict yourself.
//!
//! ```text
//! cargo run --release --example retry
//! ```

use std::time::Duration;

use anyhow::{bail, ensure};
use percolite::{ConflictReason, Error, ErrorKind, Keyspace, RetryPolicy, Store, TxnOptions};

fn main() -> anyhow::Result<()> {
    let store = Store::in_memory()?;
    let stock = store.keyspace("stock")?;
    store.transact(|txn| txn.put(&stock, "bolts", "1000"))?;

    // Eight threads write one row. Of two conflicting transactions the first to commit wins; the
    // other is retried, and waits in the row's queue so that it need not conflict again.
    std::thread::scope(|scope| {
        let sell = || (0..50).try_for_each(|_| store.transact(|txn| take(txn, &stock, 1)));
        let sellers: Vec<_> = (0..8).map(|_| scope.spawn(sell)).collect();
        sellers.into_iter().flat_map(std::thread::ScopedJoinHandle::join).collect::<Result<(), Error>>()
    })?;
    println!("600 bolts are left, after {} conflicts", store.stats().conflicts);

    // An error of the closure that is not a conflict is returned immediately; nothing is written.
    let Err(err) = store.transact(|txn| take(txn, &stock, 5000)) else { bail!("took 5000 of 600 bolts") };
    println!("5000 of 600: {err}");

    // With `begin` there is no retry. The error has the row, the transaction that won, and whether
    // it helps to run the whole transaction again.
    let mut slow = store.begin()?;
    take(&mut slow, &stock, 1)?;
    store.transact(|txn| take(txn, &stock, 10))?;
    let Err(err) = slow.commit() else { bail!("a conflict was not detected") };
    let reason = err.conflict().map(|conflict| conflict.reason);
    ensure!(err.is_retryable() && matches!(reason, Some(ConflictReason::NewerVersion(_))));
    println!("{err}");

    // A retry policy bounds the attempts and their total time. Here every attempt conflicts with a
    // transaction that commits first.
    let policy = RetryPolicy::default().max_attempts(3).timeout(Duration::from_millis(100));
    let options = TxnOptions::default().retry_policy(policy);
    let Err(err) = store.transact_with(options, |txn| {
        take(txn, &stock, 1)?;
        let mut other = store.begin()?;
        take(&mut other, &stock, 1)?;
        other.commit()
    }) else {
        bail!("a conflicting attempt was committed")
    };
    ensure!(matches!(err.kind(), ErrorKind::RetriesExhausted { .. }));
    println!("{err}");
    Ok(())
}

/// Takes this number of bolts from the stock, or fails if there are fewer.
fn take(txn: &mut percolite::Txn, stock: &Keyspace, number: u64) -> Result<(), Error> {
    let bolts = txn.get(stock, "bolts")?.unwrap_or_default();
    let bolts: u64 = String::from_utf8_lossy(&bolts).parse().unwrap_or_default();
    let left = bolts.checked_sub(number);
    let left = left.ok_or_else(|| ErrorKind::InvalidArgument(format!("there are only {bolts} bolts")))?;
    txn.put(stock, "bolts", left.to_string())
}
