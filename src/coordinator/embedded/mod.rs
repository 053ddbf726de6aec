//! The coordinator of a store that one process has for itself.
//!
//! Everything that changes rows goes through the [pipeline](crate::pipeline). Locks of transactions of this process are
//! known in memory; any other lock is an orphan of an earlier life of the store and is resolved by whoever meets it, and by
//! the [sweep](housekeeping).

mod commit;
mod endings;
mod history;
mod housekeeping;
mod resolve;
mod stream;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use self::endings::LockCleanup;
use self::history::HistoryKeeper;
use super::{CommitProtocol, CommitRequest, Coordinator, HistoryRetention, commit_ts_from_primary};
use crate::coordinator::history::Retention;
use crate::engine::Engine;
use crate::error::{Conflict, ConflictReason, Result};
use crate::observe::{Metrics, TxnTimer};
use crate::owner::OwnerIdGenerator;
use crate::pipeline::{AdmissionWait, Pipeline, RowQueues};
use crate::protocol::{TransactionStatus, txn_status};
use crate::row::{Lock, Mutation, RowKey, TxnId};
use crate::runtime::{Env, Parker};
use crate::sync::Mutex;
use crate::timestamp::Timestamp;
use crate::view::ReadView;

pub use housekeeping::{BackgroundTask, BackgroundWorker};
pub use stream::{LargeTxn, lock_mutation, read_own_lock};

/// Set once a value was ever stored apart from its record, so that replaced ones have to be looked for.
const DATA_COLUMN_USED: &str = "long values";

/// See the [module](self).
pub struct EmbeddedCoordinator {
    pipeline: Arc<Pipeline>,
    owner_ids: OwnerIdGenerator,
    row_queues: Arc<RowQueues>,
    metrics: Arc<Metrics>,
    data_column_used: AtomicBool,
    durable_snapshots: bool,
    /// `None` when replaced versions are not kept.
    history: Option<HistoryKeeper>,
    /// Large transactions that are over with rows still locked.
    cleanups: Mutex<VecDeque<LockCleanup>>,
    background_parker: Mutex<Option<Arc<dyn Parker>>>,
}

impl EmbeddedCoordinator {
    /// Takes charge of an engine. `read_durable` says whether [`Coordinator::snapshot`] shows only what is
    /// durable.
    pub fn open(
        engine: Arc<dyn Engine>,
        runtime: Arc<dyn Env>,
        metrics: Arc<Metrics>,
        conflict_slots: usize,
        read_durable: bool,
        history: HistoryRetention,
    ) -> Result<Arc<Self>> {
        let long_values = AtomicBool::new(engine.get_meta(DATA_COLUMN_USED)?.is_some());
        let pipeline = Pipeline::open(engine, runtime, Arc::clone(&metrics), conflict_slots)?;
        let history = HistoryKeeper::open(&pipeline, history)?;
        Ok(Arc::new(Self {
            pipeline,
            owner_ids: OwnerIdGenerator::default(),
            row_queues: Arc::default(),
            metrics: metrics,
            data_column_used: long_values,
            durable_snapshots: read_durable,
            history,
            cleanups: Mutex::default(),
            background_parker: Mutex::default(),
        }))
    }

    /// The pipeline beneath.
    pub fn pipeline(&self) -> &Arc<Pipeline> {
        &self.pipeline
    }

    fn wake_background(&self) {
        if let Some(parker) = &*self.background_parker.lock() {
            parker.unpark();
        }
    }

    fn uses_data_column(&self) -> bool {
        self.data_column_used.load(Ordering::Acquire)
    }

    /// Must be called before the first value is stored apart from its record.
    fn note_data_column_use(&self) -> Result<()> {
        if !self.uses_data_column() {
            self.pipeline
                .engine()
                .write_meta(&[(DATA_COLUMN_USED.into(), Some(vec![1]))])
                .map_err(|why| self.pipeline.poison(why.into()))?;
            self.data_column_used.store(true, Ordering::Release);
        }
        Ok(())
    }
}

impl Coordinator for EmbeddedCoordinator {
    fn begin(&self) -> Result<(Arc<ReadView>, TxnId)> {
        self.pipeline.check_open()?;
        let view = self.pipeline.visible_view();
        let (start_ts, now) = self.pipeline.next_timestamp_and_clock()?;
        crash_point!(StartTs);
        let owner = self.owner_ids.next(now, self.pipeline.runtime().random());
        Ok((view, TxnId { start_ts, owner }))
    }

    fn snapshot(&self) -> Result<Arc<ReadView>> {
        self.pipeline.check_open()?;
        if self.durable_snapshots { self.pipeline.durable_view() } else { Ok(self.pipeline.visible_view()) }
    }

    fn snapshot_at(&self, at: Timestamp) -> Result<Arc<ReadView>> {
        self.pipeline.check_open()?;
        self.view_at(at)
    }

    fn retention(&self) -> Option<Retention> {
        self.history.as_ref().map(HistoryKeeper::retention)
    }

    fn commit(&self, request: CommitRequest<'_>) -> Result<Timestamp> {
        let commit_ts = if self.fits_one_phase(&request) {
            self.commit_one_phase(request)?
        } else {
            self.commit_two_phase(request)?
        };
        self.note_acked(commit_ts);
        crash_point!(CommitDone);
        Ok(commit_ts)
    }

    fn note_acked(&self, ts: Timestamp) {
        self.pipeline.note_acked(ts);
    }

    fn wait_durable(&self, read_ts: Timestamp, spent: &TxnTimer) -> Result<()> {
        if mutated!(UndurableReadsAnswered) {
            return Ok(());
        }
        self.pipeline.wait_durable_timed(read_ts, spent)
    }

    /// An orphan met this way is resolved in passing.
    fn commit_ts_of_lock(&self, view: &ReadView, row: &RowKey, lock: &Lock) -> Result<Option<Timestamp>> {
        if let Some(commit_ts) = self.pipeline.unapplied(lock.txn.start_ts) {
            return Ok(Some(commit_ts).filter(|commit_ts| *commit_ts <= view.read_ts));
        }
        let committed = commit_ts_from_primary(view, lock)?;
        if self.pipeline.is_orphan(lock.txn.start_ts)
            && let Err(why) = self.resolve_lock(row, lock)
            && self.pipeline.failure().is_none()
        {
            return Err(why);
        }
        Ok(committed)
    }

    fn is_orphan(&self, start_ts: Timestamp) -> bool {
        self.pipeline.is_orphan(start_ts) || self.pipeline.is_abandoned(start_ts)
    }

    fn txn_status(&self, primary: &RowKey, txn: TxnId) -> Result<Option<TransactionStatus>> {
        Ok(txn_status(&self.pipeline.engine().read_row(primary, txn.start_ts)?, txn))
    }

    fn plan_retry_wait(&self, entrance: &mut AdmissionWait, rows: &[RowKey], conflict: &Conflict, _attempt: u32) {
        entrance.queue_for_rows(&self.row_queues, rows);
        if conflict.reason == ConflictReason::Locked {
            self.pipeline.wait_for_unlock(entrance, &conflict.row);
        }
    }
}

impl EmbeddedCoordinator {
    fn fits_one_phase(&self, request: &CommitRequest<'_>) -> bool {
        let capabilities = self.pipeline.engine().capabilities();
        let bytes = |(row, mutation): (&RowKey, &Mutation)| row.as_bytes().len() + mutation.value_bytes();
        request.protocol == CommitProtocol::Auto
            && request.writes.len() <= capabilities.batch_rows_max
            && (capabilities.batch_bytes_max == usize::MAX
                || request.writes.iter().map(bytes).sum::<usize>() <= capabilities.batch_bytes_max)
    }
}
