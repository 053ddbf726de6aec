//! Whether something can be written on a full disk, and how deletions give space back to it.
//!
//! What was deleted leaves the log by a flush, and the tables by a compaction. Each writes what is
//! left before it frees anything, so each is made only if that fits. No batch is written meanwhile:
//! both compare with the same free space.

use std::sync::atomic::Ordering;

use super::reserve::Reserve;
use super::{DirectoryStorage, file_sizes};
use crate::engine::storage::Storage as _;
use crate::engine::{EngineError, SpaceLeft};
use crate::wal;

/// After batches of this size a flush is tried, without a wait for the background worker: a flush
/// of all that deletions may write might not fit.
const FLUSHED_BYTES: usize = 128 << 10;

impl DirectoryStorage {
    /// The reserve, while it is given up.
    pub(super) fn full_disk(&self) -> Option<&Reserve> {
        self.reserve.as_ref().filter(|reserve| reserve.is_given_up())
    }

    /// See [`Engine::has_space`](crate::engine::Engine::has_space). A frame is at most twice as
    /// large as its batches: keys are escaped.
    pub(super) fn full_disk_has_space(&self, bytes: usize, needed: SpaceLeft) -> bool {
        let Some(reserve) = self.full_disk() else { return true };
        let _no_reclaim = self.write_lock().lock();
        let has_space = || reserve.has_space((bytes as u64).saturating_mul(2), needed);
        let unflushed = self.written_to_full_disk.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if unflushed > FLUSHED_BYTES || !has_space() {
            // An error has failed the store, and the next write returns it.
            let _ = self.reclaim(reserve);
        }
        has_space()
    }

    /// See [`Engine::reclaim_space`](crate::engine::Engine::reclaim_space).
    pub(super) fn reclaim_full_disk(&self) -> Result<(), EngineError> {
        let Some(reserve) = self.full_disk() else { return Ok(()) };
        let _no_batch = self.write_lock().lock();
        self.reclaim(reserve)
    }

    fn reclaim(&self, reserve: &Reserve) -> Result<(), EngineError> {
        self.written_to_full_disk.store(0, Ordering::Relaxed);
        reserve.replenish();
        let segments = file_sizes(&self.wal).filter(|(name, _)| wal::is_segment(name));
        let log_bytes = segments.map(|(_, bytes)| bytes).sum();
        if reserve.is_given_up() && self.lsm.flush_to_free_space(reserve.usable_bytes(), log_bytes)? {
            self.compaction_due.store(true, Ordering::Relaxed);
        }
        if reserve.is_given_up() && self.compaction_due.swap(false, Ordering::Relaxed) {
            self.lsm.tables().compact_deletions(self.lsm.has_older_snapshots(), &|| reserve.usable_bytes())?;
        }
        reserve.replenish();
        Ok(())
    }
}
