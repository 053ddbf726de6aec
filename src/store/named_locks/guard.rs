//! Guards: RAII owners of grants of named locks.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::lock_manager::{
    Grant, Lease, LockEntry, LockLostReason, LockMode, LockState, LockWait, RequestHandle, UpgradeResult,
};
use crate::option_ranges;
use crate::store::handle::{Inner, Store};
use crate::store::named_locks::errors::request_error;
use crate::store::named_locks::fence::Fence;
use crate::store::named_locks::lease_rows::LeaseRows;
use crate::store::named_locks::options::{LockOptions, LockWaitPolicy};
use crate::store::named_locks::service::LockService;
use crate::store::named_locks::state::NamedLocks;
use crate::timestamp::Timestamp;
use crate::waiter::Waiter;

/// A named lock that is held. Dropping the guard releases the lock, without waiting. The guard may
/// be sent to other threads. It does not keep the store open: closing the store ends the grant.
///
/// The guard alone protects nothing from a process that was paused: such a process may continue
/// with a guard whose grant has ended. A [fence](crate::Txn::fence) makes the store reject the
/// writes of such a process. A service outside of the store must reject the outdated
/// [token](LockGuard::token) of such a process.
#[must_use = "a guard that is dropped releases its lock"]
pub struct LockGuard {
    request: RequestHandle,
    locks: Arc<NamedLocks>,
    store: Weak<Inner>,
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockGuard({:?}, {}, {})", self.grant().name, self.grant().mode, self.token())
    }
}

impl LockGuard {
    pub(in crate::store) fn new(store: &Store, locks: &Arc<NamedLocks>, request: RequestHandle) -> Self {
        Self { request, locks: Arc::clone(locks), store: Arc::downgrade(&store.inner) }
    }

    pub(crate) fn grant(&self) -> &Arc<Grant> {
        self.request.grant()
    }

    /// A [`Store`] that does not keep the store open. Fails if the store is closed.
    pub(crate) fn store(&self) -> Result<Store> {
        let closed = || Error::closed(self.locks.manager.closed().unwrap_or(crate::error::CLOSED_BY_USER));
        let store = self.store.upgrade().map(Store::unowned).ok_or_else(closed)?;
        store.inner.check_open()?;
        Ok(store)
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.check_process()?;
        let grant = self.grant();
        match grant.end_reason_now(&*self.locks.env) {
            Some(reason) => Err(ErrorKind::LockLost(Box::new(grant.lost_error(reason))).into()),
            None => Ok(()),
        }
    }

    /// Fails in a child of the process that holds the lock.
    fn check_process(&self) -> Result<()> {
        self.locks.manager.process.refusal().map_or(Ok(()), |reason| Err(Error::closed(reason)))
    }

    /// The *fencing token*: the number of the grant. Of two grants of a name that exclude each
    /// other, the later has the greater token, over restarts and power cuts, within one directory.
    ///
    /// A service that rejects all tokens below the greatest one accepted so far is safe from a
    /// paused holder. A copied, restored or repaired store is another store: its tokens may repeat
    /// those of the original or be smaller.
    ///
    /// Zero while a conversion is incomplete ([`LockGuard::upgrade`]). A service that has accepted
    /// a token rejects zero.
    pub fn token(&self) -> Timestamp {
        if self.grant().is_ready() { self.grant().token() } else { Timestamp::ZERO }
    }

    /// A condition for transactions: they commit only if the present grant has not ended. See
    /// [`Txn::fence`](crate::Txn::fence). [`LockGuard::upgrade`] and [`LockGuard::downgrade`]
    /// replace the grant; transactions then need a new fence.
    pub fn fence(&self) -> Fence {
        Fence { grant: Arc::clone(self.grant()), store: self.locks.store }
    }

    /// The entry of this grant in the lock table. The entry names the expired lease that the grant
    /// took over, if any, and counts the requests that wait directly for the grant. For requests
    /// further back in the queue see [`Store::lock_table`](crate::Store::lock_table).
    pub fn entry(&self) -> LockEntry {
        let (grant, clock) = (self.grant(), self.locks.clock());
        let mut entries = self.locks.manager.holders(&grant.name, &clock, 1, |other| other.id == grant.id).0;
        entries.pop().unwrap_or_else(|| clock.entry(grant, LockState::Held))
    }

    /// Whether the grant is valid at this moment. The grant may end right afterwards; only a fence
    /// checks the grant when a commit is decided.
    pub fn is_held(&self) -> bool {
        self.check().is_ok()
    }

    /// Blocks until the grant ends, at most for `timeout`; returns whether it has ended.
    pub fn wait_lost(&self, timeout: Duration) -> bool {
        if self.check_process().is_err() {
            return true;
        }
        let env = &self.locks.env;
        let waiter = Arc::new(Waiter::new(&**env));
        let end = env.elapsed().saturating_add(timeout);
        self.grant().watch(&waiter);
        let lost = loop {
            // `rearm` clears the last notification, so it comes before the look: an end after the
            // look notifies the waiter again.
            waiter.rearm();
            let now = env.elapsed();
            if self.grant().end_reason_at(now).is_some() {
                break true;
            }
            if now >= end {
                break false;
            }
            let left = self.until_it_may_be_lost().min(end.saturating_sub(now));
            yield_point!();
            waiter.wait_at_most(&**env, left);
        };
        self.grant().unwatch(&waiter);
        lost
    }

    /// The time until the lease may expire; [`Duration::MAX`] without a lease.
    pub(crate) fn until_it_may_be_lost(&self) -> Duration {
        let now = self.locks.env.elapsed();
        // While a renewal is being written, the lease is valid even if its time has passed. Then
        // this returns the whole duration of the lease; the end of the write wakes the caller
        // earlier.
        let is_written = |lease: &Lease| lease.row_writes_in_flight > 0 && lease.expires_at <= now;
        let left =
            |lease: Lease| if is_written(&lease) { lease.duration } else { lease.expires_at.saturating_sub(now) };
        self.grant().lease().map_or(Duration::MAX, left)
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn watch(&self, waiter: &Arc<Waiter>) {
        self.grant().watch(waiter);
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn unwatch(&self, waiter: &Arc<Waiter>) {
        self.grant().unwatch(waiter);
    }

    /// Renews the lease, durably: it then expires when `lease` has passed since this call. Later
    /// renewals by the background thread are for `lease`, too.
    ///
    /// # Errors
    /// - [`ErrorKind::LockLost`] if the lease has expired or the grant has ended.
    /// - [`ErrorKind::InvalidArgument`] without a lease, for a duration out of
    ///   [bounds](crate::option_ranges::LOCK_LEASE), and after an incomplete conversion.
    /// - [`ErrorKind::Undetermined`] if the store fails: the row may have been written.
    /// - [`ErrorKind::Io`], [`ErrorKind::Corruption`], [`ErrorKind::Closed`].
    pub fn renew(&self, lease: Duration) -> Result<()> {
        option_ranges::LOCK_LEASE.check(lease.as_nanos())?;
        let store = self.store()?;
        self.locks.renew_lease(LeaseRows::new(&store), self.grant(), lease)
    }

    /// Makes a shared lock exclusive as soon as it has no other holder, ahead of all requests in
    /// the queue. The guard then has a new grant, with a greater token; fences of the old grant
    /// fail. An exclusive lock stays as it is.
    ///
    /// If the request is not granted, the shared lock stays as it was, with its token and fences.
    ///
    /// If the request is granted, but the call then fails with [`ErrorKind::Undetermined`],
    /// [`ErrorKind::Io`] or [`ErrorKind::Corruption`], the conversion is incomplete: the guard has
    /// an exclusive grant without a token, which cannot fence transactions. Call `upgrade` again,
    /// or drop the guard.
    ///
    /// # Errors
    /// - [`ErrorKind::Deadlock`] immediately if another holder waits to upgrade.
    /// - [`ErrorKind::LockNotAvailable`] at the end of the wait.
    /// - [`ErrorKind::LockLost`] if the grant has ended.
    /// - [`ErrorKind::InvalidArgument`] for a semaphore.
    /// - [`ErrorKind::Closed`], [`ErrorKind::Undetermined`], [`ErrorKind::Io`],
    ///   [`ErrorKind::Corruption`].
    pub fn upgrade(&mut self, wait: LockWaitPolicy) -> Result<()> {
        let store = self.store()?;
        let waiter = || Arc::new(Waiter::new(&*store.inner.env));
        let options = LockOptions::exclusive().wait(wait);
        if let Some(waiting) = self.begin_upgrade(&options, &waiter)? {
            self.request = self.locks.wait_for_grant(waiting, &options)?;
        }
        self.activate_conversion(&store)
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn locks(&self) -> &Arc<NamedLocks> {
        &self.locks
    }

    /// Requests the conversion; `None` if the lock is exclusive already.
    pub(crate) fn begin_upgrade(
        &mut self,
        options: &LockOptions,
        waiter: &dyn Fn() -> Arc<Waiter>,
    ) -> Result<Option<LockWait>> {
        self.check()?;
        match self.grant().mode {
            LockMode::Exclusive => return Ok(None),
            LockMode::Semaphore(_) => return Err(Error::invalid("a semaphore cannot be converted")),
            LockMode::Shared => {}
        }
        let (manager, next) = (&self.locks.manager, self.next_grant(LockMode::Exclusive));
        let began = self.locks.env.elapsed();
        match manager.upgrade(self.grant(), &next, waiter) {
            UpgradeResult::Granted(()) => {}
            UpgradeResult::Waiting => manager.metrics.wait_started(LockMode::Exclusive),
            UpgradeResult::Deadlock => {
                manager.metrics.deadlock();
                event!(WARN, lock = %next.name, "deadlock");
                let held = self.locks.held_by(&next.target(), (LockMode::Exclusive, 0), Some(0), Duration::ZERO);
                return Err(ErrorKind::Deadlock(Box::new(held)).into());
            }
            UpgradeResult::NoSuchGrant => {
                let reason = self.grant().end_reason_at(began).unwrap_or(LockLostReason::UnknownToken);
                return Err(ErrorKind::LockLost(Box::new(self.grant().lost_error(reason))).into());
            }
        }
        Ok(Some(LockWait::new(RequestHandle::new(manager, next, true), began, options.wait.timeout(), None)))
    }

    /// Replaces the guard's shared request with `request`, its upgrade, which the lock queue has
    /// granted. The guard has no token until [`Self::activate_conversion`].
    #[cfg(feature = "tokio")]
    pub(crate) fn replace_request(&mut self, request: RequestHandle) {
        self.request = request;
    }

    /// Completes a conversion: [activates](super::activate) the guard's new grant, unless that is
    /// done already.
    pub(crate) fn activate_conversion(&self, store: &Store) -> Result<()> {
        if self.grant().is_ready() {
            return self.check();
        }
        LockService::of(store)?.activate_grant(self.grant(), true)
    }

    /// Makes an exclusive lock shared, and grants the shared requests that wait. The guard then has
    /// a new grant, with a greater token; fences of the old grant fail. A shared lock stays as it
    /// is.
    ///
    /// # Errors
    /// - [`ErrorKind::LockLost`] if the grant has ended.
    /// - [`ErrorKind::InvalidArgument`] for a semaphore, and while semaphore requests wait for the
    ///   lock.
    /// - [`ErrorKind::Undetermined`], [`ErrorKind::Io`] and [`ErrorKind::Corruption`] leave an
    ///   incomplete conversion: a shared grant without a token, as in [`LockGuard::upgrade`].
    /// - [`ErrorKind::Closed`].
    pub fn downgrade(&mut self) -> Result<()> {
        let store = self.store()?;
        self.begin_downgrade()?;
        self.activate_conversion(&store)
    }

    pub(crate) fn begin_downgrade(&mut self) -> Result<()> {
        self.check()?;
        match self.grant().mode {
            LockMode::Shared => return Ok(()),
            LockMode::Semaphore(_) => return Err(Error::invalid("a semaphore cannot be converted")),
            LockMode::Exclusive => {}
        }
        let next = self.next_grant(LockMode::Shared);
        let converted = self.locks.manager.downgrade(self.grant(), &next);
        if !converted.map_err(|error| request_error(&next.target(), error))? {
            let reason = self.grant().end_reason_at(self.locks.env.elapsed()).unwrap_or(LockLostReason::UnknownToken);
            return Err(ErrorKind::LockLost(Box::new(self.grant().lost_error(reason))).into());
        }
        self.locks.manager.metrics.acquired(LockMode::Shared);
        self.request = RequestHandle::new(&self.locks.manager, next, false);
        Ok(())
    }

    fn next_grant(&self, mode: LockMode) -> Arc<Grant> {
        let before = self.grant();
        let lease = before.lease().map(|lease| Lease { expires_at: Duration::MAX, row_writes_in_flight: 1, ..lease });
        Arc::new(Grant::new(Arc::clone(&before.name), before.id, mode, before.requester.clone(), lease))
    }

    /// Ends the guard but not the lease, and returns the token. The lease outlasts the store and
    /// the process; it is not renewed, and ends when it expires or with [`Store::release_lock`].
    /// [`Store::attach_lock`] makes a new guard for the lease.
    ///
    /// # Errors
    /// The guard itself if it has no lease, if the grant has ended, or after an incomplete
    /// conversion.
    #[allow(clippy::result_large_err, reason = "the guard is what the caller had")]
    pub fn detach(self) -> Result<Timestamp, Self> {
        let is_held_here = self.check_process().is_ok() && self.grant().is_ready();
        if !is_held_here || !self.locks.manager.detach_guard(self.grant(), self.locks.env.elapsed()) {
            return Err(self);
        }
        self.request.detach();
        Ok(self.token())
    }

    /// Releases the lock. If the lock has a lease, the call returns once the lease is durably
    /// removed; otherwise the call does the same as dropping the guard. Releasing a grant that has
    /// ended is no error.
    ///
    /// # Errors
    /// Only with a lease. In memory the lock is released even so.
    ///
    /// - [`ErrorKind::Undetermined`] if the store fails.
    /// - [`ErrorKind::Io`] and [`ErrorKind::Corruption`]; the background thread retries the removal
    ///   of the row.
    /// - [`ErrorKind::Closed`]: closing the store has released the lock.
    pub fn release(self) -> Result<()> {
        self.check_process()?;
        let grant = Arc::clone(self.grant());
        if !grant.has_lease() {
            return Ok(());
        }
        let store = self.store()?;
        self.release_grant();
        let rows = self.remaining_lease_rows();
        if let Some(reason) = self.locks.manager.closed() {
            return Err(Error::closed(reason));
        }
        if rows.is_empty() {
            return Ok(());
        }
        if let Err(error) = LeaseRows::new(&store).remove(&rows) {
            rows.iter().filter(|row| row.has_lease_row()).for_each(|row| self.locks.renewer.remove_row(row));
            return Err(error);
        }
        self.locks.manager.prune(&grant.name, store.inner.lock_authority()?.durable_ts());
        Ok(())
    }

    /// Ends the grant; returns whether this call ended it.
    fn release_grant(&self) -> bool {
        let now = if self.grant().has_lease() { self.locks.env.elapsed() } else { Duration::ZERO };
        self.request.release_at(now)
    }

    /// The leases whose rows must be removed when this grant ends: its own, if its row was written,
    /// and after an incomplete conversion also those of earlier grants, whose rows the conversion
    /// would have removed.
    fn remaining_lease_rows(&self) -> Vec<Arc<Grant>> {
        let grant = self.grant();
        if !grant.has_lease() {
            return Vec::new();
        }
        let mut rows = if grant.is_ready() { Vec::new() } else { self.locks.manager.predecessors_of(grant).leases };
        if grant.has_lease_row() && !rows.iter().any(|row| Arc::ptr_eq(row, grant)) {
            rows.push(Arc::clone(grant));
        }
        rows
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if self.check_process().is_err() {
            return;
        }
        // If the grant was lost before, its lease row is left to the next holder, which reports
        // whose lease it has taken over.
        if self.release_grant() {
            self.remaining_lease_rows().iter().for_each(|row| self.locks.renewer.remove_row(row));
        }
    }
}
