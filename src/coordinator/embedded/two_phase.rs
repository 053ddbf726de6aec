//! Two-phase commit, after Percolator: lock every row, commit the primary, then the secondaries.
//! Two phases are for transactions that do not fit one atomic batch, and for
//! [`CommitProtocol::TwoPhase`](crate::CommitProtocol::TwoPhase).
//!
//! | step | if the process dies after it |
//! |---|---|
//! | prewrite all rows in batches, the primary first | rolled back: the primary is locked |
//! | commit the primary's batch: the commit point | committed: resolvers roll the others forward |
//! | commit the secondaries in batches | committed; no lock is left |
//!
//! The leader of the pipeline allocates `commit_ts` when it applies the primary's batch, after all
//! rows are locked. So `commit_ts` is above the timestamp of every view that was opened until then,
//! and a reader may ignore the locks until the commit point. Afterwards readers get the commit
//! timestamp from the transaction's fate in memory; after a crash, resolvers get it from the
//! transaction record at the primary.
//!
//! The primary's batch has as many rows as fit, so most transactions have no secondaries after it,
//! and need no transaction record. Otherwise the last batch of secondaries deletes the record.
//!
//! If a prewrite finds a conflict, the locks are released without a rollback record: the engine is
//! exclusive, so no request of this transaction can arrive later. If a secondary cannot be written,
//! the transaction is committed nevertheless: the commit returns *undetermined*, the store fails,
//! and its next incarnation rolls forward.

use std::sync::Arc;

use super::super::CommitRequest;
use super::prewrite::{TwoPhaseTxn, choose_primary, prewrite_rows};
use super::resolve_locks::resolve_locks;
use super::rows::Rows;
use crate::contention::AttemptGuard;
use crate::error::{Error, Result};
use crate::observe::TxnPhase;
use crate::pipeline::{Submission, SubmissionKind, SubmitResult};
use crate::protocol::TxnStatus;
use crate::row::{Lock, MAX_SHORT_VALUE_BYTES, Mutation, RowChange, RowKey, TxnId};
use crate::timestamp::Timestamp;
use crate::tunables::PRIMARY_BATCH_ROWS_MAX;

/// Commits. After any error but *undetermined* the transaction is aborted. Its locks are released
/// or, if the store has failed, left to the next incarnation.
pub fn commit_two_phase(rows: &Rows, request: CommitRequest<'_>) -> Result<Timestamp> {
    let CommitRequest { txn, read_ts, writes, durable, conditions, attempt, timer, .. } = request;
    let Some(primary) = choose_primary(writes) else { return Err(empty_txn_error(txn)) };
    let is_long = |mutation: &Mutation| mutation.value_bytes() > MAX_SHORT_VALUE_BYTES;
    if writes.values().any(is_long) {
        rows.note_data_column_use()?;
    }
    let this = TwoPhaseTxn { txn, read_ts, primary, conditions: &conditions, timer };

    let secondaries = writes.iter().filter(|(row, _)| *row != primary);
    let ordered = writes.get_key_value(primary).into_iter().chain(secondaries);
    let mut locks: Vec<(RowKey, Lock)> = Vec::with_capacity(writes.len());
    crash_point!(PrewriteBefore);
    let prewritten = prewrite_rows(rows, &this, ordered, SubmissionKind::NoCommit, |_, some| {
        crash_point!(PrewritePrimary if locks.is_empty());
        crash_point!(PrewriteBetween if !locks.is_empty());
        locks.extend(some);
    });
    let committed = prewritten.and_then(|()| primary_batch(rows, &this, &locks)).and_then(|changes| {
        let left = &locks[changes.len()..];
        Ok((commit_primary_batch(rows, &this, changes, left.is_empty(), attempt)?, left))
    });
    let (commit_ts, left) = match committed {
        Ok(committed) => committed,
        Err(error) => {
            // A failed pipeline accepts no changes; the next incarnation resolves the locks.
            if rows.pipeline.failure().reason().is_none() {
                crash_point!(PrewriteConflict if !locks.is_empty());
                // If the rollback fails too, the caller gets the first error, and the locks that
                // are left are orphan locks for the next incarnation.
                let _ = roll_back_prewrites(rows, &locks, txn);
            }
            return Err(error);
        }
    };
    if !left.is_empty() {
        crash_point!(CommitPrimary);
        commit_secondaries(rows, &this, left, commit_ts)
            .map_err(|error| rows.pipeline.failure().poison_undetermined(error))?;
    }
    crash_point!(CommitSecondaries);
    if durable {
        timer.lap(TxnPhase::Apply, rows.pipeline.env().elapsed());
        rows.pipeline.sync().wait_durable_timed(commit_ts, timer)?;
    }
    rows.metrics.commits_two_phase.add(1);
    Ok(commit_ts)
}

/// The changes that commit the primary, which is the first of `locks`, and as many other rows as
/// fit its batch. If locks are left, the primary gets a transaction record for their resolution.
fn primary_batch(rows: &Rows, this: &TwoPhaseTxn<'_>, locks: &[(RowKey, Lock)]) -> Result<Vec<RowChange>> {
    let Some((primary, primary_lock)) = locks.first() else { return Err(empty_txn_error(this.txn)) };
    crash_point!(PrewriteAll);
    // `min_commit_ts` is a placeholder: the leader sets the commit timestamp.
    let commit = |row: &RowKey, lock: &Lock, keep_txn_record| {
        rows.commit_change(this.txn, row, lock, lock.min_commit_ts, keep_txn_record)
    };
    let rows_max = rows.batch_rows_max().min(PRIMARY_BATCH_ROWS_MAX.unwrap_or(usize::MAX));
    let mut changes = rows.fill_batch(locks.iter().take(rows_max), |row, lock| commit(row, lock, false))?;
    if changes.len() < locks.len()
        && let Some(change) = changes.first_mut()
    {
        *change = commit(primary, primary_lock, true)?;
    }
    Ok(changes)
}

/// Commits the primary's batch. `finishes`: after the batch no lock is left.
fn commit_primary_batch(
    rows: &Rows,
    this: &TwoPhaseTxn<'_>,
    changes: Vec<RowChange>,
    finishes: bool,
    attempt: Option<AttemptGuard>,
) -> Result<Timestamp> {
    let kind = if finishes { SubmissionKind::Commit } else { SubmissionKind::CommitPrimary };
    let conditions = Arc::clone(this.conditions);
    let submission = Submission { batch: changes.into(), kind, durable: false, conditions, attempt };
    match rows.pipeline.submit(submission, this.timer)? {
        SubmitResult::Applied(Some(commit_ts)) => Ok(commit_ts),
        SubmitResult::Applied(None) => Err(rows.missing_commit_ts_error(this.txn)),
        SubmitResult::Rejected(rejection) => Err(rows.rejection_error(rejection, this.txn, this.read_ts)),
    }
}

/// Turns the secondaries' locks into versions. The last batch deletes the transaction record.
fn commit_secondaries(
    rows: &Rows,
    this: &TwoPhaseTxn<'_>,
    locks: &[(RowKey, Lock)],
    commit_ts: Timestamp,
) -> Result<()> {
    let groups = locks.chunks(rows.batch_rows_max());
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
    for some in locks.chunks(rows.batch_rows_max()) {
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
