//! One pass over the history in timestamp order, with the state of the store at each timestamp.
//!
//! After Chronos: snapshots (`read_ts`) and commits (`commit_ts`) are events, sorted by timestamp.
//! At a tie the commit comes first, since a snapshot shows what is committed at or below its
//! timestamp. The *frontier* holds the last committed value of each row. At a snapshot all reads of
//! the transaction are compared with the frontier and the transaction's own writes. At a commit the
//! transaction's writes enter the frontier; if another transaction has written or locked one of its
//! rows since its snapshot, the two conflict. Comparing with the last locker of a row is enough: a
//! locker that does not overlap with the next one overlaps with no later one.
//!
//! The pass only collects mismatches. [`super::reads`] and [`super::timestamp_order`] classify
//! them.

use crate::history::{History, InternedOp, Key, TxnIndex, Value};

use super::frontier::{Frontier, NO_TXN};
use super::scope::Scope;

/// A read that does not show what it should.
#[derive(Clone, Copy, Debug)]
pub struct Mismatch {
    /// The reader.
    pub txn: TxnIndex,
    /// The index of the read among the transaction's operations.
    pub step: usize,
    /// The row.
    pub key: Key,
    /// The expected value.
    pub expected: Value,
    /// The writer of the expected value.
    pub writer: Writer,
    /// The value that was read.
    pub found: Value,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// An initial row.
    Initial,
    /// The reader itself.
    Own,
    /// Another transaction.
    Other(TxnIndex),
}

/// Two transactions that wrote or locked the same row; the snapshot of the second is from before
/// the commit of the first.
#[derive(Clone, Copy, Debug)]
pub struct WriteConflict {
    /// The first committer.
    pub first: TxnIndex,
    /// The transaction that should not have committed.
    pub second: TxnIndex,
    /// The row.
    pub key: Key,
}

/// A row that a scan must not show in any state of the store.
#[derive(Clone, Copy, Debug)]
pub struct BadScanRow {
    /// The reader.
    pub txn: TxnIndex,
    /// The row.
    pub key: Key,
    /// Whether the scan showed the row before; otherwise the row is outside of the scan's range.
    pub twice: bool,
}

/// What one sweep of a history has found.
#[derive(Debug, Default)]
pub struct Sweep {
    /// In the order of `read_ts`.
    pub mismatches: Vec<Mismatch>,
    /// In the order of the second transaction's `commit_ts`.
    pub conflicts: Vec<WriteConflict>,
    /// Rows that scans must not show in any state.
    pub bad_scan_rows: Vec<BadScanRow>,
}

/// The bit that marks an event as a snapshot, and sorts it after the commits at its timestamp.
const SNAPSHOT: u32 = 1 << 31;

/// Sweeps the history. `commits` has the commit timestamp of each transaction that committed.
pub fn sweep(history: &History, commits: &[Option<u64>], scope: &Scope) -> Sweep {
    let mut events: Vec<(u64, u32)> = Vec::with_capacity(2 * scope.txns().len());
    for &txn in scope.txns() {
        let transaction = history.transaction(txn);
        if transaction.reads {
            events.push((transaction.read_ts, txn | SNAPSHOT));
        }
        events.extend(commits[txn as usize].map(|ts| (ts, txn)));
    }
    events.sort_unstable();

    let mut state = State { history, commits, scope, frontier: Frontier::new(history), found: Sweep::default() };
    for (_, event) in events {
        if event & SNAPSHOT == 0 {
            state.commit(event);
        } else {
            state.snapshot(event & !SNAPSHOT);
        }
    }
    state.found
}

struct State<'h> {
    history: &'h History,
    commits: &'h [Option<u64>],
    scope: &'h Scope,
    frontier: Frontier<'h>,
    found: Sweep,
}

impl State<'_> {
    fn snapshot(&mut self, txn: TxnIndex) {
        for (step, op) in self.history.ops(txn).iter().enumerate() {
            match *op {
                InternedOp::Read(key, found) | InternedOp::ReadForUpdate(key, found) => {
                    self.compare(txn, step, key, found);
                }
                InternedOp::Write(key, value) => self.frontier.set_own_write(txn, key, value),
                InternedOp::Scan(scan) => self.scan(txn, step, scan),
            }
        }
    }

    fn compare(&mut self, txn: TxnIndex, step: usize, key: Key, found: Value) {
        if !self.scope.has(key) {
            return;
        }
        let (expected, by) = self.frontier.visible_to(txn, key);
        if expected != found {
            self.found.mismatches.push(Mismatch { txn, step, key, expected, writer: by, found });
        }
    }

    fn scan(&mut self, txn: TxnIndex, step: usize, scan: u32) {
        let range = self.frontier.ranks(self.history.scan(scan));
        let shown = self.history.rows(scan);
        self.frontier.begin_scan();
        for &(key, found) in shown {
            let first = self.frontier.mark(key);
            if !first || !range.contains(&self.frontier.rank(key)) {
                self.found.bad_scan_rows.push(BadScanRow { txn, key, twice: !first });
                continue;
            }
            self.compare(txn, step, key, found);
        }
        for key in self.frontier.missing_rows(range.clone()) {
            self.compare(txn, step, key, Value::NONE);
        }
        for op in &self.history.ops(txn)[..step] {
            if let InternedOp::Write(key, _) = *op
                && range.contains(&self.frontier.rank(key))
                && self.frontier.mark(key)
            {
                self.compare(txn, step, key, Value::NONE);
            }
        }
    }

    fn commit(&mut self, txn: TxnIndex) {
        let read_ts = self.history.transaction(txn).read_ts;
        for op in self.history.ops(txn) {
            let (key, value) = match *op {
                InternedOp::Write(key, value) => (key, Some(value)),
                InternedOp::ReadForUpdate(key, _) => (key, None),
                _ => continue,
            };
            if !self.scope.has(key) {
                continue;
            }
            let first = self.frontier.set_locker(txn, key);
            if first != NO_TXN && first != txn && self.commits[first as usize] > Some(read_ts) {
                self.found.conflicts.push(WriteConflict { first, second: txn, key });
            }
            if let Some(value) = value {
                self.frontier.commit(txn, key, value);
            }
        }
    }
}
