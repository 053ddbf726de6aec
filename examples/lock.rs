//! Locks by name, with several threads that ask for each: a migration that is run once, a bounded number of workers, and a holder whose lock
//! is taken away.
//!
//! `cargo run --release --example lock -- --contenders 6`

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{anyhow, bail, ensure};
use clap::Parser;
use percolite::{ErrorKind, Keyspace, LockGuard, LockOptions, LockWaitPolicy, Store};

#[derive(Parser)]
struct Args {
    /// How many threads ask for each lock
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(2..=64))]
    contenders: u32,
    /// How many of them may work at once
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    at_once: u32,
}

fn main() -> anyhow::Result<()> {
    let Args { contenders, at_once } = Args::parse();
    let store = Store::builder().application_name("lock example").in_memory()?;
    let state = store.keyspace("state")?;
    one_migration(&store, &state, contenders)?;
    a_bounded_number(&store, contenders, at_once)?;
    taken_away(&store, &state)?;

    let stats = store.lock_stats();
    println!("\n{} locks taken; of exclusive ones {} had to wait", stats.acquired(), stats.exclusive.waits);
    let table = store.lock_table()?;
    ensure!(table.held == 0 && table.waiting == 0, "something is left: {table:?}");
    Ok(())
}

/// Several start at once, and each is to bring in the new schema. The lock comes before the snapshot, so the second sees what the first did.
fn one_migration(store: &Store, state: &Keyspace, contenders: u32) -> anyhow::Result<()> {
    println!("A migration, wanted by {contenders}:");
    let migrations = AtomicUsize::new(0);
    let migrate = |number: u32| -> anyhow::Result<()> {
        let options = LockOptions::exclusive()
            .wait(LockWaitPolicy::Timeout(Duration::from_secs(60)))
            .reason("migration to schema 2");
        let guard = store.lock_with("migration", options)?;
        let fence = guard.fence();
        if store.snapshot()?.get(state, "schema")?.as_deref() == Some(b"2") {
            println!("  {number}: token {}, the schema is 2 already", guard.token());
            return Ok(());
        }
        // Long enough for all others to come.
        while store.lock_table()?.waiting + 1 < contenders as usize {
            thread::sleep(Duration::from_millis(1));
        }
        println!("  {number}: token {}, migrates, and {} wait for it", guard.token(), store.lock_table()?.waiting);
        migrations.fetch_add(1, Ordering::Relaxed);
        // Commits only while the lock is held.
        store.transact(|txn| {
            txn.fence(&fence)?;
            txn.put(state, "schema", "2")
        })?;
        Ok(())
    };
    all(contenders, migrate)?;
    let (ran, waited) = (migrations.into_inner(), store.lock_stats().exclusive.waits);
    ensure!(ran == 1 && waited == u64::from(contenders) - 1, "it ran {ran} times, {waited} have waited");
    Ok(())
}

/// A semaphore: each of them has to say the same number.
fn a_bounded_number(store: &Store, contenders: u32, at_once: u32) -> anyhow::Result<()> {
    println!("\nThumbnails, by {at_once} of {contenders} at once:");
    let (working, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = |number: u32| -> anyhow::Result<()> {
        let permit = store.lock_with("thumbnails", LockOptions::semaphore(at_once))?;
        let now = working.fetch_add(1, Ordering::SeqCst) + 1;
        most.fetch_max(now, Ordering::SeqCst);
        println!("  {number} works, {now} at once");
        thread::sleep(Duration::from_millis(20));
        working.fetch_sub(1, Ordering::SeqCst);
        permit.release()?;
        Ok(())
    };
    all(contenders, work)?;
    let most = most.into_inner();
    ensure!(most <= at_once as usize, "{most} worked at once");
    ensure!(store.lock_stats().semaphore.waits > 0 || at_once >= contenders, "no request had to wait");
    Ok(())
}

/// An operator takes the lock away from a holder that hangs. What that had fenced is not committed.
fn taken_away(store: &Store, state: &Keyspace) -> anyhow::Result<()> {
    println!("\nA holder that hangs:");
    let (holds, has_lock) = mpsc::channel();
    thread::scope(|scope| -> anyhow::Result<()> {
        let holder = scope.spawn(move || -> anyhow::Result<()> {
            let guard: LockGuard = store.lock("report")?;
            let mut txn = store.begin()?;
            txn.fence(&guard.fence())?;
            txn.put(state, "report", "by the first")?;
            holds.send(())?;
            // It hangs until it has lost its lock.
            ensure!(guard.wait_lost(Duration::from_secs(60)), "it was not taken away");
            let Err(why) = txn.commit() else { bail!("the lock is lost") };
            ensure!(matches!(why.kind(), ErrorKind::LockLost(_)), "{why}");
            println!("  the commit of the first returns: {why}");
            Ok(())
        });
        has_lock.recv()?;
        let soon = LockOptions::exclusive().wait(LockWaitPolicy::Timeout(Duration::from_millis(50)));
        let Err(why) = store.lock_with("report", soon) else { bail!("it is held") };
        println!("  the request of the second returns: {why}");
        let ErrorKind::LockNotAvailable(held) = why.kind() else { return Err(why.into()) };
        let token = held.holders.first().and_then(|holder| holder.token).ok_or_else(|| anyhow!("no holder"))?;
        ensure!(store.force_unlock("report", token)?, "it went by itself");
        let guard = store.lock("report")?;
        ensure!(guard.token() > token, "tokens grow");
        holder.join().map_err(|_| anyhow!("the holder has panicked"))??;
        Ok(())
    })?;
    ensure!(store.snapshot()?.get(state, "report")?.is_none(), "it was committed after all");
    Ok(())
}

/// So many threads, each with its number.
fn all(threads: u32, work: impl Fn(u32) -> anyhow::Result<()> + Sync) -> anyhow::Result<()> {
    thread::scope(|scope| {
        let started: Vec<_> = (1..=threads)
            .map(|number| {
                scope.spawn({
                    let work = &work;
                    move || work(number)
                })
            })
            .collect();
        started.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread has panicked"))?)
    })
}
