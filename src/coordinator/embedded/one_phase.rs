//! One-phase commit: one atomic batch writes all versions, without locks (TiKV: 1PC).
//!
//! No intermediate state exists, so a crash leaves nothing to resolve. Readers need no locks,
//! because the leader of the pipeline allocates `commit_ts` and applies the batch before any view
//! at or above that timestamp is opened.
//!
//! The rows are read only if the commit needs the versions that it replaces: to keep them as
//! history, or to delete their values in the data column. Conflicts need no read: the preconditions
//! detect them. If a row has the lock of a finished transaction, the lock is resolved and the
//! commit is submitted again.

use std::sync::Arc;

use super::super::CommitRequest;
use super::super::step_error::step_error;
use super::blocker::{resolve_blocker, resolve_blockers};
use super::rows::{Rows, step_change};
use crate::engine::{OnePhaseWrites, RowBatch};
use crate::error::{ErrorKind, Result};
use crate::pipeline::{Rejection, Submission, SubmissionKind, SubmitResult};
use crate::protocol::{OnePhase, one_phase};
use crate::row::{RowChange, TxnId};
use crate::timestamp::Timestamp;
use crate::tunables::ONE_PHASE_BYTES_MAX;
use crate::write_set::WriteSet;

/// Commits. If a lock of a finished transaction prevents the commit, resolves the lock and submits
/// again. `TooLarge`: the batch does not fit; nothing was written.
pub fn commit_one_phase(rows: &Rows, request: &mut CommitRequest<'_>) -> Result<Timestamp> {
    let CommitRequest { txn, read_ts, writes, durable, ref conditions, ref mut attempt, timer, .. } = *request;
    loop {
        let batch = row_batch(rows, txn, read_ts, writes)?;
        crash_point!(OnePhaseBefore);
        let (kind, conditions) = (SubmissionKind::Commit, Arc::clone(conditions));
        let submission = Submission { batch, kind, durable, conditions, attempt: attempt.take() };
        match rows.pipeline.submit(submission, timer)? {
            SubmitResult::Applied(Some(commit_ts)) => {
                rows.metrics.commits_one_phase.add(1);
                return Ok(commit_ts);
            }
            SubmitResult::Applied(None) => return Err(rows.missing_commit_ts_error(txn)),
            SubmitResult::Rejected(rejection) => resolve_blockers(rows, writes.keys(), rejection, txn, read_ts)?,
        }
    }
}

fn row_batch(rows: &Rows, txn: TxnId, read_ts: Timestamp, writes: &Arc<WriteSet>) -> Result<RowBatch> {
    // A placeholder: the leader sets the commit timestamp.
    let commit_ts = txn.start_ts;
    if !rows.needs_old_version() {
        let (no_commit_after, writes) = (Some(read_ts), Arc::clone(writes));
        return Ok(RowBatch::OnePhaseWrites(OnePhaseWrites { txn, commit_ts, no_commit_after, writes }));
    }
    let keep_old_version = rows.keep_old_versions;
    let limit = ONE_PHASE_BYTES_MAX.min(rows.engine().capabilities().batch_bytes_max);
    let (mut changes, mut bytes) = (Vec::with_capacity(writes.len()), 0);
    for (row, mutation) in writes.iter() {
        let change = row_change(rows, &OnePhase { row, txn, read_ts, commit_ts, mutation, keep_old_version })?;
        bytes += change.size_bytes();
        if bytes > limit {
            return Err(ErrorKind::TooLarge { what: "a batch", bytes, limit }.into());
        }
        changes.push(change);
    }
    Ok(RowBatch::Changes(changes))
}

/// The change of one row. If the row has the lock of a finished transaction, the lock is resolved
/// first.
fn row_change(rows: &Rows, request: &OnePhase<'_>) -> Result<RowChange> {
    let OnePhase { row, txn, read_ts, .. } = *request;
    loop {
        let as_read = rows.replaced(row, txn)?;
        match one_phase(&as_read, request) {
            Ok(step) => return Ok(step_change(step, row, txn)),
            Err(error) => {
                let rejection = Rejection::PreconditionFailed(row.clone(), Box::new(as_read));
                // A conflict that this call returns is passed on, because it names the other
                // transaction. Any other error is replaced by the step's own, which says why the
                // step failed.
                resolve_blocker(rows, rejection, txn, read_ts)
                    .map_err(|other| if other.is_retryable() { other } else { step_error(row, error, read_ts) })?;
            }
        }
    }
}
