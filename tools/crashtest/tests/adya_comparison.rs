//! Compares with `adya`, an independent checker that works on values without timestamps.
//!
//! `adya` detects less: in every history in which it finds an anomaly, the checker must find one,
//! too.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    missing_docs,
    clippy::pedantic,
    reason = "a test that cannot continue fails"
)]

mod support;

use std::collections::BTreeMap;

use adya::{Opts, Valid, Workload};
use percolite_crashtest::checker::{CheckResult, quick_check};
use percolite_crashtest::history::{Line, Op, Outcome, Transaction};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use crate::support::store::{Bug, Shape, history};
use crate::support::{interned, report, seed, text};

/// A value in adya's form: a number, or a list of numbers.
fn number(text: &str) -> Value {
    json!(text.parse::<u64>().unwrap())
}

fn list(text: Option<&str>) -> Value {
    text.map_or(json!([]), |text| text.split(',').map(number).collect())
}

/// A transaction's operations in adya's form. The write of a list becomes an append of its last
/// element.
fn steps(txn: &Transaction, lists: bool) -> Value {
    let steps = txn.ops.iter().map(|op| match op {
        Op::Read(key, value) | Op::ReadForUpdate(key, value) if lists => json!(["r", key, list(value.as_deref())]),
        Op::Read(key, value) | Op::ReadForUpdate(key, value) => json!(["r", key, value.as_deref().map(number)]),
        Op::Write(key, value) if lists => {
            json!(["append", key, number(value.as_ref().unwrap().rsplit(',').next().unwrap())])
        }
        Op::Write(key, value) => json!(["w", key, number(value.as_ref().unwrap())]),
        Op::Scan { .. } => unreachable!("adya has no scans"),
    });
    steps.collect()
}

/// The history in adya's form: the begin and the end of each transaction, by time.
fn to_adya(lines: &[Line], lists: bool) -> adya::History {
    let mut events = Vec::new();
    for line in lines {
        let Line::Transaction(txn) = line else { continue };
        let kind = match txn.outcome {
            Outcome::Committed => "ok",
            Outcome::Aborted => "fail",
            Outcome::Unknown => "info",
        };
        let value = steps(txn, lists);
        let (began, ended) = (txn.began.unwrap(), txn.ended.unwrap());
        // At each time one client takes one step, so a begin and an end never have the same time.
        events.push(((began, 1), json!({"type": "invoke", "process": txn.session, "value": value})));
        events.push(((ended, 0), json!({"type": kind, "process": txn.session, "value": value})));
    }
    events.sort_by_key(|(at, _)| *at);
    let text: String = events.into_iter().map(|(_, event)| format!("{event}\n")).collect();
    adya::History::from_json(&text).unwrap()
}

fn adya_report(lines: &[Line], lists: bool) -> adya::Report {
    let workload = if lists { Workload::ListAppend } else { Workload::RwRegister };
    let opts = Opts { models: vec!["snapshot-isolation".into()], ..Opts::default() };
    adya::check(&to_adya(lines, lists), workload, &opts)
}

fn compare(lists: bool) {
    let seed = seed();
    for bug in [None].into_iter().chain(Bug::ALL.into_iter().map(Some)) {
        let mut counts: BTreeMap<(bool, bool), usize> = BTreeMap::new();
        for number in 0..300 {
            let mut rng = StdRng::seed_from_u64(seed + number);
            // Without what adya does not support: scans, deletions, unknown outcomes and initial
            // rows.
            let shape = Shape {
                lists,
                scans: 0.0,
                deletions: 0.0,
                unknown: 0.0,
                crashes: 0.0,
                initial: false,
                bug,
                ..Shape::random(&mut rng)
            };
            let lines = history(seed + number, &shape);
            let ours = quick_check(&interned(&lines)) == CheckResult::Violated;
            let theirs = adya_report(&lines, lists);
            let details =
                || format!("{bug:?} {number}\n{}\n{}\nadya: {:?}", text(&lines), report(&lines), theirs.anomaly_types);
            assert!(ours || theirs.valid != Valid::False, "only adya finds an anomaly: {}", details());
            *counts.entry((ours, theirs.valid == Valid::False)).or_default() += 1;
        }
        let count = |both| counts.get(&both).copied().unwrap_or(0);
        println!(
            "{bug:?}: both {}, only the checker {}, neither {}",
            count((true, true)),
            count((true, false)),
            count((false, false))
        );
        let shows_in_values =
            [Bug::NoConflictCheck, Bug::ReadsLatest, Bug::ReadsUncommitted, Bug::OwnWritesHidden, Bug::RollBackCommits];
        assert!(!bug.is_some_and(|bug| shows_in_values.contains(&bug)) || count((true, true)) > 10);
    }
}

#[test]
fn adya_finds_nothing_more_in_lists() {
    compare(true);
}

#[test]
fn adya_finds_nothing_more_in_registers() {
    compare(false);
}
