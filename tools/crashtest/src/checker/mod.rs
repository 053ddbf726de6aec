//! A checker of snapshot isolation by timestamps.
//!
//! If a store reports the timestamps at which a transaction reads and commits, no search is needed:
//! sort them, and compare every read with the state that it must show ([`check`] is O(n log n)).
//! For transactions of unknown outcome the checker first infers whether and when they committed. A
//! mismatch is classified as an anomaly and reduced to a minimal set of transactions.
//!
//! | file | content |
//! |---|---|
//! | `sweep`, `frontier` | reads and conflicts, in the order of timestamps |
//! | `unknown`, `infer_commit_ts`, `scope` | unknown outcomes: which are commits, and when |
//! | `timestamp_order` | sessions, real time, reuse, a transaction's own timestamps |
//! | `reads`, `long_fork`, `writers` | the classification of a read |
//! | `minimise` | the minimal set |

mod anomaly;
mod finding;
mod frontier;
mod infer_commit_ts;
mod long_fork;
mod minimise;
mod reads;
mod report;
mod scope;
mod sweep;
mod timestamp_order;
mod unknown;
mod writers;

use crate::history::History;

pub use anomaly::Anomaly;
pub use report::{CheckResult, IsolationViolation, Report};

use finding::Finding;
use reads::Classifier;
use unknown::{Resolved, resolve_unknown};
use writers::Writers;

/// The maximum number of violations that are reported for each kind of check.
const MAX_REPORTED: usize = 10;

/// Whether a history is consistent, without the reasons.
pub fn quick_check(history: &History) -> CheckResult {
    CheckResult::of(history, find(history).all.is_empty())
}

/// Checks a history.
pub fn check(history: &History) -> Report {
    let found = find(history);
    let violations = found.all.into_iter().map(|finding| {
        let lines = minimise::minimise(history, &finding);
        let involved = finding.involved.iter().map(|txn| history.transaction(*txn).id).collect();
        IsolationViolation::new(finding.symptom, involved, lines)
    });
    Report::new(history, &found.writers, &found.resolved, violations.collect(), found.suppressed)
}

struct Findings {
    all: Vec<Finding>,
    suppressed: usize,
    writers: Writers,
    resolved: Resolved,
}

/// All findings, limited for each kind of check.
fn find(history: &History) -> Findings {
    let writers = Writers::new(history);
    let resolved = resolve_unknown(history);
    let Resolved { commits, sweep, inferred } = &resolved;
    let classifier = Classifier { history, commits, writers: &writers };

    let mut findings = Vec::new();
    let mut suppressed = 0;
    let mut add = |found: &mut dyn Iterator<Item = Finding>| {
        findings.extend(found.take(MAX_REPORTED));
        suppressed += found.count();
    };
    add(&mut timestamp_order::own_timestamps(history, commits));
    add(&mut timestamp_order::reuse(history, commits));
    add(&mut sweep
        .conflicts
        .iter()
        .take(MAX_REPORTED)
        .map(|conflict| timestamp_order::classify_conflict(history, conflict)));
    add(&mut sweep.bad_scan_rows.iter().take(MAX_REPORTED).map(|row| classifier.classify_scan_row(row)));
    add(&mut sweep.mismatches.iter().take(MAX_REPORTED).map(|read| classifier.classify(read)));
    add(&mut timestamp_order::sessions(history));
    add(&mut timestamp_order::real_time(history));
    for found in [sweep.conflicts.len(), sweep.bad_scan_rows.len(), sweep.mismatches.len()] {
        suppressed += found.saturating_sub(MAX_REPORTED);
    }

    for finding in &mut findings {
        // A transaction of unknown outcome counts as committed only because of its first reader,
        // and at a timestamp that other transactions bound. So all of these are involved.
        for at in 0..finding.involved.len() {
            if let Some(inferred) = inferred.get(&finding.involved[at]) {
                finding.involved.push(inferred.first_reader);
                finding.involved.extend(&inferred.constraints);
            }
        }
    }
    Findings { all: findings, suppressed, writers, resolved }
}
