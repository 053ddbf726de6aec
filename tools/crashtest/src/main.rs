//! `percolite-crashtest`: crashes a store in many ways and verifies what is left.
//!
//! [`EXIT_CODES`] lists the exit codes.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, IsTerminal as _, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use percolite_crashtest::checker::{CheckResult, check};
#[cfg(feature = "rocks")]
use percolite_crashtest::child;
use percolite_crashtest::history::History;
use percolite_crashtest::interrupt;
use percolite_crashtest::layer_args::{LayerArgs, mutant};
use percolite_crashtest::layer_result::LayerResult;
use percolite_crashtest::layers::Layer;
use percolite_crashtest::mutants::{self, MutantsArgs};
use percolite_crashtest::points::PointsArgs;
use percolite_crashtest::report::{self, ReportArgs};
use percolite_crashtest::run_report::RunReport;
use percolite_crashtest::runs::{self, QuickArgs, SoakArgs};
use percolite_crashtest::sim::runner::{self, SimArgs};
use percolite_crashtest::untimed;

/// Printed after the help text.
const EXIT_CODES: &str = "\
Exit codes:
  0         No invariant was violated, and at least one commit was checked.
  1         An invariant was violated, or nothing was checked.
  2         Invalid arguments or input, or the machine cannot run the test; one line on standard error \
gives the reason.
  130, 143  Interrupted by Ctrl-C or SIGTERM: the report covers what was run until then and says so. A second signal \
ends the program immediately, without a report, and leaves temporary files.";

/// Crash tests for percolite, and a checker of snapshot isolation.
#[derive(Parser)]
#[command(name = "percolite-crashtest", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run what CI runs: every layer, every expected crash point, five mutants.
    Quick(QuickArgs),
    /// Run all layers in turn with fresh seeds and varying CPU load, for a given time.
    Soak(SoakArgs),
    /// Run mutation tests: enable known mistakes one at a time and check that `quick` finds each.
    Mutants(MutantsArgs),
    /// Repeat one case, as printed with a failure.
    Replay(ReplayArgs),
    /// Simulate seeded histories with crashes, in memory.
    Sim(SimArgs),
    /// Run every interleaving of two threads, with a few switches, in a few situations.
    Interleavings(LayerArgs),
    /// Run every sequence of at most three operations, with every loss, on the simulated machine.
    Sequences(LayerArgs),
    /// Kill a process at every crash point and verify the store that it leaves.
    #[cfg(feature = "rocks")]
    Kill(LayerArgs),
    /// Truncate the log of a store at every byte, and flip bits of it.
    #[cfg(feature = "rocks")]
    LogDamage(LayerArgs),
    /// Inject I/O errors below a store, and fill its disk.
    #[cfg(feature = "rocks")]
    IoErrors(LayerArgs),
    /// Cut the power of a file system on a loop device.
    #[cfg(feature = "rocks")]
    Powercut(LayerArgs),
    /// Check a history for snapshot isolation.
    ///
    /// It has timestamps (`HISTORY_FORMAT.md`), or none: list-append or registers, as Jepsen and
    /// Elle record them, in JSON or EDN.
    ///
    /// Exit code 0: consistent. 1: inconsistent, or no committed transaction to check. 2: not a
    /// history.
    Check(CheckArgs),
    /// List all crash points with the invariant of each.
    Points(PointsArgs),
    Report(ReportArgs),
    #[cfg(feature = "rocks")]
    #[command(hide = true)]
    Child {
        config: String,
    },
}

#[derive(clap::Args)]
struct CheckArgs {
    /// The history; `-` reads standard input.
    history: PathBuf,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct ReplayArgs {
    /// The case, as in `sim:embedded/17`.
    case: String,
    /// Print every step (simulation cases only).
    #[arg(long)]
    trace: bool,
    /// Write the history to this file (simulation cases only).
    #[arg(long)]
    history: Option<PathBuf>,
    #[arg(long, hide = true, value_parser = mutant)]
    mutant: Option<percolite::mutants::Mutant>,
}

fn main() -> ExitCode {
    run(Cli::parse().command).unwrap_or_else(|error| {
        eprintln!("error: {}", format!("{error:#}").replace('\n', " "));
        ExitCode::from(2)
    })
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Quick(args) => run_and_report(args.json.as_deref(), || runs::quick(&progress)),
        Command::Soak(args) => {
            let json = args.json.as_deref();
            run_and_report(json, || {
                runs::soak(&args, &|report| {
                    let failures: usize = report.layers.iter().map(|layer| layer.failures.len()).sum();
                    progress(&format!("{:.0} s, {failures} failures", report.seconds));
                    save(report, json)
                })
            })
        }
        Command::Mutants(args) => run_and_report(args.json.as_deref(), || {
            mutants::run(&args, &|result| {
                let by = result.found_by.as_deref().unwrap_or("no layer");
                progress(&format!("{}: found by {by} after {:.1} s", result.mutant, result.seconds));
            })
        }),
        Command::Replay(args) => replay(&args),
        Command::Sim(args) => one_layer("sim", args.common.json.as_deref(), || runner::run_with(&args)),
        Command::Interleavings(args) => run_layer(Layer::Interleavings, &args),
        Command::Sequences(args) => run_layer(Layer::Sequences, &args),
        #[cfg(feature = "rocks")]
        Command::Kill(args) => run_layer(Layer::Kill, &args),
        #[cfg(feature = "rocks")]
        Command::LogDamage(args) => run_layer(Layer::LogDamage, &args),
        #[cfg(feature = "rocks")]
        Command::IoErrors(args) => run_layer(Layer::IoErrors, &args),
        #[cfg(feature = "rocks")]
        Command::Powercut(args) => run_layer(Layer::Powercut, &args),
        Command::Check(args) => run_check(&args),
        Command::Points(args) => args.run().map(|()| ExitCode::SUCCESS),
        Command::Report(args) => report::run(&args),
        #[cfg(feature = "rocks")]
        Command::Child { config } => child::run(&config).map(|()| ExitCode::SUCCESS),
    }
}

/// Prints the progress of a long run to a terminal.
fn progress(what: &str) {
    if io::stderr().is_terminal() {
        eprintln!("… {what}");
    }
}

fn replay(args: &ReplayArgs) -> anyhow::Result<ExitCode> {
    let case = &args.case;
    let layer = Layer::of_case(case).with_context(|| {
        let forms: Vec<&str> = Layer::ALL.iter().map(|layer| layer.example()).collect();
        format!("invalid case {case:?}; expected a case like {}", forms.join(" or "))
    })?;
    let layer_args = LayerArgs { case: Some(case.clone()), mutant: args.mutant, ..LayerArgs::default() };
    let command = format!("replay {case}");
    if layer != Layer::Sim {
        anyhow::ensure!(!args.trace, "--trace needs a case of sim");
        anyhow::ensure!(
            args.history.is_none(),
            "--history needs a case of sim; other layers save the history of a failure"
        );
        return one_layer(&command, None, || run_repeatedly(layer, &layer_args));
    }
    one_layer(&command, None, || {
        let replay = runner::replay(&layer_args)?;
        if args.trace {
            let mut out = BufWriter::new(io::stdout().lock());
            let written = replay.trace.iter().try_for_each(|step| writeln!(out, "{step}")).and_then(|()| out.flush());
            ignore_broken_pipe(written)?;
        }
        if let Some(path) = &args.history {
            let mut file = BufWriter::new(File::create(path).with_context(|| path.display().to_string())?);
            replay.lines.iter().try_for_each(|line| line.write(&mut file))?;
            file.flush()?;
        }
        Ok(replay.outcome)
    })
}

/// Runs a case until it fails, up to the layer's number of tries.
fn run_repeatedly(layer: Layer, args: &LayerArgs) -> anyhow::Result<LayerResult> {
    let mut outcome = layer.run(args)?;
    for _ in 1..layer.tries_of_a_replay() {
        if interrupt::is_requested() || outcome.skipped.is_some() || !outcome.failures.is_empty() {
            break;
        }
        outcome.add(layer.run(args)?);
    }
    if let (0, Some(error)) = (outcome.cases, &outcome.skipped) {
        anyhow::bail!("this machine cannot run the case: {error}");
    }
    Ok(outcome)
}

fn run_layer(layer: Layer, args: &LayerArgs) -> anyhow::Result<ExitCode> {
    one_layer(layer.name(), args.json.as_deref(), || layer.run(args))
}

fn one_layer(
    command: &str,
    json: Option<&Path>,
    run: impl FnOnce() -> anyhow::Result<LayerResult>,
) -> anyhow::Result<ExitCode> {
    run_and_report(json, || {
        let mut report = RunReport::start(command);
        let outcome = run()?;
        if !interrupt::is_requested() {
            report.coverage_gaps = percolite_crashtest::points::layer_gaps(&outcome)?;
        }
        report.add(outcome);
        Ok(report)
    })
}

/// Runs something that ends with a run report, saves the report and prints it.
fn run_and_report(json: Option<&Path>, run: impl FnOnce() -> anyhow::Result<RunReport>) -> anyhow::Result<ExitCode> {
    // A file that cannot be written must be an error before the run, not after hours.
    if let Some(path) = json {
        File::options().create(true).append(true).open(path).with_context(|| path.display().to_string())?;
    }
    interrupt::watch().context("signals")?;
    let started = Instant::now();
    let mut report = run()?;
    report.seconds = started.elapsed().as_secs_f64();
    let interrupted = interrupt::exit_code();
    if interrupted.is_some() {
        report.mark_interrupted();
    }
    save(&report, json)?;
    report::print(&report);
    Ok(match interrupted {
        Some(code) => ExitCode::from(code),
        None if report.passed() => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
    })
}

fn save(report: &RunReport, json: Option<&Path>) -> anyhow::Result<()> {
    if let Some(path) = json {
        std::fs::write(path, serde_json::to_vec_pretty(report)?).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Reads a history with timestamps, or one without, as its first line shows.
fn read_history(mut input: impl BufRead) -> anyhow::Result<History> {
    let mut start = Vec::new();
    while start.iter().all(u8::is_ascii_whitespace) && input.read_until(b'\n', &mut start)? > 0 {}
    let is_untimed = untimed::is_elle(&String::from_utf8_lossy(&start));
    let input = io::Cursor::new(start).chain(input);
    if is_untimed { Ok(untimed::read(input)?) } else { Ok(History::read(input)?) }
}

fn run_check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let name = args.history.display();
    let input: Box<dyn BufRead> = if args.history.as_os_str() == "-" {
        Box::new(io::stdin().lock())
    } else {
        let file = File::open(&args.history).with_context(|| name.to_string())?;
        Box::new(BufReader::with_capacity(1 << 16, file))
    };
    let history = read_history(input).with_context(|| name.to_string())?;
    let report = check(&history);

    let mut output = io::stdout().lock();
    let written = if args.json {
        serde_json::to_writer_pretty(&mut output, &report).map_err(io::Error::from).and_then(|()| writeln!(output))
    } else {
        writeln!(output, "{report}")
    };
    ignore_broken_pipe(written)?;
    Ok(if report.result == CheckResult::Consistent { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A closed pipe is no error: a reader such as `head` may end early, and the exit code is still
/// set.
fn ignore_broken_pipe(written: io::Result<()>) -> io::Result<()> {
    written.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
}
