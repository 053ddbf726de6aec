//! Writes a batch, with retries during a write stall.

use rocksdb::WriteBatch;
use rocksdb::properties::{BACKGROUND_ERRORS, CURRENT_SUPER_VERSION_NUMBER};

use super::write_retry::{BackgroundProgress, WriteRetry};
use super::{LockedDb, RocksStorage, engine_error};
use crate::engine::EngineError;
use crate::engine::storage::Column;

/// The retry buffer keeps at most this capacity for the next write.
const RETRY_BUFFER_KEPT_BYTES: usize = 4 << 20;

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
            retry.sleep();
            match db.write_opt(WriteBatch::from_data(&bytes), &self.write_options) {
                Err(error) if error.kind() == rocksdb::ErrorKind::Incomplete => {}
                done => return done.map_err(engine_error),
            }
            if let Some(reason) = retry.give_up_reason(self.background_progress()?) {
                return Err(EngineError::Undetermined(format!("RocksDB rejects writes ({rejection}): {reason}")));
            }
        }
    }

    /// Returns the error that has stopped RocksDB, if there is one: after it has met a damaged
    /// table, for example, it does no background work and accepts no write, but no other call says
    /// why. So this writes an empty batch.
    pub(super) fn check_stopped(&self) -> Result<(), EngineError> {
        match self.database.borrow_owner().db.write_opt(WriteBatch::default(), &self.write_options) {
            Err(error) if error.kind() != rocksdb::ErrorKind::Incomplete => Err(engine_error(error)),
            _ => Ok(()),
        }
    }

    pub(super) fn background_progress(&self) -> Result<BackgroundProgress, EngineError> {
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
