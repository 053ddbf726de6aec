//! The durable engine of one process: a folder.
//!
//! | in the folder | what |
//! |---|---|
//! | `PERCOLITE` | the marker: format, and the identity of the log; locked while the store is open |
//! | `log/` | the segments of the log, and what accepted losses have left |
//! | `tables/` | RocksDB, without a log of its own |
//! | `STATUS` | what the process that has it open has published |
//!
//! Everything is written to the log and read from the window above it until a hand-down brings it into the tables: see
//! `lsm`. Creation makes the tables, then the log, then the marker, each durable before the next; without the marker
//! a folder is no store. `salvage` opens what is left of a damaged one.

pub(super) mod marker;
mod published;
pub(crate) mod salvage;
mod torn;

use std::path::{Path, PathBuf};

use self::marker::{LockedDir, commit_checkpoint_marker, commit_marker, lock_exclusive, lock_shared};
pub(crate) use self::published::read;
use super::local::LocalEngine;
use super::lsm::{LsmBatch, LsmOptions, LsmSnapshot, LsmStorage};
use super::rocks::names::remove_stale_options_files;
use super::rocks::{RocksOptions, RocksStorage};
use super::storage::{CellReader, Column, Storage};
use super::{DataLoss, EngineError, EngineStats, RowRange, ScanCursor, WriteStallStats};
use crate::bounds;
use crate::disk::OsDisk;
use crate::runtime::{Env as _, SystemEnv};
use crate::sync::Mutex;
use crate::wal;

const WAL_DIR: &str = "log";
const TABLES_DIR: &str = "tables";

/// The engine over a folder.
pub type FolderEngine = LocalEngine<FolderStorage>;

/// How a folder is to be opened: memory, in bytes, and how tables are compressed. Out of bounds, opening returns
/// [`EngineError::InvalidOption`].
#[derive(Clone, Copy, Debug)]
pub struct FolderOptions {
    /// For blocks of tables: within [`bounds::BLOCK_CACHE_BYTES`].
    pub block_cache_bytes: usize,
    /// For writes that are not in tables yet: within [`bounds::WRITE_BUFFER_BYTES`].
    pub write_buffer_bytes: usize,
    /// Of the tables that are written from now on. Those that exist stay as they are, and readable.
    pub compression: super::Compression,
    /// The fingerprint of a loss of acknowledged commits with which to open all the same.
    pub accept_data_loss: Option<u64>,
}

impl FolderOptions {
    /// Two thirds are for the window: a generation that is written and one on its way down, each of which may get twice full. The last
    /// third is for what RocksDB makes of the one.
    fn table_options(self) -> Result<RocksOptions, EngineError> {
        bounds::WRITE_BUFFER_BYTES.check(self.write_buffer_bytes as u128)?;
        let tables = RocksOptions {
            block_cache_bytes: self.block_cache_bytes,
            write_buffer_bytes: self.write_buffer_bytes / 3,
            compression: self.compression,
        };
        tables.check().map(|()| tables)
    }

    fn memtable_bytes(self) -> usize {
        self.write_buffer_bytes / 6
    }
}

/// A folder as a [`Storage`]: see the [module](self).
pub struct FolderStorage {
    lsm: LsmStorage<OsDisk, RocksStorage>,
    path: PathBuf,
    accepted_losses: Vec<DataLoss>,
}

impl FolderStorage {
    /// Opens the store in `path`, which is created if it is missing or empty.
    pub fn open(path: &Path, setup: FolderOptions) -> Result<Self, EngineError> {
        let tables_setup = setup.table_options()?;
        let LockedDir { marker, identity } = lock_exclusive(path)?;
        // Of a life that was killed. On what cannot be written to there are greater troubles.
        let _ = published::write(path, None);
        let is_new = identity.is_none();
        let identity = identity.unwrap_or_else(random);
        let (log, tables) = (path.join(WAL_DIR), path.join(TABLES_DIR));
        if is_new {
            for folder in [&log, &tables] {
                std::fs::create_dir(folder).map_err(|why| io_error("create", folder, &why))?;
            }
        } else {
            remove_stale_options_files(&tables);
            torn::truncate_torn_manifest(path, tables_setup, identity)?;
        }
        let tables = RocksStorage::open(&tables, tables_setup, is_new, marker)?;
        let setup = LsmOptions {
            wal_id: identity,
            is_new,
            random: Box::new(random),
            memtable_bytes: setup.memtable_bytes(),
            accept_data_loss: setup.accept_data_loss,
            background_flush: true,
        };
        let lsm = LsmStorage::open(OsDisk::new(&log), tables, setup)?;
        if let Some(marker) = lsm.tables().store_lock().filter(|_| is_new) {
            crash_point!(CreateBefore);
            commit_marker(path, marker, identity).map_err(|why| io_error("create a store in", path, &why))?;
        }
        crash_point!(CreateDone);
        Ok(Self { lsm, path: path.to_owned(), accepted_losses: read_accepted_losses(&log)? })
    }

    /// Opens the store in `path` to look at it: nothing in the folder is changed, and writing fails. What is only in the log is read
    /// into memory.
    pub fn open_read_only(path: &Path, setup: FolderOptions) -> Result<Self, EngineError> {
        let tables_setup = setup.table_options()?;
        let (marker, identity) = lock_shared(path)?;
        let tables = RocksStorage::open_read_only(&path.join(TABLES_DIR), tables_setup, Some(marker))?;
        let log = path.join(WAL_DIR);
        let lsm = LsmStorage::open_read_only(OsDisk::new(&log), tables, identity, random())?;
        Ok(Self { lsm, path: path.to_owned(), accepted_losses: read_accepted_losses(&log)? })
    }
}

fn random() -> u64 {
    SystemEnv::default().random()
}

fn io_error(what: &str, path: &Path, why: &std::io::Error) -> EngineError {
    EngineError::Io(format!("cannot {what} {}: {why}", path.display()))
}

/// The losses that were accepted, the oldest first.
fn read_accepted_losses(log: &Path) -> Result<Vec<DataLoss>, EngineError> {
    let accepted = wal::accepted_data_losses(&OsDisk::new(log));
    let mut losses = accepted.map_err(|why| EngineError::Io(format!("cannot read {}: {why}", log.display())))?;
    losses.sort_by_key(|lost| lost.first_missing);
    let file = |lost: &wal::DataLoss| log.join(format!("lost-{:016x}-{}", lost.fingerprint, lost.segment));
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

impl CellReader for FolderStorage {
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
        bookmark: &ScanCursor,
        column: Column,
        range: &RowRange,
        backwards: bool,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), EngineError> {
        self.lsm.resume_scan(bookmark, column, range, backwards, visit)
    }
}

impl Storage for FolderStorage {
    type Snapshot = LsmSnapshot<OsDisk, RocksStorage>;
    type Batch<'a> = LsmBatch;

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
        self.lsm.sync()
    }

    /// Tables never change, so they are linked; the copy gets a log of its own, empty, that goes on from their position. The marker comes
    /// last, so that a copy that was cut short is no store.
    fn checkpoint(&self, folder: &Path) -> Result<(), EngineError> {
        let failed = |why: String| EngineError::Io(format!("cannot make a checkpoint in {}: {why}", folder.display()));
        if folder.symlink_metadata().is_ok() {
            return Err(failed("it is there already, and a checkpoint needs a folder of its own".into()));
        }
        let (log, tables) = (folder.join(WAL_DIR), folder.join(TABLES_DIR));
        let above = folder.parent().filter(|above| !above.as_os_str().is_empty());
        let made = above.map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::create_dir(folder));
        made.map_err(|why| failed(why.to_string()))?;
        let copied = self.lsm.with_flushed_tables(|tables_of, position| {
            std::fs::create_dir(&log).map_err(|why| failed(why.to_string()))?;
            tables_of.checkpoint(&tables, failed)?;
            let identity = random();
            wal::create(OsDisk::new(&log), identity, position, random()).map_err(|why| failed(why.to_string()))?;
            crash_point!(CheckpointBeforeMarker);
            commit_checkpoint_marker(folder, identity).map_err(|why| failed(why.to_string()))?;
            crash_point!(CheckpointDone);
            Ok(())
        });
        // A part of a copy takes room, and is in the way of the next attempt.
        copied.inspect_err(|_| drop(std::fs::remove_dir_all(folder)))
    }

    fn stats(&self) -> Result<EngineStats, EngineError> {
        let log = std::fs::read_dir(self.path.join(WAL_DIR)).into_iter().flatten().flatten();
        let log_bytes = log.filter_map(|entry| entry.metadata().ok()).map(|found| found.len()).sum();
        Ok(EngineStats { wal_bytes: log_bytes, ..self.lsm.stats()? })
    }

    fn approximate_size(&self, column: Column, start: &[u8], end: &[u8]) -> Option<u64> {
        self.lsm.approximate_size(column, start, end)
    }

    fn write_stalls(&self) -> WriteStallStats {
        self.lsm.write_stalls()
    }

    fn is_fresh_checkpoint(&self) -> bool {
        marker::is_fresh_checkpoint(&self.path)
    }

    fn clear_checkpoint_flag(&self) -> Result<(), EngineError> {
        self.sync()?;
        marker::clear_checkpoint_flag(&self.path)
            .map_err(|why| io_error("make a store of its own of", &self.path, &why))
    }

    fn data_losses(&self) -> Vec<DataLoss> {
        self.accepted_losses.clone()
    }

    fn write_status_file(&self, document: Option<&[u8]>) -> Result<(), EngineError> {
        published::write(&self.path, document).map_err(|why| io_error("publish the status in", &self.path, &why))
    }
}
