//! A store on disk whose process is killed again and again.
//!
//! The child commits from several threads and prints each commit when it is acknowledged. The
//! parent kills it, opens the store and checks that every printed commit is there and that no
//! thread's rows have a gap. The write buffers are small, so that some kills come during a flush.
//! `LAYERED_LIVES` sets the number of incarnations.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use percolite::{Keyspace, Store};

const THREADS: u64 = 4;
const CHILD: &str = "PERCOLITE_LAYERED_CHILD";

fn main() -> Result<()> {
    if let Some(directory) = std::env::var_os(CHILD) {
        return write_until_killed(Path::new(&directory));
    }
    let incarnations =
        std::env::var("LAYERED_LIVES").ok().and_then(|incarnations| incarnations.parse().ok()).unwrap_or(12);
    let directory = tempfile::tempdir()?;
    let mut acknowledged = BTreeMap::new();
    for incarnation in 0..incarnations {
        let commits = 1 + incarnation * 977 % 4000;
        kill_after(directory.path(), commits, &mut acknowledged)?;
        check(directory.path(), &acknowledged)
            .with_context(|| format!("incarnation {incarnation}, killed after {commits} commits"))?;
    }
    let removed = removed_segments(directory.path())?;
    ensure!(removed > 0 || incarnations < 12, "no segment of the log was flushed");
    println!("{incarnations} incarnations, {removed} segments flushed, acknowledged: {acknowledged:?}");
    Ok(())
}

fn open(directory: &Path) -> Result<(Store, Keyspace)> {
    let builder = Store::builder().write_buffer_bytes(1 << 20).block_cache_bytes(1 << 20);
    let store = builder.open(directory)?;
    let rows = store.keyspace("rows")?;
    Ok((store, rows))
}

fn count(bytes: &[u8]) -> Result<u64> {
    Ok(std::str::from_utf8(bytes)?.parse()?)
}

fn write_until_killed(directory: &Path) -> Result<()> {
    let (store, rows) = open(directory)?;
    std::thread::scope(|scope| {
        let work = |thread: u64| -> Result<()> {
            loop {
                let number = store.transact(|txn| {
                    let before = txn.get(&rows, format!("count/{thread}"))?;
                    let number = before.and_then(|bytes| count(&bytes).ok()).unwrap_or(0) + 1;
                    txn.put(&rows, format!("count/{thread}"), number.to_string())?;
                    txn.put(&rows, format!("row/{thread}/{number:09}"), [7; 300])?;
                    Ok::<_, percolite::Error>(number)
                })?;
                writeln!(std::io::stdout(), "{thread} {number}")?;
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        // When the parent has ended, printing fails, and so each thread ends.
        threads.into_iter().for_each(|thread| drop(thread.join()));
        Ok(())
    })
}

fn kill_after(directory: &Path, commits: u64, acknowledged: &mut BTreeMap<u64, u64>) -> Result<()> {
    let mut child = Command::new(std::env::current_exe()?).env(CHILD, directory).stdout(Stdio::piped()).spawn()?;
    let lines = BufReader::new(child.stdout.take().context("the child has no output")?).lines();
    for (printed, line) in lines.enumerate() {
        let line = line?;
        let (thread, number) = line.split_once(' ').context("a line that is no commit")?;
        acknowledged.insert(thread.parse()?, number.parse()?);
        if printed as u64 == commits {
            child.kill()?;
        }
    }
    let status = child.wait()?;
    ensure!(status.code().is_none(), "the child ended by itself: {status}");
    Ok(())
}

fn check(directory: &Path, acknowledged: &BTreeMap<u64, u64>) -> Result<()> {
    let (store, rows) = open(directory)?;
    let snapshot = store.snapshot()?;
    for thread in 0..THREADS {
        let found = snapshot.get(&rows, format!("count/{thread}"))?.map_or(Ok(0), |bytes| count(&bytes))?;
        let printed = acknowledged.get(&thread).copied().unwrap_or(0);
        ensure!(found >= printed, "thread {thread}: {printed} commits were acknowledged, {found} are there");
        let mut there = 0;
        for row in snapshot.range(&rows, format!("row/{thread}/")..format!("row/{thread}0")) {
            let row = row?;
            there += 1;
            let expected = format!("row/{thread}/{there:09}");
            ensure!(row.key() == expected.as_bytes(), "{} where {expected} belongs", row.key().escape_ascii());
            ensure!(row.value().len() == 300, "a value of {} bytes", row.value().len());
        }
        ensure!(there == found, "thread {thread}: the count is {found}, but there are {there} rows");
    }
    drop(snapshot);
    Ok(store.close()?)
}

/// The number of removed segments. Segments are numbered from 1, so the lowest remaining number
/// shows how many were removed.
fn removed_segments(directory: &Path) -> Result<u64> {
    let mut lowest = u64::MAX;
    for entry in std::fs::read_dir(directory.join("wal"))? {
        let name = entry?.file_name();
        if name == "synced" {
            continue;
        }
        let digits = name.to_str().and_then(|name| name.strip_suffix(".segment"));
        lowest = lowest.min(digits.context("a file that is no segment")?.parse()?);
    }
    Ok(lowest - 1)
}
