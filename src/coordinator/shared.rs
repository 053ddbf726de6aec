//! The coordinator of one client among several on a shared engine.
//!
//! This is Percolator as published: two phases, row by row. No process sees all commits, so only
//! the preconditions of each row detect conflicts. The order of the steps brings all rows of a
//! transaction to the same status:
//!
//! | step | if the client dies after it |
//! |---|---|
//! | prewrite the primary, then the others | rolled back, once the primary's TTL has expired |
//! | get `commit_ts` from the oracle | the same |
//! | commit the primary | committed: resolvers roll the others forward |
//! | commit the others; an error is ignored | committed; resolvers do the rest |
//!
//! **Snapshots.** `commit_ts` is allocated after the last lock is written, and a reader gets its
//! timestamp before its engine snapshot. So a transaction that commits at or below the reader's
//! timestamp has at least its locks in that snapshot. The snapshot may also have newer versions, so
//! every commit keeps the version that it replaces.
//!
//! **Orphan locks.** Only time can show that an owner has ended. A lock has a time to live (TTL),
//! measured in the oracle's timestamps. While the owner prewrites, it extends the TTL of the
//! primary by heartbeats. A client that finds a lock checks the primary. If the primary's TTL has
//! expired, the client rolls the primary back, and the commit of a slow owner then fails. Otherwise
//! a reader pushes the primary's `min_commit_ts` above its own timestamp and reads the older
//! version; a writer gets a conflict and retries later.
//!
//! **Lost replies.** Every request may be repeated. After a lost reply the row is read and the step
//! runs again: mostly the row shows whether the first request took effect. If it does not show
//! whether the commit point was reached, the commit is *undetermined*. A commit that is visible but
//! could not be synced is *undetermined* as well.
//!
//! Transaction records stay at the primary, because a reader may still find a lock of the
//! transaction in an older snapshot, and check the status. The records may be deleted only below
//! the safe point, which this coordinator never advances.

use super::retention::Retention;
use std::sync::Arc;
use std::time::Duration;

use super::retry_unknown::{RETRY_DELAY, RetryingSnapshot, UNKNOWN_RETRIES_MAX, retry_unknown};
use super::shared_config::SharedConfig;
use super::step_error::step_error;
use super::{CommitRequest, Coordinator};
use crate::contention::AdmissionWait;
use crate::engine::{ApplyResult, Engine, EngineError, RowBatch};
use crate::env::Env;
use crate::error::{Conflict, Error, ErrorKind, Result};
use crate::observe::{Metrics, TxnPhase, TxnTimer};
use crate::owner_id::OwnerIdGenerator;
use crate::protocol::{
    CheckTxnStatus, CommitRow, Heartbeat, OwnerLiveness, Prewrite, PrewriteResult, Resolve, Rollback, Step, StepError,
    TxnStatus, check_txn_status, commit_at_least, heartbeat, prewrite, resolve, rollback, txn_status,
};
use crate::read_view::ReadView;
use crate::row::{KeyspaceId, Lock, Mutation, RowKey, RowState, TxnId};
use crate::timestamp::Timestamp;

/// How often at most a step runs again because another client has just changed its row.
const CONTENTION_RETRIES_MAX: u32 = 100_000;
const BACKOFF_MAX: Duration = Duration::from_millis(500);

/// See the [module](self).
pub struct SharedCoordinator {
    config: SharedConfig,
    env: Arc<dyn Env>,
    owner_ids: OwnerIdGenerator,
    metrics: Arc<Metrics>,
}

/// Shows when a heartbeat is due: the age of the transaction and the TTL of its locks, both in
/// milliseconds since `start_ts`. The oracle gives the age at the beginning of the commit; this
/// client's monotonic clock measures the time since.
struct TtlTracker {
    age_at_commit_ms: u64,
    commit_started: Duration,
    ttl_ms: u64,
}

impl TtlTracker {
    fn age_ms(&self, now: Duration) -> u64 {
        let since = u64::try_from(now.saturating_sub(self.commit_started).as_millis()).unwrap_or(u64::MAX);
        self.age_at_commit_ms.saturating_add(since)
    }
}

/// The result of a step, or the error of the engine on which it was run.
type StepResult<T> = Result<std::result::Result<T, StepError>, EngineError>;

impl SharedCoordinator {
    /// A new client.
    pub fn new(config: SharedConfig, env: Arc<dyn Env>, metrics: Arc<Metrics>) -> Self {
        Self { config, env, owner_ids: OwnerIdGenerator::default(), metrics }
    }

    fn engine(&self) -> &dyn Engine {
        &*self.config.engine
    }

    fn retry_unknown<T>(&self, request: impl FnMut() -> Result<T, EngineError>) -> Result<T, EngineError> {
        retry_unknown(&*self.env, request)
    }

    fn timestamp(&self) -> Result<Timestamp, EngineError> {
        self.retry_unknown(|| self.config.oracle.timestamp())
    }

    /// Runs a step on a row until its change is applied or the step fails. After a lost reply the
    /// row is read and the step runs again; if the change was applied, the row shows it.
    fn run_step<T>(
        &self,
        row: &RowKey,
        start_ts: Timestamp,
        guess: Option<RowState>,
        step: impl Fn(&RowState) -> std::result::Result<Step<T>, StepError>,
    ) -> StepResult<T> {
        let read = || self.retry_unknown(|| self.engine().read_row(row, start_ts));
        let mut as_read = guess.map_or_else(read, Ok)?;
        let (mut failures, mut lost_replies) = (0, 0);
        loop {
            let (change, answer) = match step(&as_read) {
                Ok(Step::Apply(change, answer)) => (change, answer),
                Ok(Step::Done(answer)) => return Ok(Ok(answer)),
                Err(error) => return Ok(Err(error)),
            };
            match self.engine().apply(&[RowBatch::Changes(vec![change])]) {
                Ok(outcomes) => match outcomes.into_iter().next() {
                    Some(ApplyResult::Applied) => return Ok(Ok(answer)),
                    Some(ApplyResult::PreconditionFailed { .. }) if failures == CONTENTION_RETRIES_MAX => {
                        return Err(EngineError::Undetermined(format!(
                            "row {row:?} was changed by other clients during each of {failures} attempts"
                        )));
                    }
                    Some(ApplyResult::PreconditionFailed { row, .. }) => {
                        failures += 1;
                        as_read = *row;
                    }
                    None => return Err(EngineError::Corruption("the engine returned no result for the batch".into())),
                },
                Err(EngineError::Undetermined(_)) if lost_replies + 1 < UNKNOWN_RETRIES_MAX => {
                    lost_replies += 1;
                    self.env.sleep(RETRY_DELAY);
                    as_read = read()?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The status at the lock's primary. A pending transaction is rolled back if the TTL there has
    /// expired; else the primary's `min_commit_ts` is pushed above `push_above`, if that is set.
    fn check_txn_status(&self, lock: &Lock, push_above: Option<Timestamp>) -> StepResult<TxnStatus> {
        crash_point!(ResolveLockSeen);
        let current_ts = self.timestamp()?;
        let liveness = OwnerLiveness::ByTtl { current_ts, push_above };
        let request = CheckTxnStatus { row: lock.primary.clone(), txn: lock.txn, liveness };
        self.run_step(&lock.primary, lock.txn.start_ts, None, |as_read| check_txn_status(as_read, &request))
    }

    fn resolve_row(&self, row: &RowKey, txn: TxnId, status: TxnStatus) -> Result<()> {
        crash_point!(ResolveStatusKnown if status != TxnStatus::Pending);
        let request = Resolve { row: row.clone(), txn, status, keep_old_version: true, on_shared_engine: true };
        let done = self.run_step(row, txn.start_ts, None, |as_read| resolve(as_read, &request))?;
        done.map_err(|error| step_error(row, error, txn.start_ts))?;
        match status {
            TxnStatus::Committed(_) => self.metrics.locks_rolled_forward.add(1),
            TxnStatus::RolledBack => self.metrics.locks_rolled_back.add(1),
            TxnStatus::Pending => {}
        }
        Ok(())
    }

    fn resolve_lock(&self, row: &RowKey, lock: &Lock, push_above: Option<Timestamp>) -> Result<TxnStatus> {
        let status = self.check_txn_status(lock, push_above)?;
        let status = status.map_err(|error| step_error(&lock.primary, error, lock.txn.start_ts))?;
        self.resolve_row(row, lock.txn, status)?;
        Ok(status)
    }

    fn prewrite_row(
        &self,
        row: &RowKey,
        mutation: &Mutation,
        primary: &RowKey,
        ttl_ms: u64,
        request: &CommitRequest<'_>,
    ) -> Result<()> {
        let CommitRequest { txn, read_ts, .. } = *request;
        crash_point!(PrewriteBefore if row == primary);
        crash_point!(PrewriteBetween if row != primary);
        let request = Prewrite {
            row: row.clone(),
            txn,
            read_ts,
            primary: primary.clone(),
            mutation: mutation.clone(),
            write_seq: 1,
            ttl_ms,
            min_commit_ts: txn.start_ts.next(),
        };
        loop {
            // Guessing an empty row saves a read. If that is wrong, the engine returns the row.
            let done =
                self.run_step(row, txn.start_ts, Some(RowState::default()), |as_read| prewrite(as_read, &request))?;
            match done {
                Ok(PrewriteResult::Locked { .. } | PrewriteResult::Committed(_)) => return Ok(()),
                Err(StepError::KeyIsLocked(lock)) => {
                    if self.resolve_lock(row, &lock, None)? == TxnStatus::Pending {
                        return Err(step_error(row, StepError::KeyIsLocked(lock), read_ts));
                    }
                }
                Err(error) => return Err(step_error(row, error, read_ts)),
            }
        }
    }

    /// Extends the primary's TTL if less than half of it is left.
    fn heartbeat_if_due(&self, primary: &RowKey, txn: TxnId, tracker: &mut TtlTracker) -> Result<()> {
        let age_ms = tracker.age_ms(self.env.elapsed());
        if age_ms.saturating_add(self.config.ttl_ms / 2) < tracker.ttl_ms {
            return Ok(());
        }
        crash_point!(HeartbeatBefore);
        let request = Heartbeat { row: primary.clone(), txn, ttl_ms: age_ms.saturating_add(self.config.ttl_ms) };
        let extended = self.run_step(primary, txn.start_ts, None, |as_read| heartbeat(as_read, &request))?;
        crash_point!(HeartbeatDone);
        tracker.ttl_ms = extended.map_err(|error| step_error(primary, error, txn.start_ts))?;
        Ok(())
    }

    fn commit_primary(&self, primary: &RowKey, txn: TxnId) -> Result<Timestamp> {
        // `commit_ts` is allocated after the last lock is written. So every reader with a timestamp
        // at or above `commit_ts` finds the locks; a reader that finds them before the commit point
        // pushes the primary.
        let commit_ts = self.timestamp()?;
        crash_point!(CommitTs);
        let request = CommitRow {
            row: primary.clone(),
            txn,
            commit_ts,
            keep_txn_record: true,
            keep_old_version: true,
            on_shared_engine: true,
        };
        match self.run_step(primary, txn.start_ts, None, |as_read| commit_at_least(as_read, &request)) {
            Ok(Ok(commit_ts)) => Ok(commit_ts),
            // The row has no lock and no record of the transaction, but below the safe point a
            // record may have been deleted: whether the transaction is committed is unknown.
            Ok(Err(error @ StepError::BelowSafePoint(_))) => {
                let text = step_error(primary, error, txn.start_ts).to_string();
                Err(ErrorKind::Undetermined(text).into())
            }
            Ok(Err(error)) => Err(step_error(primary, error, txn.start_ts)),
            Err(error) => Err(ErrorKind::Undetermined(error.to_string()).into()),
        }
    }

    fn roll_back_rows<'a>(&self, rows: impl Iterator<Item = &'a RowKey>, txn: TxnId) {
        crash_point!(RollbackBefore);
        for row in rows {
            let request = Rollback { row: row.clone(), txn };
            // An error is ignored: resolvers roll back the locks that are left. If the primary, the
            // first of `rows`, is still locked, they can do so once its TTL has expired.
            let _ = self.run_step(row, txn.start_ts, None, |as_read| rollback(as_read, &request));
            crash_point!(RollbackBetween);
        }
        crash_point!(RollbackWritten);
        self.metrics.locks_rolled_back.add(1);
    }
}

impl Coordinator for SharedCoordinator {
    fn begin(&self) -> Result<(Arc<ReadView>, TxnId)> {
        // A transaction draws its commit timestamp after its prewrites. So a snapshot taken after
        // `start_ts` was drawn has at least the locks of all that commit at or below `start_ts`.
        let start_ts = self.timestamp()?;
        crash_point!(StartTs);
        let view = self.retry_unknown(|| self.engine().snapshot())?;
        let view = Arc::new(RetryingSnapshot { view, env: Arc::clone(&self.env) });
        let owner = self.owner_ids.next(self.env.unix_millis(), self.env.random());
        Ok((ReadView::new(start_ts, view, true), TxnId { start_ts, owner }))
    }

    fn snapshot(&self) -> Result<Arc<ReadView>> {
        Ok(self.begin()?.0)
    }

    fn commit(&self, request: CommitRequest<'_>) -> Result<Timestamp> {
        let txn = request.txn;
        let mut rows = request.writes.iter();
        let Some((primary, first)) = rows.next() else {
            return Err(ErrorKind::InvalidArgument("the transaction has no writes to commit".into()).into());
        };
        let age_at_commit_ms = self.timestamp()?.millis().saturating_sub(txn.start_ts.millis());
        let ttl_ms = age_at_commit_ms.saturating_add(self.config.ttl_ms);
        let mut tracker = TtlTracker { age_at_commit_ms, commit_started: self.env.elapsed(), ttl_ms };
        let prewritten = self.prewrite_row(primary, first, primary, ttl_ms, &request).and_then(|()| {
            for (row, mutation) in rows {
                self.heartbeat_if_due(primary, txn, &mut tracker)?;
                self.prewrite_row(row, mutation, primary, tracker.ttl_ms, &request)?;
            }
            Ok(())
        });
        if let Err(error) = prewritten {
            crash_point!(PrewriteConflict);
            self.roll_back_rows(request.writes.keys(), txn);
            return Err(error);
        }
        crash_point!(PrewriteAll);
        let commit_ts = match self.commit_primary(primary, txn) {
            Ok(commit_ts) => commit_ts,
            Err(error) => {
                if !matches!(error.kind(), ErrorKind::Undetermined(_)) {
                    self.roll_back_rows(request.writes.keys(), txn);
                }
                return Err(error);
            }
        };
        crash_point!(CommitPrimary);
        for row in request.writes.keys().skip(1) {
            // The transaction is committed: if this change fails, a resolver rolls the row forward.
            let _ = self.resolve_row(row, txn, TxnStatus::Committed(commit_ts));
            crash_point!(CommitBetween);
        }
        crash_point!(CommitSecondaries);
        if request.durable {
            request.timer.lap(TxnPhase::Apply, self.env.elapsed());
            self.wait_durable(commit_ts, request.timer)?;
        }
        request.timer.lap(TxnPhase::Apply, self.env.elapsed());
        self.metrics.commits_two_phase.add(1);
        crash_point!(CommitDone);
        Ok(commit_ts)
    }

    /// Not supported, although the rows keep their versions: no record says from which timestamp on
    /// all versions are kept, and a read below that timestamp would return wrong values.
    fn snapshot_at(&self, _at: Timestamp) -> Result<Arc<ReadView>> {
        Err(Error::invalid(
            "not supported on a shared engine: reading at an older timestamp (no history retention is recorded)",
        ))
    }

    fn retention(&self) -> Option<Retention> {
        None
    }

    /// Does nothing: a new snapshot's timestamp is above that of every commit acknowledged so far.
    fn note_acked(&self, _ts: Timestamp) {}

    fn wait_durable(&self, _read_ts: Timestamp, timer: &TxnTimer) -> Result<()> {
        timer.start(self.env.elapsed());
        let synced = self.retry_unknown(|| self.engine().sync());
        timer.lap(TxnPhase::Sync, self.env.elapsed());
        synced.map_err(|error| ErrorKind::Undetermined(error.to_string()).into())
    }

    fn commit_ts_of_lock(&self, view: &ReadView, row: &RowKey, lock: &Lock) -> Result<Option<Timestamp>> {
        if lock.txn.start_ts > view.read_ts {
            return Ok(None);
        }
        match self.resolve_lock(row, lock, Some(view.read_ts))? {
            TxnStatus::Committed(commit_ts) if commit_ts <= view.read_ts => Ok(Some(commit_ts)),
            // The transaction is rolled back, or committed above the view's timestamp, or pending.
            // If it is pending, the primary's `min_commit_ts` is above that timestamp now.
            _ => Ok(None),
        }
    }

    fn is_orphan(&self, _start_ts: Timestamp) -> bool {
        false
    }

    fn txn_status(&self, primary: &RowKey, txn: TxnId) -> Result<Option<TxnStatus>> {
        Ok(txn_status(&self.retry_unknown(|| self.engine().read_row(primary, txn.start_ts))?, txn))
    }

    fn plan_retry_wait(&self, wait: &mut AdmissionWait, _rows: &[RowKey], conflict: &Conflict, attempt: u32) {
        let base = RETRY_DELAY.saturating_mul(1 << attempt.min(8)).min(BACKOFF_MAX);
        let jitter = u32::try_from(self.env.random() % 1000).unwrap_or(0);
        let (waiter, row) = (Arc::clone(&self.config.waiter), conflict.row.clone());
        wait.back_off(Box::new(move || waiter.wait(&row, base.saturating_mul(jitter) / 1000)));
    }

    fn sync(&self, _up_to: Option<Timestamp>) -> Result<()> {
        self.wait_durable(Timestamp::ZERO, &TxnTimer::default())
    }

    fn delete_keyspace(&self, _keyspace: KeyspaceId) -> Result<()> {
        Err(Error::invalid("not supported on a shared engine: deleting the rows of a keyspace"))
    }
}
