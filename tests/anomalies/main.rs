//! A script for every named anomaly. Anomalies that snapshot isolation prevents must not appear.
//! Anomalies that it permits must appear, which proves that the suite can detect them.
//!
//! ```text
//!   tests/anomalies/prevented/   the anomaly must not be seen
//!   tests/anomalies/permitted/   it must be seen
//!   tests/anomalies/rules/       other rules that a transaction can rely on
//! ```
//!
//! Each script runs on every engine and protocol, and must print the output that is written in it.
//! To add a script, write it without output and run the command below. It writes the output of the
//! first engine into the script, and compares the other engines with that output. `runner.rs`
//! defines the commands of the scripts.
//!
//! ```text
//! UPDATE_GOLDENFILES=1 cargo test --release --test anomalies
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(
    clippy::pedantic,
    missing_docs,
    clippy::large_enum_variant,
    clippy::explicit_write,
    reason = "style of a library, not of its tests"
)]

mod runner;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex};

use percolite::CommitProtocol;

use crate::runner::Runner;
use crate::support::Home;

/// The engines that every script runs on. If `UPDATE_GOLDENFILES` is set, the output of the first
/// one is written into the scripts.
const SUBJECTS: &[Subject] = &[
    Subject { name: "sim, one phase", home: Home::embedded, protocol: CommitProtocol::Auto },
    Subject { name: "sim, two phases", home: Home::embedded, protocol: CommitProtocol::TwoPhase },
    Subject { name: "sim, row by row", home: Home::row_by_row, protocol: CommitProtocol::TwoPhase },
    Subject { name: "sim shared by clients", home: Home::shared, protocol: CommitProtocol::Auto },
    #[cfg(feature = "rocks")]
    Subject { name: "rocks, one phase", home: Home::rocks, protocol: CommitProtocol::Auto },
    #[cfg(feature = "rocks")]
    Subject { name: "rocks, two phases", home: Home::rocks, protocol: CommitProtocol::TwoPhase },
];

struct Subject {
    name: &'static str,
    home: fn() -> Home,
    protocol: CommitProtocol,
}

/// The scripts that `prevented` must have, most of them named as in the Hermitage test suite.
const PREVENTED: &[&str] = &[
    "g0_dirty_write",
    "g1a_aborted_read",
    "g1b_intermediate_read",
    "g1c_circular_information_flow",
    "g2_predicate_closed_by_a_guard_row",
    "g_single_read_skew",
    "g_single_read_skew_predicate",
    "g_single_read_skew_write_predicate",
    "long_fork",
    "otv_observed_transaction_vanishes",
    "p4_lost_update",
    "p4_lost_update_by_a_blind_write",
    "pmp_predicate_many_preceders",
    "pmp_predicate_many_preceders_write",
    "write_skew_closed_by_get_for_update",
    "write_skew_closed_by_one_side",
];
const PERMITTED: &[&str] = &["g2_item_write_skew", "g2_predicate_write_skew", "read_only_transaction"];

/// How often a script checked for the anomaly on an engine, and how often the anomaly appeared.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    checked: usize,
    seen: usize,
}

/// The checks of one script, and an error if the script did not print the expected output.
type Outcome = (Seen, Result<(), String>);
type Outcomes = BTreeMap<PathBuf, Outcome>;

static WRITTEN: LazyLock<Outcomes> = LazyLock::new(|| run_all(&SUBJECTS[0], true));
static TOTAL: Mutex<Vec<(usize, usize, usize)>> = Mutex::new(Vec::new());

#[test]
fn sim_in_one_phase() {
    check(0);
}

#[test]
fn sim_in_two_phases() {
    check(1);
}

#[test]
fn sim_row_by_row() {
    check(2);
}

#[test]
fn sim_shared_by_clients() {
    check(3);
}

#[cfg(feature = "rocks")]
#[test]
fn rocks_in_one_phase() {
    check(4);
}

#[cfg(feature = "rocks")]
#[test]
fn rocks_in_two_phases() {
    check(5);
}

#[test]
fn every_named_anomaly_has_a_script() {
    for (directory, names) in [("prevented", PREVENTED), ("permitted", PERMITTED)] {
        let found: Vec<String> = scripts(directory).iter().map(|path| name_of(path)).collect();
        assert_eq!(found, names, "the scripts in {directory}");
    }
    for path in ["prevented", "permitted", "rules"].into_iter().flat_map(scripts) {
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("# "), "{} does not begin with a comment", path.display());
    }
}

/// Runs every script on a subject and prints a summary. After the last subject, prints the total.
fn check(subject: usize) {
    // The first subject runs before any other: its run may rewrite the expected output in the
    // scripts, and the others are compared with that output.
    let written = &*WRITTEN;
    let subject = &SUBJECTS[subject];
    let others;
    let outcomes = if subject.name == SUBJECTS[0].name {
        written
    } else {
        others = run_all(subject, false);
        &others
    };

    let mut failures = Vec::new();
    let (mut prevented, mut broken, mut observed) = (0, 0, 0);
    for (path, (seen, matched)) in outcomes {
        let (prevents, permits) = (path.starts_with(directory("prevented")), path.starts_with(directory("permitted")));
        if let Err(error) = matched {
            failures.push(format!("{}: {error}", path.display()));
        }
        prevented += usize::from(prevents);
        broken += usize::from(prevents && seen.seen > 0);
        observed += usize::from(permits && seen.seen > 0 && seen.seen == seen.checked);
        if prevents && (seen.seen > 0 || seen.checked == 0) {
            failures.push(format!("{}: must be prevented, but was {seen:?}", path.display()));
        }
        if permits && (seen.checked == 0 || seen.seen < seen.checked) {
            failures.push(format!("{}: must be observed, but was {seen:?}", path.display()));
        }
    }
    say(&format!(
        "{:22} anomalies prevented: {broken} seen of {prevented} / permitted and observed: {observed}",
        subject.name
    ));
    let mut total = TOTAL.lock().unwrap();
    total.push((broken, prevented, observed));
    if total.len() == SUBJECTS.len() {
        let sum = |number: fn(&(usize, usize, usize)) -> usize| total.iter().map(number).sum::<usize>();
        let (broken, prevented, observed) = (sum(|t| t.0), sum(|t| t.1), sum(|t| t.2));
        say(&format!("anomalies prevented: {broken} seen of {prevented} / permitted and observed: {observed}"));
    }
    drop(total);
    assert!(failures.is_empty(), "{}:\n{}", subject.name, failures.join("\n"));
}

fn run_all(subject: &Subject, write: bool) -> Outcomes {
    let all = ["prevented", "permitted", "rules"].into_iter().flat_map(scripts);
    all.map(|path| {
        let outcome = run(subject, &path, write);
        (path, outcome)
    })
    .collect()
}

fn run(subject: &Subject, path: &Path, write: bool) -> Outcome {
    let mut runner = Runner::new((subject.home)(), subject.protocol);
    let ran = catch_unwind(AssertUnwindSafe(|| {
        if write {
            return goldenscript::run(&mut runner, path).map_err(|error| error.to_string());
        }
        let expected = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        let output = goldenscript::generate(&mut runner, &expected).map_err(|error| error.to_string())?;
        compare(&expected, &output)
    }));
    let matched = ran.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.unwrap_or_else(|| "the output differs from the script".into()))
    });
    (Seen { checked: runner.checked, seen: runner.seen }, matched)
}

fn compare(expected: &str, output: &str) -> Result<(), String> {
    let mut lines = expected.lines().zip(output.lines()).zip(1..);
    match lines.find(|((expected, output), _)| expected != output) {
        Some(((expected, output), line)) => Err(format!("line {line} is\n  {output}\ninstead of\n  {expected}")),
        None if expected.lines().count() != output.lines().count() => Err("the output has another length".into()),
        None => Ok(()),
    }
}

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/anomalies").join(name)
}

fn scripts(name: &str) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(directory(name)).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// Prints a line that the test harness does not capture.
fn say(line: &str) {
    writeln!(std::io::stdout(), "{line}").unwrap();
}
