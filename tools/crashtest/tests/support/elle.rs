//! Histories with timestamps in the form of Elle, without them.
//!
//! As registers, a scan is a read of each row of its range, and a deletion writes `null`. As lists,
//! each version of a row is an element, deletions too, in the order of the commits; a read shows
//! all elements up to the version that it found.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use percolite_crashtest::history::{Line, Op, Outcome, Transaction};
use serde_json::{Value, json};

/// The history as registers.
pub fn as_registers(lines: &[Line]) -> String {
    let keys = keys(lines);
    events(lines, |txn| {
        let mut steps = Vec::new();
        for op in &txn.ops {
            match op {
                Op::Write(key, value) => steps.push(json!(["w", key, value])),
                read => reads(read, &keys, |key, value| steps.push(json!(["r", key, value]))),
            }
        }
        steps
    })
}

/// The history as lists.
pub fn as_lists(lines: &[Line]) -> String {
    let (keys, versions) = (keys(lines), Versions::new(lines));
    let mut element = 0;
    events(lines, |txn| {
        let mut steps = Vec::new();
        let mut own: HashMap<&str, Vec<(u64, Option<&str>)>> = HashMap::new();
        for op in &txn.ops {
            if let Op::Write(key, value) = op {
                element += 1;
                own.entry(key).or_default().push((element, value.as_deref()));
                steps.push(json!(["append", key, element]));
            } else {
                reads(op, &keys, |key, value| {
                    let own = own.get(key).map_or(&[][..], Vec::as_slice);
                    steps.push(json!(["r", key, versions.shown(key, value, txn.read_ts, own)]));
                });
            }
        }
        steps
    })
}

fn transactions(lines: &[Line]) -> impl Iterator<Item = &Transaction> {
    lines.iter().filter_map(|line| if let Line::Transaction(txn) = line { Some(txn) } else { None })
}

fn keys(lines: &[Line]) -> BTreeSet<&str> {
    let ops = transactions(lines).flat_map(|txn| &txn.ops);
    let keys = ops.filter_map(|op| match op {
        Op::Read(key, _) | Op::ReadForUpdate(key, _) | Op::Write(key, _) => Some(&**key),
        Op::Scan { .. } => None,
    });
    keys.collect()
}

/// What a snapshot shows of the rows that were read before they were written.
struct Shown<'a> {
    read_ts: u64,
    rows: HashMap<&'a str, Option<&'a str>>,
}

fn snapshots(lines: &[Line]) -> Vec<Shown<'_>> {
    let keys = keys(lines);
    let shown = transactions(lines).map(|txn| {
        let (mut own, mut rows) = (HashSet::new(), HashMap::new());
        for op in &txn.ops {
            if let Op::Write(key, _) = op {
                own.insert(&**key);
            }
            reads(op, &keys, |key, value| {
                if !own.contains(key) {
                    rows.insert(key, value);
                }
            });
        }
        Shown { read_ts: txn.read_ts, rows }
    });
    shown.collect()
}

/// The versions whose transactions have a commit timestamp, by their rows.
fn timed_versions(lines: &[Line]) -> HashMap<&str, Vec<(u64, Option<&str>)>> {
    let mut versions: HashMap<_, Vec<_>> = HashMap::new();
    for txn in transactions(lines) {
        for op in &txn.ops {
            if let (Op::Write(key, value), Some(commit_ts)) = (op, txn.commit_ts) {
                versions.entry(&**key).or_default().push((commit_ts, value.as_deref()));
            }
        }
    }
    versions.values_mut().for_each(|versions| versions.sort_unstable());
    versions
}

/// When a transaction without a commit timestamp had committed: the lowest snapshot that shows a
/// write of it, or the commit of a later version that a snapshot from there on shows instead.
fn committed_by(
    txn: &Transaction,
    snapshots: &[Shown<'_>],
    timed: &HashMap<&str, Vec<(u64, Option<&str>)>>,
) -> Option<u64> {
    let written: HashMap<&str, Option<&str>> = (txn.ops.iter())
        .filter_map(|op| if let Op::Write(key, value) = op { Some((&**key, value.as_deref())) } else { None })
        .collect();
    let shows = |shown: &&Shown<'_>| {
        written.iter().any(|(key, value)| value.is_some() && shown.rows.get(key).is_some_and(|found| found == value))
    };
    let mut by = snapshots.iter().filter(shows).map(|shown| shown.read_ts).min()?;
    loop {
        let later = snapshots.iter().filter(|shown| shown.read_ts >= by).flat_map(|shown| {
            let other = written.iter().filter_map(|(key, value)| {
                let found = *shown.rows.get(key).filter(|found| *found != value)?;
                let versions = timed.get(key)?.iter().rev();
                versions.copied().find(|version| version.0 <= shown.read_ts && version.1 == found)
            });
            other.map(|(commit_ts, _)| commit_ts)
        });
        match later.min().filter(|commit_ts| *commit_ts < by) {
            Some(earlier) => by = earlier,
            None => return Some(by),
        }
    }
}

/// What a read shows of each row.
fn reads<'a>(op: &'a Op, keys: &BTreeSet<&'a str>, mut shown: impl FnMut(&'a str, Option<&'a str>)) {
    match op {
        Op::Read(key, value) | Op::ReadForUpdate(key, value) => shown(key, value.as_deref()),
        Op::Scan { from, to, rows } => {
            let mut found: BTreeMap<&str, Option<&str>> = keys
                .range(&**from..)
                .take_while(|key| to.as_deref().is_none_or(|to| **key < to))
                .map(|key| (*key, None))
                .collect();
            found.extend(rows.iter().map(|(key, value)| (&**key, Some(&**value))));
            found.into_iter().for_each(|(key, value)| shown(key, value));
        }
        Op::Write(..) => {}
    }
}

/// A version of a row.
struct Version<'a> {
    element: u64,
    commit_ts: u64,
    is_timed: bool,
    value: Option<&'a str>,
}

struct Versions<'a> {
    by_key: HashMap<&'a str, Vec<Version<'a>>>,
    elements: HashMap<(&'a str, &'a str), u64>,
}

impl<'a> Versions<'a> {
    /// The elements are the numbers of the writes, as [`as_lists`] counts them.
    fn new(lines: &'a [Line]) -> Self {
        let mut versions = Self { by_key: HashMap::new(), elements: HashMap::new() };
        let mut element = 0;
        let (snapshots, timed) = (snapshots(lines), timed_versions(lines));
        for txn in transactions(lines) {
            let is_open = txn.commit_ts.is_none() && txn.outcome == Outcome::Unknown;
            let by = if is_open { committed_by(txn, &snapshots, &timed) } else { None };
            for op in &txn.ops {
                let Op::Write(key, value) = op else { continue };
                element += 1;
                if let Some(value) = value {
                    versions.elements.insert((key, value), element);
                }
                if let Some(commit_ts) = txn.commit_ts.or(by) {
                    let version =
                        Version { element, commit_ts, is_timed: txn.commit_ts.is_some(), value: value.as_deref() };
                    versions.by_key.entry(key).or_default().push(version);
                }
            }
        }
        versions
            .by_key
            .values_mut()
            .for_each(|versions| versions.sort_by_key(|version| (version.commit_ts, version.is_timed)));
        versions
    }

    /// The list that a read shows which has found this value.
    fn shown(&self, key: &str, value: Option<&str>, read_ts: u64, own: &[(u64, Option<&str>)]) -> Vec<u64> {
        let versions = self.by_key.get(key).map_or(&[][..], Vec::as_slice);
        let snapshot = versions.partition_point(|version| version.commit_ts <= read_ts);
        let elements = |count: usize| versions[..count].iter().map(|version| version.element);
        let expected = own
            .last()
            .map_or_else(|| snapshot.checked_sub(1).and_then(|last| versions[last].value), |(_, value)| *value);
        if value == expected {
            return elements(snapshot).chain(own.iter().map(|(element, _)| *element)).collect();
        }
        // The store is wrong. It shows another version, or a value that is none.
        match versions.iter().rposition(|version| version.value == value) {
            Some(place) => elements(place + 1).collect(),
            None if value.is_none() => Vec::new(),
            None => {
                let written = value.and_then(|value| self.elements.get(&(key, value)));
                elements(snapshot).chain([written.copied().unwrap_or(u64::from(u32::MAX))]).collect()
            }
        }
    }
}

/// The invocations and answers as JSON lines, by their times.
fn events<'a>(lines: &'a [Line], mut steps: impl FnMut(&'a Transaction) -> Vec<Value>) -> String {
    let mut events = Vec::new();
    for (number, txn) in transactions(lines).enumerate() {
        let kind = match txn.outcome {
            Outcome::Committed => "ok",
            Outcome::Aborted => "fail",
            Outcome::Unknown => "info",
        };
        // Without both times the transaction has a client of its own, at any time.
        let process = match (txn.began, txn.ended) {
            (Some(_), Some(_)) => txn.session,
            _ => u64::from(u32::MAX) + number as u64,
        };
        let value = steps(txn);
        let event = |kind: &str| json!({"type": kind, "process": process, "f": "txn", "value": value});
        events.push(((txn.began.unwrap_or_default(), 1), event("invoke")));
        events.push(((txn.ended.unwrap_or(u64::MAX), 0), event(kind)));
    }
    events.sort_by_key(|(at, _)| *at);
    events.into_iter().map(|(_, event)| format!("{event}\n")).collect()
}
