//! Why was it slow? Active transactions, slow transactions with their conflicts, and latencies, as
//! the program itself can read them.
//!
//! ```text
//! cargo run --release --example observe
//! ```

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use percolite::{Store, TxnOptions};

fn main() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    // The default threshold is one second. With read timing the time of reads is separate from that
    // of the closure's code.
    let store = Store::builder()
        .slow_transaction_threshold(Duration::from_millis(50))
        .track_read_timing(true)
        .open(dir.path())?;
    let accounts = store.keyspace("accounts")?;

    // This snapshot stays open to the end, like a forgotten one. While it is open, garbage
    // collection keeps all versions that it can read.
    let _report = store.snapshot()?.with_label("monthly report");

    // The payroll reads alice's account and works for 60 ms. Meanwhile a transfer changes the
    // account, so the payroll conflicts and is retried.
    let (has_read, payroll_has_read) = mpsc::channel();
    thread::scope(|scope| -> anyhow::Result<()> {
        let payroll = scope.spawn(|| {
            store.transact_with(TxnOptions::with_label("payroll"), |txn| {
                let balance = txn.get(&accounts, "alice")?.map_or(0, |balance| balance.len());
                let _ = has_read.send(());
                thread::sleep(Duration::from_millis(60));
                txn.put(&accounts, "alice", vec![b'+'; balance + 1])
            })
        });
        payroll_has_read.recv()?;
        store.transact_with(TxnOptions::with_label("transfer"), |txn| txn.put(&accounts, "alice", "+"))?;

        println!("Active, oldest first:");
        for active in store.active_transactions() {
            println!(
                "  {:?} {:?}, read timestamp {}, age {:.1?}",
                active.kind, active.label, active.read_ts, active.age
            );
        }
        payroll.join().map_err(|_| anyhow::anyhow!("the payroll thread panicked"))??;
        Ok(())
    })?;

    println!("\nSlow:");
    for slow in store.slow_transactions() {
        println!("  {slow}");
    }

    let (stats, latencies) = (store.stats(), store.latencies());
    println!("\n{} commits, {:.1} per WAL sync", stats.commits(), stats.commits_per_sync());
    println!("{} conflicts, {} of them with newer versions", stats.conflicts, stats.conflicts_newer_version);
    let commit = &latencies.commit_durable;
    println!("durable commits: median {:.1?}, maximum {:.1?}", commit.percentile(50.0), commit.max());
    println!("WAL syncs: median {:.1?}", latencies.wal_sync.percentile(50.0));
    Ok(())
}
