//! Valid histories with one change: the checker detects each change and names the right anomaly.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot continue fails")]
#![allow(clippy::pedantic, missing_docs, reason = "style of libraries, not of tests")]

mod lines;
#[path = "../support/mod.rs"]
mod support;
mod times;
mod values;

use std::collections::BTreeMap;

use percolite_crashtest::checker::Anomaly::{self, *};
use percolite_crashtest::history::Line;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

use crate::support::naive::is_valid;
use crate::support::store::{Shape, history};
use crate::support::{report, seed, text};
use crate::times::*;
use crate::values::*;

/// Changes a history. `None` if the history has no place for the change.
type Mutation = fn(&mut [Line], &mut StdRng) -> Option<()>;

/// Each mutation, and the anomalies that the checker may report for it.
const MUTATIONS: &[(&str, Mutation, &[Anomaly])] = &[
    (
        "a read shows an older value",
        older,
        &[StaleRead, LongFork, LostAcknowledgedWrite, FracturedRead, NonRepeatableRead],
    ),
    ("a read shows a later value", later, &[FutureRead, LongFork, FracturedRead, NonRepeatableRead]),
    ("a read shows an aborted value", aborted, &[AbortedRead]),
    ("a read shows an intermediate value", intermediate, &[IntermediateRead]),
    ("a read shows a value that was never written", garbage, &[GarbageRead]),
    ("a read does not show its own write", own_write, &[LostOwnWrite]),
    ("a second read shows something else", second_read, &[NonRepeatableRead]),
    ("a scan misses a row", missed, &[Phantom, LostOwnWrite, LostAcknowledgedWrite, FracturedRead, NonRepeatableRead]),
    (
        "a scan shows a deleted row",
        deleted_row,
        &[
            Phantom,
            FracturedRead,
            NonRepeatableRead,
            LostAcknowledgedWrite,
            FutureRead,
            LongFork,
            LostOwnWrite,
            IntermediateRead,
            AbortedRead,
        ],
    ),
    ("a scan shows a row twice", twice, &[MalformedScan]),
    ("a scan shows a row outside of its range", outside, &[MalformedScan]),
    ("a commit is dropped", dropped, &[AbortedRead]),
    ("a write is dropped", write_dropped, &[GarbageRead, NonRepeatableRead]),
    ("two commits overlap", overlap, &[LostUpdate, WriteConflict]),
    ("a commit_ts is used twice", same_commit, &[TimestampReuse]),
    ("a start_ts is used twice", same_start, &[TimestampReuse]),
    ("a start_ts is another's commit_ts", start_is_commit, &[TimestampReuse]),
    ("a commit_ts is not above its read_ts", commit_too_low, &[TimestampOrder]),
    ("a start_ts is below its read_ts", start_too_low, &[TimestampOrder]),
    ("a start_ts is above its commit_ts", start_too_high, &[TimestampOrder]),
    ("a session goes back", session_goes_back, &[SessionOrder]),
    ("a session does not see its commit", session_misses_commit, &[SessionOrder]),
    ("a snapshot is older than what was acknowledged", real_time, &[RealTimeOrder]),
];

#[test]
fn every_mutation_is_detected_and_named() {
    let seed = seed();
    for (what, mutate, names) in MUTATIONS {
        let (mut made, mut harmless) = (0, 0);
        let mut called: BTreeMap<&str, usize> = BTreeMap::new();
        for number in 0..2000 {
            let mut rng = StdRng::seed_from_u64(seed + number);
            let shape = Shape { unknown: 0.0, crashes: 0.0, start_timestamps: true, ..Shape::random(&mut rng) };
            let mut lines = history(seed + number, &shape);
            let before = text(&lines);
            if mutate(&mut lines, &mut rng).is_none() {
                continue;
            }
            made += 1;
            let report = report(&lines);
            if is_valid(&lines) {
                harmless += 1;
                continue;
            }
            let named = report.violations.iter().find(|violation| names.contains(&violation.anomaly));
            let Some(named) = named else { panic!("{what}: {number}\n{before}\nbecame\n{}\n{report}", text(&lines)) };
            *called.entry(named.anomaly.name()).or_default() += 1;
        }
        println!("{what}: {made} made, {harmless} harmless, {called:?}");
        assert!(made - harmless >= 100, "{what}: too few trials");
    }
}

/// A few transactions are enough to show each violation, and none of them can be omitted.
#[test]
fn every_set_is_small_and_sufficient() {
    let seed = seed();
    let mut sizes: BTreeMap<usize, usize> = BTreeMap::new();
    for number in 0..6000 {
        let mut rng = StdRng::seed_from_u64(seed + number);
        let (what, mutate, _) = MUTATIONS.choose(&mut rng).unwrap();
        let shape = Shape { start_timestamps: true, ..Shape::random(&mut rng) };
        let mut lines = history(seed + number, &shape);
        if mutate(&mut lines, &mut rng).is_none() {
            continue;
        }
        let whole = report(&lines);
        for violation in &whole.violations {
            let shown = |lines: &[Line]| {
                let identity = |v: &percolite_crashtest::checker::IsolationViolation| {
                    let is_read_anomaly =
                        matches!(v.anomaly, Anomaly::AbortedRead | Anomaly::IntermediateRead | Anomaly::GarbageRead);
                    let expected = (!is_read_anomaly).then(|| v.expected.clone());
                    (v.anomaly, v.transaction, v.key.clone(), expected, v.found.clone())
                };
                report(lines).violations.iter().any(|found| identity(found) == identity(violation))
            };
            let text = || format!("{what}: {number}\n{}\n{violation}", text(&lines));
            assert!(!violation.history.is_empty() && shown(&violation.history), "{}", text());
            for fewer in without_one(&violation.history) {
                assert!(!shown(&fewer), "{}", text());
            }
            *sizes.entry(violation.transactions.len()).or_default() += 1;
        }
    }
    println!("sets by number of transactions: {sizes:?}");
    assert!(sizes.values().sum::<usize>() > 3000);
    let few: usize = sizes.range(..=3).map(|(_, count)| count).sum();
    assert!(few * 100 > sizes.values().sum::<usize>() * 95, "sets are not small: {sizes:?}");
}

/// All variants of these lines that lack one transaction or one initial row.
fn without_one(lines: &[Line]) -> Vec<Vec<Line>> {
    let mut parts = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let mut without = |instead: Option<Line>| {
            let mut part = lines.to_vec();
            part.splice(at..=at, instead);
            parts.push(part);
        };
        match line {
            Line::Transaction(_) => without(None),
            Line::Crash => {}
            Line::Initial(rows) => {
                for row in 0..rows.len() {
                    let mut fewer = rows.clone();
                    fewer.remove(row);
                    without(Some(Line::Initial(fewer)));
                }
            }
        }
    }
    parts
}
