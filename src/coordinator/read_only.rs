//! The coordinator of a store that is only looked at.
//!
//! There is one view, taken when the store was opened, of everything that was committed by then. Nobody writes meanwhile, so
//! whoever left a lock is gone, and what its primary says in that view is final: a reader gets the right value without
//! anything being resolved.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::history::{Kept, check_moment, in_the_future};
use super::{CommitRequest, Coordinator, committed_by_primary};
use crate::engine::Engine;
use crate::error::{Conflict, Error, Result};
use crate::observe::Spent;
use crate::oracle::read_high_water;
use crate::owner::OwnerIds;
use crate::pipeline::Entrance;
use crate::protocol::{CommitPoint, trace};
use crate::row::{Lock, RowKey, TxnId};
use crate::runtime::Runtime;
use crate::timestamp::Timestamp;
use crate::view::PinnedView;

/// See the [module](self).
pub struct ReadOnly {
    view: Arc<PinnedView>,
    kept: Option<Kept>,
    last_start: AtomicU64,
    owners: OwnerIds,
    runtime: Arc<dyn Runtime>,
}

impl ReadOnly {
    /// Looks at what the engine holds now.
    pub fn open(engine: &dyn Engine, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let view = engine.snapshot()?;
        // No timestamp above it was ever handed out.
        let read_ts = read_high_water(engine)?;
        let check_locks = view.any_lock()?;
        let view = PinnedView::new(read_ts, view, check_locks);
        let kept = Kept::read(engine)?;
        let last_start = AtomicU64::new(read_ts.to_u64());
        Ok(Self { view, kept, last_start, owners: OwnerIds::default(), runtime })
    }
}

/// What a writer hears.
pub fn refusal() -> Error {
    Error::invalid("the store was opened read-only, so nothing can be written to it")
}

impl Coordinator for ReadOnly {
    fn begin(&self) -> Result<(Arc<PinnedView>, TxnId)> {
        let start_ts = Timestamp::from_u64(self.last_start.fetch_add(1, Ordering::Relaxed)).next();
        let owner = self.owners.next(self.runtime.unix_millis(), self.runtime.random());
        Ok((Arc::clone(&self.view), TxnId { start_ts, owner }))
    }

    fn snapshot(&self) -> Result<Arc<PinnedView>> {
        Ok(Arc::clone(&self.view))
    }

    fn snapshot_at(&self, at: Timestamp) -> Result<Arc<PinnedView>> {
        check_moment(at, self.kept.map(|kept| kept.from))?;
        if at > self.view.read_ts && at.millis() > self.runtime.unix_millis() {
            return Err(in_the_future(at));
        }
        Ok(PinnedView::new(at, Arc::clone(&self.view.view), self.view.check_locks))
    }

    fn kept(&self) -> Option<Kept> {
        self.kept
    }

    fn commit(&self, _request: CommitRequest<'_>) -> Result<Timestamp> {
        Err(refusal())
    }

    fn acknowledge(&self, _ts: Timestamp) {}

    fn confirm(&self, _read_ts: Timestamp, _spent: &Spent) -> Result<()> {
        Ok(())
    }

    fn committed_in(&self, view: &PinnedView, _row: &RowKey, lock: &Lock) -> Result<Option<Timestamp>> {
        committed_by_primary(view, lock)
    }

    fn is_orphan(&self, _start_ts: Timestamp) -> bool {
        true
    }

    fn trace(&self, primary: &RowKey, txn: TxnId) -> Result<Option<CommitPoint>> {
        Ok(trace(&self.view.view.row(primary, txn.start_ts)?, txn))
    }

    /// Nobody commits, so nobody conflicts.
    fn line_up(&self, _entrance: &mut Entrance, _rows: &[RowKey], _conflict: &Conflict, _attempt: u32) {}
}
