//! What is below the window: RocksDB without a log, as of the last hand-down.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use percolite::engine::RowRange;
use rocksdb::{
    ColumnFamily, DB, DBRawIteratorWithThreadMode, DEFAULT_COLUMN_FAMILY_NAME, FlushOptions, IngestExternalFileOptions,
    Options, ReadOptions, Snapshot, SstFileWriter, WriteBatch, WriteOptions,
};
use self_cell::self_cell;

use super::super::Setup;
use super::super::rocks;
use super::layers::ROWS;
use super::memtable::Generation;

/// A generation of this size or larger is ingested as a table.
const TABLE_BYTES: usize = 4 << 20;
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

/// Opens the tables; the answer has the last sequence that is in them, and how tables are made, too.
pub fn open(setup: &Setup) -> Result<(Arc<DB>, u64, Options)> {
    // There is always a snapshot, and tables that were made while there was one are written anew when it goes: not during a load.
    let mut options: Options = rocks::options(setup).get_options_from_string("bottommost_file_compaction_delay=60")?;
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
    Ok((db, position, options))
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

/// Hands a generation down that ends with a sequence, and makes it durable below. A large one becomes a table of its own, which RocksDB
/// takes as it is; that costs half of what a way through its memtable does.
pub fn hand_down(db: &DB, options: &Options, folder: &Path, generation: &Generation, end: u64) -> Result<()> {
    let mut batch = WriteBatch::default();
    let all = RowRange::all();
    let rows = || generation.range(ROWS, &all, false, u64::MAX);
    if generation.bytes() >= TABLE_BYTES {
        let table = folder.join("handed-down.sst");
        let mut writer = SstFileWriter::create(options);
        writer.open(&table)?;
        for (key, value) in rows() {
            match value {
                Some(value) => writer.put(key, value)?,
                None => writer.delete(key)?,
            }
        }
        writer.finish()?;
        let mut ingest = IngestExternalFileOptions::default();
        ingest.set_move_files(true);
        db.ingest_external_file_opts(&ingest, vec![table])?;
    } else {
        for (key, value) in rows() {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
    }
    let position = position_of(db)?;
    batch.put_cf(position, POSITION, end.to_be_bytes());
    let mut without_log = WriteOptions::default();
    without_log.disable_wal(true);
    db.write_opt(batch, &without_log)?;
    let rows = db.cf_handle(DEFAULT_COLUMN_FAMILY_NAME).context("the tables have no rows")?;
    Ok(db.flush_cfs_opt(&[rows, position], &FlushOptions::default())?)
}
