//! The durable engine of one process: RocksDB.
//!
//! Each column is a column family; `meta` is the default one. All of them share one write-ahead log, which is what makes a
//! batch atomic over columns and a crash leave a prefix of batches. That second property has to be asked for: see
//! the options in this file. Whether a folder is a store is told by its marker; see `folder`.

use std::fs::File;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rocksdb::checkpoint::Checkpoint;
use rocksdb::properties::{self, BACKGROUND_ERRORS, CURRENT_SUPER_VERSION_NUMBER};
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBCompressionType, DBRawIterator, Options,
    ReadOptions, Snapshot, WriteBatch, WriteOptions,
};
use self_cell::self_cell;

use super::folder::{Claim, claim, examine, finish, mark_copy};
use super::local::LocalEngine;
use super::stall::{Background, Stall};
use super::storage::{Batch, Column, Reader, Storage};
use super::{ColumnFigures, Compression, EngineError, EngineFigures, RowRange, logs};

/// The engine over RocksDB.
pub type RocksEngine = LocalEngine<RocksStorage>;

const BLOOM_BITS_PER_KEY: f64 = 10.0;

/// How RocksDB is to be set up: memory, in bytes, and how tables are compressed.
#[derive(Clone, Copy, Debug)]
pub struct RocksSetup {
    /// For blocks read from files.
    pub cache: usize,
    /// For writes not yet in files, all columns together.
    pub write_buffers: usize,
    /// Of the tables that are written from now on. Those that there are stay as they are, and readable.
    pub compression: Compression,
}

/// RocksDB as a [`Storage`].
pub struct RocksStorage {
    database: Arc<Database>,
    write_options: WriteOptions,
    writing: Mutex<()>,
}

/// Dropped in this order: the lock on the folder ends last.
pub(super) struct Opened {
    pub db: DB,
    /// `None` where somebody else holds it.
    pub marker: Option<File>,
}

struct Columns<'a> {
    meta: &'a ColumnFamily,
    data: &'a ColumnFamily,
    lock: &'a ColumnFamily,
    write: &'a ColumnFamily,
    history: &'a ColumnFamily,
}

impl<'a> Columns<'a> {
    fn get(&self, column: Column) -> &'a ColumnFamily {
        match column {
            Column::Meta => self.meta,
            Column::Data => self.data,
            Column::Lock => self.lock,
            Column::Write => self.write,
            Column::History => self.history,
        }
    }
}

pub(super) fn name(column: Column) -> &'static str {
    match column {
        Column::Meta => rocksdb::DEFAULT_COLUMN_FAMILY_NAME,
        Column::Data => "data",
        Column::Lock => "lock",
        Column::Write => "write",
        Column::History => "history",
    }
}

self_cell!(
    struct Database {
        owner: Opened,
        #[covariant]
        dependent: Columns,
    }
);

struct Pinned<'a> {
    snapshot: Snapshot<'a>,
    options: ReadOptions,
    columns: &'a Columns<'a>,
    db: &'a DB,
}

self_cell!(
    struct PinnedCell {
        owner: Arc<Database>,
        #[covariant]
        dependent: Pinned,
    }
);

/// A RocksDB snapshot that keeps its database open.
pub struct RocksView(PinnedCell);

impl RocksStorage {
    /// Opens the store in `path`, which is created if it is missing or empty.
    pub fn open(path: &Path, setup: RocksSetup) -> Result<Self, EngineError> {
        let Claim { marker, is_new } = claim(path)?;
        logs::check(path)?;
        let mut options = options(setup)?;
        // Where there is a store, what is missing of it is lost, and not to be made up for by something empty.
        options.create_if_missing(is_new);
        options.create_missing_column_families(is_new);
        let db = DB::open_cf_descriptors(&options, path, descriptors(&options, setup))
            .map_err(|why| opening(path, is_new, why))?;
        let storage = Self::of(Opened { db, marker: Some(marker) })?;
        if let Some(marker) = storage.database.borrow_owner().marker.as_ref().filter(|_| is_new) {
            crash_point!(CreateBefore);
            finish(path, marker)
                .map_err(|why| EngineError::Open(format!("cannot create a store in {}: {why}", path.display())))?;
        }
        crash_point!(CreateDone);
        Ok(storage)
    }

    /// Opens the store in `path` to look at it: nothing in the folder is changed, and writing fails. What RocksDB has only in
    /// its log is read into memory.
    pub fn open_read_only(path: &Path, setup: RocksSetup) -> Result<Self, EngineError> {
        let marker = examine(path)?;
        logs::check(path)?;
        let options = options(setup)?;
        // A log whose content is not in the tables yet is how every store is left; it is no reason to refuse.
        let refuse_logs = false;
        let db = DB::open_cf_descriptors_read_only(&options, path, descriptors(&options, setup), refuse_logs)
            .map_err(|why| opening(path, false, why))?;
        Self::of(Opened { db, marker: Some(marker) })
    }

    pub(super) fn of(opened: Opened) -> Result<Self, EngineError> {
        let database = Database::try_new(opened, |Opened { db, .. }| {
            let find = |column| {
                let missing = || EngineError::Corruption(format!("column family {:?} is missing", name(column)));
                db.cf_handle(name(column)).ok_or_else(missing)
            };
            Ok(Columns {
                meta: find(Column::Meta)?,
                data: find(Column::Data)?,
                lock: find(Column::Lock)?,
                write: find(Column::Write)?,
                history: find(Column::History)?,
            })
        })?;
        let mut write_options = WriteOptions::default();
        write_options.set_no_slowdown(true);
        Ok(Self { database: Arc::new(database), write_options, writing: Mutex::new(()) })
    }

    /// Between which keys a column's tables lie.
    pub(super) fn table_borders(&self, column: Column) -> Vec<Vec<u8>> {
        let files = self.database.borrow_owner().db.live_files().unwrap_or_default();
        let own = files.into_iter().filter(|file| file.column_family_name == name(column));
        let mut borders: Vec<_> = own.flat_map(|file| [file.start_key, file.end_key]).flatten().collect();
        borders.sort();
        borders.dedup();
        borders
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

pub(super) fn descriptors(options: &Options, setup: RocksSetup) -> [ColumnFamilyDescriptor; Column::ALL.len()] {
    let table = table_options(setup);
    Column::ALL.map(|column| {
        let mut options = options.clone();
        options.set_block_based_table_factory(&table);
        ColumnFamilyDescriptor::new(name(column), options)
    })
}

/// RocksDB's options, and why they are not the default ones.
///
/// - `track_and_verify_wals`: a switch to a new log file does not sync the old one, and recovery does not look for gaps. If
///   the old file loses its unsynced tail exactly at a record border, RocksDB replays the new file over the hole. With
///   this option it stops at the hole, and what is recovered is a prefix of what was written. Early release of row locks
///   and unsynced prewrites are sound only on a prefix. (It has no setter; `track_and_verify_wals_in_manifest` is another.)
/// - `max_bgerror_resume_count=0` and `atomic_flush`: after a failed write the store stays closed until it is opened again, so
///   RocksDB need not try to come back by itself. On a full disk it does so all the same, and there is no option against
///   it: it begins a new log and flushes the columns. Flushed one by one, some would be ahead of the gap in the log when
///   that is cut short, and the store could never be opened again; flushed together, they stay together.
/// - `no_slowdown` on every write: a write that RocksDB would keep waiting is refused instead, and waits here. Inside, it would
///   wait in front of RocksDB's own attempt to come back from a full disk, and that behind the write, for ever.
/// - No `sync` on any write, no `unordered_write`, no manual log flush, no recycled log files: the first would hold up the
///   group behind a running sync, the others give up the order that recovery relies on.
pub(super) fn options(setup: RocksSetup) -> Result<Options, EngineError> {
    let mut options = Options::default()
        .get_options_from_string(
            "track_and_verify_wals=true;avoid_flush_during_recovery=false;max_bgerror_resume_count=0",
        )
        .map_err(|why| EngineError::Open(why.to_string()))?;
    options.set_compression_type(match setup.compression {
        Compression::None => DBCompressionType::None,
        Compression::Lz4 => DBCompressionType::Lz4,
    });
    options.set_enable_write_thread_adaptive_yield(false);
    options.set_atomic_flush(true);
    options.set_write_buffer_size((setup.write_buffers / 4).max(1 << 20));
    options.set_db_write_buffer_size(setup.write_buffers);
    options.set_max_background_jobs(2);
    options.set_bytes_per_sync(1 << 20);
    options.set_keep_log_file_num(2);
    Ok(options)
}

fn table_options(setup: RocksSetup) -> BlockBasedOptions {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(setup.cache));
    table.set_bloom_filter(BLOOM_BITS_PER_KEY, false);
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    table.set_format_version(6);
    table
}

fn opening(path: &Path, is_new: bool, why: rocksdb::Error) -> EngineError {
    match why.kind() {
        rocksdb::ErrorKind::Corruption => EngineError::Corruption(why.to_string()),
        // The marker says that the store was whole once, so this is not somebody else's database.
        rocksdb::ErrorKind::InvalidArgument if !is_new => {
            EngineError::Corruption(format!("the database in {} is not whole: {why}", path.display()))
        }
        _ => EngineError::Open(why.to_string()),
    }
}

fn failed(why: rocksdb::Error) -> EngineError {
    match why.kind() {
        rocksdb::ErrorKind::Corruption => EngineError::Corruption(why.to_string()),
        _ => EngineError::Unknown(why.to_string()),
    }
}

fn get<T>(
    db: &DB,
    column: &ColumnFamily,
    key: &[u8],
    options: &ReadOptions,
    read: impl FnOnce(&[u8]) -> T,
) -> Result<Option<T>, EngineError> {
    let found = db.get_pinned_cf_opt(column, key, options).map_err(failed)?;
    Ok(found.map(|bytes| read(&bytes)))
}

fn scan(
    db: &DB,
    column: &ColumnFamily,
    mut options: ReadOptions,
    range: &RowRange,
    backwards: bool,
    mut visit: impl FnMut(&[u8], &[u8]) -> bool,
) -> Result<(), EngineError> {
    // RocksDB includes its lower bound and excludes its upper one; a zero byte behind a key is the next key.
    let just_after = |key: &[u8]| [key, &[0]].concat();
    match &range.start {
        Bound::Included(start) => options.set_iterate_lower_bound(start.clone()),
        Bound::Excluded(start) => options.set_iterate_lower_bound(just_after(start)),
        Bound::Unbounded => {}
    }
    match &range.end {
        Bound::Included(end) => options.set_iterate_upper_bound(just_after(end)),
        Bound::Excluded(end) => options.set_iterate_upper_bound(end.clone()),
        Bound::Unbounded => {}
    }
    let mut cells: DBRawIterator<'_> = db.raw_iterator_cf_opt(column, options);
    if backwards {
        cells.seek_to_last();
    } else {
        cells.seek_to_first();
    }
    while let Some((key, value)) = cells.item() {
        if !visit(key, value) {
            return Ok(());
        }
        if backwards {
            cells.prev();
        } else {
            cells.next();
        }
    }
    cells.status().map_err(failed)
}

impl Reader for RocksStorage {
    fn get<T>(&self, column: Column, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, EngineError> {
        self.database.with_dependent(|Opened { db, .. }, columns| {
            get(db, columns.get(column), key, &ReadOptions::default(), read)
        })
    }

    fn scan(
        &self,
        column: Column,
        range: &RowRange,
        backwards: bool,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), EngineError> {
        let options = ReadOptions::default();
        self.database.with_dependent(|Opened { db, .. }, columns| {
            scan(db, columns.get(column), options, range, backwards, visit)
        })
    }
}

impl Reader for RocksView {
    fn get<T>(&self, column: Column, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, EngineError> {
        let pinned = self.0.borrow_dependent();
        get(pinned.db, pinned.columns.get(column), key, &pinned.options, read)
    }

    fn scan(
        &self,
        column: Column,
        range: &RowRange,
        backwards: bool,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), EngineError> {
        let pinned = self.0.borrow_dependent();
        let mut options = ReadOptions::default();
        options.set_snapshot(&pinned.snapshot);
        scan(pinned.db, pinned.columns.get(column), options, range, backwards, visit)
    }
}

impl Storage for RocksStorage {
    type View = RocksView;
    type Batch<'a> = RocksBatch<'a>;

    fn writing(&self) -> &Mutex<()> {
        &self.writing
    }

    fn view(&self) -> Result<RocksView, EngineError> {
        Ok(RocksView(PinnedCell::new(Arc::clone(&self.database), |database| {
            let db = &database.borrow_owner().db;
            let snapshot = db.snapshot();
            let mut options = ReadOptions::default();
            options.set_snapshot(&snapshot);
            Pinned { snapshot, options, columns: database.borrow_dependent(), db }
        })))
    }

    fn batch(&self) -> RocksBatch<'_> {
        RocksBatch { batch: WriteBatch::default(), columns: self.database.borrow_dependent() }
    }

    fn write(&self, batch: RocksBatch<'_>) -> Result<(), EngineError> {
        if batch.batch.is_empty() {
            return Ok(());
        }
        let db = &self.database.borrow_owner().db;
        // RocksDB takes the batch away even where it refuses it.
        let bytes = batch.batch.data().to_vec();
        let refused = match db.write_opt(batch.batch, &self.write_options) {
            Err(why) if why.kind() == rocksdb::ErrorKind::Incomplete => why,
            done => return done.map_err(failed),
        };
        let mut stall = Stall::new(self.background()?);
        loop {
            // The time that a disk takes is real, whatever the store's runtime.
            #[allow(clippy::disallowed_methods)]
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

    fn sync(&self) -> Result<(), EngineError> {
        self.database.borrow_owner().db.flush_wal(true).map_err(failed)
    }

    /// RocksDB flushes, links the tables, which never change, and copies the rest. The marker comes last, so that a copy that
    /// was cut short is no store.
    fn checkpoint(&self, folder: &Path) -> Result<(), EngineError> {
        let cannot =
            |why: String| EngineError::Open(format!("cannot make a checkpoint in {}: {why}", folder.display()));
        if folder.symlink_metadata().is_ok() {
            return Err(cannot("it is there already, and a checkpoint needs a folder of its own".into()));
        }
        if let Some(above) = folder.parent() {
            std::fs::create_dir_all(above).map_err(|why| cannot(why.to_string()))?;
        }
        let copying = Checkpoint::new(&self.database.borrow_owner().db);
        copying.and_then(|copying| copying.create_checkpoint(folder)).map_err(|why| cannot(why.to_string()))?;
        mark_copy(folder).map_err(|why| cannot(why.to_string()))
    }

    fn figures(&self) -> Result<EngineFigures, EngineError> {
        self.database.with_dependent(|Opened { db, .. }, columns| {
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
                snapshots: of_all(properties::NUM_SNAPSHOTS)?,
                log_bytes: log_bytes(db.path()),
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
        })
    }
}

/// RocksDB has no figure for it.
fn log_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let logs = entries.filter(|entry| entry.path().extension().is_some_and(|end| end == "log"));
    logs.filter_map(|entry| entry.metadata().ok()).map(|found| found.len()).sum()
}

/// See [`Storage::Batch`].
pub struct RocksBatch<'a> {
    batch: WriteBatch,
    columns: &'a Columns<'a>,
}

impl Batch for RocksBatch<'_> {
    fn put(&mut self, column: Column, key: &[u8], value: &[u8]) {
        self.batch.put_cf(self.columns.get(column), key, value);
    }

    fn delete(&mut self, column: Column, key: &[u8]) {
        self.batch.delete_cf(self.columns.get(column), key);
    }

    fn delete_range(&mut self, column: Column, start: &[u8], end: &[u8]) {
        self.batch.delete_range_cf(self.columns.get(column), start, end);
    }
}
