//! Writing to RocksDB's log: again, where a write is refused for the time being, and with the cause of a failure, not its echo.

use rocksdb::WriteBatch;
use rocksdb::properties::{BACKGROUND_ERRORS, CURRENT_SUPER_VERSION_NUMBER};

use super::stall::{Background, Stall};
use super::{Opened, RocksStorage, failed};
use crate::engine::EngineError;
use crate::engine::storage::Column;

/// So much room is kept for the next write.
const COPY_KEPT_BYTES: usize = 4 << 20;

/// How RocksDB says that a log has failed before, and not why.
const ECHOES: [&str; 2] = ["Seen error", "previous error"];

impl RocksStorage {
    /// Does something to the log. When the log fails, RocksDB tells one caller why, and others only that there was an error
    /// before. Whichever of them is heard first, it is the cause that counts.
    pub(super) fn on_log(&self, act: impl FnOnce() -> Result<(), rocksdb::Error>) -> Result<(), rocksdb::Error> {
        let running = self.running.read();
        let Err(why) = act() else { return Ok(()) };
        let is_echo = ECHOES.iter().any(|echo| why.as_ref().contains(echo));
        if !is_echo && why.kind() != rocksdb::ErrorKind::Incomplete {
            let _ = self.cause.set(why.clone());
        }
        drop(running);
        if !is_echo {
            return Err(why);
        }
        // Until those are through that were running when the log failed.
        drop(self.running.write());
        Err(self.cause.get().cloned().unwrap_or(why))
    }

    /// However often RocksDB refuses it for the time being.
    pub(super) fn write_when_it_may(&self, batch: WriteBatch) -> Result<(), EngineError> {
        let db = &self.database.borrow_owner().db;
        // RocksDB takes the batch away even where it refuses it.
        let mut bytes = std::mem::take(&mut *self.copy.lock());
        bytes.extend_from_slice(batch.data());
        let refused = match self.on_log(|| db.write_opt(batch, &self.write_options)) {
            Err(why) if why.kind() == rocksdb::ErrorKind::Incomplete => why,
            done => {
                bytes.clear();
                bytes.shrink_to(COPY_KEPT_BYTES);
                *self.copy.lock() = bytes;
                return done.map_err(failed);
            }
        };
        let _waits = self.stalls.begin();
        let mut stall = Stall::new(self.background()?);
        loop {
            #[allow(
                clippy::disallowed_methods,
                reason = "the time that a disk takes is real, whatever the store's runtime"
            )]
            std::thread::sleep(stall.pause());
            match self.on_log(|| db.write_opt(WriteBatch::from_data(&bytes), &self.write_options)) {
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
