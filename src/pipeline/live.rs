//! Which views are still read: the collector must not touch what they need to know.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::timestamp::Timestamp;
use crate::view::PinnedView;

/// The views that somebody still reads.
#[derive(Default)]
pub struct LiveViews {
    /// Oldest first.
    published: VecDeque<Published>,
    /// Of moments of the past, in the order in which they were taken. What they show is kept by themselves.
    past: VecDeque<Published>,
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
        self.tidy();
        self.published.push_back(Published { read_ts: view.read_ts, view: Arc::downgrade(view), replaced_at: None });
    }

    /// Adds a view of the past.
    pub fn keep(&mut self, view: &Arc<PinnedView>, now: Duration) {
        self.tidy();
        self.past.push_back(Published { read_ts: view.read_ts, view: Arc::downgrade(view), replaced_at: Some(now) });
    }

    fn tidy(&mut self) {
        if self.published.len() + self.past.len() >= self.tidy_at.max(TIDY_AT_LEAST) {
            self.published.retain(Published::is_live);
            self.past.retain(Published::is_live);
            self.tidy_at = (self.published.len() + self.past.len()) * 2;
        }
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
        self.published.iter().chain(&self.past).filter(|published| published.is_live()).count()
    }

    /// Ends the views that were replaced before this moment; the answer is how many had not ended before.
    pub fn expire(&self, before: Duration) -> usize {
        let mut ended = 0;
        for views in [&self.published, &self.past] {
            let old = views.iter().take_while(|view| view.replaced_at.is_some_and(|at| at < before));
            for view in old.filter_map(|published| published.view.upgrade()) {
                ended += usize::from(!view.expired.swap(true, Ordering::AcqRel));
            }
        }
        ended
    }
}
