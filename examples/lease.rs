//! A lock that outlives its process: a job that goes on after a restart, and a paused holder that is stopped by its fence.
//!
//! `cargo run --release --example lease -- --rows 40`

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use clap::Parser;
use percolite::{ErrorKind, Keyspace, LockGuard, LockOptions, LockWaitPolicy, Store, Timestamp};

/// Set for the process that dies, to the store's folder.
const DIES: &str = "EXAMPLE_DIES";

#[derive(Parser)]
struct Args {
    /// How many rows the job has to do
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u8).range(2..))]
    rows: u8,
    /// The time of the paused holder's lease, in milliseconds
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..))]
    lease_ms: u64,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if let Some(folder) = std::env::var_os(DIES) {
        return first_life(Path::new(&folder), args.rows);
    }
    let scratch = tempfile::tempdir()?;
    let folder = scratch.path().join("store");

    println!("A job whose process dies:");
    let own = std::env::current_exe()?;
    let died = Command::new(own).args(["--rows", &args.rows.to_string()]).env(DIES, &folder).output()?;
    ensure!(!died.status.success(), "it was to die");
    print!("{}", String::from_utf8_lossy(&died.stdout));
    second_life(&folder, args.rows)?;

    println!("\nA holder that is paused for longer than its lease:");
    a_paused_holder(&folder, Duration::from_millis(args.lease_ms))
}

/// Does half of the job.
fn first_life(folder: &Path, rows: u8) -> anyhow::Result<()> {
    let store = Store::builder().application_name("first life").open(folder)?;
    let (done, state) = (store.keyspace("done")?, store.keyspace("state")?);
    let lease = LockOptions::exclusive().lease(Duration::from_secs(3600)).reason("nightly copy");
    let guard = store.lock_with("nightly", lease)?;
    // Where the next process finds it.
    store.transact(|txn| txn.put(&state, "token", guard.token().to_u64().to_be_bytes()))?;
    copy(&store, &guard, &done, 0..rows / 2)?;
    println!("  the first life has token {} and has done {} of {rows} rows", guard.token(), rows / 2);
    std::process::abort();
}

/// Goes on where the first has ended, while another request waits for the lock.
fn second_life(folder: &Path, rows: u8) -> anyhow::Result<()> {
    let store = Store::builder().application_name("second life").open(folder)?;
    let (done, state) = (store.keyspace("done")?, store.keyspace("state")?);
    let token = store.snapshot()?.get(&state, "token")?.context("the first life has left no token")?;
    let token = Timestamp::from_u64(u64::from_be_bytes(token.try_into().map_err(|_| anyhow!("no token"))?));
    let (refused, has_asked) = mpsc::channel();
    thread::scope(|scope| {
        let (store, done) = (&store, &done);
        let other = scope.spawn(move || -> anyhow::Result<Timestamp> {
            let soon = LockOptions::exclusive().wait(LockWaitPolicy::Timeout(Duration::from_millis(100)));
            let Err(why) = store.lock_with("nightly", soon) else { bail!("the lease is of an hour") };
            println!("  another request returns: {why}");
            ensure!(matches!(why.kind(), ErrorKind::LockNotAvailable(_)), "{why}");
            refused.send(())?;
            // Patiently now. What the job has done is there when this returns.
            let guard = store.lock("nightly")?;
            ensure!(store.snapshot()?.range(done, ..).count() == usize::from(rows), "the job is not done");
            Ok(guard.token())
        });
        let guard = store.attach_lock("nightly", token)?;
        ensure!(guard.token() == token, "another token");
        has_asked.recv()?;
        let from = store.snapshot()?.range(done, ..).count();
        copy(store, &guard, done, u8::try_from(from)?..rows)?;
        println!("  the second life goes on with the same token from row {from}, and releases the lock");
        while store.lock_table()?.waiting == 0 && !other.is_finished() {
            thread::sleep(Duration::from_millis(1));
        }
        guard.release()?;
        let next = other.join().map_err(|_| anyhow!("it has panicked"))??;
        ensure!(next > token, "tokens grow");
        println!("  the other has it now, with token {next}");
        anyhow::Ok(())
    })?;
    store.close()?;
    Ok(())
}

/// Row by row, each once: `insert` would refuse a second time.
fn copy(store: &Store, guard: &LockGuard, done: &Keyspace, rows: std::ops::Range<u8>) -> anyhow::Result<()> {
    let fence = guard.fence();
    for row in rows {
        store.transact(|txn| {
            txn.fence(&fence)?;
            txn.insert(done, [row], "")
        })?;
    }
    Ok(())
}

/// Something outside of the store. It takes only tokens at least as great as the last one.
#[derive(Default)]
struct Printer(Mutex<Timestamp>);

impl Printer {
    fn print(&self, token: Timestamp, what: &str) -> bool {
        let Ok(mut last) = self.0.lock() else { return false };
        let takes = token >= *last;
        *last = token.max(*last);
        println!("  the printer {} token {token}: {what}", if takes { "takes" } else { "refuses" });
        takes
    }
}

fn a_paused_holder(folder: &Path, lease: Duration) -> anyhow::Result<()> {
    let store = Store::open(folder)?;
    let (state, printer) = (store.keyspace("state")?, Printer::default());
    let (holds, has_lock) = mpsc::channel();
    let (goes_on, paused) = mpsc::channel();
    thread::scope(|scope| {
        let (store, state, printer) = (&store, &state, &printer);
        let first = scope.spawn(move || -> anyhow::Result<Timestamp> {
            // It is not renewed: at its time the next request is granted.
            let guard = store.lock_with("printer", LockOptions::exclusive().lease(lease).once().reason("invoices"))?;
            let mut txn = store.begin()?;
            txn.fence(&guard.fence())?;
            txn.put(state, "printed", "by the first")?;
            holds.send(guard.token())?;
            paused.recv()?;
            // It does not know how long it was away.
            ensure!(!printer.print(guard.token(), "invoices, late"), "the printer takes an old token");
            let Err(why) = txn.commit() else { bail!("the lease is over") };
            ensure!(matches!(why.kind(), ErrorKind::LockLost(_)), "{why}");
            println!("  the commit of the first returns: {why}");
            Ok(guard.token())
        });
        let token = has_lock.recv()?;
        // Waits for what is left of the lease.
        let guard = store.lock("printer")?;
        let over = guard.entry().took_over.context("the lease is over, and that is not said")?;
        println!("  the second has taken over from {}", over.holder);
        ensure!(over.token == token && guard.token() > token, "{over:?}");
        let fence = guard.fence();
        store.transact(|txn| {
            txn.fence(&fence)?;
            txn.put(state, "printed", "by the second")
        })?;
        ensure!(printer.print(guard.token(), "invoices"), "the printer refuses the holder");
        goes_on.send(())?;
        first.join().map_err(|_| anyhow!("it has panicked"))??;
        anyhow::Ok(())
    })?;
    let printed = store.snapshot()?.get(&state, "printed")?;
    ensure!(printed.as_deref() == Some(b"by the second"), "{printed:?}");
    store.close()?;
    Ok(())
}
