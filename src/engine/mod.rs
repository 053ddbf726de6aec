//! The seam below the protocol: what percolite asks of the thing that keeps its rows.
//!
//! An engine promises two things and no more: *one row's columns can be checked and changed atomically*, and *a
//! consistent view of the past few moments can be read*. It may promise more and says so in its [`Capabilities`], which are
//! checked, never assumed: a group of rows larger than the engine can change at once is refused, not split.
//!
//! Guards are a closed set ([`Guard`](crate::row::Precondition)), so an engine can check them where the rows are, in one round
//! trip. A refused row answers with what was found there. Any other failure is [`EngineError::Undetermined`]: the change may
//! have been made or not, and only looking can tell.
//!
//! Below this seam sit the engines: [`local`] turns row changes into bytes for any ordered store in this process, of
//! which [`folder`] is the durable one and [`sim`] the one in memory whose crashes can be chosen. [`unreliable`] makes any
//! engine delay, repeat and lose.

mod cells;
mod figures;
#[cfg(feature = "rocks")]
pub mod folder;
mod group;
pub mod local;
mod lost;
#[cfg_attr(not(feature = "rocks"), allow(dead_code, unused_imports, reason = "the folder's engine is what needs it"))]
pub(crate) mod lsm;
#[cfg(feature = "crashtest")]
pub mod machine;
#[cfg(feature = "rocks")]
mod rocks;
pub mod sim;
mod stalls;
pub mod storage;
pub mod unreliable;

use std::any::Any;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

pub use self::cells::PageBuffer;
pub(crate) use self::cells::{decode_lock, decode_row_key, decode_write};
pub use self::figures::{ColumnStats, EngineStats, WriteStallStats};
pub use self::group::{OnePhaseWrites, RowBatch};
pub use self::lost::DataLoss;
use self::storage::Column;
use crate::bounds::OptionOutOfRange;
use crate::row::{KeyspaceId, Lock, Row, RowKey, TxnRecord, WriteRecord};
use crate::timestamp::Timestamp;

/// An entry of the collector's [work list](Engine::gc_candidates): when something of a row was superseded, and the row.
pub type GcEntry = (Timestamp, RowKey);

/// Keeps rows.
pub trait Engine: Send + Sync {
    /// What the engine can do beyond the minimum.
    fn capabilities(&self) -> Capabilities;

    /// A consistent view of everything applied before this call.
    fn snapshot(&self) -> Result<Arc<dyn EngineSnapshot>, EngineError>;

    /// One row as it is now, with the status of the transaction that began at `start_ts`.
    fn read_row(&self, row: &RowKey, start_ts: Timestamp) -> Result<Row, EngineError>;

    /// Applies each group in turn, as a whole or not at all, and answers for each.
    ///
    /// An error leaves open which of the groups were applied.
    fn apply(&self, groups: &[RowBatch]) -> Result<Vec<ApplyResult>, EngineError>;

    /// Returns once everything applied before this call would survive a power cut.
    fn sync(&self) -> Result<(), EngineError>;

    /// Reads an entry of the store's own bookkeeping.
    fn get_meta(&self, name: &str) -> Result<Option<Vec<u8>>, EngineError>;

    /// Entries of the store's own bookkeeping whose names begin with `prefix`, in order of their names.
    fn scan_meta(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, EngineError>;

    /// Changes entries of the store's own bookkeeping, all or none; in order with [`Engine::apply`].
    fn write_meta(&self, entries: &[(String, Option<Vec<u8>>)]) -> Result<(), EngineError>;

    /// Transactions that began before this are over; their records may be gone.
    fn safe_point(&self) -> Result<Timestamp, EngineError>;

    /// Moves the safe point; it never goes back.
    fn advance_safe_point(&self, to: Timestamp) -> Result<(), EngineError>;

    /// The collector's work list: rows that were deleted at or below a timestamp, or written over with the replaced version
    /// kept ([`version`](crate::row::RowChange::archived_version)), until they are [`collected`](crate::row::RowChange::gc_done). Oldest first;
    /// with `after`, only what comes after that entry, which need not be there any more.
    fn gc_candidates(
        &self,
        after: Option<&GcEntry>,
        upto: Timestamp,
        limit: usize,
    ) -> Result<Vec<GcEntry>, EngineError>;

    /// Statuses of transactions that began before a timestamp, by row.
    fn txn_records(&self, before: Timestamp, limit: usize) -> Result<Vec<(RowKey, Timestamp)>, EngineError>;

    /// Removes every cell of a keyspace. In order with [`Engine::apply`], atomic for none of it.
    fn delete_keyspace(&self, keyspace: KeyspaceId) -> Result<(), EngineError>;

    /// Makes a copy, in a new folder, of everything applied before this call and perhaps of what is applied meanwhile: never of
    /// one thing without all that was applied before it.
    fn checkpoint(&self, _folder: &Path) -> Result<(), EngineError> {
        Err(EngineError::Unsupported("make checkpoints"))
    }

    /// How it stands.
    fn stats(&self) -> Result<EngineStats, EngineError> {
        Err(EngineError::Unsupported("tell figures"))
    }

    /// About how many bytes a column takes on the disk between two keys, in steps of whole blocks, without what is not in tables yet;
    /// `None` where nothing is on a disk.
    fn approximate_size(&self, _column: Column, _start: &[u8], _end: &[u8]) -> Option<u64> {
        None
    }

    /// How its writes had to wait since it was opened. Asked for often, so it must cost next to nothing.
    fn write_stalls(&self) -> WriteStallStats {
        WriteStallStats::default()
    }

    /// Whether it is a copy made by [`Engine::checkpoint`] of which nothing was changed yet: what its original holds by leases it does
    /// not hold.
    fn is_fresh_checkpoint(&self) -> bool {
        false
    }

    /// Makes a copy a store of its own. What was the original's is gone from it, durably.
    fn clear_checkpoint_flag(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// The losses of its log that were accepted, in this life or an earlier one.
    fn data_losses(&self) -> Vec<DataLoss> {
        Vec::new()
    }

    /// Puts a document beside the rows, in the place of the last one, for whoever looks at them from outside; `None` takes it away. No
    /// crash has to leave it. Does nothing where nobody can look.
    fn write_status_file(&self, _document: Option<&[u8]>) -> Result<(), EngineError> {
        Ok(())
    }
}

/// How tables are compressed on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// Not at all: for values that are compressed or encrypted already.
    None,
    /// By LZ4, which mostly costs less time than it saves.
    #[default]
    Lz4,
}

/// What an engine can do beyond changing one row atomically.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The most rows that one atomic group may have.
    pub batch_rows_max: usize,
    /// The most bytes of keys and values that one atomic group may have.
    pub batch_bytes_max: usize,
    /// Whether only this process can change the engine's rows while it is open.
    pub exclusive: bool,
}

/// What became of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApplyResult {
    /// Every change is made.
    Applied,
    /// None is: a guard of the change at `index` did not hold for the row as it was found.
    PreconditionFailed {
        /// Which change.
        index: usize,
        /// What was found there.
        row: Box<Row>,
    },
}

/// Why an engine gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The request may or may not have taken effect.
    #[error("the engine failed, and what it was asked for may or may not have happened: {0}")]
    Undetermined(String),
    /// The request asked for more than the engine's capabilities and was not begun.
    #[error("{what} of {asked} exceeds the engine's limit of {limit}")]
    Limit {
        /// What was too much.
        what: &'static str,
        /// How much was asked for.
        asked: usize,
        /// How much there may be.
        limit: usize,
    },
    /// What is stored is not what was written.
    #[error("{0}")]
    Corruption(String),
    /// The place is no store, or one of another format; nothing was changed.
    #[error("{0}")]
    NotAStore(String),
    /// The engine is in use by another process or handle.
    #[error("{0}")]
    AlreadyOpen(String),
    /// The engine is not made for this.
    #[error("this engine cannot {0}")]
    Unsupported(&'static str),
    /// Opening failed; nothing is known to be wrong with what is stored.
    #[error("{0}")]
    Io(String),
    /// The engine was to be set up with an option out of its bounds; nothing was changed.
    #[error(transparent)]
    InvalidOption(#[from] OptionOutOfRange),
}

/// A consistent view of all columns.
pub trait EngineSnapshot: Send + Sync {
    /// Shows `see` what the row has in the lock or write column, as it is stored, if it has anything there; perhaps more than
    /// once, of which the last counts, and not if the answer is an error.
    fn get_cell(&self, column: Column, row: &RowKey, see: OnCell<'_>) -> Result<(), EngineError>;
    /// The same for several rows, with the number of the row.
    fn multi_get_cell(&self, column: Column, rows: &[&RowKey], see: OnEachCell<'_>) -> Result<(), EngineError> {
        let mut rows = rows.iter().enumerate();
        rows.try_for_each(|(number, row)| self.get_cell(column, row, &mut |content| see(number, content)))
    }
    /// How a transaction ended at a row.
    fn txn_record(&self, row: &RowKey, start_ts: Timestamp) -> Result<Option<TxnRecord>, EngineError>;
    /// The data column.
    fn data(&self, row: &RowKey, start_ts: Timestamp) -> Result<Option<Vec<u8>>, EngineError>;
    /// The newest replaced version committed at or below a timestamp, where history is kept.
    fn version_at(&self, row: &RowKey, upto: Timestamp) -> Result<Option<WriteRecord>, EngineError>;
    /// The lock or write column's cells of a range of rows, from its start or, backwards, from its end, in the place of what
    /// `cells` held. Answers whether the range may have more: a page has at most [`PageRequest::limit`] cells, and an engine may end it
    /// earlier, as it sees fit, but not before its first cell. Only the answer tells a last page from one that was ended. Scans
    /// decode what they hand out, into the memory that they hand out.
    fn scan_page(&self, column: Column, page: &PageRequest<'_>, cells: &mut PageBuffer) -> Result<bool, EngineError>;

    /// Hands the cells of the lock or write column to `visit`, from the start of a range on and as they are stored, until it returns
    /// `false`. Unlike [`OnCell`], `visit` may read and write the engine meanwhile. Returns `false`, and has shown nothing, where that is
    /// not possible.
    fn scan_unlocked(
        &self,
        _column: Column,
        _range: &RowRange,
        _bookmark: &ScanCursor,
        _visit: ScanVisitor<'_>,
    ) -> Result<bool, EngineError> {
        Ok(false)
    }

    /// Hands the cells of a column to `visit`, in order and as they are stored, until it answers `false`. For whoever looks for
    /// damage: nothing is decoded.
    fn scan_raw(&self, _column: Column, _range: &RowRange, _visit: ScanVisitor<'_>) -> Result<(), EngineError> {
        Err(EngineError::Unsupported("show its cells"))
    }

    /// The lock column.
    fn lock(&self, row: &RowKey) -> Result<Option<Lock>, EngineError> {
        let mut found = Ok(None);
        self.get_cell(Column::Lock, row, &mut |content| found = decode_lock(row.as_bytes(), content).map(Some))?;
        found
    }

    /// The write column: the newest version.
    fn write(&self, row: &RowKey) -> Result<Option<WriteRecord>, EngineError> {
        let mut found = Ok(None);
        self.get_cell(Column::Write, row, &mut |content| found = decode_write(row.as_bytes(), content).map(Some))?;
        found
    }

    /// A page of the lock column, decoded. It is empty only where the range is: a short one need not be the last.
    fn scan_locks(&self, page: &PageRequest<'_>) -> Result<Vec<(RowKey, Lock)>, EngineError> {
        let mut cells = PageBuffer::default();
        self.scan_page(Column::Lock, page, &mut cells)?;
        cells.iter().map(|(row, lock)| Ok((decode_row_key(row)?, decode_lock(row, lock)?))).collect()
    }

    /// A page of the write column, decoded; the same is true of it.
    fn scan_writes(&self, page: &PageRequest<'_>) -> Result<Vec<(RowKey, WriteRecord)>, EngineError> {
        let mut cells = PageBuffer::default();
        self.scan_page(Column::Write, page, &mut cells)?;
        cells.iter().map(|(row, record)| Ok((decode_row_key(row)?, decode_write(row, record)?))).collect()
    }

    /// Whether any row has a lock. One that cannot be read is one, too, for whoever meets it to be told.
    fn any_lock(&self) -> Result<bool, EngineError> {
        match self.scan_locks(&PageRequest { range: &RowRange::all(), backwards: false, limit: 1, cursor: None }) {
            Err(EngineError::Corruption(_)) => Ok(true),
            found => Ok(!found?.is_empty()),
        }
    }

    /// A row's columns, with the status of the transaction that began at `start_ts`. The safe point belongs to the engine,
    /// not to a view, and is left at zero.
    fn row(&self, row: &RowKey, start_ts: Timestamp) -> Result<Row, EngineError> {
        Ok(Row {
            lock: self.lock(row)?,
            write: self.write(row)?,
            txn_record: self.txn_record(row, start_ts)?,
            safe_point: Timestamp::ZERO,
        })
    }
}

/// Sees what a cell holds. It must not ask the view for more, which may be locked meanwhile.
pub type OnCell<'a> = &'a mut dyn FnMut(&[u8]);

/// Sees what the cell of the row with this number holds; nor must it ask for more.
pub type OnEachCell<'a> = &'a mut dyn FnMut(usize, &[u8]);

/// Sees a cell's key and value, and says whether to go on.
pub type ScanVisitor<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> bool;

/// The engines of this crate end a page with the cell with which its keys and contents reach this.
pub const PAGE_BYTES_MAX: usize = 1 << 20;

/// A request for the next rows of a range.
#[derive(Clone, Copy, Debug)]
pub struct PageRequest<'a> {
    /// The range.
    pub range: &'a RowRange,
    /// Whether to begin at the range's end and go down.
    pub backwards: bool,
    /// The most rows to answer with.
    pub limit: usize,
    /// Where the page before ended, if this one is to go on there.
    pub cursor: Option<&'a ScanCursor>,
}

/// What an engine remembers from one page of a scan to the next, so that it need not look for the place again. It is for the
/// engine alone to look into, belongs to one column and one view, and may be left out at any time. Whoever keeps it keeps
/// what the engine has open for it.
#[derive(Debug, Default)]
pub struct ScanCursor(Mutex<Option<Box<dyn Any + Send>>>);

impl ScanCursor {
    /// Takes out what was put in.
    pub fn take<T: Any>(&self) -> Option<Box<T>> {
        self.0.lock().take()?.downcast().ok()
    }

    /// Puts in where to go on.
    pub fn put(&self, place: Box<dyn Any + Send>) {
        *self.0.lock() = Some(place);
    }
}

/// A range of rows by their bytes ([`RowKey::as_bytes`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowRange {
    /// Where it begins.
    pub start: Bound<Vec<u8>>,
    /// Where it ends.
    pub end: Bound<Vec<u8>>,
}

impl RowRange {
    /// Every row of every keyspace.
    pub fn all() -> Self {
        Self { start: Bound::Unbounded, end: Bound::Unbounded }
    }
}
