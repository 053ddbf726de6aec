//! Leases: a lock that outlives its process, so that a job resumes after a restart; and a fence
//! that stops a paused holder whose lease has expired.
//!
//! ```text
//! cargo run --release --example lease -- --rows 40
//! ```

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use clap::Parser;
use percolite::{ErrorKind, Keyspace, LockGuard, LockOptions, LockWaitPolicy, Store, Timestamp};

/// This environment variable marks the child process, which aborts. Its value is the directory of
/// the store.
const CHILD_ENV: &str = "EXAMPLE_CHILD";

#[derive(Parser)]
struct Args {
    /// Number of rows of the job
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u8).range(2..))]
    rows: u8,
    /// Duration of the paused holder's lease, in milliseconds
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..))]
    lease_ms: u64,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if let Some(dir) = std::env::var_os(CHILD_ENV) {
        return first_process(Path::new(&dir), args.rows);
    }
    let scratch = tempfile::tempdir()?;
    let dir = scratch.path().join("store");

    println!("A job whose process aborts:");
    let program = std::env::current_exe()?;
    let child = Command::new(program).args(["--rows", &args.rows.to_string()]).env(CHILD_ENV, &dir).output()?;
    ensure!(!child.status.success(), "the child process was to abort");
    print!("{}", String::from_utf8_lossy(&child.stdout));
    second_process(&dir, args.rows)?;

    println!("\nA holder that is paused for longer than its lease:");
    paused_holder(&dir, Duration::from_millis(args.lease_ms))
}

/// Acquires the lock, does half of the job, and aborts.
fn first_process(dir: &Path, rows: u8) -> anyhow::Result<()> {
    let store = Store::builder().application_name("first process").open(dir)?;
    let (done, state) = (store.keyspace("done")?, store.keyspace("state")?);
    let lease = LockOptions::exclusive().lease(Duration::from_secs(3600)).reason("nightly copy");
    let guard = store.lock_with("nightly", lease)?;
    // The token is stored, because the next process needs it to attach to the lease.
    store.transact(|txn| txn.put(&state, "token", guard.token().to_u64().to_be_bytes()))?;
    copy(&store, &guard, &done, 0..rows / 2)?;
    println!("  the first process has token {} and has done {} of {rows} rows", guard.token(), rows / 2);
    std::process::abort();
}

/// Attaches to the lease and finishes the job, while another request waits for the lock.
fn second_process(dir: &Path, rows: u8) -> anyhow::Result<()> {
    let store = Store::builder().application_name("second process").open(dir)?;
    let (done, state) = (store.keyspace("done")?, store.keyspace("state")?);
    let token = store.get(&state, "token")?.context("the first process has stored no token")?;
    let token = Timestamp::from_u64(u64::from_be_bytes(token.try_into().map_err(|_| anyhow!("not a token"))?));
    let (has_timed_out, other_has_timed_out) = mpsc::channel();
    thread::scope(|scope| {
        let (store, done) = (&store, &done);
        let other = scope.spawn(move || -> anyhow::Result<Timestamp> {
            let timeout = LockOptions::exclusive().wait(LockWaitPolicy::Timeout(Duration::from_millis(100)));
            let Err(err) = store.lock_with("nightly", timeout) else { bail!("the lock was granted twice") };
            println!("  another request returns: {err}");
            ensure!(matches!(err.kind(), ErrorKind::LockNotAvailable(_)), "{err}");
            has_timed_out.send(())?;
            // `Store::lock` waits for up to 30 seconds, but here only until the job's guard is
            // released. When the call returns, all commits of the job are visible.
            let guard = store.lock("nightly")?;
            ensure!(store.range(done, ..)?.count() == usize::from(rows), "the job is not done");
            Ok(guard.token())
        });
        let guard = store.attach_lock("nightly", token)?;
        ensure!(guard.token() == token, "another token");
        other_has_timed_out.recv()?;
        let from = store.range(done, ..)?.count();
        copy(store, &guard, done, u8::try_from(from)?..rows)?;
        println!("  the second process resumes at row {from} with the same token, and releases the lock");
        while store.lock_table()?.waiting == 0 && !other.is_finished() {
            thread::sleep(Duration::from_millis(1));
        }
        guard.release()?;
        let next = other.join().map_err(|_| anyhow!("the waiting thread panicked"))??;
        ensure!(next > token, "tokens increase");
        println!("  the other request was granted, with token {next}");
        anyhow::Ok(())
    })?;
    store.close()?;
    Ok(())
}

/// Processes these rows, each in its own transaction. `insert` fails if the row was processed
/// before.
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

/// A resource outside of the store, which the store cannot fence. The printer therefore checks the
/// token of each request, and refuses a token that is lower than one that it has seen.
#[derive(Default)]
struct Printer(Mutex<Timestamp>);

impl Printer {
    fn print(&self, token: Timestamp, what: &str) -> bool {
        let Ok(mut last) = self.0.lock() else { return false };
        let accepts = token >= *last;
        *last = token.max(*last);
        println!("  the printer {} token {token}: {what}", if accepts { "accepts" } else { "refuses" });
        accepts
    }
}

fn paused_holder(dir: &Path, lease: Duration) -> anyhow::Result<()> {
    let store = Store::open(dir)?;
    let (state, printer) = (store.keyspace("state")?, Printer::default());
    let (has_acquired, first_has_lock) = mpsc::channel();
    let (resume, resumed) = mpsc::channel();
    thread::scope(|scope| {
        let (store, state, printer) = (&store, &state, &printer);
        let first = scope.spawn(move || -> anyhow::Result<Timestamp> {
            // Without automatic renewal the lease expires during the pause, and the next request is
            // granted.
            let guard = store
                .lock_with("printer", LockOptions::exclusive().lease(lease).auto_renew(false).reason("invoices"))?;
            let mut txn = store.begin()?;
            txn.fence(&guard.fence())?;
            txn.put(state, "printed", "by the first holder")?;
            has_acquired.send(guard.token())?;
            // Here the holder pauses. Like a stopped process, it does not notice that its lease
            // expires.
            resumed.recv()?;
            ensure!(!printer.print(guard.token(), "invoices, late"), "the printer accepted an old token");
            let Err(err) = txn.commit() else { bail!("committed after the lease had expired") };
            ensure!(matches!(err.kind(), ErrorKind::LockLost(_)), "{err}");
            println!("  the commit of the first holder returns: {err}");
            Ok(guard.token())
        });
        let token = first_has_lock.recv()?;
        // Blocks until the lease expires.
        let guard = store.lock("printer")?;
        let expired = guard.entry().took_over.context("the grant does not name the expired lease")?;
        println!("  the second holder has taken over from {}", expired.holder);
        ensure!(expired.token == token && guard.token() > token, "{expired:?}");
        let fence = guard.fence();
        store.transact(|txn| {
            txn.fence(&fence)?;
            txn.put(state, "printed", "by the second holder")
        })?;
        ensure!(printer.print(guard.token(), "invoices"), "the printer refused the holder");
        resume.send(())?;
        first.join().map_err(|_| anyhow!("the first holder panicked"))??;
        anyhow::Ok(())
    })?;
    let printed = store.get(&state, "printed")?;
    ensure!(printed.as_deref() == Some(b"by the second holder"), "{printed:?}");
    store.close()?;
    Ok(())
}
