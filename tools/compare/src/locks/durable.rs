//! What takes a sync: transactions under a lock, leases, and opening with many of them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use percolite::{Durability, Keyspace, LockOptions, Store, Txn, TxnOptions};

use super::{Bench, Goal, Line};

const LEASE: Duration = Duration::from_secs(3600);
const CLIENTS: u64 = 16;
const NAMES: u64 = 64;
/// So many leases the figure is for.
const LEASES: u64 = 100_000;

pub fn lines(bench: &Bench) -> Result<Vec<Line<'_>>> {
    let store = bench.open("durable", Durability::Sync)?;
    let rows = store.keyspace("rows")?;
    let time = bench.time;
    let (under, alone, many) = ((store.clone(), rows.clone()), (store.clone(), rows.clone()), (store, rows));
    let lines = vec![
        Line::ratio("lock_transact, 16 threads, over a guard held over the sync, a second", Goal::AtLeast(3.0), {
            move || {
                let (store, rows) = &under;
                let theirs = rate(CLIENTS, time, |_| {
                    let guard = store.lock("counter")?;
                    let fence = guard.fence();
                    store.transact(|txn| {
                        txn.fence(&fence)?;
                        count(txn, rows)
                    })?;
                    Ok(())
                })?;
                let ours = rate(CLIENTS, time, |_| {
                    let count = |txn: &mut Txn| count(txn, rows);
                    Ok(store.lock_transact("counter", LockOptions::exclusive(), TxnOptions::default(), count)?)
                })?;
                Ok((ours, theirs))
            }
        }),
        Line::ratio("lease taken and released by one, over a durable commit, µs", Goal::AtMost(2.2), move || {
            let (store, rows) = &alone;
            let commit = rate(1, time, |client| Ok(put(store, rows, client)?))?;
            let lease = rate(1, time, |client| lease(store, client))?;
            Ok((1e6 / lease, 1e6 / commit))
        }),
        Line::ratio("leases of 64 names, over half the durable commits, a second", Goal::AtLeast(0.8), move || {
            let (store, rows) = &many;
            let commits = rate(NAMES, time, |client| Ok(put(store, rows, client)?))?;
            Ok((rate(NAMES, time, |client| lease(store, client))?, commits / 2.0))
        }),
        Line::alone("opening with 100,000 leases, seconds more", Goal::AtMost(1.0), move || opening(bench)),
    ];
    Ok(lines)
}

fn count(txn: &mut Txn, rows: &Keyspace) -> percolite::Result<()> {
    let before = txn.get(rows, "counter")?.map_or([0; 8], |value| value.as_slice().try_into().unwrap_or_default());
    txn.put(rows, "counter", (u64::from_be_bytes(before) + 1).to_be_bytes())
}

fn put(store: &Store, rows: &Keyspace, client: u64) -> percolite::Result<()> {
    store.transact(|txn| txn.put(rows, client.to_be_bytes(), [1; 100]))
}

fn lease(store: &Store, client: u64) -> Result<()> {
    Ok(store.lock_with(format!("name {client}"), LockOptions::exclusive().lease(LEASE))?.release()?)
}

/// How often a second so many clients together do this.
#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn rate(clients: u64, time: Duration, turn: impl Fn(u64) -> Result<()> + Sync) -> Result<f64> {
    let (turns, is_over, turn) = (&AtomicU64::new(0), &AtomicBool::new(false), &turn);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let client = |client| {
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    turn(client)?;
                    turns.fetch_add(1, Ordering::Relaxed);
                }
                anyhow::Ok(())
            })
        };
        let threads: Vec<_> = (0..clients).map(client).collect();
        std::thread::sleep(time);
        is_over.store(true, Ordering::Relaxed);
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
    })?;
    Ok(turns.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64())
}

/// How much longer opening takes with leases than without; scaled where there are fewer. The first round makes them.
#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn opening(bench: &Bench) -> Result<f64> {
    let names = bench.names / NAMES * NAMES;
    if !bench.path().join("leases").exists() {
        let store = bench.open("leases", Durability::Sync)?;
        std::thread::scope(|scope| {
            let some = |client| {
                let store = &store;
                scope.spawn(move || {
                    for name in (client..names).step_by(usize::try_from(NAMES)?) {
                        store.get_lock(&format!("name {name:06}"), LEASE * 24)?.context("it is held")?;
                    }
                    anyhow::Ok(())
                })
            };
            let threads: Vec<_> = (0..NAMES).map(some).collect();
            threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
        })?;
        store.close()?;
        bench.open("no leases", Durability::Sync)?.close()?;
    }
    let open = |name, held: u64| {
        let began = Instant::now();
        let store = bench.open(name, Durability::Sync)?;
        let took = began.elapsed().as_secs_f64();
        ensure!(store.lock_table()?.held as u64 == held, "not all are held");
        store.close()?;
        Ok(took)
    };
    let (without, with) = (open("no leases", 0)?, open("leases", names)?);
    Ok((with - without) * LEASES as f64 / names as f64)
}
