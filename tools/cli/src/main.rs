//! `percolite`, the command line tool.
//!
//! This file lists the commands and prints errors; each command is a module with its `Args` and a
//! `run`. An error is one line on standard error: the message, then its causes. The exit code
//! depends on the kind of the error ([`exit`]), and the [`advice`] is that of the command line.
//! When the reader of the output stops reading, as `head` does, the program ends without a message.
//!
//! [`usage_error`] parses the command line, [`open`] opens stores, [`text_input`] reads text,
//! [`encoding`] reads and writes keys and values, [`output`], [`table`] and [`progress`] print.

mod accept_data_loss;
mod advice;
mod at;
mod backup;
mod delete;
mod demo;
mod docs;
mod dump_file;
mod duration;
mod encoding;
mod exit;
mod file_kind;
mod get;
mod interrupt;
mod json_text;
mod keyspaces;
mod load;
mod lock;
mod locks;
mod new_dir;
mod open;
mod output;
mod process;
mod progress;
mod put;
mod quoting;
mod range;
mod repair;
mod retention;
mod scan;
mod shell;
mod stats;
mod status_report;
mod table;
mod text_input;
mod top;
mod tuning;
mod txn;
mod usage_error;
mod verify;
mod versions;
mod words;

use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use self::exit::Code;

const EXAMPLES: &str = "\
Examples:
  percolite put --create shop fruit apple red    creates a store `shop`, a keyspace `fruit`, a row
  percolite get shop fruit apple
  percolite load shop fruit fruit.jsonl          loads many rows
  percolite scan shop fruit --prefix a --json
  percolite shell shop                           interactive transactions
  percolite dump shop shop.dump && percolite restore copy shop.dump
  percolite verify copy

STORE is the directory of a store. Read-only commands change nothing in it. One process at a time may have a store \
open for writing. \
Keys and values are text unless --key-encoding or --value-encoding says otherwise. \
On a terminal the output is in columns, elsewhere plain lines with a tab between these; --json prints JSON. \
Colours appear on a terminal only, unless NO_COLOR is set.";

/// An embedded, crash-safe, transactional key-value store.
#[derive(Parser)]
#[command(name = "percolite", version, after_help = format!("{EXAMPLES}\n\n{}", exit::TABLE))]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print the values of keys
    Get(get::Args),
    /// Set values, in one transaction
    Put(put::Args),
    /// Delete rows, in one transaction
    Delete(delete::Args),
    /// Print rows in key order
    Scan(scan::Args),
    /// List the versions of a row
    Versions(versions::Args),
    /// Show or set how long replaced versions are kept
    Retention(retention::Args),
    /// Load rows from a file, in bounded transactions
    Load(load::Args),
    /// List, create, rename, truncate and drop keyspaces
    Keyspaces(keyspaces::Args),
    /// Interactive shell with transactions
    Shell(shell::Args),
    /// Dump a consistent snapshot to a file
    Dump(backup::DumpArgs),
    /// Restore a dump into a store
    Restore(backup::RestoreArgs),
    /// Copy a store into a new directory, mostly by hard links
    Checkpoint(backup::CheckpointArgs),
    /// Check all data for corruption
    Verify(verify::Args),
    /// Copy the readable data of a damaged store into a new store
    Repair(repair::Args),
    /// Open a store whose WAL has lost commits, without these commits
    AcceptDataLoss(accept_data_loss::Args),
    /// Show store statistics
    Stats(stats::Args),
    /// Acquire and release named locks, and run commands under them
    Lock(lock::Args),
    /// Show row locks and named locks, with their holders
    Locks(locks::Args),
    /// Show the status of a transaction
    Txn(txn::Args),
    /// Watch commits, conflicts and locks of an open store
    Top(top::Args),
    /// Show the store at work: real data, contended transfers, writers killed in mid-commit,
    /// recovery
    Demo(demo::Args),
    /// The writer that the demo kills.
    #[command(hide = true)]
    DemoChild(demo::killed_writer::ChildArgs),
    /// Print shell completions
    Completions(docs::CompletionsArgs),
    /// Write the manual pages
    Man(docs::ManArgs),
}

impl Command {
    /// The store of a command that opens an existing one.
    fn store(&self) -> Option<&open::StoreDir> {
        Some(match self {
            Self::Get(args) => &args.store,
            Self::Put(args) => &args.store,
            Self::Delete(args) => &args.store,
            Self::Scan(args) => &args.store,
            Self::Versions(args) => &args.store,
            Self::Retention(args) => &args.store,
            Self::Load(args) => &args.store,
            Self::Keyspaces(args) => &args.store,
            Self::Shell(args) => &args.store,
            Self::Dump(args) => &args.store,
            Self::Checkpoint(args) => &args.store,
            Self::Stats(args) => &args.store,
            Self::Lock(args) => args.store(),
            Self::Locks(args) => &args.store,
            Self::Txn(args) => &args.store,
            Self::Restore(_)
            | Self::Verify(_)
            | Self::Repair(_)
            | Self::AcceptDataLoss(_)
            | Self::Top(_)
            | Self::Demo(_)
            | Self::DemoChild(_)
            | Self::Completions(_)
            | Self::Man(_) => return None,
        })
    }

    /// The advice after a corruption error of a store that was opened successfully. Empty for
    /// commands that open no existing store, or whose own errors contain advice.
    fn damage_advice(&self) -> String {
        let Some(store) = self.store() else { return String::new() };
        let (dir, remedy) = (open::shell_quoted(&store.path), open::recovery_advice(&store.path));
        format!("; percolite verify {dir} shows what is damaged; {remedy}")
    }

    /// The advice after an error about a named lock that is held elsewhere or lost.
    fn lock_advice(&self) -> String {
        let Some(store) = self.store() else { return String::new() };
        format!("; percolite locks {} shows the holders", open::shell_quoted(&store.path))
    }

    /// The directory of the command's store, for the error that another process has it open.
    fn dir(&self) -> Option<&Path> {
        match self {
            Self::Restore(args) => Some(&args.store.path),
            Self::Verify(args) => Some(&args.store.path),
            Self::Repair(args) => Some(&args.from),
            Self::AcceptDataLoss(args) => Some(&args.store.path),
            Self::Top(args) => args.store.as_deref(),
            Self::Demo(args) => args.dir.as_deref(),
            _ => self.store().map(|store| store.path.as_path()),
        }
    }

    /// Whether the command changes the store and then prints a report of the change.
    fn changes(&self) -> bool {
        match self {
            Self::Put(_) | Self::Delete(_) | Self::Load(_) | Self::Restore(_) => true,
            Self::Keyspaces(args) => args.changes(),
            Self::Retention(args) => args.changes(),
            Self::Get(_)
            | Self::Scan(_)
            | Self::Versions(_)
            | Self::Shell(_)
            | Self::Dump(_)
            | Self::Checkpoint(_)
            | Self::Verify(_)
            | Self::Repair(_)
            | Self::AcceptDataLoss(_)
            | Self::Stats(_)
            | Self::Lock(_)
            | Self::Locks(_)
            | Self::Txn(_)
            | Self::Top(_)
            | Self::Demo(_)
            | Self::DemoChild(_)
            | Self::Completions(_)
            | Self::Man(_) => false,
        }
    }
}

/// Added to the error when the store was changed, but the report of the change cannot be printed.
const CHANGED_NOTE: &str = "; the store was changed";

/// Contained in every error text that already has advice about a damaged store.
const REPAIR_COMMAND: &str = "percolite repair ";

fn main() -> ExitCode {
    // Without the handler a write beyond the limit ends the program.
    let _ = interrupt::survive_file_size_limit();
    let command = match usage_error::parse::<Cli>() {
        Ok(cli) => cli.command,
        Err(err) => {
            eprintln!("error: {err}");
            return ExitCode::from(Code::Usage as u8);
        }
    };
    let (damage_advice, lock_advice) = (command.damage_advice(), command.lock_advice());
    let (changes, dir) = (command.changes(), command.dir().map(Path::to_owned));
    dir.as_deref().into_iter().for_each(advice::set_store_dir);
    let mut exit_code = 0;
    let done = match command {
        Command::Get(args) => get::run(&args),
        Command::Put(args) => put::run(&args),
        Command::Delete(args) => delete::run(&args),
        Command::Scan(args) => scan::run(&args),
        Command::Versions(args) => versions::run(&args),
        Command::Retention(args) => retention::run(&args),
        Command::Load(args) => load::run(&args),
        Command::Keyspaces(args) => keyspaces::run(&args),
        Command::Shell(args) => shell::run(&args),
        Command::Dump(args) => backup::dump(&args),
        Command::Restore(args) => backup::restore(&args),
        Command::Checkpoint(args) => backup::checkpoint(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Repair(args) => repair::run(&args),
        Command::AcceptDataLoss(args) => accept_data_loss::run(&args),
        Command::Stats(args) => stats::run(&args),
        Command::Lock(args) => lock::run(&args).map(|code| exit_code = code),
        Command::Locks(args) => locks::run(&args),
        Command::Txn(args) => txn::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::DemoChild(args) => demo::killed_writer::run_child(&args),
        Command::Completions(args) => docs::completions(&args),
        Command::Man(args) => docs::man(&args),
    };
    match done {
        Ok(()) => ExitCode::from(exit_code),
        Err(err) if is_broken_pipe(&err) => ExitCode::from(Code::Failed as u8),
        Err(err) => {
            let code = Code::of(&err);
            let mut message = format_chain(&err);
            let advice = match code {
                // The error of a failed opening, or of a damaged base dump, contains its own
                // advice.
                Code::Corrupt if !message.contains(REPAIR_COMMAND) && !message.contains(backup::BASE_HINT) => {
                    damage_advice
                }
                // The lock is free.
                Code::LockHeld if message.contains(lock::STILL_RUNS) => String::new(),
                Code::LockHeld => lock_advice,
                Code::Busy => dir.as_deref().map(process::busy_note).unwrap_or_default(),
                // The report is printed after the change is committed.
                Code::Failed if err.is::<output::StdoutError>() && changes => CHANGED_NOTE.into(),
                Code::Failed if err.is::<output::StdoutError>() => String::new(),
                Code::Failed => {
                    message = advice::with_remedy(&message);
                    String::new()
                }
                _ => String::new(),
            };
            eprintln!("error: {message}{advice}");
            ExitCode::from(code as u8)
        }
    }
}

/// The error and its causes in one line. A cause is left out if the line already contains its text.
fn format_chain(err: &anyhow::Error) -> String {
    let mut message = String::new();
    for cause in err.chain() {
        let library_text = cause.downcast_ref().map(|err: &percolite::Error| advice::of_library(&err.to_string()));
        let text = library_text.unwrap_or_else(|| cause.to_string()).replace('\n', " ");
        if message.is_empty() {
            message = text;
        } else if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
    }
    message
}

fn is_broken_pipe(err: &anyhow::Error) -> bool {
    err.chain().any(<dyn std::error::Error>::is::<output::BrokenPipe>)
}
