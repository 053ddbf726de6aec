//! The parts of a store that its named locks consist of.

use std::sync::Arc;

use crate::coordinator::LockAuthority;
use crate::error::{Error, Result};
use crate::store::catalog::entries::check_name;
use crate::store::handle::Store;
use crate::store::named_locks::errors::{invalid_name_error, locks_unsupported_error, request_error};
use crate::store::named_locks::lease_rows::LeaseRows;
use crate::store::named_locks::state::NamedLocks;

impl Store {
    /// The authority for tokens; a store that supports named locks has one. Guards do not share it,
    /// because it keeps the engine open.
    pub(super) fn lock_authority(&self) -> Result<&dyn LockAuthority> {
        self.inner.lock_authority.as_deref().ok_or_else(locks_unsupported_error)
    }

    /// The named locks of a store that supports them.
    pub(crate) fn named_locks(&self) -> Result<&Arc<NamedLocks>> {
        self.inner.check_open()?;
        self.inner.check_writable()?;
        self.inner.locks.as_ref().ok_or_else(locks_unsupported_error)
    }

    /// The named locks, if the name is valid and the lease rows could be read.
    pub(in crate::store) fn named_locks_for(&self, name: &str) -> Result<&Arc<NamedLocks>> {
        check_name(name).map_err(|_| Error::invalid(invalid_name_error(name)))?;
        let locks = self.named_locks()?;
        locks.manager.check_not_corrupt().map_err(|why| request_error(&name.into(), why))?;
        Ok(locks)
    }

    /// The rows of their leases.
    pub(crate) fn lease_rows(&self) -> LeaseRows<'_> {
        LeaseRows::new(self)
    }
}
