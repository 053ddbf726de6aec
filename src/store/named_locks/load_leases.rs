//! Restores the leases of named locks that earlier incarnations left, when a store is opened.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::RowRange;
use crate::engine::storage::Column;
use crate::error::{Error, Result};
use crate::lock_manager::{Lease, RequestOrigin, Requester};
use crate::read_view::ReadView;
use crate::row::RowKey;
use crate::store::catalog::entries::LOCK_PREFIX;
use crate::store::handle::Store;
use crate::store::named_locks::lease_rows::{LEASE_ROWS_PER_TXN, LeaseRow, decode_leases, lease_txn_options};
use crate::store::read::key_range::prefix_range;
use crate::timestamp::Timestamp;
use crate::value::Value;

impl Store {
    /// Restores the leases of earlier incarnations. Must be called once, before the first request.
    pub(in crate::store) fn load_leases(&self) -> Result<()> {
        let Some(locks) = &self.inner.locks else { return Ok(()) };
        if mutated!(LeaseNotReadAtOpen) {
            return Ok(());
        }
        if self.inner.engine.is_fresh_checkpoint() {
            return self.clear_leases();
        }
        let view = self.lock_authority()?.visible_view();
        let (now, unix_millis) = (locks.env.elapsed(), locks.env.unix_millis());
        let read =
            self.for_each_lease_row(&view, |key, value| match value.and_then(|value| decode_leases(key, &value)) {
                Ok((name, leases)) => {
                    let grants = leases
                        .iter()
                        .map(|row| (row.mode(), owner_of(row, now), lease_of(row, now, unix_millis), row.token));
                    locks.manager.restore_leases(&name, grants.collect(), view.read_ts);
                }
                Err(why) => {
                    let name = key.strip_prefix(LOCK_PREFIX.as_bytes()).unwrap_or(key);
                    locks.manager.set_corrupt(&String::from_utf8_lossy(name), &why.to_string());
                }
            });
        if let Err(why) = read {
            locks.manager.set_all_corrupt(&format!("the lease rows of named locks cannot be read: {why}"));
        }
        Ok(())
    }

    /// A checkpoint does not have the locks of its original: removes all lease rows.
    fn clear_leases(&self) -> Result<()> {
        let (catalog, view) = (self.inner.catalog.keyspace(), self.inner.coordinator.begin()?.0);
        let mut keys = Vec::new();
        self.for_each_lease_row(&view, |key, _| keys.push(key.to_vec()))?;
        for some in keys.chunks(LEASE_ROWS_PER_TXN) {
            let mut txn = self.begin_with(lease_txn_options())?;
            for key in some {
                txn.delete(&catalog, key)?;
            }
            txn.commit()?;
        }
        Ok(self.inner.engine.clear_checkpoint_flag()?)
    }

    /// Calls `see` for the row of each name, or with the error of reading it. Fails if the rows
    /// cannot be listed.
    pub(in crate::store) fn for_each_lease_row(
        &self,
        view: &Arc<ReadView>,
        mut see: impl FnMut(&[u8], Result<Value>),
    ) -> Result<()> {
        let mut range = prefix_range(&self.inner.catalog.keyspace(), LOCK_PREFIX.as_bytes());
        for row in self.scan_entries(view, LOCK_PREFIX) {
            let Ok(row) = row else {
                // A scan ends at an error, so the rest is read row by row.
                return self.for_each_row_singly(view, &range, see);
            };
            range.start = Bound::Excluded(self.inner.catalog.keyspace().row_key(row.key()).as_bytes().to_vec());
            let (key, value) = row.into_parts();
            see(&key, Ok(value));
        }
        Ok(())
    }

    fn for_each_row_singly(
        &self,
        view: &Arc<ReadView>,
        range: &RowRange,
        mut see: impl FnMut(&[u8], Result<Value>),
    ) -> Result<()> {
        let mut keys = Vec::new();
        view.snapshot.scan_raw(Column::Write, range, &mut |key, _| {
            keys.push(key.to_vec());
            true
        })?;
        for row in keys.iter().filter_map(|key| RowKey::from_bytes(key)) {
            if let Some(value) = self.inner.rows.read(view, &row).transpose() {
                see(row.user_key(), value.map_err(|why| damaged(&row, &why)));
            }
        }
        Ok(())
    }
}

fn damaged(row: &RowKey, why: &Error) -> Error {
    let name = row.user_key().escape_ascii();
    crate::ErrorKind::Corruption(format!("lease row \"{name}\" cannot be read: {why}")).into()
}

fn owner_of(row: &LeaseRow, now: Duration) -> Requester {
    Requester {
        origin: RequestOrigin::Recovered(Box::new(row.holder())),
        reason: row.reason.as_deref().map(Into::into),
        requested_at: now,
    }
}

fn lease_of(row: &LeaseRow, now: Duration, unix_millis: u64) -> Lease {
    Lease {
        duration: Duration::from_millis(row.ttl_ms),
        expires_at: now.saturating_add(row.remaining(unix_millis)),
        renewed_at_ms: row.since_ms,
        auto_renew: false,
        has_guard: false,
        row_writes_in_flight: 0,
        last_explicit_renewal_ts: Timestamp::ZERO,
    }
}
