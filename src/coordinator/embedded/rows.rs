//! Row changes: how the parts of this coordinator build them, submit them to the pipeline, and turn
//! a rejection into an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::step_error::{conflict, step_error};
use crate::engine::Engine;
use crate::error::{ConflictReason, Error, ErrorKind, Result};
use crate::observe::Metrics;
use crate::pipeline::{Pipeline, Rejection, SubmissionKind, SubmitResult};
use crate::protocol::{CommitRow, Step, StepError, commit};
use crate::row::{Lock, RowChange, RowKey, RowState, TxnId};
use crate::timestamp::Timestamp;
use crate::tunables::COMMIT_BATCH_BYTES_MAX;

/// Maximum number of rows in a batch of a two-phase commit. Other commits can run between two
/// batches.
const BATCH_ROWS_MAX: usize = 1024;

/// Maximum number of attempts at a step. Each failed attempt means that another caller changed the
/// row; this many changes mean a bug.
const STEP_RETRIES_MAX: usize = 1000;

/// Name of a metadata entry. It exists once a value was stored in the data column: from then on a
/// commit must check whether the version that it replaces has such a value.
const DATA_COLUMN_USED: &str = "long values";

/// The pipeline, and the settings that all changes share.
pub struct Rows {
    pub pipeline: Arc<Pipeline>,
    pub metrics: Arc<Metrics>,
    data_column_used: AtomicBool,
    /// Whether a commit keeps the version that it replaces, for the history.
    pub keep_old_versions: bool,
}

impl Rows {
    pub fn new(pipeline: Arc<Pipeline>, metrics: Arc<Metrics>, keep_old_versions: bool) -> Result<Self> {
        let data_column_used = AtomicBool::new(pipeline.engine().get_meta(DATA_COLUMN_USED)?.is_some());
        Ok(Self { pipeline, metrics, data_column_used, keep_old_versions })
    }

    pub fn engine(&self) -> &dyn Engine {
        self.pipeline.engine()
    }

    /// Maximum number of rows in one batch. It is below the engine's limit, because the last batch
    /// of a transaction also has the change that deletes the transaction record.
    pub fn batch_rows_max(&self) -> usize {
        (self.engine().capabilities().batch_rows_max - 1).clamp(1, BATCH_ROWS_MAX)
    }

    fn uses_data_column(&self) -> bool {
        self.data_column_used.load(Ordering::Acquire)
    }

    /// Records that the data column is used. Must be called before the first value is stored there.
    pub fn note_data_column_use(&self) -> Result<()> {
        if !self.uses_data_column() {
            self.engine()
                .write_meta(&[(DATA_COLUMN_USED.into(), Some(vec![1]))])
                .map_err(|error| self.pipeline.failure().poison(error.into()))?;
            self.data_column_used.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Whether a commit needs the version that it replaces: to delete that version's value in the
    /// data column, or to keep the version as history.
    pub fn needs_old_version(&self) -> bool {
        self.uses_data_column() || self.keep_old_versions
    }

    /// The row with the version that a commit replaces. If that version is not needed, nothing is
    /// read, and a row without any content is returned: the preconditions check the real row.
    pub fn replaced(&self, row: &RowKey, txn: TxnId) -> Result<RowState> {
        Ok(if self.needs_old_version() { self.engine().read_row(row, txn.start_ts)? } else { RowState::default() })
    }

    pub fn is_locked_by(&self, row: &RowKey, txn: TxnId) -> Result<bool> {
        Ok(self.engine().read_row(row, txn.start_ts)?.lock.is_some_and(|found| found.txn == txn))
    }

    /// Runs a protocol step on a row that other callers may be changing: reads, decides and submits
    /// until the change is applied or the step fails.
    pub fn run_step<T>(
        &self,
        row: &RowKey,
        start_ts: Timestamp,
        kind: SubmissionKind,
        step: impl Fn(&RowState) -> Result<Step<T>, StepError>,
    ) -> Result<Result<T, StepError>> {
        for _ in 0..STEP_RETRIES_MAX {
            let as_read = self.engine().read_row(row, start_ts)?;
            let (change, answer) = match step(&as_read) {
                Ok(Step::Apply(change, answer)) => (change, answer),
                Ok(Step::Done(answer)) => return Ok(Ok(answer)),
                Err(error) => return Ok(Err(error)),
            };
            if self.try_apply(vec![change], kind)? {
                return Ok(Ok(answer));
            }
        }
        Err(ErrorKind::Io(format!("row {row:?} changed during each of {STEP_RETRIES_MAX} attempts")).into())
    }

    /// Submits changes; returns whether they were applied.
    pub fn try_apply(&self, changes: Vec<RowChange>, kind: SubmissionKind) -> Result<bool> {
        Ok(matches!(self.pipeline.submit_internal(changes, kind)?, SubmitResult::Applied(_)))
    }

    /// The change that commits a row which the transaction has locked with `lock`. An error is
    /// final: the transaction is rolled back, or the lock and `commit_ts` contradict each other.
    pub fn commit_change(
        &self,
        txn: TxnId,
        row: &RowKey,
        lock: &Lock,
        commit_ts: Timestamp,
        keep_txn_record: bool,
    ) -> Result<RowChange> {
        let request = CommitRow {
            row: row.clone(),
            txn,
            commit_ts,
            keep_txn_record,
            keep_old_version: self.keep_old_versions,
            on_shared_engine: false,
        };
        let as_locked = RowState { lock: Some(lock.clone()), ..self.replaced(row, txn)? };
        commit(&as_locked, &request)
            .map(|step| step_change(step, row, txn))
            .map_err(|error| step_error(row, error, commit_ts))
    }

    /// Calls `change` for the first of `locks`, as many as fit one batch but at least one, and
    /// returns the changes. With the versions that they replace, these can be far larger than the
    /// transaction's writes.
    pub fn fill_batch<'a>(
        &self,
        locks: impl Iterator<Item = &'a (RowKey, Lock)>,
        change: impl Fn(&RowKey, &Lock) -> Result<RowChange>,
    ) -> Result<Vec<RowChange>> {
        let limit = COMMIT_BATCH_BYTES_MAX.min(self.engine().capabilities().batch_bytes_max);
        let (mut changes, mut bytes) = (Vec::new(), 0);
        for (row, lock) in locks {
            let next = change(row, lock)?;
            bytes += next.size_bytes();
            if bytes > limit && !changes.is_empty() {
                break;
            }
            changes.push(next);
        }
        Ok(changes)
    }

    /// The error for a commit that the pipeline has applied without a timestamp, which is a bug.
    pub fn missing_commit_ts_error(&self, txn: TxnId) -> Error {
        let TxnId { start_ts, owner } = txn;
        let what = format!("bug: the commit of transaction {start_ts} of owner {owner} has no timestamp");
        self.pipeline.failure().poison_undetermined(ErrorKind::Corruption(what).into())
    }

    /// The error for a rejection, with the conflicting transaction if the row shows it.
    pub fn rejection_error(&self, rejection: Rejection, txn: TxnId, read_ts: Timestamp) -> Error {
        let (row, mut reason) = match rejection {
            Rejection::KeyspaceDropped(keyspace) => return ErrorKind::KeyspaceNotFound(keyspace).into(),
            Rejection::SnapshotTooOld => {
                let what = "the snapshot of the transaction is older than max_snapshot_age";
                return ErrorKind::SnapshotTooOld(what.into()).into();
            }
            Rejection::FenceLost(lost) => return ErrorKind::LockLost(lost).into(),
            Rejection::WriteConflict(row, ts) => (row, ConflictReason::NewerVersion(ts)),
            Rejection::LockConflict(row, _) => (row, ConflictReason::Locked),
            Rejection::PreconditionFailed(row, found) => match (&found.lock, &found.write) {
                (Some(lock), _) if lock.txn != txn => (row, ConflictReason::Locked),
                (_, Some(write)) => (row, ConflictReason::NewerVersion(write.commit_ts)),
                _ => (row, ConflictReason::RolledBackByOther),
            },
        };
        if let ConflictReason::NewerVersion(ts) = reason {
            // A retry whose view does not show the newer version would conflict again, so this call
            // waits until the version is visible. An error of the wait is ignored, because the next
            // call on the store returns it.
            let _ = self.pipeline.wait_visible(ts);
        }
        let found = self.engine().read_row(&row, txn.start_ts).unwrap_or_default();
        let other = match reason {
            // The row may have been written once more after the rejection. The newer commit
            // conflicts as well, and the error names that one.
            ConflictReason::NewerVersion(ts) => found.write.filter(|write| write.commit_ts >= ts).map(|write| {
                if write.commit_ts > ts {
                    reason = ConflictReason::NewerVersion(write.commit_ts);
                    let _ = self.pipeline.wait_visible(write.commit_ts);
                }
                write.txn
            }),
            ConflictReason::Locked => found.lock.map(|lock| lock.txn),
            ConflictReason::RolledBackByOther => None,
        };
        conflict(&row, reason, other, read_ts)
    }
}

/// The change of a step; a change without effect if there is nothing to do.
pub fn step_change<T>(step: Step<T>, row: &RowKey, txn: TxnId) -> RowChange {
    match step {
        Step::Apply(change, _) => change,
        Step::Done(_) => RowChange::new(row.clone(), txn.start_ts),
    }
}
