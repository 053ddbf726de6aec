//! `percolite-compare`: the same work on percolite and on other stores, side by side.
//!
//! This file has the commands. [`peer`] adapts the stores, and [`workload`] defines the work.
//! [`measurement`] runs one workload on one store, in a process of its own, which [`child`] starts.
//! [`rounds`] orders the measurements and saves their results. [`statistics`] computes ratios;
//! [`summary`], [`goals`], [`fairness`], [`syncs`] and [`report`] show them.
//!
//! Four commands measure by themselves: [`stalls`] and [`recovery`] percolite alone, [`bare_log`] a
//! log without a store, and [`locks`] named locks.

#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::cast_precision_loss,
        reason = "a test that cannot go on fails"
    )
)]

mod args;
mod bare_log;
mod child;
mod client;
#[cfg(test)]
mod conformance;
mod fairness;
#[cfg(test)]
mod fixtures;
mod format;
mod generator;
mod goals;
mod interrupt;
mod locks;
mod measurement;
mod peer;
mod process_usage;
mod recovery;
mod report;
mod rounds;
mod run;
mod spec;
mod stalls;
mod statistics;
mod summary;
mod syncs;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use comfy_table::Table;
use serde::Serialize;

use self::args::CommonArgs;
use self::peer::StoreKind;
use self::report::RunReport;
use self::spec::Spec;

const EXAMPLES: &str = "\
Examples:
  percolite-compare goals --quick                      the goals, in about ten minutes
  percolite-compare goals --results goals.jsonl        in about an hour; --resume continues an interrupted run
  percolite-compare run transfers --clients 1,16,64,256 --rows 10 --html hot.html
  percolite-compare run ycsb-a ycsb-b --stores percolite,rocks-transaction,lmdb --buffered --rows 1000000
  percolite-compare run get scan --rows 10000,1000000,10000000 --clients 1,2 --json > reads.json
  percolite-compare fairness --rounds 3                256 clients on ten rows, and writers faster than the disk
  percolite-compare syncs                              syncs per commit of each store
  percolite-compare locks --quick                      named locks, beside PostgreSQL's and in-process mutexes
  percolite-compare bare-log                           durable commits without a store: the limit of the machine

Each measurement runs in a process of its own, in a temporary directory. Ratios are medians of the ratios within rounds.

Exit codes:
  0    done; goals, fairness, locks: all requirements are met
  1    an error, or a store failed
  2    invalid arguments
  3    percolite missed a requirement
  130  interrupted";

const EXIT_MISSED: u8 = 3;

#[derive(Parser)]
#[command(
    name = "percolite-compare",
    version,
    about = "The same work on percolite and on other stores, side by side",
    after_help = EXAMPLES
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure percolite's goals, and show which are met
    Goals(CommonArgs),
    /// Measure any workloads on any stores
    Run {
        #[command(flatten)]
        run: run::RunArgs,
        #[command(flatten)]
        args: CommonArgs,
    },
    /// Measure overload: up to 256 clients on ten rows, and writers that are faster than the disk
    Fairness {
        /// Stores to measure; write stalls are measured on percolite only
        #[arg(long, value_delimiter = ',', default_values_t = [StoreKind::Percolite], value_enum)]
        stores: Vec<StoreKind>,
        #[command(flatten)]
        args: CommonArgs,
    },
    /// Count the syncs of each store, with strace
    Syncs {
        /// Only these stores
        #[arg(long, value_delimiter = ',', default_values_t = StoreKind::TRANSACTIONAL.to_vec(), value_enum)]
        stores: Vec<StoreKind>,
        #[command(flatten)]
        args: CommonArgs,
    },
    /// Measure durable commits without a store: a log, its syncs, and at most one sleep and wake-up
    /// per commit
    BareLog {
        /// Numbers of concurrent clients
        #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64], value_parser = clap::value_parser!(u64).range(1..=256))]
        clients: Vec<u64>,
        #[command(flatten)]
        args: CommonArgs,
    },
    /// Measure how long percolite takes to open after a kill, with the longest possible write-ahead
    /// log
    Recovery(CommonArgs),
    /// Measure named locks, beside PostgreSQL's advisory locks and in-process mutexes
    Locks(locks::LocksArgs),
    /// Repeat one operation on locks; `locks` counts its instructions and memory
    #[command(hide = true)]
    LockProbe { work: locks::Probe, iterations: u64, dir: PathBuf },
    /// Write to a store until killed, for `recovery`
    #[command(hide = true)]
    WriteUntilKilled {
        rows: u64,
        #[command(flatten)]
        args: CommonArgs,
    },
    /// Run one measurement, for the other commands
    #[command(hide = true)]
    Measure {
        /// The measurement, as JSON
        spec: String,
        dir: PathBuf,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<u8> {
    let code = match command {
        Command::Measure { spec, dir } => return measure(&spec, &dir).map(|()| 0),
        Command::LockProbe { work, iterations, dir } => return locks::run_probe(work, iterations, &dir).map(|()| 0),
        Command::WriteUntilKilled { rows, args } => {
            process_usage::end_with_parent()?;
            return recovery::write_until_killed(rows, &args).map(|()| 0);
        }
        command => {
            interrupt::watch().context("cannot watch for signals")?;
            run_interruptible(command)?
        }
    };
    Ok(code.unwrap_or_else(|| {
        eprintln!("error: interrupted");
        interrupt::CODE
    }))
}

/// Runs a command and returns the exit code; `None` if the run was interrupted.
fn run_interruptible(command: Command) -> Result<Option<u8>> {
    match command {
        Command::Measure { .. } | Command::LockProbe { .. } | Command::WriteUntilKilled { .. } => Ok(Some(0)),
        Command::Goals(args) => run_goals(&args),
        Command::Run { run, args } => run_workloads(&run, &args),
        Command::Fairness { stores, args } => run_fairness(&stores, &args),
        Command::Syncs { stores, args } => run_syncs(&stores, &args),
        Command::BareLog { clients, args } => print(bare_log::run(&clients, &args)?, bare_log::show, &args),
        Command::Recovery(args) => print(recovery::run(&args)?, recovery::show, &args),
        Command::Locks(args) => Ok(locks::run(&args)?.map(exit_code)),
    }
}

fn exit_code(missed: usize) -> u8 {
    if missed > 0 { EXIT_MISSED } else { 0 }
}

fn measure(spec: &str, dir: &std::path::Path) -> Result<()> {
    let spec: Spec = serde_json::from_str(spec).context("the measurement is not valid JSON")?;
    process_usage::end_with_parent()?;
    process_usage::limit_memory(spec.conditions.memory_bytes)?;
    println!("{}", serde_json::to_string(&measurement::run(&spec, dir))?);
    Ok(())
}

fn run_goals(args: &CommonArgs) -> Result<Option<u8>> {
    let mut results = args.results_file()?;
    let Some((plan, goals)) = goals::run(args, &mut results)? else { return Ok(None) };
    let summaries = summary::summarize(&plan.entries, &results.outcomes, &plan.conditions, plan.rounds);
    let report = RunReport::new(plan.conditions, plan.rounds, goals, summaries)?;
    let missed = report.goals.iter().filter(|goal| !goal.required_met).count();
    publish(&report, args)?;
    if !args.json {
        println!("{}\n{missed} of {} required goals missed", goals::show(&report.goals), report.goals.len());
    }
    Ok(Some(exit_code(missed)))
}

fn run_workloads(run: &run::RunArgs, args: &CommonArgs) -> Result<Option<u8>> {
    let mut results = args.results_file()?;
    let Some((plan, summaries)) = run::run(run, args, &mut results)? else { return Ok(None) };
    let report = RunReport::new(plan.conditions, plan.rounds, Vec::new(), summaries)?;
    publish(&report, args)?;
    if !args.json {
        for (title, table) in summary::show(&report.summaries) {
            println!("\n{title}\n{table}");
        }
    }
    Ok(Some(u8::from(report.summaries.iter().any(|one| one.failed.is_some()))))
}

/// The results of `fairness`, for `--json`.
#[derive(Serialize)]
struct FairnessReport<'a> {
    #[serde(flatten)]
    report: &'a RunReport,
    fairness: &'a [fairness::StoreLine],
    stalls: &'a [stalls::StallRun],
}

fn run_fairness(stores: &[StoreKind], args: &CommonArgs) -> Result<Option<u8>> {
    let mut results = args.results_file()?;
    let Some((plan, fairness)) = fairness::run(stores, args, &mut results)? else { return Ok(None) };
    let Some(stalls) = stalls::run(args)? else { return Ok(None) };
    let summaries = summary::summarize(&plan.entries, &results.outcomes, &plan.conditions, plan.rounds);
    let mut report = RunReport::new(plan.conditions, plan.rounds, Vec::new(), summaries)?;
    report.requirements = fairness.requirements;
    report.requirements.extend(stalls::check(&stalls));
    write_page(&report, args)?;
    let missed = report.requirements.iter().filter(|one| one.is_missed_by_percolite()).count();
    if args.json {
        let report = FairnessReport { report: &report, fairness: &fairness.lines, stalls: &stalls };
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("{}\n{}", fairness::show_lines(&fairness.lines), stalls::show(&stalls));
        println!("{}\n{missed} requirements missed by percolite", fairness::show(&report.requirements));
    }
    Ok(Some(exit_code(missed)))
}

fn run_syncs(stores: &[StoreKind], args: &CommonArgs) -> Result<Option<u8>> {
    if let Some(reason) = syncs::unavailable() {
        println!("SKIPPED ({reason})");
        return Ok(Some(0));
    }
    let scratch = args.scratch_dir()?;
    let Some(all) = syncs::run(stores, &args.conditions(), &scratch)? else { return Ok(None) };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        println!("{}", syncs::show(&all));
    }
    Ok(Some(u8::from(!all.iter().all(syncs::SyncCounts::is_ok))))
}

/// Prints the results of a command that has a table but no HTML page; `None` if it was interrupted.
fn print<T: Serialize>(results: Option<Vec<T>>, show: fn(&[T]) -> Table, args: &CommonArgs) -> Result<Option<u8>> {
    let Some(results) = results else { return Ok(None) };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&results)?);
    } else {
        println!("{}", show(&results));
    }
    Ok(Some(0))
}

fn publish(report: &RunReport, args: &CommonArgs) -> Result<()> {
    write_page(report, args)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(report)?);
    }
    Ok(())
}

fn write_page(report: &RunReport, args: &CommonArgs) -> Result<()> {
    if let Some(path) = &args.html {
        let page = report::page(report)?;
        std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
