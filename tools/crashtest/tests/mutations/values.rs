//! Changes of values that were read and written.

use std::collections::BTreeSet;

use percolite_crashtest::history::{Line, Op, Outcome, Transaction};
use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

use crate::lines::*;

/// Changes one read that does not return the reader's own write. `choose` returns the possible
/// values.
pub fn change_read(
    lines: &mut [Line],
    rng: &mut StdRng,
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
    let (at, step, value) = choices.choose(rng)?.clone();
    let Op::Read(_, slot) = &mut txns_mut(lines).nth(at)?.ops[step] else { return None };
    *slot = value;
    Some(())
}

pub fn older(lines: &mut [Line], rng: &mut StdRng) -> Option<()> {
    change_read(lines, rng, |lines, txn, key, value| {
        let versions = versions(lines, key);
        let seen = versions.iter().rposition(|(ts, _)| *ts <= txn.read_ts).unwrap();
        let later: BTreeSet<_> = versions[seen..].iter().map(|(_, value)| value.clone()).collect();
        let older = versions[..seen].iter().map(|(_, value)| value.clone());
        older.filter(|old| old != value && !later.contains(old)).collect()
    })
}

pub fn later(lines: &mut [Line], rng: &mut StdRng) -> Option<()> {
    change_read(lines, rng, |lines, txn, key, _| {
        let later = versions(lines, key).into_iter().filter(|(ts, value)| *ts > txn.read_ts && value.is_some());
        later.map(|(_, value)| value).collect()
    })
}

pub fn aborted(lines: &mut [Line], rng: &mut StdRng) -> Option<()> {
    change_read(lines, rng, |lines, reader, key, _| {
        let aborted = txns(lines).filter(|txn| txn.outcome == Outcome::Aborted && *txn != reader);
        aborted.filter_map(|txn| writes(txn, key).last()).filter(Option::is_some).collect()
    })
}

pub fn intermediate(lines: &mut [Line], rng: &mut StdRng) -> Option<()> {
    change_read(lines, rng, |lines, reader, key, _| {
        let mut values = Vec::new();
        for txn in txns(lines).filter(|txn| *txn != reader) {
            let mut written: Vec<_> = writes(txn, key).collect();
            written.pop();
            values.extend(written.into_iter().filter(Option::is_some));
        }
        values
    })
}

pub fn garbage(lines: &mut [Line], rng: &mut StdRng) -> Option<()> {
    change_read(lines, rng, |_, _, _, _| vec![Some("unwritten".into())])
}

pub fn own_write(lines: &mut [Line], rng: &mut StdRng) -> Option<()> {
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
    let txn = any_txn(lines, rng, |txn| reads_own(txn).is_some())?;
    let step = reads_own(txn)?;
    let Op::Read(_, value) = &mut txn.ops[step] else { return None };
    *value = if rng.random() { None } else { Some("another's".into()) };
    Some(())
}

pub fn second_read(lines: &mut [Line], rng: &mut StdRng) -> Option<()> {
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
    let txn = any_txn(lines, rng, |txn| other(txn).is_some())?;
    let op = other(txn)?;
    txn.ops.push(op);
    Some(())
}

pub fn scan<'a>(lines: &'a mut [Line], rng: &mut StdRng, wanted: fn(&Op) -> bool) -> Option<&'a mut Op> {
    any_txn(lines, rng, |txn| txn.ops.iter().any(wanted))?.ops.iter_mut().find(|op| wanted(op))
}

pub fn missed(lines: &mut [Line], rng: &mut StdRng) -> Option<()> {
    let Op::Scan { rows, .. } = scan(lines, rng, |op| matches!(op, Op::Scan { rows, .. } if !rows.is_empty()))? else {
        return None;
    };
    rows.remove(rng.random_range(0..rows.len()));
    Some(())
}

pub fn deleted_row(lines: &mut [Line], rng: &mut StdRng) -> Option<()> {
    let written: Vec<(String, String)> = txns(lines)
        .flat_map(|txn| &txn.ops)
        .filter_map(|op| match op {
            Op::Write(key, Some(value)) => Some((key.clone(), value.clone())),
            _ => None,
        })
        .collect();
    let Op::Scan { from, to, rows } = scan(lines, rng, |op| matches!(op, Op::Scan { .. }))? else { return None };
    let absent = |key: &String| rows.iter().all(|(shown, _)| shown != key);
    let inside = |key: &String| key >= from && to.as_ref().is_none_or(|to| key < to);
    let deleted: Vec<_> = written.iter().filter(|(key, _)| inside(key) && absent(key)).collect();
    let row = (*deleted.choose(rng)?).clone();
    rows.push(row);
    Some(())
}

pub fn twice(lines: &mut [Line], rng: &mut StdRng) -> Option<()> {
    let Op::Scan { rows, .. } = scan(lines, rng, |op| matches!(op, Op::Scan { rows, .. } if !rows.is_empty()))? else {
        return None;
    };
    let row = rows.choose(rng)?.clone();
    rows.push(row);
    Some(())
}

pub fn outside(lines: &mut [Line], rng: &mut StdRng) -> Option<()> {
    let Op::Scan { from, rows, .. } = scan(lines, rng, |op| matches!(op, Op::Scan { rows, .. } if !rows.is_empty()))?
    else {
        return None;
    };
    let key = rows.iter().map(|(key, _)| key.clone()).min()?;
    *from = format!("{key}!");
    Some(())
}

pub fn dropped(lines: &mut [Line], rng: &mut StdRng) -> Option<()> {
    let txn = any_txn(lines, rng, |txn| {
        txn.commit_ts.is_some() && txn.ops.iter().any(|op| matches!(op, Op::Write(_, Some(_))))
    })?;
    txn.outcome = Outcome::Aborted;
    txn.commit_ts = None;
    let id = txn.clone();
    // The lost commit is detectable only if another transaction has read one of its values.
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

pub fn write_dropped(lines: &mut [Line], rng: &mut StdRng) -> Option<()> {
    let seen: BTreeSet<String> = txns(lines)
        .flat_map(|txn| {
            txn.ops.iter().filter_map(|op| match op {
                Op::Read(key, Some(value)) if writes(txn, key).next().is_none() => Some(value.clone()),
                _ => None,
            })
        })
        .collect();
    let wanted = |op: &Op| matches!(op, Op::Write(_, Some(value)) if seen.contains(value));
    let txn = any_txn(lines, rng, |txn| txn.commit_ts.is_some() && txn.ops.iter().any(wanted))?;
    let step = txn.ops.iter().position(wanted)?;
    let Op::Write(key, value) = txn.ops[step].clone() else { return None };
    txn.ops[step] = Op::Write(key, value.map(|value| format!("not {value}")));
    Some(())
}
