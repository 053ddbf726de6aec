//! The durable engine of one process: RocksDB.
//!
//! Each column is a column family; `meta` is the default one. All of them share one write-ahead log, which is what makes a
//! batch atomic over columns and a crash leave a prefix of batches. That second property has to be asked for: see
//! `options`. Whether a folder is a store is told by its marker, see `folder`; what RocksDB itself would not survive is looked
//! for first, in `logs`; what it would drop without a word is kept and told, see `lost`; how its syncs are made short, in `room`;
//! writes that it refuses for a while and failures of its log are the business of `writing`; what can be read of a folder that it does not open, of
//! `salvage`, and `around` how bad blocks are passed by. `cursor` is how ranges are read.

pub(crate) mod around;
mod cursor;
mod errors;
mod figures;
mod folder;
mod logs;
mod lost;
mod options;
mod published;
mod records;
mod room;
pub(crate) mod salvage;
mod stall;
mod writing;

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use rocksdb::checkpoint::Checkpoint;
use rocksdb::properties::MIN_LOG_NUMBER_TO_KEEP;
use rocksdb::{ColumnFamily, DB, FlushOptions, Range, ReadOptions, Snapshot, WriteBatch, WriteOptions};
use self_cell::self_cell;

use self::errors::{corrupt, failed, opening};
use self::folder::{Claim, Marker, claim, examine, finish, mark_copy, remove_unfinished_options};
pub use self::options::RocksSetup;
use self::options::{descriptors, name, options};
pub(crate) use self::published::published;
use self::room::Room;
use self::stall::Stalls;
use super::local::LocalEngine;
use super::storage::{Batch, Column, Reader, Storage};
use super::{Bookmark, EngineError, EngineFigures, LostLog, RowRange, WriteStalls};

/// So many cells are looked for together: fewer are found sooner one by one, and what they lie in stays in memory until all of
/// them are found.
const TOGETHER: RangeInclusive<usize> = 8..=256;

/// The engine over RocksDB.
pub type RocksEngine = LocalEngine<RocksStorage>;

/// RocksDB as a [`Storage`].
pub struct RocksStorage {
    database: Arc<Database>,
    write_options: WriteOptions,
    writing: Mutex<()>,
    /// Empty room for what is being written, kept from one write to the next.
    copy: Mutex<Vec<u8>>,
    /// Held by every write and sync while it runs.
    running: RwLock<()>,
    room: Room,
    /// The first failure that says why.
    cause: OnceLock<rocksdb::Error>,
    stalls: Stalls,
    lost: Vec<LostLog>,
    /// Whether these are tables below a log of our own: then RocksDB has none.
    is_below_a_log: bool,
}

/// Dropped in this order: the lock on the folder ends last.
struct Opened {
    db: DB,
    /// `None` where somebody else holds it.
    marker: Option<Marker>,
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

impl Pinned<'_> {
    fn read_options(&self) -> ReadOptions {
        let mut options = ReadOptions::default();
        options.set_snapshot(&self.snapshot);
        options
    }
}

self_cell!(
    struct PinnedCell {
        owner: Arc<Database>,
        #[covariant]
        dependent: Pinned,
    }
);

/// A RocksDB snapshot that keeps its database open. Shared with the bookmarks of scans.
pub struct RocksView(Arc<PinnedCell>);

impl RocksStorage {
    /// Opens the store in `path`, which is created if it is missing or empty.
    pub fn open(path: &Path, setup: RocksSetup) -> Result<Self, EngineError> {
        setup.check()?;
        let Claim { marker, is_new } = claim(path)?;
        // Of a life that was killed. On what cannot be written to there are greater troubles.
        let _ = published::publish(path, None);
        if !is_new {
            remove_unfinished_options(path);
        }
        let logs = logs::check(path)?;
        if !mutated!(RoomStays) {
            logs::cut_room(&logs).map_err(|why| EngineError::Open(format!("cannot cut off a log's room: {why}")))?;
        }
        if lost::judge(&logs, 0).is_some()
            && let Some(lost) = lost::judge(&logs, oldest_log(path, setup)?)
        {
            lost.keep(path)?;
        }
        let mut options = options(setup)?;
        // Where there is a store, what is missing of it is lost, and not to be made up for by something empty.
        options.create_if_missing(is_new);
        options.create_missing_column_families(is_new);
        let db = DB::open_cf_descriptors(&options, path, descriptors(&options, setup)?)
            .map_err(|why| opening(path, is_new, why))?;
        let mut storage = Self::of(Opened { db, marker: Some(marker) })?;
        storage.lost = kept(path)?;
        if let Some(marker) = storage.database.borrow_owner().marker.as_ref().filter(|_| is_new) {
            crash_point!(CreateBefore);
            finish(path, marker)
                .map_err(|why| EngineError::Open(format!("cannot create a store in {}: {why}", path.display())))?;
        }
        crash_point!(CreateDone);
        Ok(storage)
    }

    /// Opens the store in `path` as tables below a log of our own: what is written is durable once it is flushed.
    pub(crate) fn open_tables(path: &Path, setup: RocksSetup) -> Result<Self, EngineError> {
        let mut tables = Self::open(path, setup)?;
        tables.write_options.disable_wal(true);
        tables.is_below_a_log = true;
        Ok(tables)
    }

    /// All columns, together.
    fn flush(&self) -> Result<(), EngineError> {
        self.database.with_dependent(|Opened { db, .. }, columns| {
            let columns = Column::ALL.map(|column| columns.get(column));
            db.flush_cfs_opt(&columns, &FlushOptions::default()).map_err(failed)
        })
    }

    /// Opens the store in `path` to look at it: nothing in the folder is changed, and writing fails. What RocksDB has only in
    /// its log is read into memory.
    pub fn open_read_only(path: &Path, setup: RocksSetup) -> Result<Self, EngineError> {
        setup.check()?;
        let marker = examine(path)?;
        let logs = logs::check(path)?;
        let options = options(setup)?;
        // A log whose content is not in the tables yet is how every store is left; it is no reason to refuse.
        let refuse_logs = false;
        let db = DB::open_cf_descriptors_read_only(&options, path, descriptors(&options, setup)?, refuse_logs)
            .map_err(|why| opening(path, false, why))?;
        let oldest = oldest_log_of(&db)?;
        if let Some(log) = logs::with_room_before_a_later_one(&logs, oldest) {
            return Err(EngineError::Open(format!(
                "{} was left by a crash that came when the next log was begun: the store, or a copy of it, has to be opened for writing once before it can be looked at",
                log.display()
            )));
        }
        let lost = lost::judge(&logs, oldest);
        if let Some(hole) = lost.as_ref().filter(|lost| lost.is_hole) {
            return Err(EngineError::Corruption(format!(
                "{}; opened for writing, the store ends in front of it",
                hole.told
            )));
        }
        let mut storage = Self::of(Opened { db, marker: Some(marker) })?;
        storage.lost = kept(path)?;
        storage.lost.extend(lost.filter(|lost| !lost.is_kept()).map(|lost| lost.told));
        Ok(storage)
    }

    fn of(opened: Opened) -> Result<Self, EngineError> {
        let room = Room::new(opened.db.path());
        let database = Database::try_new(opened, |Opened { db, .. }| {
            let find = |column| {
                let missing = || EngineError::Corruption(format!("column family {:?} is missing", name(column)));
                db.cf_handle(name(column)).ok_or_else(missing)
            };
            Ok::<_, EngineError>(Columns {
                meta: find(Column::Meta)?,
                data: find(Column::Data)?,
                lock: find(Column::Lock)?,
                write: find(Column::Write)?,
                history: find(Column::History)?,
            })
        })?;
        let mut write_options = WriteOptions::default();
        write_options.set_no_slowdown(true);
        Ok(Self {
            database: Arc::new(database),
            write_options,
            writing: Mutex::default(),
            copy: Mutex::default(),
            running: RwLock::default(),
            room,
            cause: OnceLock::new(),
            stalls: Stalls::default(),
            lost: Vec::new(),
            is_below_a_log: false,
        })
    }

    /// Between which keys a column's tables lie.
    fn table_borders(&self, column: Column) -> Vec<Vec<u8>> {
        let files = self.database.borrow_owner().db.live_files().unwrap_or_default();
        let own = files.into_iter().filter(|file| file.column_family_name == name(column));
        let mut borders: Vec<_> = own.flat_map(|file| [file.start_key, file.end_key]).flatten().collect();
        borders.sort();
        borders.dedup();
        borders
    }

    /// About how many bytes of a column's tables lie between two keys: in steps of whole blocks, and 0 within one.
    fn bytes_between(&self, column: Column, start: &[u8], end: &[u8]) -> u64 {
        let range = Range::new(start, end);
        let sizes = self
            .database
            .with_dependent(|Opened { db, .. }, columns| db.get_approximate_sizes_cf(columns.get(column), &[range]));
        sizes.into_iter().sum()
    }
}

fn kept(path: &Path) -> Result<Vec<LostLog>, EngineError> {
    lost::kept(path).map_err(|why| EngineError::Open(format!("cannot read the logs kept in {}: {why}", path.display())))
}

/// Those before it were recovered in an earlier life, and only not deleted.
fn oldest_log(path: &Path, setup: RocksSetup) -> Result<u64, EngineError> {
    let options = options(setup)?;
    // What keeps it from being opened, whoever opens it for writing is told.
    let opened = DB::open_cf_descriptors_read_only(&options, path, descriptors(&options, setup)?, false);
    opened.map_or(Ok(0), |db| oldest_log_of(&db))
}

fn oldest_log_of(db: &DB) -> Result<u64, EngineError> {
    Ok(db.property_int_value(MIN_LOG_NUMBER_TO_KEEP).map_err(failed)?.unwrap_or_default())
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
            cursor::scan(db, columns.get(column), options, range, backwards, visit)
        })
    }
}

impl Reader for RocksView {
    fn get<T>(&self, column: Column, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, EngineError> {
        let pinned = self.0.borrow_dependent();
        get(pinned.db, pinned.columns.get(column), key, &pinned.options, read)
    }

    fn get_each(&self, column: Column, keys: &[&[u8]], mut read: impl FnMut(usize, &[u8])) -> Result<(), EngineError> {
        let Pinned { db, columns, options, .. } = self.0.borrow_dependent();
        let column = columns.get(column);
        if keys.len() < *TOGETHER.start() {
            let mut keys = keys.iter().enumerate();
            return keys.try_for_each(|(number, key)| {
                get(db, column, key, options, |content| read(number, content)).map(drop)
            });
        }
        let mut number = 0;
        for some in keys.chunks(*TOGETHER.end()) {
            for found in db.batched_multi_get_cf_opt(column, some, false, options) {
                if let Some(content) = found.map_err(failed)? {
                    read(number, &content);
                }
                number += 1;
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
        let Pinned { db, columns, .. } = self.0.borrow_dependent();
        cursor::scan(db, columns.get(column), self.0.borrow_dependent().read_options(), range, backwards, visit)
    }

    fn scan_on(
        &self,
        bookmark: &Bookmark,
        column: Column,
        range: &RowRange,
        backwards: bool,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), EngineError> {
        cursor::scan_on(&self.0, bookmark, column, range, backwards, visit)
    }
}

impl Storage for RocksStorage {
    type View = RocksView;
    type Batch<'a> = RocksBatch<'a>;

    fn writing(&self) -> &Mutex<()> {
        &self.writing
    }

    fn view(&self) -> Result<RocksView, EngineError> {
        Ok(RocksView(Arc::new(PinnedCell::new(Arc::clone(&self.database), |database| {
            let db = &database.borrow_owner().db;
            let snapshot = db.snapshot();
            let mut options = ReadOptions::default();
            options.set_snapshot(&snapshot);
            Pinned { snapshot, options, columns: database.borrow_dependent(), db }
        }))))
    }

    fn batch(&self, bytes: usize) -> RocksBatch<'_> {
        RocksBatch { batch: WriteBatch::with_capacity_bytes(bytes), columns: self.database.borrow_dependent() }
    }

    fn write(&self, batch: RocksBatch<'_>) -> Result<(), EngineError> {
        if batch.batch.is_empty() {
            return Ok(());
        }
        if self.is_below_a_log {
            return self.write_when_it_may(batch.batch);
        }
        let turn = self.room.turn();
        let bytes = batch.batch.data().len();
        self.write_when_it_may(batch.batch)?;
        turn.wrote(bytes);
        Ok(())
    }

    fn sync(&self) -> Result<(), EngineError> {
        if self.is_below_a_log {
            return self.flush();
        }
        self.on_log(|| self.database.borrow_owner().db.flush_wal(true)).map_err(failed)?;
        self.room.synced();
        Ok(())
    }

    /// RocksDB flushes, links the tables, which never change, and copies the rest. The marker comes last, so that a copy that
    /// was cut short is no store.
    fn checkpoint(&self, folder: &Path) -> Result<(), EngineError> {
        let cannot =
            |why: String| EngineError::Open(format!("cannot make a checkpoint in {}: {why}", folder.display()));
        if folder.symlink_metadata().is_ok() {
            return Err(cannot("it is there already, and a checkpoint needs a folder of its own".into()));
        }
        // Without slashes at its end, as RocksDB sees it, too.
        let folder: &Path = &folder.components().collect::<PathBuf>();
        let mut staging = folder.as_os_str().to_owned();
        staging.push(".tmp");
        let staging = Path::new(&staging);
        if staging.symlink_metadata().is_ok() {
            return Err(cannot(format!(
                "RocksDB would put it together in {}, which is there already, and delete what is in it: move that away first",
                staging.display()
            )));
        }
        if let Some(above) = folder.parent() {
            std::fs::create_dir_all(above).map_err(|why| cannot(why.to_string()))?;
        }
        let copying = Checkpoint::new(&self.database.borrow_owner().db);
        copying.and_then(|copying| copying.create_checkpoint(folder)).map_err(|why| match why.kind() {
            rocksdb::ErrorKind::Corruption => {
                EngineError::Corruption(format!("no checkpoint can be made of it: {}", corrupt(&why)))
            }
            _ => cannot(why.to_string()),
        })?;
        crash_point!(CheckpointUnmarked);
        mark_copy(folder).map_err(|why| cannot(why.to_string()))?;
        crash_point!(CheckpointDone);
        Ok(())
    }

    fn stored_between(&self, column: Column, start: &[u8], end: &[u8]) -> Option<u64> {
        Some(self.bytes_between(column, start, end))
    }

    fn figures(&self) -> Result<EngineFigures, EngineError> {
        self.database.with_dependent(|Opened { db, .. }, columns| figures::of(db, columns))
    }

    fn stalls(&self) -> WriteStalls {
        self.stalls.read()
    }

    fn is_copy(&self) -> bool {
        folder::is_copy(self.database.borrow_owner().db.path())
    }

    fn adopt(&self) -> Result<(), EngineError> {
        self.sync()?;
        let path = self.database.borrow_owner().db.path();
        folder::adopt(path)
            .map_err(|why| EngineError::Open(format!("cannot make {} a store of its own: {why}", path.display())))
    }

    fn lost_logs(&self) -> Vec<LostLog> {
        self.lost.clone()
    }

    fn publish(&self, document: Option<&[u8]>) -> Result<(), EngineError> {
        let folder = self.database.borrow_owner().db.path();
        published::publish(folder, document)
            .map_err(|why| EngineError::Open(format!("cannot publish the status in {}: {why}", folder.display())))
    }
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
