//! Engine statistics from RocksDB's properties and live files.

use rocksdb::DB;
use rocksdb::properties::{self, BACKGROUND_ERRORS};

use super::options::column_family_name;
use super::{ColumnFamilies, engine_error};
use crate::engine::storage::Column;
use crate::engine::{ColumnStats, EngineError, EngineStats};

pub fn collect(db: &DB, columns: &ColumnFamilies<'_>) -> Result<EngineStats, EngineError> {
    let or_zero = |found: Result<Option<u64>, _>| found.map(Option::unwrap_or_default).map_err(engine_error);
    let of_all = |name: &properties::PropName| or_zero(db.property_int_value(name));
    let of = |column, name: &properties::PropName| or_zero(db.property_int_value_cf(columns.get(column), name));
    let mut stats = EngineStats {
        // Read once, not for each column: these properties are of the whole database, or of the
        // block cache and the write rate that all columns share.
        block_cache_bytes: of_all(properties::BLOCK_CACHE_USAGE)?,
        block_cache_capacity_bytes: of_all(properties::BLOCK_CACHE_CAPACITY)?,
        block_cache_pinned_bytes: of_all(properties::BLOCK_CACHE_PINNED_USAGE)?,
        running_compactions: of_all(properties::NUM_RUNNING_COMPACTIONS)?,
        running_flushes: of_all(properties::NUM_RUNNING_FLUSHES)?,
        is_write_stopped: of_all(properties::IS_WRITE_STOPPED)? != 0,
        background_errors: of_all(BACKGROUND_ERRORS)?,
        ..EngineStats::default()
    };
    #[cfg(target_os = "linux")]
    if let Ok(disk) = rustix::fs::statvfs(db.path()) {
        stats.disk_free_bytes = Some(disk.f_bavail.saturating_mul(disk.f_frsize));
        stats.disk_total_bytes = Some(disk.f_blocks.saturating_mul(disk.f_frsize));
    }
    let files = db.live_files().map_err(engine_error)?;
    for column in Column::ALL {
        let (all, live) = (of(column, properties::TOTAL_SST_FILES_SIZE)?, of(column, properties::LIVE_SST_FILES_SIZE)?);
        stats.obsolete_table_bytes += all.saturating_sub(live);
        stats.memtable_bytes += of(column, properties::SIZE_ALL_MEM_TABLES)?;
        stats.table_reader_bytes += of(column, properties::ESTIMATE_TABLE_READERS_MEM)?;
        stats.pending_compaction_bytes += of(column, properties::ESTIMATE_PENDING_COMPACTION_BYTES)?;
        let mut own = ColumnStats::new(column);
        own.estimated_keys = of(column, properties::ESTIMATE_NUM_KEYS)?;
        for file in files.iter().filter(|file| file.column_family_name == column_family_name(column)) {
            own.sst_files += 1;
            own.level0_files += u64::from(file.level == 0);
            own.sst_bytes += file.size as u64;
        }
        stats.columns.push(own);
    }
    Ok(stats)
}
