//! The coordinator of one client among several of an engine.
//!
//! This is Percolator as published: two phases, row by row, a lock's time to live instead of knowledge of who lives. Rows
//! keep their replaced versions, because a view that is opened after its timestamp was taken may hold newer ones. Every
//! request may be repeated: one whose answer is lost is asked again, and the rows tell what the first one did. Only a lost
//! answer to the commit point that cannot be looked up is reported, as *undetermined*.
//!
//! Statuses stay at the primary until the safe point has passed the transaction: a reader with an older view may still
//! hold one of its locks in hand and come asking.

use super::retention::Retention;
use std::sync::Arc;
use std::time::Duration;

use super::step_error::step_error;
use super::{CommitRequest, Coordinator};
use crate::contention::AdmissionWait;
use crate::engine::storage::Column;
use crate::engine::{
    ApplyResult, Engine, EngineError, EngineSnapshot, OnCell, PageBuffer, PageRequest, RowBatch, RowRange, ScanVisitor,
};
use crate::error::{Conflict, Error, ErrorKind, Result};
use crate::observe::{Metrics, TxnPhase, TxnTimer};
use crate::oracle::Oracle;
use crate::owner::OwnerIdGenerator;
use crate::protocol::{
    CheckTxnStatus, CommitRow, Heartbeat, OwnerLiveness, Prewrite, PrewriteResult, Resolve, Rollback, Step, StepError,
    TransactionStatus, check_txn_status, commit_at_least, heartbeat, prewrite, resolve, rollback, txn_status,
};
use crate::read_view::ReadView;
use crate::row::{KeyspaceId, Lock, Mutation, Row, RowKey, TxnId, TxnRecord, WriteRecord};
use crate::runtime::Env;
use crate::timestamp::Timestamp;

/// How often a request without an answer is repeated.
const UNKNOWN_RETRIES_MAX: u32 = 50;
/// How often a change is tried anew because the row has changed: each time somebody else got something done.
const CONTENTION_RETRIES_MAX: u32 = 100_000;
const RETRY_DELAY: Duration = Duration::from_millis(2);
const BACKOFF_MAX: Duration = Duration::from_millis(500);

/// How a writer waits for a row that another client has locked. An engine that can watch a row ends the wait when the lock
/// goes.
pub trait LockWaiter: Send + Sync {
    /// Returns when the row may be free, or after about `at_most`.
    fn wait(&self, row: &RowKey, at_most: Duration);
}

/// Waits the time out.
pub struct SleepingLockWaiter(pub Arc<dyn Env>);

impl LockWaiter for SleepingLockWaiter {
    fn wait(&self, _row: &RowKey, at_most: Duration) {
        self.0.sleep(at_most);
    }
}

/// What clients of an engine have in common.
#[derive(Clone)]
pub struct SharedConfig {
    /// The engine, or this client's way to it.
    pub engine: Arc<dyn Engine>,
    /// The one oracle of all clients.
    pub oracle: Arc<dyn Oracle>,
    /// How to wait for a lock.
    pub waiter: Arc<dyn LockWaiter>,
    /// Milliseconds without a sign of life after which others may take a transaction's owner for dead; at least 1.
    pub ttl_ms: u64,
}

/// See the [module](self).
pub struct SharedCoordinator {
    config: SharedConfig,
    runtime: Arc<dyn Env>,
    owner_ids: OwnerIdGenerator,
    metrics: Arc<Metrics>,
}

/// Repeats a question that changes nothing until it is answered.
fn retry_unknown<T>(runtime: &dyn Env, mut question: impl FnMut() -> Result<T, EngineError>) -> Result<T, EngineError> {
    for _ in 1..UNKNOWN_RETRIES_MAX {
        match question() {
            Err(EngineError::Undetermined(_)) => runtime.sleep(RETRY_DELAY),
            answer => return answer,
        }
    }
    question()
}

/// A view that asks again when an answer is lost.
struct RetryingSnapshot {
    view: Arc<dyn EngineSnapshot>,
    runtime: Arc<dyn Env>,
}

impl EngineSnapshot for RetryingSnapshot {
    fn get_cell(&self, column: Column, row: &RowKey, see: OnCell<'_>) -> Result<(), EngineError> {
        retry_unknown(&*self.runtime, || self.view.get_cell(column, row, &mut *see))
    }

    fn txn_record(&self, row: &RowKey, start_ts: Timestamp) -> Result<Option<TxnRecord>, EngineError> {
        retry_unknown(&*self.runtime, || self.view.txn_record(row, start_ts))
    }

    fn data(&self, row: &RowKey, start_ts: Timestamp) -> Result<Option<Vec<u8>>, EngineError> {
        retry_unknown(&*self.runtime, || self.view.data(row, start_ts))
    }

    fn version_at(&self, row: &RowKey, upto: Timestamp) -> Result<Option<WriteRecord>, EngineError> {
        retry_unknown(&*self.runtime, || self.view.version_at(row, upto))
    }

    fn scan_page(&self, column: Column, page: &PageRequest<'_>, cells: &mut PageBuffer) -> Result<bool, EngineError> {
        retry_unknown(&*self.runtime, || self.view.scan_page(column, page, cells))
    }

    fn scan_raw(&self, column: Column, range: &RowRange, visit: ScanVisitor<'_>) -> Result<(), EngineError> {
        self.view.scan_raw(column, range, visit)
    }
}

/// How old a transaction is and how old it may get. Its age is what the oracle said when it began to commit, and this
/// client's steady clock from there on.
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

/// What came of driving a step.
type StepResult<T> = Result<std::result::Result<T, StepError>, EngineError>;

impl SharedCoordinator {
    /// One more client.
    pub fn new(commons: SharedConfig, runtime: Arc<dyn Env>, metrics: Arc<Metrics>) -> Self {
        Self { config: commons, runtime, owner_ids: OwnerIdGenerator::default(), metrics: metrics }
    }

    fn engine(&self) -> &dyn Engine {
        &*self.config.engine
    }

    fn retry_unknown<T>(&self, question: impl FnMut() -> Result<T, EngineError>) -> Result<T, EngineError> {
        retry_unknown(&*self.runtime, question)
    }

    fn timestamp(&self) -> Result<Timestamp, EngineError> {
        self.retry_unknown(|| self.config.oracle.timestamp())
    }

    /// Runs a step on a row until it is made or refused. A lost answer is looked up by reading the row and asking the
    /// step again: every step knows its own work.
    fn run_step<T>(
        &self,
        row: &RowKey,
        start_ts: Timestamp,
        guess: Option<Row>,
        step: impl Fn(&Row) -> std::result::Result<Step<T>, StepError>,
    ) -> StepResult<T> {
        let read = || self.retry_unknown(|| self.engine().read_row(row, start_ts));
        let mut as_read = guess.map_or_else(read, Ok)?;
        let (mut refusals, mut unanswered) = (0, 0);
        loop {
            let (change, answer) = match step(&as_read) {
                Ok(Step::Apply(change, answer)) => (change, answer),
                Ok(Step::Done(answer)) => return Ok(Ok(answer)),
                Err(why) => return Ok(Err(why)),
            };
            match self.engine().apply(&[RowBatch::Changes(vec![change])]) {
                Ok(outcomes) => match outcomes.into_iter().next() {
                    Some(ApplyResult::Applied) => return Ok(Ok(answer)),
                    Some(ApplyResult::PreconditionFailed { .. }) if refusals == CONTENTION_RETRIES_MAX => {
                        return Err(EngineError::Undetermined(format!(
                            "row {row:?} kept changing under {refusals} attempts"
                        )));
                    }
                    Some(ApplyResult::PreconditionFailed { row, .. }) => {
                        refusals += 1;
                        as_read = *row;
                    }
                    None => return Err(EngineError::Corruption("the engine answered for no group".into())),
                },
                Err(EngineError::Undetermined(_)) if unanswered + 1 < UNKNOWN_RETRIES_MAX => {
                    unanswered += 1;
                    self.runtime.sleep(RETRY_DELAY);
                    as_read = read()?;
                }
                Err(why) => return Err(why),
            }
        }
    }

    /// What the lock's primary says. A live owner is pushed above `push_above`.
    fn check_txn_status(&self, lock: &Lock, push_above: Option<Timestamp>) -> StepResult<TransactionStatus> {
        crash_point!(ResolveLockSeen);
        let mut current_ts = self.timestamp()?;
        if mutated!(TtlOnClientClock) {
            current_ts = Timestamp::from_millis(self.runtime.unix_millis());
        }
        let asker = OwnerLiveness::ByTtl { current_ts, push_above };
        let request = CheckTxnStatus { row: lock.primary.clone(), txn: lock.txn, liveness: asker };
        self.run_step(&lock.primary, lock.txn.start_ts, None, |as_read| check_txn_status(as_read, &request))
    }

    fn resolve_row(&self, row: &RowKey, txn: TxnId, verdict: TransactionStatus) -> Result<()> {
        crash_point!(ResolveStatusKnown if verdict != TransactionStatus::Pending);
        let request =
            Resolve { row: row.clone(), txn, status: verdict, keep_old_version: true, record_lock_only: true };
        let done = self.run_step(row, txn.start_ts, None, |as_read| resolve(as_read, &request))?;
        done.map_err(|why| step_error(row, why, txn.start_ts))?;
        match verdict {
            TransactionStatus::Committed(_) => self.metrics.locks_rolled_forward.add(1),
            TransactionStatus::RolledBack => self.metrics.locks_rolled_back.add(1),
            TransactionStatus::Pending => {}
        }
        Ok(())
    }

    fn resolve_lock(&self, row: &RowKey, lock: &Lock, push_above: Option<Timestamp>) -> Result<TransactionStatus> {
        let verdict = self.check_txn_status(lock, push_above)?;
        let verdict = verdict.map_err(|why| step_error(&lock.primary, why, lock.txn.start_ts))?;
        self.resolve_row(row, lock.txn, verdict)?;
        Ok(verdict)
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
            // Nothing of the row is known yet; the guards say what it must look like.
            let done = self.run_step(row, txn.start_ts, Some(Row::default()), |as_read| prewrite(as_read, &request))?;
            match done {
                Ok(PrewriteResult::Locked { .. } | PrewriteResult::Committed(_)) => return Ok(()),
                Err(StepError::KeyIsLocked(lock)) => {
                    if self.resolve_lock(row, &lock, None)? == TransactionStatus::Pending {
                        return Err(step_error(row, StepError::KeyIsLocked(lock), read_ts));
                    }
                }
                Err(why) => return Err(step_error(row, why, read_ts)),
            }
        }
    }

    fn heartbeat_if_due(&self, primary: &RowKey, txn: TxnId, life: &mut TtlTracker) -> Result<()> {
        let age_ms = life.age_ms(self.runtime.elapsed());
        if age_ms.saturating_add(self.config.ttl_ms / 2) < life.ttl_ms {
            return Ok(());
        }
        crash_point!(HeartbeatBefore);
        let request = Heartbeat { row: primary.clone(), txn, ttl_ms: age_ms.saturating_add(self.config.ttl_ms) };
        let lives = self.run_step(primary, txn.start_ts, None, |as_read| heartbeat(as_read, &request))?;
        crash_point!(HeartbeatDone);
        life.ttl_ms = lives.map_err(|why| step_error(primary, why, txn.start_ts))?;
        Ok(())
    }

    fn commit_primary(&self, primary: &RowKey, txn: TxnId) -> Result<Timestamp> {
        // After the last lock: who read before it has an older timestamp, who reads after it pushes.
        let commit_ts = if mutated!(EarlyCommitTs) { txn.start_ts.next() } else { self.timestamp()? };
        crash_point!(CommitTs);
        let request = CommitRow {
            row: primary.clone(),
            txn,
            commit_ts,
            keep_txn_record: true,
            keep_old_version: true,
            record_lock_only: true,
        };
        match self.run_step(primary, txn.start_ts, None, |as_read| commit_at_least(as_read, &request)) {
            Ok(Ok(commit_ts)) => Ok(commit_ts),
            // An answer was lost and so much time has passed since that nobody can tell any more.
            Ok(Err(why @ StepError::BelowSafePoint(_))) => {
                let why = step_error(primary, why, txn.start_ts).to_string();
                Err(ErrorKind::Undetermined(why).into())
            }
            Ok(Err(why)) => Err(step_error(primary, why, txn.start_ts)),
            Err(_) if mutated!(BlindRetry) => Err(step_error(primary, StepError::AlreadyRolledBack, txn.start_ts)),
            Err(why) => Err(ErrorKind::Undetermined(why.to_string()).into()),
        }
    }

    fn roll_back_rows<'a>(&self, rows: impl Iterator<Item = &'a RowKey>, txn: TxnId) {
        crash_point!(RollbackBefore);
        for row in rows {
            let request = Rollback { row: row.clone(), txn };
            // What cannot be reached now is resolved by whoever meets it: the primary comes first and has the verdict.
            let _ = self.run_step(row, txn.start_ts, None, |as_read| rollback(as_read, &request));
            crash_point!(RollbackBetween);
        }
        crash_point!(RollbackWritten);
        self.metrics.locks_rolled_back.add(1);
    }
}

impl Coordinator for SharedCoordinator {
    fn begin(&self) -> Result<(Arc<ReadView>, TxnId)> {
        // In this order: every transaction that commits at or below the timestamp has its locks in the view already.
        let start_ts = self.timestamp()?;
        crash_point!(StartTs);
        let view = self.retry_unknown(|| self.engine().snapshot())?;
        let view = Arc::new(RetryingSnapshot { view, runtime: Arc::clone(&self.runtime) });
        let owner = self.owner_ids.next(self.runtime.unix_millis(), self.runtime.random());
        Ok((ReadView::new(start_ts, view, true), TxnId { start_ts, owner }))
    }

    fn snapshot(&self) -> Result<Arc<ReadView>> {
        Ok(self.begin()?.0)
    }

    fn commit(&self, request: CommitRequest<'_>) -> Result<Timestamp> {
        let txn = request.txn;
        let mut rows = request.writes.iter();
        let Some((primary, first)) = rows.next() else {
            return Err(ErrorKind::InvalidArgument("nothing to commit".into()).into());
        };
        let age_at_commit_ms = self.timestamp()?.millis().saturating_sub(txn.start_ts.millis());
        let ttl_ms = age_at_commit_ms.saturating_add(self.config.ttl_ms);
        let mut life = TtlTracker { age_at_commit_ms, commit_started: self.runtime.elapsed(), ttl_ms };
        let prewritten = self.prewrite_row(primary, first, primary, ttl_ms, &request).and_then(|()| {
            for (row, mutation) in rows {
                self.heartbeat_if_due(primary, txn, &mut life)?;
                self.prewrite_row(row, mutation, primary, life.ttl_ms, &request)?;
            }
            Ok(())
        });
        if let Err(why) = prewritten {
            crash_point!(PrewriteConflict);
            self.roll_back_rows(request.writes.keys(), txn);
            return Err(why);
        }
        crash_point!(PrewriteAll);
        if mutated!(SecondariesFirst) {
            let early = self.timestamp()?;
            for row in request.writes.keys().skip(1) {
                let _ = self.resolve_row(row, txn, TransactionStatus::Committed(early));
            }
        }
        let commit_ts = match self.commit_primary(primary, txn) {
            Ok(commit_ts) => commit_ts,
            Err(why) => {
                if !matches!(why.kind(), ErrorKind::Undetermined(_)) {
                    self.roll_back_rows(request.writes.keys(), txn);
                }
                return Err(why);
            }
        };
        crash_point!(CommitPrimary);
        for row in request.writes.keys().skip(1) {
            // The verdict stands; a row that cannot be reached now is rolled forward by whoever meets it.
            let _ = self.resolve_row(row, txn, TransactionStatus::Committed(commit_ts));
            crash_point!(CommitBetween);
        }
        crash_point!(CommitSecondaries);
        if request.durable {
            request.timer.lap(TxnPhase::Apply, self.runtime.elapsed());
            self.wait_durable(commit_ts, request.timer)?;
        }
        request.timer.lap(TxnPhase::Apply, self.runtime.elapsed());
        self.metrics.commits_two_phase.add(1);
        crash_point!(CommitDone);
        Ok(commit_ts)
    }

    /// The rows keep their versions, and a view opened now could read them at an older timestamp as any late reader does. But nobody
    /// keeps note of the moment from which on they are whole, so a moment before it would be shown wrong.
    fn snapshot_at(&self, _at: Timestamp) -> Result<Arc<ReadView>> {
        Err(Error::invalid(
            "where others share the engine the past cannot be read: nobody keeps note of how far back it is whole",
        ))
    }

    fn retention(&self) -> Option<Retention> {
        None
    }

    /// Every snapshot is newer than all that was committed before it was asked for.
    fn note_acked(&self, _ts: Timestamp) {}

    fn wait_durable(&self, _read_ts: Timestamp, spent: &TxnTimer) -> Result<()> {
        spent.start(self.runtime.elapsed());
        let synced = self.retry_unknown(|| self.engine().sync());
        spent.lap(TxnPhase::Sync, self.runtime.elapsed());
        synced.map_err(|why| ErrorKind::Undetermined(why.to_string()).into())
    }

    fn commit_ts_of_lock(&self, view: &ReadView, row: &RowKey, lock: &Lock) -> Result<Option<Timestamp>> {
        if lock.txn.start_ts > view.read_ts {
            return Ok(None);
        }
        match self.resolve_lock(row, lock, Some(view.read_ts))? {
            TransactionStatus::Committed(commit_ts) if commit_ts <= view.read_ts => Ok(Some(commit_ts)),
            // A pending owner was pushed above this reader, so it will commit later than the view or not at all.
            _ => Ok(None),
        }
    }

    fn is_orphan(&self, _start_ts: Timestamp) -> bool {
        false
    }

    fn txn_status(&self, primary: &RowKey, txn: TxnId) -> Result<Option<TransactionStatus>> {
        Ok(txn_status(&self.retry_unknown(|| self.engine().read_row(primary, txn.start_ts))?, txn))
    }

    fn plan_retry_wait(&self, wait: &mut AdmissionWait, _rows: &[RowKey], conflict: &Conflict, attempt: u32) {
        let base = RETRY_DELAY.saturating_mul(1 << attempt.min(8)).min(BACKOFF_MAX);
        let jitter = u32::try_from(self.runtime.random() % 1000).unwrap_or(0);
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
