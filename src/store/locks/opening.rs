//! What opening a store makes of the leases that earlier lives have left.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use super::leases::{LeaseRow, ROWS_AT_ONCE, of_leases, read_leases};
use crate::engine::RowRange;
use crate::engine::storage::Column;
use crate::error::{Error, Result};
use crate::locking::{Asker, Lease, Owner};
use crate::row::RowKey;
use crate::store::Store;
use crate::store::catalog::LOCK;
use crate::store::range::prefix_range;
use crate::timestamp::Timestamp;
use crate::view::PinnedView;

impl Store {
    /// Takes the leases over that earlier lives have left. To be called once, before the first request.
    pub(in crate::store) fn load_leases(&self) -> Result<()> {
        let Some(locks) = &self.inner.locks else { return Ok(()) };
        if mutated!(LeaseNotReadAtOpen) {
            return Ok(());
        }
        if self.inner.engine.is_fresh_checkpoint() {
            return self.forget_leases();
        }
        let Some(embedded) = &self.inner.embedded else { return Ok(()) };
        let view = embedded.pipeline().current_view();
        let (now, unix_millis) = (locks.runtime.elapsed(), locks.runtime.unix_millis());
        let read =
            self.each_row_of_leases(&view, |key, value| match value.and_then(|value| read_leases(key, &value)) {
                Ok((name, leases)) => {
                    let grants = leases
                        .iter()
                        .map(|row| (row.mode(), owner_of(row, now), lease_of(row, now, unix_millis), row.token));
                    locks.heads.load(&name, grants.collect(), view.read_ts);
                }
                Err(why) => {
                    let name = key.strip_prefix(LOCK.as_bytes()).unwrap_or(key);
                    locks.heads.damaged(&String::from_utf8_lossy(name), &why.to_string());
                }
            });
        if let Err(why) = read {
            locks.heads.unreadable(&format!("the leases of locks cannot be read: {why}"));
        }
        Ok(())
    }

    /// A copy of a folder holds nothing of what its original does.
    fn forget_leases(&self) -> Result<()> {
        let (catalog, view) = (self.catalog(), self.inner.coordinator.begin()?.0);
        let mut keys = Vec::new();
        self.each_row_of_leases(&view, |key, _| keys.push(key.to_vec()))?;
        for some in keys.chunks(ROWS_AT_ONCE) {
            let mut txn = self.begin_with(of_leases())?;
            for key in some {
                txn.delete(&catalog, key)?;
            }
            txn.commit()?;
        }
        Ok(self.inner.engine.clear_checkpoint_flag()?)
    }

    /// Shows `see` the row of each name, or why it cannot be read. Fails when nothing more is known of the others.
    pub(super) fn each_row_of_leases(
        &self,
        view: &Arc<PinnedView>,
        mut see: impl FnMut(&[u8], Result<Vec<u8>>),
    ) -> Result<()> {
        let mut range = prefix_range(&self.catalog(), LOCK.as_bytes());
        for row in self.listed(view, LOCK) {
            let Ok((key, value)) = row else {
                // A scan ends there: from here on row by row.
                return self.each_row_by_itself(view, &range, see);
            };
            see(&key, Ok(value));
            range.start = Bound::Excluded(self.catalog().row_of(&key).as_bytes().to_vec());
        }
        Ok(())
    }

    fn each_row_by_itself(
        &self,
        view: &Arc<PinnedView>,
        range: &RowRange,
        mut see: impl FnMut(&[u8], Result<Vec<u8>>),
    ) -> Result<()> {
        let mut keys = Vec::new();
        view.view.scan_raw(Column::Write, range, &mut |key, _| {
            keys.push(key.to_vec());
            true
        })?;
        for row in keys.iter().filter_map(|key| RowKey::from_bytes(key)) {
            if let Some(value) = self.read(view, &row).transpose() {
                see(row.key(), value.map_err(|why| damaged(&row, &why)));
            }
        }
        Ok(())
    }
}

fn damaged(row: &RowKey, why: &Error) -> Error {
    let name = row.key().escape_ascii();
    crate::ErrorKind::Corruption(format!("the row \"{name}\" of the leases of a lock cannot be read: {why}")).into()
}

fn owner_of(row: &LeaseRow, now: Duration) -> Owner {
    Owner { by: Asker::EarlierLife(Box::new(row.holder())), why: row.why.as_deref().map(Into::into), asked: now }
}

fn lease_of(row: &LeaseRow, now: Duration, unix_millis: u64) -> Lease {
    Lease {
        time: Duration::from_millis(row.time_ms),
        ends: now.saturating_add(row.left(unix_millis)),
        since_ms: row.since_ms,
        renews: false,
        has_guard: false,
        writing: 0,
        asked: Timestamp::ZERO,
    }
}
