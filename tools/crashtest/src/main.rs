//! `percolite-crashtest`: crashes a store in every way it knows of, and judges what the store did to its clients.
//!
//! What its exit codes mean is in [`EXIT_CODES`].

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use percolite_crashtest::checker::{Verdict, check};
use percolite_crashtest::evidence::Evidence;
use percolite_crashtest::history::History;
use percolite_crashtest::interrupt;
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

/// The end of the help.
const EXIT_CODES: &str = "\
Exit codes:
  0         Everything held, and there was something to hold.
  1         A promise was broken, or nothing was checked.
  2         The command line or the input makes no sense, or the machine cannot do what is asked; one line on standard error \
says why.
  130, 143  Interrupted, by Ctrl-C or by SIGTERM: the evidence is of what was run until then, and says so. A second one \
ends the program at once, without evidence, and leaves its temporary files.";

/// Crash tests for percolite, and the checker that judges them.
#[derive(Parser)]
#[command(name = "percolite-crashtest", version, after_help = EXIT_CODES)]
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
    /// Print every step of a case of sim.
    #[arg(long)]
    trace: bool,
    /// Write the history of a case of sim to this file.
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
        Command::Quick(args) => shown(args.json.as_deref(), || quick::quick(&tell)),
        Command::Soak(args) => {
            let json = args.json.as_deref();
            shown(json, || {
                quick::soak(&args, &|evidence| {
                    let failures: usize = evidence.layers.iter().map(|layer| layer.failures.len()).sum();
                    tell(&format!("{:.0} s, {failures} failures", evidence.seconds));
                    keep(evidence, json)
                })
            })
        }
        Command::Mutants(args) => shown(args.json.as_deref(), || {
            mutants::run(&args, &|result| {
                let by = result.layer.as_deref().unwrap_or("NOBODY");
                tell(&format!("{}: found by {by} after {:.1} s", result.mutant, result.seconds));
            })
        }),
        Command::Replay(args) => replay(&args),
        Command::Sim(args) => one_layer("sim", args.order.json.as_deref(), || campaign::run_with(&args)),
        #[cfg(feature = "rocks")]
        Command::Kill(order) => ordered(Layer::Kill, &order),
        #[cfg(feature = "rocks")]
        Command::Walsweep(order) => ordered(Layer::Walsweep, &order),
        #[cfg(feature = "rocks")]
        Command::Ioerr(order) => ordered(Layer::Ioerr, &order),
        #[cfg(feature = "rocks")]
        Command::Powercut(order) => ordered(Layer::Powercut, &order),
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
    let case = &args.case;
    let layer = Layer::of_case(case).with_context(|| {
        let forms: Vec<&str> = Layer::ALL.iter().map(|layer| layer.example()).collect();
        format!("no layer has a case {case:?}; cases look like {}", forms.join(" or "))
    })?;
    let order = Order { case: Some(case.clone()), mutant: args.mutant, ..Order::default() };
    let command = format!("replay {case}");
    if layer != Layer::Sim {
        anyhow::ensure!(!args.trace, "only a case of sim has a trace");
        anyhow::ensure!(args.history.is_none(), "only a case of sim has a history; others keep theirs with a failure");
        return one_layer(&command, None, || tried(layer, &order));
    }
    one_layer(&command, None, || {
        let again = campaign::replay(&order)?;
        if args.trace {
            let mut out = BufWriter::new(io::stdout().lock());
            let told = again.trace.iter().try_for_each(|step| writeln!(out, "{step}")).and_then(|()| out.flush());
            unless_closed(told)?;
        }
        if let Some(path) = &args.history {
            let mut file = BufWriter::new(File::create(path).with_context(|| path.display().to_string())?);
            again.lines.iter().try_for_each(|line| line.write(&mut file))?;
            file.flush()?;
        }
        Ok(again.outcome)
    })
}

/// A case as often as it takes.
fn tried(layer: Layer, order: &Order) -> anyhow::Result<Outcome> {
    let mut outcome = layer.run(order)?;
    for _ in 1..layer.tries_of_a_replay() {
        if interrupt::came() || outcome.skipped.is_some() || !outcome.failures.is_empty() {
            break;
        }
        outcome.add(layer.run(order)?);
    }
    if let (0, Some(why)) = (outcome.cases, &outcome.skipped) {
        anyhow::bail!("this machine cannot run it: {why}");
    }
    Ok(outcome)
}

#[cfg(feature = "rocks")]
fn ordered(layer: Layer, order: &Order) -> anyhow::Result<ExitCode> {
    one_layer(layer.name(), order.json.as_deref(), || layer.run(order))
}

fn one_layer(
    command: &str,
    json: Option<&Path>,
    run: impl FnOnce() -> anyhow::Result<Outcome>,
) -> anyhow::Result<ExitCode> {
    shown(json, || {
        let mut evidence = Evidence::begin(command);
        let outcome = run()?;
        if !interrupt::came() {
            evidence.gaps = percolite_crashtest::points::gaps_in(&outcome)?;
        }
        evidence.add(outcome);
        Ok(evidence)
    })
}

/// Runs what ends with evidence, keeps that and shows it.
fn shown(json: Option<&Path>, run: impl FnOnce() -> anyhow::Result<Evidence>) -> anyhow::Result<ExitCode> {
    // Not after hours.
    if let Some(path) = json {
        File::options().create(true).append(true).open(path).with_context(|| path.display().to_string())?;
    }
    interrupt::watch().context("signals")?;
    let began = Instant::now();
    let mut evidence = run()?;
    evidence.seconds = began.elapsed().as_secs_f64();
    let interrupted = interrupt::exit_code();
    if interrupted.is_some() {
        evidence.cut_short();
    }
    keep(&evidence, json)?;
    report::print(&evidence);
    Ok(match interrupted {
        Some(code) => ExitCode::from(code),
        None if evidence.is_good() => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
    })
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
    unless_closed(told)?;
    Ok(if report.verdict == Verdict::Consistent { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A reader that has seen enough, as `head` does, still wants the exit code.
fn unless_closed(told: io::Result<()>) -> io::Result<()> {
    told.or_else(|why| if why.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(why) })
}
