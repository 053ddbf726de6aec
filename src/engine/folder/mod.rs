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
//! `layered`. Creation makes the tables, then the log, then the marker, each durable before the next; without the marker
//! a folder is no store. `salvage` opens what is left of a damaged one.

pub(super) mod marker;
mod published;
pub(crate) mod salvage;
mod torn;

use std::path::{Path, PathBuf};

use self::marker::{Claim, claim, examine, finish, mark_copy};
pub(crate) use self::published::published;
use super::layered::{Layered, LayeredBatch, LayeredView, Setup};
use super::local::LocalEngine;
use super::rocks::names::remove_unfinished_options;
use super::rocks::{RocksSetup, RocksStorage};
use super::storage::{Column, Reader, Storage};
use super::{Bookmark, EngineError, EngineFigures, LostLog, RowRange, WriteStalls};
use crate::bounds;
use crate::disk::FolderDisk;
use crate::runtime::{Runtime as _, System};
use crate::sync::Mutex;
use crate::wal;

const LOG: &str = "log";
const TABLES: &str = "tables";

/// The engine over a folder.
pub type FolderEngine = LocalEngine<FolderStorage>;

/// How a folder is to be opened: memory, in bytes, and how tables are compressed. Out of bounds, opening returns
/// [`EngineError::OutOfBounds`].
#[derive(Clone, Copy, Debug)]
pub struct FolderSetup {
    /// For blocks of tables: within [`bounds::CACHE_BYTES`].
    pub cache: usize,
    /// For writes that are not in tables yet: within [`bounds::WRITE_BUFFER_BYTES`].
    pub write_buffers: usize,
    /// Of the tables that are written from now on. Those that exist stay as they are, and readable.
    pub compression: super::Compression,
    /// The fingerprint of a loss of acknowledged commits with which to open all the same.
    pub accept_lost_commits: Option<u64>,
}

impl FolderSetup {
    /// Two thirds are for the window: a generation that is written and one on its way down, each of which may get twice full. The last
    /// third is for what RocksDB makes of the one.
    fn tables(self) -> Result<RocksSetup, EngineError> {
        bounds::WRITE_BUFFER_BYTES.check(self.write_buffers as u128)?;
        let tables =
            RocksSetup { cache: self.cache, write_buffers: self.write_buffers / 3, compression: self.compression };
        tables.check().map(|()| tables)
    }

    fn memory_limit(self) -> usize {
        self.write_buffers / 6
    }
}

/// A folder as a [`Storage`]: see the [module](self).
pub struct FolderStorage {
    layers: Layered<FolderDisk, RocksStorage>,
    path: PathBuf,
    lost: Vec<LostLog>,
}

impl FolderStorage {
    /// Opens the store in `path`, which is created if it is missing or empty.
    pub fn open(path: &Path, setup: FolderSetup) -> Result<Self, EngineError> {
        let tables_setup = setup.tables()?;
        let Claim { marker, identity } = claim(path)?;
        // Of a life that was killed. On what cannot be written to there are greater troubles.
        let _ = published::publish(path, None);
        let is_new = identity.is_none();
        let identity = identity.unwrap_or_else(random);
        let (log, tables) = (path.join(LOG), path.join(TABLES));
        if is_new {
            for folder in [&log, &tables] {
                std::fs::create_dir(folder).map_err(|why| cannot("create", folder, &why))?;
            }
        } else {
            remove_unfinished_options(&tables);
            torn::mend(path, tables_setup, identity)?;
        }
        let tables = RocksStorage::open(&tables, tables_setup, is_new, marker)?;
        let setup = Setup {
            identity,
            is_new,
            random: Box::new(random),
            memory_limit: setup.memory_limit(),
            accepted_loss: setup.accept_lost_commits,
            has_worker: true,
        };
        let layers = Layered::open(FolderDisk::new(&log), tables, setup)?;
        if let Some(marker) = layers.tables().marker().filter(|_| is_new) {
            crash_point!(CreateBefore);
            finish(path, marker, identity).map_err(|why| cannot("create a store in", path, &why))?;
        }
        crash_point!(CreateDone);
        Ok(Self { layers, path: path.to_owned(), lost: lost_logs(&log)? })
    }

    /// Opens the store in `path` to look at it: nothing in the folder is changed, and writing fails. What is only in the log is read
    /// into memory.
    pub fn open_read_only(path: &Path, setup: FolderSetup) -> Result<Self, EngineError> {
        let tables_setup = setup.tables()?;
        let (marker, identity) = examine(path)?;
        let tables = RocksStorage::open_read_only(&path.join(TABLES), tables_setup, Some(marker))?;
        let log = path.join(LOG);
        let layers = Layered::open_read_only(FolderDisk::new(&log), tables, identity, random())?;
        Ok(Self { layers, path: path.to_owned(), lost: lost_logs(&log)? })
    }
}

fn random() -> u64 {
    System::default().random()
}

fn cannot(what: &str, path: &Path, why: &std::io::Error) -> EngineError {
    EngineError::Open(format!("cannot {what} {}: {why}", path.display()))
}

/// The losses that were accepted, the oldest first.
fn lost_logs(log: &Path) -> Result<Vec<LostLog>, EngineError> {
    let accepted = log::accepted(&FolderDisk::new(log));
    let mut losses = accepted.map_err(|why| EngineError::Open(format!("cannot read {}: {why}", log.display())))?;
    losses.sort_by_key(|lost| lost.first);
    let file = |lost: &log::Lost| log.join(format!("lost-{:016x}-{}", lost.fingerprint, lost.file));
    Ok(losses
        .iter()
        .map(|lost| LostLog { file: file(lost), offset: lost.offset, bytes: lost.bytes, fingerprint: lost.fingerprint })
        .collect())
}

impl Reader for FolderStorage {
    fn get<T>(&self, column: Column, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, EngineError> {
        self.layers.get(column, key, read)
    }

    fn scan(
        &self,
        column: Column,
        range: &RowRange,
        backwards: bool,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), EngineError> {
        self.layers.scan(column, range, backwards, visit)
    }

    fn scan_on(
        &self,
        bookmark: &Bookmark,
        column: Column,
        range: &RowRange,
        backwards: bool,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), EngineError> {
        self.layers.scan_on(bookmark, column, range, backwards, visit)
    }
}

impl Storage for FolderStorage {
    type View = LayeredView<FolderDisk, RocksStorage>;
    type Batch<'a> = LayeredBatch;

    fn writing(&self) -> &Mutex<()> {
        self.layers.writing()
    }

    fn view(&self) -> Result<Self::View, EngineError> {
        self.layers.view()
    }

    fn batch(&self, bytes: usize) -> LayeredBatch {
        self.layers.batch(bytes)
    }

    fn write(&self, batch: LayeredBatch) -> Result<(), EngineError> {
        self.layers.write(batch)
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.layers.sync()
    }

    /// Tables never change, so they are linked; the copy gets a log of its own, empty, that goes on from their position. The marker comes
    /// last, so that a copy that was cut short is no store.
    fn checkpoint(&self, folder: &Path) -> Result<(), EngineError> {
        let failed =
            |why: String| EngineError::Open(format!("cannot make a checkpoint in {}: {why}", folder.display()));
        if folder.symlink_metadata().is_ok() {
            return Err(failed("it is there already, and a checkpoint needs a folder of its own".into()));
        }
        let (log, tables) = (folder.join(LOG), folder.join(TABLES));
        let above = folder.parent().filter(|above| !above.as_os_str().is_empty());
        let made = above.map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::create_dir(folder));
        made.map_err(|why| failed(why.to_string()))?;
        let copied = self.layers.copy_tables(|tables_of, position| {
            std::fs::create_dir(&log).map_err(|why| failed(why.to_string()))?;
            tables_of.copy(&tables, failed)?;
            let identity = random();
            log::create(FolderDisk::new(&log), identity, position, random()).map_err(|why| failed(why.to_string()))?;
            crash_point!(CheckpointUnmarked);
            mark_copy(folder, identity).map_err(|why| failed(why.to_string()))?;
            crash_point!(CheckpointDone);
            Ok(())
        });
        // A part of a copy takes room, and is in the way of the next attempt.
        copied.inspect_err(|_| drop(std::fs::remove_dir_all(folder)))
    }

    fn figures(&self) -> Result<EngineFigures, EngineError> {
        let log = std::fs::read_dir(self.path.join(LOG)).into_iter().flatten().flatten();
        let log_bytes = log.filter_map(|entry| entry.metadata().ok()).map(|found| found.len()).sum();
        Ok(EngineFigures { log_bytes, ..self.layers.figures()? })
    }

    fn stored_between(&self, column: Column, start: &[u8], end: &[u8]) -> Option<u64> {
        self.layers.stored_between(column, start, end)
    }

    fn stalls(&self) -> WriteStalls {
        self.layers.stalls()
    }

    fn is_copy(&self) -> bool {
        marker::is_copy(&self.path)
    }

    fn adopt(&self) -> Result<(), EngineError> {
        self.sync()?;
        marker::adopt(&self.path).map_err(|why| cannot("make a store of its own of", &self.path, &why))
    }

    fn lost_logs(&self) -> Vec<LostLog> {
        self.lost.clone()
    }

    fn publish(&self, document: Option<&[u8]>) -> Result<(), EngineError> {
        published::publish(&self.path, document).map_err(|why| cannot("publish the status in", &self.path, &why))
    }
}
