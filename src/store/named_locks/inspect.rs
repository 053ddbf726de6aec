//! Inspection of named locks: holders, the lock table, statistics. Row locks are in
//! [`Store::row_locks`].

use std::time::{Duration, UNIX_EPOCH};

use crate::error::{Error, Result};
use crate::lock_manager::{LockEntry, LockState, LockStats, LockTable, LockTarget};
use crate::store::catalog::entries::check_name;
use crate::store::handle::{Inner, Store};
use crate::store::named_locks::errors::invalid_name_error;
use crate::store::named_locks::lease_row::{Clocks, LeaseRow, decode_leases, lock_key};
use crate::store::named_locks::lease_rows::LeaseRows;
use crate::store::named_locks::service::LockService;

impl Store {
    /// The present holders of a named lock.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for an invalid name, and
    /// on a shared engine; [`ErrorKind::Corruption`](crate::ErrorKind::Corruption) if the lease row
    /// of the name is corrupt; [`ErrorKind::Closed`](crate::ErrorKind::Closed).
    pub fn lock_holders(&self, name: &str) -> Result<Vec<LockEntry>> {
        check_name(name).map_err(|_| Error::invalid(invalid_name_error(name)))?;
        if self.inner.options.read_only {
            let table = leases_on_disk(self, Some(name))?;
            return Ok(table.into_iter().filter(|entry| entry.target == LockTarget::from(name)).collect());
        }
        let service = LockService::for_name(self, name)?;
        service.check_lease_row(name)?;
        let locks = service.locks;
        let holders = locks.manager.holders(name, &locks.clock(), usize::MAX, |_| true).0;
        locks.check_open().map(|()| holders)
    }

    /// All grants and waiting requests of named locks, and which request waits for which. The
    /// entries of one name are consistent with each other; different names may be read at different
    /// times.
    ///
    /// Each listed cycle was confirmed by reading the table a second time, but the list of cycles
    /// may be incomplete: see [`LockTable::wait_cycles`]. A read-only store lists only the leases
    /// that are stored.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// # let store = percolite::Store::in_memory()?;
    /// let guard = store.lock("nightly")?;
    /// let table = store.lock_table()?;
    /// assert_eq!((table.held, table.waiting), (1, 0));
    /// assert_eq!(table.entries[0].token, Some(guard.token()));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) on a shared engine,
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed); on a read-only store those of reading.
    pub fn lock_table(&self) -> Result<LockTable> {
        if self.inner.options.read_only {
            let entries = leases_on_disk(self, None)?;
            return Ok(LockTable { held: entries.len(), entries, ..LockTable::default() });
        }
        let LockService { locks, .. } = LockService::of(self)?;
        let table = locks.manager.table(&locks.clock());
        locks.check_open().map(|()| table)
    }

    /// Counters of named locks since the store was opened; zero on a store without them.
    pub fn lock_stats(&self) -> LockStats {
        self.inner.locks.as_ref().map(|locks| locks.manager.metrics.snapshot()).unwrap_or_default()
    }
}

/// The lock table with the totals of all locks, but with the entries of at most `listed` grants
/// and `listed` waiting requests.
pub(in crate::store) fn lock_summary(inner: &Inner, listed: usize) -> LockTable {
    let locks = inner.locks.as_ref();
    locks.map(|locks| locks.manager.summary(&locks.clock(), listed)).unwrap_or_default()
}

/// The unexpired leases in the lease rows. A corrupt row is an error only if it is the row of
/// the name `needed`; `verify` reports every corrupt row.
fn leases_on_disk(store: &Store, needed: Option<&str>) -> Result<Vec<LockEntry>> {
    store.inner.check_open()?;
    let mut entries = Vec::new();
    if store.inner.engine.is_fresh_checkpoint() {
        return Ok(entries);
    }
    let view = store.inner.coordinator.begin()?.0;
    let now = Clocks::read(&*store.inner.env);
    let needed = needed.map(lock_key);
    let mut damaged = Ok(());
    LeaseRows::new(store).for_each(&view, |key, value| match value.and_then(|value| decode_leases(key, &value)) {
        Ok((name, leases)) => {
            for lease in leases.iter().filter(|lease| !lease.remaining(&now).is_zero()) {
                entries.push(lock_entry(&name, lease, entries.len() as u64 + 1, &now));
            }
        }
        Err(error) if needed.as_ref().is_some_and(|needed| needed.as_bytes() == key) => damaged = Err(error),
        Err(_) => {}
    })?;
    damaged.map(|()| entries)
}

fn lock_entry(name: &str, lease: &LeaseRow, id: u64, now: &Clocks) -> LockEntry {
    LockEntry {
        id,
        target: LockTarget::from(name).into_owned(),
        mode: lease.mode(),
        state: LockState::Held,
        token: Some(lease.token),
        holder: lease.holder(),
        reason: lease.reason.clone(),
        since: UNIX_EPOCH + Duration::from_millis(lease.since_ms),
        lease_remaining: Some(lease.remaining(now)),
        waiter_count: 0,
        took_over: None,
        blocked_by: Vec::new(),
    }
}
