//! What is below the window: RocksDB without a log, as of the last hand-down.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use percolite::engine::RowRange;
use rocksdb::{
    ColumnFamily, DB, DBRawIteratorWithThreadMode, DEFAULT_COLUMN_FAMILY_NAME, FlushOptions, Options, ReadOptions,
    Snapshot, WriteBatch, WriteOptions,
};
use self_cell::self_cell;

use super::super::Setup;
use super::super::rocks;
use super::layers::ROWS;
use super::window::Generation;

/// So many rows are handed down at a time.
const BATCH_ROWS: usize = 1000;
/// A column of its own, and its only key: the last sequence that is below.
const POSITION: &str = "position";

self_cell!(
    /// See the [module](self).
    pub struct Below {
        owner: Arc<DB>,
        #[covariant]
        dependent: Moment,
    }
);

/// A snapshot, and the options of reads at it, which are not made anew for each.
pub struct Moment<'a> {
    options: ReadOptions,
    snapshot: Snapshot<'a>,
}

/// Opens the tables; the answer has the last sequence that is in them, too.
pub fn open(setup: &Setup) -> Result<(Arc<DB>, u64)> {
    let mut options: Options = rocks::options(setup);
    // Beside it there are two generations of the window.
    options.set_write_buffer_size(setup.write_buffer_bytes);
    // It has no log.
    options.set_recycle_log_file_num(0);
    options.create_missing_column_families(true);
    options.set_atomic_flush(true);
    // Without options of its own a column has RocksDB's, whatever the database has.
    let columns = [DEFAULT_COLUMN_FAMILY_NAME, POSITION].map(|name| (name, options.clone()));
    let db = Arc::new(DB::open_cf_with_opts(&options, setup.folder.join("tables"), columns)?);
    let position =
        db.get_cf(position_of(&db)?, POSITION)?.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_be_bytes);
    Ok((db, position))
}

fn position_of(db: &DB) -> Result<&ColumnFamily> {
    db.cf_handle(POSITION).context("the tables have no position")
}

impl Below {
    pub fn of(db: &Arc<DB>) -> Arc<Self> {
        Arc::new(Self::new(Arc::clone(db), |db| {
            let (snapshot, mut options) = (db.snapshot(), ReadOptions::default());
            options.set_snapshot(&snapshot);
            Moment { options, snapshot }
        }))
    }

    pub fn get(&self, key: &[u8], see: impl FnOnce(&[u8])) -> Result<bool> {
        let found = self.borrow_owner().get_pinned_opt(key, &self.borrow_dependent().options)?;
        Ok(found.map(|value| see(&value)).is_some())
    }

    pub fn cursor(&self, from: &[u8]) -> Cursor<'_> {
        let mut cursor = self.borrow_dependent().snapshot.raw_iterator();
        cursor.seek(from);
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
    for (key, value) in generation.range(ROWS, &RowRange::all(), false, u64::MAX) {
        match value {
            Some(value) => batch.put(key, value),
            None => batch.delete(key),
        }
        if batch.len() >= BATCH_ROWS {
            db.write_opt(std::mem::take(&mut batch), &options)?;
        }
    }
    let position = position_of(db)?;
    batch.put_cf(position, POSITION, end.to_be_bytes());
    db.write_opt(batch, &options)?;
    let rows = db.cf_handle(DEFAULT_COLUMN_FAMILY_NAME).context("the tables have no rows")?;
    Ok(db.flush_cfs_opt(&[rows, position], &FlushOptions::default())?)
}
