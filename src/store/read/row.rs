//! Reading a row at a view: versions, and the locks of transactions that are committed there already.

use std::borrow::Cow;
use std::sync::atomic::Ordering;

use crate::codec::InlineWrite;
use crate::engine::storage::Column;
use crate::engine::{EngineError, decode_lock, decode_row_key, decode_write};
use crate::error::{Error, ErrorKind, Result};
use crate::read_view::ReadView;
use crate::row::{Lock, LockType, RowKey, TxnId, Value, WriteRecord};
use crate::store::Store;
use crate::timestamp::Timestamp;

/// What a lock says about a row at a view.
enum LockEffect {
    /// Its transaction is committed there and left this value, or none.
    Value(Option<Vec<u8>>),
    /// Nothing; the newest version counts.
    None,
}

/// What a row has in the write column. Whatever takes more reading waits until the engine has let go of the cell.
enum CellRead {
    Missing,
    Visible(Vec<u8>),
    Record(WriteRecord),
    Corrupt(EngineError),
}

impl CellRead {
    #[inline]
    fn new(view: &ReadView, row: &RowKey, content: &[u8]) -> Self {
        match InlineWrite::decode_value(content) {
            Some((commit_ts, value)) if commit_ts <= visible_up_to(view) => Self::Visible(value.to_vec()),
            _ => decode_write(row.as_bytes(), content).map_or_else(Self::Corrupt, Self::Record),
        }
    }

    fn value(self, view: &ReadView, row: &RowKey) -> Result<Option<Vec<u8>>> {
        match self {
            Self::Missing => Ok(None),
            Self::Visible(value) => Ok(Some(value)),
            Self::Record(newest) => visible_version(view, row, newest),
            Self::Corrupt(why) => Err(why.into()),
        }
    }
}

impl Store {
    pub(in crate::store) fn check_usable(&self, view: &ReadView) -> Result<()> {
        self.inner.check_open()?;
        if view.expired.load(Ordering::Acquire) {
            let age = self.inner.options.max_snapshot_age;
            return Err(ErrorKind::SnapshotTooOld(format!("it reads a state replaced more than {age:?} ago")).into());
        }
        Ok(())
    }

    /// The row's value at the view.
    pub(in crate::store) fn read(&self, view: &ReadView, row: &RowKey) -> Result<Option<Vec<u8>>> {
        if mutated!(ReadsLatest) {
            let newest = self.inner.engine.snapshot()?;
            let newest = ReadView::new(Timestamp::MAX, newest, view.must_check_locks);
            return newest.snapshot.write(row)?.map_or(Ok(None), |write| visible_version(&newest, row, write));
        }
        if view.must_check_locks
            && !mutated!(ReaderIgnoresLocks)
            && let Some(lock) = view.snapshot.lock(row)?
            && let LockEffect::Value(value) = self.value_under_lock(view, row, &lock)?
        {
            return Ok(value);
        }
        let mut found = CellRead::Missing;
        view.snapshot.get_cell(Column::Write, row, &mut |content| found = CellRead::new(view, row, content))?;
        found.value(view, row)
    }

    /// Several rows' values at the view.
    pub(in crate::store) fn multi_read(&self, view: &ReadView, rows: &[&RowKey]) -> Result<Vec<Option<Vec<u8>>>> {
        let check_locks = view.must_check_locks && !mutated!(MultiGetIgnoresLocks);
        if check_locks || mutated!(ReadsLatest) {
            return rows.iter().map(|row| self.read(view, row)).collect();
        }
        let mut cells: Vec<CellRead> = rows.iter().map(|_| CellRead::Missing).collect();
        view.snapshot.multi_get_cell(Column::Write, rows, &mut |number, content| {
            if let (Some(cell), Some(row)) = (cells.get_mut(number), rows.get(number)) {
                *cell = CellRead::new(view, row, content);
            }
        })?;
        rows.iter().zip(cells).map(|(row, cell)| cell.value(view, row)).collect()
    }

    /// What the lock's transaction made of the row, if it is committed at the view and wrote it.
    fn value_under_lock(&self, view: &ReadView, row: &RowKey, lock: &Lock) -> Result<LockEffect> {
        if lock.lock_type == LockType::LockOnly || self.inner.coordinator.commit_ts_of_lock(view, row, lock)?.is_none()
        {
            return Ok(LockEffect::None);
        }
        match &lock.lock_type {
            LockType::Put(value) => {
                load_value(view, row, lock.txn, value.clone()).map(|value| LockEffect::Value(Some(value)))
            }
            LockType::Delete => Ok(LockEffect::Value(None)),
            LockType::LockOnly => Ok(LockEffect::None),
        }
    }

    /// What a reader at the view sees of a row, given what it has in the lock and the write column.
    pub(in crate::store) fn visible_value(
        &self,
        view: &ReadView,
        row: &RowKey,
        lock: Option<&[u8]>,
        write: Option<&[u8]>,
    ) -> Result<Option<Vec<u8>>> {
        if let Some(lock) = lock {
            // How its transaction ended is not kept for views that have expired.
            self.check_usable(view)?;
            if let LockEffect::Value(value) = self.value_under_lock(view, row, &decode_lock(row.as_bytes(), lock)?)? {
                return Ok(value);
            }
        }
        write.map_or(Ok(None), |content| Ok(visible_value_in_cell(view, row.as_bytes(), content)?.map(Cow::into_owned)))
    }
}

fn visible_up_to(view: &ReadView) -> Timestamp {
    if mutated!(EqualTimestampNotSeen) { Timestamp::from_u64(view.read_ts.to_u64() - 1) } else { view.read_ts }
}

/// What a reader at the view sees of a row, given its cell in the write column. Nearly always that is the value in it.
#[inline]
pub(in crate::store) fn visible_value_in_cell<'a>(
    view: &ReadView,
    row: &[u8],
    content: &'a [u8],
) -> Result<Option<Cow<'a, [u8]>>> {
    match InlineWrite::decode_value(content) {
        Some((commit_ts, value)) if commit_ts <= visible_up_to(view) => Ok(Some(Cow::Borrowed(value))),
        _ => Ok(visible_version(view, &decode_row_key(row)?, decode_write(row, content)?)?.map(Cow::Owned)),
    }
}

/// What a reader at the view sees of a row, given its newest version.
pub(in crate::store) fn visible_version(view: &ReadView, row: &RowKey, newest: WriteRecord) -> Result<Option<Vec<u8>>> {
    let version = if newest.commit_ts <= visible_up_to(view) {
        Some(newest)
    } else {
        view.snapshot.version_at(row, view.read_ts)?
    };
    match version {
        Some(WriteRecord { txn, value: Some(value), .. }) => load_value(view, row, txn, value).map(Some),
        Some(WriteRecord { value: None, .. }) | None => Ok(None),
    }
}

pub(in crate::store) fn load_value(view: &ReadView, row: &RowKey, txn: TxnId, value: Value) -> Result<Vec<u8>> {
    match value {
        Value::Inline(bytes) => Ok(bytes.to_vec()),
        Value::OutOfLine => view.snapshot.data(row, txn.start_ts)?.ok_or_else(|| {
            let what = format!("row {row:?}: the value written by the transaction {:#} is missing", txn.start_ts);
            Error::from(ErrorKind::Corruption(what))
        }),
    }
}
