//! What has become of the rows of a keyspace since a moment: one pass over their newest versions, and over the locks of commits that
//! are not carried out yet.

use std::borrow::Cow;
use std::sync::Arc;

use crate::codec::Put;
use crate::engine::storage::Column;
use crate::engine::{RowRange, decode_lock, decode_row_key, decode_write};
use crate::error::Result;
use crate::row::{Intent, RowKey, Value, WriteRecord};
use crate::store::Store;
use crate::store::layer::Layer;
use crate::store::read::fetch;
use crate::timestamp::Timestamp;
use crate::view::PinnedView;

/// Shows `see` each row of the range whose newest version at the view was committed after `since`: its key, and its value unless it
/// was deleted.
pub(super) fn visit(
    store: &Store,
    view: &Arc<PinnedView>,
    range: RowRange,
    since: Timestamp,
    mut see: impl FnMut(&[u8], Option<&[u8]>) -> Result<()>,
) -> Result<()> {
    let mut locks = Layer::new(Column::Lock, view.check_locks.then(|| range.clone()));
    let mut versions = Layer::new(Column::Write, Some(range));
    loop {
        if versions.lacks(None, false) {
            store.check_view(view)?;
            versions.read(&*view.view, None, false)?;
        }
        if locks.lacks(versions.peek(false), false) {
            store.check_view(view)?;
            locks.read(&*view.view, versions.known(false), false)?;
        }
        let locked = locks.peek(false).filter(|lock| versions.peek(false).is_none_or(|version| *lock <= version));
        if let Some(row) = locked.map(decode_row_key).transpose()? {
            let version = versions.next_of(&row, false).map(<[u8]>::to_vec);
            let Some((_, lock)) = locks.next(false) else { continue };
            let change = match by_lock(store, view, &row, lock, since)? {
                Some(change) => change,
                None => match &version {
                    Some(content) => by_version(view, row.as_bytes(), content, since)?,
                    None => None,
                },
            };
            if let Some(value) = change {
                see(row.key(), value.as_deref())?;
            }
            continue;
        }
        let Some((row, content)) = versions.next(false) else { return Ok(()) };
        if let Some(value) = by_version(view, row, content, since)? {
            see(RowKey::key_of(row), value.as_deref())?;
        }
    }
}

/// What a row has become, `None` inside for deleted; and `None` when it has not changed.
type Change<'a> = Option<Option<Cow<'a, [u8]>>>;

/// `None` where the lock says nothing, and the version counts.
fn by_lock<'a>(
    store: &Store,
    view: &PinnedView,
    row: &RowKey,
    content: &[u8],
    since: Timestamp,
) -> Result<Option<Change<'a>>> {
    store.check_view(view)?;
    let lock = decode_lock(row.as_bytes(), content)?;
    if lock.intent == Intent::Hold {
        return Ok(None);
    }
    let Some(commit_ts) = store.inner.coordinator.committed_in(view, row, &lock)? else { return Ok(None) };
    if commit_ts <= since {
        return Ok(Some(None));
    }
    let value = match lock.intent {
        Intent::Put(value) => Some(Cow::Owned(fetch(view, row, lock.txn, value)?)),
        Intent::Delete | Intent::Hold => None,
    };
    Ok(Some(Some(value)))
}

fn by_version<'a>(view: &PinnedView, row: &[u8], content: &'a [u8], since: Timestamp) -> Result<Change<'a>> {
    match Put::value(content) {
        Some((commit_ts, _)) if commit_ts <= since => return Ok(None),
        Some((commit_ts, value)) if commit_ts <= view.read_ts => return Ok(Some(Some(Cow::Borrowed(value)))),
        _ => {}
    }
    let newest: WriteRecord = decode_write(row, content)?;
    if newest.commit_ts <= since {
        return Ok(None);
    }
    let row = decode_row_key(row)?;
    let version =
        if newest.commit_ts <= view.read_ts { Some(newest) } else { view.view.version_at(&row, view.read_ts)? };
    let Some(WriteRecord { txn, value, .. }) = version.filter(|version| version.commit_ts > since) else {
        return Ok(None);
    };
    let value = value.map(|value: Value| fetch(view, &row, txn, value)).transpose()?;
    Ok(Some(value.map(Cow::Owned)))
}
