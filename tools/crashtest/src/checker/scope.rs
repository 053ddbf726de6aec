//! Which part of a history is looked at.
//!
//! While unknown outcomes are being decided, only the rows that such transactions claim can change. With few of them that
//! is a small part of a large history, and looking at it again costs little.

use rustc_hash::FxHashSet;

use crate::history::{History, InternedOp, Key, TxnIndex};

/// Rows, and the transactions that have to do with them.
pub struct Scope {
    /// By key; empty if every row is looked at.
    keys: Vec<bool>,
    txns: Vec<TxnIndex>,
}

impl Scope {
    /// Everything.
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

    /// Whether a row is looked at.
    pub fn has(&self, key: Key) -> bool {
        self.keys.get(key.index()).copied().unwrap_or(true)
    }

    /// The transactions that are looked at.
    pub fn txns(&self) -> &[TxnIndex] {
        &self.txns
    }
}
