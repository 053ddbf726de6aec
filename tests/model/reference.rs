//! Snapshot isolation in a hundred lines.
//!
//! There is one current state. A transaction keeps the state that it began with and its own writes.
//! It may commit if, since it began, no other transaction has committed a row that it wrote or read
//! for update: the first committer wins.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::rc::Rc;

use percolite::Value;

use crate::operations::{Extent, Key, Place};

/// Committed rows.
pub type Rows = BTreeMap<Place, Value>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    Put(Value),
    Delete,
    LockOnly,
}

#[derive(Default)]
pub struct Model {
    pub rows: Rc<Rows>,
    /// The number of commits so far.
    commits: u64,
    /// The commit that last wrote or locked a row.
    last: BTreeMap<Place, u64>,
    /// The last commit with a lock-only row.
    last_lock_only: u64,
}

pub struct ModelTxn {
    rows: Rc<Rows>,
    begun: u64,
    writes: BTreeMap<Place, Write>,
    /// The writes at each savepoint. A rollback to a savepoint sets all later ones to `None`.
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

    /// Whether a commit since the transaction began had a lock-only row. If so, a store whose
    /// conflict cache is too small may report a spurious conflict.
    pub fn lock_only_since(&self, txn: &ModelTxn) -> bool {
        self.last_lock_only > txn.begun
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
                Write::LockOnly => self.last_lock_only = self.commits,
            }
            self.last.insert(place, self.commits);
        }
    }

    /// No transaction outlives the store, so commits before a reopening cause no conflicts after
    /// it.
    pub fn reopen(&mut self) {
        self.last.clear();
        self.last_lock_only = 0;
    }
}

impl ModelTxn {
    pub fn get(&self, place: &Place) -> Option<&Value> {
        match self.writes.get(place) {
            Some(Write::Put(value)) => Some(value),
            Some(Write::Delete) => None,
            Some(Write::LockOnly) | None => self.rows.get(place),
        }
    }

    pub fn write(&mut self, place: Place, write: Write) {
        self.writes.insert(place, write);
    }

    pub fn has_written(&self, place: &Place) -> bool {
        self.writes.contains_key(place)
    }

    pub fn lock_only(&mut self, place: Place) {
        self.writes.entry(place).or_insert(Write::LockOnly);
    }

    /// All rows that the transaction sees.
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
                Write::LockOnly => {}
            }
        }
        rows
    }

    pub fn savepoint(&mut self) {
        self.savepoints.push(Some(self.writes.clone()));
    }

    /// Returns whether the savepoint was still valid.
    pub fn rollback_to(&mut self, which: usize) -> bool {
        let Some(writes) = self.savepoints[which].clone() else { return false };
        self.writes = writes;
        self.savepoints[which + 1..].fill(None);
        true
    }
}

/// The rows of a scan, in order.
pub fn scan(rows: &Rows, keyspace: usize, extent: &Extent) -> VecDeque<(Vec<u8>, Value)> {
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
