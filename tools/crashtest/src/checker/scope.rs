//! The part of a history that is checked.
//!
//! While unknown outcomes are inferred, the result of a sweep changes only on the rows that
//! transactions of unknown outcome write or lock. These rows are usually a small part of the
//! history, so checking them again is cheap.

use rustc_hash::FxHashSet;

use crate::history::{History, InternedOp, Key, TxnIndex};

/// Rows, and the transactions with operations on them.
pub struct Scope {
    /// By key, whether the row is included; empty if every row is.
    keys: Vec<bool>,
    txns: Vec<TxnIndex>,
}

impl Scope {
    /// The whole history.
    pub fn whole(history: &History) -> Self {
        Self { keys: Vec::new(), txns: history.indexed().map(|(txn, _)| txn).collect() }
    }

    /// These rows, and the transactions that read or write one of them.
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
