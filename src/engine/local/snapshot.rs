//! An engine snapshot over a snapshot of the storage. Also reads a row from its columns.

use std::ops::Bound;

use crate::codec::{HistoryEntry, Record};
use crate::engine::MAX_PAGE_BYTES;
use crate::engine::page_buffer::decode;
use crate::engine::storage::{CellReader, Column};
use crate::engine::{
    EngineError, EngineSnapshot, OnCell, OnEachCell, PageBuffer, PageRequest, RowRange, ScanCursor, ScanVisitor,
};
use crate::keys::{data_key, history_key};
use crate::row::{Precondition, RowChange, RowKey, RowState, TxnRecord, WriteRecord};
use crate::timestamp::Timestamp;
use crate::tunables::{PAGE_BYTES, PAGE_CELLS};
use crate::value::Value;

/// The name of the safe point in the metadata column.
pub(crate) const SAFE_POINT: &str = "safe point";

/// The limits of a page, in addition to the limit in the request.
#[derive(Clone, Copy, Debug)]
pub struct PageLimits {
    pub cells: usize,
    pub bytes: usize,
}

impl PageLimits {
    pub const DEFAULT: Self = Self {
        cells: PAGE_CELLS,
        bytes: match PAGE_BYTES {
            Some(bytes) => bytes,
            None => MAX_PAGE_BYTES,
        },
    };
}

/// An engine snapshot over `R`, a snapshot of the storage.
pub struct LocalSnapshot<R> {
    pub reader: R,
    pub pages: PageLimits,
}

impl<R: CellReader> EngineSnapshot for LocalSnapshot<R> {
    fn get_cell(&self, column: Column, row: &RowKey, on_cell: OnCell<'_>) -> Result<(), EngineError> {
        self.reader.get(column, row.as_bytes(), on_cell).map(drop)
    }

    fn multi_get_cell(&self, column: Column, rows: &[&RowKey], on_cell: OnEachCell<'_>) -> Result<(), EngineError> {
        let keys: Vec<&[u8]> = rows.iter().map(|row| row.as_bytes()).collect();
        self.reader.multi_get(column, &keys, on_cell)
    }

    fn txn_record(&self, row: &RowKey, start_ts: Timestamp) -> Result<Option<TxnRecord>, EngineError> {
        read_status(&self.reader, row, start_ts)
    }

    fn data(&self, row: &RowKey, start_ts: Timestamp) -> Result<Option<Value>, EngineError> {
        self.reader.get(Column::Data, &data_key(row, start_ts), |bytes| Value::from(bytes))
    }

    fn version_at(&self, row: &RowKey, upto: Timestamp) -> Result<Option<WriteRecord>, EngineError> {
        let range = RowRange {
            start: Bound::Included(history_key(row, upto)),
            end: Bound::Included(history_key(row, Timestamp::ZERO)),
        };
        let mut found = Ok(None);
        self.reader.scan(Column::History, &range, false, |key, bytes| {
            match decode::<HistoryEntry>(Column::History, key, bytes) {
                Ok(HistoryEntry::Ended(_)) => return true,
                Ok(HistoryEntry::Version(version)) => found = Ok(Some(version)),
                Err(error) => found = Err(error),
            }
            false
        })?;
        found
    }

    fn scan_page(&self, column: Column, page: &PageRequest<'_>, cells: &mut PageBuffer) -> Result<bool, EngineError> {
        cells.clear();
        if page.limit == 0 {
            return Ok(true);
        }
        let limit = page.limit.min(self.pages.cells);
        let mut is_full = false;
        let visit = |row: &[u8], value: &[u8]| {
            cells.push(row, value);
            is_full = cells.len() >= limit || cells.size_bytes() >= self.pages.bytes;
            !is_full
        };
        match page.cursor {
            Some(cursor) => self.reader.resume_scan(cursor, column, page.range, page.backwards, visit)?,
            None => self.reader.scan(column, page.range, page.backwards, visit)?,
        }
        Ok(is_full)
    }

    fn scan_unlocked(
        &self,
        column: Column,
        range: &RowRange,
        cursor: &ScanCursor,
        visit: ScanVisitor<'_>,
    ) -> Result<bool, EngineError> {
        if R::UNLOCKED_SCANS {
            self.reader.resume_scan(cursor, column, range, false, visit)?;
        }
        Ok(R::UNLOCKED_SCANS)
    }

    fn scan_raw(&self, column: Column, range: &RowRange, visit: ScanVisitor<'_>) -> Result<(), EngineError> {
        self.reader.scan(column, range, false, visit)
    }
}

pub fn read_row(reader: &impl CellReader, row: &RowKey, start_ts: Timestamp) -> Result<RowState, EngineError> {
    Ok(RowState {
        lock: read_record(reader, Column::Lock, row.as_bytes())?,
        write: read_record(reader, Column::Write, row.as_bytes())?,
        txn_record: read_status(reader, row, start_ts)?,
        safe_point: read_safe_point(reader)?,
    })
}

/// Reads the columns of a row that the preconditions of a change need.
pub fn read_for_preconditions(reader: &impl CellReader, change: &RowChange) -> Result<RowState, EngineError> {
    let (mut found, row) = (RowState::default(), &change.row);
    for precondition in &change.preconditions {
        match precondition {
            Precondition::LockAbsent | Precondition::LockUnchanged(_) => {
                found.lock = read_record(reader, Column::Lock, row.as_bytes())?;
            }
            Precondition::NoCommitAfter(_) => found.write = read_record(reader, Column::Write, row.as_bytes())?,
            Precondition::NoTxnRecord(start_ts) => {
                found.write = read_record(reader, Column::Write, row.as_bytes())?;
                found.txn_record = read_status(reader, row, *start_ts)?;
            }
            Precondition::SafePointAtMost(_) => found.safe_point = read_safe_point(reader)?,
        }
    }
    Ok(found)
}

fn read_status(reader: &impl CellReader, row: &RowKey, start_ts: Timestamp) -> Result<Option<TxnRecord>, EngineError> {
    match read_record(reader, Column::History, &history_key(row, start_ts))? {
        Some(HistoryEntry::Ended(record)) => Ok(Some(record)),
        Some(HistoryEntry::Version(version)) => Err(EngineError::Corruption(format!(
            "row {row:?}: expected the record of the transaction that began at {start_ts:#}, found a version: {version:?}"
        ))),
        None => Ok(None),
    }
}

pub fn read_safe_point(reader: &impl CellReader) -> Result<Timestamp, EngineError> {
    let read = |bytes: &[u8]| <[u8; 8]>::try_from(bytes).map(u64::from_be_bytes);
    match reader.get(Column::Meta, SAFE_POINT.as_bytes(), read)? {
        Some(Ok(number)) => Ok(Timestamp::from_u64(number)),
        Some(Err(_)) => Err(EngineError::Corruption("the safe point is not a timestamp".into())),
        None => Ok(Timestamp::ZERO),
    }
}

fn read_record<T: Record>(reader: &impl CellReader, column: Column, key: &[u8]) -> Result<Option<T>, EngineError> {
    reader.get(column, key, |bytes| decode(column, key, bytes))?.transpose()
}
