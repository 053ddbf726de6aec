//! The order of events, and timestamps from it.

use std::collections::{BTreeSet, HashMap};

use crate::history::Outcome;

use super::Converted;

/// The timestamps of a transaction.
pub struct Times {
    /// Its snapshot.
    pub read_ts: u64,
    /// Its commit, if it committed.
    pub commit_ts: u64,
}

/// The snapshot of a transaction as an event.
pub fn snapshot(txn: usize) -> usize {
    2 * txn
}

/// The commit of a transaction as an event.
pub fn commit(txn: usize) -> usize {
    2 * txn + 1
}

/// Constraints between events. An edge means "before".
#[derive(Clone)]
pub struct Constraints {
    after: Vec<Vec<u32>>,
    txns: usize,
    /// Where an event would be by the positions in the history; for a choice among free ones.
    positions: Vec<u64>,
}

impl Constraints {
    /// The constraints that do not depend on values: each transaction's own, acknowledgements and
    /// sessions.
    ///
    /// Acknowledgements use an event for each of them, in their order: all that was acknowledged
    /// before a transaction began is before its snapshot, with one edge each.
    pub fn new(txns: &[Converted]) -> Self {
        let mut answers: Vec<(u64, usize)> = (0..)
            .zip(txns)
            .filter(|(_, txn)| txn.recorded.outcome == Outcome::Committed)
            .filter_map(|(at, txn)| Some((txn.recorded.ended?, at)))
            .collect();
        answers.sort_unstable();
        let events = 2 * txns.len() + answers.len();
        let mut constraints = Self { after: vec![Vec::new(); events], txns: txns.len(), positions: vec![0; events] };
        let answer_event = |number: usize| 2 * txns.len() + number;
        for (number, (ended, txn)) in answers.iter().enumerate() {
            constraints.positions[answer_event(number)] = *ended;
            let newest = if txns[*txn].writes() { commit(*txn) } else { snapshot(*txn) };
            constraints.add(newest, answer_event(number));
            if number > 0 {
                constraints.add(answer_event(number - 1), answer_event(number));
            }
        }
        let mut last_of_session: HashMap<u64, usize> = HashMap::new();
        let mut in_order: Vec<usize> = (0..txns.len()).collect();
        in_order.sort_unstable_by_key(|txn| txns[*txn].recorded.began);
        for txn in in_order {
            let recorded = &txns[txn].recorded;
            constraints.positions[snapshot(txn)] = recorded.began;
            constraints.positions[commit(txn)] = recorded.ended.unwrap_or(recorded.began);
            constraints.add(snapshot(txn), commit(txn));
            let earlier = answers.partition_point(|(ended, _)| *ended < recorded.began);
            if earlier > 0 {
                constraints.add(answer_event(earlier - 1), snapshot(txn));
            }
            if let Some(last) = last_of_session.get(&recorded.process) {
                // Also of two that overlap: the client had begun the commit of the first.
                let earlier = if txns[*last].writes() { commit(*last) } else { snapshot(*last) };
                constraints.add(earlier, snapshot(txn));
            }
            if recorded.outcome == Outcome::Committed {
                last_of_session.insert(recorded.process, txn);
            }
        }
        constraints
    }

    /// The earlier event is before the later one.
    pub fn add(&mut self, earlier: usize, later: usize) {
        // The number of transactions fits into 31 bits: the checker refuses more.
        if let Ok(later) = u32::try_from(later)
            && earlier != later as usize
        {
            self.after[earlier].push(later);
        }
    }

    /// Whether the constraints already say that `earlier` is before `later`, or is it.
    pub fn implies(&self, earlier: usize, later: usize) -> bool {
        let mut seen = vec![false; self.after.len()];
        let mut open = vec![earlier];
        while let Some(event) = open.pop() {
            if event == later {
                return true;
            }
            if !std::mem::replace(&mut seen[event], true) {
                open.extend(self.after[event].iter().map(|next| *next as usize));
            }
        }
        false
    }

    /// Whether some order satisfies all constraints.
    pub fn is_satisfiable(&self) -> bool {
        self.order().1
    }

    /// An order of all events, and whether it satisfies all constraints. If there is a cycle, the
    /// event that comes first in the history goes first, and some constraints are violated.
    fn order(&self) -> (Vec<usize>, bool) {
        let mut missing = vec![0_u32; self.after.len()];
        for later in self.after.iter().flatten() {
            missing[*later as usize] += 1;
        }
        let place = |event: usize| (self.positions[event], event);
        let mut free: BTreeSet<_> = (0..missing.len()).filter(|event| missing[*event] == 0).map(place).collect();
        let mut waiting: BTreeSet<_> = (0..missing.len()).filter(|event| missing[*event] > 0).map(place).collect();
        let mut is_satisfied = true;
        let mut order = Vec::new();
        while let Some((_, event)) = free.pop_first().or_else(|| {
            is_satisfied &= waiting.is_empty();
            waiting.pop_first()
        }) {
            order.push(event);
            for later in self.after[event].iter().map(|later| *later as usize) {
                missing[later] -= 1;
                if missing[later] == 0 && waiting.remove(&place(later)) {
                    free.insert(place(later));
                }
            }
        }
        (order, is_satisfied)
    }

    /// Timestamps of all transactions.
    pub fn times(&self) -> Vec<Times> {
        let mut at = vec![0; self.after.len()];
        for (time, event) in (1..).zip(self.order().0) {
            at[event] = time;
        }
        (0..self.txns).map(|txn| Times { read_ts: at[snapshot(txn)], commit_ts: at[commit(txn)] }).collect()
    }
}
