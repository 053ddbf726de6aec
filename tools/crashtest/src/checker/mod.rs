//! Snapshot isolation, judged by timestamps.
//!
//! A store that says at which timestamp a transaction read and committed leaves nothing to search for: sort, and see whether
//! every read shows what it must ([`check`] is O(n log n)). What is not told, whether and when a transaction of unknown
//! outcome committed, is inferred first. What does not fit gets a name, and then a smallest set of transactions that shows it.
//!
//! | file | what |
//! |---|---|
//! | `sweep`, `frontier` | reads and conflicts, in the order of timestamps |
//! | `unknown`, `place`, `scope` | which unknown outcomes were commits, and when |
//! | `order` | sessions, real time, reuse, a transaction's own timestamps |
//! | `reads`, `fork`, `writers` | the name of what a read shows |
//! | `minimise` | the smallest set |

mod anomaly;
mod finding;
mod fork;
mod frontier;
mod minimise;
mod order;
mod place;
mod reads;
mod report;
mod scope;
mod sweep;
mod unknown;
mod writers;

use crate::history::History;

pub use anomaly::Anomaly;
pub use report::{Report, Verdict, Violation};

use finding::Finding;
use reads::Context;
use unknown::{Decided, decide};
use writers::Writers;

/// How many violations of each kind of check are told: more than somebody looks at.
const TOLD_MAX: usize = 10;

/// Says in a word whether a history is consistent: for those who ask often, and want the reasons only if it is not.
pub fn verdict(history: &History) -> Verdict {
    Verdict::of(history, find(history).findings.is_empty())
}

/// Checks a history.
pub fn check(history: &History) -> Report {
    let found = find(history);
    let violations = found.findings.into_iter().map(|finding| {
        let lines = minimise::minimise(history, &finding);
        let involved = finding.involved.iter().map(|txn| history.transaction(*txn).id).collect();
        Violation::new(finding.sight, involved, lines)
    });
    Report::new(history, &found.writers, &found.decided, violations.collect(), found.untold)
}

struct Found {
    findings: Vec<Finding>,
    untold: usize,
    writers: Writers,
    decided: Decided,
}

/// All that is wrong, of each kind the first few.
fn find(history: &History) -> Found {
    let writers = Writers::new(history);
    let decided = decide(history);
    let Decided { commits, sweep, inferred } = &decided;
    let context = Context { history, commits, writers: &writers };

    let mut findings = Vec::new();
    let mut untold = 0;
    let mut tell = |found: &mut dyn Iterator<Item = Finding>| {
        findings.extend(found.take(TOLD_MAX));
        untold += found.count();
    };
    tell(&mut order::own_timestamps(history, commits));
    tell(&mut order::reuse(history, commits));
    tell(&mut sweep.overlaps.iter().take(TOLD_MAX).map(|overlap| order::conflict(history, overlap)));
    tell(&mut sweep.misplaced.iter().take(TOLD_MAX).map(|row| context.name_misplaced(row)));
    tell(&mut sweep.mismatches.iter().take(TOLD_MAX).map(|read| context.name(read)));
    tell(&mut order::sessions(history));
    tell(&mut order::real_time(history));
    for found in [sweep.overlaps.len(), sweep.misplaced.len(), sweep.mismatches.len()] {
        untold += found.saturating_sub(TOLD_MAX);
    }

    for finding in &mut findings {
        // Alone, a transaction of unknown outcome never happened: those who saw it belong to it.
        for at in 0..finding.involved.len() {
            if let Some(place) = inferred.get(&finding.involved[at]) {
                finding.involved.push(place.seen_by);
                finding.involved.extend(&place.bounded_by);
            }
        }
    }
    Found { findings, untold, writers, decided }
}
