//! `percolite demo`: the store at work, as a story in five acts.
//!
//! Real data is loaded with an index kept in step; many threads move money; a writer is killed by SIGKILL in the middle
//! of commits; its locks are shown; and reading alone puts everything right. Each act is a function here and notes what it
//! has seen. The exit code says whether all of it was.
//!
//! [`place`] is where the store lives, [`dataset`] and [`parse`] find and read the data, [`load`] loads it and compares
//! index and records, [`transfers`] moves money, [`jobs`] are the transactions that [`crash`] kills, [`orphans`] is what
//! comes after.

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
  percolite demo                          with Debian's package list, or what else there is
  percolite demo --input people.jsonl     with data of your own
  percolite demo --dir bank               keeps the store, to be looked at with the other commands
  percolite demo --dir bank --seconds 60  long enough to watch it: percolite top bank

The exit code is 0 only if everything was seen that should be.")]
pub struct Args {
    /// Load this file, or - for standard input: JSON lines, tab-separated values with a header, or a Debian package list
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Load this; default: the first of these that there is
    #[arg(long, conflicts_with = "input")]
    source: Option<SampleData>,
    /// The field that is the record's key; default: id, key, name or Package, else the number of the line
    #[arg(long, value_name = "FIELD")]
    key_field: Option<String>,
    /// The field that the secondary index goes by; default: one that sorts the records into groups
    #[arg(long, value_name = "FIELD")]
    index_field: Option<String>,
    /// Load at most so many records
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true,
          value_parser = clap::value_parser!(u64).range(1..))]
    rows: u64,
    /// Leave out records that cannot be read, instead of ending
    #[arg(long)]
    skip_bad: bool,
    /// Keep the store in this directory, which must be missing, empty, or of an earlier demo; default: a temporary one
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Keep the temporary directory
    #[arg(long)]
    keep: bool,
    /// How long each of the two rounds of transfers lasts
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = seconds)]
    seconds: Duration,
    /// Repeats the random choices of an earlier run
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if !(0.05..=600.0).contains(&number) {
        return Err("not between 0.05 and 600".into());
    }
    Ok(Duration::from_secs_f64(number))
}

/// What was seen, and what should have been.
#[derive(Default)]
pub struct Checks(Vec<(bool, String)>);

impl Checks {
    /// Notes whether `what` is so.
    pub fn check(&mut self, is_so: bool, what: impl Into<String>) {
        self.0.push((is_so, what.into()));
    }
}

/// Runs the demo. An error if anything was not as it should be.
pub fn run(args: &Args) -> Result<()> {
    let began = Instant::now();
    let seed = args.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let demo_dir = DemoDir::new(args.dir.as_deref(), args.keep)?;
    let mut checks = Checks::default();
    // For `percolite top`, where the directory is known.
    let store = Store::builder().status_file_interval(STATUS_INTERVAL).open(demo_dir.path())?;
    let keyspaces = Keyspaces::create(&store)?;
    print_line(format_args!("The store is in {}.", demo_dir.path().display()))?;
    print_line(format_args!("To have the same random choices again: --seed {seed}"))?;

    let fields = load_real_data(&store, &keyspaces, args, &mut checks)?;
    move_money(&store, &keyspaces, args.seconds, seed, &mut checks)?;
    let plans = planned_txns::plan(&store, &keyspaces, &fields, &mut StdRng::seed_from_u64(seed))?;
    close(store)?;
    kill_writers(&demo_dir, &plans, &mut checks)?;
    recover(&demo_dir, &fields, &plans, &mut checks)?;

    if demo_dir.is_temporary() {
        drop(demo_dir);
    } else {
        print_line(format_args!("\nThe store stays in {}.", demo_dir.path().display()))?;
    }
    summarize(&checks, began.elapsed())
}

fn close(store: Store) -> Result<()> {
    // Not waited for elsewhere: a store that is only dropped closes too, but has nobody to tell of a failure.
    Ok(store.close()?)
}

fn load_real_data(store: &Store, keyspaces: &Keyspaces, args: &Args, checks: &mut Checks) -> Result<FieldChoice> {
    print_line("\n1. Real data: records, and an index that is kept in step\n")?;
    let mut data = dataset::find(args.input.as_deref(), args.source)?;
    for note in &data.notes {
        print_line(format_args!("not used: {note}"))?;
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
        "{} ({} new, {} replacing another), {} read",
        count(read, "record"),
        indicatif::HumanCount(loaded.new),
        indicatif::HumanCount(loaded.replaced),
        indicatif::HumanBytes(loaded.bytes),
    ))?;
    if loaded.skipped > 0 {
        print_line(format_args!("{} left out because they cannot be read", count(loaded.skipped, "record")))?;
    }
    let commits = count(loaded.commits, "durable transaction");
    print_line(format_args!("{commits} in {:.1} s, {} a second", loaded.elapsed.as_secs_f64(), count(rate, "record")))?;
    let compared = load::compare(&store.snapshot()?, keyspaces, &fields)?;
    checks.check(
        compared.matches() && compared.records == loaded.new,
        format!("{} loaded, the index in step with them", count(compared.records, "record")),
    );
    Ok(fields)
}

fn move_money(store: &Store, keyspaces: &Keyspaces, time: Duration, seed: u64, checks: &mut Checks) -> Result<()> {
    print_line(format_args!(
        "\n2. Transfers between accounts: {THREADS} threads, every commit durable, {:.1} s each\n",
        time.as_secs_f64()
    ))?;
    let mut rows = Vec::new();
    let (mut audits, mut wrong, mut idle) = (0, 0, false);
    for (keyspace, accounts) in [(&keyspaces.hot, HOT_ACCOUNTS), (&keyspaces.accounts, ACCOUNTS)] {
        transfers::open_accounts(store, keyspace, accounts)?;
        let stop = &AtomicBool::new(false);
        let round = transfers::Round { keyspace, accounts, threads: THREADS, duration: time, seed, stop };
        let outcome = transfers::run(store, &round)?;
        audits += outcome.audits;
        wrong += outcome.failed_audits;
        idle |= outcome.commits == 0;
        #[expect(clippy::cast_precision_loss, reason = "rates")]
        let (rate, shared) = (
            outcome.commits as f64 / outcome.elapsed.as_secs_f64(),
            outcome.commits as f64 / outcome.syncs.max(1) as f64,
        );
        rows.push([
            accounts.to_string(),
            indicatif::HumanFloatCount(rate.round()).to_string(),
            indicatif::HumanCount(outcome.conflicts).to_string(),
            indicatif::HumanCount(outcome.retries).to_string(),
            format!("{shared:.1}"),
            format!("{} of {}", outcome.audits - outcome.failed_audits, outcome.audits),
        ]);
    }
    let header = ["accounts", "commits/s", "conflicts", "retries", "commits per sync", "sums whole"];
    print_line(table::drawn_numeric_table(header, rows))?;
    print_line(
        "A conflict: two transfers wanted the same account at the same time, and the\n\
         later one had to begin again. A sync: the disk confirms the log. A sum: all\n\
         accounts added up, in a snapshot.",
    )?;
    checks.check(
        wrong == 0 && audits > 2 && !idle,
        format!("the sum was whole in {} while {THREADS} threads moved money", count(audits, "snapshot")),
    );
    Ok(())
}

fn kill_writers(demo_dir: &DemoDir, plans: &[KillPlan], checks: &mut Checks) -> Result<()> {
    print_line("\n3. Writers killed in the middle of commits\n")?;
    print_line(
        "A commit in two phases locks all its rows, then commits them, one row (the\n\
         primary) first. Whether that one is committed decides about all: it is the\n\
         commit point. Each of these writers is a process of its own.\n",
    )?;
    let mut rows = Vec::new();
    for kill_at in [killed_writer::KillPoint::BeforeCommitPoint, killed_writer::KillPoint::AfterCommitPoint] {
        let (mut planned, mut as_planned) = (0, 0);
        for plan in plans.iter().filter(|plan| plan.kill_at == kill_at) {
            let death = killed_writer::kill_in_commit(demo_dir.path(), kill_at, &plan.txn)?;
            planned += 1;
            as_planned += u64::from(death.killed_as_planned);
            let how = if death.killed_as_planned { "SIGKILL" } else { "not as planned" };
            rows.push([plan.txn.name(), death.ready_line, how.to_owned()]);
        }
        let killed = count(as_planned, "writer");
        checks.check(as_planned == planned && planned > 0, format!("{killed} killed by SIGKILL {}", kill_at.name()));
    }
    print_line(table::drawn_text_table(["transaction", "last words", "died of"], rows))
}

fn recover(demo_dir: &DemoDir, fields: &FieldChoice, plans: &[KillPlan], checks: &mut Checks) -> Result<()> {
    print_line("\n4. The store is opened again, without its background sweep: what is left\n")?;
    let store = Store::builder().background_resolve(false).open(demo_dir.path())?;
    let keyspaces = Keyspaces::open(&store)?;
    let locks = orphans::print_locks(&store, &keyspaces, plans, checks)?;

    print_line("\n5. Everything is read, and nothing else is done\n")?;
    orphans::resolve_by_reading(&store, &keyspaces, fields, plans, [ACCOUNTS, HOT_ACCOUNTS], checks)?;
    orphans::recheck_status(&store, &locks, checks)?;
    close(store)
}

fn summarize(checks: &Checks, took: Duration) -> Result<()> {
    print_line("\nSeen:\n")?;
    for (is_so, what) in &checks.0 {
        print_line(format_args!("{} {what}", if *is_so { '✓' } else { '✗' }))?;
    }
    let missing: Vec<&str> = checks.0.iter().filter(|(is_so, _)| !is_so).map(|(_, what)| what.as_str()).collect();
    if !missing.is_empty() {
        bail!("not so: {}", missing.join("; "));
    }
    print_line(format_args!("\nAll of it, in {:.1} s.", took.as_secs_f64()))
}
