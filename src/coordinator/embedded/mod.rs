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

use self::endings::Ending;
use self::history::History;
use super::{CommitProtocol, CommitRequest, Coordinator, KeepHistory, committed_by_primary};
use crate::coordinator::history::Kept;
use crate::engine::Engine;
use crate::error::{Conflict, ConflictReason, Result};
use crate::observe::{Counters, Spent};
use crate::owner::OwnerIds;
use crate::pipeline::{Entrance, Pipeline, Turns};
use crate::protocol::{CommitPoint, trace};
use crate::row::{Lock, Mutation, RowKey, TxnId};
use crate::runtime::{Parker, Runtime};
use crate::sync::Mutex;
use crate::timestamp::Timestamp;
use crate::view::PinnedView;

pub use housekeeping::{Chore, Housekeeper};
pub use stream::{Stream, mutation_of, streamed_write};

/// Set once a value was ever stored apart from its record, so that replaced ones have to be looked for.
const LONG_VALUES: &str = "long values";

/// See the [module](self).
pub struct Embedded {
    pipeline: Arc<Pipeline>,
    owners: OwnerIds,
    turns: Arc<Turns>,
    counters: Arc<Counters>,
    long_values: AtomicBool,
    read_durable: bool,
    /// `None` when replaced versions are not kept.
    history: Option<History>,
    /// Large transactions that are over with rows still locked.
    endings: Mutex<VecDeque<Ending>>,
    housekeeper: Mutex<Option<Arc<dyn Parker>>>,
}

impl Embedded {
    /// Takes charge of an engine. `read_durable` says whether [`Coordinator::snapshot`] shows only what is
    /// durable.
    pub fn open(
        engine: Arc<dyn Engine>,
        runtime: Arc<dyn Runtime>,
        counters: Arc<Counters>,
        conflict_slots: usize,
        read_durable: bool,
        history: KeepHistory,
    ) -> Result<Arc<Self>> {
        let long_values = AtomicBool::new(engine.get_meta(LONG_VALUES)?.is_some());
        let pipeline = Pipeline::open(engine, runtime, Arc::clone(&counters), conflict_slots)?;
        let history = History::open(&pipeline, history)?;
        Ok(Arc::new(Self {
            pipeline,
            owners: OwnerIds::default(),
            turns: Arc::default(),
            counters,
            long_values,
            read_durable,
            history,
            endings: Mutex::default(),
            housekeeper: Mutex::default(),
        }))
    }

    /// The pipeline beneath.
    pub fn pipeline(&self) -> &Arc<Pipeline> {
        &self.pipeline
    }

    fn wake_housekeeper(&self) {
        if let Some(parker) = &*self.housekeeper.lock() {
            parker.unpark();
        }
    }

    fn has_long_values(&self) -> bool {
        self.long_values.load(Ordering::Acquire)
    }

    /// Must be called before the first value is stored apart from its record.
    fn note_long_values(&self) -> Result<()> {
        if !self.has_long_values() {
            self.pipeline
                .engine()
                .write_meta(&[(LONG_VALUES.into(), Some(vec![1]))])
                .map_err(|why| self.pipeline.poison(why.into()))?;
            self.long_values.store(true, Ordering::Release);
        }
        Ok(())
    }
}

impl Coordinator for Embedded {
    fn begin(&self) -> Result<(Arc<PinnedView>, TxnId)> {
        self.pipeline.check_alive()?;
        let view = self.pipeline.current_view();
        let (start_ts, now) = self.pipeline.timestamp_and_time()?;
        crash_point!(StartTs);
        let owner = self.owners.next(now, self.pipeline.runtime().random());
        Ok((view, TxnId { start_ts, owner }))
    }

    fn snapshot(&self) -> Result<Arc<PinnedView>> {
        self.pipeline.check_alive()?;
        if self.read_durable { self.pipeline.durable_view() } else { Ok(self.pipeline.current_view()) }
    }

    fn snapshot_at(&self, at: Timestamp) -> Result<Arc<PinnedView>> {
        self.pipeline.check_alive()?;
        self.view_at(at)
    }

    fn kept(&self) -> Option<Kept> {
        self.history.as_ref().map(History::kept)
    }

    fn commit(&self, request: CommitRequest<'_>) -> Result<Timestamp> {
        let commit_ts = if self.fits_one_phase(&request) {
            self.commit_one_phase(request)?
        } else {
            self.commit_two_phase(request)?
        };
        self.acknowledge(commit_ts);
        crash_point!(CommitDone);
        Ok(commit_ts)
    }

    fn acknowledge(&self, ts: Timestamp) {
        self.pipeline.acknowledge(ts);
    }

    fn confirm(&self, read_ts: Timestamp, spent: &Spent) -> Result<()> {
        if mutated!(ReadsNotConfirmed) {
            return Ok(());
        }
        self.pipeline.confirm(read_ts, spent)
    }

    /// An orphan met this way is resolved in passing.
    fn committed_in(&self, view: &PinnedView, row: &RowKey, lock: &Lock) -> Result<Option<Timestamp>> {
        if let Some(commit_ts) = self.pipeline.unapplied(lock.txn.start_ts) {
            return Ok(Some(commit_ts).filter(|commit_ts| *commit_ts <= view.read_ts));
        }
        let committed = committed_by_primary(view, lock)?;
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

    fn trace(&self, primary: &RowKey, txn: TxnId) -> Result<Option<CommitPoint>> {
        Ok(trace(&self.pipeline.engine().read_row(primary, txn.start_ts)?, txn))
    }

    fn line_up(&self, entrance: &mut Entrance, rows: &[RowKey], conflict: &Conflict, _attempt: u32) {
        entrance.take_turns(&self.turns, rows);
        if conflict.reason == ConflictReason::Locked {
            self.pipeline.await_unlock(entrance, &conflict.row);
        }
    }
}

impl Embedded {
    fn fits_one_phase(&self, request: &CommitRequest<'_>) -> bool {
        let capabilities = self.pipeline.engine().capabilities();
        let bytes = |(row, mutation): (&RowKey, &Mutation)| row.as_bytes().len() + mutation.value_bytes();
        request.protocol == CommitProtocol::Auto
            && request.writes.len() <= capabilities.batch_rows_max
            && (capabilities.batch_bytes_max == usize::MAX
                || request.writes.iter().map(bytes).sum::<usize>() <= capabilities.batch_bytes_max)
    }
}
