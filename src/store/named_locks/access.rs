//! Access to the three parts of a store that its named locks need: the lock authority, the locks in
//! memory, and the lease rows.

use std::sync::Arc;

use crate::coordinator::LockAuthority;
use crate::error::{Error, Result};
use crate::store::catalog::entries::check_name;
use crate::store::handle::Store;
use crate::store::named_locks::errors::{invalid_name_error, locks_unsupported_error, request_error};
use crate::store::named_locks::lease_rows::LeaseRows;
use crate::store::named_locks::state::NamedLocks;

impl Store {
    /// The lock authority. Fails if the store does not support named locks. The authority is not in
    /// [`NamedLocks`], which guards keep, because it would keep the engine open.
    pub(super) fn lock_authority(&self) -> Result<&dyn LockAuthority> {
        self.inner.lock_authority.as_deref().ok_or_else(locks_unsupported_error)
    }

    /// The named locks. Fails if the store is closed, read-only or on a shared engine.
    pub(crate) fn named_locks(&self) -> Result<&Arc<NamedLocks>> {
        self.inner.check_open()?;
        self.inner.check_writable()?;
        self.inner.locks.as_ref().ok_or_else(locks_unsupported_error)
    }

    /// [`Store::named_locks`], for a call with this lock name. Fails also if the name is invalid,
    /// or if the lease rows could not be listed when the store was opened.
    pub(in crate::store) fn named_locks_for(&self, name: &str) -> Result<&Arc<NamedLocks>> {
        check_name(name).map_err(|_| Error::invalid(invalid_name_error(name)))?;
        let locks = self.named_locks()?;
        locks.manager.check_not_corrupt().map_err(|why| request_error(&name.into(), why))?;
        Ok(locks)
    }

    /// The lease rows of the named locks.
    pub(crate) fn lease_rows(&self) -> LeaseRows<'_> {
        LeaseRows { store: self }
    }
}
