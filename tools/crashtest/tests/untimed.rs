//! Histories without timestamps: against brute force, against `adya`, and in each notation.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    missing_docs,
    clippy::pedantic,
    reason = "a test that cannot continue fails"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use percolite_crashtest::checker::{CheckResult, quick_check};
use percolite_crashtest::history::{Line, Op, Outcome};
use percolite_crashtest::untimed;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};

use crate::support::store::{Bug, Shape, history};
use crate::support::{interned, seed};

fn verdict(text: &str) -> CheckResult {
    quick_check(&untimed::read(text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}")))
}

/// A step on one of two rows: a write of a value, or a read of what it had then. A register has
/// its last value only.
#[derive(Clone, Debug)]
enum Step {
    Write(usize, u64),
    Read(usize, Vec<u64>),
}

#[derive(Clone, Debug)]
struct Txn {
    process: u64,
    began: usize,
    ended: usize,
    outcome: Outcome,
    steps: Vec<Step>,
}

type Rows = [Vec<u64>; 2];

/// What a transaction reads and leaves, from its snapshot.
fn run(txn: &Txn, lists: bool, mut rows: Rows, mut on_read: impl FnMut(usize, &[u64])) -> Rows {
    for (at, step) in txn.steps.iter().enumerate() {
        match step {
            Step::Write(row, value) if lists => rows[*row].push(*value),
            Step::Write(row, value) => rows[*row] = vec![*value],
            Step::Read(row, _) => on_read(at, &rows[*row]),
        }
    }
    rows
}

fn written(txn: &Txn) -> BTreeSet<usize> {
    let rows = txn.steps.iter().filter_map(|step| match step {
        Step::Write(row, _) => Some(*row),
        Step::Read(..) => None,
    });
    rows.collect()
}

/// Brute force: every order of snapshots and commits of the transactions that may have committed.
struct Naive<'a> {
    txns: Vec<&'a Txn>,
    lists: bool,
}

impl Naive<'_> {
    fn is_possible(txns: &[Txn], lists: bool) -> bool {
        let unknown: Vec<usize> = (0..txns.len()).filter(|at| txns[*at].outcome == Outcome::Unknown).collect();
        (0..1_u32 << unknown.len()).any(|choice| {
            let commits = txns.iter().enumerate().filter(|(at, txn)| match txn.outcome {
                Outcome::Committed => true,
                Outcome::Aborted => false,
                Outcome::Unknown => choice >> unknown.iter().position(|other| other == at).unwrap() & 1 == 1,
            });
            let naive = Naive { txns: commits.map(|(_, txn)| txn).collect(), lists };
            let count = naive.txns.len();
            naive.extend(&vec![None; count], &vec![0; count], &Rows::default(), [0, 0], 1)
        })
    }

    /// `left` has for each snapshot that was taken what its transaction would leave, and when.
    fn extend(
        &self,
        left: &[Option<(Rows, usize)>],
        committed: &[usize],
        rows: &Rows,
        changed: [usize; 2],
        now: usize,
    ) -> bool {
        if committed.iter().all(|at| *at > 0) {
            return true;
        }
        (0..self.txns.len()).any(|number| {
            let txn = self.txns[number];
            let (mut left, mut committed) = (left.to_vec(), committed.to_vec());
            match left[number].clone() {
                None => {
                    let waits = (0..self.txns.len()).any(|other| {
                        let earlier = self.txns[other];
                        let is_before = earlier.outcome == Outcome::Committed && earlier.ended < txn.began;
                        let was_seen =
                            if written(earlier).is_empty() { left[other].is_some() } else { committed[other] > 0 };
                        is_before && !was_seen
                    });
                    let mut is_right = !waits;
                    let after = run(txn, self.lists, rows.clone(), |at, found| {
                        let Step::Read(_, expected) = &txn.steps[at] else { unreachable!() };
                        is_right &= txn.outcome != Outcome::Committed || expected == found;
                    });
                    left[number] = Some((after, now));
                    is_right && self.extend(&left, &committed, rows, changed, now + 1)
                }
                Some((after, since)) if committed[number] == 0 => {
                    let (mut rows, mut changed) = (rows.clone(), changed);
                    for row in written(txn) {
                        if changed[row] > since {
                            return false;
                        }
                        rows[row].clone_from(&after[row]);
                        changed[row] = now;
                    }
                    committed[number] = now;
                    self.extend(&left, &committed, &rows, changed, now + 1)
                }
                Some(_) => false,
            }
        })
    }
}

/// The history as JSON lines.
fn elle(txns: &[Txn], lists: bool) -> String {
    let mut events: Vec<(usize, Value)> = Vec::new();
    for txn in txns {
        let steps = |with_reads: bool| -> Vec<Value> {
            let step = |step: &Step| match step {
                Step::Write(row, value) => json!([if lists { "append" } else { "w" }, format!("k{row}"), value]),
                Step::Read(row, _) if !with_reads => json!(["r", format!("k{row}"), null]),
                Step::Read(row, found) if lists => json!(["r", format!("k{row}"), found]),
                Step::Read(row, found) => json!(["r", format!("k{row}"), found.last()]),
            };
            txn.steps.iter().map(step).collect()
        };
        let (kind, is_ok) = match txn.outcome {
            Outcome::Committed => ("ok", true),
            Outcome::Aborted => ("fail", false),
            Outcome::Unknown => ("info", false),
        };
        let process = txn.process;
        events.push((txn.began, json!({"type": "invoke", "process": process, "value": steps(false)})));
        events.push((txn.ended, json!({"type": kind, "process": process, "value": steps(is_ok)})));
    }
    events.sort_by_key(|(at, _)| *at);
    events.into_iter().map(|(_, event)| format!("{event}\n")).collect()
}

/// A history of up to four transactions with mostly right answers.
fn random_history(rng: &mut StdRng, lists: bool) -> Vec<Txn> {
    let count = rng.random_range(1..=4);
    let mut places: Vec<usize> = (0..2 * count).collect();
    let mut value = 0;
    let mut txns: Vec<Txn> = (0..count)
        .map(|number| {
            let mut draw = || places.remove(rng.random_range(0..places.len()));
            let (first, second) = (draw(), draw());
            let steps = (0..rng.random_range(1..=3)).map(|_| {
                let row = rng.random_range(0..2);
                value += 1;
                if rng.random_bool(0.5) { Step::Write(row, value) } else { Step::Read(row, Vec::new()) }
            });
            let steps = steps.collect();
            let outcome = match rng.random_range(0..10) {
                0 => Outcome::Aborted,
                1 | 2 => Outcome::Unknown,
                _ => Outcome::Committed,
            };
            Txn { process: number as u64, began: first.min(second), ended: first.max(second), outcome, steps }
        })
        .collect();
    // A client runs one after the other: some transactions share a process.
    for at in 1..txns.len() {
        if txns[at - 1].ended < txns[at].began && txns[at - 1].outcome != Outcome::Unknown && rng.random() {
            txns[at].process = txns[at - 1].process;
        }
    }
    // The answers of a store that runs one transaction after the other, some of them changed.
    let mut order: Vec<usize> = (0..txns.len()).collect();
    order.sort_by_key(|at| if rng.random_bool(0.8) { txns[*at].ended } else { txns[*at].began });
    let mut rows = Rows::default();
    let mut snapshot = Rows::default();
    for at in order {
        let mut answers = BTreeMap::new();
        if rng.random_bool(0.7) {
            snapshot.clone_from(&rows);
        }
        let after = run(&txns[at], lists, snapshot.clone(), |step, found| drop(answers.insert(step, found.to_vec())));
        for (step, mut found) in answers {
            if rng.random_bool(if lists { 0.06 } else { 0.25 }) {
                found.pop();
            }
            if lists && found.len() > 1 && rng.random_bool(0.03) {
                found.swap(0, 1);
            }
            let Step::Read(_, answer) = &mut txns[at].steps[step] else { unreachable!() };
            *answer = found;
        }
        if txns[at].outcome == Outcome::Committed || txns[at].outcome == Outcome::Unknown && rng.random() {
            for row in written(&txns[at]) {
                rows[row].clone_from(&after[row]);
            }
        }
    }
    txns
}

/// Whether a row has several committed appends that no committed transaction read: their order is
/// left out.
fn has_unread_order(txns: &[Txn]) -> bool {
    let committed = || txns.iter().filter(|txn| txn.outcome != Outcome::Aborted);
    (0..2).any(|row| {
        let read: BTreeSet<u64> = txns
            .iter()
            .filter(|txn| txn.outcome == Outcome::Committed)
            .flat_map(|txn| &txn.steps)
            .filter_map(|step| match step {
                Step::Read(other, found) if *other == row => Some(found.clone()),
                _ => None,
            })
            .flatten()
            .collect();
        let unread = committed().filter(|txn| {
            txn.steps
                .iter()
                .any(|step| matches!(step, Step::Write(other, value) if *other == row && !read.contains(value)))
        });
        unread.count() > 1
    })
}

#[test]
fn lists_are_judged_as_by_brute_force() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let (tried, mut possible, mut left_out) = (100_000, 0, 0);
    for _ in 0..tried {
        let txns = random_history(&mut rng, true);
        let expected = Naive::is_possible(&txns, true);
        let accepted = verdict(&elle(&txns, true)) != CheckResult::Violated;
        possible += usize::from(expected);
        if accepted != expected {
            assert!(accepted && has_unread_order(&txns), "expected {expected}\n{}", elle(&txns, true));
            left_out += 1;
        }
    }
    println!("{tried} histories, {possible} of them possible; {left_out} accepted because an order was left out");
    assert!(possible > tried / 20 && tried - possible > tried / 20 && left_out < tried / 20);
}

#[test]
fn registers_are_judged_as_by_brute_force() {
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let (tried, mut possible) = (100_000, 0);
    for _ in 0..tried {
        let txns = random_history(&mut rng, false);
        let expected = Naive::is_possible(&txns, false);
        let accepted = verdict(&elle(&txns, false)) != CheckResult::Violated;
        possible += usize::from(expected);
        assert_eq!(accepted, expected, "{}", elle(&txns, false));
    }
    println!("{tried} histories, {possible} of them possible");
    assert!(possible > tried / 20 && tried - possible > tried / 20);
}

/// A history of the simulated store in Elle's form, without its timestamps.
fn without_timestamps(lines: &[Line], lists: bool) -> String {
    let number = |text: &str| json!(text.parse::<u64>().unwrap());
    let step = |op: &Op| match op {
        Op::Read(key, value) | Op::ReadForUpdate(key, value) if lists => {
            let list: Vec<Value> = value.iter().flat_map(|list| list.split(',').map(number)).collect();
            json!(["r", key, list])
        }
        Op::Read(key, value) | Op::ReadForUpdate(key, value) => json!(["r", key, value.as_deref().map(number)]),
        Op::Write(key, value) if lists => {
            json!(["append", key, number(value.as_ref().unwrap().rsplit(',').next().unwrap())])
        }
        Op::Write(key, value) => json!(["w", key, number(value.as_ref().unwrap())]),
        Op::Scan { .. } => unreachable!("no scans"),
    };
    let mut events = Vec::new();
    for line in lines {
        let Line::Transaction(txn) = line else { continue };
        let kind = match txn.outcome {
            Outcome::Committed => "ok",
            Outcome::Aborted => "fail",
            Outcome::Unknown => "info",
        };
        let value: Vec<Value> = txn.ops.iter().map(step).collect();
        events.push(((txn.began.unwrap(), 1), json!({"type": "invoke", "process": txn.session, "value": value})));
        events.push(((txn.ended.unwrap(), 0), json!({"type": kind, "process": txn.session, "value": value})));
    }
    events.sort_by_key(|(at, _)| *at);
    events.into_iter().map(|(_, event)| format!("{event}\n")).collect()
}

/// What the checker accepts with timestamps it accepts without, and what `adya` refuses it refuses.
fn compare_with_timestamps(lists: bool) {
    let seed = seed();
    let mut undecided = 0;
    for bug in [None].into_iter().chain(Bug::ALL.into_iter().map(Some)) {
        let mut counts = [0; 3];
        for number in 0..60 {
            let mut rng = StdRng::seed_from_u64(seed + number);
            let no = 0.0;
            let shape = Shape {
                lists,
                scans: no,
                deletions: no,
                unknown: no,
                crashes: no,
                initial: false,
                repeats: false,
                bug,
                ..Shape::random(&mut rng)
            };
            let lines = history(seed + number, &shape);
            let text = without_timestamps(&lines, lists);
            let timed = quick_check(&interned(&lines));
            let ours = match untimed::read(text.as_bytes()) {
                Ok(history) => quick_check(&history),
                Err(untimed::Error::Undecided) => {
                    undecided += 1;
                    continue;
                }
                Err(error) => panic!("{error}\n{text}"),
            };
            let workload = if lists { adya::Workload::ListAppend } else { adya::Workload::RwRegister };
            let opts = adya::Opts { models: vec!["snapshot-isolation".into()], ..adya::Opts::default() };
            let theirs = adya::check(&adya::History::from_json(&text).unwrap(), workload, &opts).valid;
            let is_violated = ours == CheckResult::Violated;
            assert!(timed == CheckResult::Violated || !is_violated, "{bug:?} {number}: a false alarm\n{text}");
            assert!(theirs != adya::Valid::False || is_violated, "{bug:?} {number}: only adya finds it\n{text}");
            counts[0] += usize::from(timed == CheckResult::Violated);
            counts[1] += usize::from(is_violated);
            counts[2] += usize::from(theirs == adya::Valid::False);
        }
        println!("{bug:?}: {} by timestamps, {} without, {} by adya", counts[0], counts[1], counts[2]);
        assert!(counts[1] >= counts[2] && (bug != Some(Bug::NoConflictCheck) || counts[1] > 5));
    }
    println!("{undecided} undecided");
    assert!(undecided < 20);
}

#[test]
fn lists_of_simulated_stores_are_judged_as_with_timestamps_or_milder() {
    compare_with_timestamps(true);
}

#[test]
fn registers_of_simulated_stores_are_judged_as_with_timestamps_or_milder() {
    compare_with_timestamps(false);
}

const LOST_UPDATE: &str = r#"{"type":"invoke","process":0,"f":"txn","value":[["r","x",null],["append","x",1]]}
{"type":"invoke","process":1,"f":"txn","value":[["r","x",null],["append","x",2]]}
{"type":"ok","process":0,"f":"txn","value":[["r","x",[]],["append","x",1]]}
{"type":"info","process":"nemesis","f":"kill","value":null}
{"type":"ok","process":1,"f":"txn","value":[["r","x",[]],["append","x",2]]}
{"type":"invoke","process":0,"f":"txn","value":[["r","x",null]]}
{"type":"ok","process":0,"f":"txn","value":[["r","x",[1,2]]]}
"#;

#[test]
fn each_notation_gives_the_same_verdict() {
    let array = format!("[{}]", LOST_UPDATE.trim().replace('\n', ",\n"));
    let edn: String = LOST_UPDATE
        .lines()
        .map(|line| {
            let line = line.replace("\":", " ").replace("{\"", "{:").replace(",\"", ", :").replace("null", "nil");
            // Names of functions, types and rows are keywords.
            format!("#jepsen.history.Op{}\n", line.replace("[\"", "[:").replace(" \"", " :").replace('"', ""))
        })
        .collect();
    let vector = format!("[{edn}]");
    for text in [LOST_UPDATE, &array, &edn, &vector] {
        assert!(untimed::is_elle(text.lines().next().unwrap()), "{text}");
        assert_eq!(verdict(text), CheckResult::Violated, "{text}");
        let right = text.replace("[1,2]", "[2]").replacen(r#""ok","process":0"#, r#""info","process":0"#, 1);
        let right = right.replacen(":ok, :process 0", ":info, :process 0", 1);
        assert_eq!(verdict(&right), CheckResult::Consistent, "{right}");
    }
}

#[test]
fn append_that_was_acknowledged_and_is_missing_is_found() {
    let text = r#"{"type":"invoke","process":0,"value":[["append","x",1]]}
{"type":"ok","process":0,"value":[["append","x",1]]}
{"type":"invoke","process":1,"value":[["r","x",null]]}
{"type":"ok","process":1,"value":[["r","x",[]]]}
"#;
    assert_eq!(verdict(text), CheckResult::Violated);
    let concurrent = text.replacen(r#""ok""#, r#""info""#, 1);
    assert_eq!(verdict(&concurrent), CheckResult::Consistent);
}

#[test]
fn append_of_an_aborted_transaction_below_another_is_found() {
    let text = r#"{"type":"invoke","process":0,"value":[["append","x",1]]}
{"type":"fail","process":0,"value":[["append","x",1]]}
{"type":"invoke","process":1,"value":[["append","x",2],["r","x",null]]}
{"type":"ok","process":1,"value":[["append","x",2],["r","x",[1,2]]]}
"#;
    assert_eq!(verdict(text), CheckResult::Violated);
    assert_eq!(verdict(&text.replace("fail", "info")), CheckResult::Consistent);
}

#[test]
fn what_is_no_history_is_refused_with_its_operation() {
    let cases = [
        (r#"{"type":"maybe","value":[]}"#, "operation 1"),
        (r#"{"type":"ok","value":[["w","x",1],["append","x",2]]}"#, "mixed"),
        (r#"{"type":"ok","value":[["cas","x",1]]}"#, "cas"),
        (r#"{"type":"ok","value":[["append","x",1],["append","x",1]]}"#, "twice"),
        ("{:type :ok :value [[:w :x 1]]} {:type :ok :value [[:w :x 1]]}", "twice"),
        (r#"{"type":"ok","value":7}"#, "not a list"),
        ("{:type :ok, :value [[:r :x 1]", "EDN"),
    ];
    for (text, message) in cases {
        let error = untimed::read(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(message), "{text}: {error}");
    }
}

#[test]
fn answer_belongs_to_the_open_transaction_with_its_writes() {
    let text = r#"{"type":"invoke","process":0,"value":[["w","x",1],["r","y",null]]}
{"type":"invoke","process":1,"value":[["w","y",5]]}
{"type":"ok","process":1,"value":[["w","y",5]]}
{"type":"invoke","process":0,"value":[["w","z",2]]}
{"type":"ok","process":0,"value":[["w","z",2]]}
{"type":"ok","process":0,"value":[["w","x",1],["r","y",null]]}
"#;
    assert_eq!(verdict(text), CheckResult::Consistent);
    // The second transaction began after the write of `y` was acknowledged.
    let late = text.replace(r#"["w","z",2]]}"#, r#"["w","z",2],["r","y",null]]}"#);
    assert_eq!(verdict(&late), CheckResult::Violated);
}
