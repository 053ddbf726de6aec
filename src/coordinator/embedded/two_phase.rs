//! Two-phase commit, after Percolator: lock every row, commit the primary, then the secondaries.
//! It is for transactions that do not fit one atomic batch, and for
//! [`CommitProtocol::TwoPhase`](crate::CommitProtocol::TwoPhase).
//!
//! | step | if the process dies after it |
//! |---|---|
//! | prewrite all rows in batches, the primary first | rolled back: the primary is locked |
//! | commit the primary's batch: the commit point | committed: resolvers roll the others forward |
//! | commit the secondaries in batches | committed; no lock is left |
//!
//! The leader of the pipeline allocates `commit_ts` when it applies the primary's batch, after all
//! rows are locked. It is above the timestamp of every view that was opened before. So a reader may
//! ignore the locks until then. After the commit point, the transaction's fate in memory gives
//! readers the commit timestamp, and its record at the primary gives it to resolvers after a crash.
//!
//! The primary's batch has as many rows as fit, so most transactions have no secondaries after it.
//! They need no transaction record. Otherwise the last batch of secondaries deletes the record.
//!
//! If a prewrite finds a conflict, the locks are released without a rollback record: the engine is
//! exclusive, so no request of this transaction can arrive later. If a secondary cannot be written,
//! the transaction is committed nevertheless: the commit returns *undetermined*, the store fails,
//! and its next incarnation rolls forward.

use std::sync::Arc;

use super::super::CommitRequest;
use super::prewrite::{TwoPhaseTxn, choose_primary, prewrite_group};
use super::resolve_locks::resolve_locks;
use super::rows::Rows;
use crate::contention::AttemptGuard;
use crate::error::{Error, Result};
use crate::observe::TxnPhase;
use crate::pipeline::{Submission, SubmissionKind, SubmitResult};
use crate::protocol::TxnStatus;
use crate::row::{Lock, Mutation, RowChange, RowKey, SHORT_VALUE_MAX_BYTES, TxnId};
use crate::timestamp::Timestamp;
use crate::tunables::PRIMARY_GROUP_ROWS_MAX;

/// Commits. After any error but *undetermined* the transaction is aborted. Its locks are released
/// or, if the store has failed, left to the next incarnation.
pub fn commit_two_phase(rows: &Rows, request: CommitRequest<'_>) -> Result<Timestamp> {
    let CommitRequest { txn, read_ts, writes, durable, conditions, attempt, timer, .. } = request;
    let Some(primary) = choose_primary(writes) else { return Err(empty_txn_error(txn)) };
    let is_long = |mutation: &Mutation| mutation.value_bytes() > SHORT_VALUE_MAX_BYTES;
    if writes.values().any(is_long) {
        rows.note_data_column_use()?;
    }
    let this = TwoPhaseTxn { txn, read_ts, primary, conditions: &conditions, timer };

    let secondaries = writes.iter().filter(|(row, _)| *row != primary);
    let ordered: Vec<(&RowKey, &Mutation)> = writes.get_key_value(primary).into_iter().chain(secondaries).collect();
    let mut locks: Vec<(RowKey, Lock)> = Vec::with_capacity(ordered.len());
    crash_point!(PrewriteBefore);
    let prewritten = ordered.chunks(rows.group_rows_max()).try_for_each(|some| {
        locks.extend(prewrite_group(rows, &this, some, SubmissionKind::NoCommit)?);
        crash_point!(PrewritePrimary if locks.len() <= some.len());
        crash_point!(PrewriteBetween if locks.len() > some.len());
        Ok(())
    });
    let primary_group = rows.group_rows_max().min(PRIMARY_GROUP_ROWS_MAX.unwrap_or(usize::MAX));
    let (first, left) = locks.split_at(primary_group.min(locks.len()));
    let finishes = left.is_empty();
    if mutated!(SecondariesFirst) && prewritten.is_ok() && !finishes {
        commit_secondaries(rows, &this, left, rows.pipeline.timestamps().next()?)?;
    }
    let committed = prewritten.and_then(|()| commit_primary_group(rows, &this, first, finishes, attempt));
    let commit_ts = match committed {
        Ok(commit_ts) => commit_ts,
        Err(why) => {
            // A failed pipeline accepts no changes; the next incarnation resolves the locks.
            if rows.pipeline.failure().reason().is_none() {
                crash_point!(PrewriteConflict if !locks.is_empty());
                // If this fails too, the caller gets the first error. A lock that is left is an
                // orphan for the next incarnation: the pipeline has failed.
                let _ = roll_back_prewrites(rows, &locks, txn);
            }
            return Err(why);
        }
    };
    if !finishes {
        crash_point!(CommitPrimary);
        commit_secondaries(rows, &this, left, commit_ts)
            .map_err(|why| rows.pipeline.failure().poison_undetermined(why))?;
    }
    crash_point!(CommitSecondaries);
    if durable {
        timer.lap(TxnPhase::Apply, rows.pipeline.env().elapsed());
        rows.pipeline.sync().wait_durable_timed(commit_ts, timer)?;
    }
    rows.metrics.commits_two_phase.add(1);
    Ok(commit_ts)
}

/// Commits the primary, which is the first of `locks`, with the rows of its batch. If that
/// `finishes` the transaction, no transaction record is stored: no lock is left to resolve.
fn commit_primary_group(
    rows: &Rows,
    this: &TwoPhaseTxn<'_>,
    locks: &[(RowKey, Lock)],
    finishes: bool,
    attempt: Option<AttemptGuard>,
) -> Result<Timestamp> {
    if locks.is_empty() {
        return Err(empty_txn_error(this.txn));
    }
    crash_point!(PrewriteAll);
    // The leader replaces the commit timestamp by one above all those allocated before.
    let change = |(index, (row, lock)): (usize, &(RowKey, Lock))| {
        rows.commit_change(this.txn, row, lock, lock.min_commit_ts, index == 0 && !finishes)
    };
    let changes: Vec<RowChange> = locks.iter().enumerate().map(change).collect::<Result<_>>()?;
    let kind = if finishes { SubmissionKind::Commit } else { SubmissionKind::CommitPrimary };
    let conditions = Arc::clone(this.conditions);
    let submission = Submission { group: changes.into(), kind, durable: false, conditions, attempt };
    match rows.pipeline.submit(submission, this.timer)? {
        SubmitResult::Applied(Some(commit_ts)) => Ok(commit_ts),
        SubmitResult::Applied(None) => Err(rows.missing_commit_ts_error(this.txn)),
        SubmitResult::Rejected(rejection) => Err(rows.rejection_error(rejection, this.txn, this.read_ts)),
    }
}

/// Turns the other locks into versions. The last batch deletes the transaction record.
fn commit_secondaries(
    rows: &Rows,
    this: &TwoPhaseTxn<'_>,
    locks: &[(RowKey, Lock)],
    commit_ts: Timestamp,
) -> Result<()> {
    let groups = locks.chunks(rows.group_rows_max());
    let last = groups.len();
    for (index, some) in groups.enumerate() {
        let finishes = index + 1 == last;
        resolve_locks(rows, this.txn, this.primary, some, TxnStatus::Committed(commit_ts), finishes)?;
        crash_point!(CommitBetween if !finishes);
    }
    Ok(())
}

/// Releases the locks of a commit that failed before the commit point.
fn roll_back_prewrites(rows: &Rows, locks: &[(RowKey, Lock)], txn: TxnId) -> Result<()> {
    crash_point!(RollbackBefore);
    let Some((primary, _)) = locks.first() else { return Ok(()) };
    for some in locks.chunks(rows.group_rows_max()) {
        resolve_locks(rows, txn, primary, some, TxnStatus::RolledBack, false)?;
        crash_point!(RollbackBetween);
    }
    crash_point!(RollbackWritten);
    rows.metrics.locks_rolled_back.add(1);
    Ok(())
}

fn empty_txn_error(txn: TxnId) -> Error {
    Error::invalid(format!("transaction {} of owner {} has no writes to commit", txn.start_ts, txn.owner))
}
