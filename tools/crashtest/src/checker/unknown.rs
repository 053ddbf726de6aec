//! Transactions of unknown outcome: did they commit, and when?
//!
//! A client that is killed while it commits leaves a transaction of unknown outcome. At first such
//! transactions count as aborted, and the sweep omits them. A mismatched read of a value that only
//! one of them wrote is *evidence* of its commit: the transaction gets a commit timestamp, and the
//! sweep repeats, until no transaction of unknown outcome explains a remaining mismatch.
//!
//! The commit timestamp needs no search. The upper bound is the lower of two snapshots: the first
//! that shows one of the transaction's values, and that of the next transaction that locks one of
//! its rows, since the two would otherwise conflict. The lower bounds are the transaction's own
//! snapshot and start, and each snapshot below the upper bound that shows one of the transaction's
//! rows without its value. Any unused timestamp between these bounds will do. Each transaction, in
//! the order of upper bounds, takes the lowest unused one. In this order all get a timestamp if
//! there is any way in which all can. A transaction whose bounds contradict each other still counts
//! as committed, and the sweep reports what does not fit.
//!
//! Deletions are harder, because all deletions look the same. They are considered after all values
//! that only one transaction wrote. If several transactions may have deleted a row, some of them
//! are tried, and the one that leaves the fewest errors is taken.

use rustc_hash::FxHashMap;

use crate::history::{History, InternedTransaction, Key, Outcome, TxnIndex, Value};

use super::infer_commit_ts::{FirstReaders, InferredCommit, infer_commit_ts};
use super::scope::Scope;
use super::sweep::{Mismatch, Sweep, Writer, sweep};
use super::writers::{last_write, locked_rows};

/// At most this many transactions are tried as the writer of what a read has found.
const CANDIDATES_MAX: usize = 8;

/// The history with all outcomes resolved.
pub struct Resolved {
    /// The commit timestamp of each transaction that committed.
    pub commits: Vec<Option<u64>>,
    /// The remaining mismatches.
    pub sweep: Sweep,
    /// The inferred commits.
    pub inferred: FxHashMap<TxnIndex, InferredCommit>,
}

impl Resolved {
    /// How many errors this hypothesis leaves. The first number counts conflicts, and inferred
    /// timestamps that do not fit their bounds; the second counts mismatches. Hypotheses are
    /// compared by the first number first, because a further commit may explain a mismatch but
    /// cannot undo a conflict.
    fn error_counts(&self) -> (usize, usize) {
        let squeezed = self.inferred.values().filter(|inferred| !inferred.feasible).count();
        (self.sweep.conflicts.len() + squeezed, self.sweep.mismatches.len())
    }
}

/// Infers which transactions committed, and sweeps.
pub fn resolve_unknown(history: &History) -> Resolved {
    let unknown = UnknownTxns::new(history);
    let whole = Scope::whole(history);
    let known: Vec<_> = history.transactions().iter().map(InternedTransaction::committed_at).collect();
    let sweep = sweep(history, &known, &whole);
    let first = Resolved { commits: known.clone(), sweep, inferred: FxHashMap::default() };
    if !unknown.explains_any(history, &first.sweep) {
        return first;
    }
    let starts = history.transactions().iter().filter_map(|txn| txn.start_ts);
    let mut used: Vec<u64> = starts.chain(known.iter().copied().flatten()).collect();
    used.sort_unstable();
    let hypotheses = Hypotheses { history, known, issued: used };
    let first_readers = unknown.find_committed(&hypotheses, first);
    hypotheses.evaluate(&first_readers, &whole)
}

struct Hypotheses<'h> {
    history: &'h History,
    known: Vec<Option<u64>>,
    issued: Vec<u64>,
}

impl Hypotheses<'_> {
    /// Sweeps the history under the hypothesis that of the transactions of unknown outcome exactly
    /// those in `first_readers` have committed.
    fn evaluate(&self, first_readers: &FirstReaders, scope: &Scope) -> Resolved {
        let mut commits = self.known.clone();
        let inferred = infer_commit_ts(self.history, &commits, &self.issued, first_readers, scope);
        for (txn, inferred) in &inferred {
            commits[*txn as usize] = Some(inferred.commit_ts);
        }
        let sweep = sweep(self.history, &commits, scope);
        Resolved { commits, sweep, inferred }
    }
}

/// The transactions of unknown outcome, by the row and the value that a reader would see.
struct UnknownTxns {
    by_write: FxHashMap<(Key, Value), Vec<TxnIndex>>,
}

impl UnknownTxns {
    fn new(history: &History) -> Self {
        let mut by_write: FxHashMap<_, Vec<TxnIndex>> = FxHashMap::default();
        for (txn, transaction) in history.indexed() {
            if transaction.outcome != Outcome::Unknown || transaction.committed_at().is_some() {
                continue;
            }
            for key in locked_rows(history, txn) {
                let Some(value) = last_write(history, txn, key) else { continue };
                let writers = by_write.entry((key, value)).or_default();
                if writers.last() != Some(&txn) {
                    writers.push(txn);
                }
            }
        }
        Self { by_write }
    }

    fn explains_any(&self, history: &History, sweep: &Sweep) -> bool {
        let nothing = FirstReaders::default();
        sweep.mismatches.iter().any(|read| !self.candidates(history, read, &nothing).is_empty())
    }

    fn find_committed(&self, hypotheses: &Hypotheses, mut resolved: Resolved) -> FirstReaders {
        let history = hypotheses.history;
        let mut first_readers = FirstReaders::default();
        let writers = self.by_write.values().flatten();
        let scope = Scope::of(history, &writers.flat_map(|txn| locked_rows(history, *txn)).collect());
        loop {
            let mut unique = Vec::new();
            let mut deleted = Vec::new();
            let mut ambiguous = None;
            for read in &resolved.sweep.mismatches {
                let candidates = self.candidates(history, read, &first_readers);
                match candidates[..] {
                    [] => {}
                    [txn] if read.found != Value::NONE => unique.push((txn, read.txn)),
                    [txn] => deleted.push((txn, read.txn)),
                    _ => ambiguous = ambiguous.or(Some((candidates, read.txn))),
                }
            }
            let certain = if unique.is_empty() { deleted } else { unique };
            if !certain.is_empty() {
                // `certain` is in the order of the readers' snapshots, and a later insertion
                // replaces an earlier one. So it is reversed: the earliest reader stays.
                first_readers.extend(certain.into_iter().rev());
                resolved = hypotheses.evaluate(&first_readers, &scope);
            } else if let Some((candidates, reader)) = ambiguous {
                let tried = candidates.into_iter().map(|txn| {
                    let mut first_readers = first_readers.clone();
                    first_readers.insert(txn, reader);
                    (hypotheses.evaluate(&first_readers, &scope), first_readers)
                });
                let Some(best) = tried.min_by_key(|(resolved, _)| resolved.error_counts()) else {
                    return first_readers;
                };
                (resolved, first_readers) = best;
            } else {
                return first_readers;
            }
        }
    }

    /// The transactions of unknown outcome that would explain a read if they had committed.
    fn candidates(&self, history: &History, read: &Mismatch, first_readers: &FirstReaders) -> Vec<TxnIndex> {
        let Some(writers) = self.by_write.get(&(read.key, read.found)) else { return Vec::new() };
        let read_ts = |txn| history.transaction(txn).read_ts;
        // The commit timestamp of the expected value, or a lower bound: an inferred timestamp may
        // still become lower, but stays above its writer's snapshot.
        let overwritten = match read.writer {
            Writer::Other(txn) => {
                history.transaction(txn).committed_at().unwrap_or_else(|| read_ts(txn).saturating_add(1))
            }
            Writer::Initial | Writer::Own => 0,
        };
        let open = writers.iter().copied().filter(|&txn| {
            let newer = first_readers.get(&txn).is_none_or(|reader| read_ts(*reader) > read_ts(read.txn));
            // If only one transaction of unknown outcome wrote the value, it is a candidate
            // whatever the timestamps say. Otherwise, and always for a deletion, a candidate's
            // snapshot must be between the commit of the expected value and the snapshot of the
            // reader.
            let alone = read.found != Value::NONE && writers.len() == 1;
            let fits = overwritten <= read_ts(txn) && read_ts(txn) < read_ts(read.txn);
            txn != read.txn && newer && (alone || fits)
        });
        open.take(CANDIDATES_MAX).collect()
    }
}
