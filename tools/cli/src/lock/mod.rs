//! `percolite lock`: locks by name that outlive the process that took them.
//!
//! A store is open in one process at a time, so none of these commands keeps it open: a lock of theirs is a lease, which is a row in
//! the store. [`waiting`] takes one, [`lease`] releases and renews it, [`command`] runs a command under it while [`signals`] come, and
//! [`shown`] shows locks to `locks`, `stats` and `top`.

mod acquire;
mod lease;
pub mod render;
mod run;
mod signals;

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Result;
use clap::Subcommand;
use percolite::{LockGuard, MAX_KEYSPACE_NAME_BYTES, MAX_LOCK_REASON_BYTES, Timestamp, bounds};

use self::acquire::{AcquireRequest, Acquired};
use self::lease::{Lease, Released};
use self::signals::Signals;
use crate::exit::Code;
use crate::open::{self, StoreDir};
use crate::output::print_line;
use crate::{duration, locks};

/// The options of `lock`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite lock run shop migration -- ./migrate.sh
                                     runs it, unless another has the lock for longer than 30 seconds
  percolite lock acquire shop nightly --ttl 1h
                                     holds the lock for an hour, and prints its token
  percolite lock release shop nightly 1763726400123.7
                                     before the hour is over
  percolite locks shop --tree        the holders of each lock

A lock excludes other holders of the same name, in any process: with these commands, or in a program with Store::lock. It has \
nothing to do with keyspaces and rows. It is held by a lease, so it is free when its time is over, whatever becomes of the holder. \
What must not happen without the lock compares tokens: later ones are greater.

Commands that wait are in no queue and have no order. Each watches the directory, looks into the store when that has changed, when the lease is over \
and every ten seconds, and the first that looks after the end has the lock. `percolite locks` does not show them.

None of these commands keeps the store open. Where another process has it open they wait for that, and say so with exit code 4 when \
--wait is over; exit code 8 says that the lock is held.")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Hold a lock for some time, and print its token
    Acquire(AcquireArgs),
    /// Release a lock before its time is over
    Release(ReleaseArgs),
    /// Run a command while holding a lock
    Run(RunArgs),
}

/// Which lock, and how it is asked for.
#[derive(clap::Args)]
struct RequestArgs {
    #[command(flatten)]
    store: StoreDir,
    /// The lock's name
    #[arg(value_name = "NAME", value_parser = name)]
    name: String,
    /// Beside others that say --shared, too
    #[arg(long)]
    shared: bool,
    /// How long to wait for it, and for a store that another process has open
    #[arg(long, value_name = "TIME", value_parser = duration::time, default_value = "30s", allow_hyphen_values = true)]
    wait: Duration,
    /// What it is for, shown where the lock is found held
    #[arg(long, value_name = "TEXT", value_parser = err)]
    reason: Option<String>,
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite lock acquire shop nightly --ttl 1h
  token=$(percolite lock acquire shop nightly --ttl 1h --wait 10m --reason 'nightly report') || exit
  percolite lock acquire shop catalogue --ttl 5m --shared

Commands that wait are in no queue: which of them has the lock next is left open (see `percolite lock --help`).

The token is all that is printed. Nothing renews the lock: it is free when its time is over, or when \
`percolite lock release` was called with the token.")]
struct AcquireArgs {
    #[command(flatten)]
    request: RequestArgs,
    /// How long to hold it
    #[arg(long = "for", value_name = "TIME", value_parser = lease_time, allow_hyphen_values = true)]
    time: Duration,
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite lock release shop nightly 1763726400123.7
  percolite locks shop               shows the tokens of the locks that are held

With a token that no grant of the lock has, the exit code is 3 and nothing changes. \
The store does not tell whether the grant was released, its time was over, or there never was one.")]
struct ReleaseArgs {
    #[command(flatten)]
    store: StoreDir,
    /// The lock's name
    #[arg(value_name = "NAME", value_parser = name)]
    name: String,
    /// What `lock acquire` has printed
    #[arg(value_name = "TOKEN", value_parser = locks::timestamp)]
    token: Timestamp,
    /// How long to wait for a store that another process has open
    #[arg(long, value_name = "TIME", value_parser = duration::time, default_value = "30s", allow_hyphen_values = true)]
    wait: Duration,
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite lock run shop migration -- ./migrate.sh
  percolite lock run shop migration --wait 0s -- ./migrate.sh || echo 'it runs elsewhere'
  percolite lock run shop report --ttl 5m --shared -- sh -c 'make report > report.txt'

In COMMAND, where the store may be busy:
  until percolite put shop fruit kiwi green; do
      code=$?; [ $code = 4 ] || exit $code; sleep 0.1
  done

COMMAND runs while the lock is held, with the token in PERCOLITE_LOCK_TOKEN. The lock is renewed when half of its time is over, and \
released when COMMAND has ended; the exit code is COMMAND's, or 128 and the number of the signal that ended it. Signals that ask for an \
end (INT, TERM, HUP) are passed on to COMMAND; before it runs they end the wait, and the exit code is 130. A second one before it runs \
ends this program at once, and the lock may stay until its time is over.

Commands that wait are in no queue: which of them has the lock next is left open (see `percolite lock --help`).

The store is closed while COMMAND runs, so COMMAND may open it. It is busy for moments: at half of the lock's time, when `lock run` renews it, and when \
other processes look. An opening that meets such a moment fails with exit code 4, so a script repeats it, as above, and a longer --for makes renewals rare.

Where COMMAND or another process has the store open when the lock is to be renewed, renewing is tried again until it works, and COMMAND is left alone however long that takes. A program that keeps the store open for \
longer than the lock's time goes on with the lock by its token: Store::resume_lock renews it, LockGuard::into_token keeps it for `lock run`.

COMMAND is ended (TERM, and KILL ten seconds later; exit code 8) only when the lock is seen to be lost: another holds it, or the store could be opened and \
its time was over. It is not run at all (exit code 8) when the time was over before it could begin. Where COMMAND ended before a loss was seen its exit code stays, and a warning \
says what may have happened. Nothing ends COMMAND when `lock run` itself is killed; so what must not happen without the lock goes by the token, or by Txn::fence.")]
struct RunArgs {
    #[command(flatten)]
    request: RequestArgs,
    /// How long it outlives this process, at most
    #[arg(long = "for", value_name = "TIME", value_parser = lease_time, default_value = "60s", allow_hyphen_values = true)]
    time: Duration,
    /// What to run, and its arguments
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
    fn acquire_request(&self, time: Duration, by: &'static str, err: Option<String>) -> AcquireRequest<'_> {
        AcquireRequest {
            dir: &self.store,
            name: &self.name,
            shared: self.shared,
            wait: self.wait,
            ttl: time,
            application_name: by,
            reason: err,
        }
    }
}

/// The answer is the exit code, if all went well.
pub fn run(args: &Args) -> Result<u8> {
    match &args.command {
        Command::Acquire(args) => acquire(args).map(|()| 0),
        Command::Release(args) => release(args).map(|()| 0),
        Command::Run(args) => run::run(args),
    }
}

fn acquire(args: &AcquireArgs) -> Result<()> {
    let signals = Signals::watch()?;
    let Acquired { store, guard, .. } = args
        .request
        .acquire_request(args.time, "percolite lock acquire", args.request.reason.clone())
        .acquire(&signals)?;
    // A lock whose token was not printed could only wait for its end.
    let said = signals.check().and_then(|()| print_line(guard.token()));
    if said.is_ok() {
        detach(guard)?;
    } else {
        guard.release()?;
    }
    store.close()?;
    said
}

/// Keeps the lock beyond the guard.
fn detach(guard: LockGuard) -> Result<Timestamp> {
    guard.detach().map_err(|lost| {
        let what = format!("the lock with the token {} was lost as soon as it was taken", lost.token());
        Code::LockHeld.error(what)
    })
}

fn release(args: &ReleaseArgs) -> Result<()> {
    let signals = Signals::watch()?;
    let lease = Lease { dir: &args.store, name: &args.name, token: args.token, ttl: Duration::ZERO };
    match lease.release(Some(&signals), args.wait)? {
        Released::Done => Ok(()),
        Released::Busy => Err(args.store.busy_error(args.wait)),
        Released::NotHeld(others) => {
            let dir = open::shell_quoted(&args.store.path);
            let held = if others.is_empty() { "not held".into() } else { render::holders(&others) };
            let what = format!(
                "no grant of lock {:?} has the token {}; the lock is {held}; percolite locks {dir} shows what is held",
                args.name, args.token
            );
            Err(Code::NotFound.error(what))
        }
    }
}

fn parse_ttl(text: &str) -> Result<Duration, String> {
    let time = duration::parse_duration(text).ok().filter(|time| bounds::LOCK_LEASE.check(time.as_nanos()).is_ok());
    time.ok_or_else(|| format!("it must be {}, for example 1h 30m", bounds::LOCK_LEASE))
}

/// What the library refuses, refused as what makes no sense on a command line, before a store is opened.
fn parse_name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > MAX_KEYSPACE_NAME_BYTES || text.chars().any(char::is_control) {
        return Err(format!("a lock's name has 1 to {MAX_KEYSPACE_NAME_BYTES} bytes and no control characters"));
    }
    Ok(text.to_owned())
}

fn parse_reason(text: &str) -> Result<String, String> {
    if text.len() > MAX_LOCK_REASON_BYTES {
        return Err(format!("at most {MAX_LOCK_REASON_BYTES} bytes"));
    }
    Ok(text.to_owned())
}
