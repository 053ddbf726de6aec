//! Read views: the newest one, and those that are still in use.
//!
//! After each write the leader publishes one shared view of all that is applied; a transaction begins
//! with that view. Views in use set the GC horizon, and expire at the age limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::fates::TxnFates;
use super::snapshot_list::SnapshotList;
use crate::engine::Engine;
use crate::error::Result;
use crate::read_view::ReadView;
use crate::runtime::Env;
use crate::sync::Mutex;
use crate::timestamp::Timestamp;

/// See the [module](self).
pub struct Views {
    engine: Arc<dyn Engine>,
    env: Arc<dyn Env>,
    fates: Arc<TxnFates>,
    visible: Mutex<Arc<ReadView>>,
    snapshots: Mutex<SnapshotList>,
    /// The newest commit that was acknowledged to a caller.
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

    /// Publishes a view of what is applied. Only the leader calls this. `newest` is the newest commit
    /// among the changes, if there is one.
    pub fn publish(&self, newest: Option<Timestamp>, now: Duration) -> Result<()> {
        let (read_ts, checked_locks) = {
            let visible = self.visible.lock();
            (visible.read_ts, visible.must_check_locks)
        };
        // Read before the snapshot is opened: a lock that becomes a version in between is then looked at
        // once too often, never once too seldom.
        let must_check_locks = self.fates.may_hide_commits();
        if newest.is_none() && must_check_locks == checked_locks {
            return Ok(());
        }
        let snapshot = self.engine.snapshot()?;
        let must_check_locks =
            if mutated!(LockCheckAfterSnapshot) { self.fates.any_committed() } else { must_check_locks };
        let next = ReadView::new(newest.map_or(read_ts, |ts| ts.max(read_ts)), snapshot, must_check_locks);
        self.snapshots.lock().add(&next, now);
        let replaced = std::mem::replace(&mut *self.visible.lock(), next);
        drop(replaced);
        Ok(())
    }

    /// The commit at this timestamp is acknowledged to a caller: later durable snapshots include it.
    pub fn note_acked(&self, commit_ts: Timestamp) {
        self.acked_ts.fetch_max(commit_ts.to_u64(), Ordering::AcqRel);
    }

    /// The newest acknowledged commit.
    pub fn acked_ts(&self) -> Timestamp {
        Timestamp::from_u64(self.acked_ts.load(Ordering::Acquire))
    }

    /// The oldest timestamp at which a transaction or snapshot reads, now or later.
    pub fn oldest_read_ts(&self) -> Timestamp {
        let visible = self.visible().read_ts;
        self.snapshots.lock().oldest_read_ts().map_or(visible, |oldest| oldest.min(visible))
    }

    /// Registers a view of an earlier timestamp, so that it is counted and expires.
    pub fn add_historical(&self, view: &Arc<ReadView>) {
        self.snapshots.lock().add_historical(view, self.env.elapsed());
    }

    /// How many different views are in use.
    pub fn open(&self) -> usize {
        self.snapshots.lock().count()
    }

    /// Expires the views that were replaced longer ago than `age`; returns how many.
    pub fn expire(&self, age: Duration) -> usize {
        self.snapshots.lock().expire(self.env.elapsed().saturating_sub(age))
    }
}
