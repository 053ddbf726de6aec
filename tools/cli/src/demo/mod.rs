//! `percolite demo`: the store at work, in five steps.
//!
//! 1. Real data is loaded, with a secondary index in the same transactions.
//! 2. Many threads transfer money between accounts.
//! 3. Writers are killed with SIGKILL in the middle of commits.
//! 4. Their orphan locks are shown.
//! 5. Reading alone recovers everything.
//!
//! Each step is a function here and adds its checks; the exit code says whether all of them passed.
//!
//! [`store`] has the directory and the keyspaces, [`dataset`] and [`parse`] find and parse the
//! data, [`load`] loads it and compares index and records, [`transfers`] transfers money,
//! [`planned_txns`] has the transactions that [`killed_writer`] kills, and [`orphans`] shows and
//! resolves their locks.

mod dataset;
pub mod killed_writer;
mod load;
mod orphans;
mod parse;
mod planned_txns;
mod store;
mod transfers;

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use percolite::Store;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use self::dataset::{FieldChoice, SampleData};
use self::load::LoadOptions;
use self::planned_txns::KillPlan;
use self::store::{DemoDir, Keyspaces};
use crate::output::{count, print_line};
use crate::table;
use crate::tuning::STATUS_INTERVAL;

const THREADS: u32 = 16;
const ACCOUNTS: u32 = 1000;
const HOT_ACCOUNTS: u32 = 10;

/// The demo's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite demo                          with Debian's package list, or other data of this machine
  percolite demo --input people.jsonl     with your own data
  percolite demo --dir bank               keeps the store, for the other commands
  percolite demo --dir bank --seconds 60  long enough to watch it: percolite top bank

The exit code is 0 only if all checks pass.")]
pub struct Args {
    /// Load this file, or - for standard input: JSON lines, tab-separated values with a header, or
    /// a Debian package list
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Load this data set; default: the first that exists
    #[arg(long, conflicts_with = "input")]
    source: Option<SampleData>,
    /// The field that is the key; default: id, key, name or Package, else the line number
    #[arg(long, value_name = "FIELD")]
    key_field: Option<String>,
    /// The field of the secondary index; default: one with few different values
    #[arg(long, value_name = "FIELD")]
    index_field: Option<String>,
    /// Load at most N records
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true,
          value_parser = clap::value_parser!(u64).range(1..))]
    rows: u64,
    /// Skip records that cannot be read, instead of failing
    #[arg(long)]
    skip_bad: bool,
    /// Keep the store in this directory, which must be missing, empty, or of an earlier demo;
    /// default: a temporary one
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Keep the temporary directory
    #[arg(long)]
    keep: bool,
    /// The duration of each of the two rounds of transfers
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = parse_seconds)]
    seconds: Duration,
    /// The random seed, to repeat the choices of an earlier run
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if !(0.05..=600.0).contains(&number) {
        return Err("not between 0.05 and 600".into());
    }
    Ok(Duration::from_secs_f64(number))
}

/// The results of the checks, each with a description.
#[derive(Default)]
pub struct Checks(Vec<(bool, String)>);

impl Checks {
    /// Adds the result of a check.
    pub fn check(&mut self, passed: bool, description: impl Into<String>) {
        self.0.push((passed, description.into()));
    }
}

/// Runs the demo; an error if a check failed.
pub fn run(args: &Args) -> Result<()> {
    let started = Instant::now();
    let seed = args.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let demo_dir = DemoDir::new(args.dir.as_deref(), args.keep)?;
    let mut checks = Checks::default();
    // The status is published so that the user can watch the demo with `percolite top DIR`.
    let store = Store::builder().status_file_interval(STATUS_INTERVAL).open(demo_dir.path())?;
    let keyspaces = Keyspaces::create(&store)?;
    print_line(format_args!("The store is in {}.", demo_dir.path().display()))?;
    print_line(format_args!("The random seed is {seed}; to repeat the run: --seed {seed}"))?;

    let fields = load_data(&store, &keyspaces, args, &mut checks)?;
    transfer_money(&store, &keyspaces, args.seconds, seed, &mut checks)?;
    let plans = planned_txns::plan(&store, &keyspaces, &fields, &mut StdRng::seed_from_u64(seed))?;
    close(store)?;
    kill_writers(&demo_dir, &plans, &mut checks)?;
    recover(&demo_dir, &fields, &plans, &mut checks)?;

    if demo_dir.is_temporary() {
        drop(demo_dir);
    } else {
        print_line(format_args!("\nThe store is kept in {}.", demo_dir.path().display()))?;
    }
    summarize(&checks, started.elapsed())
}

fn close(store: Store) -> Result<()> {
    // Dropping a store closes it, too, but cannot report an error.
    Ok(store.close()?)
}

fn load_data(store: &Store, keyspaces: &Keyspaces, args: &Args, checks: &mut Checks) -> Result<FieldChoice> {
    print_line("\n1. Real data, with a secondary index in the same transactions\n")?;
    let mut data = dataset::find(args.input.as_deref(), args.source)?;
    for note in &data.notes {
        print_line(format_args!("not available: {note}"))?;
    }
    print_line(format_args!("source: {}", data.name))?;
    let options = LoadOptions {
        key: args.key_field.clone(),
        index: args.index_field.clone(),
        rows: args.rows,
        skip_bad: args.skip_bad,
    };
    let (loaded, fields) = load::load(store, keyspaces, &mut data, &options)?;
    let read = loaded.new + loaded.replaced;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a rate")]
    let rate = (read as f64 / loaded.elapsed.as_secs_f64()) as u64;
    print_line(format_args!(
        "{} ({} new, {} replaced), {} read",
        count(read, "record"),
        indicatif::HumanCount(loaded.new),
        indicatif::HumanCount(loaded.replaced),
        indicatif::HumanBytes(loaded.bytes),
    ))?;
    if loaded.skipped > 0 {
        print_line(format_args!("{} skipped because they cannot be read", count(loaded.skipped, "record")))?;
    }
    let commits = count(loaded.commits, "durable transaction");
    print_line(format_args!("{commits} in {:.1} s, {}/s", loaded.elapsed.as_secs_f64(), count(rate, "record")))?;
    let compared = load::compare(&store.snapshot()?, keyspaces, &fields)?;
    checks.check(
        compared.matches() && compared.records == loaded.new,
        format!("{} loaded, and the index matches them", count(compared.records, "record")),
    );
    Ok(fields)
}

fn transfer_money(
    store: &Store,
    keyspaces: &Keyspaces,
    duration: Duration,
    seed: u64,
    checks: &mut Checks,
) -> Result<()> {
    print_line(format_args!(
        "\n2. Money transfers: {THREADS} threads, every commit durable, {:.1} s per line\n",
        duration.as_secs_f64()
    ))?;
    let mut rows = Vec::new();
    let (mut audits, mut failed_audits, mut idle) = (0, 0, false);
    for (keyspace, accounts) in [(&keyspaces.hot, HOT_ACCOUNTS), (&keyspaces.accounts, ACCOUNTS)] {
        transfers::open_accounts(store, keyspace, accounts)?;
        let stop = &AtomicBool::new(false);
        let round = transfers::Round { keyspace, accounts, threads: THREADS, duration, seed, stop };
        let outcome = transfers::run(store, &round)?;
        audits += outcome.audits;
        failed_audits += outcome.failed_audits;
        idle |= outcome.commits == 0;
        #[expect(clippy::cast_precision_loss, reason = "rates")]
        let (rate, commits_per_sync) = (
            outcome.commits as f64 / outcome.elapsed.as_secs_f64(),
            outcome.commits as f64 / outcome.syncs.max(1) as f64,
        );
        rows.push([
            accounts.to_string(),
            indicatif::HumanFloatCount(rate.round()).to_string(),
            indicatif::HumanCount(outcome.conflicts).to_string(),
            indicatif::HumanCount(outcome.retries).to_string(),
            format!("{commits_per_sync:.1}"),
            format!("{} of {}", outcome.audits - outcome.failed_audits, outcome.audits),
        ]);
    }
    let header = ["accounts", "commits/s", "conflicts", "retries", "commits per sync", "correct totals"];
    print_line(table::drawn_numeric_table(header, rows))?;
    print_line(
        "Conflict: two transfers changed the same account at the same time, and the\n\
         second to commit was retried. Sync: the disk has made the WAL durable. Total:\n\
         the sum of all balances in a snapshot, which no transfer changes.",
    )?;
    checks.check(
        failed_audits == 0 && audits > 2 && !idle,
        format!("the total was correct in {} while {THREADS} threads transferred money", count(audits, "snapshot")),
    );
    Ok(())
}

fn kill_writers(demo_dir: &DemoDir, plans: &[KillPlan], checks: &mut Checks) -> Result<()> {
    print_line("\n3. Writers killed in mid-commit\n")?;
    print_line(
        "A two-phase commit locks all its rows, then commits them, one of them (the\n\
         primary) first. The transaction is committed as soon as its primary is: that\n\
         is the commit point. Each of these writers is a separate process.\n",
    )?;
    let mut rows = Vec::new();
    for kill_at in [killed_writer::KillPoint::BeforeCommitPoint, killed_writer::KillPoint::AfterCommitPoint] {
        let (mut planned, mut as_planned) = (0, 0);
        for plan in plans.iter().filter(|plan| plan.kill_at == kill_at) {
            let killed = killed_writer::kill_in_commit(demo_dir.path(), kill_at, &plan.txn)?;
            planned += 1;
            as_planned += u64::from(killed.as_planned);
            let killed_by = if killed.as_planned { "SIGKILL" } else { "not as planned" };
            rows.push([plan.txn.name(), killed.ready_line, killed_by.to_owned()]);
        }
        let writers = count(as_planned, "writer");
        checks.check(as_planned == planned && planned > 0, format!("{writers} killed by SIGKILL {}", kill_at.name()));
    }
    print_line(table::drawn_text_table(["transaction", "last output", "killed by"], rows))
}

fn recover(demo_dir: &DemoDir, fields: &FieldChoice, plans: &[KillPlan], checks: &mut Checks) -> Result<()> {
    print_line("\n4. The store reopened, without background cleanup: the orphan row locks\n")?;
    let store = Store::builder().background_resolve(false).open(demo_dir.path())?;
    let keyspaces = Keyspaces::open(&store)?;
    let locks = orphans::print_locks(&store, &keyspaces, plans, checks)?;

    print_line("\n5. Recovery by reading\n")?;
    orphans::resolve_by_reading(&store, &keyspaces, fields, plans, [ACCOUNTS, HOT_ACCOUNTS], checks)?;
    orphans::recheck_status(&store, &locks, checks)?;
    close(store)
}

fn summarize(checks: &Checks, elapsed: Duration) -> Result<()> {
    print_line("\nChecks:\n")?;
    for (passed, description) in &checks.0 {
        print_line(format_args!("{} {description}", if *passed { '✓' } else { '✗' }))?;
    }
    let failed: Vec<&str> =
        checks.0.iter().filter(|(passed, _)| !passed).map(|(_, description)| description.as_str()).collect();
    if !failed.is_empty() {
        bail!("failed checks: {}", failed.join("; "));
    }
    print_line(format_args!("\nAll checks passed in {:.1} s.", elapsed.as_secs_f64()))
}
