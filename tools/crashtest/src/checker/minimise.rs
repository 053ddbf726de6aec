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

/// The lines of a smallest history that shows the finding; none if no small one does.
pub fn minimise(history: &History, finding: &Finding) -> Vec<Line> {
    for (mut txns, keys) in suspects(history, finding) {
        if txns.len() > REDUCED_MAX || !shows(&excerpt(history, &txns, &keys), &finding.sight) {
            continue;
        }
        let mut at = txns.len();
        while at > 0 {
            at -= 1;
            let left_out = txns.remove(at);
            if !shows(&excerpt(history, &txns, &keys), &finding.sight) {
                txns.insert(at, left_out);
            }
        }
        return excerpt(history, &txns, &keys);
    }
    Vec::new()
}

/// Sets of transactions and rows, from the likeliest to the last resort.
fn suspects<'h>(history: &'h History, finding: &'h Finding) -> impl Iterator<Item = (Vec<TxnIndex>, Vec<Key>)> + 'h {
    let mut involved = finding.involved.clone();
    involved.sort_unstable();
    involved.dedup();
    let everybody = || history.indexed().map(|(txn, _)| txn);
    let touches = |txn| {
        history.ops(txn).iter().any(|op| match op {
            InternedOp::Read(key, _) | InternedOp::ReadForUpdate(key, _) | InternedOp::Write(key, _) => {
                finding.keys.contains(key)
            }
            InternedOp::Scan(scan) => finding.keys.iter().any(|key| history.scan(*scan).contains(history.key(*key))),
        })
    };
    let sets: [Box<dyn Fn() -> (Vec<TxnIndex>, Vec<Key>)>; 3] = [
        Box::new(move || (involved.clone(), finding.keys.clone())),
        Box::new(move || (everybody().filter(|txn| touches(*txn)).collect(), finding.keys.clone())),
        Box::new(move || (everybody().collect(), history.keys().collect())),
    ];
    sets.into_iter().map(|set| set())
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
