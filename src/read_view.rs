//! A read view, as in InnoDB: an engine snapshot and a read timestamp.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::engine::EngineSnapshot;
use crate::timestamp::Timestamp;

/// A consistent state of the store: all commits at or below `read_ts`, as versions or as locks that
/// a read resolves.
pub struct ReadView {
    /// Reads see all commits at or below this timestamp, and no others.
    pub read_ts: Timestamp,
    /// The engine snapshot. It may have newer commits as well, which reads skip.
    pub snapshot: Arc<dyn EngineSnapshot>,
    /// Whether this snapshot may have locks of committed transactions. Reads must then check the
    /// row's lock first, because such a lock holds the row's value.
    pub must_check_locks: bool,
    /// Set when the view is older than the age limit. The age of a view counts from its replacement
    /// by a newer view, that of a historical view from its opening. Reads in an expired view, and
    /// the commit of its transaction, return `SnapshotTooOld`.
    pub expired: AtomicBool,
}

impl ReadView {
    /// A view of everything committed at or below `read_ts`.
    pub fn new(read_ts: Timestamp, snapshot: Arc<dyn EngineSnapshot>, must_check_locks: bool) -> Arc<Self> {
        Arc::new(Self { read_ts, snapshot, must_check_locks, expired: AtomicBool::new(false) })
    }
}
