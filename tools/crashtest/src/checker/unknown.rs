//! Transactions of which nobody knows whether they committed, nor when.
//!
//! A client that is killed while it commits leaves such a transaction. It may count as aborted, unless somebody read what
//! only it wrote. So: sweep without it; a read that does not fit and shows its value is *evidence*; give it a commit timestamp
//! and sweep again, until no read is left that such a transaction would explain.
//!
//! The timestamp need not be searched for. It lies above everything that the transaction itself read and above every snapshot
//! that shows one of its rows without its value; it lies at or below every snapshot that is evidence, and at or below the
//! snapshot of whoever claims one of its rows next, or the two would conflict. Any unused timestamp in between will do, and
//! taking the lowest one, in the order of upper bounds, leaves room for all if there is room for all. Where bounds contradict
//! each other the evidence wins, and the sweep finds what is wrong with the rest.
//!
//! Deletions are the hard part: no row looks the same whoever deleted it. They are considered after everything
//! that is unique, and where several transactions may have deleted a row each is tried.

use rustc_hash::FxHashMap;

use crate::history::{History, Key, Outcome, TxnIndex, Value};

use super::place::{Evidence, Place, place};
use super::sweep::{Mismatch, Sweep, sweep};
use super::writers::{claims, last_write};

/// How many transactions that may have deleted a row are tried.
const TRIED_MAX: usize = 8;

/// The history with its unknown outcomes decided.
pub struct Decided {
    /// When each transaction took effect, if it did.
    pub commits: Vec<Option<u64>>,
    /// What does not fit.
    pub sweep: Sweep,
    /// Transactions that were decided to have committed, with those who are the reason for when.
    pub inferred: FxHashMap<TxnIndex, Place>,
}

/// Decides which transactions committed, and sweeps.
pub fn decide(history: &History) -> Decided {
    let undecided = Undecided::new(history);
    let mut evidence = Evidence::default();
    let mut decided = attempt(history, &evidence);
    loop {
        let mut unique = Vec::new();
        let mut deleted = Vec::new();
        let mut ambiguous = None;
        for read in &decided.sweep.mismatches {
            let candidates = undecided.candidates(history, read, &evidence);
            match candidates[..] {
                [] => {}
                [txn] if read.found != Value::NONE => unique.push((txn, read.txn)),
                [txn] => deleted.push((txn, read.txn)),
                _ => ambiguous = ambiguous.or(Some((candidates, read.txn))),
            }
        }
        let certain = if unique.is_empty() { deleted } else { unique };
        if !certain.is_empty() {
            // The sweep goes by read_ts: the first is the earliest.
            for (txn, reader) in certain {
                evidence.entry(txn).or_insert(reader);
            }
            decided = attempt(history, &evidence);
        } else if let Some((candidates, reader)) = ambiguous {
            let tried = candidates.into_iter().map(|txn| {
                let mut evidence = evidence.clone();
                evidence.insert(txn, reader);
                (attempt(history, &evidence), evidence)
            });
            let trouble = |sweep: &Sweep| sweep.mismatches.len() + sweep.overlaps.len();
            let Some(best) = tried.min_by_key(|(decided, _)| trouble(&decided.sweep)) else { return decided };
            (decided, evidence) = best;
        } else {
            return decided;
        }
    }
}

fn attempt(history: &History, evidence: &Evidence) -> Decided {
    let mut commits: Vec<_> = history.transactions().iter().map(crate::history::InternedTransaction::committed_at).collect();
    let inferred = place(history, &commits, evidence);
    for (txn, place) in &inferred {
        commits[*txn as usize] = Some(place.commit_ts);
    }
    let sweep = sweep(history, &commits);
    Decided { commits, sweep, inferred }
}

/// The transactions that may or may not have committed, by what others would see of them.
struct Undecided {
    by_write: FxHashMap<(Key, Value), Vec<TxnIndex>>,
}

impl Undecided {
    fn new(history: &History) -> Self {
        let mut by_write: FxHashMap<_, Vec<TxnIndex>> = FxHashMap::default();
        for (txn, transaction) in history.indexed() {
            if transaction.outcome != Outcome::Unknown || transaction.committed_at().is_some() {
                continue;
            }
            for key in claims(history, txn) {
                let Some(value) = last_write(history, txn, key) else { continue };
                let writers = by_write.entry((key, value)).or_default();
                if writers.last() != Some(&txn) {
                    writers.push(txn);
                }
            }
        }
        Self { by_write }
    }

    /// Those that would explain a read.
    fn candidates(&self, history: &History, read: &Mismatch, evidence: &Evidence) -> Vec<TxnIndex> {
        let Some(writers) = self.by_write.get(&(read.key, read.found)) else { return Vec::new() };
        let read_ts = history.transaction(read.txn).read_ts;
        // A value that is its alone is its, however impossible that is; a deletion has to be possible.
        let possible = |txn: TxnIndex| writers.len() == 1 && read.found != Value::NONE || history.transaction(txn).read_ts < read_ts;
        let open = writers.iter().copied().filter(|txn| *txn != read.txn && !evidence.contains_key(txn) && possible(*txn));
        open.take(TRIED_MAX).collect()
    }
}
