//! `percolite lock`: named locks that outlive the process that acquired them.
//!
//! Only one process at a time can have a store open for writing, so these commands do not keep the
//! store open. Their locks are leases, which are rows in the store. [`acquire`] acquires a lease in
//! the order of [`turns`], after the end of all [`leftovers`]; [`lease`] renews and releases it,
//! [`run`] runs a command under it, forwards [`signals`] and ends its [`process_tree`], and
//! [`render`] prints locks for `locks`, `stats` and `top`.

mod acquire;
mod lease;
mod leftovers;
mod outer;
mod process_tree;
pub mod render;
mod run;
mod signals;
mod turns;

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Result;
use clap::Subcommand;
use percolite::{LockGuard, MAX_KEYSPACE_NAME_BYTES, MAX_LOCK_REASON_BYTES, Timestamp, option_ranges};

pub use self::acquire::STILL_RUNS;
use self::acquire::{AcquireRequest, Acquired};
use self::lease::{Lease, Released};
use self::signals::Signals;
use self::turns::TurnFiles;
use crate::exit::Code;
use crate::open::{self, StoreDir};
use crate::output::print_line;
use crate::{duration, locks};

/// The options of `lock`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite lock run shop migration -- ./migrate.sh
                                     runs the command; waits up to 30 seconds for the lock
  percolite lock acquire shop nightly --ttl 1h
                                     holds the lock for an hour, and prints its token
  percolite lock release shop nightly 1763726400123.7
                                     releases it earlier
  percolite locks shop --tree        the holders of each lock

A named lock excludes other holders of the same name in all processes, those of Store::lock included. It has nothing \
to do with keyspaces and rows. It is a lease: it expires after --ttl, even if its holder was killed. The token is a \
fencing token: a later holder has a greater one.

Commands that wait are served in the order of their arrival. They do not keep the store open, and only the first one \
looks into it. If another process has the store open all the time, the exit code is 4; if the lock is held, it is \
8.")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Acquire a lock for some time, and print its token
    Acquire(AcquireArgs),
    /// Release a lock before it expires
    Release(ReleaseArgs),
    /// Run a command while holding a lock
    Run(RunArgs),
}

/// The lock, and how to acquire it.
#[derive(clap::Args)]
struct RequestArgs {
    #[command(flatten)]
    store: StoreDir,
    /// The name of the lock
    #[arg(value_name = "NAME", value_parser = parse_name)]
    name: String,
    /// Acquire a shared lock: excludes only exclusive locks
    #[arg(long)]
    shared: bool,
    /// How long to wait for the lock, and for a store that another process has open
    #[arg(long, value_name = "TIME", default_value = "30s", allow_hyphen_values = true)]
    #[arg(value_parser = duration::parse_duration)]
    wait: Duration,
    /// The reason, printed wherever the holder is
    #[arg(long, value_name = "TEXT", value_parser = parse_reason)]
    reason: Option<String>,
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite lock acquire shop nightly --ttl 1h
  token=$(percolite lock acquire shop nightly --ttl 1h --wait 10m --reason 'nightly report') || exit
  percolite lock acquire shop catalogue --ttl 5m --shared

The output is the token alone. The lock is not renewed: it expires after --ttl, or `percolite lock release` releases \
it by the token.

Commands that wait are served in the order of their arrival: see `percolite lock --help`.")]
struct AcquireArgs {
    #[command(flatten)]
    request: RequestArgs,
    /// How long to hold the lock
    #[arg(long, value_name = "TIME", value_parser = parse_ttl, allow_hyphen_values = true)]
    ttl: Duration,
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite lock release shop nightly 1763726400123.7
  percolite locks shop               prints the tokens of held locks

If no grant of the lock has this token, the exit code is 3 and nothing changes: the grant was released, has expired, \
or never existed.")]
struct ReleaseArgs {
    #[command(flatten)]
    store: StoreDir,
    /// The name of the lock
    #[arg(value_name = "NAME", value_parser = parse_name)]
    name: String,
    /// The token that `lock acquire` has printed
    #[arg(value_name = "TOKEN", value_parser = locks::parse_timestamp)]
    token: Timestamp,
    /// How long to wait for a store that another process has open
    #[arg(long, value_name = "TIME", default_value = "30s", allow_hyphen_values = true)]
    #[arg(value_parser = duration::parse_duration)]
    wait: Duration,
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite lock run shop migration -- ./migrate.sh
  percolite lock run shop migration --wait 0s -- ./migrate.sh || echo 'it runs elsewhere'
  percolite lock run shop report --ttl 5m --shared -- sh -c 'make report > report.txt'

In COMMAND, retry while the store is busy:
  until percolite put shop fruit kiwi green; do
      code=$?; [ $code = 4 ] || exit $code; sleep 0.1
  done

COMMAND runs while the lock is held, with the token in PERCOLITE_LOCK_TOKEN. The lock is renewed after half of --ttl, \
and released when COMMAND ends. The exit code is that of COMMAND, or 128 and the number of the signal that ended it. \
INT, TERM and HUP are forwarded to COMMAND; before it runs they end the wait, and the exit code is 130.

When COMMAND has ended, what it has started and left running gets TERM, and KILL ten seconds later, whatever session \
it is in; only then is the lock released. Not reached is what other processes start for COMMAND: at, cron, a daemon, a \
container engine.

In a store that a program keeps open, a wait takes up to a second more than --wait.

The store is closed while COMMAND runs, so COMMAND may open it. It is busy for short times: when `lock run` renews the \
lock, and when the first waiting command looks. A longer --ttl makes renewals rare. If COMMAND itself keeps the store \
open, the renewal is retried until it succeeds, and COMMAND continues to run even after the lock has expired. A \
program that keeps the store open for longer than --ttl renews the lock itself: Store::attach_lock with the token, and \
LockGuard::detach at its end.

If the lock is lost (released by its token, or expired), or cannot be renewed because another process has the store \
open, COMMAND and all that it has started get TERM, and KILL ten seconds later, at the latest before the lock expires. \
The exit code is 8. If COMMAND ended before the loss was found, its exit code stays and a warning is printed. The same \
ends COMMAND if `lock run` itself is killed. Other `lock` commands wait for that; programs that use the library rely \
on the lease alone: use the token, or Txn::fence, where work without the lock would do harm.

Commands that wait are served in the order of their arrival: see `percolite lock --help`.")]
struct RunArgs {
    #[command(flatten)]
    request: RequestArgs,
    /// The time after which the lock expires, unless it is renewed
    #[arg(long, value_name = "TIME", value_parser = parse_ttl, default_value = "60s", allow_hyphen_values = true)]
    ttl: Duration,
    /// The command to run, and its arguments
    #[arg(value_name = "COMMAND", last = true, required = true)]
    command: Vec<OsString>,
}

impl Args {
    pub fn store(&self) -> &StoreDir {
        match &self.command {
            Command::Acquire(args) => &args.request.store,
            Command::Release(args) => &args.store,
            Command::Run(args) => &args.request.store,
        }
    }
}

impl RequestArgs {
    fn acquire_request(&self, ttl: Duration, command: &'static str, reason: Option<String>) -> AcquireRequest<'_> {
        AcquireRequest {
            dir: &self.store,
            name: &self.name,
            shared: self.shared,
            wait: self.wait,
            ttl,
            application_name: command,
            reason,
        }
    }
}

/// Runs the subcommand and returns the exit code. `lock run` returns that of the command it runs.
pub fn run(args: &Args) -> Result<u8> {
    match &args.command {
        Command::Acquire(args) => acquire(args).map(|()| 0),
        Command::Release(args) => release(args).map(|()| 0),
        Command::Run(args) => run::run(args),
    }
}

fn acquire(args: &AcquireArgs) -> Result<()> {
    let signals = Signals::watch()?;
    let request = args.request.acquire_request(args.ttl, "percolite lock acquire", args.request.reason.clone());
    let Acquired { store, guard, running, .. } = request.acquire(&signals)?;
    // If the token cannot be printed, the lock is released here: without its token it could not be
    // released before it expires.
    let printed = signals.check().and_then(|()| print_line(guard.token()));
    if printed.is_ok() {
        detach(guard)?;
    } else {
        guard.release()?;
    }
    store.close()?;
    drop(running);
    leftovers::remove_unused_files(&request.turn_files());
    printed
}

/// Ends the guard without releasing its lease.
fn detach(guard: LockGuard) -> Result<Timestamp> {
    guard
        .detach()
        .map_err(|lost| Code::LockHeld.error(format!("the lock with the token {} expired immediately", lost.token())))
}

fn release(args: &ReleaseArgs) -> Result<()> {
    let signals = Signals::watch()?;
    let lease = Lease { dir: &args.store, name: &args.name, token: args.token, ttl: Duration::ZERO };
    match lease.release(Some(&signals), args.wait)? {
        Released::Done => {
            leftovers::remove_unused_files(&TurnFiles::of(&args.store.path, &args.name));
            Ok(())
        }
        Released::Busy => Err(args.store.busy_error(args.wait)),
        Released::NotHeld(others) => {
            let dir = open::shell_quoted(&args.store.path);
            let held = if others.is_empty() { "not held".into() } else { render::holders(&others) };
            Err(Code::NotFound.error(format!(
                "no grant of lock {:?} has the token {}; the lock is {held}; percolite locks {dir} shows the holders",
                args.name, args.token
            )))
        }
    }
}

fn parse_ttl(text: &str) -> Result<Duration, String> {
    let ttl = duration::parse_duration(text).ok().filter(|ttl| option_ranges::LOCK_LEASE.check(ttl.as_nanos()).is_ok());
    ttl.ok_or_else(|| format!("it must be a time with a unit, {}, for example 1h 30m", option_ranges::LOCK_LEASE))
}

/// Checks the limits of the library, so that an invalid name is a usage error before a store is
/// opened.
fn parse_name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > MAX_KEYSPACE_NAME_BYTES || text.chars().any(char::is_control) {
        return Err(format!("the name of a lock has 1 to {MAX_KEYSPACE_NAME_BYTES} bytes and no control characters"));
    }
    Ok(text.to_owned())
}

fn parse_reason(text: &str) -> Result<String, String> {
    if text.len() > MAX_LOCK_REASON_BYTES {
        return Err(format!("at most {MAX_LOCK_REASON_BYTES} bytes"));
    }
    Ok(text.to_owned())
}
