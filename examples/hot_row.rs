//! The cost of history and of snapshots: reads of a row with many versions, compared with reads of
//! a row with one version; and commits while many snapshots are open.
//!
//! ```text
//! cargo run --release --example hot_row -- [VERSIONS]
//! ```

use std::time::{Duration, Instant};

use percolite::{Durability, Keyspace, Store};

const READS: u32 = 100_000;
const ROUNDS: usize = 7;

fn main() -> anyhow::Result<()> {
    let versions: u32 = std::env::args().nth(1).map_or(Ok(20_000), |count| count.parse())?;
    let dir = tempfile::tempdir()?;
    // Replaced versions are kept for a day, so every version of the hot row stays.
    let store = Store::builder()
        .history_retention(Duration::from_secs(24 * 3600))
        .durability(Durability::Buffered)
        .open(dir.path().join("store"))?;
    let (hot, cold) = (store.keyspace("hot")?, store.keyspace("cold")?);
    for rows in [&hot, &cold] {
        store.transact(|txn| (0..100_u8).try_for_each(|key| txn.put(rows, [key], [7; 100])))?;
    }
    write_history(&store, &hot, versions)?;
    compare_reads(&store, &hot, &cold)?;
    compare_commits(&store, &cold, versions.min(100_000))?;
    store.close()?;
    Ok(())
}

fn write_history(store: &Store, hot: &Keyspace, versions: u32) -> percolite::Result<()> {
    let started = Instant::now();
    for n in 0..versions {
        let mut txn = store.begin()?;
        txn.put(hot, [50], [n.to_be_bytes()[3]; 100])?;
        txn.commit()?;
    }
    println!("{versions} versions of one row written in {:.1} s", started.elapsed().as_secs_f64());
    Ok(())
}

/// Compares reads in `hot`, where one row has many versions, with reads in `cold`, where every row
/// has one.
fn compare_reads(store: &Store, hot: &Keyspace, cold: &Keyspace) -> percolite::Result<()> {
    let snapshot = store.snapshot()?;
    print_ratio("a read of the row", hot, cold, |rows| {
        let started = Instant::now();
        for _ in 0..READS {
            snapshot.get(rows, [50])?;
        }
        Ok(started.elapsed())
    })?;
    print_ratio("a scan of 100 rows", hot, cold, |rows| {
        let started = Instant::now();
        for _ in 0..READS / 100 {
            for row in snapshot.range(rows, ..) {
                row?;
            }
        }
        Ok(started.elapsed())
    })
}

fn print_ratio(
    what: &str,
    hot: &Keyspace,
    cold: &Keyspace,
    measure: impl Fn(&Keyspace) -> percolite::Result<Duration>,
) -> percolite::Result<()> {
    // The two measurements alternate, so that a slow phase of the machine affects both.
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let (with_history, without) = (measure(hot)?, measure(cold)?);
        ratios.push(with_history.as_secs_f64() / without.as_secs_f64());
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "{what} takes {:.2} times as long as without history ({:.2} to {:.2})",
        ratios[ROUNDS / 2],
        ratios[0],
        ratios[ROUNDS - 1]
    );
    Ok(())
}

/// Compares commits while many snapshots are open with commits without snapshots.
fn compare_commits(store: &Store, cold: &Keyspace, commits: u32) -> percolite::Result<()> {
    let commit = |n: u32| {
        let mut txn = store.begin()?;
        txn.put(cold, [n.to_be_bytes()[3]], [7; 100])?;
        txn.commit()
    };
    let commit_seconds = || {
        let started = Instant::now();
        for n in 0..commits {
            commit(n)?;
        }
        Ok::<_, percolite::Error>(started.elapsed().as_secs_f64())
    };
    let before = commit_seconds()?;
    let mut snapshots = Vec::new();
    let (started, resident) = (Instant::now(), resident_kib());
    for n in 0..commits {
        commit(n)?;
        snapshots.push(store.snapshot()?);
    }
    let (with_snapshot, grown) = (started.elapsed().as_secs_f64(), resident_kib().saturating_sub(resident));
    let with_open_snapshots = commit_seconds()?;
    println!(
        "{} commits took {before:.2} s without snapshots, {with_snapshot:.2} s with a new snapshot after each, \
         and {with_open_snapshots:.2} s while these were open; they took {grown} KiB of memory",
        snapshots.len()
    );
    let started = Instant::now();
    drop(snapshots);
    println!("dropping the snapshots took {:.2} s", started.elapsed().as_secs_f64());
    Ok(())
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}
