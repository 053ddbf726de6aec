//! Queries on a history that the mutations share.

use percolite_crashtest::history::{Line, Op, Transaction};
use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

pub fn txns(lines: &[Line]) -> impl Iterator<Item = &Transaction> {
    lines.iter().filter_map(|line| match line {
        Line::Transaction(txn) => Some(txn),
        _ => None,
    })
}

pub fn txns_mut(lines: &mut [Line]) -> impl Iterator<Item = &mut Transaction> {
    lines.iter_mut().filter_map(|line| match line {
        Line::Transaction(txn) => Some(txn),
        _ => None,
    })
}

/// A random transaction that matches.
pub fn any_txn<'a>(
    lines: &'a mut [Line],
    rng: &mut StdRng,
    wanted: impl Fn(&Transaction) -> bool,
) -> Option<&'a mut Transaction> {
    let mut fitting: Vec<_> = txns_mut(lines).filter(|txn| wanted(txn)).collect();
    if fitting.is_empty() { None } else { Some(fitting.swap_remove(rng.random_range(0..fitting.len()))) }
}

pub fn writes<'a>(txn: &'a Transaction, key: &'a str) -> impl Iterator<Item = Option<String>> + 'a {
    txn.ops.iter().filter_map(move |op| match op {
        Op::Write(written, value) if written == key => Some(value.clone()),
        _ => None,
    })
}

/// The committed values of a row with their timestamps, beginning with the initial value.
pub fn versions(lines: &[Line], key: &str) -> Vec<(u64, Option<String>)> {
    let mut versions = vec![(0, None)];
    if let Some(Line::Initial(rows)) = lines.first() {
        versions[0].1 = rows.iter().find(|(initial, _)| initial == key).map(|(_, value)| value.clone());
    }
    versions.extend(txns(lines).filter_map(|txn| Some((txn.commit_ts?, writes(txn, key).last()?))));
    versions.sort_by_key(|(ts, _)| *ts);
    versions
}

pub fn locks_rows(txn: &Transaction) -> bool {
    txn.ops.iter().any(|op| matches!(op, Op::Write(..) | Op::ReadForUpdate(..)))
}

pub fn other_commit(lines: &[Line], rng: &mut StdRng) -> Option<u64> {
    let commits: Vec<u64> = txns(lines).filter(|txn| locks_rows(txn)).filter_map(|txn| txn.commit_ts).collect();
    commits.choose(rng).copied()
}
