//! The table sync: all columns are flushed together.
//!
//! No wait here is inside RocksDB, where none has a limit. RocksDB's flush waits first until
//! another table of level 0 would not stall writes; on a full disk the compaction for which it
//! waits never ends. So RocksDB's own stalls for compactions are off (see
//! [`options`](super::options)), and percolite waits instead, as long as [`WriteRetry`] allows:
//!
//! 1. *for compactions*, if a column has [`LEVEL0_FILES_MAX`] tables in level 0 or
//!    [`COMPACTION_DEBT_MAX`] bytes to compact. If the disk has no room for a compaction, there is
//!    nothing to wait for: level 0 grows until the disk is full.
//! 2. *for the flush*, which RocksDB runs in the background.

use std::sync::atomic::Ordering;

use rocksdb::FlushOptions;
use rocksdb::properties::{
    ESTIMATE_PENDING_COMPACTION_BYTES, LIVE_SST_FILES_SIZE, NUM_ENTRIES_ACTIVE_MEM_TABLE, NUM_IMMUTABLE_MEM_TABLE,
    PropName, num_files_at_level,
};

use super::write_retry::WriteRetry;
use super::{LockedDb, RocksStorage, engine_error, free_space};
use crate::engine::EngineError;
use crate::engine::storage::Column;

/// A flush waits while a column has this number of tables in level 0. RocksDB slows writes from
/// this number on by default.
const LEVEL0_FILES_MAX: u64 = 20;
/// A flush waits while a column has this number of bytes to compact. RocksDB's default for slowing
/// writes.
const COMPACTION_DEBT_MAX: u64 = 64 << 30;

impl RocksStorage {
    /// Flushes all columns together; afterwards all earlier writes are durable. There must be no
    /// concurrent writes.
    pub(super) fn flush_all(&self) -> Result<(), EngineError> {
        self.wait_for_compactions()?;
        let mut retry = WriteRetry::new(self.background_progress()?);
        let errors_before = self.background_progress()?.errors;
        let mut is_requested = false;
        loop {
            // RocksDB refuses the request while too many memtables wait for their flush.
            is_requested = is_requested || self.request_flush()?;
            if is_requested && self.is_flushed()? {
                break;
            }
            self.check_stopped()?;
            let progress = self.background_progress()?;
            if progress.errors > errors_before {
                // The flush may be among what failed.
                is_requested = self.request_flush()?;
            }
            if let Some(reason) = retry.give_up_reason(progress) {
                return Err(EngineError::Undetermined(format!("RocksDB does not complete a flush: {reason}")));
            }
            retry.sleep();
        }
        self.resume_compactions();
        Ok(())
    }

    /// Requests a flush of all columns. Returns whether RocksDB has accepted the request.
    ///
    /// RocksDB's own wait for a flush of several column families may end too early: it takes the
    /// ids of the flushed memtables in the order of a hash map of the families, and so may compare
    /// a family's memtables with the id of another family (`AtomicFlushMemTables` in 11.8.1). So
    /// the end of a flush is always checked by [`is_flushed`](Self::is_flushed).
    fn request_flush(&self) -> Result<bool, EngineError> {
        self.database.with_dependent(|LockedDb { db, .. }, columns| {
            let all = Column::ALL.map(|column| columns.get(column));
            let mut options = FlushOptions::default();
            options.set_wait(false);
            match db.flush_cfs_opt(&all, &options) {
                Ok(()) => Ok(true),
                Err(error) if error.kind() == rocksdb::ErrorKind::TryAgain => Ok(false),
                Err(error) => Err(engine_error(error)),
            }
        })
    }

    /// Whether no column has a non-empty memtable. RocksDB counts a memtable until the manifest has
    /// its table.
    fn is_flushed(&self) -> Result<bool, EngineError> {
        for column in Column::ALL {
            for name in [NUM_IMMUTABLE_MEM_TABLE, NUM_ENTRIES_ACTIVE_MEM_TABLE] {
                // `None` is an unknown count, which does not prove that there is no memtable.
                if self.column_property(column, name)? != Some(0) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Waits while compactions lag, if the disk has room for them.
    fn wait_for_compactions(&self) -> Result<(), EngineError> {
        if !self.compactions_lag()? {
            return Ok(());
        }
        let mut retry = WriteRetry::new(self.background_progress()?);
        loop {
            self.check_stopped()?;
            self.resume_compactions();
            if self.compactions_paused() || !self.has_room_for_compaction()? || !self.compactions_lag()? {
                return Ok(());
            }
            if let Some(reason) = retry.give_up_reason(self.background_progress()?) {
                return Err(EngineError::Undetermined(format!("RocksDB's compactions lag: {reason}")));
            }
            retry.sleep();
        }
    }

    /// Whether the next flush must wait for compactions.
    pub(super) fn compactions_lag(&self) -> Result<bool, EngineError> {
        for column in Column::ALL {
            let debt = self.column_property(column, ESTIMATE_PENDING_COMPACTION_BYTES)?.unwrap_or(0);
            if self.level0_files(column)? >= LEVEL0_FILES_MAX || debt >= COMPACTION_DEBT_MAX {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether automatic compactions are off: see [`free_space`](super::free_space).
    pub(super) fn compactions_paused(&self) -> bool {
        self.compactions_paused.load(Ordering::Acquire)
    }

    pub(super) fn has_room_for_compaction(&self) -> Result<bool, EngineError> {
        let mut bytes = 0;
        for column in Column::ALL {
            bytes += self.column_property(column, LIVE_SST_FILES_SIZE)?.unwrap_or(0);
        }
        Ok(free_space::has_room(self.database.borrow_owner().directory.path(), bytes))
    }

    /// Switches automatic compactions on again, if they are off and the disk has room. An error is
    /// ignored: the next flush tries again.
    fn resume_compactions(&self) {
        if !self.compactions_paused() || !self.has_room_for_compaction().unwrap_or(false) {
            return;
        }
        let resumed = self.database.with_dependent(|LockedDb { db, .. }, columns| {
            let mut all = Column::ALL.into_iter().map(|column| columns.get(column));
            all.try_for_each(|column| db.set_options_cf(column, &[("disable_auto_compactions", "false")]))
        });
        if resumed.is_ok() {
            self.compactions_paused.store(false, Ordering::Release);
        }
    }

    /// The number of a column's tables in level 0.
    fn level0_files(&self, column: Column) -> Result<u64, EngineError> {
        let text = self.database.with_dependent(|LockedDb { db, .. }, columns| {
            db.property_value_cf(columns.get(column), num_files_at_level(0)).map_err(engine_error)
        })?;
        let number = || EngineError::Undetermined(format!("RocksDB does not count the tables of level 0: {text:?}"));
        text.as_deref().and_then(|text| text.parse().ok()).ok_or_else(number)
    }

    fn column_property(&self, column: Column, name: &PropName) -> Result<Option<u64>, EngineError> {
        self.database.with_dependent(|LockedDb { db, .. }, columns| {
            db.property_int_value_cf(columns.get(column), name).map_err(engine_error)
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
            is_disk_full: false,
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
