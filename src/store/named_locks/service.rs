//! The named locks of a store, with the parts of the store that their calls need.

use std::sync::Arc;

use crate::coordinator::LockAuthority;
use crate::error::{Error, ErrorKind, Result};
use crate::lock_manager::LockLostReason;
use crate::store::catalog::entries::check_name;
use crate::store::handle::Store;
use crate::store::named_locks::errors::{invalid_name_error, locks_unsupported_error, request_error};
use crate::store::named_locks::lease_rows::LeaseRows;
use crate::store::named_locks::state::NamedLocks;
use crate::timestamp::Timestamp;

/// What a call of named locks works with: the locks in memory; the lock authority, which has the
/// commits' side; and the store, whose transactions change the lease rows. [`NamedLocks`] alone has
/// neither store nor authority, because guards keep it, and must not keep the engine open.
#[derive(Clone, Copy)]
pub(crate) struct LockService<'a> {
    pub(super) store: &'a Store,
    pub locks: &'a Arc<NamedLocks>,
    pub(super) authority: &'a dyn LockAuthority,
}

impl<'a> LockService<'a> {
    /// Fails if the store is closed, read-only or on a shared engine.
    pub fn of(store: &'a Store) -> Result<Self> {
        store.inner.check_open()?;
        store.inner.check_writable()?;
        let locks = store.inner.locks.as_ref().ok_or_else(locks_unsupported_error)?;
        Ok(Self { store, locks, authority: store.inner.lock_authority()? })
    }

    /// [`LockService::of`], for a call with this lock name. Fails also if the name is invalid, or
    /// if the lease rows could not be listed when the store was opened.
    pub(in crate::store) fn for_name(store: &'a Store, name: &str) -> Result<Self> {
        check_name(name).map_err(|_| Error::invalid(invalid_name_error(name)))?;
        let service = Self::of(store)?;
        service.locks.manager.check_not_corrupt().map_err(|error| request_error(&name.into(), error))?;
        Ok(service)
    }

    pub(super) fn lease_rows(self) -> LeaseRows<'a> {
        LeaseRows::new(self.store)
    }

    /// Fails if the lease row of the name is corrupt.
    pub(super) fn check_lease_row(self, name: &str) -> Result<()> {
        let corrupt = self.locks.manager.corruption(name);
        corrupt.map_or(Ok(()), |what| Err(ErrorKind::Corruption(what.to_string()).into()))
    }

    /// Ends the grant of the name that has this token. Returns whether there was one.
    pub(super) fn end_grant(self, name: &str, token: Timestamp, reason: LockLostReason) -> Result<bool> {
        let Self { locks, authority, .. } = self;
        self.check_lease_row(name)?;
        let Some(grant) = locks.manager.release_by_token(name, token, reason, locks.env.elapsed()) else {
            return locks.check_open().map(|()| false);
        };
        if grant.has_lease_row() {
            self.lease_rows().remove(&[Arc::clone(&grant)])?;
            locks.manager.prune(name, authority.durable_ts());
        }
        Ok(true)
    }
}
