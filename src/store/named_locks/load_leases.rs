//! Restores the leases of named locks that earlier incarnations left, when a store is opened.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{ErrorKind, Result};
use crate::lock_manager::{Lease, RequestOrigin, Requester};
use crate::read_view::ReadView;
use crate::store::catalog::entries::LOCK_PREFIX;
use crate::store::handle::Store;
use crate::store::named_locks::errors::is_transient;
use crate::store::named_locks::lease_row::{Clocks, LeaseRow, decode_leases};
use crate::store::named_locks::lease_rows::{LEASE_ROWS_PER_TXN, LeaseRows};
use crate::store::named_locks::state::NamedLocks;
use crate::timestamp::Timestamp;

/// Restores the leases of earlier incarnations. Must be called once, before the first request.
pub(in crate::store) fn load_leases(store: &Store) -> Result<()> {
    let Some(locks) = &store.inner.locks else { return Ok(()) };
    let rows = LeaseRows::new(store);
    if store.inner.engine.is_fresh_checkpoint() {
        // This store is a copy. The leases in its rows belong to the original store, and do not
        // apply to the copy. They go before the flag does, which no later opening would miss.
        rows.clear()?;
        crash_point!(CheckpointLeasesCleared);
        return Ok(store.inner.engine.clear_checkpoint_flag()?);
    }
    locks.restore_leases(rows, &store.inner.lock_authority()?.visible_view())
}

impl NamedLocks {
    /// Makes grants of the leases in the rows. Requests of a name with a corrupt row fail with the
    /// corruption; if the list of rows is damaged, requests of every name fail.
    fn restore_leases(&self, rows: LeaseRows<'_>, view: &Arc<ReadView>) -> Result<()> {
        let (now, clocks) = (self.env.elapsed(), Clocks::read(&*self.env));
        let mut of_other_boots = Vec::new();
        let read = rows.for_each(view, |key, value| match value.and_then(|value| decode_leases(key, &value)) {
            Ok((name, leases)) => {
                let grants =
                    leases.iter().map(|row| (row.mode(), owner_of(row, now), lease_of(row, now, &clocks), row.token));
                let valid = leases.iter().filter(|row| !row.remaining(&clocks).is_zero());
                of_other_boots
                    .extend(valid.filter_map(|row| Some((name.clone(), row.in_terms_of_this_boot(&clocks)?))));
                self.manager.restore_leases(&name, grants.collect(), (view.read_ts, now));
            }
            Err(error) => {
                let name = key.strip_prefix(LOCK_PREFIX.as_bytes()).unwrap_or(key);
                self.manager.set_corrupt(&String::from_utf8_lossy(name), &error.to_string());
            }
        });
        if let Err(error) = read {
            if !matches!(error.kind(), ErrorKind::Corruption(_)) {
                return Err(error);
            }
            self.manager.set_all_corrupt(&format!("the lease rows of named locks cannot be read: {error}"));
        }
        // A failure is no error of the opening: the next opening repeats this. If the store has
        // failed, its next call says so.
        let of_other_boots: Vec<_> = of_other_boots.iter().map(|(name, row)| (name.as_str(), row)).collect();
        for some in of_other_boots.chunks(LEASE_ROWS_PER_TXN) {
            let _ = rows.renew(some, &[]).inspect_err(|error| _ = is_transient(error));
        }
        Ok(())
    }
}

fn owner_of(row: &LeaseRow, now: Duration) -> Requester {
    Requester {
        origin: RequestOrigin::Recovered(Box::new(row.holder())),
        reason: row.reason.as_deref().map(Into::into),
        requested_at: now,
    }
}

fn lease_of(row: &LeaseRow, now: Duration, clocks: &Clocks) -> Lease {
    Lease {
        duration: Duration::from_millis(row.ttl_ms),
        expires_at: now.saturating_add(row.remaining(clocks)),
        renewed_at_ms: row.since_ms,
        auto_renew: false,
        has_guard: false,
        row_writes_in_flight: 0,
        last_explicit_renewal_ts: Timestamp::ZERO,
    }
}
