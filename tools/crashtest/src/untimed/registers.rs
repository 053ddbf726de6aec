//! Registers: what was read shows who wrote it, but not the order of blind writes.
//!
//! Certain is, beside the constraints of the [parent](super): a transaction that read a register
//! and wrote it came directly after the version that it read, and who read nothing there came
//! before every writer. For the rest the writers of a register must be put in *some* order, of
//! which each pair is either way around:
//!
//! - U before W: `c(U) < s(W)`, and who read U's version has `s < c(W)`;
//! - W before U: the same with both names exchanged.
//!
//! The order in which the writers were answered is mostly right, and tried first. Otherwise: a pair
//! of which one way contradicts what is certain is certain itself; when nothing more follows, a
//! pair is tried, one way and then the other. So the search is complete; it gives up after a number
//! of trials.
//!
//! Deletions are writes, too, but all look the same: who finds no row does not show which deletion
//! it saw. Such a read is left out if a transaction may have deleted the register, unless the
//! reader itself has read or written the register before.

use std::collections::{HashMap, HashSet};

use crate::history::{Line, Op, Outcome};

use super::constraints::{Constraints, commit, snapshot};
use super::operations::{MISSING, Operations, Recorded, Step};
use super::{Converted, Error, with_timestamps};

/// The number of trials before the search gives up.
const TRIALS_MAX: usize = 300;

/// A register: who wrote it, and who read whose version (`None`: the initial one).
#[derive(Default)]
struct Register {
    writers: Vec<usize>,
    readers: HashMap<Option<usize>, Vec<usize>>,
}

/// Two writers of a register whose order is not known, first the one that was answered first.
#[derive(Clone, Copy)]
struct Pair<'a> {
    register: &'a Register,
    writers: [usize; 2],
}

/// The lines for the checker.
///
/// # Errors
/// [`Error::Undecided`] if the search has given up.
pub fn infer(operations: Operations) -> Result<Vec<Line>, Error> {
    let txns = convert(operations.txns);
    let registers = registers(&txns);
    let mut certain = Constraints::new(&txns);
    let mut pairs = Vec::new();
    for register in registers.values() {
        for (source, readers) in &register.readers {
            for reader in readers {
                if let Some(source) = source {
                    certain.add(commit(*source), snapshot(*reader));
                } else {
                    let others = register.writers.iter().filter(|writer| *writer != reader);
                    others.for_each(|writer| certain.add(snapshot(*reader), commit(*writer)));
                }
            }
        }
        for (at, first) in register.writers.iter().enumerate() {
            for second in &register.writers[at + 1..] {
                let mut writers = [*first, *second];
                writers.sort_by_key(|writer| txns[*writer].recorded.ended.unwrap_or(u64::MAX));
                let pair = Pair { register, writers };
                let [first, second] = writers.map(|writer| &txns[writer].recorded);
                if first.outcome == Outcome::Committed && first.ended.is_some_and(|ended| ended < second.began) {
                    pair.decide(&mut certain);
                } else {
                    pairs.push(pair);
                }
            }
        }
    }
    let mut trials = TRIALS_MAX;
    let found = search(certain.clone(), pairs, &mut trials);
    match found {
        Some(found) => Ok(with_timestamps(txns, found)),
        None if trials == 0 => Err(Error::Undecided),
        // There is no order. Whatever the timestamps are, the checker says what is wrong.
        None => Ok(with_timestamps(txns, certain)),
    }
}

fn convert(recorded: Vec<Recorded>) -> Vec<Converted> {
    let mut written_by = HashMap::new();
    for (number, txn) in recorded.iter().enumerate() {
        for step in &txn.steps {
            if let Step::Write(key, value) = step {
                written_by.insert((key.clone(), value.clone()), number);
            }
        }
    }
    let mut is_committed: Vec<bool> = recorded.iter().map(|txn| txn.outcome == Outcome::Committed).collect();
    for step in recorded.iter().flat_map(|txn| &txn.steps) {
        if let Step::Read(key, value) = step
            && let [value] = &value[..]
            && let Some(writer) = written_by.get(&(key.clone(), value.clone()))
        {
            is_committed[*writer] |= recorded[*writer].outcome == Outcome::Unknown;
        }
    }
    let deleted = deleted(&recorded);
    let txns = recorded.into_iter().zip(is_committed);
    txns.map(|(recorded, is_committed)| Converted { ops: convert_steps(&recorded, &deleted), recorded, is_committed })
        .collect()
}

/// The registers that a transaction may have deleted.
fn deleted(txns: &[Recorded]) -> HashSet<String> {
    let may_have_committed = txns.iter().filter(|txn| txn.outcome != Outcome::Aborted);
    let keys = may_have_committed.flat_map(|txn| &txn.steps).filter_map(|step| match step {
        Step::Write(key, value) if value == MISSING => Some(key.clone()),
        _ => None,
    });
    keys.collect()
}

fn convert_steps(txn: &Recorded, deleted: &HashSet<String>) -> Vec<Op> {
    let mut ops = Vec::new();
    let mut known = HashSet::new();
    for step in &txn.steps {
        match step {
            Step::Read(key, value) if value.is_empty() && deleted.contains(key) && !known.contains(key) => {}
            Step::Read(key, value) => {
                known.insert(key);
                ops.push(Op::Read(key.clone(), value.first().cloned()));
            }
            Step::Write(key, value) => {
                known.insert(key);
                ops.push(Op::Write(key.clone(), Some(value.clone()).filter(|value| value != MISSING)));
            }
        }
    }
    ops
}

/// The registers. Reads of own writes, of values without a committed writer, and of values that
/// their writer overwrote say nothing; the checker judges them.
fn registers(txns: &[Converted]) -> HashMap<&str, Register> {
    let mut registers: HashMap<&str, Register> = HashMap::new();
    let mut writers = HashMap::new();
    let mut last_values = HashMap::new();
    for (number, txn) in txns.iter().enumerate().filter(|(_, txn)| txn.is_committed) {
        for op in &txn.ops {
            let Op::Write(key, value) = op else { continue };
            let register = registers.entry(key).or_default();
            if register.writers.last() != Some(&number) {
                register.writers.push(number);
            }
            writers.insert((key, value), number);
            last_values.insert((key, number), value);
        }
    }
    for (number, txn) in txns.iter().enumerate() {
        let mut written = HashSet::new();
        for op in &txn.ops {
            let (key, value) = match op {
                Op::Read(key, value) if !written.contains(key) => (key, value),
                Op::Write(key, _) => {
                    written.insert(key);
                    continue;
                }
                _ => continue,
            };
            let Some(register) = registers.get_mut(&**key) else { continue };
            if value.is_none() {
                register.readers.entry(None).or_default().push(number);
            } else if let Some(writer) = writers.get(&(key, value))
                && *writer != number
                && last_values.get(&(key, *writer)) == Some(&value)
            {
                register.readers.entry(Some(*writer)).or_default().push(number);
            }
        }
    }
    registers
}

impl Pair<'_> {
    fn reversed(self) -> Self {
        let [first, second] = self.writers;
        Self { writers: [second, first], ..self }
    }

    /// Whether this order contradicts the constraints.
    fn is_impossible(self, constraints: &Constraints) -> bool {
        let [first, second] = self.writers;
        constraints.implies(snapshot(second), commit(first))
            || self.readers_of_first().any(|reader| constraints.implies(commit(second), snapshot(reader)))
    }

    fn readers_of_first(self) -> impl Iterator<Item = usize> {
        let [first, second] = self.writers;
        let readers = self.register.readers.get(&Some(first)).into_iter().flatten();
        readers.copied().filter(move |reader| *reader != second)
    }

    /// Adds what follows from this order.
    fn decide(self, constraints: &mut Constraints) {
        let [first, second] = self.writers;
        constraints.add(commit(first), snapshot(second));
        self.readers_of_first().for_each(|reader| constraints.add(snapshot(reader), commit(second)));
    }
}

/// Constraints without a cycle in which each pair has an order; `None` if there are none, or the
/// trials are used up.
fn search(mut constraints: Constraints, mut pairs: Vec<Pair>, trials: &mut usize) -> Option<Constraints> {
    if !constraints.is_satisfiable() {
        return None;
    }
    let mut as_answered = constraints.clone();
    pairs.iter().for_each(|pair| pair.decide(&mut as_answered));
    if as_answered.is_satisfiable() {
        return Some(as_answered);
    }
    loop {
        let before = pairs.len();
        let mut open = Vec::new();
        for pair in pairs {
            let impossible = [pair, pair.reversed()].map(|order| order.is_impossible(&constraints));
            match impossible {
                [true, true] => return None,
                [true, false] => pair.reversed().decide(&mut constraints),
                [false, true] => pair.decide(&mut constraints),
                [false, false] => open.push(pair),
            }
        }
        pairs = open;
        if pairs.len() == before || pairs.is_empty() {
            break;
        }
    }
    let Some(pair) = pairs.pop() else { return constraints.is_satisfiable().then_some(constraints) };
    for order in [pair, pair.reversed()] {
        *trials = trials.checked_sub(1)?;
        let mut tried = constraints.clone();
        order.decide(&mut tried);
        if let Some(found) = search(tried, pairs.clone(), trials) {
            return Some(found);
        }
        if *trials == 0 {
            return None;
        }
    }
    None
}
