//! The time and memory of one transaction with many rows. Then a process runs the same transaction
//! and aborts before the commit; the example shows how soon the store is open again, and when the
//! row locks are resolved.
//!
//! ```text
//! cargo run --release --example large_transaction -- [ROWS [DIRECTORY]]
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use percolite::{Keyspace, Store, Txn};

/// This environment variable marks the child process, which aborts before its commit.
const CHILD_ENV: &str = "EXAMPLE_CHILD";

fn main() -> anyhow::Result<()> {
    let rows: u64 = std::env::args().nth(1).unwrap_or_else(|| "300000".into()).parse()?;
    let dir = std::env::args().nth(2).map(PathBuf::from);
    let scratch = tempfile::tempdir()?;
    let dir = dir.as_deref().unwrap_or(scratch.path());
    if std::env::var_os(CHILD_ENV).is_some() {
        let store = Store::open(dir)?;
        write(&mut store.begin()?, &store.keyspace("table")?, rows)?;
        std::process::abort();
    }
    commit(dir, rows)?;
    recover(dir, rows)
}

fn commit(dir: &Path, rows: u64) -> anyhow::Result<()> {
    let store = Store::open(dir)?;
    let table = store.keyspace("table")?;
    let started = Instant::now();
    let mut txn = store.begin()?;
    write(&mut txn, &table, rows)?;
    println!("{:7.1} s  wrote {rows} rows: {}", started.elapsed().as_secs_f64(), usage()?);
    // The commit itself writes one record; then all rows are visible.
    let commit = txn.commit()?;
    println!("{:7.1} s  committed at {:#}: {}", started.elapsed().as_secs_f64(), commit.commit_ts, usage()?);
    let found = store.range(&table, ..)?.count();
    println!("{:7.1} s  read all {found} rows in a snapshot: {}", started.elapsed().as_secs_f64(), usage()?);
    anyhow::ensure!(found as u64 == rows, "found {found} of {rows} rows");
    // A large transaction locks its rows while it writes; the locks are removed in the background.
    while store.stats().cleanup_pending > 0 {
        std::thread::sleep(Duration::from_millis(100));
    }
    println!("{:7.1} s  removed all row locks: {}", started.elapsed().as_secs_f64(), usage()?);
    match store.stats().commits_large {
        0 => println!("           (not a large transaction: below Builder::large_transaction_bytes)"),
        _ => println!("           (a large transaction)"),
    }
    Ok(store.close()?)
}

/// A child process writes all rows again and aborts before its commit; then the store recovers.
fn recover(dir: &Path, rows: u64) -> anyhow::Result<()> {
    let mut child = Command::new(std::env::current_exe()?);
    let status = child.arg(rows.to_string()).arg(dir).env(CHILD_ENV, "").status()?;
    anyhow::ensure!(!status.success(), "the child process was to abort");
    let started = Instant::now();
    let store = Store::open(dir)?;
    println!(
        "{:7.1} s  opened the store, after a process was killed while it wrote {rows} rows",
        started.elapsed().as_secs_f64()
    );
    let table = store.keyspace("table")?;
    anyhow::ensure!(store.range(&table, ..)?.take(1000).all(|row| row.is_ok()), "a row cannot be read");
    println!("{:7.1} s  read a thousand rows", started.elapsed().as_secs_f64());
    let mut reported = Instant::now();
    while store.stats().may_have_orphan_locks {
        std::thread::sleep(Duration::from_millis(100));
        if reported.elapsed() > Duration::from_secs(5) {
            println!(
                "{:7.1} s  rolled back {} row locks",
                started.elapsed().as_secs_f64(),
                store.stats().orphan_locks_resolved
            );
            reported = Instant::now();
        }
    }
    println!(
        "{:7.1} s  rolled back all {} row locks: {}",
        started.elapsed().as_secs_f64(),
        store.stats().orphan_locks_resolved,
        usage()?
    );
    let found = store.range(&table, ..)?.count() as u64;
    anyhow::ensure!(found == rows, "found {found} of {rows} rows");
    Ok(store.close()?)
}

fn write(txn: &mut Txn, table: &Keyspace, rows: u64) -> percolite::Result<()> {
    let mut random = 1_u64;
    for row in 0..rows {
        // Random bytes, which do not compress.
        let value: Vec<u8> = (0..13)
            .flat_map(|_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                random.to_be_bytes()
            })
            .take(100)
            .collect();
        txn.put(table, row.to_be_bytes(), value)?;
    }
    Ok(())
}

fn usage() -> anyhow::Result<String> {
    let resident = field("/proc/self/status", "VmRSS:")? / 1024;
    let peak = field("/proc/self/status", "VmHWM:")? / 1024;
    Ok(format!("{resident} MiB resident, peak {peak} MiB"))
}

fn field(file: &str, name: &str) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(file)?;
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    Ok(line.split_whitespace().nth(1).unwrap_or("0").parse()?)
}
