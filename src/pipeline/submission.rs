//! What committers submit to the leader, and the results that the leader returns.

use std::sync::Arc;

use crate::commit_conditions::CommitConditions;
use crate::contention::AttemptGuard;
use crate::engine::RowBatch;
use crate::lock_manager::LockLost;
use crate::row::{LockVersion, RowKey, RowState};
use crate::timestamp::Timestamp;

/// What a submission is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmissionKind {
    /// Commits all rows of the transaction. The leader allocates the timestamp.
    Commit,
    /// Commits the primary, perhaps with other rows, while some rows stay locked. The leader
    /// allocates the timestamp.
    CommitPrimary,
    /// Turns locks of a committed transaction into versions.
    RollForward {
        commit_ts: Timestamp,
        /// Whether no lock of the transaction is left afterwards.
        finishes: bool,
    },
    /// Locks rows of a large transaction. The leader records these rows in a Bloom filter, not row
    /// by row.
    PrewriteLarge,
    /// Records that a rolled-back large transaction has no lock left.
    FinishRollback { start_ts: Timestamp },
    /// Removes versions and tombstones that no snapshot needs. The engine always checks
    /// `NoCommitAfter` by reading the row: the leader's memory also counts lock-only commits, which
    /// must not keep GC from removing a tombstone.
    Gc,
    /// Other changes, which commit nothing, such as prewrites.
    NoCommit,
}

impl SubmissionKind {
    /// Whether applying the changes is what commits the transaction.
    pub fn commits(self) -> bool {
        matches!(self, Self::Commit | Self::CommitPrimary)
    }
}

/// Row changes of one transaction, applied atomically.
pub struct Submission {
    pub batch: RowBatch,
    pub kind: SubmissionKind,
    /// Whether [`submit`](super::Pipeline::submit) returns only when the commit is durable.
    pub durable: bool,
    pub conditions: Arc<CommitConditions>,
    /// Dropped as soon as the changes are visible or rejected, before any wait for a sync. So
    /// attempts that wait for a row queue or a permit do not wait for the disk.
    pub attempt: Option<AttemptGuard>,
}

/// The result of a submission.
#[derive(Debug)]
pub enum SubmitResult {
    /// The changes are visible. The timestamp is the commit timestamp, if they commit or roll
    /// forward.
    Applied(Option<Timestamp>),
    /// No change was applied.
    Rejected(Rejection),
}

/// Why a submission was rejected.
#[derive(Debug)]
pub enum Rejection {
    /// The row was committed after the snapshot of the transaction, at this timestamp. Or the
    /// conflict set has removed lock-only commits newer than the snapshot: then every row
    /// conflicts, perhaps without need, and the timestamp is that of the newest commit removed.
    WriteConflict(RowKey, Timestamp),
    /// Another transaction has locked the row, or the row's lock is not the one that the change
    /// expects. The second field is the version of the lock that was found.
    LockConflict(RowKey, Option<LockVersion>),
    /// A precondition does not hold for the row as the engine read it.
    PreconditionFailed(RowKey, Box<RowState>),
    /// The keyspace of this name was dropped.
    KeyspaceDropped(String),
    /// The transaction's read view has expired.
    SnapshotTooOld,
    /// A grant that fences the transaction has ended.
    FenceLost(Box<LockLost>),
}
