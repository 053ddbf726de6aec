//! Which views are still read: the collector must not touch what they need to know.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::read_view::ReadView;
use crate::timestamp::Timestamp;

/// The views that somebody still reads.
#[derive(Default)]
pub struct SnapshotList {
    /// Oldest first.
    current: VecDeque<SnapshotEntry>,
    /// Of moments of the past, in the order in which they were taken. What they show is kept by themselves.
    historical: VecDeque<SnapshotEntry>,
    prune_at: usize,
}

struct SnapshotEntry {
    read_ts: Timestamp,
    view: Weak<ReadView>,
    /// When a newer view took its place: from then on it only costs.
    replaced_at: Option<Duration>,
}

impl SnapshotEntry {
    fn is_active(&self) -> bool {
        self.view.upgrade().is_some_and(|view| !view.expired.load(Ordering::Acquire))
    }
}

const PRUNE_MIN: usize = 64;

impl SnapshotList {
    /// Adds the newest view.
    pub fn add(&mut self, view: &Arc<ReadView>, now: Duration) {
        if let Some(last) = self.current.back_mut() {
            last.replaced_at = Some(now);
        }
        self.prune();
        self.current.push_back(SnapshotEntry { read_ts: view.read_ts, view: Arc::downgrade(view), replaced_at: None });
    }

    /// Adds a view of the past.
    pub fn add_historical(&mut self, view: &Arc<ReadView>, now: Duration) {
        self.prune();
        self.historical.push_back(SnapshotEntry {
            read_ts: view.read_ts,
            view: Arc::downgrade(view),
            replaced_at: Some(now),
        });
    }

    fn prune(&mut self) {
        if self.current.len() + self.historical.len() >= self.prune_at.max(PRUNE_MIN) {
            self.current.retain(SnapshotEntry::is_active);
            self.historical.retain(SnapshotEntry::is_active);
            self.prune_at = (self.current.len() + self.historical.len()) * 2;
        }
    }

    /// The oldest timestamp that somebody reads at.
    pub fn oldest_read_ts(&mut self) -> Option<Timestamp> {
        while self.current.front().is_some_and(|oldest| !oldest.is_active()) {
            self.current.pop_front();
        }
        self.current.front().map(|oldest| oldest.read_ts)
    }

    /// How many are read.
    pub fn count(&self) -> usize {
        self.current.iter().chain(&self.historical).filter(|published| published.is_active()).count()
    }

    /// Ends the views that were replaced before this moment; the answer is how many had not ended before.
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
