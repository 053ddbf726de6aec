//! Valid histories with one thing changed: each change is noticed, and called what it is.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    missing_docs,
    clippy::pedantic,
    reason = "a test, whose helpers are no tests"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use percolite_crashtest::checker::Anomaly::{self, *};
use percolite_crashtest::history::{Line, Op, Outcome, Transaction};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use crate::support::naive::is_valid;
use crate::support::store::{Shape, history};
use crate::support::{report, seed, text};

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
    ("a read does not show its own write", own, &[OwnWriteLost]),
    ("a second read shows something else", again, &[NonRepeatableRead]),
    ("a scan misses a row", missed, &[Phantom, OwnWriteLost, LostAcknowledgedWrite, FracturedRead, NonRepeatableRead]),
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
            OwnWriteLost,
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
    for (what, mutate, names) in MUTATIONS {
        let (mut made, mut harmless) = (0, 0);
        let mut called: BTreeMap<&str, usize> = BTreeMap::new();
        for number in 0..2000 {
            let mut dice = StdRng::seed_from_u64(seed + number);
            let shape = Shape { unknown: 0.0, crashes: 0.0, names: true, ..Shape::random(&mut dice) };
            let mut lines = history(seed + number, &shape);
            let before = text(&lines);
            if mutate(&mut lines, &mut dice).is_none() {
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
        let mut dice = StdRng::seed_from_u64(seed + number);
        let (what, mutate, _) = MUTATIONS.choose(&mut dice).unwrap();
        let shape = Shape { names: true, ..Shape::random(&mut dice) };
        let mut lines = history(seed + number, &shape);
        if mutate(&mut lines, &mut dice).is_none() {
            continue;
        }
        let whole = report(&lines);
        for violation in &whole.violations {
            let shown = |lines: &[Line]| {
                let sight = |v: &percolite_crashtest::checker::Violation| {
                    let anyway =
                        matches!(v.anomaly, Anomaly::AbortedRead | Anomaly::IntermediateRead | Anomaly::GarbageRead);
                    let expected = (!anyway).then(|| v.expected.clone());
                    (v.anomaly, v.transaction, v.key.clone(), expected, v.found.clone())
                };
                report(lines).violations.iter().any(|found| sight(found) == sight(violation))
            };
            let told = || format!("{what}: {number}\n{}\n{violation}", text(&lines));
            assert!(!violation.history.is_empty() && shown(&violation.history), "{}", told());
            for fewer in without_one(&violation.history) {
                assert!(!shown(&fewer), "{}", told());
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

fn txns(lines: &[Line]) -> impl Iterator<Item = &Transaction> {
    lines.iter().filter_map(|line| match line {
        Line::Transaction(txn) => Some(txn),
        _ => None,
    })
}

fn txns_mut(lines: &mut [Line]) -> impl Iterator<Item = &mut Transaction> {
    lines.iter_mut().filter_map(|line| match line {
        Line::Transaction(txn) => Some(txn),
        _ => None,
    })
}

/// One of the transactions for which this holds.
fn any_txn<'a>(
    lines: &'a mut [Line],
    dice: &mut StdRng,
    wanted: impl Fn(&Transaction) -> bool,
) -> Option<&'a mut Transaction> {
    let mut fitting: Vec<_> = txns_mut(lines).filter(|txn| wanted(txn)).collect();
    if fitting.is_empty() { None } else { Some(fitting.swap_remove(dice.random_range(0..fitting.len()))) }
}

fn writes<'a>(txn: &'a Transaction, key: &'a str) -> impl Iterator<Item = Option<String>> + 'a {
    txn.ops.iter().filter_map(move |op| match op {
        Op::Write(written, value) if written == key => Some(value.clone()),
        _ => None,
    })
}

/// The committed values of a row with their times, the first one included.
fn versions(lines: &[Line], key: &str) -> Vec<(u64, Option<String>)> {
    let mut versions = vec![(0, None)];
    if let Some(Line::Initial(rows)) = lines.first() {
        versions[0].1 = rows.iter().find(|(initial, _)| initial == key).map(|(_, value)| value.clone());
    }
    versions.extend(txns(lines).filter_map(|txn| Some((txn.commit_ts?, writes(txn, key).last()?))));
    versions.sort_by_key(|(ts, _)| *ts);
    versions
}

/// Changes one read that is not of the reader's own write, by what `choose` makes of its row, its snapshot and its value.
fn change_read(
    lines: &mut [Line],
    dice: &mut StdRng,
    choose: impl Fn(&[Line], &Transaction, &str, &Option<String>) -> Vec<Option<String>>,
) -> Option<()> {
    let before = lines.to_vec();
    let mut choices = Vec::new();
    for (at, txn) in txns(&before).enumerate() {
        let mut own = BTreeSet::new();
        for (step, op) in txn.ops.iter().enumerate() {
            match op {
                Op::Read(key, value) if !own.contains(key) => {
                    choices.extend(
                        choose(&before, txn, key, value).into_iter().filter(|v| v != value).map(|v| (at, step, v)),
                    );
                }
                Op::Write(key, _) => drop(own.insert(key)),
                _ => {}
            }
        }
    }
    let (at, step, value) = choices.choose(dice)?.clone();
    let Op::Read(_, slot) = &mut txns_mut(lines).nth(at)?.ops[step] else { return None };
    *slot = value;
    Some(())
}

fn older(lines: &mut [Line], dice: &mut StdRng) -> Option<()> {
    change_read(lines, dice, |lines, txn, key, value| {
        let versions = versions(lines, key);
        let seen = versions.iter().rposition(|(ts, _)| *ts <= txn.read_ts).unwrap();
        let later: BTreeSet<_> = versions[seen..].iter().map(|(_, value)| value.clone()).collect();
        let older = versions[..seen].iter().map(|(_, value)| value.clone());
        older.filter(|old| old != value && !later.contains(old)).collect()
    })
}

fn later(lines: &mut [Line], dice: &mut StdRng) -> Option<()> {
    change_read(lines, dice, |lines, txn, key, _| {
        let later = versions(lines, key).into_iter().filter(|(ts, value)| *ts > txn.read_ts && value.is_some());
        later.map(|(_, value)| value).collect()
    })
}

fn aborted(lines: &mut [Line], dice: &mut StdRng) -> Option<()> {
    change_read(lines, dice, |lines, reader, key, _| {
        let aborted = txns(lines).filter(|txn| txn.outcome == Outcome::Aborted && *txn != reader);
        aborted.filter_map(|txn| writes(txn, key).last()).filter(Option::is_some).collect()
    })
}

fn intermediate(lines: &mut [Line], dice: &mut StdRng) -> Option<()> {
    change_read(lines, dice, |lines, reader, key, _| {
        let mut values = Vec::new();
        for txn in txns(lines).filter(|txn| *txn != reader) {
            let mut written: Vec<_> = writes(txn, key).collect();
            written.pop();
            values.extend(written.into_iter().filter(Option::is_some));
        }
        values
    })
}

fn garbage(lines: &mut [Line], dice: &mut StdRng) -> Option<()> {
    change_read(lines, dice, |_, _, _, _| vec![Some("nobody's".into())])
}

fn own(lines: &mut [Line], dice: &mut StdRng) -> Option<()> {
    let reads_own = |txn: &Transaction| {
        let mut own = BTreeSet::new();
        txn.ops.iter().position(|op| match op {
            Op::Write(key, _) => {
                own.insert(key.clone());
                false
            }
            Op::Read(key, Some(_)) => own.contains(key),
            _ => false,
        })
    };
    let txn = any_txn(lines, dice, |txn| reads_own(txn).is_some())?;
    let step = reads_own(txn)?;
    let Op::Read(_, value) = &mut txn.ops[step] else { return None };
    *value = if dice.random() { None } else { Some("another's".into()) };
    Some(())
}

fn again(lines: &mut [Line], dice: &mut StdRng) -> Option<()> {
    let all: Vec<(u64, String, Option<String>)> = txns(lines)
        .filter_map(|txn| txn.commit_ts.map(|ts| (ts, txn)))
        .flat_map(|(ts, txn)| {
            txn.ops.iter().filter_map(move |op| match op {
                Op::Write(key, Some(_)) => Some((ts, key.clone(), writes(txn, key).last()?)),
                _ => None,
            })
        })
        .collect();
    let other = |txn: &Transaction| {
        txn.ops.iter().find_map(|op| match op {
            Op::Read(key, value) if writes(txn, key).next().is_none() => {
                let other =
                    all.iter().find(|(ts, k, v)| *ts != txn.read_ts && k == key && v != value && v.is_some())?;
                Some(Op::Read(key.clone(), other.2.clone()))
            }
            _ => None,
        })
    };
    let txn = any_txn(lines, dice, |txn| other(txn).is_some())?;
    let op = other(txn)?;
    txn.ops.push(op);
    Some(())
}

fn scan<'a>(lines: &'a mut [Line], dice: &mut StdRng, wanted: fn(&Op) -> bool) -> Option<&'a mut Op> {
    any_txn(lines, dice, |txn| txn.ops.iter().any(wanted))?.ops.iter_mut().find(|op| wanted(op))
}

fn missed(lines: &mut [Line], dice: &mut StdRng) -> Option<()> {
    let Op::Scan { rows, .. } = scan(lines, dice, |op| matches!(op, Op::Scan { rows, .. } if !rows.is_empty()))? else {
        return None;
    };
    rows.remove(dice.random_range(0..rows.len()));
    Some(())
}

fn undead(lines: &mut [Line], dice: &mut StdRng) -> Option<()> {
    let written: Vec<(String, String)> = txns(lines)
        .flat_map(|txn| &txn.ops)
        .filter_map(|op| match op {
            Op::Write(key, Some(value)) => Some((key.clone(), value.clone())),
            _ => None,
        })
        .collect();
    let Op::Scan { from, to, rows } = scan(lines, dice, |op| matches!(op, Op::Scan { .. }))? else { return None };
    let absent = |key: &String| rows.iter().all(|(shown, _)| shown != key);
    let inside = |key: &String| key >= from && to.as_ref().is_none_or(|to| key < to);
    let undead: Vec<_> = written.iter().filter(|(key, _)| inside(key) && absent(key)).collect();
    let row = (*undead.choose(dice)?).clone();
    rows.push(row);
    Some(())
}

fn twice(lines: &mut [Line], dice: &mut StdRng) -> Option<()> {
    let Op::Scan { rows, .. } = scan(lines, dice, |op| matches!(op, Op::Scan { rows, .. } if !rows.is_empty()))? else {
        return None;
    };
    let row = rows.choose(dice)?.clone();
    rows.push(row);
    Some(())
}

fn outside(lines: &mut [Line], dice: &mut StdRng) -> Option<()> {
    let Op::Scan { from, rows, .. } = scan(lines, dice, |op| matches!(op, Op::Scan { rows, .. } if !rows.is_empty()))?
    else {
        return None;
    };
    let key = rows.iter().map(|(key, _)| key.clone()).min()?;
    *from = format!("{key}!");
    Some(())
}

fn dropped(lines: &mut [Line], dice: &mut StdRng) -> Option<()> {
    let txn = any_txn(lines, dice, |txn| {
        txn.commit_ts.is_some() && txn.ops.iter().any(|op| matches!(op, Op::Write(_, Some(_))))
    })?;
    txn.outcome = Outcome::Aborted;
    txn.commit_ts = None;
    let id = txn.clone();
    // It shows only if somebody saw it.
    let seen: BTreeSet<String> = id
        .ops
        .iter()
        .filter_map(|op| if let Op::Write(key, _) = op { writes(&id, key).last()? } else { None })
        .collect();
    txns(lines)
        .filter(|txn| **txn != id)
        .flat_map(|txn| &txn.ops)
        .any(|op| match op {
            Op::Read(_, Some(value)) | Op::ReadForUpdate(_, Some(value)) => seen.contains(value),
            Op::Scan { rows, .. } => rows.iter().any(|(_, value)| seen.contains(value)),
            _ => false,
        })
        .then_some(())
}

fn write_dropped(lines: &mut [Line], dice: &mut StdRng) -> Option<()> {
    let seen: BTreeSet<String> = txns(lines)
        .flat_map(|txn| {
            txn.ops.iter().filter_map(|op| match op {
                Op::Read(key, Some(value)) if writes(txn, key).next().is_none() => Some(value.clone()),
                _ => None,
            })
        })
        .collect();
    let wanted = |op: &Op| matches!(op, Op::Write(_, Some(value)) if seen.contains(value));
    let txn = any_txn(lines, dice, |txn| txn.commit_ts.is_some() && txn.ops.iter().any(wanted))?;
    let step = txn.ops.iter().position(wanted)?;
    let Op::Write(key, value) = txn.ops[step].clone() else { return None };
    txn.ops[step] = Op::Write(key, value.map(|value| format!("not {value}")));
    Some(())
}

fn overlap(lines: &mut [Line], dice: &mut StdRng) -> Option<()> {
    let written = |txn: &Transaction| -> BTreeSet<String> {
        let keys = txn.ops.iter().filter_map(|op| match op {
            Op::Write(key, _) | Op::ReadForUpdate(key, _) => Some(key.clone()),
            _ => None,
        });
        keys.collect()
    };
    let commits: Vec<_> = txns(lines).filter_map(|txn| Some((txn.commit_ts?, written(txn)))).collect();
    let before = |txn: &Transaction| {
        let keys = written(txn);
        commits.iter().filter(|(ts, other)| *ts <= txn.read_ts && !other.is_disjoint(&keys)).map(|(ts, _)| *ts).max()
    };
    let txn = any_txn(lines, dice, |txn| txn.commit_ts.is_some() && before(txn).is_some())?;
    txn.read_ts = before(txn)? - 1;
    Some(())
}

fn claims(txn: &Transaction) -> bool {
    txn.ops.iter().any(|op| matches!(op, Op::Write(..) | Op::ReadForUpdate(..)))
}

fn other_commit(lines: &[Line], dice: &mut StdRng) -> Option<u64> {
    let commits: Vec<u64> = txns(lines).filter(|txn| claims(txn)).filter_map(|txn| txn.commit_ts).collect();
    commits.choose(dice).copied()
}

fn same_commit(lines: &mut [Line], dice: &mut StdRng) -> Option<()> {
    let ts = other_commit(lines, dice)?;
    any_txn(lines, dice, |txn| claims(txn) && txn.commit_ts.is_some_and(|other| other != ts))?.commit_ts = Some(ts);
    Some(())
}

fn same_start(lines: &mut [Line], dice: &mut StdRng) -> Option<()> {
    let ts = txns(lines).next()?.start_ts;
    any_txn(lines, dice, |txn| txn.start_ts != ts)?.start_ts = ts;
    Some(())
}

fn start_is_commit(lines: &mut [Line], dice: &mut StdRng) -> Option<()> {
    let ts = other_commit(lines, dice)?;
    any_txn(lines, dice, |txn| txn.commit_ts != Some(ts))?.start_ts = Some(ts);
    Some(())
}

fn commit_too_low(lines: &mut [Line], dice: &mut StdRng) -> Option<()> {
    let txn = any_txn(lines, dice, |txn| claims(txn) && txn.commit_ts.is_some() && txn.read_ts > 0)?;
    txn.start_ts = None;
    txn.commit_ts = Some(dice.random_range(txn.read_ts - 1..=txn.read_ts));
    Some(())
}

fn start_too_low(lines: &mut [Line], dice: &mut StdRng) -> Option<()> {
    let txn = any_txn(lines, dice, |_| true)?;
    txn.start_ts = Some(txn.read_ts.checked_sub(1)?);
    Some(())
}

fn start_too_high(lines: &mut [Line], dice: &mut StdRng) -> Option<()> {
    let txn = any_txn(lines, dice, |txn| claims(txn) && txn.commit_ts.is_some())?;
    txn.start_ts = txn.commit_ts.map(|ts| ts + dice.random_range(0..2));
    Some(())
}

fn session_back(lines: &mut [Line], dice: &mut StdRng) -> Option<()> {
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    let mut choices = Vec::new();
    for (at, txn) in txns(lines).enumerate() {
        let seen = last.entry(txn.session).or_default();
        if *seen > 0 {
            choices.push((at, *seen - 1));
        }
        if txn.outcome == Outcome::Committed {
            *seen = (*seen).max(txn.read_ts);
        }
    }
    let (at, read_ts) = *choices.choose(dice)?;
    txns_mut(lines).nth(at)?.read_ts = read_ts;
    Some(())
}

fn session_forgets(lines: &mut [Line], dice: &mut StdRng) -> Option<()> {
    let mut last: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut choices = Vec::new();
    for (at, txn) in txns(lines).enumerate() {
        let own = txn.commit_ts.filter(|_| claims(txn)).unwrap_or(0);
        if let Some((read_ts, commit_ts)) = last.insert(txn.session, (txn.read_ts, own))
            && commit_ts > read_ts + 1
        {
            choices.push((at, commit_ts - 1));
        }
    }
    let (at, read_ts) = *choices.choose(dice)?;
    let txn = txns_mut(lines).nth(at)?;
    txn.read_ts = read_ts;
    txn.began = None;
    Some(())
}

fn real_time(lines: &mut [Line], dice: &mut StdRng) -> Option<()> {
    let told: Vec<(u64, u64)> =
        txns(lines).filter(|txn| claims(txn)).filter_map(|txn| Some((txn.ended?, txn.commit_ts?))).collect();
    let newest = |txn: &Transaction| told.iter().filter(|(ended, _)| Some(*ended) < txn.began).map(|(_, ts)| *ts).max();
    let txn = any_txn(lines, dice, |txn| newest(txn).is_some())?;
    txn.read_ts = newest(txn)? - 1;
    // A session of its own, or it would be that order that shows.
    txn.session = 1000;
    Some(())
}
