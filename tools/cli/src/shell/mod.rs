//! `percolite shell`: statements one by one, alone or in transactions.
//!
//! [`statement`] is the language, [`complete`] what helps to type it; this file runs it.

mod complete;
mod statement;

use std::io::{BufRead as _, IsTerminal as _, Read as _};
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
use self::statement::{Parsed, Statement};
use crate::bytes::{Form, FormArgs, Forms, RECORD_MAX_BYTES};
use crate::exit::Code;
use crate::interrupt::Interrupt;
use crate::open::{self, Folder};
use crate::output::{is_for_people, say};
use crate::tuning::Tuning;
use crate::{delete, locks, one_line, put, table, told};
use serde_json::json;

const HISTORY_LINES: usize = 1000;
/// So many rows a scan shows to people, unless it is told otherwise.
const SHOWN: u64 = 100;

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
  percolite shell shop --values json --json
                                     for every statement that does not say otherwise
  printf 'begin\\nput fruit apple red\\ncommit\\n' | percolite shell shop
  echo 'scan fruit --rev --limit 3 --json' | percolite shell shop | jq -r .key

`help` shows the statements, which take the options of the commands of the same names. Tab completes them, the names of keyspaces, and options. What is typed is kept in \
~/.local/state/percolite/history, unless --no-history is said.

When the statements come from a file or a pipe the first error ends it; a transaction that is open then is rolled back.")]
pub struct Args {
    #[command(flatten)]
    pub store: Folder,
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
    forms: FormArgs,
    /// Answers are JSON lines
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let store = if args.read_only { args.store.look()? } else { args.store.write_tuned(args.create, &args.tuning)? };
    let mut session = Session {
        store: store.clone(),
        txn: None,
        savepoints: Vec::new(),
        standing: Arc::default(),
        forms: args.forms.get(),
        json: args.json,
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
    /// Unless a statement says otherwise.
    forms: Forms,
    json: bool,
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
        let statement = match Parsed::of(line)? {
            Parsed::Nothing => return Ok(Next::Statement),
            Parsed::Help(help) => return say(help).map(|()| Next::Statement),
            Parsed::Statement(statement) => statement,
        };
        let changes = matches!(statement, Statement::Put(_) | Statement::Delete(_) | Statement::Create { .. });
        if matches!(statement, Statement::Commit) || changes && self.txn.is_none() {
            self.standing.store(COMMITTING, Ordering::SeqCst);
        }
        let next = self.statement(statement);
        self.standing.store(if self.txn.is_some() { OPEN } else { CLOSED }, Ordering::SeqCst);
        next
    }

    fn statement(&mut self, statement: Statement) -> Result<Next> {
        match statement {
            Statement::Quit => return Ok(Next::End),
            Statement::Begin => {
                if self.txn.is_some() {
                    bail!("a transaction is open already: commit or rollback");
                }
                let txn = self.store.begin()?;
                self.tell(
                    json!({ "begun": txn.read_ts().to_string() }),
                    format_args!("begun; it reads the state of {:#}", txn.read_ts()),
                )?;
                self.txn = Some(txn);
            }
            Statement::Commit => {
                let ts = self.open_txn()?.commit()?.ts;
                self.tell(json!({ "committed": ts.to_string() }), format_args!("committed at {ts:#}"))?;
            }
            Statement::Rollback { to } => self.roll_back(to.last())?,
            Statement::Savepoint { name } => {
                let savepoint = self.txn.as_mut().context(NO_TXN)?.savepoint();
                self.tell(json!({ "savepoint": name }), "marked")?;
                self.savepoints.push((name, savepoint));
            }
            Statement::Release { name } => {
                let place = self.savepoint(&name)?;
                self.savepoints.truncate(place);
                self.tell(json!({ "released": name }), "forgotten; what was written stays")?;
            }
            Statement::Create { name } => {
                let id = self.store.keyspace(&name)?.id().0;
                self.tell(json!({ "name": name, "id": id }), format_args!("there is a keyspace {name:?}"))?;
            }
            Statement::Keyspaces { json } => self.keyspaces(json || self.json)?,
            Statement::Locks { forms, json } => {
                locks::show(&self.store, forms.or(self.forms), json || self.json, |_| true)?;
            }
            Statement::Stats { json } => self.stats(json || self.json)?,
            Statement::Get(mut what) => {
                what.json |= self.json;
                let forms = what.forms.or(self.forms);
                let keys = what.keys(forms)?;
                let is_json = what.json;
                what.show(&self.store, self.txn.as_ref(), &keys, forms, &mut |_, out| {
                    if is_json { Ok(()) } else { out.say("not there") }
                })?;
            }
            Statement::Scan(mut what) => {
                what.json |= self.json;
                let forms = what.forms.or(self.forms);
                what.show(&self.store, self.txn.as_ref(), forms, Some(SHOWN), &Interrupt::never())?;
            }
            Statement::Versions(mut what) => {
                what.json |= self.json;
                let forms = what.forms.or(self.forms);
                let is_any = what.show(&self.store, self.txn.as_ref(), &what.key(forms)?, forms)?;
                if !is_any && !what.json {
                    say("never there")?;
                }
            }
            Statement::Put(mut what) => {
                what.json |= self.json;
                let rows = what.rows(what.forms.or(self.forms))?;
                let keyspace = self.keyspace(&what.keyspace)?;
                self.change(|txn| Ok(put::put(txn, &keyspace, &rows)?))?;
                self.tell_change(what.json, json!({ "put": rows.len() }), true)?;
            }
            Statement::Delete(what) => self.delete(what)?,
        }
        Ok(Next::Statement)
    }

    /// Says it as JSON, or in words.
    fn tell(&self, json: serde_json::Value, words: impl std::fmt::Display) -> Result<()> {
        if self.json { say(json) } else { say(words) }
    }

    fn roll_back(&mut self, to: Option<&String>) -> Result<()> {
        let Some(name) = to else {
            self.open_txn()?.roll_back()?;
            return self.tell(json!({ "rolled_back": true }), "rolled back");
        };
        let place = self.savepoint(name)?;
        if let (Some(txn), Some((_, savepoint))) = (&mut self.txn, self.savepoints.get(place)) {
            txn.rollback_to(*savepoint)?;
        }
        self.savepoints.truncate(place + 1);
        let words = format_args!("rolled back to {name:?}; the transaction goes on");
        self.tell(json!({ "rolled_back_to": name }), words)
    }

    fn keyspaces(&self, json: bool) -> Result<()> {
        let names = self.store.keyspaces()?;
        if json {
            return names.iter().try_for_each(|name| say(json!({ "name": name })));
        }
        if is_for_people() {
            return say(table::texts(["keyspace"], names.into_iter().map(|name| [name]).collect()));
        }
        names.iter().try_for_each(|name| {
            let mut line = Vec::new();
            Form::Text.plain(name.as_bytes(), &mut line);
            say(String::from_utf8_lossy(&line))
        })
    }

    fn stats(&self, json: bool) -> Result<()> {
        let status = self.store.status();
        if json {
            return say(told::document(&status)?);
        }
        told::tables(&status).into_iter().try_for_each(say)
    }

    /// A row that is not there is no error here.
    fn delete(&mut self, mut what: delete::What) -> Result<()> {
        what.json |= self.json;
        let forms = what.forms.or(self.forms);
        let wanted = what.wanted(forms)?;
        let keyspace = self.keyspace(&what.keyspace)?;
        let interrupt = Interrupt::never();
        let mut deleted = 0;
        let done = self.change(|txn| {
            deleted = what.delete(txn, &keyspace, &wanted, forms, &interrupt)?;
            Ok(())
        });
        let is_there = match done {
            Err(why) if Code::of(&why) == Code::Missing => false,
            done => done.map(|()| deleted > 0)?,
        };
        self.tell_change(what.json, json!({ "deleted": if is_there { deleted } else { 0 } }), is_there)
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

    /// In the open transaction, or one of its own. After an error nothing of it is left in either.
    fn change(&mut self, mut work: impl FnMut(&mut Txn) -> Result<()>) -> Result<()> {
        let Some(txn) = &mut self.txn else { return self.store.transact(work) };
        let before = txn.savepoint();
        let done = work(txn);
        if done.is_err() {
            txn.rollback_to(before)?;
        }
        done
    }

    fn tell_change(&self, is_json: bool, json: serde_json::Value, is_there: bool) -> Result<()> {
        if is_json {
            return say(json);
        }
        say(match (is_there, &self.txn) {
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
