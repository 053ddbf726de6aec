//! The long fork: two readers see two independent writes in opposite orders.
//!
//! The reader with the mismatch sees an older version of one row than another reader does, and a
//! newer version of a second row, or the other way round. Each reader alone may be right, but no
//! order of the two writes fits both.

use rustc_hash::FxHashMap;

use crate::history::{History, InternedOp, Key, TxnIndex, Value};

use super::reads::Classifier;

/// A reader that disagrees on the order of two writes.
pub struct LongFork {
    /// The second row; the mismatch is in the first.
    pub key: Key,
    /// The other reader, and the writers of the newer versions of the two rows.
    pub involved: [TxnIndex; 3],
}

/// A version: its commit timestamp and its writer. An initial row has no writer.
type Version = (u64, Option<TxnIndex>);

impl Classifier<'_> {
    /// Finds another reader that saw the write of `found` and a write to a second row in the
    /// opposite order.
    pub(super) fn find_long_fork(&self, reader: TxnIndex, key: Key, found: Value) -> Option<LongFork> {
        let own: FxHashMap<Key, Version> = external_reads(self.history, reader)
            .filter(|(other, _)| *other != key)
            .filter_map(|(other, value)| Some((other, self.version(other, value)?)))
            .collect();
        let version = self.version(key, found)?;
        if own.is_empty() {
            return None;
        }
        let others = self.history.indexed().map(|(txn, _)| txn).filter(|txn| *txn != reader);
        others.into_iter().find_map(|other| self.disagree(version, &own, key, other))
    }

    fn disagree(&self, version: Version, own: &FxHashMap<Key, Version>, key: Key, other: TxnIndex) -> Option<LongFork> {
        let (_, value) = external_reads(self.history, other).find(|(shown, _)| *shown == key)?;
        let theirs = self.version(key, value)?;
        external_reads(self.history, other).find_map(|(second, value)| {
            let (mine, yours) = (*own.get(&second)?, self.version(second, value)?);
            let opposite = (version.0 < theirs.0 && mine.0 > yours.0) || (version.0 > theirs.0 && mine.0 < yours.0);
            // For each row, the writer of the newer of the two versions. An initial version is
            // always the older one.
            let writers = (version.max(theirs).1?, mine.max(yours).1?);
            (opposite && writers.0 != writers.1)
                .then_some(LongFork { key: second, involved: [other, writers.0, writers.1] })
        })
    }

    fn version(&self, key: Key, value: Value) -> Option<Version> {
        let committed = self.writers.of(key, value).filter_map(|txn| Some((self.commits[txn as usize]?, Some(txn))));
        let initial = (self.writers.initial(key) == value).then_some((0, None));
        initial.into_iter().chain(committed).min()
    }
}

/// The rows that a transaction read without having written them.
fn external_reads(history: &History, txn: TxnIndex) -> impl Iterator<Item = (Key, Value)> {
    let mut own = rustc_hash::FxHashSet::default();
    history.ops(txn).iter().flat_map(move |op| {
        let (one, rows) = match *op {
            InternedOp::Write(key, _) => {
                own.insert(key);
                (None, &[][..])
            }
            InternedOp::Read(key, value) | InternedOp::ReadForUpdate(key, value) => (Some((key, value)), &[][..]),
            InternedOp::Scan(scan) => (None, history.rows(scan)),
        };
        let shown = one.into_iter().chain(rows.iter().copied());
        shown.filter(|(key, _)| !own.contains(key)).collect::<Vec<_>>()
    })
}
