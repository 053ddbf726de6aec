//! Looking at locks.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use super::NamedLocks;
use super::leases::{LeaseRow, decode_leases, lock_key};
use super::take::{invalid_name_error, request_error};
use crate::error::{Error, Result};
use crate::locking::{LockEntry, LockState, LockStats, LockTable, LockTarget};
use crate::store::Store;
use crate::store::catalog::check_name;

impl Store {
    /// The holders of a lock at this moment.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for what is no name, and where others share the engine;
    /// [`ErrorKind::Corruption`](crate::ErrorKind::Corruption) when the row of its leases is damaged,
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed).
    pub fn lock_holders(&self, name: &str) -> Result<Vec<LockEntry>> {
        check_name(name).map_err(|_| Error::invalid(invalid_name_error(name)))?;
        if self.inner.options.read_only {
            let table = self.leases_on_disk(Some(name))?;
            return Ok(table.into_iter().filter(|entry| entry.target == LockTarget::from(name)).collect());
        }
        let locks = self.lock_manager_for(name)?;
        let damage = locks.heads.corruption(name);
        damage.map_or(Ok(()), |what| Err(request_error(&name.into(), crate::locking::RequestError::Corrupt(what))))?;
        let holders = locks.heads.holders(name, &locks.clock(), usize::MAX, |_| true).0;
        locks.check_open().map(|()| holders)
    }

    /// All locks that are held and waited for at this moment, and which request waits for which. The entries of each name belong to one
    /// moment; different names may be of different moments. A cycle that is listed was seen with the same waits by a second look, and not
    /// every cycle may be listed: see [`LockTable::wait_cycles`]. A store that was opened read-only shows its leases.
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
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) where others share the engine,
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed); read-only those of reading.
    pub fn lock_table(&self) -> Result<LockTable> {
        if self.inner.options.read_only {
            let entries = self.leases_on_disk(None)?;
            return Ok(LockTable { held: entries.len(), entries, ..LockTable::default() });
        }
        let locks = self.lock_manager()?;
        let table = locks.heads.table(&locks.clock());
        locks.check_open().map(|()| table)
    }

    /// How often locks were taken and waited for since the store was opened; nothing where it takes none.
    pub fn lock_stats(&self) -> LockStats {
        self.inner.locks.as_ref().map(|locks| locks.heads.metrics.snapshot()).unwrap_or_default()
    }

    pub(super) fn lock_manager_for(&self, name: &str) -> Result<&Arc<NamedLocks>> {
        check_name(name).map_err(|_| Error::invalid(invalid_name_error(name)))?;
        let locks = self.lock_manager()?;
        locks.heads.check_not_corrupt().map_err(|why| request_error(&name.into(), why))?;
        Ok(locks)
    }

    /// The first of what is held and what waits, and how much there is of each.
    pub(in crate::store) fn lock_summary(&self, listed: usize) -> LockTable {
        let locks = self.inner.locks.as_ref();
        locks.map(|locks| locks.heads.summary(&locks.clock(), listed)).unwrap_or_default()
    }

    /// What the rows say. Only of the name `needed` a damaged row is an error; of others `verify` tells.
    fn leases_on_disk(&self, needed: Option<&str>) -> Result<Vec<LockEntry>> {
        self.inner.check_open()?;
        let mut entries = Vec::new();
        if self.inner.engine.is_fresh_checkpoint() {
            return Ok(entries);
        }
        let view = self.inner.coordinator.begin()?.0;
        let now = self.inner.runtime.unix_millis();
        let needed = needed.map(lock_key);
        let mut damaged = Ok(());
        self.for_each_lease_row(&view, |key, value| match value.and_then(|value| decode_leases(key, &value)) {
            Ok((name, leases)) => {
                for lease in leases.iter().filter(|lease| !lease.remaining(now).is_zero()) {
                    entries.push(lock_entry(&name, lease, entries.len() as u64 + 1, now));
                }
            }
            Err(why) if needed.as_ref().is_some_and(|needed| needed.as_bytes() == key) => damaged = Err(why),
            Err(_) => {}
        })?;
        damaged.map(|()| entries)
    }
}

fn lock_entry(name: &str, lease: &LeaseRow, id: u64, unix_millis: u64) -> LockEntry {
    LockEntry {
        id,
        target: LockTarget::from(name).into_owned(),
        mode: lease.mode(),
        state: LockState::Held,
        token: Some(lease.token),
        holder: lease.holder(),
        reason: lease.reason.clone(),
        since: UNIX_EPOCH + Duration::from_millis(lease.since_ms),
        lease_remaining: Some(lease.remaining(unix_millis)),
        waiter_count: 0,
        took_over: None,
        blocked_by: Vec::new(),
    }
}
