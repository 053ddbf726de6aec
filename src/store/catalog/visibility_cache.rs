//! What lookups have found about the visibility of a keyspace, by timestamp.
//!
//! A lookup at one timestamp is also valid for others: an id that is not allocated is not allocated
//! at earlier timestamps, and a visible keyspace is visible at later timestamps, up to its drop. So
//! the cache answers most reads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::row::KeyspaceId;
use crate::store::catalog::entries::CATALOG_ID;
use crate::timestamp::Timestamp;

/// The ranges of timestamps at which a keyspace is known, from lookups, to be visible or not yet
/// created.
pub struct VisibilityCache {
    not_created_up_to: AtomicU64,
    visible_from: AtomicU64,
    visible_up_to: AtomicU64,
    /// Whether the keyspace has no name yet, so that only the restore that fills it has a handle.
    is_staging: AtomicBool,
}

/// The state of a keyspace in a view, if it is not dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
    NotCreated,
    Staging,
    Visible,
}

impl VisibilityCache {
    pub fn new(id: KeyspaceId) -> Self {
        // The catalog does not list itself; it is always visible.
        let visible_from = if id == CATALOG_ID { Timestamp::ZERO } else { Timestamp::MAX };
        Self {
            not_created_up_to: AtomicU64::new(0),
            visible_from: AtomicU64::new(visible_from.to_u64()),
            visible_up_to: AtomicU64::new(0),
            is_staging: AtomicBool::new(false),
        }
    }

    /// While a keyspace is staging, its rows are visible through its handle, which only the restore
    /// has.
    pub fn set_staging(&self, is_staging: bool) {
        self.is_staging.store(is_staging, Ordering::Release);
    }

    pub fn is_staging(&self) -> bool {
        self.is_staging.load(Ordering::Acquire)
    }

    #[inline]
    pub fn get(&self, read_ts: Timestamp, is_dropped: bool) -> Option<Visibility> {
        let ts = read_ts.to_u64();
        let is_visible = ts >= self.visible_from.load(Ordering::Relaxed)
            && (!is_dropped || ts <= self.visible_up_to.load(Ordering::Relaxed));
        if is_visible {
            Some(Visibility::Visible)
        } else if ts <= self.not_created_up_to.load(Ordering::Relaxed) {
            Some(Visibility::NotCreated)
        } else {
            None
        }
    }

    pub fn record(&self, read_ts: Timestamp, visibility: Visibility) {
        let ts = read_ts.to_u64();
        match visibility {
            Visibility::Visible => {
                self.visible_from.fetch_min(ts, Ordering::Relaxed);
                self.visible_up_to.fetch_max(ts, Ordering::Relaxed);
            }
            Visibility::NotCreated => {
                self.not_created_up_to.fetch_max(ts, Ordering::Relaxed);
            }
            Visibility::Staging => {}
        }
    }
}
