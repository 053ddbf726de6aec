//! Locks by name and token alone, without a guard: for programs that come back later, and for operators.

use std::sync::Arc;
use std::time::Duration;

use super::take::request_error;
use super::{LockGuard, LockOptions, LockWaitPolicy};
use crate::error::{Error, ErrorKind, Result};
use crate::locking::{LockLost, LockLostReason, LockTarget, RequestHandle};
use crate::store::Store;
use crate::timestamp::Timestamp;

impl Store {
    /// Takes a lock for `lease` and does not wait, unlike MySQL's `GET_LOCK`, whose second argument is the patience and which ends with its
    /// connection. Returns the token, or `None` when the lock is held. The lease is not renewed; the lock is free when
    /// [`Store::release_lock`] was called with the token, or the time is over, whatever becomes of this process.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// use std::time::Duration;
    /// # let store = percolite::Store::in_memory()?;
    /// assert!(store.is_free_lock("some_resource")?);
    /// let token = store.get_lock("some_resource", Duration::from_secs(3600))?.expect("it is free");
    /// assert!(!store.is_free_lock("some_resource")?);
    /// assert!(store.get_lock("some_resource", Duration::from_secs(3600))?.is_none());
    /// assert!(store.release_lock("some_resource", token)?);
    /// assert!(store.is_free_lock("some_resource")?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`Store::lock_with`], but for [`ErrorKind::LockNotAvailable`].
    pub fn get_lock(&self, name: &str, lease: Duration) -> Result<Option<Timestamp>> {
        let options = LockOptions::exclusive().wait(LockWaitPolicy::NoWait).lease(lease).once();
        let Some(guard) = self.try_lock_with(&name.into(), &options)? else { return Ok(None) };
        let grant = Arc::clone(guard.grant());
        match guard.detach() {
            Ok(token) => Ok(Some(token)),
            Err(_) => Err(lost(
                &grant.lost_error(grant.end_reason_at(self.inner.runtime.elapsed()).unwrap_or(LockLostReason::Expired)),
            )),
        }
    }

    /// Releases the lock that has this token, durably, unlike MySQL's `RELEASE_LOCK`, which goes by the connection. `false` when no
    /// grant of the name has it, because it was released before or its time is over; then nothing changes. A guard of it, if there is
    /// one, is lost.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for what is no name, and where the store takes no locks ([`Store::lock`]); [`ErrorKind::Undetermined`]
    /// when the store fails; [`ErrorKind::Io`], [`ErrorKind::Corruption`], [`ErrorKind::Closed`]. Where the row could not be removed the
    /// lock is free in this process even so, and the background or the next holder removes it.
    pub fn release_lock(&self, name: &str, token: Timestamp) -> Result<bool> {
        self.end_lock(name, token, LockLostReason::Released)
    }

    /// Whether the lock could be taken exclusively at this moment: it is not held, and no request waits for it. Like MySQL's `IS_FREE_LOCK`, but a
    /// lease whose time is over counts as free at once.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], [`ErrorKind::Corruption`] and [`ErrorKind::Closed`] as [`Store::lock`].
    pub fn is_free_lock(&self, name: &str) -> Result<bool> {
        let locks = self.lock_manager_for(name)?;
        locks.heads.is_free(name, locks.runtime.elapsed()).map_err(|why| request_error(&LockTarget::from(name), why))
    }

    /// Takes the lock away from the holder that has this token, for operators: its guard is lost, its fenced transactions are not committed,
    /// its lease is durably gone. `false` when no grant of the name has the token. Of a name whose row is damaged ([`Store::lock`] answers
    /// [`ErrorKind::Corruption`]) any token removes the row.
    ///
    /// What the holder does outside of the store goes on, so let the token fence it.
    ///
    /// # Errors
    /// Those of [`Store::release_lock`].
    pub fn force_unlock(&self, name: &str, token: Timestamp) -> Result<bool> {
        let locks = self.lock_manager_for(name)?;
        if locks.heads.corruption(name).is_some() {
            self.remove_damaged(name)?;
            return Ok(locks.heads.clear_corrupt(name));
        }
        let forced = self.end_lock(name, token, LockLostReason::Forced)?;
        if forced {
            locks.heads.metrics.forced();
            event!(WARN, lock = name, %token, "lock forced");
        }
        Ok(forced)
    }

    fn end_lock(&self, name: &str, token: Timestamp, why: LockLostReason) -> Result<bool> {
        let locks = self.lock_manager_for(name)?;
        if let Some(what) = locks.heads.corruption(name) {
            return Err(ErrorKind::Corruption(what.to_string()).into());
        }
        let Some(grant) = locks.heads.release_by_token(name, token, why, locks.runtime.elapsed()) else {
            return locks.check_open().map(|()| false);
        };
        if grant.has_lease_row() && !mutated!(LeaseReturnedEarly) {
            self.remove_leases(&[Arc::clone(&grant)])?;
            locks.heads.prune(name, self.stats().durable_ts);
        }
        Ok(true)
    }

    /// Goes on with a lease that was kept ([`LockGuard::detach`], [`Store::get_lock`]) or whose process has ended: a guard with the
    /// same token, which renews it at half of its time.
    ///
    /// # Errors
    /// [`ErrorKind::LockLost`] when it is over, or the name has no such lease; [`ErrorKind::InvalidArgument`] when a guard of this process holds
    /// it, and otherwise as [`Store::lock`].
    pub fn attach_lock(&self, name: &str, token: Timestamp) -> Result<LockGuard> {
        let locks = self.lock_manager_for(name)?;
        if let Some(what) = locks.heads.corruption(name) {
            return Err(ErrorKind::Corruption(what.to_string()).into());
        }
        locks.keeper.start(self)?;
        if let Some(grant) = locks.heads.attach_guard(name, token, locks.runtime.elapsed()) {
            locks.keeper.watch(&grant);
            return Ok(LockGuard::new(self, locks, RequestHandle::new(&locks.heads, grant, false)));
        }
        locks.check_open()?;
        let holders = locks.heads.holders(name, &locks.clock(), 1, |grant| grant.token() == token).0;
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
