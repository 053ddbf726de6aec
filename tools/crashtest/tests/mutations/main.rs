//! Valid histories with one thing changed: each change is noticed, and called what it is.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::pedantic, missing_docs, reason = "style of a library, not of its tests")]

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

/// Changes a history, unless it has no place for the change. Says in which transaction the change must show, if it is known.
type Mutation = fn(&mut [Line], &mut StdRng) -> Option<()>;

/// Each change, and what it may be called.
const MUTATIONS: &[(&str, Mutation, &[Anomaly])] = &[
    (
        "a read shows an older value",
        older,
        &[StaleRead, LongFork, LostAcknowledgedWrite, FracturedRead, NonRepeatableRead],
    ),
    ("a read shows a later value", later, &[FutureRead, LongFork, FracturedRead, NonRepeatableRead]),
    ("a read shows an aborted value", aborted, &[AbortedRead]),
    ("a read shows an intermediate value", intermediate, &[IntermediateRead]),
    ("a read shows what nobody wrote", garbage, &[GarbageRead]),
    ("a read does not show its own write", own, &[LostOwnWrite]),
    ("a second read shows something else", again, &[NonRepeatableRead]),
    ("a scan misses a row", missed, &[Phantom, LostOwnWrite, LostAcknowledgedWrite, FracturedRead, NonRepeatableRead]),
    (
        "a scan shows a deleted row",
        undead,
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
    ("a session goes back", session_back, &[SessionOrder]),
    ("a session does not see its commit", session_forgets, &[SessionOrder]),
    ("a snapshot is older than what was acknowledged", real_time, &[RealTimeOrder]),
];

#[test]
fn every_change_is_noticed_and_named() {
    let seed = seed();
    for (what, enable_mutant, names) in MUTATIONS {
        let (mut made, mut harmless) = (0, 0);
        let mut called: BTreeMap<&str, usize> = BTreeMap::new();
        for number in 0..2000 {
            let mut rng = StdRng::seed_from_u64(seed + number);
            let shape = Shape { unknown: 0.0, crashes: 0.0, start_timestamps: true, ..Shape::random(&mut rng) };
            let mut lines = history(seed + number, &shape);
            let before = text(&lines);
            if enable_mutant(&mut lines, &mut rng).is_none() {
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
        assert!(made - harmless >= 100, "{what} was hardly tried");
    }
}

/// Whatever is found, a few transactions show it by themselves, and not one of them can be left out.
#[test]
fn every_set_is_small_and_shows_the_violation_alone() {
    let seed = seed();
    let mut sizes: BTreeMap<usize, usize> = BTreeMap::new();
    for number in 0..6000 {
        let mut rng = StdRng::seed_from_u64(seed + number);
        let (what, enable_mutant, _) = MUTATIONS.choose(&mut rng).unwrap();
        let shape = Shape { start_timestamps: true, ..Shape::random(&mut rng) };
        let mut lines = history(seed + number, &shape);
        if enable_mutant(&mut lines, &mut rng).is_none() {
            continue;
        }
        let whole = report(&lines);
        for violation in &whole.violations {
            let shown = |lines: &[Line]| {
                let sight = |v: &percolite_crashtest::checker::IsolationViolation| {
                    let anyway =
                        matches!(v.anomaly, Anomaly::AbortedRead | Anomaly::IntermediateRead | Anomaly::GarbageRead);
                    let expected = (!anyway).then(|| v.expected.clone());
                    (v.anomaly, v.transaction, v.key.clone(), expected, v.found.clone())
                };
                report(lines).violations.iter().any(|found| sight(found) == sight(violation))
            };
            let text = || format!("{what}: {number}\n{}\n{violation}", text(&lines));
            assert!(!violation.history.is_empty() && shown(&violation.history), "{}", text());
            for fewer in without_one(&violation.history) {
                assert!(!shown(&fewer), "{}", text());
            }
            *sizes.entry(violation.transactions.len()).or_default() += 1;
        }
    }
    println!("transactions in a set, sets: {sizes:?}");
    assert!(sizes.values().sum::<usize>() > 3000);
    let few: usize = sizes.range(..=3).map(|(_, count)| count).sum();
    assert!(few * 100 > sizes.values().sum::<usize>() * 95, "sets are not small: {sizes:?}");
}

/// The lines without one of the transactions, or without one of the initial rows.
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
