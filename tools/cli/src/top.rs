//! `percolite top`: what a store does while it does it.
//!
//! One process has a store for itself, so nobody can watch another's. This watches its own: threads that move money between
//! accounts, as in the demo, in a temporary store. What it shows is what `Store::stats` and `Store::locks` tell any program that
//! has a store open.

use std::io::IsTerminal as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use percolite::{CommitProtocol, LockInfo, Stats, Store};
use serde_json::json;

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
  percolite top --json --seconds 5 | jq .commits_per_second

A store is open in one process at a time, so this watches its own: transfers between accounts in a temporary store. A
program that wants to be watched prints Store::stats() and Store::locks() itself. What a dead process left is shown by
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
    /// JSON lines, one a second
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let interrupt = Interrupt::watch()?;
    let place = Place::new(None, false)?;
    let protocol = if args.two_phase { CommitProtocol::TwoPhase } else { CommitProtocol::Auto };
    let store = Store::builder().protocol(protocol).open(place.path())?;
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
    let mut before = (Instant::now(), store.stats());
    loop {
        let until = before.0 + Duration::from_secs(1);
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
        let now = (Instant::now(), store.stats());
        let rates = Rates::between(&before.1, &now.1, now.0 - before.0);
        if args.json {
            say(rates.json(&now.1, locks.len()))?;
        } else {
            if in_place {
                say("\x1b[H\x1b[2J")?;
            }
            say(rates.table(&now.1))?;
            say(if locks.is_empty() { "no locks were met".to_owned() } else { table::locks(&locks, names) })?;
        }
        before = now;
    }
}

/// What happened in a second.
struct Rates {
    commits: f64,
    conflicts: f64,
    retries: f64,
    syncs: f64,
    rolled: f64,
}

impl Rates {
    #[expect(clippy::cast_precision_loss, reason = "rates")]
    fn between(before: &Stats, now: &Stats, took: Duration) -> Self {
        let rate = |count: fn(&Stats) -> u64| (count(now) - count(before)) as f64 / took.as_secs_f64();
        Self {
            commits: rate(|stats| stats.commits_one_phase + stats.commits_two_phase),
            conflicts: rate(|stats| stats.conflicts),
            retries: rate(|stats| stats.retries),
            syncs: rate(|stats| stats.syncs),
            rolled: rate(|stats| stats.rolled_forward + stats.rolled_back),
        }
    }

    fn commits_per_sync(&self) -> f64 {
        if self.syncs > 0.0 { self.commits / self.syncs } else { 0.0 }
    }

    fn table(&self, now: &Stats) -> String {
        let rate = |rate: f64| indicatif::HumanFloatCount(rate.round()).to_string();
        let header = [
            "commits/s",
            "conflicts/s",
            "retries/s",
            "syncs/s",
            "commits per sync",
            "rolled/s",
            "live views",
            "not yet durable",
        ];
        let behind = now.visible_ts.millis().saturating_sub(now.durable_ts.millis());
        let cells = [
            rate(self.commits),
            rate(self.conflicts),
            rate(self.retries),
            rate(self.syncs),
            format!("{:.1}", self.commits_per_sync()),
            rate(self.rolled),
            now.live_views.to_string(),
            format!("{behind} ms"),
        ];
        table::figures(header, vec![cells])
    }

    fn json(&self, now: &Stats, locks: usize) -> serde_json::Value {
        json!({
            "commits_per_second": self.commits,
            "conflicts_per_second": self.conflicts,
            "retries_per_second": self.retries,
            "syncs_per_second": self.syncs,
            "commits_per_sync": self.commits_per_sync(),
            "rolled_per_second": self.rolled,
            "live_views": now.live_views,
            "locks_met": locks,
            "visible_ts": now.visible_ts.to_string(),
            "durable_ts": now.durable_ts.to_string(),
        })
    }
}
