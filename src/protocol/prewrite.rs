//! Prewrite: the transaction locks a row and leaves there what it intends to write.
//!
//! Row locks are try-locks. Another transaction's lock refuses at once, and so does a version newer than the snapshot
//! that the transaction reads: of two transactions that overlap and write the same row, the first to arrive wins, which is
//! what snapshot isolation asks for. Nobody waits while holding a lock, so nobody deadlocks.
//!
//! Conflicts are judged on `read_ts`, never on `start_ts`: a commit between the two was not seen by the transaction, and
//! writing over it would lose it.
//!
//! Requests may be late or delivered twice. A repeat finds its own lock and changes nothing. One that arrives after
//! its transaction was rolled back finds the rollback record, or, when that has been collected, a safe point above its
//! `start_ts`. One that arrives after a resolver committed the row is told the commit timestamp.

use smallvec::smallvec;

use super::{Refusal, Step, has_data_entry, lock_of, outcome_of};
use crate::row::{
    Edit, Guard, Guards, Intent, Lock, Mutation, Row, RowChange, RowKey, SHORT_VALUE_MAX_BYTES, Status, TxnId, Value,
};
use crate::timestamp::Timestamp;

/// A request to lock a row and leave a value there.
#[derive(Clone, Debug)]
pub struct Prewrite {
    /// The row.
    pub row: RowKey,
    /// Who asks.
    pub txn: TxnId,
    /// What the transaction has seen; any newer version is a conflict.
    pub read_ts: Timestamp,
    /// The row that decides the transaction's fate.
    pub primary: RowKey,
    /// What is to become of the row.
    pub mutation: Mutation,
    /// Counts the transaction's writes of this row.
    pub sequence: u32,
    /// See [`Lock::ttl_ms`].
    pub ttl_ms: u64,
    /// See [`Lock::min_commit_ts`].
    pub min_commit_ts: Timestamp,
}

/// The answer to a prewrite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prewritten {
    /// The row is locked; the transaction may not commit below this timestamp.
    Locked {
        /// See [`Lock::min_commit_ts`].
        min_commit_ts: Timestamp,
    },
    /// Somebody has already committed the row for the transaction.
    Committed(Timestamp),
}

/// Locks the row for the transaction.
pub fn prewrite(row: &Row, request: &Prewrite) -> Result<Step<Prewritten>, Refusal> {
    let txn = request.txn;
    match outcome_of(row, txn).filter(|_| !mutated!(LateLockAccepted)) {
        Some(Status::RolledBack) => return Err(Refusal::RolledBack),
        Some(Status::Committed(commit_ts)) => return Ok(Step::Done(Prewritten::Committed(commit_ts))),
        None => {}
    }
    if txn.start_ts < row.safe_point {
        return Err(Refusal::BelowSafePoint(row.safe_point));
    }
    if let Some(own) = lock_of(row, txn) {
        return prewrite_again(own, request);
    }
    if let Some(lock) = &row.lock {
        return Err(Refusal::Locked(Box::new(lock.clone())));
    }
    if let Some(newer) = row.write.as_ref().filter(|write| write.last_commit() > request.read_ts) {
        return Err(Refusal::NewerCommit(Box::new(newer.clone())));
    }
    let guards = smallvec![
        Guard::SafePointBelow(txn.start_ts),
        Guard::LockAbsent,
        Guard::NoCommitAfter(request.read_ts),
        Guard::NoRecordOf(txn.start_ts),
    ];
    Ok(put_lock(request, request.min_commit_ts, guards))
}

fn prewrite_again(own: &Lock, request: &Prewrite) -> Result<Step<Prewritten>, Refusal> {
    let min_commit_ts = own.min_commit_ts.max(request.min_commit_ts);
    if request.sequence < own.sequence {
        return Err(Refusal::Superseded);
    }
    if request.sequence == own.sequence {
        return Ok(Step::Done(Prewritten::Locked { min_commit_ts: own.min_commit_ts }));
    }
    let guards = smallvec![Guard::LockIs(own.stamp())];
    let mut step = put_lock(request, min_commit_ts, guards);
    if let Step::Apply(change, _) = &mut step {
        if has_data_entry(own) && change.data.is_empty() {
            change.data.push((request.txn.start_ts, Edit::Delete));
        }
        if let Edit::Put(lock) = &mut change.lock {
            lock.ttl_ms = lock.ttl_ms.max(own.ttl_ms);
        }
    }
    Ok(step)
}

fn put_lock(request: &Prewrite, min_commit_ts: Timestamp, guards: Guards) -> Step<Prewritten> {
    let mut change = RowChange::new(request.row.clone(), request.txn.start_ts);
    change.guards = guards;
    let intent = match &request.mutation {
        Mutation::Put(value) if value.len() > SHORT_VALUE_MAX_BYTES => {
            change.data.push((request.txn.start_ts, Edit::Put(value.clone())));
            Intent::Put(Value::InData)
        }
        Mutation::Put(value) => Intent::Put(Value::Inline(value.clone())),
        Mutation::Delete => Intent::Delete,
        Mutation::Hold => Intent::Hold,
    };
    change.lock = Edit::Put(Lock {
        txn: request.txn,
        primary: request.primary.clone(),
        intent,
        sequence: request.sequence,
        ttl_ms: request.ttl_ms,
        min_commit_ts,
    });
    Step::Apply(change, Prewritten::Locked { min_commit_ts })
}
