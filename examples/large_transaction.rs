//! One transaction of many rows: how long it takes, how much memory, and how much is written for it.
//!
//! ```text
//! cargo run --release --example large_transaction -- [ROWS [FOLDER]]
//! ```

use std::path::PathBuf;
use std::time::Instant;

fn main() -> anyhow::Result<()> {
    let rows: u64 = std::env::args().nth(1).unwrap_or_else(|| "100000".into()).parse()?;
    let folder = std::env::args().nth(2).map(PathBuf::from);
    let scratch = tempfile::tempdir()?;
    let store = percolite::Store::open(folder.as_deref().unwrap_or(scratch.path()))?;
    let table = store.keyspace("table")?;
    let began = Instant::now();
    let mut txn = store.begin()?;
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
        txn.put(&table, row.to_be_bytes(), value)?;
    }
    println!("{:7.1} s  {rows} rows are written: {}", began.elapsed().as_secs_f64(), usage()?);
    let commit = txn.commit()?;
    println!("{:7.1} s  committed at {}: {}", began.elapsed().as_secs_f64(), commit.ts, usage()?);
    let seen = store.snapshot()?.range(&table, ..).count();
    println!("{:7.1} s  a snapshot has read all {seen}: {}", began.elapsed().as_secs_f64(), usage()?);
    anyhow::ensure!(seen as u64 == rows, "{seen} rows of {rows} are there");
    while store.stats().large_unfinished > 0 {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    println!("{:7.1} s  rolled forward: {}", began.elapsed().as_secs_f64(), usage()?);
    store.close()?;
    let written = field("/proc/self/io", "write_bytes:")?;
    let tenths = written * 10 / (rows * 108).max(1);
    println!("{:5}.{} bytes written for each byte of key and value", tenths / 10, tenths % 10);
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
