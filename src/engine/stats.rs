//! Engine statistics: memory, files, and whether flushes and compactions keep up with writes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::space_left::SpaceLeft;
use crate::cell::Column;

/// A sample of the engine's statistics. All sizes are in bytes; those of tables and of the block
/// cache are RocksDB's estimates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct EngineStats {
    /// Memory for writes that are not in tables yet: the store's memtables, and those of RocksDB,
    /// which are in use during a flush.
    pub memtable_bytes: u64,
    /// Memory in use by the block cache: blocks of tables, their indexes and filters.
    pub block_cache_bytes: u64,
    /// The capacity of the block cache:
    /// [`Builder::block_cache_bytes`](crate::Builder::block_cache_bytes).
    pub block_cache_capacity_bytes: u64,
    /// The part of the block cache that is being read and cannot be evicted.
    pub block_cache_pinned_bytes: u64,
    /// Memory outside the block cache for the metadata of open tables.
    pub table_reader_bytes: u64,
    /// How much compaction still has to rewrite. If it keeps growing, writes arrive faster than the
    /// disk can compact them.
    pub pending_compaction_bytes: u64,
    /// The number of running compactions.
    pub running_compactions: u64,
    /// The number of running flushes of RocksDB's own memtables.
    pub running_flushes: u64,
    /// Whether the store's next flush waits until RocksDB's flushes or compactions have caught up.
    /// Commits continue until the memtables are full.
    pub is_write_stopped: bool,
    /// Whether there are no compactions, because the disk had no room for one when the store was
    /// opened. A flush that finds room starts them again.
    pub compactions_paused: bool,
    /// The number of failed flushes and compactions of RocksDB since the store was opened.
    pub background_errors: u64,
    /// Open engine snapshots. Each snapshot keeps the versions that it can read: in the memtables
    /// or, after their flush, in the tables.
    pub open_snapshots: u64,
    /// Batches written since the oldest open snapshot. The tables keep what each of them has
    /// replaced or deleted, and grow by it.
    pub batches_since_oldest_snapshot: u64,
    /// The part of `memtable_bytes` that only open snapshots keep.
    pub snapshot_memtable_bytes: u64,
    /// Disk space of tables that a compaction has replaced, and that a running scan keeps.
    pub obsolete_table_bytes: u64,
    /// Free space of the file system of the tables, for this user; `None` if it cannot be measured.
    pub disk_free_bytes: Option<u64>,
    /// The size of that file system.
    pub disk_total_bytes: Option<u64>,
    /// What can be written. After an opening on a full disk only deletions can, until 3 MiB are
    /// free.
    pub space_left: SpaceLeft,
    /// Disk space of the write-ahead log: its segments, including preallocated zeros, and what is
    /// kept of each accepted data loss: quarantined segments and a loss file.
    pub wal_bytes: u64,
    /// The number of segments of the write-ahead log, and of files made ahead of their use.
    pub wal_segments: u64,
    /// The part of `wal_bytes` that accepted data losses have left. Nothing removes it.
    pub lost_wal_bytes: u64,
    /// Disk space of RocksDB's files other than tables: manifest, options and logs of events.
    pub other_table_bytes: u64,
    /// The tables of each column.
    pub columns: Vec<ColumnStats>,
}

/// The tables of one column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ColumnStats {
    /// The column.
    pub column: Column,
    /// The number of its tables.
    pub sst_files: u64,
    /// The number of its tables in level 0, which are not compacted yet. From 20 on, the
    /// next flush waits for a compaction.
    pub level0_files: u64,
    /// The size of all its tables.
    pub sst_bytes: u64,
    /// The estimated number of cells in the tables and in RocksDB's own memtables. Cells that are
    /// only in the store's memtables do not count.
    pub estimated_keys: u64,
}

/// Write stalls: writes that waited because the flush of the previous memtable had not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteStallStats {
    /// The number of stalled writes since the store was opened.
    pub count: u64,
    /// The total time with at least one stalled write. Overlapping stalls count once.
    pub total: Duration,
    /// How long the current stall has lasted; `None` if no write is stalled.
    pub current: Option<Duration>,
}

impl ColumnStats {
    #[cfg(feature = "rocks")]
    pub(super) fn new(column: Column) -> Self {
        Self { column, sst_files: 0, level0_files: 0, sst_bytes: 0, estimated_keys: 0 }
    }
}
