//! The engine interface: see the [module](super).

use std::path::Path;
use std::sync::Arc;

use super::data_loss::DataLoss;
use super::error::EngineError;
use super::page::{OnCell, OnEachCell, PageRequest, ScanCursor, ScanVisitor};
use super::page_buffer::{PageBuffer, decode_lock, decode_row_key, decode_write};
use super::row_batch::RowBatch;
use super::space_left::SpaceLeft;
use super::stats::{EngineStats, WriteStallStats};
use crate::cell::{Column, RowRange};
use crate::row::{KeyspaceId, Lock, RowKey, RowState, TxnRecord, WriteRecord};
use crate::timestamp::Timestamp;
use crate::value::Value;

/// The place of a transaction record: its row, and the start timestamp of its transaction.
pub type TxnRecordEntry = (RowKey, Timestamp);

/// A page of [`Engine::txn_records`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxnRecordPage {
    /// The records that were found.
    pub records: Vec<TxnRecordEntry>,
    /// The last entry that the engine has read for this page. The next page begins after this
    /// entry. `None`: this is the last page.
    pub next: Option<TxnRecordEntry>,
}

/// An entry of the [GC queue](Engine::gc_candidates): the commit timestamp at which the row was
/// deleted or its version was replaced, and the row.
pub type GcEntry = (Timestamp, RowKey);

/// A store of rows.
pub trait Engine: Send + Sync {
    /// What the engine promises beyond the minimum.
    fn capabilities(&self) -> Capabilities;

    /// Opens a consistent snapshot of everything applied before this call.
    fn snapshot(&self) -> Result<Arc<dyn EngineSnapshot>, EngineError>;

    /// Reads the current state of one row, including the row's record of the transaction that began
    /// at `start_ts`.
    fn read_row(&self, row: &RowKey, start_ts: Timestamp) -> Result<RowState, EngineError>;

    /// Applies the batches in order, each atomically, and returns a result for each.
    ///
    /// A crash leaves a prefix of all changes: batches, metadata and the safe point, in the order
    /// of their calls. So a change that relies on an earlier one is never there without it.
    ///
    /// # Errors
    /// After an error, any of the batches may or may not have been applied.
    fn apply(&self, batches: &[RowBatch]) -> Result<Vec<ApplyResult>, EngineError>;

    /// Blocks until everything applied before this call survives a power cut.
    fn sync(&self) -> Result<(), EngineError>;

    /// Reads an entry of the store's metadata.
    fn get_meta(&self, name: &str) -> Result<Option<Vec<u8>>, EngineError>;

    /// Returns the metadata entries whose names start with `prefix`, in the order of their names.
    fn scan_meta(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, EngineError>;

    /// Writes metadata entries atomically, ordered with calls of [`Engine::apply`]. `None` deletes
    /// an entry.
    fn write_meta(&self, entries: &[(String, Option<Vec<u8>>)]) -> Result<(), EngineError>;

    /// The safe point: transactions that began before this timestamp have ended, and their
    /// transaction records may have been deleted.
    fn safe_point(&self) -> Result<Timestamp, EngineError>;

    /// Advances the safe point. A timestamp at or below the current one has no effect.
    fn advance_safe_point(&self, to: Timestamp) -> Result<(), EngineError>;

    /// Returns at most `limit` entries of the GC queue, up to the commit timestamp `upto`, oldest
    /// first. With `after`, only entries after this one are returned; `after` itself need not
    /// exist.
    ///
    /// A row is queued when it is deleted, or when its version is replaced and
    /// [kept](crate::row::RowChange::archived_version) as history. A change removes those entries
    /// of its row whose timestamps are in [`gc_done`](crate::row::RowChange::gc_done).
    fn gc_candidates(
        &self,
        after: Option<&GcEntry>,
        upto: Timestamp,
        limit: usize,
    ) -> Result<Vec<GcEntry>, EngineError>;

    /// Returns a page of the records of transactions that began before the timestamp `before`, in
    /// row order. The page begins after the entry `after`, or without `after` at the first entry.
    /// The engine reads at least one entry, and at most `limit`. The limit includes entries that
    /// are read but not returned: records of later transactions, and replaced versions if these are
    /// stored beside the records.
    fn txn_records(
        &self,
        before: Timestamp,
        after: Option<&TxnRecordEntry>,
        limit: usize,
    ) -> Result<TxnRecordPage, EngineError>;

    /// Deletes all cells of a keyspace. The deletion is ordered with calls of [`Engine::apply`],
    /// but need not be atomic.
    fn delete_keyspace(&self, keyspace: KeyspaceId) -> Result<(), EngineError>;

    /// Gives the space of a keyspace that was [deleted](Engine::delete_keyspace) back to the disk.
    /// To be called when no snapshot from before the deletion is open any more, or most of the
    /// space stays in use.
    fn reclaim_keyspace(&self, _keyspace: KeyspaceId) -> Result<(), EngineError> {
        Ok(())
    }

    /// Makes a copy in a new directory.
    ///
    /// The copy is a prefix of the applied changes. It contains everything applied before this
    /// call, and possibly some of what is applied during it.
    fn checkpoint(&self, _directory: &Path) -> Result<(), EngineError> {
        Err(EngineError::Unsupported("make checkpoints"))
    }

    /// What the disk has space for. A call must be cheap.
    fn space_left(&self) -> SpaceLeft {
        SpaceLeft::Enough
    }

    /// Whether the disk has space for batches of this size in all, by [`RowBatch::size_bytes`],
    /// which are possible while the disk has the space `needed`. Cheap if there is
    /// [enough](SpaceLeft::Enough); otherwise waits for [`Engine::reclaim_space`], or calls it.
    fn has_space(&self, _bytes: usize, _needed: SpaceLeft) -> bool {
        true
    }

    /// If there is not [enough](SpaceLeft::Enough) space: gives the space of what was deleted back
    /// to the disk, as far as there is room for that. To be called from time to time.
    fn reclaim_space(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Samples the engine's statistics.
    fn stats(&self) -> Result<EngineStats, EngineError> {
        Err(EngineError::Unsupported("report statistics"))
    }

    /// The approximate size of a column's tables between two keys, in bytes, counted in whole
    /// blocks. Data that is not in tables yet does not count. `None` if the engine has no tables.
    fn approximate_size(&self, _column: Column, _start: &[u8], _end: &[u8]) -> Option<u64> {
        None
    }

    /// The write stalls since the engine was opened. The metrics call this often, so it must be
    /// cheap.
    fn write_stalls(&self) -> WriteStallStats {
        WriteStallStats::default()
    }

    /// Whether this store has the checkpoint flag. A copy that [`Engine::checkpoint`] makes has the
    /// flag until [`Engine::clear_checkpoint_flag`] removes it. Until then the leases of named
    /// locks in the copy belong to the original store, and do not apply to the copy.
    fn is_fresh_checkpoint(&self) -> bool {
        false
    }

    /// Clears the checkpoint flag, so that the copy is a store of its own. Everything applied
    /// before this call becomes durable first, the deletion of the original's leases included: a
    /// store without the flag must not have these leases, even after a power cut.
    fn clear_checkpoint_flag(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// The accepted data losses of the write-ahead log, from this and earlier incarnations.
    fn data_losses(&self) -> Vec<DataLoss> {
        Vec::new()
    }

    /// Replaces the status file, which other processes can read; `None` removes it. The file need
    /// not survive a crash. Engines in memory do nothing.
    fn write_status_file(&self, _document: Option<&[u8]>) -> Result<(), EngineError> {
        Ok(())
    }
}

/// What an engine promises beyond atomic changes of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The maximum number of rows in one atomic batch.
    pub batch_rows_max: usize,
    /// The maximum size of one atomic batch, in bytes, by [`RowBatch::size_bytes`].
    pub batch_bytes_max: usize,
    /// Whether only this process can change the rows while the engine is open.
    pub exclusive: bool,
}

/// The result of applying one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApplyResult {
    /// All changes are applied.
    Applied,
    /// No change of the batch is applied: the row of the change at `index` did not meet a
    /// precondition.
    PreconditionFailed {
        /// The index of the change in the batch.
        index: usize,
        /// The row, as it was found.
        row: Box<RowState>,
    },
}

/// A consistent snapshot of all columns.
pub trait EngineSnapshot: Send + Sync {
    /// Calls `on_cell` with the undecoded value of the row's cell in the lock or write column, if
    /// the row has such a cell.
    ///
    /// If `on_cell` is called several times, only the last call counts. If this function returns an
    /// error, no call counts.
    fn get_cell(&self, column: Column, row: &RowKey, on_cell: OnCell<'_>) -> Result<(), EngineError>;
    /// [`get_cell`](Self::get_cell) for several rows; `on_cell` also gets the index of the row.
    fn multi_get_cell(&self, column: Column, rows: &[&RowKey], on_cell: OnEachCell<'_>) -> Result<(), EngineError> {
        let mut rows = rows.iter().enumerate();
        rows.try_for_each(|(index, row)| self.get_cell(column, row, &mut |value| on_cell(index, value)))
    }
    /// Reads a transaction record of a row.
    fn txn_record(&self, row: &RowKey, start_ts: Timestamp) -> Result<Option<TxnRecord>, EngineError>;
    /// Reads the value that the transaction which began at `start_ts` has stored in the data
    /// column.
    fn data(&self, row: &RowKey, start_ts: Timestamp) -> Result<Option<Value>, EngineError>;
    /// Reads the newest replaced version that was committed at or below a timestamp, if history is
    /// kept.
    fn version_at(&self, row: &RowKey, upto: Timestamp) -> Result<Option<WriteRecord>, EngineError>;
    /// Reads one page of the lock or write column into `cells`, whose former cells are removed. The
    /// page begins at the start of the range or, backwards, at its end.
    ///
    /// Returns whether the range may have more cells. A page has at most [`PageRequest::limit`]
    /// cells; an engine may end it earlier, but not before its first cell. So a short page need not
    /// be the last one: only the returned flag shows whether the range has ended. Cells are not
    /// decoded here: a scan decodes them straight into the memory that it returns.
    fn scan_page(&self, column: Column, page: &PageRequest<'_>, cells: &mut PageBuffer) -> Result<bool, EngineError>;

    /// Calls `visit` with the undecoded cells of the lock or write column, from the start of a
    /// range on, until `visit` returns `false`.
    ///
    /// No lock is held while `visit` runs: unlike an [`OnCell`], `visit` may read and write the
    /// engine. After the scan the call returns `true`. An engine that does not support this, for
    /// example because its scans hold a lock, visits nothing and returns `false`. The cursor keeps
    /// the place for the next call, as [`PageRequest::cursor`] does.
    fn scan_unlocked(
        &self,
        _column: Column,
        _range: &RowRange,
        _cursor: &ScanCursor,
        _visit: ScanVisitor<'_>,
    ) -> Result<bool, EngineError> {
        Ok(false)
    }

    /// Calls `visit` with the undecoded cells of any column, in order, until `visit` returns
    /// `false`. For verification.
    fn scan_raw(&self, _column: Column, _range: &RowRange, _visit: ScanVisitor<'_>) -> Result<(), EngineError> {
        Err(EngineError::Unsupported("scan raw cells"))
    }

    /// Reads the row's lock.
    fn lock(&self, row: &RowKey) -> Result<Option<Lock>, EngineError> {
        let mut found = Ok(None);
        self.get_cell(Column::Lock, row, &mut |value| found = decode_lock(row.as_bytes(), value).map(Some))?;
        found
    }

    /// Reads the row's newest version.
    fn write(&self, row: &RowKey) -> Result<Option<WriteRecord>, EngineError> {
        let mut found = Ok(None);
        self.get_cell(Column::Write, row, &mut |value| found = decode_write(row.as_bytes(), value).map(Some))?;
        found
    }

    /// Reads and decodes a page of the lock column. A short page need not be the last one, but an
    /// empty one shows that the range has no more locks, if the limit is not 0.
    fn scan_locks(&self, page: &PageRequest<'_>) -> Result<Vec<(RowKey, Lock)>, EngineError> {
        let mut cells = PageBuffer::default();
        self.scan_page(Column::Lock, page, &mut cells)?;
        cells.iter().map(|(row, lock)| Ok((decode_row_key(row)?, decode_lock(row, lock)?))).collect()
    }

    /// Reads and decodes a page of the write column, like [`scan_locks`](Self::scan_locks).
    fn scan_writes(&self, page: &PageRequest<'_>) -> Result<Vec<(RowKey, WriteRecord)>, EngineError> {
        let mut cells = PageBuffer::default();
        self.scan_page(Column::Write, page, &mut cells)?;
        cells.iter().map(|(row, record)| Ok((decode_row_key(row)?, decode_write(row, record)?))).collect()
    }

    /// Whether any row has a lock. A corrupt lock counts as a lock; only the reads that need that
    /// lock return its error.
    fn any_lock(&self) -> Result<bool, EngineError> {
        match self.scan_locks(&PageRequest { range: &RowRange::all(), backwards: false, limit: 1, cursor: None }) {
            Err(EngineError::Corruption(_)) => Ok(true),
            found => Ok(!found?.is_empty()),
        }
    }

    /// Reads the columns of a row, including the row's record of the transaction that began at
    /// `start_ts`. The result's `safe_point` is zero, because the safe point belongs to the engine,
    /// not to a snapshot.
    fn row(&self, row: &RowKey, start_ts: Timestamp) -> Result<RowState, EngineError> {
        Ok(RowState {
            lock: self.lock(row)?,
            write: self.write(row)?,
            txn_record: self.txn_record(row, start_ts)?,
            safe_point: Timestamp::ZERO,
        })
    }
}
