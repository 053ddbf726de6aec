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
    let Command::Check(args) = Cli::parse().command;
    run_check(&args).unwrap_or_else(|why| {
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
