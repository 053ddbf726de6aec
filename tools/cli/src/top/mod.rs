//! `percolite top`: what a store does while it does it.
//!
//! One process has a store for itself, so nobody can watch another's. This watches its own: threads that move money between
//! accounts, as in the demo, in a temporary store. What it shows is what `Store::stats`, `latencies`, `live`,
//! `slow_transactions` and `locks` tell any program that has a store open.

mod look;

use std::io::IsTerminal as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use percolite::{CommitProtocol, LockInfo, Store};

use self::look::{Look, Second};
use crate::demo::place::Place;
use crate::demo::transfers::{self, Round};
use crate::interrupt::Interrupt;
use crate::output::say;
use crate::table::{self, Names};

/// So many locks are shown.
const LOCKS_SHOWN: usize = 12;
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite top                           16 threads on 1000 accounts, for half a minute
  percolite top --accounts 10             the same on ten: hot rows
  percolite top --two-phase               with locks to be seen
  percolite top --accounts 2 --slow 5     what takes longer than 5 ms, and who was in the way
  percolite top --json --seconds 5 | jq '.latencies.commit.p99_s, .slow[0]'

A store is open in one process at a time, so this watches its own: transfers between accounts in a temporary store. A
program that wants to be watched prints Store::stats(), latencies(), live(), slow_transactions() and locks() itself. What a dead process left is shown by
`percolite locks`. Ctrl-C ends it.")]
pub struct Args {
    /// Accounts; the fewer, the hotter
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..=9999))]
    accounts: u32,
    /// Threads that transfer
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// How long
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
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
    let place = Place::new(None, false)?;
    let protocol = if args.two_phase { CommitProtocol::TwoPhase } else { CommitProtocol::Auto };
    let slow = Duration::from_millis(args.slow);
    let store = Store::builder().protocol(protocol).slow_transaction(slow).time_reads(true).open(place.path())?;
    let accounts = store.keyspace("accounts")?;
    transfers::open_accounts(&store, &accounts, args.accounts)?;
    let names = Names::of([&accounts]);
    let round = Round {
        keyspace: &accounts,
        accounts: args.accounts,
        threads: args.threads,
        time: Duration::from_secs(args.seconds),
        seed: rand::random(),
        stop: &interrupt.0,
    };
    let outcome = std::thread::scope(|scope| {
        let work = scope.spawn(|| transfers::run(&store, &round));
        let watched = watch(&store, &names, args, || work.is_finished());
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

fn watch(store: &Store, names: &Names, args: &Args, is_over: impl Fn() -> bool) -> Result<()> {
    let in_place = std::io::stdout().is_terminal() && !args.json;
    let mut before = Look::at(store);
    loop {
        let until = before.at + Duration::from_secs(1);
        // Most locks live for less than a millisecond: the fullest of many looks is shown.
        let mut locks: Vec<LockInfo> = Vec::new();
        while Instant::now() < until {
            if is_over() {
                return Ok(());
            }
            let seen: Vec<LockInfo> = store.locks()?.take(LOCKS_SHOWN).collect::<percolite::Result<_>>()?;
            if seen.len() > locks.len() {
                locks = seen;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let now = Look::at(store);
        let second = Second::between(&before, &now);
        if args.json {
            say(second.json(locks.len()))?;
        } else {
            if in_place {
                say("\x1b[H\x1b[2J")?;
            }
            for table in second.tables() {
                say(table)?;
            }
            say(if locks.is_empty() { "no locks were met".to_owned() } else { table::locks(&locks, names) })?;
        }
        before = now;
    }
}
