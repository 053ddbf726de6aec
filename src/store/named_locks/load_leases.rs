//! Restores the leases of named locks that earlier incarnations left, when a store is opened.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::lock_manager::{Lease, RequestOrigin, Requester};
use crate::read_view::ReadView;
use crate::store::catalog::entries::LOCK_PREFIX;
use crate::store::handle::Store;
use crate::store::named_locks::lease_row::{LeaseRow, decode_leases};
use crate::store::named_locks::lease_rows::LeaseRows;
use crate::store::named_locks::state::NamedLocks;
use crate::timestamp::Timestamp;

/// Restores the leases of earlier incarnations. Must be called once, before the first request.
pub(in crate::store) fn load_leases(store: &Store) -> Result<()> {
    let Some(locks) = &store.inner.locks else { return Ok(()) };
    let rows = LeaseRows::new(store);
    if store.inner.engine.is_fresh_checkpoint() {
        // This store is a copy. The leases in its rows belong to the original store, and do not
        // apply to the copy.
        rows.clear()?;
        return Ok(store.inner.engine.clear_checkpoint_flag()?);
    }
    locks.restore_leases(rows, &store.inner.lock_authority()?.visible_view());
    Ok(())
}

impl NamedLocks {
    /// Makes grants of the leases in the rows. Requests of a name with a corrupt row fail with the
    /// corruption; if the rows cannot be listed, requests of every name fail.
    fn restore_leases(&self, rows: LeaseRows<'_>, view: &Arc<ReadView>) {
        let (now, unix_millis) = (self.env.elapsed(), self.env.unix_millis());
        let read = rows.for_each(view, |key, value| match value.and_then(|value| decode_leases(key, &value)) {
            Ok((name, leases)) => {
                let grants = leases
                    .iter()
                    .map(|row| (row.mode(), owner_of(row, now), lease_of(row, now, unix_millis), row.token));
                self.manager.restore_leases(&name, grants.collect(), view.read_ts);
            }
            Err(error) => {
                let name = key.strip_prefix(LOCK_PREFIX.as_bytes()).unwrap_or(key);
                self.manager.set_corrupt(&String::from_utf8_lossy(name), &error.to_string());
            }
        });
        if let Err(error) = read {
            self.manager.set_all_corrupt(&format!("the lease rows of named locks cannot be read: {error}"));
        }
    }
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
