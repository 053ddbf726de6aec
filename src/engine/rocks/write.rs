//! Writes a batch, with retries during a write stall; flushes all column families (the table sync).

use std::time::Duration;

use rocksdb::properties::{
    BACKGROUND_ERRORS, CURRENT_SUPER_VERSION_NUMBER, NUM_ENTRIES_ACTIVE_MEM_TABLE, NUM_IMMUTABLE_MEM_TABLE,
};
use rocksdb::{FlushOptions, WriteBatch};

use super::write_retry::{BackgroundProgress, WriteRetry};
use super::{LockedDb, RocksStorage, engine_error};
use crate::engine::EngineError;
use crate::engine::storage::Column;

/// The retry buffer keeps at most this capacity for the next write.
const RETRY_BUFFER_KEPT_BYTES: usize = 4 << 20;
/// The limits of the delay between two checks whether a flush is complete.
const FLUSH_POLL_MIN: Duration = Duration::from_micros(100);
const FLUSH_POLL_MAX: Duration = Duration::from_millis(10);

impl RocksStorage {
    /// Writes a batch. While RocksDB rejects it because of a write stall, retries until
    /// [`WriteRetry::give_up_reason`] ends the wait.
    pub(super) fn write_with_retry(&self, batch: WriteBatch) -> Result<(), EngineError> {
        let db = &self.database.borrow_owner().db;
        // RocksDB consumes the batch even if it rejects it, so a retry needs a copy.
        let mut bytes = std::mem::take(&mut *self.retry_buffer.lock());
        bytes.extend_from_slice(batch.data());
        let rejection = match db.write_opt(batch, &self.write_options) {
            Err(error) if error.kind() == rocksdb::ErrorKind::Incomplete => error,
            done => {
                bytes.clear();
                bytes.shrink_to(RETRY_BUFFER_KEPT_BYTES);
                *self.retry_buffer.lock() = bytes;
                return done.map_err(engine_error);
            }
        };
        let mut retry = WriteRetry::new(self.background_progress()?);
        loop {
            #[allow(clippy::disallowed_methods, reason = "disk time is real time, whatever the store's env")]
            std::thread::sleep(retry.next_delay());
            match db.write_opt(WriteBatch::from_data(&bytes), &self.write_options) {
                Err(error) if error.kind() == rocksdb::ErrorKind::Incomplete => {}
                done => return done.map_err(engine_error),
            }
            if let Some(reason) = retry.give_up_reason(self.background_progress()?) {
                return Err(EngineError::Undetermined(format!("RocksDB rejects writes ({rejection}): {reason}")));
            }
        }
    }

    /// Flushes all columns together; afterwards all earlier writes are durable.
    ///
    /// RocksDB's own wait for a flush of several column families may end too early: it takes the
    /// ids of the flushed memtables in the order of a hash map of the families, and so may compare
    /// a family's memtables with the id of another family (`AtomicFlushMemTables` in 11.8.1). So
    /// this function waits until no family has a non-empty memtable. This is enough: RocksDB counts
    /// a memtable until the manifest has its table, and there are no concurrent writes.
    pub(super) fn flush_all(&self) -> Result<(), EngineError> {
        self.database.with_dependent(|LockedDb { db, .. }, columns| {
            let all = Column::ALL.map(|column| columns.get(column));
            let mut delay = FLUSH_POLL_MIN;
            loop {
                // If background work has failed, this call returns the error, so the loop ends.
                db.flush_cfs_opt(&all, &FlushOptions::default()).map_err(engine_error)?;
                if self.is_flushed()? {
                    return Ok(());
                }
                #[allow(clippy::disallowed_methods, reason = "disk time is real time, whatever the store's env")]
                std::thread::sleep(delay);
                delay = (delay * 2).min(FLUSH_POLL_MAX);
            }
        })
    }

    fn is_flushed(&self) -> Result<bool, EngineError> {
        self.database.with_dependent(|LockedDb { db, .. }, columns| {
            for column in Column::ALL {
                for name in [NUM_IMMUTABLE_MEM_TABLE, NUM_ENTRIES_ACTIVE_MEM_TABLE] {
                    // `None` is an unknown count, which does not prove that there is no memtable.
                    if db.property_int_value_cf(columns.get(column), name).map_err(engine_error)? != Some(0) {
                        return Ok(false);
                    }
                }
            }
            Ok(true)
        })
    }

    fn background_progress(&self) -> Result<BackgroundProgress, EngineError> {
        let or_zero = |number: Result<Option<u64>, _>| number.map(Option::unwrap_or_default).map_err(engine_error);
        self.database.with_dependent(|LockedDb { db, .. }, columns| {
            let mut installed_versions = 0;
            for column in Column::ALL {
                installed_versions +=
                    or_zero(db.property_int_value_cf(columns.get(column), CURRENT_SUPER_VERSION_NUMBER))?;
            }
            Ok(BackgroundProgress { errors: or_zero(db.property_int_value(BACKGROUND_ERRORS))?, installed_versions })
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::disk::Directory;
    use crate::engine::Compression;
    use crate::engine::directory::marker::lock_exclusive;
    use crate::engine::rocks::{RocksOptions, RocksStorage};
    use crate::engine::storage::{Batch as _, Column, Storage as _};

    #[test]
    fn flush_all_returns_when_all_columns_are_flushed() {
        let directory = tempfile::tempdir().unwrap();
        let setup = RocksOptions {
            block_cache_bytes: 1 << 20,
            write_buffer_bytes: 64 << 10,
            compression: Compression::default(),
        };
        let marker = lock_exclusive(directory.path()).unwrap().marker;
        let path = directory.path().join("tables");
        std::fs::create_dir(&path).unwrap();
        let path = Directory::open(&path).unwrap();
        let tables = RocksStorage::open(&path, setup, true, marker).unwrap();
        let value = vec![b'x'; 3000];
        for round in 0..400_u32 {
            // RocksDB flushes on its own when memtables are full, without the columns whose
            // memtable is empty. So the memtable ids of the columns drift apart.
            for step in 0..round % 40 {
                let mut batch = tables.new_batch(0);
                let column = Column::ALL[1 + (round + step) as usize % 4];
                batch.put(column, &step.to_be_bytes(), &value);
                tables.write(batch).unwrap();
            }
            let mut batch = tables.new_batch(0);
            batch.put(Column::Meta, b"round", &round.to_be_bytes());
            tables.write(batch).unwrap();
            tables.sync().unwrap();
            assert!(tables.is_flushed().unwrap(), "round {round}");
        }
    }
}
