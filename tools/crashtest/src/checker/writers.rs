//! The writers of each value.
//!
//! The values of a row should all be different, and mostly are. So an array has the first writer of
//! each value, and a map has further writers and deletions. A value that two transactions wrote to
//! one row cannot be attributed with certainty: the checker compares the value, but may miss that
//! it came from the wrong transaction.

use rustc_hash::FxHashMap;

use crate::history::{History, InternedOp, Key, TxnIndex, Value};

use super::frontier::NO_TXN;

/// The writers of each value, whether they committed or not.
pub struct Writers {
    first: Vec<Option<(Key, TxnIndex)>>,
    more: FxHashMap<(Key, Value), Vec<TxnIndex>>,
    duplicates: usize,
    initial: FxHashMap<Key, Value>,
}

impl Writers {
    /// Indexes all writes.
    pub fn new(history: &History) -> Self {
        let mut writers = Self {
            first: vec![None; history.value_count()],
            more: FxHashMap::default(),
            duplicates: 0,
            initial: history.initial().iter().copied().collect(),
        };
        for &(key, value) in history.initial() {
            writers.add(key, value, NO_TXN);
        }
        for (txn, transaction) in history.indexed() {
            if !transaction.locks_rows {
                continue;
            }
            for op in history.ops(txn) {
                if let InternedOp::Write(key, value) = *op {
                    writers.add(key, value, txn);
                }
            }
        }
        writers
    }

    fn add(&mut self, key: Key, value: Value, txn: TxnIndex) {
        let first = &mut self.first[value.index()];
        if value != Value::NONE && first.is_none() {
            *first = Some((key, txn));
            return;
        }
        let known = first.filter(|(first, _)| *first == key).map(|(_, writer)| writer);
        let others = self.more.entry((key, value)).or_default();
        if known == Some(txn) || others.last() == Some(&txn) {
            return;
        }
        if value != Value::NONE && (known.is_some() || !others.is_empty()) {
            self.duplicates += 1;
        }
        others.push(txn);
    }

    /// The transactions that wrote this value to this row. Initial rows have no writer.
    pub fn of(&self, key: Key, value: Value) -> impl Iterator<Item = TxnIndex> {
        let first = self.first[value.index()].filter(|(first, _)| *first == key).map(|(_, txn)| txn);
        let more = self.more.get(&(key, value)).into_iter().flatten().copied();
        first.into_iter().chain(more).filter(|txn| *txn != NO_TXN)
    }

    /// The initial value of the row.
    pub fn initial(&self, key: Key) -> Value {
        self.initial.get(&key).copied().unwrap_or(Value::NONE)
    }

    /// How many writes repeat the value of another transaction for the same row.
    pub fn duplicates(&self) -> usize {
        self.duplicates
    }
}

/// The last write of a transaction to a row: the only one that other transactions may see.
pub fn last_write(history: &History, txn: TxnIndex, key: Key) -> Option<Value> {
    history.ops(txn).iter().rev().find_map(|op| match *op {
        InternedOp::Write(written, value) if written == key => Some(value),
        _ => None,
    })
}

/// The rows that a transaction wrote or locked, in order and perhaps repeated.
pub fn locked_rows(history: &History, txn: TxnIndex) -> impl Iterator<Item = Key> {
    history.ops(txn).iter().filter_map(|op| match *op {
        InternedOp::Write(key, _) | InternedOp::ReadForUpdate(key, _) => Some(key),
        _ => None,
    })
}
