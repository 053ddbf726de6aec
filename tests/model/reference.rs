//! Snapshot isolation in a hundred lines.
//!
//! There is one current state. A transaction keeps the state that it began with and its own writes. It may commit if none of
//! the rows that it wrote or held was committed since it began: the first one to commit wins.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::rc::Rc;

use crate::operations::{Extent, Key, Place};

/// Committed rows.
pub type Rows = BTreeMap<Place, Vec<u8>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    Put(Vec<u8>),
    Delete,
    Hold,
}

#[derive(Default)]
pub struct Model {
    pub rows: Rc<Rows>,
    /// How many transactions have committed.
    commits: u64,
    /// Which of them wrote or held a row last.
    last: BTreeMap<Place, u64>,
    /// Which of them held any row without writing it.
    last_hold: u64,
}

pub struct ModelTxn {
    rows: Rc<Rows>,
    begun: u64,
    writes: BTreeMap<Place, Write>,
    /// What was written at each savepoint; `None` once it was taken back.
    savepoints: Vec<Option<BTreeMap<Place, Write>>>,
}

impl Model {
    pub fn begin(&self) -> ModelTxn {
        let (writes, savepoints) = Default::default();
        ModelTxn { rows: Rc::clone(&self.rows), begun: self.commits, writes, savepoints }
    }

    /// The rows on which the transaction conflicts.
    pub fn conflicts(&self, txn: &ModelTxn) -> Vec<Place> {
        let newer = |place: &&Place| self.last.get(place).is_some_and(|commit| *commit > txn.begun);
        txn.writes.keys().filter(newer).cloned().collect()
    }

    /// Whether a row was held since the transaction began. A store that cannot remember every such row may take that for a
    /// conflict.
    pub fn held_since(&self, txn: &ModelTxn) -> bool {
        self.last_hold > txn.begun
    }

    pub fn commit(&mut self, txn: ModelTxn) {
        if txn.writes.is_empty() {
            return;
        }
        self.commits += 1;
        let rows = Rc::make_mut(&mut self.rows);
        for (place, write) in txn.writes {
            match write {
                Write::Put(value) => {
                    rows.insert(place.clone(), value);
                }
                Write::Delete => {
                    rows.remove(&place);
                }
                Write::Hold => self.last_hold = self.commits,
            }
            self.last.insert(place, self.commits);
        }
    }

    /// Nothing that began before a store was closed is left to conflict with.
    pub fn reopen(&mut self) {
        self.last.clear();
        self.last_hold = 0;
    }
}

impl ModelTxn {
    pub fn get(&self, place: &Place) -> Option<&Vec<u8>> {
        match self.writes.get(place) {
            Some(Write::Put(value)) => Some(value),
            Some(Write::Delete) => None,
            Some(Write::Hold) | None => self.rows.get(place),
        }
    }

    pub fn write(&mut self, place: Place, write: Write) {
        self.writes.insert(place, write);
    }

    pub fn has_written(&self, place: &Place) -> bool {
        self.writes.contains_key(place)
    }

    pub fn hold(&mut self, place: Place) {
        self.writes.entry(place).or_insert(Write::Hold);
    }

    /// Everything that the transaction sees.
    pub fn seen(&self) -> Rows {
        let mut rows = (*self.rows).clone();
        for (place, write) in &self.writes {
            match write {
                Write::Put(value) => {
                    rows.insert(place.clone(), value.clone());
                }
                Write::Delete => {
                    rows.remove(place);
                }
                Write::Hold => {}
            }
        }
        rows
    }

    pub fn savepoint(&mut self) {
        self.savepoints.push(Some(self.writes.clone()));
    }

    /// Whether the savepoint was still there to go back to.
    pub fn rollback_to(&mut self, which: usize) -> bool {
        let Some(writes) = self.savepoints[which].clone() else { return false };
        self.writes = writes;
        self.savepoints[which + 1..].fill(None);
        true
    }
}

/// The rows of a scan, in order.
pub fn scan(rows: &Rows, keyspace: usize, extent: &Extent) -> VecDeque<(Vec<u8>, Vec<u8>)> {
    let within = |key: &Key| match extent {
        Extent::Prefix(prefix) => key.0.starts_with(&prefix.0),
        Extent::Range(start, end) => {
            (match start {
                Bound::Included(start) => key >= start,
                Bound::Excluded(start) => key > start,
                Bound::Unbounded => true,
            }) && (match end {
                Bound::Included(end) => key <= end,
                Bound::Excluded(end) => key < end,
                Bound::Unbounded => true,
            })
        }
    };
    let rows = rows.iter().filter(|((of, key), _)| *of == keyspace && within(key));
    rows.map(|((_, key), value)| (key.0.clone(), value.clone())).collect()
}
