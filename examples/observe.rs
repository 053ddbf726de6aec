//! Why was it slow? A store that is asked by its own program: who is live, how long things take, who was in whose way.
//!
//! `cargo run --release --example observe`

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use percolite::{Store, TxnOptions};

fn main() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    // Low, so that there is something to see within a second; reads are timed, too.
    let store = Store::builder()
        .slow_transaction_threshold(Duration::from_millis(50))
        .track_read_timing(true)
        .open(folder.path())?;
    let accounts = store.keyspace("accounts")?;

    // A report that somebody has forgotten to drop: nothing it may read is collected.
    let _report = store.snapshot()?.with_label("monthly report");

    // A payroll that thinks with alice's account in its hands, while short transfers take place.
    let (thinking, has_begun) = mpsc::channel();
    thread::scope(|scope| -> anyhow::Result<()> {
        let payroll = scope.spawn(|| {
            store.transact_with(TxnOptions::with_label("payroll"), |txn| {
                let balance = txn.get(&accounts, "alice")?.map_or(0, |balance| balance.len());
                let _ = thinking.send(());
                thread::sleep(Duration::from_millis(60));
                txn.put(&accounts, "alice", vec![b'+'; balance + 1])
            })
        });
        has_begun.recv()?;
        store.transact_with(TxnOptions::with_label("transfer"), |txn| txn.put(&accounts, "alice", "+"))?;

        println!("Live, oldest first:");
        for live in store.active_transactions() {
            println!("  {:?} {:?} reads {}, for {:.1?}", live.kind, live.label, live.read_ts, live.age);
        }
        payroll.join().map_err(|_| anyhow::anyhow!("the payroll has panicked"))??;
        Ok(())
    })?;

    println!("\nSlow:");
    for slow in store.slow_transactions() {
        println!("  {slow}");
    }

    let (stats, latencies) = (store.stats(), store.latencies());
    println!("\n{} commits, {:.1} to a sync", stats.commits(), stats.commits_per_sync());
    println!("conflicts: {}, of which {} with a commit", stats.conflicts, stats.conflicts_newer_version);
    let commit = &latencies.commit_durable;
    println!("a commit took {:.1?} at the median, {:.1?} at most", commit.percentile(50.0), commit.max());
    println!("a sync of the log took {:.1?} at the median", latencies.wal_sync.percentile(50.0));
    Ok(())
}
