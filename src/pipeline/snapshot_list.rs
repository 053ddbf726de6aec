//! The read views in use. They limit GC, and expire at the age limit.
//!
//! An engine snapshot keeps all that a view reads, but conflicts are checked against the newest
//! versions. If GC removed the tombstone of a row that was deleted after a view was published, a
//! writer with this view would miss the conflict. So the oldest view limits GC until it is dropped
//! or expires, and a transaction with an expired view cannot commit.
//!
//! *Historical* views, opened at a timestamp of the past, do not limit GC: they belong to
//! snapshots, which write nothing.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::read_view::ReadView;
use crate::timestamp::Timestamp;
use crate::tunables::VIEWS_PRUNE_MIN;

/// The read views in use: current and historical ones.
#[derive(Default)]
pub struct SnapshotList {
    /// Views that were the newest when they were added, oldest first.
    current: VecDeque<SnapshotEntry>,
    /// Historical views, in the order in which they were added.
    historical: VecDeque<SnapshotEntry>,
    /// Before a view is added, inactive entries are removed if both lists together have at least
    /// this number of entries, and at least [`VIEWS_PRUNE_MIN`].
    prune_at: usize,
}

struct SnapshotEntry {
    read_ts: Timestamp,
    view: Weak<ReadView>,
    /// When a newer view replaced this one or, if it is historical, when it was added: the age of
    /// the view counts from then. `None` for the newest view.
    replaced_at: Option<Duration>,
}

impl SnapshotEntry {
    fn is_active(&self) -> bool {
        self.view.upgrade().is_some_and(|view| !view.expired.load(Ordering::Acquire))
    }
}

impl SnapshotList {
    /// Adds the newest view.
    pub fn add(&mut self, view: &Arc<ReadView>, now: Duration) {
        if let Some(last) = self.current.back_mut() {
            last.replaced_at = Some(now);
        }
        self.prune();
        self.current.push_back(SnapshotEntry { read_ts: view.read_ts, view: Arc::downgrade(view), replaced_at: None });
    }

    /// Adds a historical view. Its age counts from `now`.
    pub fn add_historical(&mut self, view: &Arc<ReadView>, now: Duration) {
        self.prune();
        self.historical.push_back(SnapshotEntry {
            read_ts: view.read_ts,
            view: Arc::downgrade(view),
            replaced_at: Some(now),
        });
    }

    fn prune(&mut self) {
        if self.current.len() + self.historical.len() >= self.prune_at.max(VIEWS_PRUNE_MIN) {
            self.current.retain(SnapshotEntry::is_active);
            self.historical.retain(SnapshotEntry::is_active);
            self.prune_at = (self.current.len() + self.historical.len()) * 2;
        }
    }

    /// The read timestamp of the oldest active view, historical ones not counted.
    pub fn oldest_read_ts(&mut self) -> Option<Timestamp> {
        while self.current.front().is_some_and(|oldest| !oldest.is_active()) {
            self.current.pop_front();
        }
        self.current.front().map(|oldest| oldest.read_ts)
    }

    /// Number of active views.
    pub fn count(&self) -> usize {
        self.current.iter().chain(&self.historical).filter(|published| published.is_active()).count()
    }

    /// Expires the views that were replaced or, if historical, added before the time `before`.
    /// Returns how many of them this call has expired.
    pub fn expire(&self, before: Duration) -> usize {
        let mut ended = 0;
        for views in [&self.current, &self.historical] {
            let old = views.iter().take_while(|view| view.replaced_at.is_some_and(|at| at < before));
            for view in old.filter_map(|published| published.view.upgrade()) {
                ended += usize::from(!view.expired.swap(true, Ordering::AcqRel));
            }
        }
        ended
    }
}
