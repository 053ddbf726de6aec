//! `percolite-crashtest`: judges what a store did to its clients.
//!
//! Exit code 0: checked and found consistent. 1: a violation, or nothing was checked. 2: the command line or the input makes
//! no sense; one line on standard error says why.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use percolite_crashtest::checker::{Verdict, check};
use percolite_crashtest::history::History;
use percolite_crashtest::report::{self, ReportArgs};

/// Crash tests for percolite, and the checker that judges them.
#[derive(Parser)]
#[command(name = "percolite-crashtest", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check a history for snapshot isolation.
    ///
    /// Exit code 0: it is consistent. 1: it is not, or no transaction in it was committed. 2: it is not a history.
    Check(CheckArgs),
    /// Simulate histories.
    Sim(SimArgs),
    Report(ReportArgs),
}

#[derive(clap::Args)]
struct SimArgs {
    #[arg(long)]
    mode: Option<percolite_crashtest::sim::Mode>,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, default_value_t = 1)]
    count: u64,
    #[arg(long)]
    trace: bool,
    #[arg(long)]
    twice: bool,
    #[arg(long)]
    mutant: Option<String>,
    #[arg(long)]
    stop: bool,
}

fn run_sim(args: &SimArgs) -> ExitCode {
    use percolite_crashtest::sim::{Mode, Scheduler, run};
    Scheduler::listen();
    if let Some(name) = &args.mutant {
        percolite::crashtest::mutate(percolite::crashtest::Mutant::named(name));
    }
    let (mut bad, mut txns, mut committed, mut lost, mut skewed, mut settled, mut steps) = (0, 0, 0, 0, 0, 0, 0);
    let mut hits = std::collections::BTreeMap::new();
    let began = std::time::Instant::now();
    for seed in args.seed..args.seed + args.count {
        let mode = args.mode.unwrap_or(if seed % 2 == 0 { Mode::Embedded } else { Mode::Shared });
        let run1 = run(mode, seed, args.trace);
        if args.twice {
            let again = run(mode, seed, false);
            if again.digest != run1.digest {
                println!("seed {seed}: digest differs");
            }
        }
        for line in &run1.trace {
            println!("{line}");
        }
        txns += run1.transactions;
        committed += run1.committed;
        lost += run1.lost;
        skewed += run1.skewed;
        settled += run1.settled;
        steps += run1.steps;
        for (point, count) in &run1.hits {
            *hits.entry(*point).or_insert(0) += count;
        }
        if !run1.broken.is_empty() {
            bad += 1;
            println!("seed {seed} {mode:?}:");
            for broken in run1.broken.iter().take(3) {
                println!("   {broken}");
            }
            if args.stop {
                break;
            }
        }
    }
    println!(
        "{bad} bad of {}; {txns} txns {committed} committed {lost} lost {skewed} skewed {settled} settled {steps} steps in {:?}",
        args.count,
        began.elapsed()
    );
    for point in percolite::crashtest::Point::ALL {
        println!("{:>8} {}", hits.get(point).unwrap_or(&0), point.name());
    }
    ExitCode::SUCCESS
}

#[derive(clap::Args)]
struct CheckArgs {
    /// The history, one JSON object a line as HISTORY.md describes it; `-` is standard input.
    history: PathBuf,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Check(args) => run_check(&args),
        Command::Sim(args) => return run_sim(&args),
        Command::Report(args) => report::run(&args),
    };
    ended.unwrap_or_else(|why| {
        eprintln!("error: {}", format!("{why:#}").replace('\n', " "));
        ExitCode::from(2)
    })
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
