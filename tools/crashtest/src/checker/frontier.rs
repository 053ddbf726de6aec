//! The committed rows at one timestamp of the sweep.
//!
//! Each key has one record with everything that a read or a commit needs, so a read or a commit of
//! a row costs one memory access. While the reads of a transaction are checked, the record also has
//! that transaction's own write of the row, with the transaction's index. Other transactions ignore
//! it, so nothing needs to be cleared before their reads. The order of the keys and the set of
//! existing rows are built only if the history has scans.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::history::{History, Key, ScanRange, TxnIndex, Value};

use super::sweep::Writer;

/// The index of no transaction.
pub const NO_TXN: TxnIndex = TxnIndex::MAX;

#[derive(Clone, Copy)]
struct Row {
    value: Value,
    writer: TxnIndex,
    /// The last transaction that wrote or locked the row.
    last_locker: TxnIndex,
    /// The transaction whose own write is `own`.
    owner: TxnIndex,
    own: Value,
}

const ABSENT: Row = Row { value: Value::NONE, writer: NO_TXN, last_locker: NO_TXN, owner: NO_TXN, own: Value::NONE };

/// The committed rows. See the [module](self).
pub struct Frontier<'h> {
    history: &'h History,
    rows: Vec<Row>,
    order: Option<KeyOrder>,
}

/// The order of keys, for scans.
struct KeyOrder {
    sorted: Vec<Key>,
    ranks: Vec<u32>,
    /// The ranks of existing rows; a rank is a place in `sorted`.
    present: BTreeSet<u32>,
    /// For each key, the number of the last scan that marked it.
    marks: Vec<u32>,
    scan: u32,
}

impl KeyOrder {
    fn new(history: &History) -> Self {
        let mut sorted: Vec<Key> = history.keys().collect();
        sorted.sort_unstable_by_key(|key| history.key(*key));
        let mut ranks = vec![0; sorted.len()];
        for (rank, key) in (0..).zip(&sorted) {
            ranks[key.index()] = rank;
        }
        Self { ranks, present: BTreeSet::new(), marks: vec![0; sorted.len()], scan: 0, sorted }
    }
}

impl<'h> Frontier<'h> {
    /// The rows before the first transaction.
    pub fn new(history: &'h History) -> Self {
        let order = history.has_scans().then(|| KeyOrder::new(history));
        let mut frontier = Self { history, rows: vec![ABSENT; history.key_count()], order };
        for &(key, value) in history.initial() {
            frontier.commit(NO_TXN, key, value);
        }
        frontier
    }

    /// What a transaction must see in a row, and who wrote it.
    pub fn visible_to(&self, txn: TxnIndex, key: Key) -> (Value, Writer) {
        let row = &self.rows[key.index()];
        if row.owner == txn {
            (row.own, Writer::Own)
        } else if row.writer == NO_TXN {
            (row.value, Writer::Initial)
        } else {
            (row.value, Writer::Other(row.writer))
        }
    }

    /// Makes the transaction see its own write.
    pub fn set_own_write(&mut self, txn: TxnIndex, key: Key, value: Value) {
        let row = &mut self.rows[key.index()];
        row.owner = txn;
        row.own = value;
    }

    /// Sets the last locker of a row and returns the previous locker.
    pub fn set_locker(&mut self, txn: TxnIndex, key: Key) -> TxnIndex {
        std::mem::replace(&mut self.rows[key.index()].last_locker, txn)
    }

    /// Commits a write.
    pub fn commit(&mut self, txn: TxnIndex, key: Key, value: Value) {
        let row = &mut self.rows[key.index()];
        let was_there = row.value != Value::NONE;
        row.value = value;
        row.writer = txn;
        let is_there = value != Value::NONE;
        if let Some(order) = &mut self.order
            && was_there != is_there
        {
            let rank = order.ranks[key.index()];
            if is_there {
                order.present.insert(rank)
            } else {
                order.present.remove(&rank)
            };
        }
    }

    /// The ranks of the keys of a range.
    pub fn ranks(&self, range: &ScanRange) -> Range<u32> {
        let before = |key: &str| {
            let sorted = self.order.as_ref().map_or(&[][..], |order| &order.sorted);
            // The number of keys fits into `u32`, since a history with more is refused.
            u32::try_from(sorted.partition_point(|other| self.history.key(*other) < key)).unwrap_or(u32::MAX)
        };
        let from = before(&range.from);
        let to = range.to.as_deref().map_or(u32::MAX, before);
        from..to.max(from)
    }

    /// The rank of a key.
    pub fn rank(&self, key: Key) -> u32 {
        self.order.as_ref().map_or(0, |order| order.ranks[key.index()])
    }

    /// Clears all marks.
    pub fn begin_scan(&mut self) {
        if let Some(order) = &mut self.order {
            order.scan += 1;
        }
    }

    /// Marks a key for this scan; false if this scan has marked it before.
    pub fn mark(&mut self, key: Key) -> bool {
        self.order
            .as_mut()
            .is_some_and(|order| std::mem::replace(&mut order.marks[key.index()], order.scan) != order.scan)
    }

    /// The existing rows of the range that are not marked; marks them.
    pub fn missing_rows(&mut self, range: Range<u32>) -> Vec<Key> {
        let Some(KeyOrder { sorted, present, marks, scan, .. }) = &mut self.order else { return Vec::new() };
        let keys = present.range(range).map(|rank| sorted[*rank as usize]);
        keys.filter(|key| std::mem::replace(&mut marks[key.index()], *scan) != *scan).collect()
    }
}
