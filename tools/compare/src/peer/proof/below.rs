//! What is below the window: RocksDB without a log, as of the last hand-down.

use std::sync::Arc;

use anyhow::Result;
use rocksdb::{DB, DBRawIteratorWithThreadMode, Options, ReadOptions, Snapshot, WriteBatch, WriteOptions};
use self_cell::self_cell;

use super::super::Setup;
use super::super::rocks;
use super::window::Generation;

/// So many rows are handed down at a time.
const BATCH_ROWS: usize = 1000;
/// Below all keys in use: the last sequence that is below.
const POSITION: [u8; 1] = [0];
/// Where keys begin.
const FIRST: [u8; 1] = [1];

self_cell!(
    /// See the [module](self).
    pub struct Below {
        owner: Arc<DB>,
        #[covariant]
        dependent: Snapshot,
    }
);

/// Opens the tables; the answer has the last sequence that is in them, too.
pub fn open(setup: &Setup) -> Result<(Arc<DB>, u64)> {
    let mut options: Options = rocks::options(setup);
    // Beside it there are two generations of the window.
    options.set_write_buffer_size(setup.write_buffer_bytes);
    // It has no log.
    options.set_recycle_log_file_num(0);
    let db = Arc::new(DB::open(&options, setup.folder.join("tables"))?);
    let position = db.get(POSITION)?.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_be_bytes);
    Ok((db, position))
}

impl Below {
    pub fn of(db: &Arc<DB>) -> Arc<Self> {
        Arc::new(Self::new(Arc::clone(db), |db| db.snapshot()))
    }

    pub fn get(&self, key: &[u8], see: impl FnOnce(&[u8])) -> Result<bool> {
        let found = self.borrow_dependent().get_pinned(key)?;
        Ok(found.map(|value| see(&value)).is_some())
    }

    pub fn cursor(&self, from: &[u8]) -> Cursor<'_> {
        let mut cursor = self.borrow_dependent().raw_iterator_opt(ReadOptions::default());
        cursor.seek(if from < &FIRST[..] { &FIRST } else { from });
        Cursor(cursor)
    }
}

/// A place among the rows.
pub struct Cursor<'a>(DBRawIteratorWithThreadMode<'a, DB>);

impl Cursor<'_> {
    pub fn key(&self) -> Option<&[u8]> {
        self.0.key()
    }

    pub fn next(&mut self) -> Result<()> {
        self.0.next();
        Ok(self.0.status()?)
    }

    /// Shows the row and goes on to the next one, if there is a row.
    pub fn see(&mut self, see: &mut impl FnMut(&[u8], &[u8])) -> Result<bool> {
        let Some((key, value)) = self.0.item() else {
            self.0.status()?;
            return Ok(false);
        };
        see(key, value);
        self.next()?;
        Ok(true)
    }
}

/// Hands a generation down that ends with a sequence, and makes it durable below.
pub fn hand_down(db: &DB, generation: &Generation, end: u64) -> Result<()> {
    let mut options = WriteOptions::default();
    options.disable_wal(true);
    let mut batch = WriteBatch::default();
    generation.each(|key, value| {
        batch.put(key, value);
        if batch.len() >= BATCH_ROWS {
            db.write_opt(std::mem::take(&mut batch), &options)?;
        }
        Ok(())
    })?;
    batch.put(POSITION, end.to_be_bytes());
    db.write_opt(batch, &options)?;
    Ok(db.flush()?)
}
