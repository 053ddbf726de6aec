//! The coordinator of a store that is opened for reading.
//!
//! There is one view: everything that was committed when the store was opened. No process writes
//! while the store is open, so every lock is an orphan lock, and the status that its primary shows
//! in that view is final. A read returns the value that the status implies. The lock stays, because
//! nothing is written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::primary::commit_ts_from_primary;
use super::retention::{Retention, check_within_retention, future_timestamp_error};
use super::{CommitRequest, Coordinator, Watermarks};
use crate::contention::AdmissionWait;
use crate::engine::Engine;
use crate::env::Env;
use crate::error::{Conflict, Error, Result};
use crate::local_oracle::read_high_water;
use crate::observe::TxnTimer;
use crate::owner_id::OwnerIdGenerator;
use crate::protocol::{TxnStatus, txn_status};
use crate::read_view::ReadView;
use crate::row::{KeyspaceId, Lock, RowKey, TxnId};
use crate::timestamp::Timestamp;

/// See the [module](self).
pub struct ReadOnlyCoordinator {
    view: Arc<ReadView>,
    retention: Option<Retention>,
    last_start_ts: AtomicU64,
    owner_ids: OwnerIdGenerator,
    env: Arc<dyn Env>,
}

impl ReadOnlyCoordinator {
    /// Opens the view, of the engine's present state.
    pub fn open(engine: &dyn Engine, env: Arc<dyn Env>) -> Result<Self> {
        let view = engine.snapshot()?;
        // No timestamp above the high-water mark was ever allocated, so a view at the mark shows
        // every commit.
        let read_ts = read_high_water(engine)?;
        let check_locks = view.any_lock()?;
        let view = ReadView::new(read_ts, view, check_locks);
        let kept = Retention::load(engine)?;
        let last_start = AtomicU64::new(read_ts.to_u64());
        Ok(Self { view, retention: kept, last_start_ts: last_start, owner_ids: OwnerIdGenerator::default(), env })
    }
}

/// The error of every write.
pub fn read_only_error() -> Error {
    Error::invalid("the store is read-only")
}

impl Coordinator for ReadOnlyCoordinator {
    fn begin(&self) -> Result<(Arc<ReadView>, TxnId)> {
        let start_ts = Timestamp::from_u64(self.last_start_ts.fetch_add(1, Ordering::Relaxed)).next();
        let owner = self.owner_ids.next(self.env.unix_millis(), self.env.random());
        Ok((Arc::clone(&self.view), TxnId { start_ts, owner }))
    }

    fn snapshot(&self) -> Result<Arc<ReadView>> {
        Ok(Arc::clone(&self.view))
    }

    fn snapshot_at(&self, at: Timestamp) -> Result<Arc<ReadView>> {
        check_within_retention(at, self.retention.map(|kept| kept.oldest_ts))?;
        if at > self.view.read_ts && at.millis() > self.env.unix_millis() {
            return Err(future_timestamp_error(at));
        }
        Ok(ReadView::new(at, Arc::clone(&self.view.snapshot), self.view.must_check_locks))
    }

    fn retention(&self) -> Option<Retention> {
        self.retention
    }

    fn commit(&self, _request: CommitRequest<'_>) -> Result<Timestamp> {
        Err(read_only_error())
    }

    fn note_acked(&self, _ts: Timestamp) {}

    fn wait_durable(&self, _read_ts: Timestamp, _timer: &TxnTimer) -> Result<()> {
        Ok(())
    }

    fn commit_ts_of_lock(&self, view: &ReadView, _row: &RowKey, lock: &Lock) -> Result<Option<Timestamp>> {
        commit_ts_from_primary(view, lock)
    }

    fn is_orphan(&self, _start_ts: Timestamp) -> bool {
        true
    }

    fn txn_status(&self, primary: &RowKey, txn: TxnId) -> Result<Option<TxnStatus>> {
        Ok(txn_status(&self.view.snapshot.row(primary, txn.start_ts)?, txn))
    }

    /// Does nothing: without commits there are no conflicts.
    fn plan_retry_wait(&self, _wait: &mut AdmissionWait, _rows: &[RowKey], _conflict: &Conflict, _attempt: u32) {}

    fn sync(&self, _up_to: Option<Timestamp>) -> Result<()> {
        Ok(())
    }

    fn watermarks(&self) -> Option<Watermarks> {
        Some(Watermarks {
            visible_ts: self.view.read_ts,
            durable_ts: self.view.read_ts,
            oldest_read_ts: self.view.read_ts,
            open_views: 0,
            may_have_orphan_locks: self.view.must_check_locks,
            cleanup_pending: 0,
        })
    }

    fn delete_keyspace(&self, _keyspace: KeyspaceId) -> Result<()> {
        Err(read_only_error())
    }
}
