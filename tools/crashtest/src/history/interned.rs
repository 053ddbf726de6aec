//! A history in the form that the checker needs: every key and value is a number.
//!
//! Values are compared as numbers, and data about a key is an array element. All operations are in
//! one array and all scanned rows in another, so a transaction is a few numbers and a history a few
//! allocations.

use std::ops::Range;

use indexmap::IndexSet;
use rustc_hash::{FxBuildHasher, FxHashSet};

use super::{Line, Op, Outcome, Problem, Transaction};

/// The index of a transaction in the history.
pub type TxnIndex = u32;

/// The maximum number of transactions of a history: below half of the range of `u32`, so that the
/// checker can store a flag in the highest bit of an index.
const TRANSACTIONS_MAX: usize = (u32::MAX / 2) as usize;

/// The number of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(u32);

impl Key {
    /// Its index in an array of all keys.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The number of a value, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Value(u32);

impl Value {
    /// No value: the row is missing.
    pub const NONE: Self = Self(0);

    /// Its index in an array of all values, with [`Self::NONE`] first.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// An operation of a transaction.
#[derive(Clone, Copy, Debug)]
pub enum InternedOp {
    /// A read.
    Read(Key, Value),
    /// A read for update.
    ReadForUpdate(Key, Value),
    /// A write, or a deletion.
    Write(Key, Value),
    /// A scan, by its index in the history.
    Scan(u32),
}

/// A scan.
#[derive(Debug)]
pub struct ScanRange {
    /// The first key of the range.
    pub from: Box<str>,
    /// The first key after the range.
    pub to: Option<Box<str>>,
    rows: Range<u32>,
}

impl ScanRange {
    /// Whether a key is in the range.
    pub fn contains(&self, key: &str) -> bool {
        *self.from <= *key && self.to.as_deref().is_none_or(|to| key < to)
    }
}

/// A transaction; its operations are in the history.
#[derive(Debug)]
pub struct InternedTransaction {
    /// Its id in reports.
    pub id: u64,
    /// The client that ran it.
    pub session: u64,
    /// Its start timestamp, which identifies it in the store.
    pub start_ts: Option<u64>,
    /// The timestamp of its snapshot.
    pub read_ts: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// When it began.
    pub began: Option<u64>,
    /// When its client got the answer.
    pub ended: Option<u64>,
    /// Whether it read anything.
    pub reads: bool,
    /// Whether it wrote or locked anything.
    pub locks_rows: bool,
    commit_ts: Option<u64>,
    ops: Range<u32>,
}

impl InternedTransaction {
    /// The commit timestamp, if it was recorded. A transaction that neither wrote nor locked a row
    /// has none: some stores report a `commit_ts` for such a transaction, but it has no meaning.
    pub fn committed_at(&self) -> Option<u64> {
        self.commit_ts.filter(|_| self.locks_rows)
    }

    /// Whether the client got the answer that it is committed.
    pub fn is_acknowledged(&self) -> bool {
        self.outcome == Outcome::Committed
    }
}

/// A history. Lines are pushed in the order of the file; lines of one session are in the order of
/// its transactions.
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

    /// Adds a line with its number in the file.
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
        let locks_rows = txn.ops.iter().any(|op| matches!(op, Op::Write(..) | Op::ReadForUpdate(..)));
        match (txn.outcome, txn.commit_ts) {
            (Outcome::Aborted, Some(_)) => return Err(Problem::UnexpectedCommitTs),
            (Outcome::Committed, None) if locks_rows => return Err(Problem::MissingCommitTs),
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
            locks_rows,
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

    /// All transactions, by [`TxnIndex`].
    pub fn transactions(&self) -> &[InternedTransaction] {
        &self.transactions
    }

    /// All transactions with their indexes.
    pub fn indexed(&self) -> impl Iterator<Item = (TxnIndex, &InternedTransaction)> {
        (0..).zip(&self.transactions)
    }

    /// One transaction.
    pub fn transaction(&self, txn: TxnIndex) -> &InternedTransaction {
        &self.transactions[txn as usize]
    }

    /// The operations of a transaction.
    pub fn ops(&self, txn: TxnIndex) -> &[InternedOp] {
        let Range { start, end } = self.transactions[txn as usize].ops;
        &self.ops[start as usize..end as usize]
    }

    /// A scan.
    pub fn scan(&self, scan: u32) -> &ScanRange {
        &self.scans[scan as usize]
    }

    /// The rows that a scan has shown.
    pub fn rows(&self, scan: u32) -> &[(Key, Value)] {
        let Range { start, end } = self.scans[scan as usize].rows;
        &self.rows[start as usize..end as usize]
    }

    /// Whether there is any scan.
    pub fn has_scans(&self) -> bool {
        !self.scans.is_empty()
    }

    /// The initial rows.
    pub fn initial(&self) -> &[(Key, Value)] {
        &self.initial
    }

    /// The number of keys.
    pub fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        // The number of keys fits into `u32`, since `push` refuses more.
        (0..u32::try_from(self.keys.len()).unwrap_or(u32::MAX)).map(Key)
    }

    /// The number of values, including [`Value::NONE`].
    pub fn value_count(&self) -> usize {
        self.values.len() + 1
    }

    /// The text of a key.
    pub fn key(&self, key: Key) -> &str {
        &self.keys[key.index()]
    }

    /// The text of a value.
    pub fn value(&self, value: Value) -> Option<&str> {
        value.index().checked_sub(1).map(|index| &*self.values[index])
    }

    /// A transaction with only the operations on these keys.
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
