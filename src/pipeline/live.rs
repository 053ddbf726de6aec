//! Which views are still read: the collector must not touch what they need to know.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::timestamp::Timestamp;
use crate::view::PinnedView;

/// The views that somebody still reads, oldest first.
#[derive(Default)]
pub struct LiveViews {
    published: VecDeque<Published>,
    tidy_at: usize,
}

struct Published {
    read_ts: Timestamp,
    view: Weak<PinnedView>,
    /// When a newer view took its place: from then on it only costs.
    replaced_at: Option<Duration>,
}

impl Published {
    fn is_live(&self) -> bool {
        self.view.upgrade().is_some_and(|view| !view.expired.load(Ordering::Acquire))
    }
}

const TIDY_AT_LEAST: usize = 64;

impl LiveViews {
    /// Adds the newest view.
    pub fn add(&mut self, view: &Arc<PinnedView>, now: Duration) {
        if let Some(last) = self.published.back_mut() {
            last.replaced_at = Some(now);
        }
        if self.published.len() >= self.tidy_at.max(TIDY_AT_LEAST) {
            self.published.retain(Published::is_live);
            self.tidy_at = self.published.len() * 2;
        }
        self.published.push_back(Published { read_ts: view.read_ts, view: Arc::downgrade(view), replaced_at: None });
    }

    /// The oldest timestamp that somebody reads at.
    pub fn oldest(&mut self) -> Option<Timestamp> {
        while self.published.front().is_some_and(|oldest| !oldest.is_live()) {
            self.published.pop_front();
        }
        self.published.front().map(|oldest| oldest.read_ts)
    }

    /// How many are read.
    pub fn count(&self) -> usize {
        self.published.iter().filter(|published| published.is_live()).count()
    }

    /// Ends the views that were replaced before this moment.
    pub fn expire(&self, before: Duration) {
        let old = self.published.iter().take_while(|published| published.replaced_at.is_some_and(|at| at < before));
        for view in old.filter_map(|published| published.view.upgrade()) {
            view.expired.store(true, Ordering::Release);
        }
    }
}
