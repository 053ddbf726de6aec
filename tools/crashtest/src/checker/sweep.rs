//! One pass over the history in the order of timestamps, with the store as it must have been at each moment.
//!
//! After Chronos: snapshots (`read_ts`) and commits (`commit_ts`) are events; sorted, they are what a store with snapshot
//! isolation did. At a tie the commit comes first, since a snapshot shows what is committed at or before it. The *frontier*
//! holds each row's last committed value. At a snapshot every read of that transaction is compared with the frontier, its own
//! writes laid over it; at a commit its writes go into the frontier, and whoever was there since its snapshot is a conflict.
//! Comparing with the last one there is enough: writers that follow each other without overlap cannot overlap further apart.
//!
//! The pass only notes what does not fit. Which anomaly that is, is for [`super::reads`] and [`super::order`] to say.

use crate::history::{History, InternedOp, Key, TxnIndex, Value};

use super::frontier::{Frontier, NO_TXN};
use super::scope::Scope;

/// A read that does not show what it should.
#[derive(Clone, Copy, Debug)]
pub struct Mismatch {
    /// Who read.
    pub txn: TxnIndex,
    /// Which of its steps it was.
    pub step: usize,
    /// The row.
    pub key: Key,
    /// What should have been read.
    pub expected: Value,
    /// Whose write that is.
    pub writer: Writer,
    /// What was read.
    pub found: Value,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// It was there before the first transaction.
    Initial,
    /// The reader itself wrote it.
    Own,
    /// Another transaction wrote it.
    Other(TxnIndex),
}

/// Two transactions that claimed the same row, the second with a snapshot from before the first's commit.
#[derive(Clone, Copy, Debug)]
pub struct WriteConflict {
    /// Who committed first.
    pub first: TxnIndex,
    /// Who should not have committed.
    pub second: TxnIndex,
    /// The row.
    pub key: Key,
}

/// A row that a scan should not have shown in any state of the store.
#[derive(Clone, Copy, Debug)]
pub struct BadScanRow {
    /// Who scanned.
    pub txn: TxnIndex,
    /// The row.
    pub key: Key,
    /// Whether it was shown before; otherwise it is out of range.
    pub twice: bool,
}

/// What did not fit.
#[derive(Debug, Default)]
pub struct Sweep {
    /// Reads, by rising `read_ts`.
    pub mismatches: Vec<Mismatch>,
    /// Writers, by rising `commit_ts` of the second.
    pub conflicts: Vec<WriteConflict>,
    /// Rows of scans.
    pub bad_scan_rows: Vec<BadScanRow>,
}

/// Marks a snapshot among the events. It sorts behind the commits at the same time.
const SNAPSHOT: u32 = 1 << 31;

/// Goes over the history. `commits` says when each transaction took effect, if it did.
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
