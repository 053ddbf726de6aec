//! Executes the statements of the shell, in the open transaction or alone.

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

/// The maximum number of rows that a scan prints as a table on a terminal, without `--limit`.
const DEFAULT_LIMIT: u64 = 100;

/// The phase of a session without an open transaction.
pub const NO_TXN_OPEN: u8 = 0;
/// The phase of a session with an open transaction.
pub const TXN_OPEN: u8 = 1;
/// The phase of a session whose transaction is committing, so that its outcome is unknown.
pub const COMMITTING: u8 = 2;

const NO_TXN: &str = "no transaction is open; `begin` starts one";

/// The state of a shell.
pub struct Session {
    pub store: Store,
    pub txn: Option<Txn>,
    /// The savepoints of the open transaction, oldest first. If two have the same name, the name
    /// means the later one.
    pub savepoints: Vec<(String, Savepoint)>,
    /// [`NO_TXN_OPEN`], [`TXN_OPEN`] or [`COMMITTING`], for the thread that ends the program on a
    /// signal.
    pub phase: Arc<AtomicU8>,
    /// The encodings of statements without encoding options.
    pub encodings: Encodings,
    pub json: bool,
}

/// Whether the shell continues.
#[derive(PartialEq, Eq)]
pub enum Next {
    Statement,
    End,
}

impl Session {
    /// Runs a line of input.
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
                    bail!("a transaction is open already; `commit` or `rollback` ends it");
                }
                let txn = self.store.begin()?;
                let read_ts = txn.read_ts();
                self.print(
                    json!({ "read_ts": read_ts.to_string() }),
                    format_args!("transaction started, it reads at {read_ts:#}"),
                )?;
                self.txn = Some(txn);
            }
            Statement::Commit => {
                let commit_ts = self.take_txn()?.commit()?.commit_ts;
                self.print(json!({ "commit_ts": commit_ts.to_string() }), format_args!("committed at {commit_ts:#}"))?;
            }
            Statement::Rollback { to } => self.roll_back(to.last())?,
            Statement::Savepoint { name } => {
                let savepoint = self.txn.as_mut().context(NO_TXN)?.savepoint();
                self.print(json!({ "savepoint": name }), "savepoint set")?;
                self.savepoints.push((name, savepoint));
            }
            Statement::Release { name } => {
                let index = self.savepoint_index(&name)?;
                self.savepoints.truncate(index);
                self.print(json!({ "released": name }), "savepoint released")?;
            }
            Statement::Create { name } => {
                let id = self.store.keyspace(&name)?.id().0;
                self.print(json!({ "name": name, "id": id }), format_args!("created the keyspace {name:?}"))?;
            }
            Statement::Keyspaces { count, json } => {
                keyspaces::list(&self.store, count, json || self.json, &Interrupt::never())?;
            }
            Statement::Locks { encodings, json } => {
                locks::print(&self.store, encodings.or_default_from(self.encodings), json || self.json, |_| true)?;
            }
            Statement::Stats { exact, json } => self.stats(exact, json || self.json)?,
            Statement::Get(args) => self.get(args)?,
            Statement::Scan(mut args) => {
                args.json |= self.json;
                let encodings = args.encodings.or_default_from(self.encodings);
                args.print(&self.store, self.txn.as_ref(), encodings, Some(DEFAULT_LIMIT), &Interrupt::never())?;
            }
            Statement::Versions(args) => self.versions(args)?,
            Statement::Put(args) => self.put(args)?,
            Statement::Delete(args) => self.delete(args)?,
        }
        Ok(Next::Statement)
    }

    /// Prints the JSON with `--json`, else the text.
    fn print(&self, json: serde_json::Value, text: impl std::fmt::Display) -> Result<()> {
        if self.json { print_line(json) } else { print_line(text) }
    }

    fn roll_back(&mut self, to: Option<&String>) -> Result<()> {
        let Some(name) = to else {
            self.take_txn()?.rollback()?;
            return self.print(json!({ "rolled_back": true }), "rolled back");
        };
        let index = self.savepoint_index(name)?;
        if let (Some(txn), Some((_, savepoint))) = (&mut self.txn, self.savepoints.get(index)) {
            txn.rollback_to(*savepoint)?;
        }
        self.savepoints.truncate(index + 1);
        let text = format_args!("rolled back to {name:?}; the transaction is still open");
        self.print(json!({ "rolled_back_to": name }), text)
    }

    fn stats(&self, exact: bool, json: bool) -> Result<()> {
        let status = self.store.status();
        let keyspaces = stats::keyspace_stats(&self.store, exact)?;
        if json {
            let mut document = status_report::to_json(&status)?;
            document["keyspace_stats"] = keyspaces.iter().map(stats::keyspace_json).collect();
            return print_line(document);
        }
        status_report::tables(&status).into_iter().try_for_each(print_line)?;
        stats::print_keyspaces(&keyspaces)
    }

    fn get(&self, mut args: get::GetArgs) -> Result<()> {
        args.json |= self.json;
        let encodings = args.encodings.or_default_from(self.encodings);
        let keys = args.keys(encodings)?;
        args.print(&self.store, self.txn.as_ref(), &keys, encodings, &mut |_, out| {
            if args.json { Ok(()) } else { out.write_line("not found") }
        })
    }

    fn versions(&self, mut args: versions::VersionsArgs) -> Result<()> {
        args.json |= self.json;
        let encodings = args.encodings.or_default_from(self.encodings);
        let is_any = args.print(&self.store, self.txn.as_ref(), &args.key(encodings)?, encodings)?;
        if is_any || args.json { Ok(()) } else { print_line("no versions") }
    }

    fn put(&mut self, mut args: put::PutArgs) -> Result<()> {
        args.json |= self.json;
        if args.reads_standard_input() {
            return Err(Code::Usage.error("--value-file - is for the command line: here standard input has statements"));
        }
        let rows = args.rows(args.encodings.or_default_from(self.encodings))?;
        let keyspace = self.keyspace(&args.keyspace)?;
        self.write(|txn| Ok(put::put(txn, &keyspace, &rows)?))?;
        self.print_change(args.json, json!({ "put": rows.len() }), true)
    }

    /// Deletes rows. In the shell a missing row is no error.
    fn delete(&mut self, mut args: delete::DeleteArgs) -> Result<()> {
        args.json |= self.json;
        let encodings = args.encodings.or_default_from(self.encodings);
        let target = args.target(encodings)?;
        let keyspace = self.keyspace(&args.keyspace)?;
        let interrupt = Interrupt::never();
        let mut deleted = 0;
        let result = self.write(|txn| {
            deleted = args.delete(txn, &keyspace, &target, encodings, &interrupt)?;
            Ok(())
        });
        let is_found = match result {
            Err(err) if Code::of(&err) == Code::NotFound => false,
            result => result.map(|()| deleted > 0)?,
        };
        self.print_change(args.json, json!({ "deleted": if is_found { deleted } else { 0 } }), is_found)
    }

    /// Takes the open transaction out of the session, to end it.
    fn take_txn(&mut self) -> Result<Txn> {
        self.savepoints.clear();
        self.txn.take().context(NO_TXN)
    }

    /// The index of the last savepoint of this name.
    fn savepoint_index(&self, name: &str) -> Result<usize> {
        if self.txn.is_none() {
            bail!(NO_TXN);
        }
        let index = self.savepoints.iter().rposition(|(other, _)| other == name);
        index.ok_or_else(|| Code::NotFound.error(format!("the transaction has no savepoint {name:?}")))
    }

    fn keyspace(&self, name: &str) -> Result<Keyspace> {
        open::keyspace(&self.store, name, false)
    }

    /// Runs the writes of a statement in the open transaction, or in a transaction of their own if
    /// none is open. After an error, none of these writes remains.
    fn write(&mut self, mut work: impl FnMut(&mut Txn) -> Result<()>) -> Result<()> {
        let Some(txn) = &mut self.txn else { return self.store.transact(work) };
        let before = txn.savepoint();
        let result = work(txn);
        if result.is_err() {
            txn.rollback_to(before)?;
        }
        result
    }

    fn print_change(&self, is_json: bool, json: serde_json::Value, is_found: bool) -> Result<()> {
        if is_json {
            return print_line(json);
        }
        print_line(match (is_found, &self.txn) {
            (false, _) => "not found",
            (true, Some(_)) => "buffered",
            (true, None) => "committed",
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use super::*;

    /// The session is called as from a terminal, where the transaction continues after the error. A
    /// shell that reads from a pipe ends at the first error.
    #[test]
    fn a_failed_statement_changes_nothing_in_the_transaction() {
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
            let result = session.run_line(line);
            assert_eq!(result.is_err(), line.len() > 1000, "{line}");
        }
        let keys = store.range(&rows, ..).unwrap().map(|row| row.unwrap().key().to_vec()).collect::<Vec<_>>();
        assert_eq!(keys, [b"a", b"b"]);
    }
}
