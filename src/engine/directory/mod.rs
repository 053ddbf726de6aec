//! The durable engine of one process: a directory.
//!
//! | in the directory | what |
//! |---|---|
//! | `PERCOLITE` | the marker: format and WAL id; locked while the store is open |
//! | `wal/` | the segments of the write-ahead log, and the files of accepted data losses |
//! | `tables/` | RocksDB, without its own write-ahead log |
//! | `RESERVE` | space for deletions on a full disk |
//! | `STATUS` | the status file of the process that has the store open |
//! | `PERCOLITE.copied` | this is a checkpoint that was never opened for writing |
//!
//! The path of the directory is used once, to open it. From then on all files are reached through
//! the open directory and its two subdirectories: see `Directory` in `src/disk`.
//!
//! Writes go to the write-ahead log and the memtables, and a flush moves them into the tables: see
//! `lsm`. Creation makes the tables, then the log, then the marker, each durable before the next. A
//! directory without the marker is not a store. `salvage` reads a damaged store.

mod access;
mod durable_names;
mod full_disk;
pub(super) mod marker;
mod names;
mod nested;
pub(crate) mod new_directory;
mod reserve;
pub(crate) mod salvage;
mod status_file;
mod torn_manifest;

use std::fmt;
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use self::access::cannot;
use self::marker::{LockedDir, commit_checkpoint_marker, commit_marker, lock_exclusive, lock_shared};
use self::names::{MARKER, RESERVE, TABLES_DIR, WAL_DIR, random};
use self::new_directory::NewDirectory;
use self::reserve::Reserve;
pub(crate) use self::status_file::read;
use super::local::LocalEngine;
use super::lsm::{LsmBatch, LsmOptions, LsmSnapshot, LsmStorage};
use super::rocks::file_names::{check_files_are_regular, remove_stale_options_files};
use super::rocks::{RocksOptions, RocksStorage, check_file_size_limit, check_threads_exist, open_elsewhere};
use super::storage::{CellReader, Column, Storage};
use super::store_lock::{LockFile, StoreLock};
use super::{DataLoss, EngineError, EngineStats, RowRange, ScanCursor, SpaceLeft, WriteStallStats};
use crate::disk::{CheckInterval, Directory, OsDisk, shown};
use crate::option_ranges;
use crate::os_limits::is_out_of_space;
use crate::sync::Mutex;
use crate::wal;

/// A keyspace that was deleted is compacted away at once if its tables have this size. Smaller ones
/// are left to RocksDB.
const RECLAIMED_BYTES_MIN: u64 = 1 << 20;

/// The engine over a directory.
pub type DirectoryEngine = LocalEngine<DirectoryStorage>;

/// The options for opening a store directory. Memory is in bytes. If an option is out of its
/// bounds, opening returns [`EngineError::InvalidOption`].
#[derive(Clone, Copy, Debug)]
pub struct DirectoryOptions {
    /// The capacity of the block cache, within [`option_ranges::BLOCK_CACHE_BYTES`].
    pub block_cache_bytes: usize,
    /// Memory for writes that are not in tables yet, within [`option_ranges::WRITE_BUFFER_BYTES`].
    pub write_buffer_bytes: usize,
    /// The compression of new tables. Existing tables stay as they are, and readable.
    pub compression: super::Compression,
    /// The fingerprint of a data loss to accept: the store opens without the lost commits.
    pub accept_data_loss: Option<u64>,
}

impl DirectoryOptions {
    /// The limit of a memtable is a sixth of `write_buffer_bytes`; the active and the immutable one
    /// can each grow to twice this limit, so together to two thirds of `write_buffer_bytes`. The
    /// last third is for RocksDB's own memtables, which a flush fills.
    fn table_options(self) -> Result<RocksOptions, EngineError> {
        option_ranges::WRITE_BUFFER_BYTES.check(self.write_buffer_bytes as u128)?;
        let tables = RocksOptions {
            block_cache_bytes: self.block_cache_bytes,
            write_buffer_bytes: self.write_buffer_bytes / 3,
            compression: self.compression,
            is_disk_full: false,
        };
        tables.check(self.write_buffer_bytes / 3 * 2).map(|()| tables)
    }

    fn memtable_bytes(self) -> usize {
        self.write_buffer_bytes / 6
    }
}

/// A store directory as a [`Storage`]: see the [module](self).
pub struct DirectoryStorage {
    /// `None` if opened read-only. Dropped first, while the store is still locked.
    reserve: Option<Reserve>,
    lsm: LsmStorage<OsDisk, RocksStorage>,
    directory: Directory,
    wal: Directory,
    accepted_losses: Vec<DataLoss>,
    /// Whether tables have deletions whose compaction was not tried yet.
    compaction_due: AtomicBool,
    names: CheckInterval,
    /// The size of the batches since the last attempt to give space back to a full disk.
    written_to_full_disk: AtomicUsize,
}

impl fmt::Debug for DirectoryStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectoryStorage").field("path", &self.directory.path()).finish_non_exhaustive()
    }
}

impl DirectoryStorage {
    /// Opens the store in `path`. Creates it if the directory is missing or empty.
    pub fn open(path: &Path, options: DirectoryOptions) -> Result<Self, EngineError> {
        match Self::open_once(path, options, Reserve::open) {
            // The end of a user's quota is not seen beforehand, nor whether the flush of a long log
            // fits. A new store has no reserve.
            Err(error) if is_out_of_space(&error.to_string()) && path.join(RESERVE).exists() => {
                Self::open_once(path, options, Reserve::give_up)
            }
            opened => opened,
        }
    }

    fn open_once(
        path: &Path,
        options: DirectoryOptions,
        open_reserve: fn(&Directory) -> Result<Reserve, EngineError>,
    ) -> Result<Self, EngineError> {
        let table_options = options.table_options()?;
        check_threads_exist()?;
        check_file_size_limit(options.write_buffer_bytes)?;
        let LockedDir { directory, mut marker, identity } = lock_exclusive(path)?;
        // Removes the status file that a killed process may have left. An error is ignored: if the
        // directory is not writable, a later step fails.
        let _ = status_file::write(&directory, None);
        let reserve = open_reserve(&directory)?;
        let is_new = identity.is_none();
        let identity = identity.unwrap_or_else(random);
        if is_new {
            for name in [WAL_DIR, TABLES_DIR] {
                let part = directory.path().join(name);
                std::fs::create_dir(&part).map_err(|error| cannot("create", &part, &error))?;
            }
        }
        let (wal, tables) = open_parts(&directory, &mut marker, File::try_lock)?;
        if !is_new {
            check_files_are_regular(tables.path())?;
            remove_stale_options_files(tables.path());
            torn_manifest::truncate_torn_manifest((&directory, &wal, &tables), table_options, identity)?;
        }
        let table_options = RocksOptions { is_disk_full: reserve.is_given_up(), ..table_options };
        let tables = RocksStorage::open(&tables, table_options, is_new, marker)?;
        let options = LsmOptions {
            wal_id: identity,
            is_new,
            random: Box::new(random),
            memtable_bytes: options.memtable_bytes(),
            accept_data_loss: options.accept_data_loss,
            background_flush: true,
            is_disk_full: reserve.given_up_flag(),
        };
        let new_disk = if reserve.is_given_up() { OsDisk::new_full } else { OsDisk::new };
        let lsm = LsmStorage::open(new_disk(wal.clone()), tables, options)?;
        if let Some(marker) = lsm.tables().store_lock().filter(|_| is_new) {
            crash_point!(CreateBefore);
            commit_marker(&directory, marker, identity)?;
        }
        crash_point!(CreateDone);
        reserve.replenish();
        let compaction_due = AtomicBool::new(reserve.is_given_up());
        let accepted_losses = read_accepted_losses(&wal)?;
        let written_to_full_disk = AtomicUsize::default();
        let (reserve, names) = (Some(reserve), CheckInterval::default());
        Ok(Self { reserve, lsm, directory, wal, accepted_losses, compaction_due, names, written_to_full_disk })
    }

    /// Opens the store in `path` read-only: nothing in the directory is changed, and writes fail.
    /// The part of the write-ahead log that is not in tables is read into memory.
    pub fn open_read_only(path: &Path, options: DirectoryOptions) -> Result<Self, EngineError> {
        let table_options = options.table_options()?;
        check_threads_exist()?;
        let (directory, mut marker, identity) = lock_shared(path)?;
        let (wal, tables) = open_parts(&directory, &mut marker, File::try_lock_shared)?;
        let tables = RocksStorage::open_read_only(&tables, table_options, Some(marker))?;
        let lsm = LsmStorage::open_read_only(OsDisk::new(wal.clone()), tables, identity, random())?;
        let accepted_losses = read_accepted_losses(&wal)?;
        let (compaction_due, written_to_full_disk, names, reserve) = Default::default();
        Ok(Self { reserve, lsm, directory, wal, accepted_losses, compaction_due, names, written_to_full_disk })
    }
}

/// The names and sizes of the files in a directory, as far as they can be read.
fn file_sizes(directory: &Directory) -> impl Iterator<Item = (String, u64)> {
    let files = std::fs::read_dir(directory.path()).into_iter().flatten().flatten();
    files.filter_map(|file| Some((file.file_name().into_string().ok()?, file.metadata().ok()?.len())))
}

/// Opens and locks the subdirectories of the log and of the tables.
fn open_parts(
    directory: &Directory,
    marker: &mut StoreLock,
    lock: LockFile,
) -> Result<(Directory, Directory), EngineError> {
    let mut open = |name| {
        let part = open_part(directory, name)?;
        if marker.lock_part(name, &part, lock) { Ok(part) } else { Err(open_elsewhere(part.path())) }
    };
    Ok((open(WAL_DIR)?, open(TABLES_DIR)?))
}

/// Opens a subdirectory of a store, which must exist.
fn open_part(directory: &Directory, name: &str) -> Result<Directory, EngineError> {
    directory.subdirectory(name).map_err(|error| {
        let part = directory.path().join(name);
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => EngineError::Corruption(format!(
                "the store's directory {} is missing; restore a backup, or repair the store (Builder::repair)",
                shown(&part)
            )),
            _ => cannot("open", &part, &error),
        }
    })
}

/// Reads the accepted data losses, oldest first.
fn read_accepted_losses(log: &Directory) -> Result<Vec<DataLoss>, EngineError> {
    let accepted = wal::accepted_data_losses(&OsDisk::new(log.clone()));
    let mut losses =
        accepted.map_err(|error| EngineError::Io(format!("cannot read {}: {error}", log.location().display())))?;
    losses.sort_by_key(|lost| lost.first_missing);
    let file = |lost: &wal::DataLoss| log.location().join(format!("lost-{:016x}-{}", lost.fingerprint, lost.segment));
    Ok(losses
        .iter()
        .map(|lost| DataLoss {
            file: file(lost),
            offset: lost.offset,
            lost_bytes: lost.intact_bytes,
            fingerprint: lost.fingerprint,
        })
        .collect())
}

impl CellReader for DirectoryStorage {
    fn get<T>(&self, column: Column, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, EngineError> {
        self.lsm.get(column, key, read)
    }

    fn scan(
        &self,
        column: Column,
        range: &RowRange,
        backwards: bool,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), EngineError> {
        self.lsm.scan(column, range, backwards, visit)
    }

    fn resume_scan(
        &self,
        cursor: &ScanCursor,
        column: Column,
        range: &RowRange,
        backwards: bool,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), EngineError> {
        self.lsm.resume_scan(cursor, column, range, backwards, visit)
    }
}

impl Storage for DirectoryStorage {
    type Snapshot = LsmSnapshot<OsDisk, RocksStorage>;
    type Batch<'a> = LsmBatch;

    const BATCH_BYTES_MAX: usize = LsmStorage::<OsDisk, RocksStorage>::BATCH_BYTES_MAX;

    fn write_lock(&self) -> &Mutex<()> {
        self.lsm.write_lock()
    }

    fn snapshot(&self) -> Result<Self::Snapshot, EngineError> {
        self.lsm.snapshot()
    }

    fn new_batch(&self, bytes: usize) -> LsmBatch {
        self.lsm.new_batch(bytes)
    }

    fn write(&self, batch: LsmBatch) -> Result<(), EngineError> {
        self.lsm.write(batch)
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.lsm.sync()?;
        let Some(lock) = self.lsm.tables().store_lock().filter(|_| self.names.is_due()) else { return Ok(()) };
        let in_place = lock.check_in_place(&self.directory, MARKER);
        in_place.map_err(|error| EngineError::Io(format!("cannot go on in {}: {error}", shown(self.directory.path()))))
    }

    /// Tables are immutable, so they are hard-linked. The copy gets its own, empty write-ahead log,
    /// whose first frame will have the sequence number after the tables' flushed sequence. The
    /// marker is written last, so that an interrupted copy is not a store.
    fn checkpoint(&self, directory: &Path) -> Result<(), EngineError> {
        let failed =
            |reason: String| EngineError::Io(format!("cannot make a checkpoint in {}: {reason}", shown(directory)));
        if self.full_disk().is_some_and(|reserve| !self.lsm.flush_fits(reserve.usable_bytes())) {
            return Err(failed("the disk of the store is full, and has no space for the flush before it".into()));
        }
        let copy = NewDirectory::create(directory, "a checkpoint")?;
        let target = copy.directory();
        let copied = self.lsm.with_flushed_tables(|tables, flushed_sequence| {
            let wal_dir = target.path().join(WAL_DIR);
            std::fs::create_dir(&wal_dir).map_err(|error| cannot("create", &wal_dir, &error))?;
            crash_point!(CheckpointFlushed);
            tables.checkpoint(&target.path().join(TABLES_DIR), failed)?;
            let wal_id = random();
            let wal = OsDisk::new(open_part(target, WAL_DIR)?);
            wal::create(wal, wal_id, flushed_sequence, random()).map_err(|error| failed(error.to_string()))?;
            crash_point!(CheckpointBeforeMarker);
            commit_checkpoint_marker(target, wal_id)?;
            crash_point!(CheckpointDone);
            Ok(())
        });
        copied.map(|()| copy.keep())
    }

    /// In an idle store the deletion would stay in the memtable, and the rows in the tables. On a
    /// full disk [`Storage::reclaim_space`] follows, which asks whether there is space.
    fn reclaim_range(&self, start: &[u8], end: &[u8]) -> Result<(), EngineError> {
        if self.full_disk().is_some() {
            return Ok(());
        }
        let tables = self.lsm.tables();
        let size = |column| tables.approximate_size(column, start, end).unwrap_or(0);
        let bytes: u64 = Column::ALL.into_iter().map(size).sum();
        if bytes >= RECLAIMED_BYTES_MIN && tables.may_compact() {
            self.lsm.flush_all()?;
            tables.compact_all_columns(start, end);
        }
        Ok(())
    }

    fn space_left(&self) -> SpaceLeft {
        self.reserve.as_ref().map_or(SpaceLeft::Enough, Reserve::space_left)
    }

    fn has_space(&self, bytes: usize, needed: SpaceLeft) -> bool {
        self.full_disk_has_space(bytes, needed)
    }

    fn reclaim_space(&self) -> Result<(), EngineError> {
        self.reclaim_full_disk()
    }

    fn stats(&self) -> Result<EngineStats, EngineError> {
        let mut stats = EngineStats { space_left: self.space_left(), ..self.lsm.stats()? };
        for (name, bytes) in file_sizes(&self.wal) {
            stats.wal_bytes += bytes;
            stats.wal_segments += u64::from(wal::is_segment(&name));
            stats.lost_wal_bytes += if wal::is_of_a_loss(&name) { bytes } else { 0 };
        }
        let others = file_sizes(self.lsm.tables().directory())
            .filter(|(name, _)| name.rsplit_once('.').is_none_or(|(_, end)| end != "sst"));
        stats.other_table_bytes = others.map(|(_, bytes)| bytes).sum();
        Ok(stats)
    }

    fn approximate_size(&self, column: Column, start: &[u8], end: &[u8]) -> Option<u64> {
        self.lsm.approximate_size(column, start, end)
    }

    fn write_stalls(&self) -> WriteStallStats {
        self.lsm.write_stalls()
    }

    fn is_fresh_checkpoint(&self) -> bool {
        marker::is_fresh_checkpoint(&self.directory)
    }

    fn clear_checkpoint_flag(&self) -> Result<(), EngineError> {
        self.sync()?;
        marker::clear_checkpoint_flag(&self.directory)
            .map_err(|error| cannot("clear the checkpoint flag of", self.directory.path(), &error))
    }

    fn data_losses(&self) -> Vec<DataLoss> {
        self.accepted_losses.clone()
    }

    fn write_status_file(&self, document: Option<&[u8]>) -> Result<(), EngineError> {
        status_file::write(&self.directory, document)
            .map_err(|error| cannot("write the status file in", self.directory.path(), &error))
    }
}
