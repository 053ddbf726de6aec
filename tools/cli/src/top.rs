//! `percolite top`: what a store does while it does it.
//!
//! One process has a store for itself, and tells others what it does if it was asked to ([`percolite::Builder::publish_status`]): that is
//! what is shown of a store that is named. Without one this watches its own: threads that move money between accounts, as in the demo,
//! in a temporary store.

use std::io::IsTerminal as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use percolite::{CommitProtocol, LockStatus, Status, Store};

use crate::demo::place::Place;
use crate::demo::transfers::{self, Round};
use crate::exit::Code;
use crate::interrupt::Interrupt;
use crate::open::{Folder, Seen};
use crate::output::say;
use crate::told::{self, Between};

const LOOK_EVERY: Duration = Duration::from_millis(10);
/// So many locks are looked at.
const LOCKS_SEEN: usize = 100;
/// How long transfers of one's own go on.
const SECONDS: u64 = 30;
/// How often to look whether another process has told something new, and
const NEWS_EVERY: Duration = Duration::from_millis(100);
/// how long beyond its time a status may stay away without a word.
const PATIENCE: Duration = Duration::from_secs(3);

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite top shop                      what the process does that has the store open
  percolite top shop --json | jq .commits_per_second
  percolite top                           16 threads on 1000 accounts, for half a minute
  percolite top --accounts 10             the same on ten: hot rows
  percolite top --two-phase               with locks to be seen
  percolite top --accounts 2 --slow 5     what takes longer than 5 ms, and who was in the way
  percolite top --json --seconds 5 | jq '.latencies.commit.p99_s, .slow[0]'

A store is open in one process at a time, and that process must want to be watched: programs say \
Builder::publish_status(Duration::from_secs(1)); load, shell and other commands that write do so by themselves. Without STORE this watches \
its own transfers between accounts in a temporary store. What a dead process left is shown by `percolite locks`. Ctrl-C ends it.")]
pub struct Args {
    /// The folder of a store that a process has open
    #[arg(value_name = "STORE", conflicts_with_all = ["accounts", "threads", "two_phase", "slow"])]
    store: Option<std::path::PathBuf>,
    /// Accounts; the fewer, the hotter
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..=9999))]
    accounts: u32,
    /// Threads that transfer
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// How long; default: 30, and with STORE until it is closed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,
    /// Commit in two phases, as over several processes: every row is locked first
    #[arg(long)]
    two_phase: bool,
    /// A transaction that takes longer is shown as slow
    #[arg(long, value_name = "MS", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    slow: u64,
    /// JSON lines, one a second
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let interrupt = Interrupt::watch()?;
    match &args.store {
        Some(folder) => watch_other(&Folder { folder: folder.clone() }, args, &interrupt),
        None => watch_own(args, &interrupt),
    }
}

fn watch_other(store: &Folder, args: &Args, interrupt: &Interrupt) -> Result<()> {
    let folder = store.folder.display();
    let Seen::Open(mut before) = store.look_in()? else {
        return Err(Code::Missing.error(format!(
            "no process has {folder} open for writing, so nothing happens in it; percolite stats {folder} shows how it stands"
        )));
    };
    let (began, mut news) = (Instant::now(), Instant::now());
    while !interrupt.is_wanted() && args.seconds.is_none_or(|seconds| began.elapsed() < Duration::from_secs(seconds)) {
        std::thread::sleep(NEWS_EVERY);
        let Some(now) = Status::read(&store.folder)? else {
            return tell(args, &format!("process {} has closed it", before.pid));
        };
        if let Some(between) = Between::of(&before, &now) {
            show(args, &between, Some(&now))?;
        } else if now.pid == before.pid && now.open == before.open {
            if news.elapsed() > now.every.unwrap_or_default() + PATIENCE {
                // Where nobody has it open any more, its writer was killed.
                let gone = matches!(store.look_in(), Ok(Seen::Closed(_)));
                let what =
                    if gone { "has ended without closing it" } else { "says nothing: it, or its disk, stands still" };
                tell(args, &format!("process {} {what}", now.pid))?;
                if gone {
                    return Ok(());
                }
                news = Instant::now();
            }
            continue;
        }
        (before, news) = (Box::new(now), Instant::now());
    }
    Ok(())
}

/// Says what is no figure: programs read figures only.
fn tell(args: &Args, what: &str) -> Result<()> {
    if args.json {
        eprintln!("{what}");
        return Ok(());
    }
    say(what)
}

fn watch_own(args: &Args, interrupt: &Interrupt) -> Result<()> {
    let place = Place::new(None, false)?;
    let protocol = if args.two_phase { CommitProtocol::TwoPhase } else { CommitProtocol::Auto };
    let slow = Duration::from_millis(args.slow);
    let store = Store::builder().protocol(protocol).slow_transaction(slow).time_reads(true).open(place.path())?;
    let accounts = store.keyspace("accounts")?;
    transfers::open_accounts(&store, &accounts, args.accounts)?;
    let round = Round {
        keyspace: &accounts,
        accounts: args.accounts,
        threads: args.threads,
        time: Duration::from_secs(args.seconds.unwrap_or(SECONDS)),
        seed: rand::random(),
        stop: &interrupt.0,
    };
    let outcome = std::thread::scope(|scope| {
        let work = scope.spawn(|| transfers::run(&store, &round));
        let watched = watch(&store, args, || work.is_finished());
        if watched.is_err() {
            interrupt.0.store(true, Ordering::Relaxed);
        }
        let outcome = work.join().map_err(|_| anyhow!("the transfers have panicked"))?;
        watched.and(outcome)
    })?;
    store.close()?;
    if args.json {
        return Ok(());
    }
    say(format_args!("the sum was whole in {} of {} snapshots", outcome.audits - outcome.wrong, outcome.audits))
}

fn watch(store: &Store, args: &Args, is_over: impl Fn() -> bool) -> Result<()> {
    let mut before = store.status();
    loop {
        let until = Instant::now() + Duration::from_secs(1);
        // Most locks live for less than a millisecond: the fullest of many looks is shown.
        let mut locks: Vec<LockStatus> = Vec::new();
        while Instant::now() < until {
            if is_over() {
                return Ok(());
            }
            let seen = store.locks()?.take(LOCKS_SEEN).map(|lock| lock.map(|lock| LockStatus::from(&lock)));
            let seen = seen.collect::<percolite::Result<Vec<_>>>()?;
            if seen.len() > locks.len() {
                locks = seen;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let mut now = store.status();
        now.locks = locks;
        if let Some(between) = Between::of(&before, &now) {
            show(args, &between, None)?;
        }
        before = now;
    }
}

/// Shows what happened; of another process, whose it is.
fn show(args: &Args, between: &Between<'_>, of: Option<&Status>) -> Result<()> {
    if args.json {
        return say(between.json());
    }
    if std::io::stdout().is_terminal() {
        say("\x1b[H\x1b[2J")?;
    }
    of.map_or(Ok(()), |status| say(told::heading(status)))?;
    between.tables().into_iter().try_for_each(say)
}
