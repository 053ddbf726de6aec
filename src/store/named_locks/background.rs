//! Named locks in the background worker, and at the end of a store.

use std::time::Duration;

use crate::error::{CLOSED_BY_USER, Result};
use crate::store::handle::Store;
use crate::store::named_locks::errors::is_transient;
use crate::store::named_locks::lease_rows::LeaseRows;

/// A lease that no request ends after its expiry is ended by the background worker, and its row
/// removed, when this time has passed since the expiry.
const STALE_LEASE_AFTER: Duration = Duration::from_secs(24 * 3600);

/// Removes the rows of ended leases, and of leases that expired [`STALE_LEASE_AFTER`] ago. Then
/// forgets the ended grants for which no later grant has to wait any more.
pub(in crate::store) fn prune_locks(store: &Store) -> Result<()> {
    let Some(locks) = &store.inner.locks else { return Ok(()) };
    if !locks.manager.was_used() {
        return Ok(());
    }
    let stale = locks.manager.stale_lease_rows(STALE_LEASE_AFTER, locks.env.elapsed());
    LeaseRows::new(store).remove(&stale)?;
    locks.manager.prune_all(store.inner.lock_authority()?.durable_ts());
    Ok(())
}

/// Ends all waits and grants when the store closes. Leases with a guard are released durably,
/// if the store has not failed.
pub(in crate::store) fn close_locks(store: &Store) {
    let Some(locks) = &store.inner.locks else { return };
    let mut over = locks.manager.close(CLOSED_BY_USER);
    over.extend(locks.renewer.stop());
    over.retain(|grant| grant.has_lease_row());
    let _ = LeaseRows::new(store).remove(&over).inspect_err(|error| _ = is_transient(error));
}
