//! An engine over any ordered store in this process: it checks preconditions and encodes row
//! changes as cells.
//!
//! The row batches of one call are encoded into one batch of cells, which is written at the end. A
//! row batch without preconditions needs no reads. For a row batch with preconditions, the engine
//! first reads the rows to which these apply. If an earlier row batch of the same call has changed
//! a row of this row batch, the engine writes the cells collected so far before it reads.
//!
//! The commit pipeline checks most preconditions in memory and removes them, so most calls are one
//! write without reads. `encode` encodes row changes as cells; `snapshot` decodes cells into rows.

mod encode;
mod snapshot;

use std::collections::HashSet;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use self::encode::CellBatchBuilder;
pub(crate) use self::encode::{GC_PREFIX, gc_key, parse_gc_key};
pub(crate) use self::snapshot::SAFE_POINT;
use self::snapshot::{LocalSnapshot, PageLimits, read_for_preconditions, read_row, read_safe_point};
use super::page_buffer::decode;
use super::storage::{Batch as _, Column, Storage};
use super::{
    ApplyResult, Capabilities, DataLoss, Engine, EngineError, EngineSnapshot, EngineStats, GcEntry, RowBatch, RowRange,
    SpaceLeft, TxnRecordEntry, TxnRecordPage, WriteStallStats,
};
use crate::codec::HistoryEntry;
use crate::keys::{decode_history_key, history_key, keyspace_range, prefix_successor};
use crate::row::{KeyspaceId, RowChange, RowKey, RowState};
use crate::timestamp::Timestamp;

/// An engine over the ordered store `S`: see the [module](self).
#[derive(Debug)]
pub struct LocalEngine<S> {
    storage: S,
    exclusive: bool,
    batch_rows_max: usize,
    batch_bytes_max: usize,
    page_limits: PageLimits,
}

impl<S: Storage> LocalEngine<S> {
    /// An engine over `storage`. With `exclusive` the caller promises that nothing else writes to
    /// the storage while this handle exists.
    pub fn new(storage: S, exclusive: bool) -> Self {
        let (batch_rows_max, batch_bytes_max) = (usize::MAX, S::BATCH_BYTES_MAX);
        Self { storage, exclusive, batch_rows_max, batch_bytes_max, page_limits: PageLimits::DEFAULT }
    }

    /// Limits an atomic batch to `rows` rows; by default their number is not limited. A commit of
    /// more rows takes two phases. If a crash interrupts the second phase, locks are left that must
    /// be rolled forward.
    ///
    /// A store with exclusive use of the engine needs a limit of at least two rows: in two phases,
    /// the last batch has one more change, which deletes the transaction record.
    #[must_use]
    pub fn with_batch_rows_max(self, rows: usize) -> Self {
        Self { batch_rows_max: rows, ..self }
    }

    /// Limits an atomic batch to this size: see [`Capabilities::batch_bytes_max`].
    #[must_use]
    pub fn with_batch_bytes_max(self, bytes: usize) -> Self {
        Self { batch_bytes_max: bytes, ..self }
    }

    /// Ends a page of a scan once it has `cells` cells (at least one), or at least `bytes` bytes.
    #[must_use]
    pub fn with_page_limits(self, cells: usize, bytes: usize) -> Self {
        Self { page_limits: PageLimits { cells: cells.max(1), bytes }, ..self }
    }

    /// The storage below.
    pub fn storage(&self) -> &S {
        &self.storage
    }

    fn check_limits(&self, batch: &RowBatch) -> Result<(), EngineError> {
        let Capabilities { batch_rows_max, batch_bytes_max, .. } = self.capabilities();
        let sizes = [
            ("a batch's row count", batch.row_count(), batch_rows_max),
            ("a batch's size", batch.size_bytes(), batch_bytes_max),
        ];
        match sizes.into_iter().find(|(_, size, limit)| size > limit) {
            Some((what, requested, limit)) => Err(EngineError::Limit { what, requested, limit }),
            None => Ok(()),
        }
    }

    fn apply_batches(&self, batches: &[RowBatch], is_written: &mut bool) -> Result<Vec<ApplyResult>, EngineError> {
        batches.iter().try_for_each(|batch| self.check_limits(batch))?;
        let _write_lock = self.storage.write_lock().lock();
        let reads = batches.iter().any(RowBatch::is_conditional);
        let mut results = Vec::with_capacity(batches.len());
        let mut cells = CellBatchBuilder { batch: self.storage.new_batch(encode::estimate_batch_bytes(batches)) };
        let mut dirty_rows: HashSet<&RowKey> = HashSet::new();
        for batch in batches {
            if batch.is_conditional() {
                let changes = batch.changes();
                if changes.iter().any(|change| dirty_rows.contains(&change.row)) {
                    self.storage.write(std::mem::replace(&mut cells.batch, self.storage.new_batch(0)))?;
                    *is_written = true;
                    dirty_rows.clear();
                }
                if let Some(failed) = self.check_preconditions(&changes)? {
                    results.push(failed);
                    continue;
                }
            }
            let changes = match batch {
                RowBatch::Changes(changes) => changes.as_slice(),
                RowBatch::OnePhaseWrites(versions) => {
                    cells.add_one_phase(versions);
                    &[]
                }
            };
            for change in changes {
                cells.add_change(change);
            }
            if reads {
                dirty_rows.extend(batch.row_keys());
            }
            results.push(ApplyResult::Applied);
        }
        self.storage.write(cells.batch)?;
        Ok(results)
    }

    fn check_preconditions(&self, changes: &[RowChange]) -> Result<Option<ApplyResult>, EngineError> {
        for (index, change) in changes.iter().enumerate().filter(|(_, change)| !change.preconditions.is_empty()) {
            let row = read_for_preconditions(&self.storage, change)?;
            if !change.preconditions.iter().all(|precondition| precondition.is_met(&row)) {
                let row = read_row(&self.storage, &change.row, change.start_ts)?;
                return Ok(Some(ApplyResult::PreconditionFailed { index, row: Box::new(row) }));
            }
        }
        Ok(None)
    }
}

impl<S: Storage> Engine for LocalEngine<S> {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            batch_rows_max: self.batch_rows_max,
            batch_bytes_max: self.batch_bytes_max,
            exclusive: self.exclusive,
        }
    }

    fn snapshot(&self) -> Result<Arc<dyn EngineSnapshot>, EngineError> {
        Ok(Arc::new(LocalSnapshot { reader: self.storage.snapshot()?, pages: self.page_limits }))
    }

    fn read_row(&self, row: &RowKey, start_ts: Timestamp) -> Result<RowState, EngineError> {
        read_row(&self.storage.snapshot()?, row, start_ts)
    }

    fn apply(&self, batches: &[RowBatch]) -> Result<Vec<ApplyResult>, EngineError> {
        let mut is_written = false;
        self.apply_batches(batches, &mut is_written)
            .map_err(|error| if is_written { error.after_write() } else { error })
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.storage.sync()
    }

    fn get_meta(&self, name: &str) -> Result<Option<Vec<u8>>, EngineError> {
        self.storage.get(Column::Meta, name.as_bytes(), <[u8]>::to_vec)
    }

    fn scan_meta(&self, prefix: &str) -> Result<Vec<(String, Vec<u8>)>, EngineError> {
        let mut found = Vec::new();
        self.storage.scan(Column::Meta, &prefix_range(prefix.as_bytes()), false, |key, value| {
            found.push((String::from_utf8_lossy(key).into_owned(), value.to_vec()));
            true
        })?;
        Ok(found)
    }

    fn write_meta(&self, entries: &[(String, Option<Vec<u8>>)]) -> Result<(), EngineError> {
        let mut batch = self.storage.new_batch(0);
        for (name, value) in entries {
            match value {
                Some(value) => batch.put(Column::Meta, name.as_bytes(), value),
                None => batch.delete(Column::Meta, name.as_bytes()),
            }
        }
        self.storage.write(batch)
    }

    fn safe_point(&self) -> Result<Timestamp, EngineError> {
        read_safe_point(&self.storage)
    }

    fn advance_safe_point(&self, to: Timestamp) -> Result<(), EngineError> {
        let _write_lock = self.storage.write_lock().lock();
        if to <= read_safe_point(&self.storage)? {
            return Ok(());
        }
        self.write_meta(&[(SAFE_POINT.into(), Some(to.to_u64().to_be_bytes().to_vec()))])
    }

    fn gc_candidates(
        &self,
        after: Option<&GcEntry>,
        upto: Timestamp,
        limit: usize,
    ) -> Result<Vec<GcEntry>, EngineError> {
        let mut found = Vec::new();
        if limit == 0 {
            return Ok(found);
        }
        let mut malformed = None;
        let mut range = prefix_range(GC_PREFIX.as_bytes());
        if let Some((ts, row)) = after {
            range.start = Bound::Excluded(gc_key(*ts, row));
        }
        self.storage.scan(Column::Meta, &range, false, |key, _| {
            match parse_gc_key(key) {
                Some((ts, row)) if ts <= upto => found.push((ts, row)),
                Some(_) => return false,
                None => malformed = Some(key.escape_ascii().to_string()),
            }
            malformed.is_none() && found.len() < limit
        })?;
        match malformed {
            Some(key) => Err(EngineError::Corruption(format!("malformed GC entry {key:?}"))),
            None => Ok(found),
        }
    }

    fn txn_records(
        &self,
        before: Timestamp,
        after: Option<&TxnRecordEntry>,
        limit: usize,
    ) -> Result<TxnRecordPage, EngineError> {
        let start = after.map_or(Bound::Unbounded, |(row, ts)| Bound::Excluded(history_key(row, *ts)));
        let range = RowRange { start, end: Bound::Unbounded };
        let (mut page, mut failed, mut entries, mut read_bytes) = (TxnRecordPage::default(), None, 0, 0);
        self.storage.scan(Column::History, &range, false, |key, bytes| {
            (entries, read_bytes) = (entries + 1, read_bytes + bytes.len());
            let entry = decode_history_key(key);
            match (&entry, decode::<HistoryEntry>(Column::History, key, bytes)) {
                (Some((row, ts)), Ok(HistoryEntry::Ended(_))) if *ts < before => page.records.push((row.clone(), *ts)),
                (Some(_), Ok(_)) => {}
                (None, _) => {
                    failed = Some(EngineError::Corruption(format!("History column: malformed history key {key:?}")));
                }
                (_, Err(error)) => failed = Some(error),
            }
            let is_full = entries >= limit.min(self.page_limits.cells) || read_bytes >= self.page_limits.bytes;
            if is_full {
                page.next = entry;
            }
            failed.is_none() && !is_full
        })?;
        failed.map_or(Ok(page), Err)
    }

    fn delete_keyspace(&self, keyspace: KeyspaceId) -> Result<(), EngineError> {
        let (start, end) = keyspace_range(keyspace);
        let mut batch = self.storage.new_batch(0);
        for column in [Column::Data, Column::Lock, Column::Write, Column::History] {
            batch.delete_range(column, &start, &end);
        }
        self.storage.write(batch)
    }

    fn reclaim_keyspace(&self, keyspace: KeyspaceId) -> Result<(), EngineError> {
        let (start, end) = keyspace_range(keyspace);
        self.storage.reclaim_range(&start, &end)
    }

    fn space_left(&self) -> SpaceLeft {
        self.storage.space_left()
    }

    fn has_space(&self, bytes: usize, needed: SpaceLeft) -> bool {
        self.storage.has_space(bytes, needed)
    }

    fn reclaim_space(&self) -> Result<(), EngineError> {
        self.storage.reclaim_space()
    }

    fn checkpoint(&self, directory: &Path) -> Result<(), EngineError> {
        self.storage.checkpoint(directory)
    }

    fn stats(&self) -> Result<EngineStats, EngineError> {
        self.storage.stats()
    }

    fn approximate_size(&self, column: Column, start: &[u8], end: &[u8]) -> Option<u64> {
        self.storage.approximate_size(column, start, end)
    }

    fn write_stalls(&self) -> WriteStallStats {
        self.storage.write_stalls()
    }

    fn is_fresh_checkpoint(&self) -> bool {
        self.storage.is_fresh_checkpoint()
    }

    fn clear_checkpoint_flag(&self) -> Result<(), EngineError> {
        self.storage.clear_checkpoint_flag()
    }

    fn data_losses(&self) -> Vec<DataLoss> {
        self.storage.data_losses()
    }

    fn write_status_file(&self, document: Option<&[u8]>) -> Result<(), EngineError> {
        self.storage.write_status_file(document)
    }
}

fn prefix_range(prefix: &[u8]) -> RowRange {
    let end = prefix_successor(prefix).map_or(Bound::Unbounded, Bound::Excluded);
    RowRange { start: Bound::Included(prefix.to_vec()), end }
}
