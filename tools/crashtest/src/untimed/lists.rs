//! List-append: what was read shows the order of the appends.
//!
//! The longest list that a committed transaction read of a row is the order of its versions. An
//! append becomes a write of the whole list up to its element, with a read of the list before it:
//! by "first committer wins" the version before it is what its snapshot shows. So an element that
//! an aborted transaction appended, or none at all, is found even if only longer lists were read.
//!
//! An append that no list shows has no place in the order. Certain is that it came after all that
//! was read, and that no reader of the longest list saw it. It becomes a row of its own, which
//! these readers found missing; one that appends, too, was over before. The order of several such
//! appends of transactions that did not read the list is left out: no read shows it.

use std::collections::{HashMap, HashSet};

use crate::history::{Line, Op, Outcome};

use super::constraints::{Constraints, commit, snapshot};
use super::operations::{Operations, Step};
use super::{Converted, with_timestamps};

/// The lists that were read.
struct Lists {
    /// The longest list of each row.
    longest: HashMap<String, Vec<String>>,
    /// The place of each element in the longest list of its row.
    places: HashMap<(String, String), usize>,
    /// Elements that are in no list, and must have been appended.
    unread: HashMap<String, Vec<String>>,
}

/// The list as the value of a row; an empty list is no row.
fn text(elements: &[String]) -> Option<String> {
    (!elements.is_empty()).then(|| format!("[{}]", elements.join(",")))
}

/// The row of an append that no list shows.
fn row_of(key: &str, element: &str) -> String {
    format!("{key} append {element}")
}

impl Lists {
    fn new(operations: &Operations) -> Self {
        let mut longest: HashMap<String, Vec<String>> = HashMap::new();
        for step in operations.txns.iter().flat_map(|txn| &txn.steps) {
            if let Step::Read(key, elements) = step {
                let known = longest.entry(key.clone()).or_default();
                if elements.len() > known.len() {
                    known.clone_from(elements);
                }
            }
        }
        let mut places = HashMap::new();
        for (key, elements) in &longest {
            for (place, element) in elements.iter().enumerate() {
                places.entry((key.clone(), element.clone())).or_insert(place);
            }
        }
        Self { longest, places, unread: HashMap::new() }
    }

    fn place(&self, key: &str, element: &str) -> Option<usize> {
        self.places.get(&(key.to_owned(), element.to_owned())).copied()
    }

    fn longest(&self, key: &str) -> &[String] {
        self.longest.get(key).map_or(&[], Vec::as_slice)
    }
}

/// The lines for the checker.
pub fn infer(operations: Operations) -> Vec<Line> {
    let mut lists = Lists::new(&operations);
    let mut txns: Vec<Converted> = Vec::new();
    for recorded in operations.txns {
        let was_read = recorded.steps.iter().any(|step| match step {
            Step::Write(key, element) => lists.place(key, element).is_some(),
            Step::Read(..) => false,
        });
        let is_committed = match recorded.outcome {
            Outcome::Committed => true,
            Outcome::Unknown => was_read,
            Outcome::Aborted => false,
        };
        if is_committed {
            for step in &recorded.steps {
                if let Step::Write(key, element) = step
                    && lists.place(key, element).is_none()
                {
                    lists.unread.entry(key.clone()).or_default().push(element.clone());
                }
            }
        }
        txns.push(Converted { recorded, ops: Vec::new(), is_committed });
    }
    for txn in &mut txns {
        txn.ops = convert(&lists, txn);
    }
    let constraints = constrain(&lists, &txns);
    with_timestamps(txns, constraints)
}

/// The operations of a transaction as reads and writes of whole lists.
fn convert(lists: &Lists, txn: &Converted) -> Vec<Op> {
    let mut ops = Vec::new();
    let mut touched = HashSet::new();
    let mut own_unread: Vec<(&String, &String)> = Vec::new();
    for step in &txn.recorded.steps {
        match step {
            Step::Read(key, elements) => {
                ops.push(Op::Read(key.clone(), text(elements)));
                for (_, element) in own_unread.iter().filter(|(other, _)| *other == key) {
                    let found = elements.contains(element).then(|| (*element).clone());
                    ops.push(Op::Read(row_of(key, element), found));
                }
                if touched.insert(key) && elements == lists.longest(key) {
                    let missing = lists.unread.get(key).into_iter().flatten().map(|element| row_of(key, element));
                    if appends(txn, key) {
                        // Both wrote the row, so one of them was over before the other began.
                        ops.extend(missing.map(|row| Op::ReadForUpdate(row, None)));
                    } else {
                        ops.extend(missing.map(|row| Op::Read(row, None)));
                    }
                }
            }
            Step::Write(key, element) => {
                let longest = lists.longest(key);
                let place = lists.place(key, element);
                touched.insert(key);
                if txn.is_committed {
                    ops.push(Op::Read(key.clone(), text(&longest[..place.unwrap_or(longest.len())])));
                }
                match place {
                    Some(place) => ops.push(Op::Write(key.clone(), text(&longest[..=place]))),
                    None if txn.is_committed => {
                        own_unread.push((key, element));
                        ops.push(Op::Write(row_of(key, element), Some(element.clone())));
                    }
                    None => {}
                }
            }
        }
    }
    ops
}

fn appends(txn: &Converted, key: &str) -> bool {
    txn.recorded.steps.iter().any(|step| matches!(step, Step::Write(other, _) if other == key))
}

/// The constraints of the values: see the [parent](super).
fn constrain(lists: &Lists, txns: &[Converted]) -> Constraints {
    let mut constraints = Constraints::new(txns);
    // The writers of each version, in order, and of the appends that no list shows.
    let mut writers: HashMap<&str, Vec<Option<usize>>> =
        lists.longest.iter().map(|(key, elements)| (&**key, vec![None; elements.len()])).collect();
    let mut unread_writers: HashMap<&str, Vec<usize>> = HashMap::new();
    for (number, txn) in txns.iter().enumerate().filter(|(_, txn)| txn.is_committed) {
        for step in &txn.recorded.steps {
            let Step::Write(key, element) = step else { continue };
            match lists.place(key, element) {
                Some(place) => {
                    if let Some(writers) = writers.get_mut(&**key) {
                        writers[place] = Some(number);
                    }
                }
                None => unread_writers.entry(key).or_default().push(number),
            }
        }
    }
    for writers in writers.values() {
        for pair in writers.windows(2) {
            if let [Some(earlier), Some(later)] = pair
                && earlier != later
            {
                constraints.add(commit(*earlier), snapshot(*later));
            }
        }
    }
    // The number of elements of each version.
    let lengths: HashMap<&str, HashMap<Option<String>, usize>> = (lists.longest.iter())
        .map(|(key, elements)| {
            (&**key, (0..=elements.len()).map(|length| (text(&elements[..length]), length)).collect())
        })
        .collect();
    for (number, txn) in txns.iter().enumerate() {
        for op in &txn.ops {
            let Op::Read(key, value) = op else { continue };
            let Some(writers) = writers.get(&**key) else { continue };
            let Some(length) = lengths[&**key].get(value) else { continue };
            let length = *length;
            if let Some(Some(writer)) = length.checked_sub(1).map(|last| writers[last])
                && writer != number
            {
                constraints.add(commit(writer), snapshot(number));
            }
            match writers.get(length) {
                Some(Some(next)) if *next != number => constraints.add(snapshot(number), commit(*next)),
                Some(_) => {}
                None => {
                    for next in unread_writers.get(&**key).into_iter().flatten().filter(|next| **next != number) {
                        match (sees_longest(txn, key), appends(txn, key)) {
                            (true, true) => constraints.add(commit(number), snapshot(*next)),
                            (true, false) => constraints.add(snapshot(number), commit(*next)),
                            (false, _) => {}
                        }
                    }
                }
            }
        }
    }
    constraints
}

/// Whether the transaction itself read the row, rather than only appended to it.
fn sees_longest(txn: &Converted, key: &str) -> bool {
    let first = txn.recorded.steps.iter().find(|step| match step {
        Step::Read(other, _) | Step::Write(other, _) => other == key,
    });
    matches!(first, Some(Step::Read(..)))
}
