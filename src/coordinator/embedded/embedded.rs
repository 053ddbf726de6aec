//! [`EmbeddedCoordinator`] implements the [`Coordinator`] trait with the parts of this module.
//!
//! It chooses one or two phases for a commit, and resolves the locks that a reader finds. The other
//! methods delegate to the pipeline, the history or the background worker.

use std::sync::Arc;
use std::time::Duration;

use super::super::primary::commit_ts_from_primary;
use super::super::retention::Retention;
use super::super::{
    BackgroundTask, CommitProtocol, CommitRequest, Coordinator, HistoryRetention, LargeTxn, LockAuthority, Watermarks,
};
use super::background::{BackgroundWork, BackgroundWorker};
use super::cleanup::Cleanup;
use super::history::History;
use super::large::EmbeddedLargeTxn;
use super::lock_authority::PipelineAuthority;
use super::one_phase::commit_one_phase;
use super::resolve::resolve_lock;
use super::rows::Rows;
use super::sweep::Sweep;
use super::two_phase::commit_two_phase;
use super::waker::BackgroundWaker;
use crate::contention::{AdmissionWait, RowQueues};
use crate::engine::Engine;
use crate::env::Env;
use crate::error::{Conflict, ConflictReason, ErrorKind, Result};
use crate::observe::{Metrics, TxnTimer};
use crate::owner_id::OwnerIdGenerator;
use crate::pipeline::{Fate, Pipeline};
use crate::protocol::{TxnStatus, txn_status};
use crate::read_view::ReadView;
use crate::row::{KeyspaceId, Lock, RowKey, TxnId};
use crate::sync::Mutex;
use crate::timestamp::Timestamp;

/// Limit of lock cleanup during a close, in pages. The sweep of the next incarnation does the rest.
const CLEANUP_PAGES_AT_CLOSE: usize = 16;

/// See the [module](super).
pub struct EmbeddedCoordinator {
    pipeline: Arc<Pipeline>,
    rows: Arc<Rows>,
    history: Arc<History>,
    cleanup: Arc<Cleanup>,
    waker: Arc<BackgroundWaker>,
    background: Mutex<Option<BackgroundWorker>>,
    owner_ids: OwnerIdGenerator,
    row_queues: Arc<RowQueues>,
    /// Whether [`Coordinator::snapshot`] shows only what is durable.
    durable_snapshots: bool,
}

impl EmbeddedCoordinator {
    pub fn open(
        engine: Arc<dyn Engine>,
        env: Arc<dyn Env>,
        metrics: Arc<Metrics>,
        conflict_set_rows: usize,
        durable_snapshots: bool,
        history: HistoryRetention,
    ) -> Result<Arc<Self>> {
        let pipeline = Pipeline::open(engine, env, Arc::clone(&metrics), conflict_set_rows)?;
        // On an error the pipeline is closed, because its sync thread would keep the engine open.
        let history = History::open(&pipeline, history).inspect_err(|_| drop(pipeline.close()))?;
        let rows =
            Rows::new(Arc::clone(&pipeline), metrics, history.is_kept()).inspect_err(|_| drop(pipeline.close()))?;
        let (history, rows) = (Arc::new(history), Arc::new(rows));
        Ok(Arc::new(Self {
            pipeline,
            rows,
            history,
            cleanup: Arc::default(),
            waker: Arc::default(),
            background: Mutex::default(),
            owner_ids: OwnerIdGenerator::default(),
            row_queues: Arc::default(),
            durable_snapshots,
        }))
    }

    fn fits_one_phase(&self, request: &CommitRequest<'_>) -> bool {
        let rows_max = self.pipeline.engine().capabilities().batch_rows_max;
        request.protocol == CommitProtocol::Auto && request.writes.len() <= rows_max
    }

    /// Commits in one phase or, if the batch is too large, as a large transaction. With history the
    /// batch also has the versions that it replaces, so it can be far larger than the writes.
    fn commit_one_phase(&self, mut request: CommitRequest<'_>) -> Result<Timestamp> {
        match commit_one_phase(&self.rows, &mut request) {
            Err(error) if matches!(error.kind(), ErrorKind::TooLarge { .. }) => {
                let CommitRequest { txn, read_ts, writes, durable, conditions, attempt, timer, .. } = request;
                let mut large = EmbeddedLargeTxn::new(&self.rows, &self.waker, txn, read_ts);
                large.lock_rows(writes, &conditions, timer)?;
                large.commit(&conditions, durable, attempt, timer)
            }
            committed => committed,
        }
    }
}

impl Coordinator for EmbeddedCoordinator {
    fn begin(&self) -> Result<(Arc<ReadView>, TxnId)> {
        self.pipeline.failure().check_open()?;
        let view = self.pipeline.views().visible();
        let (start_ts, now) = self.pipeline.timestamps().next_and_clock()?;
        crash_point!(StartTs);
        let owner = self.owner_ids.next(now, self.pipeline.env().random());
        Ok((view, TxnId { start_ts, owner }))
    }

    fn snapshot(&self) -> Result<Arc<ReadView>> {
        self.pipeline.failure().check_open()?;
        if self.durable_snapshots { self.pipeline.durable_view() } else { Ok(self.pipeline.views().visible()) }
    }

    fn snapshot_at(&self, at: Timestamp) -> Result<Arc<ReadView>> {
        self.pipeline.failure().check_open()?;
        let view = self.history.view_at(at)?;
        if self.durable_snapshots {
            self.sync(Some(at))?;
        }
        Ok(view)
    }

    fn retention(&self) -> Option<Retention> {
        self.history.retention()
    }

    fn commit(&self, request: CommitRequest<'_>) -> Result<Timestamp> {
        let commit_ts = if self.fits_one_phase(&request) {
            self.commit_one_phase(request)?
        } else {
            commit_two_phase(&self.rows, request)?
        };
        self.note_acked(commit_ts);
        crash_point!(CommitDone);
        Ok(commit_ts)
    }

    fn note_acked(&self, ts: Timestamp) {
        self.pipeline.views().note_acked(ts);
    }

    fn wait_durable(&self, read_ts: Timestamp, timer: &TxnTimer) -> Result<()> {
        self.pipeline.sync().wait_durable_timed(read_ts, timer)
    }

    /// Resolves an orphan lock, so that later reads need not check its primary again. Leaves the
    /// lock of an aborted large transaction to the background worker, so that reads write little.
    fn commit_ts_of_lock(&self, view: &ReadView, row: &RowKey, lock: &Lock) -> Result<Option<Timestamp>> {
        let fate = self.pipeline.fates().fate(lock.txn.start_ts);
        if let Fate::Committed(commit_ts) = fate {
            return Ok(Some(commit_ts).filter(|commit_ts| *commit_ts <= view.read_ts));
        }
        let committed = commit_ts_from_primary(view, lock)?;
        // After a failure of the store the lock cannot be resolved, but the status that was read is
        // right.
        if fate == Fate::Orphan
            && let Err(error) = resolve_lock(&self.rows, row, lock)
            && self.pipeline.failure().reason().is_none()
        {
            return Err(error);
        }
        Ok(committed)
    }

    fn is_orphan(&self, start_ts: Timestamp) -> bool {
        matches!(self.pipeline.fates().fate(start_ts), Fate::Orphan | Fate::RolledBack)
    }

    fn txn_status(&self, primary: &RowKey, txn: TxnId) -> Result<Option<TxnStatus>> {
        Ok(txn_status(&self.pipeline.engine().read_row(primary, txn.start_ts)?, txn))
    }

    fn plan_retry_wait(&self, wait: &mut AdmissionWait, rows: &[RowKey], conflict: &Conflict, _attempt: u32) {
        wait.queue_for_rows(&self.row_queues, rows);
        if conflict.reason == ConflictReason::Locked {
            self.pipeline.wait_for_unlock(wait, &conflict.row);
        }
    }

    fn begin_large(&self, txn: TxnId, read_ts: Timestamp) -> Option<Box<dyn LargeTxn>> {
        Some(Box::new(EmbeddedLargeTxn::new(&self.rows, &self.waker, txn, read_ts)))
    }

    fn is_exclusive(&self) -> bool {
        true
    }

    fn check_open(&self) -> Result<()> {
        self.pipeline.failure().check_open()
    }

    fn failure(&self) -> Option<String> {
        self.pipeline.failure().reason().map(Into::into)
    }

    fn sync(&self, up_to: Option<Timestamp>) -> Result<()> {
        let visible = self.pipeline.views().visible().read_ts;
        self.pipeline.sync().wait_durable(up_to.map_or(visible, |ts| ts.min(visible)))
    }

    fn watermarks(&self) -> Option<Watermarks> {
        let (views, fates) = (self.pipeline.views(), self.pipeline.fates());
        Some(Watermarks {
            visible_ts: views.visible().read_ts,
            durable_ts: self.pipeline.sync().durable_ts(),
            oldest_read_ts: views.oldest_read_ts(),
            open_views: views.open(),
            may_have_orphan_locks: fates.may_have_orphans(),
            cleanup_pending: fates.pending_cleanups(),
        })
    }

    fn advance_past(&self, ts: Timestamp) -> Result<()> {
        self.pipeline.timestamps().advance_past(ts)
    }

    fn maintain(&self, max_snapshot_age: Duration) -> usize {
        let expired = self.pipeline.views().expire(max_snapshot_age);
        self.pipeline.request_sync();
        expired
    }

    fn resolve_orphan_locks(&self) -> Result<u64> {
        let (mut sweep, mut resolved) = (Sweep::default(), 0);
        loop {
            let page = sweep.page(&self.rows)?;
            resolved += page.resolved;
            if page.is_last {
                break;
            }
        }
        while self.cleanup.page(&self.rows)? {}
        Ok(resolved)
    }

    fn may_read_primaries(&self) -> bool {
        let fates = self.pipeline.fates();
        let of_earlier_incarnations = fates.may_have_orphans();
        let of_this_one = fates.any_committed() || fates.pending_cleanups() > 0;
        of_earlier_incarnations || of_this_one
    }

    fn is_below_gc_horizon(&self, ts: Timestamp) -> Result<bool> {
        Ok(self.history.gc_horizon_max() >= ts && self.history.advance_gc_horizon()? >= ts)
    }

    fn delete_keyspace(&self, keyspace: KeyspaceId) -> Result<()> {
        let deleted = self.pipeline.engine().delete_keyspace(keyspace);
        deleted.map_err(|error| self.pipeline.failure().poison(error.into()))
    }

    fn lock_authority(&self) -> Option<Arc<dyn LockAuthority>> {
        Some(Arc::new(PipelineAuthority(Arc::clone(&self.pipeline))))
    }

    fn start_background(&self, resolve: bool, tasks: Vec<BackgroundTask>) -> Result<()> {
        let worker = BackgroundWorker::start(BackgroundWork {
            rows: Arc::clone(&self.rows),
            history: Arc::clone(&self.history),
            cleanup: Arc::clone(&self.cleanup),
            waker: Arc::clone(&self.waker),
            resolve,
            tasks,
        })?;
        *self.background.lock() = Some(worker);
        Ok(())
    }

    fn stop_background(&self) {
        let worker = self.background.lock().take();
        if let Some(worker) = worker {
            worker.stop();
        }
    }

    fn close(&self) -> Result<()> {
        for _ in 0..CLEANUP_PAGES_AT_CLOSE {
            if !matches!(self.cleanup.page(&self.rows), Ok(true)) {
                break;
            }
        }
        // After a failure, buffered commits may not be durable, and a sync that succeeds now would
        // not prove that they are.
        let synced = match self.pipeline.failure().error() {
            Some(damage) if matches!(damage.kind(), ErrorKind::Corruption(_)) => Err(damage),
            Some(failure) => Err(ErrorKind::Undetermined(failure.to_string()).into()),
            None => self.sync(None),
        };
        let closed = self.pipeline.close();
        synced.and(closed)
    }
}
