//! Named locks among threads: a migration that runs once, a semaphore that bounds the number of
//! workers, and a hanging holder whose lock an operator ends by force.
//!
//! ```text
//! cargo run --release --example lock -- --contenders 6
//! ```

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{anyhow, bail, ensure};
use clap::Parser;
use percolite::{ErrorKind, Keyspace, LockGuard, LockOptions, LockWaitPolicy, Store};

#[derive(Parser)]
struct Args {
    /// Number of threads that request each lock
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(2..=64))]
    contenders: u32,
    /// Number of permits of the semaphore
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    permits: u32,
}

fn main() -> anyhow::Result<()> {
    let Args { contenders, permits } = Args::parse();
    let store = Store::builder().application_name("lock example").in_memory()?;
    let state = store.keyspace("state")?;
    migration(&store, &state, contenders)?;
    semaphore(&store, contenders, permits)?;
    force_unlock(&store, &state)?;

    let stats = store.lock_stats();
    println!("\n{} locks acquired, {} waits for exclusive locks", stats.acquired(), stats.exclusive.waits);
    let table = store.lock_table()?;
    ensure!(table.held == 0 && table.waiting == 0, "the lock table is not empty: {table:?}");
    Ok(())
}

/// Several instances of a program start, and each migrates the schema if it is old. Each reads the
/// schema while it holds the lock, so all but the first see the new schema.
fn migration(store: &Store, state: &Keyspace, contenders: u32) -> anyhow::Result<()> {
    println!("A migration, requested by {contenders} threads:");
    let migrations = AtomicUsize::new(0);
    let migrate = |number: u32| -> anyhow::Result<()> {
        let options = LockOptions::exclusive()
            .wait(LockWaitPolicy::Timeout(Duration::from_secs(60)))
            .reason("migration to schema 2");
        let guard = store.lock_with("migration", options)?;
        let fence = guard.fence();
        if store.get(state, "schema")?.as_deref() == Some(b"2") {
            println!("  thread {number}, token {}: the schema is migrated already", guard.token());
            return Ok(());
        }
        // Only for this example: wait until all others are in the queue.
        while store.lock_table()?.waiting + 1 < contenders as usize {
            thread::sleep(Duration::from_millis(1));
        }
        let waiting = store.lock_table()?.waiting;
        println!("  thread {number}, token {}: migrates the schema, {waiting} threads wait", guard.token());
        migrations.fetch_add(1, Ordering::Relaxed);
        // The fence makes the commit fail if the lock was lost meanwhile.
        store.transact(|txn| {
            txn.fence(&fence)?;
            txn.put(state, "schema", "2")
        })?;
        Ok(())
    };
    run_threads(contenders, migrate)?;
    let (runs, waits) = (migrations.into_inner(), store.lock_stats().exclusive.waits);
    ensure!(runs == 1 && waits == u64::from(contenders) - 1, "{runs} migrations, {waits} waits");
    Ok(())
}

/// A semaphore lets several threads work concurrently. All requests must give the same number of
/// permits.
fn semaphore(store: &Store, contenders: u32, permits: u32) -> anyhow::Result<()> {
    println!("\nA semaphore with {permits} permits, requested by {contenders} threads:");
    let (working, peak) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = |number: u32| -> anyhow::Result<()> {
        let permit = store.lock_with("thumbnails", LockOptions::semaphore(permits))?;
        let now = working.fetch_add(1, Ordering::SeqCst) + 1;
        peak.fetch_max(now, Ordering::SeqCst);
        println!("  thread {number} works, {now} in total");
        thread::sleep(Duration::from_millis(20));
        working.fetch_sub(1, Ordering::SeqCst);
        permit.release()?;
        Ok(())
    };
    run_threads(contenders, work)?;
    let peak = peak.into_inner();
    ensure!(peak <= permits as usize, "{peak} threads worked concurrently");
    ensure!(store.lock_stats().semaphore.waits > 0 || permits >= contenders, "no request had to wait");
    Ok(())
}

/// An operator ends the lock of a holder that hangs. The holder's fenced transaction cannot commit.
fn force_unlock(store: &Store, state: &Keyspace) -> anyhow::Result<()> {
    println!("\nA holder that hangs:");
    let (has_acquired, holder_has_lock) = mpsc::channel();
    thread::scope(|scope| -> anyhow::Result<()> {
        let holder = scope.spawn(move || -> anyhow::Result<()> {
            let guard: LockGuard = store.lock("report")?;
            let mut txn = store.begin()?;
            txn.fence(&guard.fence())?;
            txn.put(state, "report", "by the first holder")?;
            has_acquired.send(())?;
            // The holder hangs until the lock is lost.
            ensure!(guard.wait_lost(Duration::from_secs(60)), "the lock was not lost");
            let Err(err) = txn.commit() else { bail!("committed after the lock was lost") };
            ensure!(matches!(err.kind(), ErrorKind::LockLost(_)), "{err}");
            println!("  the holder's commit returns: {err}");
            Ok(())
        });
        holder_has_lock.recv()?;
        let timeout = LockOptions::exclusive().wait(LockWaitPolicy::Timeout(Duration::from_millis(50)));
        let Err(err) = store.lock_with("report", timeout) else { bail!("the lock was granted twice") };
        println!("  another request returns: {err}");
        // The error lists the holders with their tokens. `percolite locks` shows them, too.
        let ErrorKind::LockNotAvailable(held) = err.kind() else { return Err(err.into()) };
        let token = held.holders.first().and_then(|holder| holder.token).ok_or_else(|| anyhow!("no holder"))?;
        ensure!(store.force_unlock("report", token)?, "the token does not hold the lock");
        let guard = store.lock("report")?;
        ensure!(guard.token() > token, "tokens increase");
        holder.join().map_err(|_| anyhow!("the holder panicked"))??;
        Ok(())
    })?;
    ensure!(store.get(state, "report")?.is_none(), "the fenced transaction was committed");
    Ok(())
}

/// Runs this number of threads, numbered from 1.
fn run_threads(threads: u32, work: impl Fn(u32) -> anyhow::Result<()> + Sync) -> anyhow::Result<()> {
    thread::scope(|scope| {
        let handles: Vec<_> = (1..=threads)
            .map(|number| {
                scope.spawn({
                    let work = &work;
                    move || work(number)
                })
            })
            .collect();
        handles.into_iter().try_for_each(|handle| handle.join().map_err(|_| anyhow!("a thread panicked"))?)
    })
}
