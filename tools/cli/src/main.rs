//! `percolite`, the command line tool.
//!
//! This file knows the commands and how errors are told, and nothing else: each command is a module with its `Args` and a
//! `run`. An error is one line on standard error, its causes after it; its exit code says what sort it is ([`exit`]). A reader that
//! stops reading, as `head` does, ends the program quietly.
//!
//! [`usage`] reads the command line, [`open`] opens stores, [`bytes`] reads and shows keys and values, [`output`], [`table`] and [`progress`] talk to people.

mod accept_loss;
mod backup;
mod bytes;
mod delete;
mod demo;
mod destination;
mod docs;
mod exit;
mod get;
mod history;
mod interrupt;
mod keyspaces;
mod load;
mod lock;
mod locks;
mod made;
mod moment;
mod open;
mod output;
mod progress;
mod put;
mod range;
mod repair;
mod scan;
mod shell;
mod stats;
mod table;
mod told;
mod top;
mod tuning;
mod txn;
mod usage;
mod verify;
mod versions;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use self::exit::Code;

const EXAMPLES: &str = "\
Examples:
  percolite put --create shop fruit apple red    a store `shop`, a keyspace `fruit`, a row
  percolite get shop fruit apple
  percolite load shop fruit fruit.jsonl          many rows
  percolite scan shop fruit --prefix a --json
  percolite shell shop                           transactions by hand
  percolite dump shop shop.dump && percolite restore copy shop.dump
  percolite verify copy

Commands that only look change nothing in the folder, and one process at a time may have a store open for writing. \
Keys and values are text unless --keys and --values say hex or base64, and values are JSON where --values json says so. \
A terminal gets tables, a pipe or a file plain lines with a tab between columns, and --json is for programs. \
Colours appear on a terminal, unless NO_COLOR is set.";

/// An embedded, crash-safe, transactional key-value store.
#[derive(Parser)]
#[command(name = "percolite", version, after_help = format!("{EXAMPLES}\n\n{}", exit::TABLE))]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show values
    Get(get::Args),
    /// Set values, in one transaction
    Put(put::Args),
    /// Remove rows, in one transaction
    Delete(delete::Args),
    /// Show rows in order
    Scan(scan::Args),
    /// Show what commits have made of a row
    Versions(versions::Args),
    /// Say how long the past is kept, and tell it
    History(history::Args),
    /// Put many rows from a file, in bounded transactions
    Load(load::Args),
    /// List, make, rename, empty and drop keyspaces
    Keyspaces(keyspaces::Args),
    /// Statements one by one, and transactions of several
    Shell(shell::Args),
    /// Write everything to a file, as of one moment
    Dump(backup::DumpArgs),
    /// Make a store of a dump
    Restore(backup::RestoreArgs),
    /// Copy a store into a new folder, mostly by links
    Checkpoint(backup::CheckpointArgs),
    /// Read everything and tell what is damaged
    Verify(verify::Args),
    /// Bring what can be read of a damaged store into a new one
    Repair(repair::Args),
    /// Open a store in spite of commits that its log has lost
    AcceptLoss(accept_loss::Args),
    /// Show how a store stands
    Stats(stats::Args),
    /// Take locks by name, release them, run commands under them
    Lock(lock::Args),
    /// Show row locks and locks by name, with their holders
    Locks(locks::Args),
    /// Show what became of a transaction
    Txn(txn::Args),
    /// Watch transactions, conflicts and row locks
    Top(top::Args),
    /// Show the store at work: real data, contended transfers, a writer killed in mid-commit, and its recovery
    Demo(demo::Args),
    /// The writer that the demo kills.
    #[command(hide = true)]
    DemoChild(demo::crash::ChildArgs),
    /// Print a shell's completions
    Completions(docs::CompletionsArgs),
    /// Write the manual pages
    Man(docs::ManArgs),
}

impl Command {
    /// The store of those that work in one.
    fn store(&self) -> Option<&open::Folder> {
        Some(match self {
            Self::Get(args) => &args.store,
            Self::Put(args) => &args.store,
            Self::Delete(args) => &args.store,
            Self::Scan(args) => &args.store,
            Self::Versions(args) => &args.store,
            Self::History(args) => &args.store,
            Self::Load(args) => &args.store,
            Self::Keyspaces(args) => &args.store,
            Self::Shell(args) => &args.store,
            Self::Dump(args) => &args.store,
            Self::Checkpoint(args) => &args.store,
            Self::Stats(args) => &args.store,
            Self::Lock(args) => args.store(),
            Self::Locks(args) => &args.store,
            Self::Txn(args) => &args.store,
            _ => return None,
        })
    }

    /// What is said after an error that comes of damage in a store that has opened. Some commands say themselves what to do.
    fn about_damage(&self) -> String {
        let Some(store) = self.store() else { return String::new() };
        let (folder, remedy) = (open::quoted(&store.folder), open::backup_or_repair(&store.folder));
        format!("; percolite verify {folder} says what is damaged; {remedy}")
    }

    /// What is said after an error that comes of a lock held elsewhere.
    fn about_locks(&self) -> String {
        let Some(store) = self.store() else { return String::new() };
        format!("; percolite locks {} shows who holds what", open::quoted(&store.folder))
    }

    /// Whether it changes the store, and says at its end that it has.
    fn changes(&self) -> bool {
        match self {
            Self::Put(_) | Self::Delete(_) | Self::Load(_) | Self::Restore(_) => true,
            Self::Keyspaces(args) => args.changes(),
            _ => false,
        }
    }
}

/// Of a command whose report cannot be written.
const IS_DONE: &str = "; the store was changed as asked";

/// In errors that say what to do about damage.
const REPAIR: &str = "percolite repair ";

/// In whatever words RocksDB and the library put it, those of the system are among them.
const NO_ROOM: &str = "No space left on device";
const MAKE_ROOM: &str = "; the disk is full: make room first";

fn main() -> ExitCode {
    let command = match usage::parse::<Cli>() {
        Ok(cli) => cli.command,
        Err(why) => {
            eprintln!("error: {why}");
            return ExitCode::from(Code::Usage as u8);
        }
    };
    let (damaged, locked, changes) = (command.about_damage(), command.about_locks(), command.changes());
    let mut ended = 0;
    let done = match command {
        Command::Get(args) => get::run(&args),
        Command::Put(args) => put::run(&args),
        Command::Delete(args) => delete::run(&args),
        Command::Scan(args) => scan::run(&args),
        Command::Versions(args) => versions::run(&args),
        Command::History(args) => history::run(&args),
        Command::Load(args) => load::run(&args),
        Command::Keyspaces(args) => keyspaces::run(&args),
        Command::Shell(args) => shell::run(&args),
        Command::Dump(args) => backup::dump(&args),
        Command::Restore(args) => backup::restore(&args),
        Command::Checkpoint(args) => backup::checkpoint(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Repair(args) => repair::run(&args),
        Command::AcceptLoss(args) => accept_loss::run(&args),
        Command::Stats(args) => stats::run(&args),
        Command::Lock(args) => lock::run(&args).map(|code| ended = code),
        Command::Locks(args) => locks::run(&args),
        Command::Txn(args) => txn::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::DemoChild(args) => demo::crash::run_child(&args),
        Command::Completions(args) => docs::completions(&args),
        Command::Man(args) => docs::man(&args),
    };
    match done {
        Ok(()) => ExitCode::from(ended),
        Err(why) if is_broken_pipe(&why) => ExitCode::from(Code::Failed as u8),
        Err(why) => {
            let code = Code::of(&why);
            let told = one_line(&why);
            let advice = match code {
                // What does not open says so itself.
                Code::Damaged if !told.contains(REPAIR) && !told.contains(backup::ANOTHER_BASE) => damaged,
                Code::LockHeld => locked,
                // It comes last.
                Code::Failed if why.is::<output::Unsaid>() && changes => IS_DONE.into(),
                Code::Failed if why.is::<output::Unsaid>() => String::new(),
                Code::Failed if told.contains(NO_ROOM) => MAKE_ROOM.into(),
                _ => String::new(),
            };
            eprintln!("error: {told}{advice}");
            ExitCode::from(code as u8)
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
