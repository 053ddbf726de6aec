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

/// The lowest snapshot that shows each value.
fn first_shown(lines: &[Line]) -> HashMap<(&str, &str), u64> {
    let (keys, mut first) = (BTreeSet::new(), HashMap::new());
    for txn in transactions(lines) {
        let mut own = HashSet::new();
        for op in &txn.ops {
            if let Op::Write(key, Some(value)) = op {
                own.insert((&**key, &**value));
            }
            reads(op, &keys, |key, value| {
                if let Some(value) = value.filter(|value| !own.contains(&(key, *value))) {
                    let first = first.entry((key, value)).or_insert(txn.read_ts);
                    *first = txn.read_ts.min(*first);
                }
            });
        }
    }
    first
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
        let first_shown = first_shown(lines);
        for txn in transactions(lines) {
            let shown = txn.ops.iter().filter_map(|op| match op {
                Op::Write(key, Some(value)) => first_shown.get(&(&**key, &**value)).copied(),
                _ => None,
            });
            let shown = shown.min().filter(|_| txn.outcome == Outcome::Unknown);
            for op in &txn.ops {
                let Op::Write(key, value) = op else { continue };
                element += 1;
                if let Some(value) = value {
                    versions.elements.insert((key, value), element);
                }
                if let Some(commit_ts) = txn.commit_ts.or(shown) {
                    let version = Version { element, commit_ts, value: value.as_deref() };
                    versions.by_key.entry(key).or_default().push(version);
                }
            }
        }
        versions.by_key.values_mut().for_each(|versions| versions.sort_by_key(|version| version.commit_ts));
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
