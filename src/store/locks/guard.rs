//! Guards: the owners of grants in a program.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{Fence, LockOptions, LockWaitPolicy, NamedLocks};
use crate::bounds;
use crate::error::{Error, ErrorKind, Result};
use crate::locking::{
    Grant, Lease, LockEntry, LockLostReason, LockMode, LockState, LockWait, RequestHandle, UpgradeResult,
};
use crate::store::{Inner, Store};
use crate::timestamp::Timestamp;
use crate::waiter::Waiter;

use super::take::request_error;

/// A lock that is held. Dropping it releases the lock; that never waits. It may be sent to other threads, and does not keep the store open:
/// when that is closed, the guard is lost.
///
/// Held is what this process knows. A process that was paused may go on with a guard that is lost; what it writes then is stopped by a
/// [fence](crate::Txn::fence), or, outside of the store, by the [token](LockGuard::token).
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
    pub(super) fn new(store: &Store, locks: &Arc<NamedLocks>, request: RequestHandle) -> Self {
        Self { request, locks: Arc::clone(locks), store: Arc::downgrade(&store.inner) }
    }

    pub(crate) fn grant(&self) -> &Arc<Grant> {
        self.request.grant()
    }

    /// The store, without keeping it open.
    pub(crate) fn store(&self) -> Result<Store> {
        let closed = || Error::closed(self.locks.heads.closed().unwrap_or(crate::pipeline::CLOSED_MESSAGE));
        let store = self.store.upgrade().map(|inner| Store { inner, _open: None }).ok_or_else(closed)?;
        store.inner.check_open()?;
        Ok(store)
    }

    pub(crate) fn check(&self) -> Result<()> {
        let grant = self.grant();
        match grant.end_reason_now(&*self.locks.runtime) {
            Some(reason) => Err(ErrorKind::LockLost(Box::new(grant.lost_error(reason))).into()),
            None => Ok(()),
        }
    }

    /// The grant's number, a *fencing token*. Of two grants of a name that exclude each other the later has the greater one, over restarts and power
    /// cuts, within one folder. A service or file that takes only tokens at least as great as the last one it took is safe from a holder
    /// that was paused. A copied, restored or repaired store is another one, whose tokens may repeat those of the first or be smaller.
    ///
    /// 0 after a conversion that was given up on the way, until it is settled: see [`LockGuard::upgrade`].
    pub fn token(&self) -> Timestamp {
        if self.grant().is_ready() { self.grant().token() } else { Timestamp::ZERO }
    }

    /// A condition of transactions: see [`Txn::fence`](crate::Txn::fence). It is of the present grant; after [`LockGuard::upgrade`] or
    /// [`LockGuard::downgrade`] it is lost, and a new one is needed.
    pub fn fence(&self) -> Fence {
        Fence { grant: Arc::clone(self.grant()), store: self.locks.store }
    }

    /// What is shown of it, with the lease that was over before it, and how many requests wait for it directly: the first of those that
    /// exclude each other, and not those behind it, which [`Store::lock_table`](crate::Store::lock_table) has.
    pub fn entry(&self) -> LockEntry {
        let (grant, clock) = (self.grant(), self.locks.clock());
        let mut entries = self.locks.heads.holders(&grant.name, &clock, 1, |other| other.id == grant.id).0;
        entries.pop().unwrap_or_else(|| clock.entry(grant, LockState::Held))
    }

    /// Whether it has not been lost, as far as this process knows: the truth is in the fence.
    pub fn is_held(&self) -> bool {
        self.check().is_ok()
    }

    /// Waits until it is lost, so long at most; the answer is whether it is.
    pub fn wait_lost(&self, at_most: Duration) -> bool {
        let runtime = &self.locks.runtime;
        let waiter = Arc::new(Waiter::new(&**runtime));
        let end = runtime.elapsed().saturating_add(at_most);
        self.grant().watch(&waiter);
        let lost = loop {
            waiter.rearm();
            let now = runtime.elapsed();
            if self.grant().end_reason_at(now).is_some() {
                break true;
            }
            if now >= end {
                break false;
            }
            waiter.wait_at_most(&**runtime, self.until_it_may_be_lost().min(end.saturating_sub(now)));
        };
        self.grant().unwatch(&waiter);
        lost
    }

    /// How long it is until its lease may be over.
    pub(crate) fn until_it_may_be_lost(&self) -> Duration {
        let now = self.locks.runtime.elapsed();
        // One that is over but being written has its answer soon, and is looked at again when it would be over once more.
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

    /// Has the lease last for `lease` from now on, durably. The background thread then goes by that time.
    ///
    /// # Errors
    /// [`ErrorKind::LockLost`] when it is over, or the guard was lost otherwise; [`ErrorKind::InvalidArgument`] when there is no lease or the
    /// time is out of [bounds](crate::bounds::LOCK_LEASE); [`ErrorKind::Undetermined`] when the store fails: the row may have been written.
    /// [`ErrorKind::Io`], [`ErrorKind::Corruption`], [`ErrorKind::Closed`].
    pub fn renew(&self, lease: Duration) -> Result<()> {
        bounds::LOCK_LEASE.check(lease.as_nanos())?;
        let store = self.store()?;
        store.renew_lease(&self.locks, self.grant(), Some(lease))
    }

    /// Makes a shared lock exclusive, as soon as no other holder is left: before all requests in the queue. The grant is a new one, with
    /// a greater token. An exclusive lock stays as it is.
    ///
    /// A wait that fails leaves the shared lock as it was, with its token and fences. An error of the disk or the store after the
    /// grant, [`ErrorKind::Undetermined`], [`ErrorKind::Io`] or [`ErrorKind::Corruption`], leaves the guard with an exclusive grant
    /// that has no token yet: nothing can be fenced by it; call it again, or drop the guard.
    ///
    /// # Errors
    /// [`ErrorKind::Deadlock`] at once when another holder waits for the same; [`ErrorKind::LockNotAvailable`] when the wait is over;
    /// [`ErrorKind::LockLost`] when it is lost; [`ErrorKind::InvalidArgument`] for a semaphore; [`ErrorKind::Closed`],
    /// [`ErrorKind::Undetermined`], [`ErrorKind::Io`], [`ErrorKind::Corruption`].
    pub fn upgrade(&mut self, wait: LockWaitPolicy) -> Result<()> {
        let store = self.store()?;
        let waiter = || Arc::new(Waiter::new(&*store.inner.runtime));
        let options = LockOptions::exclusive().wait(wait);
        if let Some(waiting) = self.begin_upgrade(&store, &options, &waiter)? {
            self.request = store.wait_for_grant(waiting, &options)?;
        }
        self.activate_conversion(&store)
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn locks(&self) -> &Arc<NamedLocks> {
        &self.locks
    }

    /// Asks for the conversion; `None` when it is exclusive already.
    pub(crate) fn begin_upgrade(
        &mut self,
        store: &Store,
        options: &LockOptions,
        waiter: &dyn Fn() -> Arc<Waiter>,
    ) -> Result<Option<LockWait>> {
        self.check()?;
        match self.grant().mode {
            LockMode::Exclusive => return Ok(None),
            LockMode::Semaphore(_) => return Err(Error::invalid("a semaphore cannot be converted")),
            LockMode::Shared => {}
        }
        let (heads, next) = (&self.locks.heads, self.next_grant(LockMode::Exclusive));
        let began = self.locks.runtime.elapsed();
        match heads.upgrade(self.grant(), &next, waiter) {
            UpgradeResult::Granted(()) => {}
            UpgradeResult::Waiting => heads.metrics.wait_started(LockMode::Exclusive),
            UpgradeResult::Deadlock => {
                heads.metrics.deadlock();
                event!(WARN, lock = %next.name, "deadlock");
                let held = store.held_by(&next.target(), (LockMode::Exclusive, 0), Some(0), Duration::ZERO);
                return Err(ErrorKind::Deadlock(Box::new(held)).into());
            }
            UpgradeResult::NoSuchGrant => {
                let reason = self.grant().end_reason_at(began).unwrap_or(LockLostReason::UnknownToken);
                return Err(ErrorKind::LockLost(Box::new(self.grant().lost_error(reason))).into());
            }
        }
        Ok(Some(LockWait::new(RequestHandle::new(heads, next, true), began, options.wait.timeout(), None)))
    }

    /// Takes a conversion over that was granted in memory.
    #[cfg(feature = "tokio")]
    pub(crate) fn replace_request(&mut self, request: RequestHandle) {
        self.request = request;
    }

    /// Gives a converted grant its token.
    pub(crate) fn activate_conversion(&self, store: &Store) -> Result<()> {
        if self.grant().is_ready() {
            return self.check();
        }
        store.activate_grant(self.grant(), true)
    }

    /// Makes an exclusive lock shared, and grants the shared requests that wait. The grant is a new one, with a greater token. A
    /// shared lock stays as it is.
    ///
    /// # Errors
    /// [`ErrorKind::LockLost`] when it is lost; [`ErrorKind::InvalidArgument`] for a semaphore, and while requests of a semaphore wait
    /// for it; [`ErrorKind::Closed`]. [`ErrorKind::Undetermined`], [`ErrorKind::Io`] and [`ErrorKind::Corruption`] leave the guard
    /// with a shared grant that has no token yet, as with [`LockGuard::upgrade`].
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
        let converted = self.locks.heads.downgrade(self.grant(), &next);
        if !converted.map_err(|why| request_error(&next.target(), why))? {
            let reason =
                self.grant().end_reason_at(self.locks.runtime.elapsed()).unwrap_or(LockLostReason::UnknownToken);
            return Err(ErrorKind::LockLost(Box::new(self.grant().lost_error(reason))).into());
        }
        self.locks.heads.metrics.acquired(LockMode::Shared);
        self.request = RequestHandle::new(&self.locks.heads, next, false);
        Ok(())
    }

    fn next_grant(&self, mode: LockMode) -> Arc<Grant> {
        let before = self.grant();
        let lease = before.lease().map(|lease| Lease { expires_at: Duration::MAX, row_writes_in_flight: 1, ..lease });
        Arc::new(Grant::new(Arc::clone(&before.name), before.id, mode, before.requester.clone(), lease))
    }

    /// Keeps the lease beyond this guard, the store and the process, until it is over or released by its token
    /// ([`Store::release_lock`]); it is not renewed. [`Store::attach_lock`] makes a guard of it again.
    ///
    /// # Errors
    /// The guard itself when it has no lease, is lost, or has no token because a conversion has failed.
    #[allow(clippy::result_large_err, reason = "the guard is what the caller had")]
    pub fn detach(self) -> Result<Timestamp, Self> {
        if !self.grant().is_ready() || !self.locks.heads.detach_guard(self.grant(), self.locks.runtime.elapsed()) {
            return Err(self);
        }
        self.request.detach();
        Ok(self.token())
    }

    /// Releases the lock. With a lease it returns when the lease is durably gone; otherwise it does what dropping does. Releasing what is
    /// lost already is no error: the lock is not held either way.
    ///
    /// # Errors
    /// Of a lease: [`ErrorKind::Undetermined`] when the store fails; [`ErrorKind::Io`], [`ErrorKind::Corruption`]. In memory the lock is
    /// released even so, and the background goes on trying to remove the row. [`ErrorKind::Closed`]: closing has released it.
    pub fn release(self) -> Result<()> {
        let grant = Arc::clone(self.grant());
        if !grant.has_lease() {
            return Ok(());
        }
        let store = self.store()?;
        self.release_grant();
        let rows = self.remaining_lease_rows();
        if let Some(why) = self.locks.heads.closed() {
            return Err(Error::closed(why));
        }
        if rows.is_empty() {
            return Ok(());
        }
        if let Err(why) = store.remove_leases(&rows) {
            rows.iter().filter(|row| row.has_lease_row()).for_each(|row| self.locks.keeper.remove_row(row));
            return Err(why);
        }
        self.locks.heads.prune(&grant.name, store.stats().durable_ts);
        Ok(())
    }

    /// Ends the grant; the answer is whether it was there.
    fn release_grant(&self) -> bool {
        let now = if self.grant().has_lease() { self.locks.runtime.elapsed() } else { Duration::ZERO };
        self.request.release_at(now)
    }

    /// The leases with rows that the end of this one leaves: its own and, where its conversion was given up before it had a row, that of
    /// the grant before.
    fn remaining_lease_rows(&self) -> Vec<Arc<Grant>> {
        let grant = self.grant();
        if !grant.has_lease() {
            return Vec::new();
        }
        let mut rows = if grant.is_ready() { Vec::new() } else { self.locks.heads.predecessors_of(grant).leases };
        if grant.has_lease_row() && !rows.iter().any(|row| Arc::ptr_eq(row, grant)) {
            rows.push(Arc::clone(grant));
        }
        rows
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        // The row of one that was lost is left to the next holder, which reports whose it was.
        if self.release_grant() {
            self.remaining_lease_rows().iter().for_each(|row| self.locks.keeper.remove_row(row));
        }
    }
}
