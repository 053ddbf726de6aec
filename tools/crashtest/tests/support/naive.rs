//! Snapshot isolation by its definition: a slow comparison of every pair of transactions, which
//! shares no code with the checker.

use std::collections::{BTreeMap, BTreeSet};

use percolite_crashtest::history::{Line, Op, Outcome, Transaction};

/// Whether a store with snapshot isolation can have given these answers. Tries every combination of
/// outcomes for the transactions of unknown outcome, with their commits at every timestamp up to
/// one above the largest in the history.
pub fn is_valid(lines: &[Line]) -> bool {
    let mut initial = BTreeMap::new();
    let mut txns = Vec::new();
    for line in lines {
        match line {
            Line::Initial(rows) => initial.extend(rows.iter().cloned()),
            Line::Transaction(txn) => txns.push(txn),
            Line::Crash => {}
        }
    }
    let locked: Vec<BTreeSet<&str>> = txns.iter().map(|txn| locked_keys(txn)).collect();
    let commits: Vec<Option<u64>> =
        txns.iter().zip(&locked).map(|(txn, locked)| txn.commit_ts.filter(|_| !locked.is_empty())).collect();
    let open: Vec<usize> = (0..txns.len())
        .filter(|at| txns[*at].outcome == Outcome::Unknown && commits[*at].is_none() && !locked[*at].is_empty())
        .collect();
    let largest = txns.iter().flat_map(|txn| [Some(txn.read_ts), txn.start_ts, txn.commit_ts]).flatten().max();
    let case = Histories { initial, txns, locked };
    case.any_outcome(commits, &open, largest.unwrap_or(0) + 1)
}

fn locked_keys(txn: &Transaction) -> BTreeSet<&str> {
    let locked = txn.ops.iter().filter_map(|op| match op {
        Op::Write(key, _) | Op::ReadForUpdate(key, _) => Some(key.as_str()),
        _ => None,
    });
    locked.collect()
}

struct Histories<'a> {
    initial: BTreeMap<String, String>,
    txns: Vec<&'a Transaction>,
    locked: Vec<BTreeSet<&'a str>>,
}

type Rows = BTreeMap<String, String>;

impl Histories<'_> {
    fn any_outcome(&self, mut commits: Vec<Option<u64>>, open: &[usize], largest: u64) -> bool {
        let Some((first, rest)) = open.split_first() else { return self.is_valid(&commits) };
        if self.any_outcome(commits.clone(), rest, largest) {
            return true;
        }
        (1..=largest).any(|ts| {
            commits[*first] = Some(ts);
            self.any_outcome(commits.clone(), rest, largest)
        })
    }

    fn is_valid(&self, commits: &[Option<u64>]) -> bool {
        let indices = || 0..self.txns.len();
        indices().all(|a| self.is_valid_alone(a, commits))
            && indices().all(|a| indices().all(|b| a == b || self.is_valid_pair(a, b, commits)))
    }

    fn is_valid_alone(&self, at: usize, commits: &[Option<u64>]) -> bool {
        let txn = self.txns[at];
        let in_order = match (txn.start_ts, commits[at]) {
            (None, None) => true,
            (None, Some(commit_ts)) => txn.read_ts < commit_ts,
            (Some(start_ts), None) => txn.read_ts <= start_ts,
            (Some(start_ts), Some(commit_ts)) => txn.read_ts <= start_ts && start_ts < commit_ts,
        };
        let mut state = self.state_at(txn.read_ts, commits);
        in_order
            && txn.ops.iter().all(|op| match op {
                Op::Read(key, value) | Op::ReadForUpdate(key, value) => state.get(key) == value.as_ref(),
                Op::Write(key, value) => {
                    write(&mut state, key, value.as_ref());
                    true
                }
                Op::Scan { from, to, rows } => {
                    let inside = |key: &String| key >= from && to.as_ref().is_none_or(|to| key < to);
                    let expected: Vec<_> =
                        state.iter().filter(|(key, _)| inside(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
                    let mut shown = rows.clone();
                    shown.sort();
                    shown == expected
                }
            })
    }

    fn state_at(&self, ts: u64, commits: &[Option<u64>]) -> Rows {
        let mut state = self.initial.clone();
        let mut done: Vec<(u64, usize)> =
            commits.iter().enumerate().filter_map(|(at, ts)| Some(((*ts)?, at))).collect();
        done.sort_unstable();
        for (_, at) in done.into_iter().take_while(|(commit_ts, _)| *commit_ts <= ts) {
            for op in &self.txns[at].ops {
                if let Op::Write(key, value) = op {
                    write(&mut state, key, value.as_ref());
                }
            }
        }
        state
    }

    fn is_valid_pair(&self, a: usize, b: usize, commits: &[Option<u64>]) -> bool {
        let (first, second) = (self.txns[a], self.txns[b]);
        let acknowledged = if first.outcome == Outcome::Committed { commits[a] } else { None };
        let issued = |at: usize| [self.txns[at].start_ts, commits[at]].into_iter().flatten();
        let unique = issued(a).all(|ts| issued(b).all(|other| ts != other));
        let no_conflict = match (commits[a], commits[b]) {
            (Some(end_a), Some(end_b)) => {
                end_a <= second.read_ts || end_b <= first.read_ts || self.locked[a].is_disjoint(&self.locked[b])
            }
            _ => true,
        };
        let session = first.session != second.session
            || a > b
            || first.outcome != Outcome::Committed
            || (first.read_ts <= second.read_ts && acknowledged.is_none_or(|ts| ts <= second.read_ts));
        let read = first.began.filter(|_| first.outcome == Outcome::Committed).map(|_| first.read_ts);
        let real_time = match (acknowledged.or(read), first.ended, second.began) {
            (Some(ts), Some(ended), Some(began)) => began <= ended || ts <= second.read_ts,
            _ => true,
        };
        unique && no_conflict && session && real_time
    }
}

fn write(state: &mut Rows, key: &str, value: Option<&String>) {
    match value {
        Some(value) => state.insert(key.to_owned(), value.clone()),
        None => state.remove(key),
    };
}
