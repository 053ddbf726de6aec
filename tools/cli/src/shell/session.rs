//! What the statements of the shell do, in the open transaction or alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context as _, Result, bail};
use percolite::{Keyspace, Savepoint, Store, Txn};
use serde_json::json;

use super::statement::{Parsed, Statement};
use crate::encoding::Encodings;
use crate::exit::Code;
use crate::interrupt::Interrupt;
use crate::open;
use crate::output::print_line;
use crate::{delete, get, keyspaces, locks, put, stats, status_report, versions};

/// So many rows a scan shows to people, unless it is told otherwise.
const DEFAULT_LIMIT: u64 = 100;

/// No transaction is open; one is; or one is being committed, and nobody can say yet whether it is.
pub const NO_TXN_OPEN: u8 = 0;
pub const TXN_OPEN: u8 = 1;
pub const COMMITTING: u8 = 2;

const NO_TXN: &str = "no transaction is open: begin opens one";

/// An open shell.
pub struct Session {
    pub store: Store,
    pub txn: Option<Txn>,
    /// Of the open transaction, oldest first. A name may be there twice; the later one counts.
    pub savepoints: Vec<(String, Savepoint)>,
    /// One of the three above, for who ends the program.
    pub phase: Arc<AtomicU8>,
    /// Unless a statement says otherwise.
    pub encodings: Encodings,
    pub json: bool,
}

/// Whether there is more to come.
#[derive(PartialEq, Eq)]
pub enum Next {
    Statement,
    End,
}

impl Session {
    /// Runs a line.
    pub fn run_line(&mut self, line: &str) -> Result<Next> {
        let statement = match Parsed::of(line)? {
            Parsed::Empty => return Ok(Next::Statement),
            Parsed::Help(help) => return print_line(help).map(|()| Next::Statement),
            Parsed::Statement(statement) => statement,
        };
        let changes = matches!(statement, Statement::Put(_) | Statement::Delete(_) | Statement::Create { .. });
        if matches!(statement, Statement::Commit) || changes && self.txn.is_none() {
            self.phase.store(COMMITTING, Ordering::SeqCst);
        }
        let next = self.execute(statement);
        self.phase.store(if self.txn.is_some() { TXN_OPEN } else { NO_TXN_OPEN }, Ordering::SeqCst);
        next
    }

    fn execute(&mut self, statement: Statement) -> Result<Next> {
        match statement {
            Statement::Quit => return Ok(Next::End),
            Statement::Begin => {
                if self.txn.is_some() {
                    bail!("a transaction is open already: commit or rollback");
                }
                let txn = self.store.begin()?;
                self.print(
                    json!({ "begun": txn.read_ts().to_string() }),
                    format_args!("begun; it reads the state of {:#}", txn.read_ts()),
                )?;
                self.txn = Some(txn);
            }
            Statement::Commit => {
                let ts = self.open_txn()?.commit()?.commit_ts;
                self.print(json!({ "committed": ts.to_string() }), format_args!("committed at {ts:#}"))?;
            }
            Statement::Rollback { to } => self.roll_back(to.last())?,
            Statement::Savepoint { name } => {
                let savepoint = self.txn.as_mut().context(NO_TXN)?.savepoint();
                self.print(json!({ "savepoint": name }), "marked")?;
                self.savepoints.push((name, savepoint));
            }
            Statement::Release { name } => {
                let place = self.savepoint(&name)?;
                self.savepoints.truncate(place);
                self.print(json!({ "released": name }), "forgotten; what was written stays")?;
            }
            Statement::Create { name } => {
                let id = self.store.keyspace(&name)?.id().0;
                self.print(json!({ "name": name, "id": id }), format_args!("there is a keyspace {name:?}"))?;
            }
            Statement::Keyspaces { count, json } => {
                keyspaces::list(&self.store, count, json || self.json, &Interrupt::never())?;
            }
            Statement::Locks { encodings, json } => {
                locks::print(&self.store, encodings.or_default_from(self.encodings), json || self.json, |_| true)?;
            }
            Statement::Stats { exact, json } => self.stats(exact, json || self.json)?,
            Statement::Get(what) => self.get(what)?,
            Statement::Scan(mut what) => {
                what.json |= self.json;
                let encodings = what.encodings.or_default_from(self.encodings);
                what.print(&self.store, self.txn.as_ref(), encodings, Some(DEFAULT_LIMIT), &Interrupt::never())?;
            }
            Statement::Versions(what) => self.versions(what)?,
            Statement::Put(what) => self.put(what)?,
            Statement::Delete(what) => self.delete(what)?,
        }
        Ok(Next::Statement)
    }

    /// Says it as JSON, or in words.
    fn print(&self, json: serde_json::Value, words: impl std::fmt::Display) -> Result<()> {
        if self.json { print_line(json) } else { print_line(words) }
    }

    fn roll_back(&mut self, to: Option<&String>) -> Result<()> {
        let Some(name) = to else {
            self.open_txn()?.rollback()?;
            return self.print(json!({ "rolled_back": true }), "rolled back");
        };
        let place = self.savepoint(name)?;
        if let (Some(txn), Some((_, savepoint))) = (&mut self.txn, self.savepoints.get(place)) {
            txn.rollback_to(*savepoint)?;
        }
        self.savepoints.truncate(place + 1);
        let words = format_args!("rolled back to {name:?}; the transaction goes on");
        self.print(json!({ "rolled_back_to": name }), words)
    }

    fn stats(&self, exact: bool, json: bool) -> Result<()> {
        let status = self.store.status();
        let figures = stats::keyspace_stats(&self.store, exact)?;
        if json {
            let mut document = status_report::to_json(&status)?;
            document["keyspace_figures"] = figures.iter().map(stats::keyspace_json).collect();
            return print_line(document);
        }
        status_report::tables(&status).into_iter().try_for_each(print_line)?;
        stats::print_keyspaces(&figures)
    }

    fn get(&self, mut what: get::GetArgs) -> Result<()> {
        what.json |= self.json;
        let encodings = what.encodings.or_default_from(self.encodings);
        let keys = what.keys(encodings)?;
        what.print(&self.store, self.txn.as_ref(), &keys, encodings, &mut |_, out| {
            if what.json { Ok(()) } else { out.write_line("not there") }
        })
    }

    fn versions(&self, mut what: versions::VersionsArgs) -> Result<()> {
        what.json |= self.json;
        let encodings = what.encodings.or_default_from(self.encodings);
        let is_any = what.print(&self.store, self.txn.as_ref(), &what.key(encodings)?, encodings)?;
        if is_any || what.json { Ok(()) } else { print_line("never there") }
    }

    fn put(&mut self, mut what: put::PutArgs) -> Result<()> {
        what.json |= self.json;
        let rows = what.rows(what.encodings.or_default_from(self.encodings))?;
        let keyspace = self.keyspace(&what.keyspace)?;
        self.write(|txn| Ok(put::put(txn, &keyspace, &rows)?))?;
        self.print_change(what.json, json!({ "put": rows.len() }), true)
    }

    /// A row that is not there is no error here.
    fn delete(&mut self, mut what: delete::DeleteArgs) -> Result<()> {
        what.json |= self.json;
        let encodings = what.encodings.or_default_from(self.encodings);
        let wanted = what.target(encodings)?;
        let keyspace = self.keyspace(&what.keyspace)?;
        let interrupt = Interrupt::never();
        let mut deleted = 0;
        let done = self.write(|txn| {
            deleted = what.delete(txn, &keyspace, &wanted, encodings, &interrupt)?;
            Ok(())
        });
        let is_there = match done {
            Err(err) if Code::of(&err) == Code::NotFound => false,
            done => done.map(|()| deleted > 0)?,
        };
        self.print_change(what.json, json!({ "deleted": if is_there { deleted } else { 0 } }), is_there)
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
        place.ok_or_else(|| Code::NotFound.error(format!("the transaction has no savepoint {name:?}")))
    }

    fn keyspace(&self, name: &str) -> Result<Keyspace> {
        open::keyspace(&self.store, name, false)
    }

    /// In the open transaction, or one of its own. After an error nothing of it is left in either.
    fn write(&mut self, mut work: impl FnMut(&mut Txn) -> Result<()>) -> Result<()> {
        let Some(txn) = &mut self.txn else { return self.store.transact(work) };
        let before = txn.savepoint();
        let done = work(txn);
        if done.is_err() {
            txn.rollback_to(before)?;
        }
        done
    }

    fn print_change(&self, is_json: bool, json: serde_json::Value, is_there: bool) -> Result<()> {
        if is_json {
            return print_line(json);
        }
        print_line(match (is_there, &self.txn) {
            (false, _) => "not there",
            (true, Some(_)) => "noted, to be committed",
            (true, None) => "committed",
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use super::*;

    /// From a pipe the first error ends it, so this is of what is typed.
    #[test]
    fn a_statement_that_fails_leaves_nothing_of_itself_in_the_transaction() {
        let store = Store::in_memory().unwrap();
        let rows = store.keyspace("rows").unwrap();
        store.transact(|txn| txn.put(&rows, "a", "1")).unwrap();
        let mut session = Session {
            store: store.clone(),
            txn: None,
            savepoints: Vec::new(),
            phase: Arc::default(),
            encodings: Encodings::default(),
            json: true,
        };
        let long = "k".repeat(17 << 10);
        for line in ["begin", "put rows b 2", &format!("put rows c 3 {long} 4"), "delete rows a d", "commit"] {
            let done = session.run_line(line);
            assert_eq!(done.is_err(), line.len() > 1000, "{line}");
        }
        let there = store.snapshot().unwrap().range(&rows, ..).map(|row| row.unwrap().0).collect::<Vec<_>>();
        assert_eq!(there, [b"a", b"b"]);
    }
}
