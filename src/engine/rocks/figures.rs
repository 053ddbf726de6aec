//! What RocksDB says of itself.

use rocksdb::DB;
use rocksdb::properties::{self, BACKGROUND_ERRORS};

use super::options::name;
use super::{Columns, failed};
use crate::engine::storage::Column;
use crate::engine::{ColumnFigures, EngineError, EngineFigures};

pub fn of(db: &DB, columns: &Columns<'_>) -> Result<EngineFigures, EngineError> {
    let known = |found: Result<Option<u64>, _>| found.map(Option::unwrap_or_default).map_err(failed);
    let of_all = |name: &properties::PropName| known(db.property_int_value(name));
    let of = |column, name: &properties::PropName| known(db.property_int_value_cf(columns.get(column), name));
    let mut figures = EngineFigures {
        // All columns have one cache and one rate.
        cache_bytes: of_all(properties::BLOCK_CACHE_USAGE)?,
        cache_limit_bytes: of_all(properties::BLOCK_CACHE_CAPACITY)?,
        cache_pinned_bytes: of_all(properties::BLOCK_CACHE_PINNED_USAGE)?,
        running_compactions: of_all(properties::NUM_RUNNING_COMPACTIONS)?,
        running_flushes: of_all(properties::NUM_RUNNING_FLUSHES)?,
        is_write_stopped: of_all(properties::IS_WRITE_STOPPED)? != 0,
        delayed_write_bytes_per_second: of_all(properties::ACTUAL_DELAYED_WRITE_RATE)?,
        background_errors: of_all(BACKGROUND_ERRORS)?,
        ..EngineFigures::default()
    };
    let files = db.live_files().map_err(failed)?;
    for column in Column::ALL {
        figures.write_buffer_bytes += of(column, properties::SIZE_ALL_MEM_TABLES)?;
        figures.table_reader_bytes += of(column, properties::ESTIMATE_TABLE_READERS_MEM)?;
        figures.pending_compaction_bytes += of(column, properties::ESTIMATE_PENDING_COMPACTION_BYTES)?;
        let mut own = ColumnFigures::new(column);
        own.cells = of(column, properties::ESTIMATE_NUM_KEYS)?;
        for file in files.iter().filter(|file| file.column_family_name == name(column)) {
            own.files += 1;
            own.files_at_level_0 += u64::from(file.level == 0);
            own.bytes += file.size as u64;
        }
        figures.columns.push(own);
    }
    Ok(figures)
}
