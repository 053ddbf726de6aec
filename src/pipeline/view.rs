//! The view that transactions share at a watermark.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use crate::engine::View;
use crate::timestamp::Timestamp;

/// An engine view that holds every commit at or below its timestamp and none above.
pub struct PinnedView {
    /// Everything committed at or below this is in the view.
    pub read_ts: Timestamp,
    /// The engine's own.
    pub view: Arc<dyn View>,
    /// Whether rows may be committed here whose locks are still to be turned into versions, so that a reader has to look
    /// at locks too.
    pub check_locks: bool,
}

/// The views that somebody still reads.
#[derive(Default)]
pub struct LiveViews {
    published: VecDeque<(Timestamp, Weak<PinnedView>)>,
    tidy_at: usize,
}

const TIDY_AT_LEAST: usize = 64;

impl LiveViews {
    pub fn add(&mut self, view: &Arc<PinnedView>) {
        if self.published.len() >= self.tidy_at.max(TIDY_AT_LEAST) {
            self.published.retain(|(_, view)| view.strong_count() > 0);
            self.tidy_at = self.published.len() * 2;
        }
        self.published.push_back((view.read_ts, Arc::downgrade(view)));
    }

    /// The oldest timestamp that somebody reads at.
    pub fn oldest(&mut self) -> Option<Timestamp> {
        while self.published.front().is_some_and(|(_, view)| view.strong_count() == 0) {
            self.published.pop_front();
        }
        self.published.front().map(|(ts, _)| *ts)
    }

    /// How many are read.
    pub fn count(&self) -> usize {
        self.published.iter().filter(|(_, view)| view.strong_count() > 0).count()
    }
}
