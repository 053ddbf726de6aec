//! What committers submit to the leader, and what it answers.

use std::sync::Arc;

use crate::commit_conditions::CommitConditions;
use crate::contention::AttemptGuard;
use crate::engine::RowBatch;
use crate::lock_manager::LockLost;
use crate::row::{LockVersion, Row, RowKey};
use crate::timestamp::Timestamp;

/// What a submission is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmissionKind {
    /// Commits all that the transaction wrote. The leader allocates the timestamp.
    Commit,
    /// Commits the primary, and perhaps others, while some rows stay locked. The leader allocates the
    /// timestamp.
    CommitPrimary,
    /// Turns locks of a committed transaction into versions.
    RollForward {
        commit_ts: Timestamp,
        /// No lock of the transaction is left afterwards.
        finishes: bool,
    },
    /// Locks rows of a large transaction, which are not remembered one by one.
    PrewriteLarge,
    /// A large transaction that was rolled back has no lock left.
    FinishRollback { start_ts: Timestamp },
    /// Removes versions and tombstones that no snapshot needs. The engine reads whether they are
    /// still what they were.
    Gc,
    /// Anything else that commits nothing.
    NoCommit,
}

impl SubmissionKind {
    /// Whether the transaction is committed once this is applied.
    pub fn commits(self) -> bool {
        matches!(self, Self::Commit | Self::CommitPrimary)
    }
}

/// Row changes of one transaction, applied together or not at all.
pub struct Submission {
    pub group: RowBatch,
    pub kind: SubmissionKind,
    /// Whether [`submit`](super::Pipeline::submit) returns only when the commit is durable.
    pub durable: bool,
    pub conditions: Arc<CommitConditions>,
    /// Dropped as soon as the changes are visible or rejected, before any wait for durability.
    pub attempt: Option<AttemptGuard>,
}

/// The answer to a submission.
#[derive(Debug)]
pub enum SubmitResult {
    /// The changes are visible. A commit has this timestamp.
    Applied(Option<Timestamp>),
    /// None of them was made.
    Rejected(Rejection),
}

/// Why changes were not made.
#[derive(Debug)]
pub enum Rejection {
    /// The row has a commit at this timestamp, after the snapshot of the transaction.
    WriteConflict(RowKey, Timestamp),
    /// A live transaction holds the row's lock, or the lock is not the one that the change is about.
    LockConflict(RowKey, Option<LockVersion>),
    /// A precondition does not hold for the row as the engine has read it.
    PreconditionFailed(RowKey, Box<Row>),
    /// The keyspace of this name was dropped.
    KeyspaceDropped(String),
    /// The view that was read is older than the store allows.
    SnapshotTooOld,
    /// A grant that fences the transaction has ended.
    FenceLost(Box<LockLost>),
}
