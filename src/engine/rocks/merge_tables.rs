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

use std::collections::BTreeSet;
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
    /// the free space. Then what was deleted is gone, unless an older snapshot reads it. If there
    /// may be such snapshots, a range counts as large as its tables.
    pub fn compact_deletions(&self, has_older: bool, free_bytes: &dyn Fn() -> u64) -> Result<(), EngineError> {
        let files = self.database.borrow_owner().db.live_files().map_err(engine_error)?;
        for column in Column::ALL {
            let own: Vec<_> =
                files.iter().filter(|file| file.column_family_name == column_family_name(column)).collect();
            for range in ranges_with_deletions(&own) {
                let free = free_bytes();
                let fits = table_bytes(&own, &range) <= free || !has_older && self.fits(column, &range, free)?;
                if fits {
                    self.compact(column, &range.0, &range.1);
                }
            }
        }
        Ok(())
    }

    /// Whether the cells of a range take at most `free` bytes in a new table, without compression.
    fn fits(&self, column: Column, (start, end): &(Vec<u8>, Vec<u8>), free: u64) -> Result<bool, EngineError> {
        let range = RowRange { start: Bound::Included(start.clone()), end: Bound::Included(end.clone()) };
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

/// The bytes of the tables that overlap a range.
fn table_bytes(files: &[&LiveFile], (start, end): &(Vec<u8>, Vec<u8>)) -> u64 {
    let overlaps = |file: &&&LiveFile| {
        file.start_key.as_ref().is_none_or(|first| first <= end)
            && file.end_key.as_ref().is_none_or(|last| last >= start)
    };
    files.iter().filter(overlaps).map(|file| file.size as u64).sum()
}

/// The first and last keys of what compactions of the tables that have deletions rewrite. A
/// compaction rewrites whole tables: all of level 0 that overlap, directly or through others, and
/// those of the next levels that overlap these. Ranges that overlap are one.
fn ranges_with_deletions(files: &[&LiveFile]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let levels: BTreeSet<_> = files.iter().map(|file| file.level).collect();
    let mut wide: Vec<_> =
        files.iter().filter(|file| file.num_deletions > 0).filter_map(|file| key_range(file)).collect();
    for range in &mut wide {
        for level in &levels {
            let mut found = 0;
            loop {
                let others = files.iter().filter(|file| file.level == *level).filter_map(|file| key_range(file));
                let overlapping: Vec<_> = others.filter(|other| other.0 <= range.1 && range.0 <= other.1).collect();
                let is_more = overlapping.len() > std::mem::replace(&mut found, overlapping.len());
                for (start, end) in overlapping {
                    *range = (range.0.min(start), range.1.max(end));
                }
                if *level > 0 || !is_more {
                    break;
                }
            }
        }
    }
    wide.sort_unstable();
    let mut ranges: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for (start, end) in wide {
        match ranges.last_mut().filter(|(_, last)| start <= last.as_slice()) {
            Some((_, last)) => *last = end.max(last).to_vec(),
            None => ranges.push((start.to_vec(), end.to_vec())),
        }
    }
    ranges
}

fn key_range(file: &LiveFile) -> Option<(&[u8], &[u8])> {
    Some((file.start_key.as_deref()?, file.end_key.as_deref()?))
}

fn is_small(file: &LiveFile) -> bool {
    file.size < SMALL_TABLE_BYTES
}
