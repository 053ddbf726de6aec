//! Conflicts: what `transact` does about them, and how to do it by hand.
//!
//! `cargo run --release --example retry`

use std::time::Duration;

use anyhow::{bail, ensure};
use percolite::{ConflictReason, Error, ErrorKind, Keyspace, RetryPolicy, Store, TxnOptions};

fn main() -> anyhow::Result<()> {
    let store = Store::in_memory()?;
    let stock = store.keyspace("stock")?;
    store.transact(|txn| txn.put(&stock, "bolts", "1000"))?;

    // Many writers of one row: each attempt that loses is made again, and waits its turn instead of trying wildly.
    std::thread::scope(|scope| {
        let sell = || (0..50).try_for_each(|_| store.transact(|txn| take(txn, &stock, 1)));
        let sellers: Vec<_> = (0..8).map(|_| scope.spawn(sell)).collect();
        sellers.into_iter().flat_map(std::thread::ScopedJoinHandle::join).collect::<Result<(), Error>>()
    })?;
    println!("600 bolts are left, after {} conflicts", store.stats().conflicts);

    // An error of one's own ends it at once, and nothing is written.
    let Err(why) = store.transact(|txn| take(txn, &stock, 5000)) else { bail!("there are not so many") };
    println!("5000 of 600: {why}");

    // By hand: the error says who was faster, and whether trying again makes sense.
    let mut slow = store.begin()?;
    take(&mut slow, &stock, 1)?;
    store.transact(|txn| take(txn, &stock, 10))?;
    let Err(why) = slow.commit() else { bail!("somebody else was faster") };
    ensure!(
        why.is_retryable() && matches!(why.conflict().map(|met| met.reason), Some(ConflictReason::NewerVersion(_)))
    );
    println!("{why}");

    // Bounded, for a caller that cannot wait. Here somebody else is always faster.
    let limits = RetryPolicy { max_attempts: 3, timeout: Duration::from_millis(100) };
    let options = TxnOptions { retry_policy: Some(limits), ..TxnOptions::default() };
    let Err(why) = store.transact_with(options, |txn| {
        take(txn, &stock, 1)?;
        let mut other = store.begin()?;
        take(&mut other, &stock, 1)?;
        other.commit()
    }) else {
        bail!("it never wins")
    };
    ensure!(matches!(why.kind(), ErrorKind::RetriesExhausted { .. }));
    println!("{why}");
    Ok(())
}

/// Takes so many from the stock.
fn take(txn: &mut percolite::Txn, stock: &Keyspace, number: u64) -> Result<(), Error> {
    let there = txn.get(stock, "bolts")?.unwrap_or_default();
    let there: u64 = String::from_utf8_lossy(&there).parse().unwrap_or_default();
    let left = there.checked_sub(number);
    let left = left.ok_or_else(|| ErrorKind::InvalidArgument(format!("there are only {there} bolts")))?;
    txn.put(stock, "bolts", left.to_string())
}
