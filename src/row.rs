//! The vocabulary that protocol and engines share: a row, what its columns hold, and a guarded change of it.
//!
//! A row is one user key. Its three columns are `data`, `lock` and `write`; beside them stand the records that say how a
//! transaction ended on this row (`status`) and versions that were replaced (`version`).

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::owner::OwnerId;
pub use crate::row_key::{KeyspaceId, RowKey};
use crate::timestamp::Timestamp;

/// Values longer than this many bytes do not ride in the lock but wait in the data column.
pub const SHORT_VALUE_MAX_BYTES: usize = 255;

/// A value's bytes, written as one run instead of a sequence of numbers. Cheap to clone: on its way from the transaction to the
/// engine a value is copied once.
#[derive(Clone, PartialEq, Eq)]
pub struct Bytes(pub Arc<[u8]>);

impl<T: AsRef<[u8]>> From<T> for Bytes {
    fn from(bytes: T) -> Self {
        Self(bytes.as_ref().into())
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Run;
        impl serde::de::Visitor<'_> for Run {
            type Value = Bytes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a run of bytes")
            }
            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(bytes.into())
            }
        }
        deserializer.deserialize_bytes(Run)
    }
}

/// Names a transaction in locks and records. A lock is a transaction's own only if both parts are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TxnId {
    /// Unique and never equal to a commit timestamp.
    pub start_ts: Timestamp,
    /// Who began the transaction, and when.
    pub owner: OwnerId,
}

/// Where a value's bytes are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Value {
    /// In the record itself.
    Inline(Bytes),
    /// In the data column, under the row and the transaction's `start_ts`.
    OutOfLine,
}

/// What a transaction does to a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Sets the row's value.
    Put(Bytes),
    /// Removes the row.
    Delete,
    /// Changes nothing, but conflicts like a write (`get_for_update`).
    LockOnly,
}

impl Mutation {
    /// The bytes that the mutation carries.
    pub fn value_bytes(&self) -> usize {
        match self {
            Self::Put(value) => value.len(),
            Self::Delete | Self::LockOnly => 0,
        }
    }
}

/// What a lock says its transaction will do to the row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockType {
    /// Sets the row's value.
    Put(Value),
    /// Removes the row.
    Delete,
    /// Changes nothing.
    LockOnly,
}

/// The lock column: a transaction intends to change this row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// Whose lock it is.
    pub txn: TxnId,
    /// The row that decides whether the transaction is committed.
    pub primary: RowKey,
    /// What becomes of the row on commit.
    pub lock_type: LockType,
    /// Counts the owner's writes of this row: the highest wins.
    pub write_seq: u32,
    /// Milliseconds after `start_ts` from which others may take the owner for dead. Not used where one process owns the
    /// engine.
    pub ttl_ms: u64,
    /// A reader has seen the row without this transaction up to here: it must commit at or above.
    pub min_commit_ts: Timestamp,
}

/// What tells one state of a lock from another: its owner, and everything that may change while the owner holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockVersion {
    /// See [`Lock::txn`].
    pub txn: TxnId,
    /// See [`Lock::write_seq`].
    pub sequence: u32,
    /// See [`Lock::ttl_ms`].
    pub ttl_ms: u64,
    /// See [`Lock::min_commit_ts`].
    pub min_commit_ts: Timestamp,
}

impl Lock {
    /// The lock's present state.
    pub fn version(&self) -> LockVersion {
        LockVersion { txn: self.txn, sequence: self.write_seq, ttl_ms: self.ttl_ms, min_commit_ts: self.min_commit_ts }
    }
}

/// The write column: a committed version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteRecord {
    /// When it was committed.
    pub commit_ts: Timestamp,
    /// By whom.
    pub txn: TxnId,
    /// The value; `None` for a deleted row.
    pub value: Option<Value>,
    /// When a later transaction last committed that had held the row without changing it. Only where several processes share
    /// the engine: one process remembers it.
    pub lock_only_ts: Option<Timestamp>,
}

impl WriteRecord {
    /// The row's last commit, of a writer or a holder.
    pub fn last_commit_ts(&self) -> Timestamp {
        self.lock_only_ts.map_or(self.commit_ts, |held_at| held_at.max(self.commit_ts))
    }
}

/// How a transaction ended, kept at a row under the transaction's `start_ts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TxnRecord {
    /// It is committed. Kept at the primary until no lock of the transaction is left.
    Committed(Timestamp),
    /// It is rolled back and will not be committed, whatever still arrives in its name.
    RolledBack,
}

/// A row as read for one transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// The lock column.
    pub lock: Option<Lock>,
    /// The newest committed version.
    pub write: Option<WriteRecord>,
    /// How the transaction that was asked about ended here.
    pub txn_record: Option<TxnRecord>,
    /// Transactions older than this are over.
    pub safe_point: Timestamp,
}

/// A condition on a row under which a change may be made. The set is closed, so that an engine can check it where the
/// row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// Nobody has locked the row.
    LockAbsent,
    /// The row's lock is this one, unchanged.
    LockUnchanged(LockVersion),
    /// The row's last commit is not newer than this.
    NoCommitAfter(Timestamp),
    /// No status and no newest version of the transaction with this `start_ts` is at the row.
    NoTxnRecord(Timestamp),
    /// The safe point has not passed this timestamp.
    SafePointAtMost(Timestamp),
}

/// All that a change depends on; mostly two, which cost no allocation.
pub type Guards = smallvec::SmallVec<[Precondition; 2]>;

impl Precondition {
    /// Those of a row that a commit in one phase gives its next version, and that was read at this timestamp.
    pub fn for_next_version(read_ts: Timestamp) -> [Self; 2] {
        [Self::LockAbsent, Self::NoCommitAfter(read_ts)]
    }

    /// Whether the condition holds for the row as read.
    pub fn is_met(self, row: &Row) -> bool {
        match self {
            Self::LockAbsent => row.lock.is_none(),
            Self::LockUnchanged(stamp) => row.lock.as_ref().is_some_and(|lock| lock.version() == stamp),
            Self::NoCommitAfter(ts) => row.write.as_ref().is_none_or(|write| write.last_commit_ts() <= ts),
            Self::NoTxnRecord(_) if mutated!(LatePrewriteAccepted) => true,
            Self::NoTxnRecord(start_ts) => {
                row.txn_record.is_none() && row.write.as_ref().is_none_or(|write| write.txn.start_ts != start_ts)
            }
            Self::SafePointAtMost(ts) => row.safe_point <= ts,
        }
    }
}

/// What becomes of one cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CellChange<T> {
    /// It stays as it is.
    #[default]
    Keep,
    /// It gets this content.
    Put(T),
    /// It is emptied.
    Delete,
}

/// A change of one row's columns, made as a whole or not at all, and only if every guard holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowChange {
    /// The row.
    pub row: RowKey,
    /// The `start_ts` whose status the guards ask for and `status` writes.
    pub start_ts: Timestamp,
    /// Conditions, all of which must hold.
    pub preconditions: Guards,
    /// The lock column.
    pub lock: CellChange<Lock>,
    /// The write column.
    pub write: CellChange<WriteRecord>,
    /// Entries of the data column, by `start_ts`.
    pub data: Vec<(Timestamp, CellChange<Bytes>)>,
    /// How the transaction `start_ts` ended here.
    pub txn_record: CellChange<TxnRecord>,
    /// The replaced version, where history is kept.
    pub archived_version: Option<WriteRecord>,
    /// Replaced versions that go, by their `commit_ts`.
    pub deleted_versions: Vec<Timestamp>,
    /// What was superseded here at these timestamps needs no more attention from the collector.
    pub gc_done: Vec<Timestamp>,
}

impl RowChange {
    /// A change of nothing, to be filled in.
    pub fn new(row: RowKey, start_ts: Timestamp) -> Self {
        Self {
            row,
            start_ts,
            preconditions: Guards::new(),
            lock: CellChange::Keep,
            write: CellChange::Keep,
            data: Vec::new(),
            txn_record: CellChange::Keep,
            archived_version: None,
            deleted_versions: Vec::new(),
            gc_done: Vec::new(),
        }
    }

    /// The change that gives a row its next version, if it is to get one. Whether it may is for guards to say.
    pub fn next_version(row: &RowKey, txn: TxnId, commit_ts: Timestamp, mutation: &Mutation) -> Self {
        let mut change = Self::new(row.clone(), txn.start_ts);
        let value = match mutation {
            Mutation::Put(value) => Some(Value::Inline(value.clone())),
            Mutation::Delete => None,
            Mutation::LockOnly => return change,
        };
        change.write = CellChange::Put(WriteRecord { commit_ts, txn, value, lock_only_ts: None });
        change
    }

    /// About how much there is to write, in bytes.
    pub fn size_bytes(&self) -> usize {
        let inline = |value: &Value| match value {
            Value::Inline(bytes) => bytes.len(),
            Value::OutOfLine => 0,
        };
        let lock = match &self.lock {
            CellChange::Put(Lock { lock_type: LockType::Put(value), .. }) => inline(value),
            _ => 0,
        };
        let write = match &self.write {
            CellChange::Put(WriteRecord { value: Some(value), .. }) => inline(value),
            _ => 0,
        };
        let data = |(_, edit): &(Timestamp, CellChange<Bytes>)| match edit {
            CellChange::Put(value) => value.len(),
            CellChange::Keep | CellChange::Delete => 0,
        };
        self.row.as_bytes().len() + lock + write + self.data.iter().map(data).sum::<usize>()
    }

    /// Sets the commit timestamp of everything that the change commits, for pipelines that learn it last.
    pub fn set_commit_ts(&mut self, commit_ts: Timestamp) {
        if let CellChange::Put(record) = &mut self.write {
            record.commit_ts = commit_ts;
        }
        if let CellChange::Put(TxnRecord::Committed(ts)) = &mut self.txn_record {
            *ts = commit_ts;
        }
    }
}
