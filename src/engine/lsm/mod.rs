//! The LSM storage: a write-ahead log, memtables with what the tables do not have yet, and the
//! tables.
//!
//! ```text
//!   write   one frame to the log → its payload into the active memtable → visible    (one writer)
//!   sync    the log's frames so far                                                  (any thread)
//!   flush   the immutable memtable, its segment synced → into the tables, flushed sequence last
//!           → table sync → its segment of the log is removed
//!   read    the memtables, the newest first, then the tables as of the last flush
//! ```
//!
//! The structure is RocksDB's, but the log and the memtables are percolite's own, above RocksDB's
//! tables. A FoundationDB storage server is built in the same way.
//!
//! *Visibility of cells is by sequence*: a batch has a sequence, each version of a cell has that of
//! its batch, and a snapshot is a sequence with the read state that serves it. Which version of a
//! row a transaction reads is decided above, by commit timestamp. Both are needed, since locks and
//! metadata have no timestamp.
//!
//! **A crash leaves a prefix of the batches.** The log is a prefix. The tables get whole memtables,
//! and only what is durable in the log. Their *flushed sequence* is a cell that is written in the
//! last batch of a flush, so an interrupted flush is repeated from the log. What a flush writes
//! depends on the log alone, so repeating it is harmless.
//!
//! **A memtable belongs to a segment of the log.** The memtable is switched where the log starts a
//! new segment. Once it is durable in the tables, its segment and its memory are dropped together.
//! There are two memtables at a time: the active one, and an immutable one that is being flushed. A
//! snapshot within a memtable mostly gets tables of its own when that is flushed: see [`flush`].
//!
//! Any error of a write, a sync or the tables is permanent: nothing succeeds until the storage is
//! opened again.
//!
//! Opened read-only, the storage has no write path. What the log has above the tables' flushed
//! sequence is an immutable memtable that stays in memory.

mod background;
mod batch;
mod stats;
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
use super::stall_tracker::StallTracker;
use super::storage::{CellReader, Column, Storage};
use super::{EngineError, EngineStats, RowRange, WriteStallStats};
use crate::disk::Disk;
use crate::memtable::{Memtable, MemtableWriter};
use crate::sync::Mutex;
use crate::wal::{self, WalHandle, WalWriter};

/// The cell of the tables with their flushed sequence: they have everything up to it.
const FLUSHED_SEQUENCE_KEY: &[u8] = b"\0position";

/// The cell of the tables with the flush target, the last sequence of the newest flush. Of what is
/// between the flushed sequence and this the tables may have a part.
const FLUSH_TARGET_KEY: &[u8] = b"\0begun";

/// Internal cells, which readers do not see. No other metadata key begins with a zero byte.
fn is_internal_key(column: Column, key: &[u8]) -> bool {
    column == Column::Meta && key.first() == Some(&0)
}

/// See the [module](self).
pub struct LsmStorage<D: Disk, T: Storage> {
    shared: Arc<Shared<D, T>>,
    /// `None` if opened read-only, or if a test or the simulator flushes.
    flush_thread: Option<FlushThread>,
}

struct Shared<D: Disk, T: Storage> {
    tables: T,
    /// `None` if opened read-only.
    write_path: Option<WritePath<D>>,
    state: Mutex<CurrentState<T::Snapshot>>,
    writing: Mutex<()>,
    failure: OnceLock<String>,
    /// The memtable of snapshots that a flush has given tables of their own.
    empty_memtable: Arc<Memtable>,
    stalls: StallTracker,
}

/// What writing needs.
struct WritePath<D: Disk> {
    wal: WalHandle<D>,
    writer: Mutex<WriterState<D>>,
    /// Serializes flushes.
    flush_lock: Mutex<()>,
    secrets: RapidSecrets,
    memtable_bytes: usize,
    /// Whether a sync has made frames durable for which no later frame is a durability proof.
    noop_needed: AtomicBool,
}

/// State under the writer's lock.
struct WriterState<D: Disk> {
    wal: WalWriter<D>,
    memtable: MemtableWriter,
    /// Scratch list of the sequences for which a batch keeps versions; reused for its capacity.
    open_sequences: Vec<u64>,
    next_salt: Box<dyn FnMut() -> u64 + Send>,
}

/// What a new snapshot is opened from.
struct CurrentState<V> {
    visible_sequence: u64,
    read_state: Arc<ReadState<V>>,
    /// Open snapshots, by sequence.
    snapshots: BTreeMap<u64, OpenSnapshots<V>>,
}

/// The open snapshots of one sequence.
struct OpenSnapshots<V> {
    count: usize,
    read_state: Arc<SharedReadState<V>>,
}

/// The read state of the snapshots of one sequence. A flush replaces it.
type SharedReadState<V> = RwLock<Arc<ReadState<V>>>;

/// The memtables and tables that a reader sees (RocksDB's `SuperVersion`, pebble's `readState`).
struct ReadState<V> {
    active: Arc<Memtable>,
    immutable: Option<ImmutableMemtable>,
    tables: Arc<V>,
    /// The tables have everything up to this sequence.
    flushed_sequence: u64,
}

/// A memtable that is not written to any more, and waits for its flush.
#[derive(Clone)]
struct ImmutableMemtable {
    memtable: Arc<Memtable>,
    /// The last sequence of its segment.
    last_sequence: u64,
}

impl<V> ReadState<V> {
    /// The newest first.
    fn memtables(&self) -> impl Iterator<Item = &Memtable> {
        std::iter::once(&*self.active).chain(self.immutable.as_ref().map(|immutable| &*immutable.memtable))
    }
}

impl<D: Disk, T: Storage> Shared<D, T> {
    fn ensure_ok(&self) -> Result<(), EngineError> {
        self.failure.get().map_or(Ok(()), |why| Err(EngineError::Undetermined(why.clone())))
    }

    /// Keeps the first failure, which is permanent.
    fn record_failure(&self, why: EngineError) -> EngineError {
        let _ = self.failure.set(why.to_string());
        why
    }

    fn write_path(&self) -> Result<&WritePath<D>, EngineError> {
        self.write_path.as_ref().ok_or(EngineError::Unsupported("write: it was opened read-only"))
    }

    /// Returns whether the memtable was switched.
    fn write(&self, mut batch: LsmBatch) -> Result<bool, EngineError> {
        if batch.is_empty() {
            return self.ensure_ok().map(|()| false);
        }
        let path = self.write_path()?;
        let mut writer = path.writer.lock();
        self.ensure_ok()?;
        let WriterState { wal, memtable, open_sequences, .. } = &mut *writer;
        let sequence = wal.append(&mut batch.frame).map_err(|why| match wal_error(why) {
            // Nothing was written.
            why @ EngineError::Limit { .. } => why,
            why => self.record_failure(why),
        })?;
        open_sequences.clear();
        {
            let current = self.state.lock();
            // The last one is the sequence at which snapshots open until this batch is visible.
            let older = |sequence: &u64| *sequence != current.visible_sequence;
            open_sequences.extend(current.snapshots.keys().copied().filter(older));
            open_sequences.push(current.visible_sequence);
        }
        // A copy of the exact size: one small payload for each commit stays in memory.
        memtable
            .add(batch.frame.payload().into(), sequence, open_sequences)
            .map_err(|_| self.record_failure(EngineError::Undetermined("a batch is malformed".into())))?;
        self.state.lock().visible_sequence = sequence;
        self.switch_memtable_if_full(path, &mut writer)
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.ensure_ok()?;
        let Some(path) = &self.write_path else { return Ok(()) };
        path.wal.sync().map(drop).map_err(|why| self.record_failure(wal_error(why)))
    }
}

impl<D: Disk, T: Storage> LsmStorage<D, T> {
    /// The tables below the memtables.
    pub fn tables(&self) -> &T {
        &self.shared.tables
    }

    fn wake_flusher(&self) {
        if let Some(thread) = &self.flush_thread {
            thread.wake();
        }
    }

    /// The log; `None` if opened read-only.
    #[cfg(feature = "crashtest")]
    pub(crate) fn wal(&self) -> Option<WalHandle<D>> {
        self.shared.write_path.as_ref().map(|path| path.wal.clone())
    }

    /// Runs one round of the background work where there is no thread; `written` is kept from one
    /// round to the next. Returns whether there may be more to do.
    #[cfg(any(test, feature = "crashtest"))]
    pub fn run_background_once(&self, written: &mut u64) -> bool {
        self.shared
            .write_path
            .as_ref()
            .is_some_and(|path| self.shared.run_once(path, written) != background::Poll::Park)
    }

    /// Flushes everything written before this call.
    #[cfg(test)]
    pub fn flush_all(&self) -> Result<(), EngineError> {
        self.shared.flush_all()
    }

    /// Flushes everything written before this call, then calls `copy` with the tables and their
    /// flushed sequence, which does not change meanwhile.
    pub fn with_flushed_tables(
        &self,
        copy: impl FnOnce(&T, u64) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let path = self.shared.write_path()?;
        self.shared.flush_all()?;
        let _no_flush = path.flush_lock.lock();
        // A flush in between may have failed and left a part of it in the tables.
        self.shared.ensure_ok()?;
        let flushed_sequence = self.shared.state.lock().read_state.flushed_sequence;
        copy(&self.shared.tables, flushed_sequence)
    }
}

impl<D: Disk, T: Storage> Drop for LsmStorage<D, T> {
    /// Writes a no-op frame as the durability proof of the last sync. A failure of that loses
    /// nothing.
    fn drop(&mut self) {
        drop(self.flush_thread.take());
        if let (None, Some(path)) = (self.shared.failure.get(), &self.shared.write_path)
            && path.wal.durable_sequence() == path.wal.written_sequence()
        {
            let _ = path.writer.lock().wal.append_noop().and_then(|_| path.wal.sync());
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
        if self.shared.write_path.as_ref().is_some_and(|path| !path.noop_needed.swap(true, Ordering::AcqRel)) {
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
        wal::WalError::DataLoss(loss) => EngineError::Corruption(format!(
            "{loss}; restore a backup, repair the store (Builder::repair), or open it without these commits \
             (Builder::accept_data_loss({:#018x}))",
            loss.fingerprint
        )),
        wal::WalError::PayloadTooLarge => {
            EngineError::Limit { what: "a batch's bytes", asked: usize::MAX, limit: wal::PAYLOAD_MAX_BYTES }
        }
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "the numbers here are small")]
mod tests;
