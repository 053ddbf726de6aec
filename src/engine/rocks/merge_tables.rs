//! Merges tables that are small, or that have deletions.
//!
//! A table whose keys overlap no other's is moved from level to level by RocksDB, and never merged.
//! So rows in key order, with small memtables or in short incarnations, would leave a table for
//! each flush: 16 KiB of rows were found in 1,011 tables, which was more than the process could
//! open. This module merges each run of [`RUN_TABLES`] neighbours that are smaller than
//! [`SMALL_TABLE_BYTES`]. Then a column has less than [`RUN_TABLES`] tables for each larger one in
//! a level, and as many beside.
//!
//! Level 0 is left to RocksDB, which merges it by number. The flush thread calls this after a
//! flush, and an opening that has flushed.
//!
//! On a full disk the tables that have deletions are compacted if what is left of them fits.

use std::ops::Bound;
use std::sync::atomic::Ordering;

use rocksdb::{BottommostLevelCompaction, CompactOptions, LiveFile};

use super::{LockedDb, RocksStorage, column_family_name, engine_error};
use crate::engine::storage::{CellReader as _, Column};
use crate::engine::{EngineError, RowRange};
use crate::tunables::TABLE_ENTRY_BYTES;

/// A sixteenth of the size to which RocksDB limits a table.
const SMALL_TABLE_BYTES: usize = 4 << 20;
/// The number of small neighbours that are merged.
const RUN_TABLES: usize = 16;
/// The most that one merge takes, which bounds its time.
const MERGED_TABLES_MAX: usize = 64;
/// The tables are looked through at the first flush, and then once in this number of flushes.
const FLUSHES_BETWEEN: u64 = 16;

impl RocksStorage {
    /// Merges small tables if there are many: see the [module](self).
    pub(super) fn merge_small_tables(&self) {
        if !self.flushes.fetch_add(1, Ordering::Relaxed).is_multiple_of(FLUSHES_BETWEEN) || !self.may_compact() {
            return;
        }
        // A failure leaves the tables as they are; RocksDB reports it to the next flush.
        let files = self.database.borrow_owner().db.live_files().unwrap_or_default();
        for column in Column::ALL {
            let own = files.iter().filter(|file| file.column_family_name == column_family_name(column));
            for (start, end) in small_runs(own.collect()) {
                self.compact(column, &start, &end);
            }
        }
    }

    /// Whether compactions are on, and the disk has room for them.
    pub fn may_compact(&self) -> bool {
        !self.compactions_paused() && self.has_room_for_compaction().unwrap_or(false)
    }

    /// Compacts a range of all columns, so that what was deleted there is gone, unless a snapshot
    /// reads it. A failure leaves the tables as they are.
    pub fn compact_all_columns(&self, start: &[u8], end: &[u8]) {
        for column in Column::ALL {
            self.compact(column, start, end);
        }
    }

    /// Compacts each range of tables that have deletions, if what is left of the range fits into
    /// the free space. Then what was deleted is gone, unless a snapshot reads it.
    pub fn compact_deletions(&self, free_bytes: &dyn Fn() -> u64) -> Result<(), EngineError> {
        let files = self.database.borrow_owner().db.live_files().map_err(engine_error)?;
        for column in Column::ALL {
            let own = files.iter().filter(|file| file.column_family_name == column_family_name(column));
            for (start, end) in ranges_with_deletions(own.collect()) {
                if self.fits(column, &start, &end, free_bytes())? {
                    self.compact(column, &start, &end);
                }
            }
        }
        Ok(())
    }

    /// Whether the cells of a range take at most `free` bytes in a new table, without compression.
    fn fits(&self, column: Column, start: &[u8], end: &[u8], free: u64) -> Result<bool, EngineError> {
        let range = RowRange { start: Bound::Included(start.to_vec()), end: Bound::Included(end.to_vec()) };
        let mut bytes = 0;
        self.scan(column, &range, false, |key, value| {
            bytes += (key.len() + value.len() + TABLE_ENTRY_BYTES) as u64;
            bytes <= free
        })?;
        Ok(bytes <= free)
    }

    fn compact(&self, column: Column, start: &[u8], end: &[u8]) {
        let mut options = CompactOptions::default();
        options.set_exclusive_manual_compaction(false);
        options.set_bottommost_level_compaction(BottommostLevelCompaction::ForceOptimized);
        self.database.with_dependent(|LockedDb { db, .. }, columns| {
            db.compact_range_cf_opt(columns.get(column), Some(start), Some(end), &options);
        });
    }
}

/// The first and last keys of runs of small neighbours.
fn small_runs(mut files: Vec<&LiveFile>) -> Vec<(Vec<u8>, Vec<u8>)> {
    files.retain(|file| file.level > 0);
    files.sort_by(|one, other| (one.level, &one.start_key).cmp(&(other.level, &other.start_key)));
    let runs = files.chunk_by(|one, next| one.level == next.level && is_small(one) && is_small(next));
    let long = runs.flat_map(|run| run.chunks(MERGED_TABLES_MAX)).filter(|run| run.len() >= RUN_TABLES);
    long.filter_map(|run| Some((run.first()?.start_key.clone()?, run.last()?.end_key.clone()?))).collect()
}

/// The first and last keys of tables that have deletions. Tables that overlap have one range.
fn ranges_with_deletions(mut files: Vec<&LiveFile>) -> Vec<(Vec<u8>, Vec<u8>)> {
    files.retain(|file| file.num_deletions > 0);
    files.sort_by(|one, other| one.start_key.cmp(&other.start_key));
    let mut ranges: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for file in files {
        let (Some(start), Some(end)) = (&file.start_key, &file.end_key) else { continue };
        match ranges.last_mut().filter(|(_, last)| start <= last) {
            Some((_, last)) => *last = end.max(last).clone(),
            None => ranges.push((start.clone(), end.clone())),
        }
    }
    ranges
}

fn is_small(file: &LiveFile) -> bool {
    file.size < SMALL_TABLE_BYTES
}
