//! A smallest set of transactions that shows a violation by itself.
//!
//! Who may be needed is known from how the violation was found: the reader, the writer of what it should have read, the
//! writer of what it did read; for a transaction of unknown outcome, those who saw it. These transactions, with only
//! the steps on the rows in question, are a history, and the checker is asked whether it still shows the same. If not, a larger
//! set is tried. Then one transaction after the other is left out for as long as the violation stays.

use crate::history::{History, InternedOp, Key, Line, TxnIndex};

use super::find;
use super::finding::{Finding, Sight};

/// The largest set that is reduced one by one: each step checks the rest anew.
const REDUCED_MAX: usize = 200;

type Suspects = (Vec<TxnIndex>, Vec<Key>);

/// The lines of a smallest history that shows the finding; none if no small one does.
pub fn minimise(history: &History, finding: &Finding) -> Vec<Line> {
    let attempts: [fn(&History, &Finding) -> Suspects; 3] = [involved, concerned, everybody];
    for attempt in attempts {
        let (mut txns, keys) = attempt(history, finding);
        if txns.len() > REDUCED_MAX || !shows(&excerpt(history, &txns, &keys), &finding.sight) {
            continue;
        }
        // Who cannot be left out at first may be when others are gone, so until nobody can.
        let mut fewer = true;
        while std::mem::take(&mut fewer) {
            for at in (0..txns.len()).rev() {
                let left_out = txns.remove(at);
                if shows(&excerpt(history, &txns, &keys), &finding.sight) {
                    fewer = true;
                } else {
                    txns.insert(at, left_out);
                }
            }
        }
        return excerpt(history, &txns, &keys);
    }
    Vec::new()
}

/// Those that the finding names.
fn involved(_: &History, finding: &Finding) -> Suspects {
    let mut txns = finding.involved.clone();
    txns.sort_unstable();
    txns.dedup();
    (txns, finding.keys.clone())
}

/// All that have to do with the finding's rows.
fn concerned(history: &History, finding: &Finding) -> Suspects {
    let keys = &finding.keys;
    let touches = |op: &InternedOp| match op {
        InternedOp::Read(key, _) | InternedOp::ReadForUpdate(key, _) | InternedOp::Write(key, _) => keys.contains(key),
        InternedOp::Scan(scan) => keys.iter().any(|key| history.scan(*scan).contains(history.key(*key))),
    };
    let txns = history.indexed().map(|(txn, _)| txn).filter(|txn| history.ops(*txn).iter().any(touches));
    (txns.collect(), keys.clone())
}

/// All, with everything that they did.
fn everybody(history: &History, _: &Finding) -> Suspects {
    (history.indexed().map(|(txn, _)| txn).collect(), history.keys().collect())
}

fn excerpt(history: &History, txns: &[TxnIndex], keys: &[Key]) -> Vec<Line> {
    let initial = history.initial().iter().filter(|(key, _)| keys.contains(key));
    let initial =
        initial.filter_map(|(key, value)| Some((history.key(*key).to_owned(), history.value(*value)?.to_owned())));
    let initial: Vec<_> = initial.collect();
    let initial = (!initial.is_empty()).then_some(Line::Initial(initial));
    initial.into_iter().chain(txns.iter().map(|txn| Line::Transaction(history.excerpt(*txn, keys)))).collect()
}

fn shows(lines: &[Line], sight: &Sight) -> bool {
    let mut history = History::default();
    // A part of a history is a history: nothing is refused.
    lines.iter().all(|line| history.push(line).is_ok())
        && find(&history).findings.iter().any(|found| found.sight == *sight)
}
