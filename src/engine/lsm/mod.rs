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
//! way down. A view within a generation mostly gets tables of its own when it goes down: see [`hand_down`].
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

use self::background::Worker;
pub use self::batch::LayeredBatch;
pub use self::open::Setup;
pub use self::snapshot::LayeredView;
use super::stalls::Stalls;
use super::storage::{Column, Reader, Storage};
use super::{EngineError, EngineFigures, RowRange, WriteStalls};
use crate::disk::Disk;
use crate::memtable::{Generation, Writer};
use crate::sync::Mutex;
use crate::wal::{self, Log, Syncer};

/// The cell of the tables with their position, the sequence up to which they have everything.
const POSITION: &[u8] = b"\0position";

/// The cell with the end of the last hand-down that was begun. Between the position and this the tables have a part.
const BEGUN: &[u8] = b"\0begun";

/// Cells of the layers' own, which readers do not see. No other bookkeeping has such a name.
fn is_own(column: Column, key: &[u8]) -> bool {
    column == Column::Meta && key.first() == Some(&0)
}

/// See the [module](self).
pub struct Layered<D: Disk, T: Storage> {
    shared: Arc<Shared<D, T>>,
    /// `None`: opened to be read only, or by a test that hands down.
    worker: Option<Worker>,
}

struct Shared<D: Disk, T: Storage> {
    tables: T,
    /// `None`: opened to be read only.
    life: Option<Life<D>>,
    current: Mutex<Current<T::View>>,
    writing: Mutex<()>,
    failure: OnceLock<String>,
    /// The window of a view that a hand-down has given tables of its own.
    nothing: Arc<Generation>,
    stalls: Stalls,
}

/// What writing needs.
struct Life<D: Disk> {
    syncer: Syncer<D>,
    leader: Mutex<Leader<D>>,
    /// Held by the one hand-down that runs.
    handing_down: Mutex<()>,
    secrets: RapidSecrets,
    memory_limit: usize,
    /// Whether a sync has made something durable that no frame witnesses yet.
    unmarked: AtomicBool,
}

/// What only the writer touches.
struct Leader<D: Disk> {
    log: Log<D>,
    window: Writer,
    /// The sequences at which versions of a batch are kept for views; kept for its capacity.
    views: Vec<u64>,
    salts: Box<dyn FnMut() -> u64 + Send>,
}

/// What a view begins with.
struct Current<V> {
    visible: u64,
    layers: Arc<Layers<V>>,
    /// The sequences at which there are views.
    moments: BTreeMap<u64, Moment<V>>,
}

/// A sequence at which there are views.
struct Moment<V> {
    views: usize,
    layers: Arc<Served<V>>,
}

/// The layers that serve the views of a moment. A hand-down replaces them.
type Served<V> = RwLock<Arc<Layers<V>>>;

/// The layers of a moment.
struct Layers<V> {
    active: Arc<Generation>,
    frozen: Option<Frozen>,
    tables: Arc<V>,
    /// Up to where the tables have everything.
    position: u64,
}

/// A generation that is not written any more, and on its way down.
#[derive(Clone)]
struct Frozen {
    generation: Arc<Generation>,
    /// The last sequence of its segment.
    end: u64,
}

impl<V> Layers<V> {
    /// The newest first.
    fn generations(&self) -> impl Iterator<Item = &Generation> {
        std::iter::once(&*self.active).chain(self.frozen.as_ref().map(|frozen| &*frozen.generation))
    }
}

impl<D: Disk, T: Storage> Shared<D, T> {
    fn check(&self) -> Result<(), EngineError> {
        self.failure.get().map_or(Ok(()), |why| Err(EngineError::Unknown(why.clone())))
    }

    /// Keeps the first failure, which ends this life.
    fn fail(&self, why: EngineError) -> EngineError {
        let _ = self.failure.set(why.to_string());
        why
    }

    fn life(&self) -> Result<&Life<D>, EngineError> {
        self.life.as_ref().ok_or(EngineError::Unsupported("write: it was opened to be read only"))
    }

    /// Returns whether a generation was frozen.
    fn write(&self, mut batch: LayeredBatch) -> Result<bool, EngineError> {
        if batch.is_empty() {
            return self.check().map(|()| false);
        }
        let life = self.life()?;
        let mut leader = life.leader.lock();
        self.check()?;
        let Leader { log, window, views, .. } = &mut *leader;
        let sequence = log.append(&mut batch.frame).map_err(|why| match failed(why) {
            // Nothing was written.
            why @ EngineError::Limit { .. } => why,
            why => self.fail(why),
        })?;
        views.clear();
        {
            let current = self.current.lock();
            // The last one is what views are opened at until this batch is visible.
            views.extend(current.moments.keys().copied().filter(|view| *view != current.visible));
            views.push(current.visible);
        }
        // A copy of the right size: as many small frames as there are commits stay in memory.
        window
            .add(batch.frame.payload().into(), sequence, views)
            .map_err(|_| self.fail(EngineError::Unknown("a batch is not made of records".into())))?;
        self.current.lock().visible = sequence;
        self.freeze_when_full(life, &mut leader)
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.check()?;
        let Some(life) = &self.life else { return Ok(()) };
        life.syncer.sync().map(drop).map_err(|why| self.fail(failed(why)))
    }
}

impl<D: Disk, T: Storage> Layered<D, T> {
    /// The tables below.
    pub fn tables(&self) -> &T {
        &self.shared.tables
    }

    /// The worker has something to do.
    fn wake(&self) {
        if let Some(worker) = &self.worker {
            worker.wake();
        }
    }

    /// The log; `None` if this was opened to be read only.
    #[cfg(feature = "crashtest")]
    pub(crate) fn log(&self) -> Option<Syncer<D>> {
        self.shared.life.as_ref().map(|life| life.syncer.clone())
    }

    /// A round of the worker's work, where there is none; `written` is kept from one to the next. Returns whether there may be more to
    /// do.
    #[cfg(any(test, feature = "crashtest"))]
    pub fn work(&self, written: &mut u64) -> bool {
        self.shared.life.as_ref().is_some_and(|life| self.shared.work(life, written) != background::Next::Wait)
    }

    /// Hands everything down that was written before this call.
    #[cfg(test)]
    pub fn hand_down_all(&self) -> Result<(), EngineError> {
        self.shared.hand_down_all()
    }

    /// Has `copy` copy the tables with everything that was written before this call. It gets their position, which stays meanwhile.
    pub fn copy_tables(&self, copy: impl FnOnce(&T, u64) -> Result<(), EngineError>) -> Result<(), EngineError> {
        let life = self.shared.life()?;
        self.shared.hand_down_all()?;
        let _none = life.handing_down.lock();
        // Another hand-down may have failed in between, and left a part in the tables.
        self.shared.check()?;
        let position = self.shared.current.lock().layers.position;
        copy(&self.shared.tables, position)
    }
}

impl<D: Disk, T: Storage> Drop for Layered<D, T> {
    /// The last sync gets its witness. Where that fails, nothing is lost that was not before.
    fn drop(&mut self) {
        drop(self.worker.take());
        if let (None, Some(life)) = (self.shared.failure.get(), &self.shared.life)
            && life.syncer.durable() == life.syncer.written()
        {
            let _ = life.leader.lock().log.mark().and_then(|_| life.syncer.sync());
        }
    }
}

impl<D: Disk, T: Storage> Reader for Layered<D, T> {
    fn get<R>(&self, column: Column, key: &[u8], read: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, EngineError> {
        self.view()?.get(column, key, read)
    }

    fn scan(
        &self,
        column: Column,
        range: &RowRange,
        backwards: bool,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), EngineError> {
        self.view()?.scan(column, range, backwards, visit)
    }
}

impl<D: Disk, T: Storage> Storage for Layered<D, T> {
    type View = LayeredView<D, T>;
    type Batch<'a> = LayeredBatch;

    fn writing(&self) -> &Mutex<()> {
        &self.shared.writing
    }

    fn view(&self) -> Result<Self::View, EngineError> {
        Ok(LayeredView::new(&self.shared))
    }

    fn batch(&self, bytes: usize) -> LayeredBatch {
        LayeredBatch::with_room_for(bytes)
    }

    fn write(&self, batch: LayeredBatch) -> Result<(), EngineError> {
        if self.shared.write(batch)? {
            self.wake();
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.shared.sync()?;
        if self.shared.life.as_ref().is_some_and(|life| !life.unmarked.swap(true, Ordering::AcqRel)) {
            self.wake();
        }
        Ok(())
    }

    fn figures(&self) -> Result<EngineFigures, EngineError> {
        self.shared.figures()
    }

    fn stalls(&self) -> WriteStalls {
        self.shared.stalls.read()
    }

    fn stored_between(&self, column: Column, start: &[u8], end: &[u8]) -> Option<u64> {
        self.shared.tables.stored_between(column, start, end)
    }
}

fn failed(why: wal::Error) -> EngineError {
    match why {
        wal::Error::Io(_) => EngineError::Open(why.to_string()),
        wal::Error::Failed(_) => EngineError::Unknown(why.to_string()),
        wal::Error::Foreign { .. } | wal::Error::Newer { .. } => EngineError::NotAStore(why.to_string()),
        wal::Error::Lost(lost) => EngineError::Corruption(format!(
            "{lost}; take a backup, or repair it (Builder::repair), or open it without these commits \
             (Builder::accept_lost_commits({:#018x}))",
            lost.fingerprint
        )),
        wal::Error::Full => {
            EngineError::Limit { what: "a batch's bytes", asked: usize::MAX, limit: wal::PAYLOAD_MAX_BYTES }
        }
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "the numbers here are small")]
mod tests;
