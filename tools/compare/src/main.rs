//! `percolite-compare`: the same work on percolite and on others, side by side.
//!
//! This file knows the commands and nothing else. [`peer`] has the stores and [`workload`] the work; [`cell`] measures one
//! on the other in a process of its own, which [`child`] starts; [`rounds`] puts cells in their order and keeps what came
//! out; [`statistics`] makes ratios of it, and [`compare`], [`goals`], [`fairness`], [`syncs`] and
//! [`report`] show them. Four have measurements of their own: [`stalls`] and [`opening`], of percolite alone, [`bare_log`], of no store
//! at all, and [`locks`], of locks by name.

#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::cast_precision_loss,
        reason = "a test that cannot go on fails"
    )
)]

mod bare_log;
mod candidates;
mod cell;
mod child;
mod client;
mod compare;
#[cfg(test)]
mod conformance;
mod dice;
// For the library's window, which the proof of the core measures.
mod engine {
    pub use percolite::engine::{RowRange, storage};
}
mod fairness;
mod goals;
mod interrupt;
mod locks;
mod opening;
mod options;
mod peer;
mod report;
mod rounds;
mod spec;
mod stalls;
mod statistics;
mod syncs;
#[cfg(test)]
mod testing;
mod usage;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use comfy_table::Table;
use serde::Serialize;

use self::child::Scratch;
use self::options::Arguments;
use self::peer::Kind;
use self::report::Evidence;
use self::spec::Spec;

const EXAMPLES: &str = "\
Examples:
  percolite-compare goals --quick                      the goals, in about ten minutes
  percolite-compare goals --results goals.jsonl        in about an hour; with --resume it goes on where it was stopped
  percolite-compare run transfers --clients 1,16,64,256 --rows 10 --html hot.html
  percolite-compare run ycsb-a ycsb-b --stores percolite,rocks-transaction,lmdb --buffered --rows 1000000
  percolite-compare run get scan --rows 10000,1000000,10000000 --clients 1,2 --json > reads.json
  percolite-compare fairness --rounds 3                256 clients on ten rows, and writers faster than the disk
  percolite-compare syncs                              whether everybody syncs as often as they say
  percolite-compare locks --quick                      locks by name, beside PostgreSQL's and those of one process
  percolite-compare bare-log                           durable commits without a store: what the machine gives

Each measurement is made in a process of its own, in a folder that is removed. Ratios are medians of those within each round.

Exit codes:
  0    done; of goals, fairness and locks, all required ones are met
  1    failed, or a store has
  2    a command line that makes no sense
  3    something required of percolite is missed
  130  interrupted";

const MISSED: u8 = 3;

#[derive(Parser)]
#[command(name = "percolite-compare", version, about = "The same work on percolite and on others, side by side", after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure what percolite has set itself, and say what is met
    Goals(Arguments),
    /// Measure any workloads on any stores
    Run {
        #[command(flatten)]
        choice: compare::Choice,
        #[command(flatten)]
        arguments: Arguments,
    },
    /// Measure what becomes of percolite under too many clients on a few rows, and under writers that are too fast
    Fairness {
        /// These stores' figures, too, but for stalls
        #[arg(long, value_delimiter = ',', default_values_t = [Kind::Percolite], value_enum)]
        stores: Vec<Kind>,
        #[command(flatten)]
        arguments: Arguments,
    },
    /// Count the syncs of each store, by strace
    Syncs {
        /// Only these stores
        #[arg(long, value_delimiter = ',', default_values_t = Kind::TRANSACTIONAL.to_vec(), value_enum)]
        stores: Vec<Kind>,
        #[command(flatten)]
        arguments: Arguments,
    },
    /// Measure durable commits to no store at all: a log, its syncs, and a sleep and a wake-up for each client
    BareLog {
        /// How many clients at a time
        #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64], value_parser = clap::value_parser!(u64).range(1..=256))]
        clients: Vec<u64>,
        #[command(flatten)]
        arguments: Arguments,
    },
    /// Measure how long percolite takes to open after it was killed with as much log as there can be
    Opening(Arguments),
    /// Measure what the window of a core of our own could find its rows with
    Candidates(Arguments),
    /// Measure locks by name, beside PostgreSQL's advisory locks and the mutexes of one process
    Locks(locks::Choice),
    /// Do one thing about locks over and over; this is how `locks` counts
    #[command(hide = true)]
    LockProbe { work: locks::Work, times: u64, folder: PathBuf },
    /// Write to a store until killed; this is how `opening` leaves one
    #[command(hide = true)]
    WriteOn {
        rows: u64,
        #[command(flatten)]
        arguments: Arguments,
    },
    /// Measure one thing; this is how the others do it
    #[command(hide = true)]
    Cell {
        /// What, as JSON
        spec: String,
        folder: PathBuf,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(code) => ExitCode::from(code),
        Err(why) => {
            eprintln!("error: {why:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<u8> {
    if let Command::Cell { spec, folder } = command {
        let spec: Spec = serde_json::from_str(&spec).context("this is no cell")?;
        usage::end_with_parent()?;
        usage::limit_memory(spec.conditions.memory_bytes)?;
        println!("{}", serde_json::to_string(&cell::run(&spec, &folder))?);
        return Ok(0);
    }
    if let Command::LockProbe { work, times, folder } = command {
        return locks::probe(work, times, &folder).map(|()| 0);
    }
    if let Command::WriteOn { rows, arguments } = command {
        usage::end_with_parent()?;
        return opening::write_on(rows, &arguments).map(|()| 0);
    }
    interrupt::watch().context("cannot watch for signals")?;
    let code = match command {
        Command::Cell { .. } | Command::LockProbe { .. } | Command::WriteOn { .. } => Some(0),
        Command::Goals(arguments) => run_goals(&arguments)?,
        Command::Run { choice, arguments } => run_choice(&choice, &arguments)?,
        Command::Fairness { stores, arguments } => run_fairness(&stores, &arguments)?,
        Command::Syncs { stores, arguments } => run_syncs(&stores, &arguments)?,
        Command::BareLog { clients, arguments } => {
            print(bare_log::run(&clients, &arguments)?, bare_log::show, &arguments)?
        }
        Command::Opening(arguments) => print(opening::run(&arguments)?, opening::show, &arguments)?,
        Command::Candidates(arguments) => print(candidates::run(&arguments)?, candidates::show, &arguments)?,
        Command::Locks(choice) => locks::run(&choice)?.map(|missed| if missed > 0 { MISSED } else { 0 }),
    };
    Ok(code.unwrap_or_else(|| {
        eprintln!("error: interrupted");
        interrupt::CODE
    }))
}

fn run_goals(arguments: &Arguments) -> Result<Option<u8>> {
    let mut journal = arguments.journal()?;
    let Some((plan, judged)) = goals::run(arguments, &mut journal)? else { return Ok(None) };
    let summaries = compare::summarize(&plan.contestants, &journal.outcomes, &plan.conditions, plan.rounds);
    let evidence = Evidence::new(plan.conditions, plan.rounds, judged, summaries)?;
    let missed = evidence.goals.iter().filter(|goal| !goal.required_met).count();
    publish(&evidence, arguments)?;
    if !arguments.json {
        println!("{}\n{missed} of {} required goals missed", goals::show(&evidence.goals), evidence.goals.len());
    }
    Ok(Some(if missed > 0 { MISSED } else { 0 }))
}

fn run_choice(choice: &compare::Choice, arguments: &Arguments) -> Result<Option<u8>> {
    let mut journal = arguments.journal()?;
    let Some((plan, summaries)) = compare::run(choice, arguments, &mut journal)? else { return Ok(None) };
    let evidence = Evidence::new(plan.conditions, plan.rounds, Vec::new(), summaries)?;
    publish(&evidence, arguments)?;
    if !arguments.json {
        for (title, table) in compare::show(&evidence.summaries) {
            println!("\n{title}\n{table}");
        }
    }
    Ok(Some(u8::from(evidence.summaries.iter().any(|one| one.failed.is_some()))))
}

/// What `fairness` came to, as `--json` has it.
#[derive(Serialize)]
struct Overload<'a> {
    #[serde(flatten)]
    evidence: &'a Evidence,
    fairness: &'a [fairness::Line],
    stalls: &'a [stalls::Stalls],
}

fn run_fairness(stores: &[Kind], arguments: &Arguments) -> Result<Option<u8>> {
    let mut journal = arguments.journal()?;
    let Some((plan, found)) = fairness::run(stores, arguments, &mut journal)? else { return Ok(None) };
    let Some(stalls) = stalls::run(arguments)? else { return Ok(None) };
    let summaries = compare::summarize(&plan.contestants, &journal.outcomes, &plan.conditions, plan.rounds);
    let mut evidence = Evidence::new(plan.conditions, plan.rounds, Vec::new(), summaries)?;
    evidence.requirements = found.requirements;
    evidence.requirements.extend(stalls::judge(&stalls));
    write_page(&evidence, arguments)?;
    let missed = evidence.requirements.iter().filter(|one| one.is_missed_by_percolite()).count();
    if arguments.json {
        let overload = Overload { evidence: &evidence, fairness: &found.lines, stalls: &stalls };
        println!("{}", serde_json::to_string_pretty(&overload)?);
    } else {
        println!("{}\n{}", fairness::show_lines(&found.lines), stalls::show(&stalls));
        println!("{}\n{missed} requirements missed by percolite", fairness::show(&evidence.requirements));
    }
    Ok(Some(if missed > 0 { MISSED } else { 0 }))
}

fn run_syncs(stores: &[Kind], arguments: &Arguments) -> Result<Option<u8>> {
    if let Some(why) = syncs::skipped() {
        println!("SKIPPED ({why})");
        return Ok(Some(0));
    }
    let scratch: Scratch = arguments.scratch()?;
    let Some(all) = syncs::run(stores, &arguments.conditions(), &scratch)? else { return Ok(None) };
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        println!("{}", syncs::show(&all));
    }
    Ok(Some(u8::from(!all.iter().all(syncs::Syncs::is_right))))
}

/// Prints the figures of a command that has a table and no page; `None` if it was interrupted.
fn print<T: Serialize>(figures: Option<Vec<T>>, show: fn(&[T]) -> Table, arguments: &Arguments) -> Result<Option<u8>> {
    let Some(figures) = figures else { return Ok(None) };
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&figures)?);
    } else {
        println!("{}", show(&figures));
    }
    Ok(Some(0))
}

fn publish(evidence: &Evidence, arguments: &Arguments) -> Result<()> {
    write_page(evidence, arguments)?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(evidence)?);
    }
    Ok(())
}

fn write_page(evidence: &Evidence, arguments: &Arguments) -> Result<()> {
    if let Some(path) = &arguments.html {
        let page = report::page(evidence)?;
        std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
