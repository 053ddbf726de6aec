//! `percolite`, the command line tool.
//!
//! This file knows the commands and how errors are told, and nothing else: each command is a module with its `Args` and a
//! `run`. An error is one line on standard error, its causes after it; exit code 1 for what failed, 2 (by clap) for a command
//! line that makes no sense. A reader that stops reading, as `head` does, ends the program quietly.

mod demo;
mod output;
mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// An embedded, crash-safe, transactional key-value store.
#[derive(Parser)]
#[command(name = "percolite", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the store at work: real data, contended transfers, a writer killed in mid-commit, and its recovery.
    Demo(demo::Args),
    /// The writer that the demo kills.
    #[command(hide = true)]
    DemoChild(demo::crash::ChildArgs),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Demo(args) => demo::run(&args),
        Command::DemoChild(args) => demo::crash::run_child(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            if !is_broken_pipe(&why) {
                eprintln!("error: {}", one_line(&why));
            }
            ExitCode::FAILURE
        }
    }
}

/// The error and its causes, without those that only repeat what was said.
fn one_line(why: &anyhow::Error) -> String {
    let mut told = String::new();
    for cause in why.chain() {
        let text = cause.to_string().replace('\n', " ");
        if told.is_empty() {
            told = text;
        } else if !told.contains(&text) {
            told = format!("{told}: {text}");
        }
    }
    told
}

fn is_broken_pipe(why: &anyhow::Error) -> bool {
    why.chain().any(<dyn std::error::Error>::is::<output::Unread>)
}
