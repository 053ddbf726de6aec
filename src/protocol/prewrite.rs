//! Prewrite: the transaction locks a row and stores there what it will write.
//!
//! Row locks are try-locks. Another transaction's lock fails the request immediately, and so does a
//! version newer than the snapshot that the transaction reads. If two transactions overlap and
//! write the same row, the first to arrive wins, as snapshot isolation requires. A transaction
//! never waits while it has row locks, so there are no deadlocks.
//!
//! Conflicts are checked against `read_ts`, never `start_ts`. A commit between the two is not in
//! the transaction's snapshot, and writing over it would lose an update.
//!
//! Requests may be late or delivered twice. A repeat finds its own lock and changes nothing. A
//! request that arrives after its transaction was rolled back finds the rollback record or, once
//! that record is deleted, a safe point above its `start_ts`. A request that arrives after a
//! resolver committed the row returns the commit timestamp.

use super::{Step, StepError, has_data_entry, own_lock, recorded_status};
use crate::row::{
    CellChange, Lock, LockType, MAX_SHORT_VALUE_BYTES, Mutation, Precondition, Preconditions, RowChange, RowKey,
    RowState, StoredValue, TxnId, TxnRecord,
};
use crate::timestamp::Timestamp;

/// A request to lock a row and store a value there.
#[derive(Clone, Debug)]
pub struct Prewrite {
    /// The row.
    pub row: RowKey,
    /// The transaction.
    pub txn: TxnId,
    /// The transaction's snapshot; any newer version is a conflict.
    pub read_ts: Timestamp,
    /// The row that decides the transaction's status.
    pub primary: RowKey,
    /// What the transaction does to the row.
    pub mutation: Mutation,
    /// Number of this write, counted from 1 over the transaction's writes of this row. Only a large
    /// transaction locks a row more than once. A request that is delivered twice has the same
    /// number.
    pub write_seq: u32,
    /// See [`Lock::ttl_ms`].
    pub ttl_ms: u64,
    /// See [`Lock::min_commit_ts`].
    pub min_commit_ts: Timestamp,
}

/// The result of a prewrite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrewriteResult {
    /// The row is locked; the transaction must not commit below this timestamp.
    Locked {
        /// See [`Lock::min_commit_ts`].
        min_commit_ts: Timestamp,
    },
    /// A resolver has already committed the row for the transaction.
    Committed(Timestamp),
}

/// Locks the row for the transaction.
pub fn prewrite(row: &RowState, request: &Prewrite) -> Result<Step<PrewriteResult>, StepError> {
    let txn = request.txn;
    match recorded_status(row, txn) {
        Some(TxnRecord::RolledBack) => return Err(StepError::AlreadyRolledBack),
        Some(TxnRecord::Committed(commit_ts)) => return Ok(Step::Done(PrewriteResult::Committed(commit_ts))),
        None => {}
    }
    if txn.start_ts < row.safe_point {
        return Err(StepError::BelowSafePoint(row.safe_point));
    }
    if let Some(own) = own_lock(row, txn) {
        return rewrite_lock(own, request);
    }
    if let Some(lock) = &row.lock {
        return Err(StepError::KeyIsLocked(Box::new(lock.clone())));
    }
    if let Some(newer) = row.write.as_ref().filter(|write| write.last_commit_ts() > request.read_ts) {
        return Err(StepError::WriteConflict(Box::new(newer.clone())));
    }
    let preconditions = [
        Precondition::SafePointAtMost(txn.start_ts),
        Precondition::LockAbsent,
        Precondition::NoCommitAfter(request.read_ts),
        Precondition::NoTxnRecord(txn.start_ts),
    ]
    .into();
    Ok(put_lock(request, request.min_commit_ts, preconditions))
}

fn rewrite_lock(own: &Lock, request: &Prewrite) -> Result<Step<PrewriteResult>, StepError> {
    let min_commit_ts = own.min_commit_ts.max(request.min_commit_ts);
    if request.write_seq < own.write_seq {
        return Err(StepError::StaleRequest);
    }
    if request.write_seq == own.write_seq {
        return Ok(Step::Done(PrewriteResult::Locked { min_commit_ts: own.min_commit_ts }));
    }
    let preconditions = [Precondition::LockUnchanged(own.version())].into();
    let mut step = put_lock(request, min_commit_ts, preconditions);
    if let Step::Apply(change, _) = &mut step {
        if has_data_entry(own) && change.data.is_empty() {
            change.data.push((request.txn.start_ts, CellChange::Delete));
        }
        if let CellChange::Put(lock) = &mut change.lock {
            lock.ttl_ms = lock.ttl_ms.max(own.ttl_ms);
        }
    }
    Ok(step)
}

fn put_lock(request: &Prewrite, min_commit_ts: Timestamp, preconditions: Preconditions) -> Step<PrewriteResult> {
    let mut change = RowChange::new(request.row.clone(), request.txn.start_ts);
    change.preconditions = preconditions;
    let lock_type = match &request.mutation {
        Mutation::Put(value) if value.len() > MAX_SHORT_VALUE_BYTES => {
            change.data.push((request.txn.start_ts, CellChange::Put(value.clone())));
            LockType::Put(StoredValue::OutOfLine)
        }
        Mutation::Put(value) => LockType::Put(StoredValue::Inline(value.clone())),
        Mutation::Delete => LockType::Delete,
        Mutation::LockOnly => LockType::LockOnly,
    };
    change.lock = CellChange::Put(Lock {
        txn: request.txn,
        primary: request.primary.clone(),
        lock_type,
        write_seq: request.write_seq,
        ttl_ms: request.ttl_ms,
        min_commit_ts,
    });
    Step::Apply(change, PrewriteResult::Locked { min_commit_ts })
}
