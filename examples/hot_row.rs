//! What history and snapshots cost: a row with many versions beside one with none, and many live snapshots.
//!
//! ```text
//! cargo run --release --example hot_row -- 1000000
//! ```

use std::time::{Duration, Instant};

use percolite::{Durability, Keyspace, Store};

const READS: u32 = 100_000;
const ROUNDS: usize = 7;

fn main() -> anyhow::Result<()> {
    let versions: u32 = std::env::args().nth(1).map_or(Ok(20_000), |count| count.parse())?;
    let folder = tempfile::tempdir()?;
    let store = Store::builder()
        .history_retention(Duration::from_secs(24 * 3600))
        .durability(Durability::Buffered)
        .open(folder.path().join("store"))?;
    let (hot, cold) = (store.keyspace("hot")?, store.keyspace("cold")?);
    for rows in [&hot, &cold] {
        store.transact(|txn| (0..100_u8).try_for_each(|key| txn.put(rows, [key], [7; 100])))?;
    }
    let began = Instant::now();
    for n in 0..versions {
        let mut txn = store.begin()?;
        txn.put(&hot, [50], [n.to_be_bytes()[3]; 100])?;
        txn.commit()?;
    }
    println!("{versions} versions of one row written in {:.1} s", began.elapsed().as_secs_f64());
    let ratio = |what: &str, measure: &dyn Fn(&Keyspace) -> percolite::Result<Duration>| -> percolite::Result<()> {
        // In turn, so that the machine's moods meet both.
        let mut ratios = Vec::new();
        for _ in 0..ROUNDS {
            let (with, without) = (measure(&hot)?, measure(&cold)?);
            ratios.push(with.as_secs_f64() / without.as_secs_f64());
        }
        ratios.sort_by(f64::total_cmp);
        println!(
            "{what}: {:.2} times that of one without ({:.2} to {:.2})",
            ratios[ROUNDS / 2],
            ratios[0],
            ratios[ROUNDS - 1]
        );
        Ok(())
    };
    let snapshot = store.snapshot()?;
    ratio("a read", &|rows| {
        let began = Instant::now();
        for _ in 0..READS {
            snapshot.get(rows, [50])?;
        }
        Ok(began.elapsed())
    })?;
    ratio("a scan of 100 rows", &|rows| {
        let began = Instant::now();
        for _ in 0..READS / 100 {
            for row in snapshot.range(rows, ..) {
                row?;
            }
        }
        Ok(began.elapsed())
    })?;
    drop(snapshot);

    let commits = || {
        let began = Instant::now();
        for n in 0..versions.min(100_000) {
            let mut txn = store.begin()?;
            txn.put(&cold, [n.to_be_bytes()[3]], [7; 100])?;
            txn.commit()?;
        }
        Ok::<_, percolite::Error>(began.elapsed().as_secs_f64())
    };
    let before = commits()?;
    let mut snapshots = Vec::new();
    let (began, resident) = (Instant::now(), resident_kib());
    for n in 0..versions.min(100_000) {
        let mut txn = store.begin()?;
        txn.put(&cold, [n.to_be_bytes()[3]], [7; 100])?;
        txn.commit()?;
        snapshots.push(store.snapshot()?);
    }
    let (taking, grown) = (began.elapsed().as_secs_f64(), resident_kib().saturating_sub(resident));
    let beside = commits()?;
    println!(
        "{} snapshots of different states: as many commits took {before:.2} s before, {taking:.2} s with a snapshot each, \
         {beside:.2} s beside them; {grown} KiB more resident",
        snapshots.len()
    );
    let began = Instant::now();
    drop(snapshots);
    println!("dropped in {:.2} s", began.elapsed().as_secs_f64());
    store.close()?;
    Ok(())
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}
