//! How the engine stands: memory, files, and whether it keeps up with what is written.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::storage::Column;

/// What an engine says of itself at one moment. All sizes are in bytes; those of tables and the cache are RocksDB's own estimates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct EngineStats {
    /// Memory that holds writes not yet in tables: the window, and RocksDB's write buffers, which are in use during a hand-down.
    pub memtable_bytes: u64,
    /// Memory that holds blocks of files, their indexes and filters.
    pub block_cache_bytes: u64,
    /// How much [`Builder::block_cache_bytes`](crate::Builder::block_cache_bytes) lets that be.
    pub block_cache_capacity_bytes: u64,
    /// The part of it that somebody is reading at this moment, and which cannot be given up.
    pub block_cache_pinned_bytes: u64,
    /// Memory for what is known of open files outside of the cache.
    pub table_reader_bytes: u64,
    /// How much must be rewritten until the files are in order. When it grows without end, writes come faster than the disk takes them.
    pub pending_compaction_bytes: u64,
    /// Compactions that run at this moment.
    pub running_compactions: u64,
    /// Flushes of write buffers that run at this moment.
    pub running_flushes: u64,
    /// Whether RocksDB takes nothing until flushes or compactions have caught up. Hand-downs wait then; commits go on until the window is full.
    pub is_write_stopped: bool,
    /// To how many bytes a second RocksDB slows hand-downs down; 0 when it does not.
    pub delayed_write_bytes_per_second: u64,
    /// How often work in the background has failed since the store was opened.
    pub background_errors: u64,
    /// Views that something still reads. They keep what they show in memory, in the window or, once it was handed down, in the tables.
    pub open_snapshots: u64,
    /// What the log takes on the disk: its segments, with zeros that were written ahead, and what accepted losses have left.
    pub wal_bytes: u64,
    /// What each column takes on the disk.
    pub columns: Vec<ColumnStats>,
}

/// What one column takes on the disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ColumnStats {
    /// The column.
    pub column: Column,
    /// Tables.
    pub sst_files: u64,
    /// Of level 0: those that are still to be sorted in. From 20 on, hand-downs are slowed down.
    pub level0_files: u64,
    /// Of all its tables.
    pub sst_bytes: u64,
    /// About how many cells there are in tables and RocksDB's write buffers; those that are only in the window do not count.
    pub estimated_keys: u64,
}

/// Writes that had to wait because the hand-down of what was written before had not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteStallStats {
    /// How many there were.
    pub count: u64,
    /// How long there was one that waited, in all and up to now. Where several wait at once, their time counts once.
    pub total: Duration,
    /// For how long there has been one that waits at this moment; `None` when there is none.
    pub current: Option<Duration>,
}

impl ColumnStats {
    #[cfg(feature = "rocks")]
    pub(super) fn new(column: Column) -> Self {
        Self { column, sst_files: 0, level0_files: 0, sst_bytes: 0, estimated_keys: 0 }
    }
}
