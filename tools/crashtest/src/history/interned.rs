//! A history in which every key and value is a number, as the checker needs it.
//!
//! Comparing two values is comparing two numbers, and what is known of a key is an element of an array. All operations lie in
//! one array, all rows that scans were shown in another, so a transaction is a few numbers and a history a few allocations.

use std::ops::Range;

use indexmap::IndexSet;
use rustc_hash::{FxBuildHasher, FxHashSet};

use super::{Line, Op, Outcome, Problem, Transaction};

/// A transaction, by its place in the history.
pub type TxnIndex = u32;

/// One below half of the numbers, so that the checker has a bit to spare beside an index.
const TRANSACTIONS_MAX: usize = (u32::MAX / 2) as usize;

/// A key, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(u32);

impl Key {
    /// Its place in an array of all keys.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A value, by number, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Value(u32);

impl Value {
    /// No value: the row is not there.
    pub const NONE: Self = Self(0);

    /// Its place in an array of all values, [`Self::NONE`] first.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One step of a transaction.
#[derive(Clone, Copy, Debug)]
pub enum InternedOp {
    /// A read.
    Read(Key, Value),
    /// A read that claims the row.
    ReadForUpdate(Key, Value),
    /// A write, or a deletion.
    Write(Key, Value),
    /// A scan, by its place in the history.
    Scan(u32),
}

/// A scan.
#[derive(Debug)]
pub struct ScanRange {
    /// The first key of the range.
    pub from: Box<str>,
    /// The first key behind it.
    pub to: Option<Box<str>>,
    rows: Range<u32>,
}

impl ScanRange {
    /// Whether a key lies in the range.
    pub fn contains(&self, key: &str) -> bool {
        *self.from <= *key && self.to.as_deref().is_none_or(|to| key < to)
    }
}

/// A transaction; its steps are asked of the history.
#[derive(Debug)]
pub struct InternedTransaction {
    /// Its name in reports.
    pub id: u64,
    /// The client that ran it.
    pub session: u64,
    /// Its name in the store.
    pub start_ts: Option<u64>,
    /// The snapshot that it read.
    pub read_ts: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// When it began.
    pub began: Option<u64>,
    /// When its client heard of its end.
    pub ended: Option<u64>,
    /// Whether it read anything.
    pub reads: bool,
    /// Whether it wrote or claimed anything.
    pub locks_rows: bool,
    commit_ts: Option<u64>,
    ops: Range<u32>,
}

impl InternedTransaction {
    /// When its writes became part of the store, where that was recorded. Stores that report a `commit_ts` for a transaction
    /// without writes mean nothing by it, so there is none.
    pub fn committed_at(&self) -> Option<u64> {
        self.commit_ts.filter(|_| self.locks_rows)
    }

    /// Whether its client was told that it is committed.
    pub fn is_acknowledged(&self) -> bool {
        self.outcome == Outcome::Committed
    }
}

/// What clients did and heard, as the checker needs it. Lines are pushed in the order in which they stand in a file: those
/// of one session in the order in which it ran them.
#[derive(Debug, Default)]
pub struct History {
    transactions: Vec<InternedTransaction>,
    ops: Vec<InternedOp>,
    scans: Vec<ScanRange>,
    rows: Vec<(Key, Value)>,
    initial: Vec<(Key, Value)>,
    keys: IndexSet<Box<str>, FxBuildHasher>,
    values: IndexSet<Box<str>, FxBuildHasher>,
    ids: FxHashSet<u64>,
    lines: u64,
}

impl History {
    /// Adds a line.
    pub fn push<S: AsRef<str>>(&mut self, line: &Line<S>) -> Result<(), Problem> {
        self.push_numbered(self.lines + 1, line)
    }

    /// Adds a line that stands at this number in its file.
    pub(super) fn push_numbered<S: AsRef<str>>(&mut self, number: u64, line: &Line<S>) -> Result<(), Problem> {
        self.lines = number;
        match line {
            Line::Crash => Ok(()),
            Line::Initial(rows) => self.push_initial(rows),
            Line::Transaction(txn) => self.push_transaction(txn.id.unwrap_or(number), txn),
        }
    }

    fn push_initial<S: AsRef<str>>(&mut self, rows: &[(S, S)]) -> Result<(), Problem> {
        if !self.transactions.is_empty() || !self.initial.is_empty() {
            return Err(Problem::InitialNotFirst);
        }
        for (key, value) in rows {
            if self.keys.contains(key.as_ref()) {
                return Err(Problem::DuplicateInitialKey(key.as_ref().to_owned()));
            }
            let row = (self.intern_key(key)?, self.intern_value(Some(value))?);
            self.initial.push(row);
        }
        Ok(())
    }

    fn push_transaction<S: AsRef<str>>(&mut self, id: u64, txn: &Transaction<S>) -> Result<(), Problem> {
        let claims = txn.ops.iter().any(|op| matches!(op, Op::Write(..) | Op::ReadForUpdate(..)));
        match (txn.outcome, txn.commit_ts) {
            (Outcome::Aborted, Some(_)) => return Err(Problem::UnexpectedCommitTs),
            (Outcome::Committed, None) if claims => return Err(Problem::MissingCommitTs),
            _ => {}
        }
        if txn.began.zip(txn.ended).is_some_and(|(began, ended)| ended < began) {
            return Err(Problem::EndedBeforeBegan);
        }
        if self.transactions.len() >= TRANSACTIONS_MAX {
            return Err(Problem::TooLarge);
        }
        if !self.ids.insert(id) {
            return Err(Problem::DuplicateId(id));
        }
        let first = number(self.ops.len())?;
        for op in &txn.ops {
            let op = self.intern_op(op)?;
            self.ops.push(op);
        }
        self.transactions.push(InternedTransaction {
            id,
            session: txn.session,
            start_ts: txn.start_ts,
            read_ts: txn.read_ts,
            outcome: txn.outcome,
            began: txn.began,
            ended: txn.ended,
            reads: txn.ops.iter().any(|op| !matches!(op, Op::Write(..))),
            locks_rows: claims,
            commit_ts: txn.commit_ts,
            ops: first..number(self.ops.len())?,
        });
        Ok(())
    }

    fn intern_op<S: AsRef<str>>(&mut self, op: &Op<S>) -> Result<InternedOp, Problem> {
        Ok(match op {
            Op::Read(key, value) => InternedOp::Read(self.intern_key(key)?, self.intern_value(value.as_ref())?),
            Op::ReadForUpdate(key, value) => {
                InternedOp::ReadForUpdate(self.intern_key(key)?, self.intern_value(value.as_ref())?)
            }
            Op::Write(key, value) => InternedOp::Write(self.intern_key(key)?, self.intern_value(value.as_ref())?),
            Op::Scan { from, to, rows } => {
                let first = number(self.rows.len())?;
                for (key, value) in rows {
                    let row = (self.intern_key(key)?, self.intern_value(Some(value))?);
                    self.rows.push(row);
                }
                let rows = first..number(self.rows.len())?;
                let to = to.as_ref().map(|to| to.as_ref().into());
                self.scans.push(ScanRange { from: from.as_ref().into(), to, rows });
                InternedOp::Scan(number(self.scans.len() - 1)?)
            }
        })
    }

    fn intern_key(&mut self, key: impl AsRef<str>) -> Result<Key, Problem> {
        intern(&mut self.keys, key.as_ref()).map(Key)
    }

    fn intern_value(&mut self, value: Option<impl AsRef<str>>) -> Result<Value, Problem> {
        match value {
            None => Ok(Value::NONE),
            Some(value) => intern(&mut self.values, value.as_ref()).map(|index| Value(index + 1)),
        }
    }

    /// All transactions; [`TxnIndex`] is the place in this list.
    pub fn transactions(&self) -> &[InternedTransaction] {
        &self.transactions
    }

    /// The transactions with their places.
    pub fn indexed(&self) -> impl Iterator<Item = (TxnIndex, &InternedTransaction)> {
        (0..).zip(&self.transactions)
    }

    /// One transaction.
    pub fn transaction(&self, txn: TxnIndex) -> &InternedTransaction {
        &self.transactions[txn as usize]
    }

    /// The steps of a transaction.
    pub fn ops(&self, txn: TxnIndex) -> &[InternedOp] {
        let Range { start, end } = self.transactions[txn as usize].ops;
        &self.ops[start as usize..end as usize]
    }

    /// A scan.
    pub fn scan(&self, scan: u32) -> &ScanRange {
        &self.scans[scan as usize]
    }

    /// The rows that a scan was shown.
    pub fn rows(&self, scan: u32) -> &[(Key, Value)] {
        let Range { start, end } = self.scans[scan as usize].rows;
        &self.rows[start as usize..end as usize]
    }

    /// Whether there is any scan.
    pub fn has_scans(&self) -> bool {
        !self.scans.is_empty()
    }

    /// The rows that were there at first.
    pub fn initial(&self) -> &[(Key, Value)] {
        &self.initial
    }

    /// How many keys occur.
    pub fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// Every key that occurs.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        // There are no more keys than numbers for them.
        (0..u32::try_from(self.keys.len()).unwrap_or(u32::MAX)).map(Key)
    }

    /// How many values occur, [`Value::NONE`] included.
    pub fn value_count(&self) -> usize {
        self.values.len() + 1
    }

    /// A key's text.
    pub fn key(&self, key: Key) -> &str {
        &self.keys[key.index()]
    }

    /// A value's text.
    pub fn value(&self, value: Value) -> Option<&str> {
        value.index().checked_sub(1).map(|index| &*self.values[index])
    }

    /// A transaction with only those of its steps, and of the rows shown to it, that have one of these keys.
    pub fn excerpt(&self, txn: TxnIndex, keys: &[Key]) -> Transaction {
        let whole = self.transaction(txn);
        let row = |key: Key, value: Value| {
            keys.contains(&key).then(|| (self.key(key).to_owned(), self.value(value).map(str::to_owned)))
        };
        let ops = self.ops(txn).iter().filter_map(|op| match *op {
            InternedOp::Read(key, value) => row(key, value).map(|(key, value)| Op::Read(key, value)),
            InternedOp::ReadForUpdate(key, value) => row(key, value).map(|(key, value)| Op::ReadForUpdate(key, value)),
            InternedOp::Write(key, value) => row(key, value).map(|(key, value)| Op::Write(key, value)),
            InternedOp::Scan(scan) => {
                let range = self.scan(scan);
                let shown = self.rows(scan).iter().filter_map(|(key, value)| row(*key, *value));
                let rows: Vec<_> = shown.filter_map(|(key, value)| Some((key, value?))).collect();
                let matters = !rows.is_empty() || keys.iter().any(|key| range.contains(self.key(*key)));
                matters.then(|| Op::Scan {
                    from: (*range.from).to_owned(),
                    to: range.to.as_deref().map(str::to_owned),
                    rows,
                })
            }
        });
        Transaction {
            id: Some(whole.id),
            session: whole.session,
            start_ts: whole.start_ts,
            read_ts: whole.read_ts,
            commit_ts: whole.commit_ts,
            outcome: whole.outcome,
            began: whole.began,
            ended: whole.ended,
            ops: ops.collect(),
        }
    }
}

fn intern(strings: &mut IndexSet<Box<str>, FxBuildHasher>, text: &str) -> Result<u32, Problem> {
    let index = match strings.get_index_of(text) {
        Some(index) => index,
        None => strings.insert_full(text.into()).0,
    };
    number(index)
}

fn number(index: usize) -> Result<u32, Problem> {
    u32::try_from(index).ok().filter(|index| *index < u32::MAX).ok_or(Problem::TooLarge)
}
