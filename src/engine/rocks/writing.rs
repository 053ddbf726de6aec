//! Writing to RocksDB: again, where a write is refused for the time being.

use rocksdb::WriteBatch;
use rocksdb::properties::{BACKGROUND_ERRORS, CURRENT_SUPER_VERSION_NUMBER};

use super::stall::{Background, Stall};
use super::{Opened, RocksStorage, failed};
use crate::engine::EngineError;
use crate::engine::storage::Column;

/// So much room is kept for the next write.
const COPY_KEPT_BYTES: usize = 4 << 20;

impl RocksStorage {
    /// However often RocksDB refuses it for the time being.
    pub(super) fn write_when_it_may(&self, batch: WriteBatch) -> Result<(), EngineError> {
        let db = &self.database.borrow_owner().db;
        // RocksDB takes the batch away even where it refuses it.
        let mut bytes = std::mem::take(&mut *self.copy.lock());
        bytes.extend_from_slice(batch.data());
        let refused = match db.write_opt(batch, &self.write_options) {
            Err(why) if why.kind() == rocksdb::ErrorKind::Incomplete => why,
            done => {
                bytes.clear();
                bytes.shrink_to(COPY_KEPT_BYTES);
                *self.copy.lock() = bytes;
                return done.map_err(failed);
            }
        };
        let mut stall = Stall::new(self.background()?);
        loop {
            #[allow(
                clippy::disallowed_methods,
                reason = "the time that a disk takes is real, whatever the store's runtime"
            )]
            std::thread::sleep(stall.pause());
            match db.write_opt(WriteBatch::from_data(&bytes), &self.write_options) {
                Err(why) if why.kind() == rocksdb::ErrorKind::Incomplete => {}
                done => return done.map_err(failed),
            }
            if let Some(why) = stall.is_vain(self.background()?) {
                return Err(EngineError::Unknown(format!("RocksDB takes no writes ({refused}): {why}")));
            }
        }
    }

    fn background(&self) -> Result<Background, EngineError> {
        let known = |number: Result<Option<u64>, _>| number.map(Option::unwrap_or_default).map_err(failed);
        self.database.with_dependent(|Opened { db, .. }, columns| {
            let mut done = 0;
            for column in Column::ALL {
                done += known(db.property_int_value_cf(columns.get(column), CURRENT_SUPER_VERSION_NUMBER))?;
            }
            Ok(Background { errors: known(db.property_int_value(BACKGROUND_ERRORS))?, done })
        })
    }
}
