//! The rows of a keyspace that changed after a timestamp.
//!
//! One pass over the newest versions finds these rows. The pass merges the versions with the row
//! locks, because the newest value of a row may still be in the lock of a committed transaction.

use std::sync::Arc;

use crate::codec::InlineWrite;
use crate::engine::storage::Column;
use crate::engine::{RowRange, decode_lock, decode_row_key, decode_user_key, decode_write};
use crate::error::Result;
use crate::read_view::ReadView;
use crate::row::{LockType, RowKey, StoredValue, WriteRecord};
use crate::store::handle::Store;
use crate::store::read::column_cursor::ColumnCursor;
use crate::store::read::row_reader::load_value;
use crate::store::read::scanned_row::VisibleValue;
use crate::timestamp::Timestamp;

/// Calls `on_change` with the key and the value of each row of the range whose newest version in
/// the view was committed after `since`. The value of a deleted row is `None`.
pub(in crate::store) fn visit_changed_rows(
    store: &Store,
    view: &Arc<ReadView>,
    range: RowRange,
    since: Timestamp,
    mut on_change: impl FnMut(&[u8], Option<&[u8]>) -> Result<()>,
) -> Result<()> {
    let mut locks = ColumnCursor::new(Column::Lock, view.must_check_locks.then(|| range.clone()));
    let mut versions = ColumnCursor::new(Column::Write, Some(range));
    loop {
        if versions.needs_page(None, false) {
            store.inner.rows.check_usable(view)?;
            versions.read_page(&*view.snapshot, None, false)?;
        }
        if locks.needs_page(versions.peek(false), false) {
            store.inner.rows.check_usable(view)?;
            locks.read_page(&*view.snapshot, versions.read_up_to(false), false)?;
        }
        let locked = locks.peek(false).filter(|lock| versions.peek(false).is_none_or(|version| *lock <= version));
        if let Some(row) = locked.map(decode_row_key).transpose()? {
            let version = versions.next_if(&row, false).map(<[u8]>::to_vec);
            let Some((_, lock)) = locks.next(false) else { continue };
            let change = match change_in_lock(store, view, &row, lock, since)? {
                Some(change) => change,
                None => match &version {
                    Some(content) => change_in_version(view, row.as_bytes(), content, since)?,
                    None => None,
                },
            };
            if let Some(value) = change {
                on_change(row.user_key(), value.as_deref())?;
            }
            continue;
        }
        let Some((row, content)) = versions.next(false) else { return Ok(()) };
        if let Some(value) = change_in_version(view, row, content, since)? {
            on_change(decode_user_key(row)?, value.as_deref())?;
        }
    }
}

/// The change of a row: its new value, or `Some(None)` if it was deleted; `None` if it is
/// unchanged.
type RowDelta<'a> = Option<Option<VisibleValue<'a>>>;

/// The change that a lock implies. `None` if the lock is lock-only, or its transaction is not
/// committed in the view; then the row's version decides.
fn change_in_lock<'a>(
    store: &Store,
    view: &ReadView,
    row: &RowKey,
    content: &[u8],
    since: Timestamp,
) -> Result<Option<RowDelta<'a>>> {
    store.inner.rows.check_usable(view)?;
    let lock = decode_lock(row.as_bytes(), content)?;
    if lock.lock_type == LockType::LockOnly {
        return Ok(None);
    }
    let Some(commit_ts) = store.inner.coordinator.commit_ts_of_lock(view, row, &lock)? else { return Ok(None) };
    if commit_ts <= since {
        return Ok(Some(None));
    }
    let value = match lock.lock_type {
        LockType::Put(value) => Some(VisibleValue::Owned(load_value(view, row, lock.txn, value)?)),
        LockType::Delete | LockType::LockOnly => None,
    };
    Ok(Some(Some(value)))
}

fn change_in_version<'a>(view: &ReadView, row: &[u8], content: &'a [u8], since: Timestamp) -> Result<RowDelta<'a>> {
    match InlineWrite::decode_value(content) {
        Some((commit_ts, _)) if commit_ts <= since => return Ok(None),
        Some((commit_ts, value)) if commit_ts <= view.read_ts => return Ok(Some(Some(VisibleValue::Lent(value)))),
        _ => {}
    }
    let newest: WriteRecord = decode_write(row, content)?;
    if newest.commit_ts <= since {
        return Ok(None);
    }
    let row = decode_row_key(row)?;
    let version =
        if newest.commit_ts <= view.read_ts { Some(newest) } else { view.snapshot.version_at(&row, view.read_ts)? };
    let Some(WriteRecord { txn, value, .. }) = version.filter(|version| version.commit_ts > since) else {
        return Ok(None);
    };
    let value = value.map(|value: StoredValue| load_value(view, &row, txn, value)).transpose()?;
    Ok(Some(value.map(VisibleValue::Owned)))
}
