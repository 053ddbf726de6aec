//! A storage in layers: a log, a window over what it has that the tables have not yet, and the tables.
//!
//! ```text
//!   write      one frame to the log → its payload into the window → visible        (the writer, one at a time)
//!   sync       the log's frames so far                                              (any thread)
//!   hand down  a frozen generation, synced → into the tables, and the position → flush → its segment of the log goes
//!   read       the window's generations, the newest first, then the tables as of the last hand-down
//! ```
//!
//! It is a write-ahead log and memtables with versions above RocksDB's tables, the design of a storage server of FoundationDB. *What is
//! seen is decided by sequence*: a batch has a sequence, each version of a cell that of its batch, and a view is a sequence and the
//! layers that serve it. Which version of a row a transaction reads is decided above, by commit timestamp; both are needed, since
//! locks and bookkeeping have no timestamp.
//!
//! **A crash leaves a prefix of batches.** The log is one; the tables get whole generations of it, and only what is durable in it. Their
//! *position* is a cell that is written in the last batch of a hand-down, so one that is cut short is repeated from the log. What it
//! writes depends on the log alone, so repeating it is harmless.
//!
//! **A generation is a segment of the log.** The window is frozen where the log begins a new segment, and once the generation is in
//! the tables, durably, its segment and its memory go as a whole. Two generations are in memory, one that is written and one on its
//! way down. A view within a generation mostly gets tables of its own when it goes down: see [`flush`].
//!
//! Any error of a write, a sync or the tables ends this life of the storage: nothing succeeds until it is opened again.
//!
//! Opened to be read only, it has no life of its own: what the log has above the tables' position is a frozen generation that stays.

mod background;
mod batch;
mod figures;
mod flush;
mod merge;
mod open;
mod snapshot;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use rapidhash::v3::RapidSecrets;

use self::background::FlushThread;
pub use self::batch::LsmBatch;
pub use self::open::LsmOptions;
pub use self::snapshot::LsmSnapshot;
use super::stalls::StallTracker;
use super::storage::{CellReader, Column, Storage};
use super::{EngineError, EngineStats, RowRange, WriteStallStats};
use crate::disk::Disk;
use crate::memtable::{Memtable, MemtableWriter};
use crate::sync::Mutex;
use crate::wal::{self, WalHandle, WalWriter};

/// The cell of the tables with their position, the sequence up to which they have everything.
const FLUSHED_SEQUENCE_KEY: &[u8] = b"\0position";

/// The cell with the end of the last hand-down that was begun. Between the position and this the tables have a part.
const FLUSH_TARGET_KEY: &[u8] = b"\0begun";

/// Cells of the layers' own, which readers do not see. No other bookkeeping has such a name.
fn is_internal_key(column: Column, key: &[u8]) -> bool {
    column == Column::Meta && key.first() == Some(&0)
}

/// See the [module](self).
pub struct LsmStorage<D: Disk, T: Storage> {
    shared: Arc<Shared<D, T>>,
    /// `None`: opened to be read only, or by a test that hands down.
    flush_thread: Option<FlushThread>,
}

struct Shared<D: Disk, T: Storage> {
    tables: T,
    /// `None`: opened to be read only.
    write_path: Option<WritePath<D>>,
    state: Mutex<CurrentState<T::Snapshot>>,
    writing: Mutex<()>,
    failure: OnceLock<String>,
    /// The window of a view that a hand-down has given tables of its own.
    empty_memtable: Arc<Memtable>,
    stalls: StallTracker,
}

/// What writing needs.
struct WritePath<D: Disk> {
    wal: WalHandle<D>,
    writer: Mutex<WriterState<D>>,
    /// Held by the one hand-down that runs.
    flush_lock: Mutex<()>,
    secrets: RapidSecrets,
    memtable_bytes: usize,
    /// Whether a sync has made something durable that no frame witnesses yet.
    noop_needed: AtomicBool,
}

/// What only the writer touches.
struct WriterState<D: Disk> {
    wal: WalWriter<D>,
    memtable: MemtableWriter,
    /// The sequences at which versions of a batch are kept for views; kept for its capacity.
    open_sequences: Vec<u64>,
    next_salt: Box<dyn FnMut() -> u64 + Send>,
}

/// What a view begins with.
struct CurrentState<V> {
    visible_sequence: u64,
    read_state: Arc<ReadState<V>>,
    /// The sequences at which there are views.
    snapshots: BTreeMap<u64, OpenSnapshots<V>>,
}

/// A sequence at which there are views.
struct OpenSnapshots<V> {
    count: usize,
    read_state: Arc<SharedReadState<V>>,
}

/// The layers that serve the views of a moment. A hand-down replaces them.
type SharedReadState<V> = RwLock<Arc<ReadState<V>>>;

/// The layers of a moment.
struct ReadState<V> {
    active: Arc<Memtable>,
    immutable: Option<ImmutableMemtable>,
    tables: Arc<V>,
    /// Up to where the tables have everything.
    flushed_sequence: u64,
}

/// A generation that is not written any more, and on its way down.
#[derive(Clone)]
struct ImmutableMemtable {
    memtable: Arc<Memtable>,
    /// The last sequence of its segment.
    last_sequence: u64,
}

impl<V> ReadState<V> {
    /// The newest first.
    fn memtables(&self) -> impl Iterator<Item = &Memtable> {
        std::iter::once(&*self.active).chain(self.immutable.as_ref().map(|frozen| &*frozen.memtable))
    }
}

impl<D: Disk, T: Storage> Shared<D, T> {
    fn ensure_ok(&self) -> Result<(), EngineError> {
        self.failure.get().map_or(Ok(()), |why| Err(EngineError::Undetermined(why.clone())))
    }

    /// Keeps the first failure, which ends this life.
    fn record_failure(&self, why: EngineError) -> EngineError {
        let _ = self.failure.set(why.to_string());
        why
    }

    fn write_path(&self) -> Result<&WritePath<D>, EngineError> {
        self.write_path.as_ref().ok_or(EngineError::Unsupported("write: it was opened to be read only"))
    }

    /// Returns whether a generation was frozen.
    fn write(&self, mut batch: LsmBatch) -> Result<bool, EngineError> {
        if batch.is_empty() {
            return self.ensure_ok().map(|()| false);
        }
        let life = self.write_path()?;
        let mut leader = life.writer.lock();
        self.ensure_ok()?;
        let WriterState { wal: log, memtable: window, open_sequences: views, .. } = &mut *leader;
        let sequence = log.append(&mut batch.frame).map_err(|why| match wal_error(why) {
            // Nothing was written.
            why @ EngineError::Limit { .. } => why,
            why => self.record_failure(why),
        })?;
        views.clear();
        {
            let current = self.state.lock();
            // The last one is what views are opened at until this batch is visible.
            views.extend(current.snapshots.keys().copied().filter(|view| *view != current.visible_sequence));
            views.push(current.visible_sequence);
        }
        // A copy of the right size: as many small frames as there are commits stay in memory.
        window
            .add(batch.frame.payload().into(), sequence, views)
            .map_err(|_| self.record_failure(EngineError::Undetermined("a batch is not made of records".into())))?;
        self.state.lock().visible_sequence = sequence;
        self.switch_memtable_if_full(life, &mut leader)
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.ensure_ok()?;
        let Some(life) = &self.write_path else { return Ok(()) };
        life.wal.sync().map(drop).map_err(|why| self.record_failure(wal_error(why)))
    }
}

impl<D: Disk, T: Storage> LsmStorage<D, T> {
    /// The tables below.
    pub fn tables(&self) -> &T {
        &self.shared.tables
    }

    /// The worker has something to do.
    fn wake_flusher(&self) {
        if let Some(worker) = &self.flush_thread {
            worker.wake();
        }
    }

    /// The log; `None` if this was opened to be read only.
    #[cfg(feature = "crashtest")]
    pub(crate) fn wal(&self) -> Option<WalHandle<D>> {
        self.shared.write_path.as_ref().map(|life| life.wal.clone())
    }

    /// A round of the worker's work, where there is none; `written` is kept from one to the next. Returns whether there may be more to
    /// do.
    #[cfg(any(test, feature = "crashtest"))]
    pub fn run_background_once(&self, written: &mut u64) -> bool {
        self.shared
            .write_path
            .as_ref()
            .is_some_and(|life| self.shared.run_once(life, written) != background::Poll::Park)
    }

    /// Hands everything down that was written before this call.
    #[cfg(test)]
    pub fn flush_all(&self) -> Result<(), EngineError> {
        self.shared.flush_all()
    }

    /// Has `copy` copy the tables with everything that was written before this call. It gets their position, which stays meanwhile.
    pub fn with_flushed_tables(
        &self,
        copy: impl FnOnce(&T, u64) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let life = self.shared.write_path()?;
        self.shared.flush_all()?;
        let _none = life.flush_lock.lock();
        // Another hand-down may have failed in between, and left a part in the tables.
        self.shared.ensure_ok()?;
        let position = self.shared.state.lock().read_state.flushed_sequence;
        copy(&self.shared.tables, position)
    }
}

impl<D: Disk, T: Storage> Drop for LsmStorage<D, T> {
    /// The last sync gets its witness. Where that fails, nothing is lost that was not before.
    fn drop(&mut self) {
        drop(self.flush_thread.take());
        if let (None, Some(life)) = (self.shared.failure.get(), &self.shared.write_path)
            && life.wal.durable_sequence() == life.wal.written_sequence()
        {
            let _ = life.writer.lock().wal.append_noop().and_then(|_| life.wal.sync());
        }
    }
}

impl<D: Disk, T: Storage> CellReader for LsmStorage<D, T> {
    fn get<R>(&self, column: Column, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, EngineError> {
        self.snapshot()?.get(column, key, read)
    }

    fn scan(
        &self,
        column: Column,
        range: &RowRange,
        backwards: bool,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), EngineError> {
        self.snapshot()?.scan(column, range, backwards, visit)
    }
}

impl<D: Disk, T: Storage> Storage for LsmStorage<D, T> {
    type Snapshot = LsmSnapshot<D, T>;
    type Batch<'a> = LsmBatch;

    fn write_lock(&self) -> &Mutex<()> {
        &self.shared.writing
    }

    fn snapshot(&self) -> Result<Self::Snapshot, EngineError> {
        Ok(LsmSnapshot::new(&self.shared))
    }

    fn new_batch(&self, bytes: usize) -> LsmBatch {
        LsmBatch::with_capacity(bytes)
    }

    fn write(&self, batch: LsmBatch) -> Result<(), EngineError> {
        if self.shared.write(batch)? {
            self.wake_flusher();
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.shared.sync()?;
        if self.shared.write_path.as_ref().is_some_and(|life| !life.noop_needed.swap(true, Ordering::AcqRel)) {
            self.wake_flusher();
        }
        Ok(())
    }

    fn stats(&self) -> Result<EngineStats, EngineError> {
        self.shared.figures()
    }

    fn write_stalls(&self) -> WriteStallStats {
        self.shared.stalls.read()
    }

    fn approximate_size(&self, column: Column, start: &[u8], end: &[u8]) -> Option<u64> {
        self.shared.tables.approximate_size(column, start, end)
    }
}

fn wal_error(why: wal::WalError) -> EngineError {
    match why {
        wal::WalError::Io(_) => EngineError::Io(why.to_string()),
        wal::WalError::Failed(_) => EngineError::Undetermined(why.to_string()),
        wal::WalError::WrongStore { .. } | wal::WalError::UnsupportedFormat { .. } => {
            EngineError::NotAStore(why.to_string())
        }
        wal::WalError::DataLoss(lost) => EngineError::Corruption(format!(
            "{lost}; take a backup, or repair it (Builder::repair), or open it without these commits \
             (Builder::accept_lost_commits({:#018x}))",
            lost.fingerprint
        )),
        wal::WalError::PayloadTooLarge => {
            EngineError::Limit { what: "a batch's bytes", asked: usize::MAX, limit: wal::PAYLOAD_MAX_BYTES }
        }
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "the numbers here are small")]
mod tests;
