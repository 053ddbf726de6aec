//! Reading a row at a view: versions, and the locks of transactions that are committed there already.

use std::borrow::Cow;
use std::sync::atomic::Ordering;

use super::Store;
use crate::codec::Put;
use crate::engine::storage::Column;
use crate::engine::{EngineError, decode_lock, decode_row_key, decode_write};
use crate::error::{Error, ErrorKind, Result};
use crate::row::{Intent, Lock, RowKey, TxnId, Value, WriteRecord};
use crate::timestamp::Timestamp;
use crate::view::PinnedView;

/// What a lock says about a row at a view.
enum LockRead {
    /// Its transaction is committed there and left this value, or none.
    Decides(Option<Vec<u8>>),
    /// Nothing; the newest version counts.
    Ignore,
}

/// What a row has in the write column. Whatever takes more reading waits until the engine has let go of the cell.
enum Cell {
    Missing,
    Seen(Vec<u8>),
    Other(WriteRecord),
    Damaged(EngineError),
}

impl Cell {
    #[inline]
    fn new(view: &PinnedView, row: &RowKey, content: &[u8]) -> Self {
        match Put::value(content) {
            Some((commit_ts, value)) if commit_ts <= sees_upto(view) => Self::Seen(value.to_vec()),
            _ => decode_write(row.as_bytes(), content).map_or_else(Self::Damaged, Self::Other),
        }
    }

    fn value(self, view: &PinnedView, row: &RowKey) -> Result<Option<Vec<u8>>> {
        match self {
            Self::Missing => Ok(None),
            Self::Seen(value) => Ok(Some(value)),
            Self::Other(newest) => read_write(view, row, newest),
            Self::Damaged(why) => Err(why.into()),
        }
    }
}

impl Store {
    pub(super) fn check_view(&self, view: &PinnedView) -> Result<()> {
        self.inner.check_open()?;
        if view.expired.load(Ordering::Acquire) {
            let age = self.inner.options.age_max;
            return Err(ErrorKind::SnapshotTooOld(format!("it reads a state replaced more than {age:?} ago")).into());
        }
        Ok(())
    }

    /// The row's value at the view.
    pub(super) fn read(&self, view: &PinnedView, row: &RowKey) -> Result<Option<Vec<u8>>> {
        if mutated!(ReadsLatest) {
            let newest = self.inner.engine.snapshot()?;
            let newest = PinnedView::new(Timestamp::MAX, newest, view.check_locks);
            return newest.view.write(row)?.map_or(Ok(None), |write| read_write(&newest, row, write));
        }
        if view.check_locks
            && !mutated!(ReaderIgnoresLocks)
            && let Some(lock) = view.view.lock(row)?
            && let LockRead::Decides(value) = self.read_lock(view, row, &lock)?
        {
            return Ok(value);
        }
        let mut found = Cell::Missing;
        view.view.get_cell(Column::Write, row, &mut |content| found = Cell::new(view, row, content))?;
        found.value(view, row)
    }

    /// Several rows' values at the view.
    pub(super) fn read_each(&self, view: &PinnedView, rows: &[&RowKey]) -> Result<Vec<Option<Vec<u8>>>> {
        let check_locks = view.check_locks && !mutated!(MultiGetIgnoresLocks);
        if check_locks || mutated!(ReadsLatest) {
            return rows.iter().map(|row| self.read(view, row)).collect();
        }
        let mut cells: Vec<Cell> = rows.iter().map(|_| Cell::Missing).collect();
        view.view.multi_get_cell(Column::Write, rows, &mut |number, content| {
            if let (Some(cell), Some(row)) = (cells.get_mut(number), rows.get(number)) {
                *cell = Cell::new(view, row, content);
            }
        })?;
        rows.iter().zip(cells).map(|(row, cell)| cell.value(view, row)).collect()
    }

    /// What the lock's transaction made of the row, if it is committed at the view and wrote it.
    fn read_lock(&self, view: &PinnedView, row: &RowKey, lock: &Lock) -> Result<LockRead> {
        if lock.intent == Intent::Hold || self.inner.coordinator.committed_in(view, row, lock)?.is_none() {
            return Ok(LockRead::Ignore);
        }
        match &lock.intent {
            Intent::Put(value) => fetch(view, row, lock.txn, value.clone()).map(|value| LockRead::Decides(Some(value))),
            Intent::Delete => Ok(LockRead::Decides(None)),
            Intent::Hold => Ok(LockRead::Ignore),
        }
    }

    /// What a reader at the view sees of a row, given what it has in the lock and the write column.
    pub(super) fn read_cells(
        &self,
        view: &PinnedView,
        row: &RowKey,
        lock: Option<&[u8]>,
        write: Option<&[u8]>,
    ) -> Result<Option<Vec<u8>>> {
        if let Some(lock) = lock {
            // How its transaction ended is not kept for views that have expired.
            self.check_view(view)?;
            if let LockRead::Decides(value) = self.read_lock(view, row, &decode_lock(row.as_bytes(), lock)?)? {
                return Ok(value);
            }
        }
        write.map_or(Ok(None), |content| Ok(read_cell(view, row.as_bytes(), content)?.map(Cow::into_owned)))
    }
}

fn sees_upto(view: &PinnedView) -> Timestamp {
    if mutated!(SeesOneLess) { Timestamp::from_u64(view.read_ts.to_u64() - 1) } else { view.read_ts }
}

/// What a reader at the view sees of a row, given its cell in the write column. Nearly always that is the value in it.
#[inline]
pub(super) fn read_cell<'a>(view: &PinnedView, row: &[u8], content: &'a [u8]) -> Result<Option<Cow<'a, [u8]>>> {
    match Put::value(content) {
        Some((commit_ts, value)) if commit_ts <= sees_upto(view) => Ok(Some(Cow::Borrowed(value))),
        _ => Ok(read_write(view, &decode_row_key(row)?, decode_write(row, content)?)?.map(Cow::Owned)),
    }
}

/// What a reader at the view sees of a row, given its newest version.
pub(super) fn read_write(view: &PinnedView, row: &RowKey, newest: WriteRecord) -> Result<Option<Vec<u8>>> {
    let version =
        if newest.commit_ts <= sees_upto(view) { Some(newest) } else { view.view.version_at(row, view.read_ts)? };
    match version {
        Some(WriteRecord { txn, value: Some(value), .. }) => fetch(view, row, txn, value).map(Some),
        Some(WriteRecord { value: None, .. }) | None => Ok(None),
    }
}

pub(super) fn fetch(view: &PinnedView, row: &RowKey, txn: TxnId, value: Value) -> Result<Vec<u8>> {
    match value {
        Value::Inline(bytes) => Ok(bytes.to_vec()),
        Value::InData => view.view.data(row, txn.start_ts)?.ok_or_else(|| {
            let what = format!("row {row:?}: the value written by the transaction {:#} is missing", txn.start_ts);
            Error::from(ErrorKind::Corruption(what))
        }),
    }
}
