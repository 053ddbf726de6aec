//! Named locks by name and token, without a guard: for programs that return later, and for
//! operators.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::lock_manager::{LockLost, LockLostReason, LockTarget, RequestHandle};
use crate::store::handle::Store;
use crate::store::named_locks::errors::request_error;
use crate::store::named_locks::guard::LockGuard;
use crate::store::named_locks::options::{LockOptions, LockWaitPolicy};
use crate::store::named_locks::service::LockService;
use crate::timestamp::Timestamp;

impl Store {
    /// Acquires a lock with a lease of this duration, without waiting. Returns the token, or `None`
    /// if the lock is not available. The lease outlasts this process and is not renewed. It ends
    /// when [`Store::release_lock`] is called with the token, or `lease` has passed.
    ///
    /// MySQL's `GET_LOCK` differs: its second argument is the timeout, and the lock ends with the
    /// connection.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// use std::time::Duration;
    /// # let store = percolite::Store::in_memory()?;
    /// assert!(store.is_free_lock("some_resource")?);
    /// let token = store.get_lock("some_resource", Duration::from_secs(3600))?.expect("free");
    /// assert!(!store.is_free_lock("some_resource")?);
    /// assert!(store.get_lock("some_resource", Duration::from_secs(3600))?.is_none());
    /// assert!(store.release_lock("some_resource", token)?);
    /// assert!(store.is_free_lock("some_resource")?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`Store::lock_with`], except [`ErrorKind::LockNotAvailable`].
    pub fn get_lock(&self, name: &str, lease: Duration) -> Result<Option<Timestamp>> {
        let options = LockOptions::exclusive().wait(LockWaitPolicy::NoWait).lease(lease).auto_renew(false);
        let Some(guard) = LockService::of(self)?.try_lock(&name.into(), &options)? else { return Ok(None) };
        let grant = Arc::clone(guard.grant());
        match guard.detach() {
            Ok(token) => Ok(Some(token)),
            Err(_) => Err(lost(
                &grant.lost_error(grant.end_reason_at(self.inner.env.elapsed()).unwrap_or(LockLostReason::Expired)),
            )),
        }
    }

    /// Releases the lock that has this token, durably. If the grant has a guard, the guard loses
    /// the grant. Returns `false`, without effect, if no grant of the name has the token: the grant
    /// was released before, or its lease has expired. MySQL's `RELEASE_LOCK` differs: it releases
    /// the lock of the connection.
    ///
    /// # Errors
    /// A lease is also stored as a row. If removing this row fails, the call returns the error, but
    /// the lock has been released in this process, and the background worker or the next holder
    /// removes the row later. A corrupt row stays until [`Store::force_unlock`], and requests of
    /// the name fail until then.
    ///
    /// - [`ErrorKind::InvalidArgument`] for an invalid name, and on a store without locks
    ///   ([`Store::lock`]).
    /// - [`ErrorKind::Undetermined`] if the store fails.
    /// - [`ErrorKind::Io`], [`ErrorKind::Corruption`], [`ErrorKind::Closed`].
    pub fn release_lock(&self, name: &str, token: Timestamp) -> Result<bool> {
        LockService::for_name(self, name)?.end_grant(name, token, LockLostReason::Released)
    }

    /// Whether the lock is available exclusively at this time: it is not held, and no request waits
    /// for it. As MySQL's `IS_FREE_LOCK`, but an expired lease counts as free immediately.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::Corruption`] and [`ErrorKind::Closed`], as
    /// [`Store::lock`].
    pub fn is_free_lock(&self, name: &str) -> Result<bool> {
        let LockService { locks, .. } = LockService::for_name(self, name)?;
        locks.manager.is_free(name, locks.env.elapsed()).map_err(|error| request_error(&LockTarget::from(name), error))
    }

    /// Ends the grant that has this token, for operators: its guard is lost, its fenced
    /// transactions do not commit, and its lease is durably removed. Returns `false` if no grant of
    /// the name has the token. A lease is also stored as a row. If this row is corrupt
    /// ([`Store::lock`] returns [`ErrorKind::Corruption`]), a call with any token removes the row.
    ///
    /// **What may still become visible.** The call waits for no commit. A fenced commit that was
    /// decided before the end may become visible after the call has returned, and is not lost. Who
    /// needs to see all of them acquires the lock: the next grant waits for them.
    ///
    /// What the holder does outside of the store continues, except where a service checks the
    /// token.
    ///
    /// # Errors
    /// Those of [`Store::release_lock`].
    pub fn force_unlock(&self, name: &str, token: Timestamp) -> Result<bool> {
        let service = LockService::for_name(self, name)?;
        let manager = &service.locks.manager;
        if manager.corruption(name).is_some() {
            service.lease_rows().remove_corrupt(name)?;
            return Ok(manager.clear_corrupt(name));
        }
        let forced = service.end_grant(name, token, LockLostReason::Forced)?;
        if forced {
            manager.metrics.forced();
            event!(WARN, lock = name, %token, "lock forced");
        }
        Ok(forced)
    }

    /// Makes a guard for a lease without a guard: after [`LockGuard::detach`] or
    /// [`Store::get_lock`], or because the process of its guard has ended. The guard has the token
    /// of the lease, and the lease is renewed whenever half of its time has passed.
    ///
    /// # Errors
    /// - [`ErrorKind::LockLost`] if the lease has expired, or the name has no lease with this
    ///   token.
    /// - [`ErrorKind::InvalidArgument`] if a guard of this process holds it.
    /// - Otherwise those of [`Store::lock`].
    pub fn attach_lock(&self, name: &str, token: Timestamp) -> Result<LockGuard> {
        let service = LockService::for_name(self, name)?;
        let locks = service.locks;
        service.check_lease_row(name)?;
        service.start_lease_renewer()?;
        if let Some(grant) = locks.manager.attach_guard(name, token, locks.env.elapsed()) {
            locks.renewer.watch(&grant);
            return Ok(LockGuard::new(self, locks, RequestHandle::new(&locks.manager, grant, false)));
        }
        locks.check_open()?;
        let holders = locks.manager.holders(name, &locks.clock(), 1, |grant| grant.token() == token).0;
        if !holders.is_empty() {
            return Err(Error::invalid(format!("lock {name:?} is held by a guard of this process")));
        }
        let target = LockTarget::from(name).into_owned();
        Err(lost(&LockLost { target, token, reason: LockLostReason::UnknownToken }))
    }
}

fn lost(what: &LockLost) -> Error {
    ErrorKind::LockLost(Box::new(what.clone())).into()
}
