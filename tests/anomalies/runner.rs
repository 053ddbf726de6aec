//! The commands of the scripts.
//!
//! A command may name a session: `t1: get a`. A session is a transaction (`t1: begin`) or a
//! snapshot (`s1: snapshot`) until it ends. A command without a session runs as a transaction of
//! its own.
//!
//! The output has no timestamps and no owners, so it is the same on every engine.

use std::collections::HashMap;
use std::error::Error;
use std::fmt::Write as _;
use std::ops::Bound;

use goldenscript::Context;
use percolite::{CommitProtocol, ErrorKind, Keyspace, Savepoint, Scan, Snapshot, Store, Txn};

use crate::support::Home;

#[derive(goldenscript::Command)]
pub enum Command {
    /// Begins a transaction: `t1: begin`.
    Begin,
    /// Takes a snapshot: `s1: snapshot`.
    Snapshot,
    /// Commits, or prints the conflicting row. If several rows conflict, the engines may report
    /// different rows, so `t1: commit several=true` prints no row.
    Commit {
        #[arg(key, optional)]
        several: bool,
    },
    /// Rolls back.
    Rollback,
    /// Drops the transaction.
    Drop,
    /// Reads rows: `t1: get a b`.
    Get(Vec<String>),
    /// Reads rows that must not change before the commit.
    GetForUpdate(Vec<String>),
    /// Writes rows: `t1: put a=1 b=2`. Without a session, as one transaction that commits.
    Put(Vec<(String, String)>),
    /// Writes rows that must not be there.
    Insert(Vec<(String, String)>),
    /// Removes rows.
    Delete(Vec<String>),
    /// Lists the rows from one key on, up to but not including another: `t1: scan`, `t1: scan a c`,
    /// `t1: scan reverse=true`.
    Scan {
        from: Option<String>,
        to: Option<String>,
        #[arg(key, optional)]
        reverse: bool,
    },
    /// Lists the rows whose keys have this prefix.
    Prefix {
        prefix: String,
        #[arg(key, optional)]
        reverse: bool,
    },
    /// Lists rows by their value: `t1: find value=30`, `t1: find multiple_of=3`.
    Find {
        #[arg(key)]
        value: Option<i64>,
        #[arg(key)]
        multiple_of: Option<i64>,
    },
    /// Removes the rows whose value is this number.
    DeleteWhere {
        #[arg(key)]
        value: i64,
    },
    /// Adds this number to the value of every row.
    AddToAll(i64),
    /// Sets a savepoint: `t1: savepoint first`.
    Savepoint(String),
    /// Rolls back to a savepoint: `t1: rollback_to first`.
    RollbackTo(String),
    /// Reads rows: the anomaly appeared if all have these values. `none` stands for an absent row.
    Anomaly(Vec<(String, String)>),
}

enum Session {
    Txn(Txn),
    Snapshot(Snapshot),
}

pub struct Runner {
    store: Store,
    rows: Keyspace,
    sessions: HashMap<String, Session>,
    savepoints: HashMap<(String, String), Savepoint>,
    /// How often the script has checked for the anomaly.
    pub checked: usize,
    /// How often the anomaly appeared.
    pub seen: usize,
    _home: Home,
}

type Output = Result<String, Box<dyn Error>>;

impl Runner {
    pub fn new(home: Home, protocol: CommitProtocol) -> Self {
        let store = home.open(Store::builder().commit_protocol(protocol));
        let rows = store.keyspace("rows").unwrap();
        let (sessions, savepoints) = Default::default();
        Self { store, rows, sessions, savepoints, checked: 0, seen: 0, _home: home }
    }

    fn txn(&mut self, context: &Context) -> Result<&mut Txn, Box<dyn Error>> {
        let name = context.prefix.as_ref().ok_or("which session?")?;
        match self.sessions.get_mut(name) {
            Some(Session::Txn(txn)) => Ok(txn),
            _ => Err(format!("{name} is no transaction").into()),
        }
    }

    fn take_txn(&mut self, context: &Context) -> Result<Txn, Box<dyn Error>> {
        let name = context.prefix.as_ref().ok_or("which session?")?;
        match self.sessions.remove(name) {
            Some(Session::Txn(txn)) => Ok(txn),
            _ => Err(format!("{name} is no transaction").into()),
        }
    }

    fn begin(&mut self, context: &Context, session: Session) -> Output {
        let name = context.prefix.clone().ok_or("which session?")?;
        match self.sessions.insert(name.clone(), session) {
            None => Ok(String::new()),
            Some(_) => Err(format!("{name} has begun already").into()),
        }
    }

    fn get(&self, context: &Context, key: &str) -> Result<Option<String>, Box<dyn Error>> {
        let rows = &self.rows;
        let value = match context.prefix.as_ref().map(|name| self.sessions.get(name)) {
            None => self.store.begin()?.get(rows, key)?,
            Some(Some(Session::Txn(txn))) => txn.get(rows, key)?,
            Some(Some(Session::Snapshot(snapshot))) => snapshot.get(rows, key)?,
            Some(None) => return Err("the session has not begun".into()),
        };
        Ok(value.map(text))
    }

    fn range(&self, context: &Context, from: Option<&str>, to: Option<&str>) -> Result<Scan, Box<dyn Error>> {
        let range = (from.map_or(Bound::Unbounded, Bound::Included), to.map_or(Bound::Unbounded, Bound::Excluded));
        let rows = &self.rows;
        Ok(match context.prefix.as_ref().map(|name| self.sessions.get(name)) {
            None => self.store.begin()?.range(rows, range),
            Some(Some(Session::Txn(txn))) => txn.range(rows, range),
            Some(Some(Session::Snapshot(snapshot))) => snapshot.range(rows, range),
            Some(None) => return Err("the session has not begun".into()),
        })
    }

    fn numbers(&self, context: &Context) -> Result<Vec<(String, i64)>, Box<dyn Error>> {
        let mut numbers = Vec::new();
        for row in self.range(context, None, None)? {
            let row = row?;
            numbers.push((text(row.key()), text(row.value()).parse()?));
        }
        Ok(numbers)
    }

    fn insert(&mut self, context: &Context, pairs: &[(String, String)]) -> Output {
        let (rows, mut output) = (self.rows.clone(), String::new());
        for (key, value) in pairs {
            if let Err(error) = self.txn(context)?.insert(&rows, key, value) {
                output.push_str(&explain(&error)?);
            }
        }
        Ok(output)
    }

    fn find(&self, context: &Context, value: Option<i64>, multiple_of: Option<i64>) -> Output {
        let numbers = self.numbers(context)?.into_iter();
        let found = numbers.filter(|(_, number)| {
            value.is_none_or(|value| value == *number) && multiple_of.is_none_or(|of| number % of == 0)
        });
        let lines: Vec<String> = found.map(|(key, number)| format!("{key} = {number}\n")).collect();
        Ok(if lines.is_empty() { "nothing\n".into() } else { lines.concat() })
    }

    fn delete_where(&mut self, context: &Context, value: i64) -> Output {
        let (rows, mut output) = (self.rows.clone(), String::new());
        for (key, _) in self.numbers(context)?.into_iter().filter(|(_, number)| *number == value) {
            self.txn(context)?.delete(&rows, &key)?;
            writeln!(output, "{key} deleted")?;
        }
        Ok(output)
    }

    fn add_to_all(&mut self, context: &Context, amount: i64) -> Output {
        let (rows, mut output) = (self.rows.clone(), String::new());
        for (key, number) in self.numbers(context)? {
            self.txn(context)?.put(&rows, &key, (number + amount).to_string())?;
            writeln!(output, "{key} = {}", number + amount)?;
        }
        Ok(output)
    }

    fn rollback_to(&mut self, context: &Context, name: &str) -> Output {
        let key = (context.prefix.clone().unwrap_or_default(), name.to_owned());
        let savepoint = *self.savepoints.get(&key).ok_or("unknown savepoint")?;
        match self.txn(context)?.rollback_to(savepoint) {
            Ok(()) => Ok(String::new()),
            Err(error) => explain(&error),
        }
    }

    /// Reads by key and by scans in both directions, which must agree.
    fn anomaly(&mut self, context: &Context, rows: &[(String, String)]) -> Output {
        let mut seen = true;
        for (key, value) in rows {
            let found = self.get(context, key)?;
            let end = format!("{key}\0");
            let mut scan = self.range(context, Some(key), Some(&end))?;
            let scanned = scan.next().transpose()?.map(|row| text(row.value()));
            let mut scan = self.range(context, Some(key), Some(&end))?;
            let back = scan.next_back().transpose()?.map(|row| text(row.value()));
            if found != scanned || found != back {
                return Err(format!("get returns {found:?}, a scan {scanned:?}, backwards {back:?}").into());
            }
            seen &= found.as_deref().unwrap_or("none") == value;
        }
        self.checked += 1;
        self.seen += usize::from(seen);
        Ok(format!("the anomaly is {}\n", if seen { "seen" } else { "not seen" }))
    }
}

impl goldenscript::Runner for Runner {
    type Command = Command;

    fn run(&mut self, command: &Command, context: &Context) -> Output {
        let rows = self.rows.clone();
        let mut output = String::new();
        match command {
            Command::Begin => {
                let txn = self.store.begin()?;
                return self.begin(context, Session::Txn(txn));
            }
            Command::Snapshot => {
                let snapshot = self.store.snapshot()?;
                return self.begin(context, Session::Snapshot(snapshot));
            }
            Command::Commit { several } => match self.take_txn(context)?.commit() {
                Ok(_) => output.push_str("committed\n"),
                Err(error) if *several && error.is_retryable() => output.push_str("conflict\n"),
                Err(error) => output.push_str(&explain(&error)?),
            },
            Command::Rollback => self.take_txn(context)?.rollback()?,
            Command::Drop => drop(self.take_txn(context)?),
            Command::Get(keys) => {
                for key in keys {
                    let value = self.get(context, key)?;
                    writeln!(output, "{key} = {}", value.as_deref().unwrap_or("none"))?;
                }
            }
            Command::GetForUpdate(keys) => {
                for key in keys {
                    let value = self.txn(context)?.get_for_update(&rows, key)?.map(text);
                    writeln!(output, "{key} = {}", value.as_deref().unwrap_or("none"))?;
                }
            }
            Command::Put(pairs) if context.prefix.is_none() => {
                self.store.transact(|txn| pairs.iter().try_for_each(|(key, value)| txn.put(&rows, key, value)))?;
            }
            Command::Put(pairs) => {
                for (key, value) in pairs {
                    self.txn(context)?.put(&rows, key, value)?;
                }
            }
            Command::Insert(pairs) => return self.insert(context, pairs),
            Command::Delete(keys) if context.prefix.is_none() => {
                self.store.transact(|txn| keys.iter().try_for_each(|key| txn.delete(&rows, key)))?;
            }
            Command::Delete(keys) => {
                for key in keys {
                    self.txn(context)?.delete(&rows, key)?;
                }
            }
            Command::Scan { from, to, reverse } => {
                let scan = self.range(context, from.as_deref(), to.as_deref())?;
                list(scan, *reverse, &mut output)?;
            }
            Command::Prefix { prefix, reverse } => {
                let scan = self.txn(context)?.prefix(&rows, prefix);
                list(scan, *reverse, &mut output)?;
            }
            Command::Find { value, multiple_of } => return self.find(context, *value, *multiple_of),
            Command::DeleteWhere { value } => return self.delete_where(context, *value),
            Command::AddToAll(amount) => return self.add_to_all(context, *amount),
            Command::Savepoint(name) => {
                let savepoint = self.txn(context)?.savepoint();
                self.savepoints.insert((context.prefix.clone().unwrap_or_default(), name.clone()), savepoint);
            }
            Command::RollbackTo(name) => return self.rollback_to(context, name),
            Command::Anomaly(rows) => return self.anomaly(context, rows),
        }
        Ok(output)
    }
}

/// Prints the errors that a script may expect, without the parts that differ between engines.
fn explain(error: &percolite::Error) -> Output {
    Ok(match error.kind() {
        ErrorKind::Conflict(conflict) => format!("conflict: row \"{}\"\n", conflict.row.user_key().escape_ascii()),
        ErrorKind::AlreadyExists(row) => format!("already exists: row \"{}\"\n", row.user_key().escape_ascii()),
        ErrorKind::InvalidArgument(_) => "invalid argument\n".into(),
        _ => return Err(error.to_string().into()),
    })
}

fn list(scan: Scan, reverse: bool, output: &mut String) -> Result<(), Box<dyn Error>> {
    let rows: Vec<percolite::Row> =
        if reverse { scan.rev().collect::<Result<_, _>>()? } else { scan.collect::<Result<_, _>>()? };
    if rows.is_empty() {
        output.push_str("nothing\n");
    }
    for row in rows {
        writeln!(output, "{} = {}", text(row.key()), text(row.value()))?;
    }
    Ok(())
}

fn text(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().escape_ascii().to_string()
}
