//! Changes of timestamps and of the order of sessions.

use std::collections::{BTreeMap, BTreeSet};

use percolite_crashtest::history::{Line, Op, Outcome, Transaction};
use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

use crate::lines::*;

pub fn overlap(lines: &mut [Line], rng: &mut StdRng) -> Option<()> {
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
    let txn = any_txn(lines, rng, |txn| txn.commit_ts.is_some() && before(txn).is_some())?;
    txn.read_ts = before(txn)? - 1;
    Some(())
}

pub fn same_commit(lines: &mut [Line], rng: &mut StdRng) -> Option<()> {
    let ts = other_commit(lines, rng)?;
    any_txn(lines, rng, |txn| locks_rows(txn) && txn.commit_ts.is_some_and(|other| other != ts))?.commit_ts = Some(ts);
    Some(())
}

pub fn same_start(lines: &mut [Line], rng: &mut StdRng) -> Option<()> {
    let ts = txns(lines).next()?.start_ts;
    any_txn(lines, rng, |txn| txn.start_ts != ts)?.start_ts = ts;
    Some(())
}

pub fn start_is_commit(lines: &mut [Line], rng: &mut StdRng) -> Option<()> {
    let ts = other_commit(lines, rng)?;
    any_txn(lines, rng, |txn| txn.commit_ts != Some(ts))?.start_ts = Some(ts);
    Some(())
}

pub fn commit_too_low(lines: &mut [Line], rng: &mut StdRng) -> Option<()> {
    let txn = any_txn(lines, rng, |txn| locks_rows(txn) && txn.commit_ts.is_some() && txn.read_ts > 0)?;
    txn.start_ts = None;
    txn.commit_ts = Some(rng.random_range(txn.read_ts - 1..=txn.read_ts));
    Some(())
}

pub fn start_too_low(lines: &mut [Line], rng: &mut StdRng) -> Option<()> {
    let txn = any_txn(lines, rng, |_| true)?;
    txn.start_ts = Some(txn.read_ts.checked_sub(1)?);
    Some(())
}

pub fn start_too_high(lines: &mut [Line], rng: &mut StdRng) -> Option<()> {
    let txn = any_txn(lines, rng, |txn| locks_rows(txn) && txn.commit_ts.is_some())?;
    txn.start_ts = txn.commit_ts.map(|ts| ts + rng.random_range(0..2));
    Some(())
}

pub fn session_goes_back(lines: &mut [Line], rng: &mut StdRng) -> Option<()> {
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
    let (at, read_ts) = *choices.choose(rng)?;
    txns_mut(lines).nth(at)?.read_ts = read_ts;
    Some(())
}

pub fn session_misses_commit(lines: &mut [Line], rng: &mut StdRng) -> Option<()> {
    let mut last: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut choices = Vec::new();
    for (at, txn) in txns(lines).enumerate() {
        let own = txn.commit_ts.filter(|_| locks_rows(txn)).unwrap_or(0);
        if let Some((read_ts, commit_ts)) = last.insert(txn.session, (txn.read_ts, own))
            && commit_ts > read_ts + 1
        {
            choices.push((at, commit_ts - 1));
        }
    }
    let (at, read_ts) = *choices.choose(rng)?;
    let txn = txns_mut(lines).nth(at)?;
    txn.read_ts = read_ts;
    txn.began = None;
    Some(())
}

pub fn real_time(lines: &mut [Line], rng: &mut StdRng) -> Option<()> {
    let acknowledged: Vec<(u64, u64)> =
        txns(lines).filter(|txn| locks_rows(txn)).filter_map(|txn| Some((txn.ended?, txn.commit_ts?))).collect();
    let newest =
        |txn: &Transaction| acknowledged.iter().filter(|(ended, _)| Some(*ended) < txn.began).map(|(_, ts)| *ts).max();
    let txn = any_txn(lines, rng, |txn| newest(txn).is_some())?;
    txn.read_ts = newest(txn)? - 1;
    // The transaction gets a session of its own. In its old session it would violate the session
    // order as well.
    txn.session = 1000;
    Some(())
}
