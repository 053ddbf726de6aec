//! The types that protocol and engines share: a row, the contents of its columns, and a conditional
//! change of a row.
//!
//! A row is one user key. Its three columns are `data`, `lock` and `write`. The history column adds
//! transaction records, which say how a transaction ended at this row, and versions that were
//! replaced.

use std::ops::Deref;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::owner_id::OwnerId;
pub use crate::row_key::{KeyspaceId, RowKey};
use crate::timestamp::Timestamp;
pub use crate::value::Value;

/// A lock's value that is longer than this many bytes is stored in the data column.
pub const MAX_SHORT_VALUE_BYTES: usize = 255;

/// Identifies a transaction in locks and records. A lock is a transaction's own only if both parts
/// are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TxnId {
    /// Unique and never equal to a commit timestamp.
    pub start_ts: Timestamp,
    /// The owner id of the transaction.
    pub owner: OwnerId,
}

/// Where a value's bytes are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoredValue {
    /// In the record itself.
    Inline(Value),
    /// In the data column, under the row and the transaction's `start_ts`.
    OutOfLine,
}

/// What a transaction does to a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Sets the row's value.
    Put(Value),
    /// Removes the row.
    Delete,
    /// Changes nothing, but conflicts like a write (`get_for_update`).
    LockOnly,
}

impl Mutation {
    /// Size of the value that the mutation carries, in bytes.
    pub fn value_bytes(&self) -> usize {
        match self {
            Self::Put(value) => value.len(),
            Self::Delete | Self::LockOnly => 0,
        }
    }
}

/// What a lock's transaction does to the row when it commits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockType {
    /// Sets the row's value.
    Put(StoredValue),
    /// Removes the row.
    Delete,
    /// Changes nothing.
    LockOnly,
}

/// The content of the lock column: a transaction will change this row if it commits. A lock that is
/// still there when the transaction has ended stays until it is resolved. A field that can change
/// while the lock exists must also be in [`LockVersion`], or a change of it is not noticed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// The transaction whose lock it is.
    pub txn: TxnId,
    /// The row whose state decides whether the transaction is committed.
    pub primary: RowKey,
    /// What the commit does to the row.
    pub lock_type: LockType,
    /// Number of the owner's write that set this lock, counted from 1 over its writes of the row. A
    /// late write with a lower number is refused.
    pub write_seq: u32,
    /// Time to live, in milliseconds. Once it has passed since `start_ts`, others may treat the
    /// owner as crashed. Not used on an exclusive engine.
    pub ttl_ms: u64,
    /// The transaction must commit at or above this timestamp: readers below it may have read the
    /// row without the transaction's write.
    pub min_commit_ts: Timestamp,
}

/// One version of a lock: its owner, and every field that can change while the lock exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockVersion {
    /// See [`Lock::txn`].
    pub txn: TxnId,
    /// See [`Lock::write_seq`].
    pub write_seq: u32,
    /// See [`Lock::ttl_ms`].
    pub ttl_ms: u64,
    /// See [`Lock::min_commit_ts`].
    pub min_commit_ts: Timestamp,
}

impl Lock {
    /// The lock's current version.
    pub fn version(&self) -> LockVersion {
        LockVersion { txn: self.txn, write_seq: self.write_seq, ttl_ms: self.ttl_ms, min_commit_ts: self.min_commit_ts }
    }
}

/// The content of the write column: a committed version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteRecord {
    /// Its commit timestamp.
    pub commit_ts: Timestamp,
    /// The transaction that committed it.
    pub txn: TxnId,
    /// The value; `None` for a deleted row.
    pub value: Option<StoredValue>,
    /// Timestamp of the last lock-only commit after this version. Stored only on a shared engine:
    /// on an exclusive engine this timestamp is kept in memory.
    pub lock_only_ts: Option<Timestamp>,
}

impl WriteRecord {
    /// Timestamp of the row's last commit, lock-only commits included.
    pub fn last_commit_ts(&self) -> Timestamp {
        self.lock_only_ts.map_or(self.commit_ts, |lock_only_ts| lock_only_ts.max(self.commit_ts))
    }
}

/// How a transaction ended, stored at a row under the transaction's `start_ts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TxnRecord {
    /// Committed at this timestamp. Kept at the primary until all of the transaction's locks are
    /// resolved.
    Committed(Timestamp),
    /// Rolled back, permanently: late requests of the transaction fail.
    RolledBack,
}

/// A row as read for one transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowState {
    /// The lock column.
    pub lock: Option<Lock>,
    /// The newest committed version.
    pub write: Option<WriteRecord>,
    /// How the transaction for which the row is read has ended, if it is recorded at this row.
    pub txn_record: Option<TxnRecord>,
    /// The store's safe point: all transactions with a lower `start_ts` have ended, and their locks
    /// are resolved.
    pub safe_point: Timestamp,
}

/// A condition on a row under which a change may be applied. The conditions are plain data, so that
/// an engine can check them where the row is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// The row is not locked.
    LockAbsent,
    /// The row's lock is this one, unchanged.
    LockUnchanged(LockVersion),
    /// The row's last commit is not newer than this.
    NoCommitAfter(Timestamp),
    /// The row has no transaction record for this `start_ts`, and its newest version is of a
    /// transaction with another `start_ts`.
    NoTxnRecord(Timestamp),
    /// The safe point has not passed this timestamp.
    SafePointAtMost(Timestamp),
}

/// The preconditions of a change. The type derefs to a slice. Usually a change has two
/// preconditions, which need no allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preconditions(SmallVec<[Precondition; 2]>);

impl Preconditions {
    /// Adds a precondition.
    pub fn push(&mut self, precondition: Precondition) {
        self.0.push(precondition);
    }

    /// Removes all for which `keep` returns `false`.
    pub fn retain(&mut self, mut keep: impl FnMut(Precondition) -> bool) {
        self.0.retain(|precondition| keep(*precondition));
    }

    /// Removes all.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl Deref for Preconditions {
    type Target = [Precondition];

    fn deref(&self) -> &[Precondition] {
        &self.0
    }
}

impl<'a> IntoIterator for &'a Preconditions {
    type Item = &'a Precondition;
    type IntoIter = std::slice::Iter<'a, Precondition>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl From<&[Precondition]> for Preconditions {
    fn from(preconditions: &[Precondition]) -> Self {
        Self(preconditions.into())
    }
}

impl<const N: usize> From<[Precondition; N]> for Preconditions {
    fn from(preconditions: [Precondition; N]) -> Self {
        Self(SmallVec::from_slice(&preconditions))
    }
}

impl Precondition {
    /// What must hold for a one-phase commit to write a row. `read_ts` is that of the transaction.
    pub fn for_next_version(read_ts: Timestamp) -> [Self; 2] {
        [Self::LockAbsent, Self::NoCommitAfter(read_ts)]
    }

    /// Whether the row as read meets the condition.
    pub fn is_met(self, row: &RowState) -> bool {
        match self {
            Self::LockAbsent => row.lock.is_none(),
            Self::LockUnchanged(stamp) => row.lock.as_ref().is_some_and(|lock| lock.version() == stamp),
            Self::NoCommitAfter(ts) => row.write.as_ref().is_none_or(|write| write.last_commit_ts() <= ts),
            Self::NoTxnRecord(start_ts) => {
                row.txn_record.is_none() && row.write.as_ref().is_none_or(|write| write.txn.start_ts != start_ts)
            }
            Self::SafePointAtMost(ts) => row.safe_point <= ts,
        }
    }
}

/// The change of one cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CellChange<T> {
    /// The cell is unchanged.
    #[default]
    Keep,
    /// The cell is set to this.
    Put(T),
    /// The cell is deleted.
    Delete,
}

/// The usual overhead of a cell in a batch, in bytes, in addition to its key and value.
pub(crate) const CELL_OVERHEAD_BYTES: usize = 32;

/// A change of one row's columns, applied atomically, and only if all preconditions are met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowChange {
    /// The row.
    pub row: RowKey,
    /// The `start_ts` under which `txn_record` is stored. If a precondition fails, the engine
    /// returns the row with the record that has this `start_ts`.
    pub start_ts: Timestamp,
    /// Conditions, all of which must be met.
    pub preconditions: Preconditions,
    /// The lock column.
    pub lock: CellChange<Lock>,
    /// The write column.
    pub write: CellChange<WriteRecord>,
    /// Cells of the data column, by `start_ts`.
    pub data: Vec<(Timestamp, CellChange<Value>)>,
    /// The record of the transaction `start_ts`.
    pub txn_record: CellChange<TxnRecord>,
    /// The replaced version, if history is kept.
    pub archived_version: Option<WriteRecord>,
    /// Replaced versions to delete, by their `commit_ts`.
    pub deleted_versions: Vec<Timestamp>,
    /// The row's finished entries of the GC queue, which the change deletes, by the commit
    /// timestamps in their keys.
    pub gc_done: Vec<Timestamp>,
}

impl RowChange {
    /// An empty change, to be filled in.
    pub fn new(row: RowKey, start_ts: Timestamp) -> Self {
        Self {
            row,
            start_ts,
            preconditions: Preconditions::default(),
            lock: CellChange::Keep,
            write: CellChange::Keep,
            data: Vec::new(),
            txn_record: CellChange::Keep,
            archived_version: None,
            deleted_versions: Vec::new(),
            gc_done: Vec::new(),
        }
    }

    /// The change that writes a row's next version; empty for a lock-only mutation. The caller sets
    /// the preconditions.
    pub fn next_version(row: &RowKey, txn: TxnId, commit_ts: Timestamp, mutation: &Mutation) -> Self {
        let mut change = Self::new(row.clone(), txn.start_ts);
        let value = match mutation {
            Mutation::Put(value) => Some(StoredValue::Inline(value.clone())),
            Mutation::Delete => None,
            Mutation::LockOnly => return change,
        };
        change.write = CellChange::Put(WriteRecord { commit_ts, txn, value, lock_only_ts: None });
        change
    }

    /// The approximate size of the changed cells in a batch, in bytes.
    pub fn size_bytes(&self) -> usize {
        let inline = |value: &StoredValue| match value {
            StoredValue::Inline(bytes) => bytes.len(),
            StoredValue::OutOfLine => 0,
        };
        let lock_value = match &self.lock {
            CellChange::Put(Lock { lock_type: LockType::Put(value), .. }) => inline(value),
            _ => 0,
        };
        let version = |record: &WriteRecord| record.value.as_ref().map_or(0, inline);
        let (written, archived) = match &self.write {
            CellChange::Put(record) => (Some(record), self.archived_version.as_ref()),
            CellChange::Keep | CellChange::Delete => (None, self.archived_version.as_ref()),
        };
        let data_bytes = |(_, edit): &(Timestamp, CellChange<Value>)| match edit {
            CellChange::Put(value) => value.len(),
            CellChange::Keep | CellChange::Delete => 0,
        };
        // The GC queue gets an entry if the row is deleted or its replaced version is kept.
        let is_queued = written.is_some_and(|record| record.value.is_none() || archived.is_some());
        let cells = [
            self.lock != CellChange::Keep,
            self.write != CellChange::Keep,
            self.txn_record != CellChange::Keep,
            archived.is_some(),
            is_queued,
        ];
        let cells = cells.into_iter().filter(|changes| *changes).count()
            + self.data.len()
            + self.deleted_versions.len()
            + self.gc_done.len();
        cells * (self.row.as_bytes().len() + CELL_OVERHEAD_BYTES)
            + lock_value
            + written.map_or(0, version)
            + archived.map_or(0, version)
            + self.data.iter().map(data_bytes).sum::<usize>()
    }

    /// Sets the commit timestamp in the version and in the transaction record, because the leader
    /// allocates the timestamp only when it decides the commit.
    pub fn set_commit_ts(&mut self, commit_ts: Timestamp) {
        if let CellChange::Put(record) = &mut self.write {
            record.commit_ts = commit_ts;
        }
        if let CellChange::Put(TxnRecord::Committed(ts)) = &mut self.txn_record {
            *ts = commit_ts;
        }
    }
}
