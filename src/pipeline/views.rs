//! Read views: the newest one, and those in use.
//!
//! After each write with a commit the leader publishes one view of all that is applied. All
//! transactions that begin before the next such write share this view, so a begin opens no engine
//! snapshot. [Views in use](super::snapshot_list) limit GC, and expire at the age limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::fates::TxnFates;
use super::snapshot_list::SnapshotList;
use crate::engine::{Engine, EngineError};
use crate::env::Env;
use crate::error::Result;
use crate::read_view::ReadView;
use crate::sync::Mutex;
use crate::timestamp::Timestamp;

/// The newest view, and the list of all views in use.
pub struct Views {
    engine: Arc<dyn Engine>,
    env: Arc<dyn Env>,
    fates: Arc<TxnFates>,
    visible: Mutex<Arc<ReadView>>,
    snapshots: Mutex<SnapshotList>,
    /// Commits up to this timestamp count as acknowledged to a caller, durable or not.
    acked_ts: AtomicU64,
}

impl Views {
    pub fn new(engine: Arc<dyn Engine>, env: Arc<dyn Env>, fates: Arc<TxnFates>, first: Arc<ReadView>) -> Self {
        let mut snapshots = SnapshotList::default();
        snapshots.add(&first, env.elapsed());
        let acked_ts = AtomicU64::new(first.read_ts.to_u64());
        Self { engine, env, fates, visible: Mutex::new(first), snapshots: Mutex::new(snapshots), acked_ts }
    }

    /// The newest view: all that is visible.
    pub fn visible(&self) -> Arc<ReadView> {
        Arc::clone(&self.visible.lock())
    }

    /// Publishes a view of all that is applied. Only the leader calls this. `newest` is the newest
    /// commit since the last call. If there is none, and the need for lock checks has not changed,
    /// the present view stays. Returns whether the view was replaced.
    pub fn publish(&self, newest: Option<Timestamp>, now: Duration) -> Result<bool> {
        let (read_ts, checked_locks) = {
            let visible = self.visible.lock();
            (visible.read_ts, visible.must_check_locks)
        };
        // The need for lock checks is sampled before the snapshot is opened. If a committed
        // transaction's lock becomes a version in between, reads of the view check locks
        // needlessly. In the other order the snapshot could have the lock, and reads of the view
        // would not check it.
        let must_check_locks = self.fates.may_hide_commits();
        if newest.is_none() && must_check_locks == checked_locks {
            return Ok(false);
        }
        // The commits that the view shows are applied already.
        let snapshot = self.engine.snapshot().map_err(EngineError::after_write)?;
        let next = ReadView::new(newest.map_or(read_ts, |ts| ts.max(read_ts)), snapshot, must_check_locks);
        self.snapshots.lock().add(&next, now);
        let replaced = std::mem::replace(&mut *self.visible.lock(), next);
        drop(replaced);
        Ok(true)
    }

    /// Records that commits up to this timestamp are acknowledged: later durable snapshots include
    /// them.
    pub fn note_acked(&self, commit_ts: Timestamp) {
        self.acked_ts.fetch_max(commit_ts.to_u64(), Ordering::AcqRel);
    }

    /// The highest timestamp passed to [`note_acked`](Self::note_acked), or that of the first view.
    pub fn acked_ts(&self) -> Timestamp {
        Timestamp::from_u64(self.acked_ts.load(Ordering::Acquire))
    }

    /// The oldest timestamp at which a current or future transaction reads. Historical and expired
    /// views are not counted.
    pub fn oldest_read_ts(&self) -> Timestamp {
        let visible = self.visible().read_ts;
        self.snapshots.lock().oldest_read_ts().map_or(visible, |oldest| oldest.min(visible))
    }

    /// Registers a historical view, which was opened at a timestamp of the past, so that it expires
    /// and is counted by [`Views::open`].
    pub fn add_historical(&self, view: &Arc<ReadView>) {
        self.snapshots.lock().add_historical(view, self.env.elapsed());
    }

    /// Number of distinct views in use.
    pub fn open(&self) -> usize {
        self.snapshots.lock().count()
    }

    /// Expires the views that were replaced or, if historical, opened longer ago than `age`.
    /// Returns how many of them this call has expired.
    pub fn expire(&self, age: Duration) -> usize {
        self.snapshots.lock().expire(self.env.elapsed().saturating_sub(age))
    }
}
