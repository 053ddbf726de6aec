//! A minimal set of transactions that shows a violation.
//!
//! The finding names the transactions that may be needed: the reader, the writers of the expected
//! and of the found value, and for an inferred commit the transactions from which it was inferred.
//! These transactions, with only their operations on the rows in question, form a smaller history,
//! which is checked again. If the smaller history does not show the violation, a larger set is
//! tried. Then transactions and initial rows are removed one by one while the violation stays.

use crate::history::{History, InternedOp, Key, Line, TxnIndex};

use super::find;
use super::finding::{Finding, Symptom};

/// A larger set of transactions is not minimised, because each step checks the rest of the set
/// again.
const MINIMISED_MAX: usize = 200;

type Candidates = (Vec<TxnIndex>, Vec<Key>);

/// The lines of a minimal history that shows the finding; empty if no small one does.
pub fn minimise(history: &History, finding: &Finding) -> Vec<Line> {
    let attempts: [fn(&History, &Finding) -> Candidates; 3] = [named_set, row_set, all_txns];
    for attempt in attempts {
        let (txns, keys) = attempt(history, finding);
        let initial_rows = history.initial().iter().map(|(key, _)| *key).filter(|key| keys.contains(key)).collect();
        let mut part = Part { txns, keys, initial_rows };
        let shows = |part: &Part| shows(&excerpt(history, part), &finding.symptom);
        if part.txns.len() > MINIMISED_MAX || !shows(&part) {
            continue;
        }
        // One removal can make another possible, so repeat until nothing can be removed.
        while reduce(&mut part, |part| &mut part.txns, shows) | reduce(&mut part, |part| &mut part.initial_rows, shows)
        {
        }
        return excerpt(history, &part);
    }
    Vec::new()
}

/// The part of a history that is kept.
struct Part {
    txns: Vec<TxnIndex>,
    /// The rows whose operations are kept.
    keys: Vec<Key>,
    /// The kept initial rows.
    initial_rows: Vec<Key>,
}

/// Removes the elements of a list that are not needed; returns whether any was removed.
fn reduce<T>(part: &mut Part, list: impl Fn(&mut Part) -> &mut Vec<T>, shows: impl Fn(&Part) -> bool) -> bool {
    let mut fewer = false;
    for at in (0..list(part).len()).rev() {
        let left_out = list(part).remove(at);
        if shows(part) {
            fewer = true;
        } else {
            list(part).insert(at, left_out);
        }
    }
    fewer
}

/// The transactions that the finding names.
fn named_set(_: &History, finding: &Finding) -> Candidates {
    let mut txns = finding.involved.clone();
    txns.sort_unstable();
    txns.dedup();
    (txns, finding.keys.clone())
}

/// All transactions with operations on the finding's rows.
fn row_set(history: &History, finding: &Finding) -> Candidates {
    let keys = &finding.keys;
    let touches = |op: &InternedOp| match op {
        InternedOp::Read(key, _) | InternedOp::ReadForUpdate(key, _) | InternedOp::Write(key, _) => keys.contains(key),
        InternedOp::Scan(scan) => keys.iter().any(|key| history.scan(*scan).contains(history.key(*key))),
    };
    let txns = history.indexed().map(|(txn, _)| txn).filter(|txn| history.ops(*txn).iter().any(touches));
    (txns.collect(), keys.clone())
}

/// All transactions with all operations.
fn all_txns(history: &History, _: &Finding) -> Candidates {
    (history.indexed().map(|(txn, _)| txn).collect(), history.keys().collect())
}

fn excerpt(history: &History, Part { txns, keys, initial_rows }: &Part) -> Vec<Line> {
    let initial = history.initial().iter().filter(|(key, _)| initial_rows.contains(key));
    let initial =
        initial.filter_map(|(key, value)| Some((history.key(*key).to_owned(), history.value(*value)?.to_owned())));
    let initial: Vec<_> = initial.collect();
    let initial = (!initial.is_empty()).then_some(Line::Initial(initial));
    initial.into_iter().chain(txns.iter().map(|txn| Line::Transaction(history.excerpt(*txn, keys)))).collect()
}

fn shows(lines: &[Line], symptom: &Symptom) -> bool {
    let mut history = History::default();
    // A part of a history is always a valid history.
    lines.iter().all(|line| history.push(line).is_ok())
        && find(&history).all.iter().any(|found| found.symptom.is_same(symptom))
}
