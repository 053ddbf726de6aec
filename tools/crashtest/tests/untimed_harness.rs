//! Histories of the simulation without their timestamps: no valid one is refused, and many that
//! show a known mistake are.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    missing_docs,
    clippy::pedantic,
    reason = "a test that cannot continue fails"
)]

mod support;

use percolite::mutants::{Mutant, enable_mutant};
use percolite_crashtest::checker::{CheckResult, quick_check};
use percolite_crashtest::history::{Line, Op, Outcome};
use percolite_crashtest::sim::{Mode, Scheduler, run};
use percolite_crashtest::untimed;

use crate::support::elle::{as_lists, as_registers};
use crate::support::seed;

/// How many histories of a mode are exported.
const EXPORTED: u64 = 100;
/// How many are run with each mistake.
const MISTAKEN: u64 = 40;

/// Mistakes that show in the values of most histories.
const MISTAKES: [(&str, Mode); 5] = [
    ("skip-conflict-check", Mode::Embedded),
    ("reads-latest", Mode::Embedded),
    ("reader-ignores-locks", Mode::Embedded),
    ("reader-ignores-locks", Mode::Shared),
    ("secondaries-first", Mode::Shared),
];

/// How many histories were judged, and refused.
#[derive(Debug, Default)]
struct Count {
    judged: usize,
    by_timestamps: usize,
    as_lists: usize,
    as_registers: usize,
    in_either_form: usize,
}

/// The history is no list if a deletion without a timestamp may be the last version of a row.
fn has_lists(lines: &[Line]) -> bool {
    let is_open = |line: &Line| match line {
        Line::Transaction(txn) => {
            let deletes = txn.ops.iter().any(|op| matches!(op, Op::Write(_, None)));
            txn.outcome == Outcome::Unknown && txn.commit_ts.is_none() && deletes
        }
        _ => false,
    };
    !lines.iter().any(is_open)
}

fn is_refused(text: &str) -> bool {
    let history = untimed::read(text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    quick_check(&history) == CheckResult::Violated
}

/// Judges some histories. A history that is right by its timestamps must be accepted without them.
fn count(mode: Mode, first: u64, histories: u64) -> Count {
    let mut count = Count::default();
    for seed in first..first + histories {
        let client_log = run(mode, seed, false).client_log;
        // A mistake may leave a commit without a timestamp.
        let Ok(history) = client_log.history() else { continue };
        let by_timestamps = quick_check(&history) == CheckResult::Violated;
        let lines: Vec<Line> = client_log.lines().collect();
        let registers = as_registers(&lines);
        let as_registers = is_refused(&registers);
        assert!(by_timestamps || !as_registers, "{mode:?}/{seed} is valid\n{registers}");
        count.judged += 1;
        count.by_timestamps += usize::from(by_timestamps);
        count.as_registers += usize::from(as_registers);
        let mut as_lists_refused = false;
        if has_lists(&lines) {
            let lists = as_lists(&lines);
            as_lists_refused = is_refused(&lists);
            assert!(by_timestamps || !as_lists_refused, "{mode:?}/{seed} is valid\n{lists}");
        }
        count.as_lists += usize::from(as_lists_refused);
        count.in_either_form += usize::from(as_lists_refused || as_registers);
    }
    count
}

/// One test: a mistake is switched on for the whole process.
#[test]
fn valid_histories_are_accepted_and_known_mistakes_refused() {
    Scheduler::install_hooks();
    let first = seed();
    for mode in [Mode::Embedded, Mode::Shared] {
        let exported = count(mode, first, EXPORTED);
        println!("{mode:?}: {exported:?}");
        assert!(exported.by_timestamps == 0 && exported.judged as u64 == EXPORTED, "{mode:?}: {exported:?}");
    }
    for (name, mode) in MISTAKES {
        enable_mutant(Mutant::from_name(name));
        let mistaken = count(mode, first, MISTAKEN);
        enable_mutant(None);
        println!("{name}, {mode:?}: {mistaken:?}");
        assert!(mistaken.by_timestamps > 5, "{name}, {mode:?}: {mistaken:?}");
        // Mostly more than half of them; a third leaves room for chance.
        assert!(3 * mistaken.in_either_form > mistaken.by_timestamps, "{name}, {mode:?}: {mistaken:?}");
    }
}
