//! Reads of a row at a read view: from its versions, and from locks of transactions that the view
//! shows as committed.
//!
//! A transaction commits at its primary. Until its other locks have become versions, its values are
//! in the data column and in its locks. So a read that meets a lock looks up the transaction's
//! commit timestamp.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::codec::InlineWrite;
use crate::coordinator::Coordinator;
use crate::engine::storage::Column;
use crate::engine::{EngineError, decode_lock, decode_row_key, decode_write};
use crate::error::{Error, ErrorKind, Result};
use crate::process::Process;
use crate::read_view::ReadView;
use crate::row::{Lock, LockType, RowKey, StoredValue, TxnId, WriteRecord};
use crate::store::read::scanned_row::FoundValue;
use crate::value::Value;

/// What a lock means for a read of its row.
enum LockEffect<'a> {
    /// The view shows the lock's transaction as committed, and this is the value that it wrote;
    /// `None` if it deleted the row.
    Value(Option<FoundValue<'a>>),
    /// The lock does not matter: the value is that of the versions.
    None,
}

/// The content of a row's cell in the write column. It is decoded while the engine lends the cell.
/// If the value is elsewhere (an older version, or a value out of line), [`CellRead::value`] reads
/// it later, because the snapshot may be locked while it lends a cell.
enum CellRead {
    Missing,
    Visible(Value),
    Record(WriteRecord),
    Corrupt(EngineError),
}

impl CellRead {
    /// `keep` makes the value that is kept from the lent one.
    #[inline]
    fn new(view: &ReadView, row: &RowKey, content: &[u8], keep: impl FnOnce(&[u8]) -> Value) -> Self {
        match InlineWrite::decode_value(content) {
            Some((commit_ts, value)) if commit_ts <= view.read_ts => Self::Visible(keep(value)),
            _ => decode_write(row.as_bytes(), content).map_or_else(Self::Corrupt, Self::Record),
        }
    }

    #[inline]
    fn find<'a>(self, view: &'a ReadView, row: &RowKey) -> Result<Option<FoundValue<'a>>> {
        match self {
            Self::Missing => Ok(None),
            Self::Visible(value) => Ok(Some(FoundValue::Owned(value))),
            Self::Record(newest) => visible_version(view, row, newest),
            Self::Corrupt(error) => Err(error.into()),
        }
    }

    fn value(self, view: &ReadView, row: &RowKey) -> Result<Option<Value>> {
        load_found(row, self.find(view, row)?)
    }
}

/// Reads rows at views, as long as the store is open.
pub(in crate::store) struct RowReader {
    coordinator: Arc<dyn Coordinator>,
    max_snapshot_age: Duration,
    closed: AtomicBool,
    process: Process,
}

impl RowReader {
    pub fn new(coordinator: &Arc<dyn Coordinator>, max_snapshot_age: Duration) -> Self {
        Self {
            coordinator: Arc::clone(coordinator),
            max_snapshot_age,
            closed: AtomicBool::new(false),
            process: Process::current(),
        }
    }

    #[inline]
    pub fn check_open(&self) -> Result<()> {
        if let Some(reason) = self.process.refusal() {
            return Err(Error::closed(reason));
        }
        if self.closed.load(Ordering::Acquire) { Err(Error::closed_by_user()) } else { Ok(()) }
    }

    /// From this call on every read returns an error.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Fails if the store is closed or the view has expired.
    #[inline]
    pub fn check_usable(&self, view: &ReadView) -> Result<()> {
        self.check_open()?;
        if view.expired.load(Ordering::Acquire) {
            let age = self.max_snapshot_age;
            let reason = format!("the snapshot is older than max_snapshot_age ({age:?})");
            return Err(ErrorKind::SnapshotTooOld(reason).into());
        }
        Ok(())
    }

    /// The value of a row at the view.
    pub fn read(&self, view: &ReadView, row: &RowKey) -> Result<Option<Value>> {
        load_found(row, self.find(view, row, |lent| lent.into())?)
    }

    /// Whether the row exists at the view. Copies no value, and reads none out of line.
    pub fn contains(&self, view: &ReadView, row: &RowKey) -> Result<bool> {
        Ok(self.find(view, row, |_| Value::default())?.is_some())
    }

    #[inline]
    fn find<'a>(
        &self,
        view: &'a ReadView,
        row: &RowKey,
        keep: impl Fn(&[u8]) -> Value,
    ) -> Result<Option<FoundValue<'a>>> {
        if view.must_check_locks
            && let Some(lock) = view.snapshot.lock(row)?
            && let LockEffect::Value(value) = self.value_under_lock(view, row, &lock)?
        {
            return Ok(value);
        }
        let mut found = CellRead::Missing;
        view.snapshot.get_cell(Column::Write, row, &mut |content| found = CellRead::new(view, row, content, &keep))?;
        found.find(view, row)
    }

    /// The values of several rows at the view.
    pub fn multi_read(&self, view: &ReadView, rows: &[&RowKey]) -> Result<Vec<Option<Value>>> {
        if view.must_check_locks {
            return rows.iter().map(|row| self.read(view, row)).collect();
        }
        let mut cells: Vec<CellRead> = rows.iter().map(|_| CellRead::Missing).collect();
        view.snapshot.multi_get_cell(Column::Write, rows, &mut |number, content| {
            if let (Some(cell), Some(row)) = (cells.get_mut(number), rows.get(number)) {
                *cell = CellRead::new(view, row, content, |lent| lent.into());
            }
        })?;
        rows.iter().zip(cells).map(|(row, cell)| cell.value(view, row)).collect()
    }

    /// What the lock means for a read of its row. It is a value if the transaction has committed at
    /// or below the view's timestamp and wrote the row.
    fn value_under_lock<'a>(&self, view: &'a ReadView, row: &RowKey, lock: &Lock) -> Result<LockEffect<'a>> {
        if lock.lock_type == LockType::LockOnly || self.coordinator.commit_ts_of_lock(view, row, lock)?.is_none() {
            return Ok(LockEffect::None);
        }
        Ok(match &lock.lock_type {
            LockType::Put(value) => LockEffect::Value(Some(FoundValue::new(&*view.snapshot, lock.txn, value.clone()))),
            LockType::Delete => LockEffect::Value(None),
            LockType::LockOnly => LockEffect::None,
        })
    }

    /// The value that a reader at the view sees, given the row's cells in the lock and write
    /// columns.
    pub fn visible_value<'a>(
        &self,
        view: &'a ReadView,
        row: &RowKey,
        lock: Option<&[u8]>,
        write: Option<&'a [u8]>,
    ) -> Result<Option<FoundValue<'a>>> {
        if let Some(lock) = lock {
            // For an expired view the status of the lock's transaction may be gone, so the lock
            // could be misjudged.
            self.check_usable(view)?;
            if let LockEffect::Value(value) = self.value_under_lock(view, row, &decode_lock(row.as_bytes(), lock)?)? {
                return Ok(value);
            }
        }
        write.map_or(Ok(None), |content| visible_value_in_cell(view, row.as_bytes(), content))
    }
}

/// The value that a reader at the view sees, given the row's cell in the write column. Usually the
/// cell itself contains the value.
#[inline]
pub(in crate::store) fn visible_value_in_cell<'a>(
    view: &'a ReadView,
    row: &[u8],
    content: &'a [u8],
) -> Result<Option<FoundValue<'a>>> {
    match InlineWrite::decode_value(content) {
        Some((commit_ts, value)) if commit_ts <= view.read_ts => Ok(Some(FoundValue::Lent(value))),
        _ => visible_version(view, &decode_row_key(row)?, decode_write(row, content)?),
    }
}

/// The value that a reader at the view sees, given the row's newest version.
pub(in crate::store) fn visible_version<'a>(
    view: &'a ReadView,
    row: &RowKey,
    newest: WriteRecord,
) -> Result<Option<FoundValue<'a>>> {
    let version =
        if newest.commit_ts <= view.read_ts { Some(newest) } else { view.snapshot.version_at(row, view.read_ts)? };
    Ok(version.and_then(|WriteRecord { txn, value, .. }| Some(FoundValue::new(&*view.snapshot, txn, value?))))
}

#[inline]
pub(in crate::store) fn load_found(row: &RowKey, found: Option<FoundValue<'_>>) -> Result<Option<Value>> {
    match found {
        // Mostly so; nothing is converted.
        Some(FoundValue::Owned(value)) => Ok(Some(value)),
        Some(found) => Ok(Some(found.load(row.as_bytes())?.into())),
        None => Ok(None),
    }
}

pub(in crate::store) fn load_value(view: &ReadView, row: &RowKey, txn: TxnId, value: StoredValue) -> Result<Value> {
    FoundValue::new(&*view.snapshot, txn, value).load(row.as_bytes()).map(Value::from)
}
