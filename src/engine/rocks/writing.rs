//! Writing to RocksDB: again, where a write is refused for the time being. And flushing it.

use std::time::Duration;

use rocksdb::properties::{
    BACKGROUND_ERRORS, CURRENT_SUPER_VERSION_NUMBER, NUM_ENTRIES_ACTIVE_MEM_TABLE, NUM_IMMUTABLE_MEM_TABLE,
};
use rocksdb::{FlushOptions, WriteBatch};

use super::stall::{BackgroundProgress, WriteRetry};
use super::{LockedDb, RocksStorage, engine_error};
use crate::engine::EngineError;
use crate::engine::storage::Column;

/// So much room is kept for the next write.
const RETRY_BUFFER_KEPT_BYTES: usize = 4 << 20;
/// Between two looks at whether a flush is over.
const FLUSH_POLL_MIN: Duration = Duration::from_micros(100);
const FLUSH_POLL_MAX: Duration = Duration::from_millis(10);

impl RocksStorage {
    /// However often RocksDB refuses it for the time being.
    pub(super) fn write_with_retry(&self, batch: WriteBatch) -> Result<(), EngineError> {
        let db = &self.database.borrow_owner().db;
        // RocksDB takes the batch away even where it refuses it.
        let mut bytes = std::mem::take(&mut *self.retry_buffer.lock());
        bytes.extend_from_slice(batch.data());
        let refused = match db.write_opt(batch, &self.write_options) {
            Err(why) if why.kind() == rocksdb::ErrorKind::Incomplete => why,
            done => {
                bytes.clear();
                bytes.shrink_to(RETRY_BUFFER_KEPT_BYTES);
                *self.retry_buffer.lock() = bytes;
                return done.map_err(engine_error);
            }
        };
        let mut stall = WriteRetry::new(self.background_progress()?);
        loop {
            #[allow(
                clippy::disallowed_methods,
                reason = "the time that a disk takes is real, whatever the store's runtime"
            )]
            std::thread::sleep(stall.next_delay());
            match db.write_opt(WriteBatch::from_data(&bytes), &self.write_options) {
                Err(why) if why.kind() == rocksdb::ErrorKind::Incomplete => {}
                done => return done.map_err(engine_error),
            }
            if let Some(why) = stall.give_up_reason(self.background_progress()?) {
                return Err(EngineError::Undetermined(format!("RocksDB takes no writes ({refused}): {why}")));
            }
        }
    }

    /// Flushes all columns together; what was written is durable afterwards.
    ///
    /// RocksDB's own wait for a flush of several columns may end too early. It is over when each column's memtables are newer than
    /// those that were to be flushed, and the numbers for that comparison are in the order of a hash map of the columns, not in
    /// theirs (`AtomicFlushMemTables` in 11.8.1). So this waits until no column has a memtable with anything in it; nothing else
    /// writes meanwhile. A memtable is counted until the manifest has its table.
    pub(super) fn flush_all(&self) -> Result<(), EngineError> {
        self.database.with_dependent(|LockedDb { db, .. }, columns| {
            let all = Column::ALL.map(|column| columns.get(column));
            let mut pause = FLUSH_POLL_MIN;
            loop {
                // Where its work in the background has failed this returns the error.
                db.flush_cfs_opt(&all, &FlushOptions::default()).map_err(engine_error)?;
                if self.is_flushed()? {
                    return Ok(());
                }
                #[allow(
                    clippy::disallowed_methods,
                    reason = "the time that a disk takes is real, whatever the store's runtime"
                )]
                std::thread::sleep(pause);
                pause = (pause * 2).min(FLUSH_POLL_MAX);
            }
        })
    }

    fn is_flushed(&self) -> Result<bool, EngineError> {
        self.database.with_dependent(|LockedDb { db, .. }, columns| {
            for column in Column::ALL {
                for name in [NUM_IMMUTABLE_MEM_TABLE, NUM_ENTRIES_ACTIVE_MEM_TABLE] {
                    // A count that is not known is not zero.
                    if db.property_int_value_cf(columns.get(column), name).map_err(engine_error)? != Some(0) {
                        return Ok(false);
                    }
                }
            }
            Ok(true)
        })
    }

    fn background_progress(&self) -> Result<BackgroundProgress, EngineError> {
        let known = |number: Result<Option<u64>, _>| number.map(Option::unwrap_or_default).map_err(engine_error);
        self.database.with_dependent(|LockedDb { db, .. }, columns| {
            let mut done = 0;
            for column in Column::ALL {
                done += known(db.property_int_value_cf(columns.get(column), CURRENT_SUPER_VERSION_NUMBER))?;
            }
            Ok(BackgroundProgress {
                errors: known(db.property_int_value(BACKGROUND_ERRORS))?,
                installed_versions: done,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::Compression;
    use crate::engine::folder::marker::lock_exclusive;
    use crate::engine::rocks::{RocksOptions, RocksStorage};
    use crate::engine::storage::{Batch as _, Column, Storage as _};

    #[test]
    fn a_flush_of_all_columns_is_over_when_it_returns() {
        let folder = tempfile::tempdir().unwrap();
        let setup = RocksOptions {
            block_cache_bytes: 1 << 20,
            write_buffer_bytes: 64 << 10,
            compression: Compression::default(),
        };
        let marker = lock_exclusive(folder.path()).unwrap().marker;
        let path = folder.path().join("tables");
        std::fs::create_dir(&path).unwrap();
        let tables = RocksStorage::open(&path, setup, true, marker).unwrap();
        let content = vec![b'x'; 3000];
        for round in 0..400_u32 {
            // Full memtables are flushed by themselves, some columns at a time, and their numbers drift apart.
            for step in 0..round % 40 {
                let mut batch = tables.new_batch(0);
                let column = Column::ALL[1 + (round + step) as usize % 4];
                batch.put(column, &step.to_be_bytes(), &content);
                tables.write(batch).unwrap();
            }
            let mut batch = tables.new_batch(0);
            batch.put(Column::Meta, b"position", &round.to_be_bytes());
            tables.write(batch).unwrap();
            tables.sync().unwrap();
            assert!(tables.is_flushed().unwrap(), "round {round}");
        }
    }
}
