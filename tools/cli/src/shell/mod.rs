//! `percolite shell`: runs statements, alone or in transactions.
//!
//! [`statement`] parses a statement, [`complete`] completes it with Tab, and [`session`] executes
//! it. This file reads the lines, from a terminal or a pipe.

mod complete;
mod session;
mod statement;

use std::io::{BufReader, IsTerminal as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context as _, Result, bail};
use percolite::Store;
use reedline::{
    ColumnarMenu, DefaultPrompt, DefaultPromptSegment, Emacs, FileBackedHistory, KeyCode, KeyModifiers,
    MenuBuilder as _, Reedline, ReedlineEvent, ReedlineMenu, Signal, default_emacs_keybindings,
};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use self::complete::StatementCompleter;
use self::session::{COMMITTING, Next, Session, TXN_OPEN};
use crate::encoding::EncodingArgs;
use crate::exit::Code;
use crate::format_chain;
use crate::interrupt::Interrupt;
use crate::open::{self, StoreDir};
use crate::output::print_line;
use crate::text_input::{Lines, TextStream};
use crate::tuning::Tuning;

const MAX_HISTORY_LINES: usize = 1000;

/// The command's options.
#[expect(clippy::struct_excessive_bools, reason = "each is an option")]
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite shell shop
  percolite shell --create shop      creates the store if it does not exist
  percolite shell --read-only shop   changes nothing
  percolite shell shop --value-encoding json --json
                                     the defaults of all statements
  printf 'begin\\nput fruit apple red\\ncommit\\n' | percolite shell shop
  echo 'scan fruit --rev --limit 3 --json' | percolite shell shop | jq -r .key

`help` lists the statements. They have the options of the commands of the same names. Tab completes statements, \
keyspaces and options. The lines are saved in ~/.local/state/percolite/history, unless --no-history is given.

If the input is a file or a pipe, the first error ends the shell. A transaction that is open at the end is rolled \
back.")]
pub struct Args {
    #[command(flatten)]
    pub store: StoreDir,
    /// Create the store if it does not exist
    #[arg(long, conflicts_with = "read_only")]
    create: bool,
    /// Open the store read-only
    #[arg(long)]
    read_only: bool,
    /// Do not save the lines
    #[arg(long)]
    no_history: bool,
    #[command(flatten)]
    tuning: Tuning,
    #[command(flatten)]
    encodings: EncodingArgs,
    /// Print JSON lines
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let store =
        if args.read_only { args.store.open_read_only()? } else { args.store.open_tuned(args.create, &args.tuning)? };
    let mut session = Session {
        store: store.clone(),
        txn: None,
        savepoints: Vec::new(),
        phase: Arc::default(),
        encodings: args.encodings.get(),
        json: args.json,
    };
    let ran = if std::io::stdin().is_terminal() { session.run_interactive(args) } else { session.run_piped() };
    let left_open = session.txn.take().is_some();
    drop(session);
    if left_open {
        eprintln!("the open transaction was rolled back");
    }
    ran.and(open::close_after_cleanup(store))
}

impl Session {
    /// Runs statements from a file or a pipe.
    fn run_piped(&mut self) -> Result<()> {
        let signals = self.exit_on_interrupt()?;
        let ran = self.run_lines();
        signals.close();
        ran
    }

    fn run_lines(&mut self) -> Result<()> {
        let mut lines = Lines::new(BufReader::new(TextStream::new(std::io::stdin(), String::new())));
        loop {
            let line = match lines.next().context("standard input")? {
                None => return Ok(()),
                Some(Err(reason)) => bail!("line {} {reason}", lines.number),
                Some(Ok(line)) => line,
            };
            match self.run_line(line) {
                Ok(Next::Statement) => {}
                Ok(Next::End) => return Ok(()),
                // A broken pipe is returned unchanged, so that the program recognizes it and ends
                // without a message.
                Err(err) if crate::is_broken_pipe(&err) => return Err(err),
                Err(err) => {
                    return Err(Code::of(&err).error(format!("line {}: {}", lines.number, format_chain(&err))));
                }
            }
        }
    }

    /// Starts a thread that ends the program on a signal, because a read from a pipe cannot be
    /// interrupted.
    fn exit_on_interrupt(&self) -> Result<Handle> {
        let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot watch for signals")?;
        let (handle, phase) = (signals.handle(), Arc::clone(&self.phase));
        std::thread::spawn(move || {
            if signals.forever().next().is_some() {
                Interrupt::exit_now(match phase.load(Ordering::SeqCst) {
                    TXN_OPEN => "the open transaction was not committed; earlier commits are durable",
                    COMMITTING => "the outcome of the current commit is undetermined; earlier commits are durable",
                    _ => "earlier commits are durable",
                });
            }
        });
        Ok(handle)
    }

    /// Runs statements from a terminal.
    fn run_interactive(&mut self, args: &Args) -> Result<()> {
        let mut editor = editor(&self.store, args.no_history)?;
        print_line(format_args!("{}; `help` lists the statements, `quit` ends", args.store.path.display()))?;
        loop {
            let prompt = if self.txn.is_some() { "percolite (transaction)" } else { "percolite" };
            let prompt = DefaultPrompt::new(DefaultPromptSegment::Basic(prompt.into()), DefaultPromptSegment::Empty);
            match editor.read_line(&prompt).context("cannot read the terminal")? {
                // Pasted text can have several lines.
                Signal::Success(lines) => {
                    for line in lines.split(['\n', '\r']) {
                        match self.run_line(line) {
                            Ok(Next::Statement) => {}
                            Ok(Next::End) => return Ok(()),
                            Err(err) if crate::is_broken_pipe(&err) => return Err(err),
                            Err(err) => {
                                eprintln!("error: {}", format_chain(&err));
                                break;
                            }
                        }
                    }
                }
                Signal::CtrlD => return Ok(()),
                _ => {}
            }
        }
    }
}

fn editor(store: &Store, no_history: bool) -> Result<Reedline> {
    const MENU: &str = "completion";
    let mut keys = default_emacs_keybindings();
    let complete = ReedlineEvent::UntilFound(vec![ReedlineEvent::Menu(MENU.into()), ReedlineEvent::MenuNext]);
    keys.add_binding(KeyModifiers::NONE, KeyCode::Tab, complete);
    let menu = ColumnarMenu::default().with_name(MENU);
    let editor = Reedline::create()
        .with_completer(Box::new(StatementCompleter::new(store.clone())))
        .with_menu(ReedlineMenu::EngineCompleter(Box::new(menu)))
        .with_quick_completions(true)
        .with_partial_completions(true)
        .with_edit_mode(Box::new(Emacs::new(keys)))
        .with_ansi_colors(std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty()));
    let Some(path) = history_file().filter(|_| !no_history) else { return Ok(editor) };
    let history = FileBackedHistory::with_file(MAX_HISTORY_LINES, path.clone());
    Ok(editor
        .with_history(Box::new(history.with_context(|| format!("cannot save the history in {}", path.display()))?)))
}

fn history_file() -> Option<PathBuf> {
    let named = |name| std::env::var_os(name).filter(|set| !set.is_empty()).map(PathBuf::from);
    let state = named("XDG_STATE_HOME").or_else(|| Some(named("HOME")?.join(".local/state")))?;
    Some(state.join("percolite/history"))
}
