//! RocksDB as the tables below the [write-ahead log and memtables](super::lsm).
//!
//! Each column is a column family; `meta` is the default one. RocksDB's own write-ahead log is off:
//! writes become durable when all columns are flushed together, which is what a table sync
//! ([`Storage::sync`]) does. `options` documents the other options and the reasons for them.
//!
//! | module | what |
//! |---|---|
//! | `write`, `write_retry` | writes with retries during write stalls |
//! | `table_sync`, `free_space` | table sync; compactions when the disk is nearly full |
//! | `merge_tables` | merges small tables |
//! | `cursor` | range scans |
//! | `skip_corruption` | scans that skip unreadable blocks |
//! | `manifest` | checks of the manifest before RocksDB reads it |
//! | `repair` | repair of tables that RocksDB cannot open |

mod batch;
mod column_families;
mod cursor;
mod errors;
pub(super) mod file_names;
mod file_size_limit;
mod free_space;
pub(super) mod manifest;
mod memory_limit;
mod merge_tables;
mod options;
pub(super) mod repair;
pub(super) mod skip_corruption;
mod stats;
mod table_sync;
mod write;
mod write_retry;

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use rocksdb::checkpoint::Checkpoint;
use rocksdb::{ColumnFamily, DB, Range, ReadOptions, Snapshot, WriteBatch, WriteOptions};
use self_cell::self_cell;

pub use self::batch::RocksBatch;
use self::column_families::ColumnFamilies;
pub use self::errors::open_elsewhere;
use self::errors::{corruption_message, engine_error, open_error};
use self::file_names::check_files_are_regular;
pub use self::file_size_limit::check_file_size_limit;
pub use self::options::RocksOptions;
use self::options::{check_threads, column_family_descriptors, column_family_name, options};
use super::storage::{CellReader, Column, Storage};
use super::store_lock::StoreLock;
use super::{EngineError, EngineStats, RowRange, ScanCursor};
use crate::disk::{Directory, occupy_standard_streams, readable};
use crate::process::Process;
use crate::sync::Mutex;

/// For fewer keys than the minimum, each key is read by a call of its own, which is faster. One
/// `MultiGet` of RocksDB reads at most the maximum, which bounds memory: all blocks that are read
/// stay pinned until the call returns.
const MULTI_GET_KEYS: RangeInclusive<usize> = 8..=256;

/// The process that first used RocksDB, whose background threads live there.
static FIRST_USER: OnceLock<Process> = OnceLock::new();

/// Fails in a child that was forked from a process which had used RocksDB. The threads that flush
/// and compact do not exist there, and RocksDB would wait for them forever.
pub fn check_threads_exist() -> Result<(), EngineError> {
    let Some(forked) = FIRST_USER.get_or_init(Process::current).refusal() else { return Ok(()) };
    Err(EngineError::Io(format!("{forked}; a process that had opened a store must start its children as new programs")))
}

/// RocksDB as a [`Storage`].
pub struct RocksStorage {
    database: Arc<OwnedDb>,
    write_options: WriteOptions,
    writing: Mutex<()>,
    /// The buffer into which a write copies its batch, because a retry needs the copy. The buffer
    /// is empty between writes, and kept for its capacity.
    retry_buffer: parking_lot::Mutex<Vec<u8>>,
    /// Whether automatic compactions are off, because the disk had too little space at opening.
    compactions_paused: AtomicBool,
    /// How many flushes there were, for [`merge_tables`].
    flushes: AtomicU64,
}

/// Fields are dropped in this order, so that the store lock is released last.
struct LockedDb {
    db: DB,
    /// Stays open, because RocksDB reaches its files through it.
    directory: Directory,
    /// `None` if the caller keeps the store lock.
    marker: Option<StoreLock>,
    process: Process,
}

impl LockedDb {
    /// The process that has the database open.
    fn process(&self) -> &Process {
        &self.process
    }
}

self_cell!(
    struct OwnedDb {
        owner: LockedDb,
        #[covariant]
        dependent: ColumnFamilies,
    }
);

struct SnapshotRef<'a> {
    snapshot: Snapshot<'a>,
    options: ReadOptions,
    columns: &'a ColumnFamilies<'a>,
    db: &'a DB,
}

impl SnapshotRef<'_> {
    fn read_options(&self) -> ReadOptions {
        let mut options = ReadOptions::default();
        options.set_snapshot(&self.snapshot);
        options
    }
}

self_cell!(
    struct OwnedSnapshot {
        owner: Arc<OwnedDb>,
        #[covariant]
        dependent: SnapshotRef,
    }
);

/// A RocksDB snapshot, which keeps its database open. The cursors of scans share the snapshot.
pub struct RocksSnapshot(Arc<OwnedSnapshot>);

impl RocksStorage {
    /// Opens the tables in the directory, and creates them if `is_new`. The store stays locked as
    /// long as the tables are open.
    pub fn open(
        directory: &Directory,
        setup: RocksOptions,
        is_new: bool,
        marker: StoreLock,
    ) -> Result<Self, EngineError> {
        let path = directory.path();
        check_files_are_regular(path)?;
        manifest::reject_recycled_record(path)?;
        check_threads()?;
        let auto_compactions = free_space::has_room_at_opening(path);
        let mut options = options(setup, auto_compactions)?;
        // In an existing store, a missing database or column is data loss, and must not be replaced
        // by an empty one.
        options.create_if_missing(is_new);
        options.create_missing_column_families(is_new);
        let db = DB::open_cf_descriptors(&options, path, column_family_descriptors(&options, setup)?)
            .map_err(|error| open_error(path, is_new, error))?;
        Self::from_db(db, directory, Some(marker), !auto_compactions)
    }

    /// Opens the tables in the directory read-only: nothing in it is changed, and writes fail.
    pub fn open_read_only(
        directory: &Directory,
        setup: RocksOptions,
        marker: Option<StoreLock>,
    ) -> Result<Self, EngineError> {
        let path = directory.path();
        check_files_are_regular(path)?;
        manifest::reject_torn_record(path)?;
        manifest::reject_recycled_record(path)?;
        check_threads()?;
        let options = options(setup, false)?;
        let db = DB::open_cf_descriptors_read_only(&options, path, column_family_descriptors(&options, setup)?, false)
            .map_err(|error| open_error(path, false, error))?;
        Self::from_db(db, directory, marker, false)
    }

    /// The directory of the tables.
    pub fn directory(&self) -> &Directory {
        &self.database.borrow_owner().directory
    }

    /// The store lock, if this storage has it.
    pub fn store_lock(&self) -> Option<&StoreLock> {
        self.database.borrow_owner().marker.as_ref()
    }

    /// Makes a RocksDB checkpoint of what is durable in the tables: RocksDB hard-links the files of
    /// tables, which are immutable, and copies the other files. The caller has flushed: a flush by
    /// RocksDB here would have no limit.
    pub fn checkpoint(&self, directory: &Path, failed: impl Fn(String) -> EngineError) -> Result<(), EngineError> {
        let checkpoint = Checkpoint::new(&self.database.borrow_owner().db);
        let created = checkpoint.and_then(|checkpoint| checkpoint.create_checkpoint_with_log_size(directory, u64::MAX));
        created.map_err(|error| match error.kind() {
            rocksdb::ErrorKind::Corruption => {
                EngineError::Corruption(format!("cannot make a checkpoint: {}", corruption_message(&error)))
            }
            _ if error.as_ref().contains("while link file") => failed(format!(
                "{}; this file system may not have hard links: a directory on another one gets copies",
                readable(error.as_ref())
            )),
            _ => failed(readable(error.as_ref()).into_owned()),
        })
    }

    fn from_db(
        db: DB,
        directory: &Directory,
        marker: Option<StoreLock>,
        compactions_paused: bool,
    ) -> Result<Self, EngineError> {
        let opened = LockedDb { db, directory: directory.clone(), marker, process: Process::current() };
        let database = OwnedDb::try_new(opened, |LockedDb { db, .. }| {
            let find = |column| {
                let missing =
                    || EngineError::Corruption(format!("column family {:?} is missing", column_family_name(column)));
                db.cf_handle(column_family_name(column)).ok_or_else(missing)
            };
            Ok::<_, EngineError>(ColumnFamilies {
                meta: find(Column::Meta)?,
                data: find(Column::Data)?,
                lock: find(Column::Lock)?,
                write: find(Column::Write)?,
                history: find(Column::History)?,
            })
        })?;
        let mut write_options = WriteOptions::default();
        write_options.set_no_slowdown(true);
        write_options.disable_wal(true);
        Ok(Self {
            database: Arc::new(database),
            write_options,
            writing: Mutex::default(),
            retry_buffer: parking_lot::Mutex::default(),
            compactions_paused: AtomicBool::new(compactions_paused),
            flushes: AtomicU64::new(0),
        })
    }

    /// The first and last keys of a column's tables, sorted.
    fn table_boundaries(&self, column: Column) -> Result<Vec<Vec<u8>>, EngineError> {
        let files = self.database.borrow_owner().db.live_files().map_err(engine_error)?;
        let own = files.into_iter().filter(|file| file.column_family_name == column_family_name(column));
        let mut boundaries: Vec<_> = own.flat_map(|file| [file.start_key, file.end_key]).flatten().collect();
        boundaries.sort();
        boundaries.dedup();
        Ok(boundaries)
    }

    /// The approximate size of a column's tables between two keys, in bytes, counted in whole
    /// blocks: 0 if both keys are in one block.
    fn approximate_size(&self, column: Column, start: &[u8], end: &[u8]) -> u64 {
        let range = Range::new(start, end);
        let sizes = self
            .database
            .with_dependent(|LockedDb { db, .. }, columns| db.get_approximate_sizes_cf(columns.get(column), &[range]));
        sizes.into_iter().sum()
    }
}

fn get<T>(
    db: &DB,
    column: &ColumnFamily,
    key: &[u8],
    options: &ReadOptions,
    read: impl FnOnce(&[u8]) -> T,
) -> Result<Option<T>, EngineError> {
    let found = db.get_pinned_cf_opt(column, key, options).map_err(engine_error)?;
    Ok(found.map(|bytes| read(&bytes)))
}

impl CellReader for RocksStorage {
    fn get<T>(&self, column: Column, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, EngineError> {
        self.database.with_dependent(|LockedDb { db, .. }, columns| {
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
        self.database.with_dependent(|LockedDb { db, .. }, columns| {
            cursor::scan(db, columns.get(column), options, range, backwards, visit)
        })
    }
}

impl CellReader for RocksSnapshot {
    const UNLOCKED_SCANS: bool = true;

    fn get<T>(&self, column: Column, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, EngineError> {
        let pinned = self.0.borrow_dependent();
        get(pinned.db, pinned.columns.get(column), key, &pinned.options, read)
    }

    fn multi_get(&self, column: Column, keys: &[&[u8]], mut read: impl FnMut(usize, &[u8])) -> Result<(), EngineError> {
        let SnapshotRef { db, columns, options, .. } = self.0.borrow_dependent();
        let column = columns.get(column);
        if keys.len() < *MULTI_GET_KEYS.start() {
            let mut keys = keys.iter().enumerate();
            return keys
                .try_for_each(|(index, key)| get(db, column, key, options, |value| read(index, value)).map(drop));
        }
        let mut index = 0;
        for chunk in keys.chunks(*MULTI_GET_KEYS.end()) {
            for found in db.batched_multi_get_cf_opt(column, chunk, false, options) {
                if let Some(value) = found.map_err(engine_error)? {
                    read(index, &value);
                }
                index += 1;
            }
        }
        Ok(())
    }

    fn scan(
        &self,
        column: Column,
        range: &RowRange,
        backwards: bool,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), EngineError> {
        let SnapshotRef { db, columns, .. } = self.0.borrow_dependent();
        cursor::scan(db, columns.get(column), self.0.borrow_dependent().read_options(), range, backwards, visit)
    }

    fn resume_scan(
        &self,
        scan_cursor: &ScanCursor,
        column: Column,
        range: &RowRange,
        backwards: bool,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), EngineError> {
        cursor::resume_scan(&self.0, scan_cursor, column, range, backwards, visit)
    }
}

impl Storage for RocksStorage {
    type Snapshot = RocksSnapshot;
    type Batch<'a> = RocksBatch<'a>;

    fn write_lock(&self) -> &Mutex<()> {
        &self.writing
    }

    fn snapshot(&self) -> Result<RocksSnapshot, EngineError> {
        Ok(RocksSnapshot(Arc::new(OwnedSnapshot::new(Arc::clone(&self.database), |database| {
            let db = &database.borrow_owner().db;
            let snapshot = db.snapshot();
            let mut options = ReadOptions::default();
            options.set_snapshot(&snapshot);
            SnapshotRef { snapshot, options, columns: database.borrow_dependent(), db }
        }))))
    }

    fn new_batch(&self, bytes: usize) -> RocksBatch<'_> {
        RocksBatch { batch: WriteBatch::with_capacity_bytes(bytes), columns: self.database.borrow_dependent() }
    }

    fn write(&self, batch: RocksBatch<'_>) -> Result<(), EngineError> {
        // RocksDB may create files for this batch.
        occupy_standard_streams().map_err(|error| EngineError::Io(format!("cannot open /: {error}")))?;
        if batch.batch.is_empty() { Ok(()) } else { self.write_with_retry(batch.batch) }
    }

    /// The table sync: flushes all columns together.
    fn sync(&self) -> Result<(), EngineError> {
        self.flush_all()
    }

    fn after_flush(&self) {
        self.merge_small_tables();
    }

    fn approximate_size(&self, column: Column, start: &[u8], end: &[u8]) -> Option<u64> {
        Some(self.approximate_size(column, start, end))
    }

    fn stats(&self) -> Result<EngineStats, EngineError> {
        let stats = self.database.with_dependent(|LockedDb { db, .. }, columns| stats::collect(db, columns))?;
        let compactions_paused = self.compactions_paused();
        let is_write_stopped = stats.is_write_stopped || !compactions_paused && self.compactions_lag()?;
        Ok(EngineStats { is_write_stopped, compactions_paused, ..stats })
    }
}
