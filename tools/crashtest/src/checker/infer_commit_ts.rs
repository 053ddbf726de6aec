//! Infers commit timestamps for transactions of unknown outcome whose values a reader saw.
//!
//! The bounds of the timestamps come from one pass over all operations. Two committed transactions
//! that write or lock the same row do not overlap: one commits before the other takes its snapshot.
//! So the inferred transactions that lock a row have committed in the order of their snapshots.
//! Another transaction that reads or locks the row bounds only one of them: the last one with a
//! snapshot before its own. Each earlier one is bounded by the next one.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::history::{History, InternedOp, Key, TxnIndex, Value};

use super::scope::Scope;
use super::writers::{last_write, locked_rows};

/// Transactions that must have committed, each with its earliest reader.
pub type FirstReaders = FxHashMap<TxnIndex, TxnIndex>;

/// An inferred commit.
pub struct InferredCommit {
    /// The inferred commit timestamp.
    pub commit_ts: u64,
    /// The earliest reader of the transaction.
    pub first_reader: TxnIndex,
    /// The transactions that bound the timestamp.
    pub constraints: Vec<TxnIndex>,
    /// Whether the bounds leave a free timestamp.
    pub feasible: bool,
}

struct Bounds {
    above: (u64, Option<TxnIndex>),
    to: (u64, Option<TxnIndex>),
}

/// Infers the commit timestamps. `commits` has the known commit timestamps, `used` all timestamps
/// in use, sorted.
pub fn infer_commit_ts(
    history: &History,
    commits: &[Option<u64>],
    used: &[u64],
    first_readers: &FirstReaders,
    scope: &Scope,
) -> FxHashMap<TxnIndex, InferredCommit> {
    let rows = Rows::new(history, first_readers);
    let mut bounds: FxHashMap<TxnIndex, Bounds> = first_readers
        .iter()
        .map(|(&txn, &reader)| {
            let transaction = history.transaction(txn);
            let above = transaction.start_ts.unwrap_or(0).max(transaction.read_ts);
            (txn, Bounds { above: (above, None), to: (history.transaction(reader).read_ts, None) })
        })
        .collect();
    rows.bound_by_lockers(history, commits, scope, &mut bounds);
    rows.bound_by_snapshots(history, scope, &mut bounds);

    let mut free = FreeTimestamps { used, taken: FxHashMap::default() };
    let mut in_order: Vec<_> = bounds.into_iter().collect();
    in_order.sort_unstable_by_key(|(txn, bounds)| (bounds.to.0, *txn));
    let placed = in_order.into_iter().map(|(txn, Bounds { above, to })| {
        let lowest = free.at_or_after(above.0.saturating_add(1));
        // If no timestamp between the bounds is free, the transaction gets the upper bound although
        // it is in use, and the check for reuse reports this. If the bounds contradict each other,
        // it gets a free timestamp above the lower bound, and the sweep reports what does not fit.
        let fits = lowest <= to.0;
        let commit_ts = if fits || to.0 <= above.0 { lowest } else { to.0 };
        free.take(commit_ts);
        let bounded_by = above.1.into_iter().chain(to.1).collect();
        (txn, InferredCommit { commit_ts, first_reader: first_readers[&txn], constraints: bounded_by, feasible: fits })
    });
    placed.collect()
}

/// The rows that transactions to be inferred write or lock. For each row, `lockers` has these
/// transactions in the order of `read_ts`.
struct Rows<'h> {
    lockers: FxHashMap<Key, Vec<(u64, TxnIndex)>>,
    /// The same rows in the order of their keys, for scans.
    sorted: Vec<(&'h str, Key)>,
}

impl<'h> Rows<'h> {
    fn new(history: &'h History, first_readers: &FirstReaders) -> Self {
        let mut lockers: FxHashMap<Key, Vec<(u64, TxnIndex)>> = FxHashMap::default();
        for &txn in first_readers.keys() {
            for key in locked_rows(history, txn) {
                lockers.entry(key).or_default().push((history.transaction(txn).read_ts, txn));
            }
        }
        for lockers in lockers.values_mut() {
            lockers.sort_unstable();
            lockers.dedup();
        }
        let mut sorted: Vec<_> = lockers.keys().map(|key| (history.key(*key), *key)).collect();
        sorted.sort_unstable();
        Self { lockers, sorted }
    }

    /// Of the transactions to be inferred that lock the row, the last one with a snapshot before
    /// `ts`.
    fn last_before(&self, key: Key, ts: u64) -> Option<TxnIndex> {
        let lockers = self.lockers.get(&key)?;
        let before = lockers.partition_point(|(read_ts, _)| *read_ts < ts);
        Some(lockers[before.checked_sub(1)?].1)
    }

    /// Upper bounds: the next transaction that locks the row must have seen the write.
    fn bound_by_lockers(
        &self,
        history: &History,
        commits: &[Option<u64>],
        scope: &Scope,
        bounds: &mut FxHashMap<TxnIndex, Bounds>,
    ) {
        for &txn in scope.txns() {
            if commits[txn as usize].is_none() && !bounds.contains_key(&txn) {
                continue;
            }
            let read_ts = history.transaction(txn).read_ts;
            for key in locked_rows(history, txn).filter(|key| scope.has(*key)) {
                if let Some(last) = self.last_before(key, read_ts)
                    && let Some(Bounds { above, to }) = bounds.get_mut(&last)
                    && read_ts > above.0
                {
                    *to = (*to).min((read_ts, Some(txn)));
                }
            }
        }
    }

    /// Lower bounds: a snapshot that does not show the write was taken before the commit.
    fn bound_by_snapshots(&self, history: &History, scope: &Scope, bounds: &mut FxHashMap<TxnIndex, Bounds>) {
        for &txn in scope.txns() {
            let transaction = history.transaction(txn);
            if !transaction.reads {
                continue;
            }
            let mut own = FxHashSet::default();
            for op in history.ops(txn) {
                match *op {
                    InternedOp::Write(key, _) => {
                        own.insert(key);
                    }
                    InternedOp::Read(key, value) | InternedOp::ReadForUpdate(key, value) if !own.contains(&key) => {
                        self.bound_by_snapshot(history, (txn, transaction.read_ts), key, value, bounds);
                    }
                    InternedOp::Read(..) | InternedOp::ReadForUpdate(..) => {}
                    InternedOp::Scan(scan) => {
                        let range = history.scan(scan);
                        let first = self.sorted.partition_point(|(text, _)| *text < &*range.from);
                        let covered = self.sorted[first..].iter().take_while(|(text, _)| range.contains(text));
                        let mut covered = covered.filter(|(_, key)| !own.contains(key)).peekable();
                        if covered.peek().is_none() {
                            continue;
                        }
                        let shown: FxHashMap<Key, Value> = history.rows(scan).iter().copied().collect();
                        for (_, key) in covered {
                            let value = shown.get(key).copied().unwrap_or(Value::NONE);
                            self.bound_by_snapshot(history, (txn, transaction.read_ts), *key, value, bounds);
                        }
                    }
                }
            }
        }
    }

    fn bound_by_snapshot(
        &self,
        history: &History,
        (txn, read_ts): (TxnIndex, u64),
        key: Key,
        value: Value,
        bounds: &mut FxHashMap<TxnIndex, Bounds>,
    ) {
        if let Some(last) = self.last_before(key, read_ts)
            && let Some(Bounds { above, to }) = bounds.get_mut(&last)
            && read_ts < to.0
            && last_write(history, last, key).is_some_and(|written| written != value)
        {
            *above = (*above).max((read_ts, Some(txn)));
        }
    }
}

/// Timestamps that are not in use.
struct FreeTimestamps<'a> {
    used: &'a [u64],
    /// For a taken timestamp, a later one that may be free.
    taken: FxHashMap<u64, u64>,
}

impl FreeTimestamps<'_> {
    fn take(&mut self, ts: u64) {
        self.taken.entry(ts).or_insert(ts.saturating_add(1));
    }

    /// The lowest free timestamp at or after `ts`. Shortens the chains in `taken` for later calls.
    fn at_or_after(&mut self, ts: u64) -> u64 {
        let mut path = Vec::new();
        let mut at = ts;
        loop {
            let further = match self.taken.get(&at) {
                Some(further) => *further,
                None if self.used.binary_search(&at).is_ok() => at.saturating_add(1),
                None => break,
            };
            if further == at {
                break;
            }
            path.push(at);
            at = further;
        }
        self.taken.extend(path.into_iter().map(|passed| (passed, at)));
        at
    }
}
