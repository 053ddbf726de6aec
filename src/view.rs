//! An engine's view together with the timestamp that it shows.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::engine::EngineSnapshot;
use crate::timestamp::Timestamp;

/// Everything that was committed at or below `read_ts`, as versions or as locks that a reader can tell the fate of.
pub struct ReadView {
    /// Reads see commits at or below this, and none above.
    pub read_ts: Timestamp,
    /// The engine's own view.
    pub snapshot: Arc<dyn EngineSnapshot>,
    /// Whether rows may be committed here whose locks are still to be turned into versions, so that a reader has to look
    /// at locks too.
    pub must_check_locks: bool,
    /// Set when the view has outlived the age limit; whoever reads it is told so.
    pub expired: AtomicBool,
}

impl ReadView {
    /// A view of everything committed at or below `read_ts`.
    pub fn new(read_ts: Timestamp, view: Arc<dyn EngineSnapshot>, check_locks: bool) -> Arc<Self> {
        Arc::new(Self { read_ts, snapshot: view, must_check_locks: check_locks, expired: AtomicBool::new(false) })
    }
}
