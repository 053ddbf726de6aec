//! The checker against brute force, on tiny histories and on histories of stores with bugs.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    missing_docs,
    clippy::pedantic,
    reason = "a test that cannot continue fails"
)]

mod support;

use std::collections::BTreeMap;

use percolite_crashtest::checker::{CheckResult, quick_check};
use percolite_crashtest::history::{Line, Op, Outcome, Transaction};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use crate::support::graph::{Access, is_possible};
use crate::support::naive::is_valid;
use crate::support::store::{Bug, Shape, history};
use crate::support::{interned, report, seed, text};

#[track_caller]
fn compare(lines: &[Line]) -> bool {
    let (result, valid) = (quick_check(&interned(lines)), is_valid(lines));
    assert_eq!(result != CheckResult::Violated, valid, "brute force disagrees\n{}\n{}", text(lines), report(lines));
    valid
}

fn committed(session: u64, read_ts: u64, commit_ts: u64, ops: Vec<Op>) -> Line {
    Line::Transaction(Transaction {
        id: None,
        session,
        start_ts: None,
        read_ts,
        commit_ts: Some(commit_ts),
        outcome: Outcome::Committed,
        began: None,
        ended: None,
        ops,
    })
}

/// Every order in which `count` transactions can take their snapshots and commit: for each
/// transaction the times of its snapshot and of its commit.
fn interleavings(count: usize) -> Vec<Vec<(u64, u64)>> {
    fn extend(times: &mut Vec<(u64, u64)>, now: u64, all: &mut Vec<Vec<(u64, u64)>>) {
        if times.iter().all(|(_, commit_ts)| *commit_ts > 0) {
            all.push(times.clone());
        }
        for at in 0..times.len() {
            let before = times[at];
            match before {
                (0, _) => times[at].0 = now,
                (_, 0) => times[at].1 = now,
                _ => continue,
            }
            extend(times, now + 1, all);
            times[at] = before;
        }
    }
    let mut all = Vec::new();
    extend(&mut vec![(0, 0); count], 1, &mut all);
    all
}

/// Calls `visit` with every choice of one item from each list.
fn product<T: Copy>(lists: &[Vec<T>], visit: &mut impl FnMut(&[T])) {
    fn extend<T: Copy>(lists: &[Vec<T>], chosen: &mut Vec<T>, visit: &mut impl FnMut(&[T])) {
        let Some(list) = lists.get(chosen.len()) else { return visit(chosen) };
        for item in list {
            chosen.push(*item);
            extend(lists, chosen, visit);
            chosen.pop();
        }
    }
    extend(lists, &mut Vec::new(), visit);
}

#[derive(Clone, Copy)]
enum Step {
    Read(usize),
    ReadForUpdate(usize),
    Write(usize),
    Delete(usize),
    Scan,
}

const KEYS: [&str; 2] = ["x", "y"];

/// Compares the checker with brute force on all histories of `count` committed transactions. Each
/// transaction takes the steps of one list of `menu`, and each read returns in turn every value
/// that any transaction writes.
fn all_histories(count: usize, menu: &[&[Step]]) -> (usize, usize) {
    let (mut tried, mut valid) = (0, 0);
    let interleavings = interleavings(count);
    product(&vec![menu.to_vec(); count], &mut |chosen: &[&[Step]]| {
        let mut values: [Vec<Option<String>>; 2] = [vec![None], vec![None]];
        let mut value = 0;
        for step in chosen.iter().copied().flatten() {
            value += 1;
            if let Step::Write(key) = step {
                values[*key].push(Some(value.to_string()));
            }
        }
        let choices: Vec<Vec<usize>> = chosen
            .iter()
            .copied()
            .flatten()
            .map(|step| match step {
                Step::Read(key) | Step::ReadForUpdate(key) => (0..values[*key].len()).collect(),
                Step::Scan => (0..values[0].len() * values[1].len()).collect(),
                Step::Write(_) | Step::Delete(_) => vec![0],
            })
            .collect();
        product(&choices, &mut |read: &[usize]| {
            let mut number = 0;
            let ops: Vec<Vec<Op>> = chosen
                .iter()
                .map(|steps| {
                    let ops = steps.iter().map(|step| {
                        let read = read[number];
                        number += 1;
                        match step {
                            Step::Read(key) => Op::Read(KEYS[*key].into(), values[*key][read].clone()),
                            Step::ReadForUpdate(key) => {
                                Op::ReadForUpdate(KEYS[*key].into(), values[*key][read].clone())
                            }
                            Step::Write(key) => Op::Write(KEYS[*key].into(), Some(number.to_string())),
                            Step::Delete(key) => Op::Write(KEYS[*key].into(), None),
                            Step::Scan => {
                                let x = values[0][read % values[0].len()].clone();
                                let y = values[1][read / values[0].len()].clone();
                                let rows = [("x".to_owned(), x), ("y".to_owned(), y)];
                                let rows = rows.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
                                Op::Scan { from: "x".into(), to: None, rows }
                            }
                        }
                    });
                    ops.collect()
                })
                .collect();
            for times in &interleavings {
                let lines: Vec<Line> = (0..)
                    .zip(times)
                    .zip(&ops)
                    .map(|((session, (read_ts, commit_ts)), ops)| committed(session, *read_ts, *commit_ts, ops.clone()))
                    .collect();
                tried += 1;
                valid += usize::from(compare(&lines));
            }
        });
    });
    (tried, valid)
}

#[test]
fn all_pairs_of_transactions_of_two_steps() {
    use Step::{Delete, Read, ReadForUpdate, Scan, Write};
    let steps = [Read(0), ReadForUpdate(0), Write(0), Delete(0), Read(1), Write(1), Scan];
    let pairs: Vec<[Step; 2]> = steps.iter().flat_map(|a| steps.map(|b| [*a, b])).collect();
    let menu: Vec<&[Step]> = pairs.iter().map(|pair| &pair[..]).collect();
    let (tried, valid) = all_histories(2, &menu);
    println!("{tried} histories, {valid} of them valid");
    assert!(valid > 1000 && tried - valid > 1000);
}

#[test]
fn all_triples_of_small_transactions() {
    use Step::{Delete, Read, ReadForUpdate, Scan, Write};
    let menu: [&[Step]; 13] = [
        &[Read(0)],
        &[Read(0), Read(1)],
        &[Scan],
        &[Write(0)],
        &[Delete(0)],
        &[Write(0), Write(0)],
        &[Write(0), Write(1)],
        &[Read(0), Write(0)],
        &[Write(0), Read(0)],
        &[Read(1), Write(0)],
        &[Delete(0), Write(1)],
        &[ReadForUpdate(0)],
        &[ReadForUpdate(0), Write(1)],
    ];
    let (tried, valid) = all_histories(3, &menu);
    println!("{tried} histories, {valid} of them valid");
    assert!(valid > 1000 && tried - valid > 1000);
}

/// Up to four transactions that may do anything at any time. Most of their reads are right.
fn random_tiny(rng: &mut StdRng, unknown_max: usize) -> Vec<Line> {
    let count = rng.random_range(1..=4);
    let mut initial = Vec::new();
    let mut values: Vec<Option<String>> = vec![None];
    if rng.random_bool(0.3) {
        initial.push(("x".to_owned(), "0".to_owned()));
        values.push(Some("0".into()));
    }
    let mut txns = random_txns(rng, count, unknown_max, &mut values);
    // First come the answers of a correct store, as if the transactions of unknown outcome had
    // committed in the order of the list. Then some answers are changed.
    let ends = random_ends(rng, &txns);
    let before = txns.clone();
    for txn in &mut txns {
        let mut state: BTreeMap<String, String> = initial.iter().cloned().collect();
        for (_, at) in ends.iter().take_while(|(ts, _)| *ts <= txn.read_ts) {
            before[*at].ops.iter().for_each(|op| apply(&mut state, op));
        }
        answer_reads(rng, &mut txn.ops, state, &values);
    }
    let initial = Some(initial).filter(|rows| !rows.is_empty()).map(Line::Initial);
    initial.into_iter().chain(txns.into_iter().map(Line::Transaction)).collect()
}

/// Transactions whose reads have no answers yet. Adds the values that they write to `values`.
fn random_txns(rng: &mut StdRng, count: u32, unknown_max: usize, values: &mut Vec<Option<String>>) -> Vec<Transaction> {
    let tied = rng.random_bool(0.3);
    let mut times: Vec<u64> = (1..=3 * u64::from(count) + 1).collect();
    let mut unknown = 0;
    let mut txns = Vec::new();
    for _ in 0..count {
        let mut draw = || if tied { rng.random_range(0..8) } else { times.remove(rng.random_range(0..times.len())) };
        let mut drawn = [draw(), draw(), draw()];
        if rng.random_bool(0.97) {
            drawn.sort_unstable();
        }
        let ops: Vec<Op> = (0..rng.random_range(1..=3)).map(|_| random_op(rng, values)).collect();
        let locks_rows = ops.iter().any(|op| matches!(op, Op::Write(..) | Op::ReadForUpdate(..)));
        let (outcome, commit_ts) = match rng.random_range(0..10) {
            0 => (Outcome::Aborted, None),
            1 => (Outcome::Unknown, Some(drawn[2])),
            2..5 if unknown < unknown_max => {
                unknown += 1;
                (Outcome::Unknown, None)
            }
            _ => (Outcome::Committed, (locks_rows || rng.random()).then_some(drawn[2])),
        };
        let clock = rng.random_bool(0.3).then(|| rng.random_range(0..10u64));
        txns.push(Transaction {
            id: None,
            session: rng.random_range(0..5),
            start_ts: rng.random_bool(0.3).then_some(drawn[1]),
            read_ts: drawn[0],
            commit_ts,
            outcome,
            began: clock,
            ended: clock.map(|began| began + rng.random_range(0..3)),
            ops,
        });
    }
    txns
}

fn random_op(rng: &mut StdRng, values: &mut Vec<Option<String>>) -> Op {
    let key = KEYS.choose(rng).unwrap().to_string();
    match rng.random_range(0..8) {
        0..3 => Op::Read(key, None),
        3 => Op::ReadForUpdate(key, None),
        4..6 => {
            let value = if rng.random_bool(0.9) { values.len() as u64 } else { 1 };
            values.push(Some(value.to_string()));
            Op::Write(key, Some(value.to_string()))
        }
        6 => Op::Write(key, None),
        _ => Op::Scan { from: "x".into(), to: rng.random::<bool>().then(|| "y".into()), rows: Vec::new() },
    }
}

/// The timestamps at which transactions commit, each with the transaction's number. Some
/// transactions of unknown outcome commit.
fn random_ends(rng: &mut StdRng, txns: &[Transaction]) -> Vec<(u64, usize)> {
    let mut ends: Vec<(u64, usize)> = Vec::new();
    for (at, txn) in txns.iter().enumerate() {
        match (txn.outcome, txn.commit_ts) {
            (Outcome::Aborted, _) => {}
            (_, Some(ts)) => ends.push((ts, at)),
            (_, None) if rng.random_bool(0.7) => ends.push((txn.read_ts + rng.random_range(1..4), at)),
            _ => {}
        }
    }
    ends.sort_unstable();
    ends
}

fn apply(state: &mut BTreeMap<String, String>, op: &Op) {
    match op {
        Op::Write(key, Some(value)) => drop(state.insert(key.clone(), value.clone())),
        Op::Write(key, None) => drop(state.remove(key)),
        _ => {}
    }
}

/// Gives the reads of a transaction their answers, most of them the right ones. `state` has the
/// rows of the transaction's snapshot.
fn answer_reads(rng: &mut StdRng, ops: &mut [Op], mut state: BTreeMap<String, String>, values: &[Option<String>]) {
    for op in ops {
        apply(&mut state, op);
        match op {
            Op::Read(key, value) | Op::ReadForUpdate(key, value) => {
                *value =
                    if rng.random_bool(0.95) { state.get(key).cloned() } else { values.choose(rng).unwrap().clone() };
            }
            Op::Scan { from, to, rows } => {
                let inside = state.iter().filter(|(key, _)| *key >= from && to.as_ref().is_none_or(|to| *key < to));
                *rows = inside.map(|(key, value)| (key.clone(), value.clone())).collect();
                if rng.random_bool(0.05) {
                    rows.push((KEYS.choose(rng).unwrap().to_string(), rng.random_range(0..4).to_string()));
                }
                if rng.random_bool(0.05) {
                    rows.pop();
                }
            }
            Op::Write(..) => {}
        }
    }
}

#[test]
fn random_histories_of_four_transactions() {
    let seed = seed();
    let (tried, mut valid) = (1_000_000, 0);
    let mut rng = StdRng::seed_from_u64(seed);
    for _ in 0..tried {
        valid += usize::from(compare(&random_tiny(&mut rng, 0)));
    }
    println!("{tried} histories, {valid} of them valid");
    assert!(valid > tried / 20 && valid < tried * 19 / 20);
}

#[test]
fn random_histories_with_unknown_outcomes() {
    let seed = seed();
    let (tried, mut valid) = (200_000, 0);
    let mut rng = StdRng::seed_from_u64(seed);
    for _ in 0..tried {
        valid += usize::from(compare(&random_tiny(&mut rng, 2)));
    }
    println!("{tried} histories, {valid} of them valid");
    assert!(valid > tried / 20 && valid < tried * 19 / 20);
}

#[test]
fn histories_of_stores_with_bugs() {
    let seed = seed();
    for bug in Bug::ALL.into_iter().map(Some).chain([None]) {
        let mut valid = 0;
        for number in 0..400 {
            let mut rng = StdRng::seed_from_u64(seed + number);
            let mut shape = Shape { unknown: 0.0, crashes: 0.0, bug, ..Shape::random(&mut rng) };
            shape.repeats = rng.random_bool(0.1);
            valid += usize::from(compare(&history(seed + number, &shape)));
        }
        println!("{bug:?}: {valid} of 400 valid");
        assert!(bug.is_none() == (valid == 400), "{bug:?}");
    }
}

/// Whether there are timestamps with which the checker accepts these reads and writes.
fn accepts_any(txns: &[Access], interleavings: &[Vec<(u64, u64)>]) -> bool {
    let ops: Vec<Vec<Op>> = txns
        .iter()
        .enumerate()
        .map(|(at, txn)| {
            let value = |writer: Option<usize>| writer.map(|writer| writer.to_string());
            let reads = txn.reads.iter().map(|(key, from)| Op::Read(KEYS[*key].into(), value(*from)));
            let writes = txn.writes.iter().map(|key| Op::Write(KEYS[*key].into(), value(Some(at))));
            reads.chain(writes).collect()
        })
        .collect();
    interleavings.iter().any(|times| {
        let lines: Vec<Line> = (txns.iter().zip(times).zip(&ops))
            .map(|((txn, (read_ts, commit_ts)), ops)| committed(txn.session, *read_ts, *commit_ts, ops.clone()))
            .collect();
        quick_check(&interned(&lines)) != CheckResult::Violated
    })
}

fn compare_with_graph(txns: &[Access], interleavings: &[Vec<(u64, u64)>]) -> bool {
    let possible = is_possible(txns, KEYS.len());
    assert_eq!(accepts_any(txns, interleavings), possible, "the graph disagrees: {txns:?}");
    possible
}

/// The accesses of each transaction. A shape has two bits for each row: reads it, writes it.
fn accesses(shapes: &[usize], sessions: &[u64]) -> Vec<Access> {
    let txn = |(shape, session): (&usize, &u64)| Access {
        session: *session,
        reads: (0..2).filter(|key| shape >> (2 * key) & 1 == 1).map(|key| (key, None)).collect(),
        writes: (0..2).filter(|key| shape >> (2 * key) & 2 == 2).collect(),
    };
    shapes.iter().zip(sessions).map(txn).collect()
}

fn sources(txns: &[Access]) -> Vec<Vec<Option<usize>>> {
    let of = |reader: usize, key: usize| {
        let writers = (0..txns.len()).filter(|writer| *writer != reader && txns[*writer].writes.contains(&key));
        [None].into_iter().chain(writers.map(Some)).collect()
    };
    txns.iter().enumerate().flat_map(|(at, txn)| txn.reads.iter().map(move |(key, _)| of(at, *key))).collect()
}

fn fill(txns: &mut [Access], from: &[Option<usize>]) {
    for ((_, slot), from) in txns.iter_mut().flat_map(|txn| &mut txn.reads).zip(from) {
        *slot = *from;
    }
}

#[test]
fn timestamps_exist_iff_an_order_exists_3_txns() {
    let interleavings = interleavings(3);
    let (mut tried, mut possible) = (0, 0);
    for sessions in [[0, 1, 2], [0, 0, 1]] {
        product(&vec![(1..16).collect::<Vec<usize>>(); 3], &mut |shapes: &[usize]| {
            // With a session for each transaction, their order does not matter: one order is
            // enough.
            if sessions[1] == 1 && !shapes.is_sorted() {
                return;
            }
            let txns = accesses(shapes, &sessions);
            product(&sources(&txns), &mut |from: &[Option<usize>]| {
                let mut txns = txns.clone();
                fill(&mut txns, from);
                tried += 1;
                possible += usize::from(compare_with_graph(&txns, &interleavings));
            });
        });
    }
    println!("{tried} histories without timestamps, {possible} of them possible");
    assert!(possible > 1000 && tried - possible > 1000);
}

#[test]
fn timestamps_exist_iff_an_order_exists_4_txns() {
    let seed = seed();
    let interleavings = interleavings(4);
    let mut rng = StdRng::seed_from_u64(seed);
    let (tried, mut possible) = (1000, 0);
    for _ in 0..tried {
        let shapes: Vec<usize> = (0..4).map(|_| rng.random_range(1..16)).collect();
        let sessions: Vec<u64> = (0..4).map(|session| if rng.random_bool(0.7) { session } else { 0 }).collect();
        let mut txns = accesses(&shapes, &sessions);
        let from: Vec<_> = sources(&txns).iter().map(|from| *from.choose(&mut rng).unwrap()).collect();
        fill(&mut txns, &from);
        possible += usize::from(compare_with_graph(&txns, &interleavings));
    }
    println!("{tried} histories without timestamps, {possible} of them possible");
    assert!(possible > 50 && tried - possible > 50);
}
