//! `percolite shell`: statements one by one, alone or in transactions.
//!
//! [`statement`] is the language, [`complete`] what helps to type it; this file runs it.

mod complete;
mod statement;

use std::io::{BufRead as _, IsTerminal as _, Read as _};
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context as _, Result, bail};
use percolite::{Keyspace, Savepoint, Store, Txn};
use reedline::{
    ColumnarMenu, DefaultPrompt, DefaultPromptSegment, Emacs, FileBackedHistory, KeyCode, KeyModifiers,
    MenuBuilder as _, Reedline, ReedlineEvent, ReedlineMenu, Signal, default_emacs_keybindings,
};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use self::complete::Words;
use self::statement::{HELP, Rows, Statement};
use crate::bytes::{Forms, RECORD_MAX_BYTES};
use crate::exit::Code;
use crate::interrupt::Interrupt;
use crate::open::{self, Folder};
use crate::output::{count, say};
use crate::tuning::Tuning;
use crate::{locks, one_line, table, versions};

const HISTORY_LINES: usize = 1000;
/// So many rows a scan shows, and so many versions, unless it is told otherwise.
const SHOWN: usize = 100;

/// No transaction is open; one is; or one is being committed, and nobody can say yet whether it is.
const CLOSED: u8 = 0;
const OPEN: u8 = 1;
const COMMITTING: u8 = 2;

const NO_TXN: &str = "no transaction is open: begin opens one";

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite shell shop
  percolite shell --create shop      makes the store if there is none
  percolite shell --read-only shop   changes nothing
  printf 'begin\\nput fruit apple red\\ncommit\\n' | percolite shell shop

`help` shows the statements. Tab completes them and the names of keyspaces. What is typed is kept in \
~/.local/state/percolite/history, unless --no-history is said.

When the statements come from a file or a pipe the first error ends it; a transaction that is open then is rolled back.")]
pub struct Args {
    #[command(flatten)]
    store: Folder,
    /// Make the store if it is not there
    #[arg(long, conflicts_with = "read_only")]
    create: bool,
    /// Only look
    #[arg(long)]
    read_only: bool,
    /// Keep nothing of what is typed
    #[arg(long)]
    no_history: bool,
    #[command(flatten)]
    tuning: Tuning,
    #[command(flatten)]
    forms: Forms,
}

pub fn run(args: &Args) -> Result<()> {
    let store = if args.read_only { args.store.look()? } else { args.store.write_tuned(args.create, &args.tuning)? };
    let mut session = Session {
        store: store.clone(),
        txn: None,
        savepoints: Vec::new(),
        standing: Arc::default(),
        forms: args.forms,
    };
    let ran = if std::io::stdin().is_terminal() { session.typed(args) } else { session.piped() };
    let left_open = session.txn.take().is_some();
    drop(session);
    if left_open {
        eprintln!("the open transaction was rolled back");
    }
    ran.and(open::finish(store))
}

struct Session {
    store: Store,
    txn: Option<Txn>,
    /// Of the open transaction, oldest first. A name may be there twice; the later one counts.
    savepoints: Vec<(String, Savepoint)>,
    /// One of the three below, for who ends the program.
    standing: Arc<AtomicU8>,
    forms: Forms,
}

/// Whether there is more to come.
#[derive(PartialEq, Eq)]
enum Next {
    Statement,
    End,
}

impl Session {
    fn piped(&mut self) -> Result<()> {
        let signals = self.end_on_interrupt()?;
        let ran = self.lines();
        signals.close();
        ran
    }

    fn lines(&mut self) -> Result<()> {
        let mut input = std::io::stdin().lock();
        let mut line = String::new();
        for number in 1.. {
            line.clear();
            let read =
                input.by_ref().take(RECORD_MAX_BYTES).read_line(&mut line).context("cannot read standard input")?;
            if read == 0 {
                break;
            }
            if read as u64 == RECORD_MAX_BYTES {
                let most = indicatif::HumanBytes(RECORD_MAX_BYTES);
                return Err(Code::Failed.error(format!("line {number} has more than {most}; load takes many rows")));
            }
            match self.line(&line) {
                Ok(Next::Statement) => {}
                Ok(Next::End) => break,
                Err(why) => {
                    let code = Code::of(&why);
                    // Nobody reads: no error to tell.
                    return Err(if crate::is_broken_pipe(&why) {
                        why
                    } else {
                        code.error(format!("line {number}: {}", one_line(&why)))
                    });
                }
            }
        }
        Ok(())
    }

    /// Nothing interrupts the reading of a pipe, so another thread ends the program.
    fn end_on_interrupt(&self) -> Result<Handle> {
        let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot watch for signals")?;
        let (handle, standing) = (signals.handle(), Arc::clone(&self.standing));
        std::thread::spawn(move || {
            if signals.forever().next().is_some() {
                Interrupt::end_at_once(match standing.load(Ordering::SeqCst) {
                    OPEN => "the open transaction was not committed; what was committed before stays",
                    COMMITTING => "a commit was under way, which is in or not: look; what was committed before stays",
                    _ => "what was committed before stays",
                });
            }
        });
        Ok(handle)
    }

    fn typed(&mut self, args: &Args) -> Result<()> {
        let mut editor = editor(&self.store, args.no_history)?;
        say(format_args!("{}; `help` shows the statements, `quit` ends", args.store.folder.display()))?;
        loop {
            let left = if self.txn.is_some() { "percolite (transaction)" } else { "percolite" };
            let prompt = DefaultPrompt::new(DefaultPromptSegment::Basic(left.into()), DefaultPromptSegment::Empty);
            match editor.read_line(&prompt).context("cannot read what is typed")? {
                Signal::Success(line) => match self.line(&line) {
                    Ok(Next::Statement) => {}
                    Ok(Next::End) => return Ok(()),
                    Err(why) if crate::is_broken_pipe(&why) => return Err(why),
                    Err(why) => eprintln!("error: {}", one_line(&why)),
                },
                Signal::CtrlD => return Ok(()),
                _ => {}
            }
        }
    }

    fn line(&mut self, line: &str) -> Result<Next> {
        let Some(statement) = Statement::parse(line, self.forms)? else { return Ok(Next::Statement) };
        let changes = matches!(statement, Statement::Put { .. } | Statement::Delete { .. } | Statement::Create(_));
        if statement == Statement::Commit || changes && self.txn.is_none() {
            self.standing.store(COMMITTING, Ordering::SeqCst);
        }
        let next = self.statement(statement);
        self.standing.store(if self.txn.is_some() { OPEN } else { CLOSED }, Ordering::SeqCst);
        next
    }

    fn statement(&mut self, statement: Statement) -> Result<Next> {
        match statement {
            Statement::Help => say(HELP)?,
            Statement::Quit => return Ok(Next::End),
            Statement::Begin => {
                if self.txn.is_some() {
                    bail!("a transaction is open already: commit or rollback");
                }
                let txn = self.store.begin()?;
                say(format_args!("begun; it reads the state of {:#}", txn.read_ts()))?;
                self.txn = Some(txn);
            }
            Statement::Commit => {
                let commit = self.open_txn()?.commit()?;
                say(format_args!("committed at {:#}", commit.ts))?;
            }
            Statement::Rollback => {
                self.open_txn()?.roll_back()?;
                say("rolled back")?;
            }
            Statement::Savepoint(name) => {
                let savepoint = self.txn.as_mut().context(NO_TXN)?.savepoint();
                self.savepoints.push((name, savepoint));
                say("marked")?;
            }
            Statement::RollbackTo(name) => {
                let place = self.savepoint(&name)?;
                if let (Some(txn), Some((_, savepoint))) = (&mut self.txn, self.savepoints.get(place)) {
                    txn.rollback_to(*savepoint)?;
                }
                self.savepoints.truncate(place + 1);
                say(format_args!("rolled back to {name:?}; the transaction goes on"))?;
            }
            Statement::Release(name) => {
                let place = self.savepoint(&name)?;
                self.savepoints.truncate(place);
                say("forgotten; what was written stays")?;
            }
            Statement::Create(name) => {
                self.store.keyspace(&name)?;
                say(format_args!("there is a keyspace {name:?}"))?;
            }
            Statement::Keyspaces => {
                let names = self.store.keyspaces()?;
                say(table::texts(["keyspace"], names.into_iter().map(|name| [name]).collect()))?;
            }
            Statement::Locks => {
                let table = locks::table_of(&self.store, self.forms, |_| true)?;
                say(table.unwrap_or_else(|| "there are no locks".into()))?;
            }
            Statement::Get { keyspace, key } => {
                let keyspace = self.keyspace(&keyspace)?;
                let value = self.read(|txn| txn.get(&keyspace, &key))?;
                match value {
                    Some(value) => say(self.forms.values.show(&value))?,
                    None => say("not there")?,
                }
            }
            Statement::Scan { keyspace, rows, limit } => self.scan(&keyspace, &rows, limit.unwrap_or(SHOWN))?,
            Statement::Versions { keyspace, key, limit } => self.versions(&keyspace, &key, limit.unwrap_or(SHOWN))?,
            Statement::Put { keyspace, key, value } => {
                let keyspace = self.keyspace(&keyspace)?;
                self.change(|txn| txn.put(&keyspace, &key, &value).map(|()| true))?;
            }
            Statement::Delete { keyspace, key } => {
                let keyspace = self.keyspace(&keyspace)?;
                let delete = |txn: &mut Txn| {
                    let is_there = txn.contains(&keyspace, &key)?;
                    if is_there { txn.delete(&keyspace, &key).map(|()| true) } else { Ok(false) }
                };
                self.change(delete)?;
            }
        }
        Ok(Next::Statement)
    }

    fn scan(&self, keyspace: &str, rows: &Rows, limit: usize) -> Result<()> {
        let keyspace = self.keyspace(keyspace)?;
        let rows = self.read(|txn| {
            let scan = match rows {
                Rows::Prefix(prefix) => txn.prefix(&keyspace, prefix),
                Rows::Between(from, to) => {
                    let from = from.as_deref().map_or(Bound::Unbounded, Bound::Included);
                    txn.range(&keyspace, (from, to.as_deref().map_or(Bound::Unbounded, Bound::Excluded)))
                }
            };
            scan.take(limit.saturating_add(1)).collect::<percolite::Result<Vec<_>>>()
        })?;
        let cells = |(key, value): &(Vec<u8>, Vec<u8>)| [self.forms.keys.show(key), self.forms.values.show(value)];
        say(table::texts(["key", "value"], rows.iter().take(limit).map(cells).collect()))?;
        if rows.len() > limit {
            say(format_args!("… and more; `limit N` shows more than {}", count(limit as u64, "row")))
        } else {
            Ok(())
        }
    }

    /// Without what the open transaction has written: that is no version yet.
    fn versions(&self, keyspace: &str, key: &[u8], limit: usize) -> Result<()> {
        let keyspace = self.keyspace(keyspace)?;
        let found = self.read(|txn| {
            txn.versions(&keyspace, key)?.take(limit.saturating_add(1)).collect::<percolite::Result<Vec<_>>>()
        })?;
        if found.is_empty() {
            return say("never there");
        }
        let rows = found.iter().take(limit).map(|version| versions::cells(version, self.forms)).collect();
        say(table::texts(versions::HEADER, rows))?;
        if found.len() > limit {
            return say(format_args!("… and more; `limit N` shows more than {}", count(limit as u64, "version")));
        }
        Ok(())
    }

    fn open_txn(&mut self) -> Result<Txn> {
        self.savepoints.clear();
        self.txn.take().context(NO_TXN)
    }

    /// The place of the last savepoint of that name.
    fn savepoint(&self, name: &str) -> Result<usize> {
        if self.txn.is_none() {
            bail!(NO_TXN);
        }
        let place = self.savepoints.iter().rposition(|(known, _)| known == name);
        place.ok_or_else(|| Code::Missing.error(format!("the transaction has no savepoint {name:?}")))
    }

    fn keyspace(&self, name: &str) -> Result<Keyspace> {
        open::keyspace(&self.store, name, false)
    }

    /// In the open transaction, or one of its own.
    fn read<T>(&self, work: impl Fn(&Txn) -> percolite::Result<T>) -> Result<T> {
        Ok(match &self.txn {
            Some(txn) => work(txn)?,
            None => self.store.transact(|txn| work(txn))?,
        })
    }

    /// The same; `work` says whether there was anything to change.
    fn change(&mut self, work: impl Fn(&mut Txn) -> percolite::Result<bool>) -> Result<()> {
        let changed = match &mut self.txn {
            Some(txn) => work(txn)?,
            None => self.store.transact(|txn| work(txn))?,
        };
        say(match (changed, &self.txn) {
            (false, _) => "not there",
            (true, Some(_)) => "noted, to be committed",
            (true, None) => "committed",
        })
    }
}

fn editor(store: &Store, no_history: bool) -> Result<Reedline> {
    const MENU: &str = "words";
    let mut keys = default_emacs_keybindings();
    let complete = ReedlineEvent::UntilFound(vec![ReedlineEvent::Menu(MENU.into()), ReedlineEvent::MenuNext]);
    keys.add_binding(KeyModifiers::NONE, KeyCode::Tab, complete);
    let menu = ColumnarMenu::default().with_name(MENU);
    let editor = Reedline::create()
        .with_completer(Box::new(Words::new(store.clone())))
        .with_menu(ReedlineMenu::EngineCompleter(Box::new(menu)))
        .with_quick_completions(true)
        .with_partial_completions(true)
        .with_edit_mode(Box::new(Emacs::new(keys)))
        .with_ansi_colors(std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty()));
    let Some(path) = history_file().filter(|_| !no_history) else { return Ok(editor) };
    let history = FileBackedHistory::with_file(HISTORY_LINES, path.clone());
    Ok(editor
        .with_history(Box::new(history.with_context(|| format!("cannot keep the history in {}", path.display()))?)))
}

fn history_file() -> Option<PathBuf> {
    let named = |name| std::env::var_os(name).filter(|set| !set.is_empty()).map(PathBuf::from);
    let state = named("XDG_STATE_HOME").or_else(|| Some(named("HOME")?.join(".local/state")))?;
    Some(state.join("percolite/history"))
}
