//! One transaction of many rows: how long it takes, and how much memory. And another one whose process dies before the commit: how
//! soon the store is open again, and how the rows are let go.
//!
//! ```text
//! cargo run --release --example large_transaction -- [ROWS [FOLDER]]
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use percolite::{Keyspace, Store, Txn};

/// Set for the process that dies.
const DIES: &str = "EXAMPLE_DIES";

fn main() -> anyhow::Result<()> {
    let rows: u64 = std::env::args().nth(1).unwrap_or_else(|| "300000".into()).parse()?;
    let folder = std::env::args().nth(2).map(PathBuf::from);
    let scratch = tempfile::tempdir()?;
    let folder = folder.as_deref().unwrap_or(scratch.path());
    if std::env::var_os(DIES).is_some() {
        let store = Store::open(folder)?;
        write(&mut store.begin()?, &store.keyspace("table")?, rows)?;
        std::process::abort();
    }
    commit(folder, rows)?;
    recover(folder, rows)
}

fn commit(folder: &Path, rows: u64) -> anyhow::Result<()> {
    let store = Store::open(folder)?;
    let table = store.keyspace("table")?;
    let began = Instant::now();
    let mut txn = store.begin()?;
    write(&mut txn, &table, rows)?;
    println!("{:7.1} s  {rows} rows are written: {}", began.elapsed().as_secs_f64(), usage()?);
    let commit = txn.commit()?;
    println!("{:7.1} s  committed at {:#}: {}", began.elapsed().as_secs_f64(), commit.commit_ts, usage()?);
    let seen = store.snapshot()?.range(&table, ..).count();
    println!("{:7.1} s  a snapshot has read all {seen}: {}", began.elapsed().as_secs_f64(), usage()?);
    anyhow::ensure!(seen as u64 == rows, "{seen} rows of {rows} are there");
    while store.stats().cleanup_pending > 0 {
        std::thread::sleep(Duration::from_millis(100));
    }
    println!("{:7.1} s  rolled forward: {}", began.elapsed().as_secs_f64(), usage()?);
    match store.stats().commits_large {
        0 => println!("           (too few rows to be streamed)"),
        _ => println!("           (it was streamed)"),
    }
    Ok(store.close()?)
}

/// Another process begins to write all rows again, and dies before it commits.
fn recover(folder: &Path, rows: u64) -> anyhow::Result<()> {
    let mut dying = Command::new(std::env::current_exe()?);
    let died = dying.arg(rows.to_string()).arg(folder).env(DIES, "").status()?;
    anyhow::ensure!(!died.success(), "the process was to die");
    let began = Instant::now();
    let store = Store::open(folder)?;
    println!(
        "{:7.1} s  open again after a process has died that was writing {rows} rows",
        began.elapsed().as_secs_f64()
    );
    let table = store.keyspace("table")?;
    anyhow::ensure!(store.snapshot()?.range(&table, ..).take(1000).all(|row| row.is_ok()), "a row cannot be read");
    println!("{:7.1} s  a thousand rows are read", began.elapsed().as_secs_f64());
    let mut told = Instant::now();
    while store.stats().may_have_orphan_locks {
        std::thread::sleep(Duration::from_millis(100));
        if told.elapsed() > Duration::from_secs(5) {
            println!(
                "{:7.1} s  {} row locks let go",
                began.elapsed().as_secs_f64(),
                store.stats().orphan_locks_resolved
            );
            told = Instant::now();
        }
    }
    println!(
        "{:7.1} s  all {} row locks are gone: {}",
        began.elapsed().as_secs_f64(),
        store.stats().orphan_locks_resolved,
        usage()?
    );
    let left = store.snapshot()?.range(&table, ..).count() as u64;
    anyhow::ensure!(left == rows, "{left} rows of {rows} are there");
    Ok(store.close()?)
}

fn write(txn: &mut Txn, table: &Keyspace, rows: u64) -> percolite::Result<()> {
    let mut random = 1_u64;
    for row in 0..rows {
        // Values that do not compress.
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
    let highest = field("/proc/self/status", "VmHWM:")? / 1024;
    Ok(format!("{resident} MiB resident, {highest} at most"))
}

fn field(file: &str, name: &str) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(file)?;
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    Ok(line.split_whitespace().nth(1).unwrap_or("0").parse()?)
}
