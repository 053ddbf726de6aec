//! The part of a history that is checked.
//!
//! While unknown outcomes are inferred, only the rows that these transactions write or lock can
//! change. They are usually a small part of the history, so checking them again is cheap.

use rustc_hash::FxHashSet;

use crate::history::{History, InternedOp, Key, TxnIndex};

/// Rows, and the transactions with operations on them.
pub struct Scope {
    /// By key; empty if every row is included.
    keys: Vec<bool>,
    txns: Vec<TxnIndex>,
}

impl Scope {
    /// The whole history.
    pub fn whole(history: &History) -> Self {
        Self { keys: Vec::new(), txns: history.indexed().map(|(txn, _)| txn).collect() }
    }

    /// These rows.
    pub fn of(history: &History, keys: &FxHashSet<Key>) -> Self {
        let mut scope = Self { keys: vec![false; history.key_count()], txns: Vec::new() };
        for key in keys {
            scope.keys[key.index()] = true;
        }
        let concerned = |txn: &TxnIndex| {
            history.ops(*txn).iter().any(|op| match op {
                InternedOp::Read(key, _) | InternedOp::ReadForUpdate(key, _) | InternedOp::Write(key, _) => {
                    scope.has(*key)
                }
                InternedOp::Scan(_) => true,
            })
        };
        scope.txns = history.indexed().map(|(txn, _)| txn).filter(concerned).collect();
        scope
    }

    /// Whether a row is included.
    pub fn has(&self, key: Key) -> bool {
        self.keys.get(key.index()).copied().unwrap_or(true)
    }

    /// The included transactions.
    pub fn txns(&self) -> &[TxnIndex] {
        &self.txns
    }
}
