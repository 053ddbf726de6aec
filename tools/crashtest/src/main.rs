//! `percolite-crashtest`: crashes a store in every way it knows of, and judges what the store did to its clients.
//!
//! Exit code 0: everything held, and there was something to hold. 1: a promise was broken, or nothing was checked. 2: the
//! command line or the input makes no sense, or the machine cannot do what is asked; one line on standard error says why.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use percolite_crashtest::checker::{Verdict, check};
use percolite_crashtest::evidence::Evidence;
use percolite_crashtest::history::History;
use percolite_crashtest::layers::Layer;
#[cfg(feature = "rocks")]
use percolite_crashtest::life;
use percolite_crashtest::mutants::{self, MutantsArgs};
use percolite_crashtest::order::{Order, mutant};
use percolite_crashtest::outcome::Outcome;
use percolite_crashtest::points::PointsArgs;
use percolite_crashtest::quick::{self, QuickArgs, SoakArgs};
use percolite_crashtest::report::{self, ReportArgs};
use percolite_crashtest::sim::campaign::{self, SimArgs};

/// Crash tests for percolite, and the checker that judges them.
#[derive(Parser)]
#[command(name = "percolite-crashtest", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// What CI runs: every layer, every expected point, five mutants.
    Quick(QuickArgs),
    /// All layers in turn, with fresh seeds and under changing load, for as long as asked.
    Soak(SoakArgs),
    /// Switch known mistakes on, one at a time, and see whether `quick` finds each.
    Mutants(MutantsArgs),
    /// Repeat one case from the line that a failure has printed.
    Replay(ReplayArgs),
    /// Simulate histories in memory, crashes included.
    Sim(SimArgs),
    /// Kill a process at every point and judge what it leaves.
    #[cfg(feature = "rocks")]
    Kill(Order),
    /// Cut the log of a store at every byte, and flip bits of it.
    #[cfg(feature = "rocks")]
    Walsweep(Order),
    /// Have system calls fail below a store, and disks be full.
    #[cfg(feature = "rocks")]
    Ioerr(Order),
    /// Cut the power of a file system of its own.
    #[cfg(feature = "rocks")]
    Powercut(Order),
    /// Check a history for snapshot isolation.
    ///
    /// Exit code 0: it is consistent. 1: it is not, or no transaction in it was committed. 2: it is not a history.
    Check(CheckArgs),
    /// List the points at which a run can be stopped, with what must hold there.
    Points(PointsArgs),
    Report(ReportArgs),
    #[cfg(feature = "rocks")]
    #[command(hide = true)]
    Life {
        life: String,
    },
}

#[derive(clap::Args)]
struct CheckArgs {
    /// The history, one JSON object a line as HISTORY.md describes it; `-` is standard input.
    history: PathBuf,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct ReplayArgs {
    /// The case, as in `sim:embedded/17`.
    case: String,
    /// Print every step, where the layer knows them.
    #[arg(long)]
    trace: bool,
    /// Write the history to this file, where the layer has one in memory.
    #[arg(long)]
    history: Option<PathBuf>,
    #[arg(long, hide = true, value_parser = mutant)]
    mutant: Option<percolite::crashtest::Mutant>,
}

fn main() -> ExitCode {
    run(Cli::parse().command).unwrap_or_else(|why| {
        eprintln!("error: {}", format!("{why:#}").replace('\n', " "));
        ExitCode::from(2)
    })
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Quick(args) => {
            let evidence = quick::quick(&tell)?;
            told(&evidence, args.json.as_deref())
        }
        Command::Soak(args) => {
            let json = args.json.clone();
            let evidence = quick::soak(&args, &|evidence| {
                let failures: usize = evidence.layers.iter().map(|layer| layer.failures.len()).sum();
                tell(&format!("{:.0} s, {failures} failures", evidence.seconds));
                keep(evidence, json.as_deref())
            })?;
            told(&evidence, args.json.as_deref())
        }
        Command::Mutants(args) => {
            let evidence = mutants::run(&args, &|result| {
                let by = result.layer.as_deref().unwrap_or("NOBODY");
                tell(&format!("{}: found by {by} after {:.1} s", result.mutant, result.seconds));
            })?;
            told(&evidence, args.json.as_deref())
        }
        Command::Replay(args) => replay(&args),
        Command::Sim(args) => layer(&args.order, campaign::run_with(&args)?),
        #[cfg(feature = "rocks")]
        Command::Kill(order) => layer(&order, Layer::Kill.run(&order)?),
        #[cfg(feature = "rocks")]
        Command::Walsweep(order) => layer(&order, Layer::Walsweep.run(&order)?),
        #[cfg(feature = "rocks")]
        Command::Ioerr(order) => layer(&order, Layer::Ioerr.run(&order)?),
        #[cfg(feature = "rocks")]
        Command::Powercut(order) => layer(&order, Layer::Powercut.run(&order)?),
        Command::Check(args) => run_check(&args),
        Command::Points(args) => args.run().map(|()| ExitCode::SUCCESS),
        Command::Report(args) => report::run(&args),
        #[cfg(feature = "rocks")]
        Command::Life { life } => life::live(&life).map(|()| ExitCode::SUCCESS),
    }
}

/// Says how far a long run has come.
fn tell(what: &str) {
    if io::stderr().is_terminal() {
        eprintln!("… {what}");
    }
}

fn replay(args: &ReplayArgs) -> anyhow::Result<ExitCode> {
    let layer_of_case = Layer::of_case(&args.case).with_context(|| format!("no layer has a case {:?}", args.case))?;
    let order = Order { case: Some(args.case.clone()), mutant: args.mutant, ..Order::default() };
    if layer_of_case == Layer::Sim {
        let again = campaign::replay(&order)?;
        if args.trace {
            again.trace.iter().for_each(|step| println!("{step}"));
        }
        if let Some(path) = &args.history {
            let mut file = File::create(path).with_context(|| path.display().to_string())?;
            again.lines.iter().try_for_each(|line| line.write(&mut file))?;
        }
        return layer(&order, again.outcome);
    }
    let mut outcome = layer_of_case.run(&order)?;
    for _ in 1..layer_of_case.tries_of_a_replay() {
        if !outcome.failures.is_empty() {
            break;
        }
        outcome.add(layer_of_case.run(&order)?);
    }
    layer(&order, outcome)
}

/// Shows what one layer has found.
fn layer(order: &Order, outcome: Outcome) -> anyhow::Result<ExitCode> {
    if let Some(path) = &order.json {
        std::fs::write(path, serde_json::to_vec_pretty(&outcome)?).with_context(|| path.display().to_string())?;
    }
    let gaps = percolite_crashtest::points::gaps_in(&outcome)?;
    let evidence = Evidence { gaps, layers: vec![outcome], ..Evidence::begin("one layer") };
    report::print(&evidence);
    Ok(if evidence.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn told(evidence: &Evidence, json: Option<&Path>) -> anyhow::Result<ExitCode> {
    keep(evidence, json)?;
    report::print(evidence);
    Ok(if evidence.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn keep(evidence: &Evidence, json: Option<&Path>) -> anyhow::Result<()> {
    if let Some(path) = json {
        std::fs::write(path, serde_json::to_vec_pretty(evidence)?).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn run_check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let name = args.history.display();
    let input: Box<dyn BufRead> = if args.history.as_os_str() == "-" {
        Box::new(io::stdin().lock())
    } else {
        let file = File::open(&args.history).with_context(|| name.to_string())?;
        Box::new(BufReader::with_capacity(1 << 16, file))
    };
    let history = History::read(input).with_context(|| name.to_string())?;
    let report = check(&history);

    let mut output = io::stdout().lock();
    let told = if args.json {
        serde_json::to_writer_pretty(&mut output, &report).map_err(io::Error::from).and_then(|()| writeln!(output))
    } else {
        writeln!(output, "{report}")
    };
    // A reader that has seen enough, as `head` does, still wants the exit code.
    if let Err(why) = told
        && why.kind() != io::ErrorKind::BrokenPipe
    {
        return Err(why.into());
    }
    Ok(if report.verdict == Verdict::Consistent { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
