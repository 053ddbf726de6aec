//! Acquiring a named lock: a [request](super::request) in memory, then its
//! [activation](super::activate). (Row locks are another mechanism.)

#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::Result;
use crate::lock_manager::LockTarget;
use crate::store::handle::Store;
use crate::store::named_locks::guard::LockGuard;
use crate::store::named_locks::options::{LockOptions, LockWaitPolicy};
use crate::store::named_locks::request::{GrantPoll, RequestResult};
use crate::store::named_locks::service::LockService;

impl Store {
    /// Acquires a named lock exclusively. Waits at most **30 seconds**; [`Store::lock_with`] has
    /// other modes, other timeouts and leases.
    ///
    /// Requests are granted first come, first served. The lock is held until the [`LockGuard`] is
    /// dropped or released, the store is closed, or the process ends. The name of a lock is
    /// unrelated to names of keyspaces and to rows. A lock excludes only other requests for the
    /// same name. A transaction that must not commit without the lock must be [fenced].
    ///
    /// **First the lock, then the snapshot.** A transaction that began before the grant may not see
    /// the changes of the previous holder. Begin after this call returns, or use
    /// [`Store::transact_with_lock`].
    ///
    /// **Durability.** Commits that earlier holders fenced by the lock are visible when this call
    /// returns. They are also durable, except for [buffered](crate::Durability::Buffered) commits,
    /// which a power cut may take back.
    ///
    /// **Not re-entrant.** The guard is the owner, not the thread. A second call in the same thread
    /// waits like any other, and returns [`ErrorKind::LockNotAvailable`] unless the guard is
    /// dropped in time. Two threads that take two locks in opposite order wait for each other until
    /// one of them times out; until then [`Store::lock_table`] shows the cycle.
    ///
    /// **Not in a closure of [`transact`](Store::transact).** The wait would keep a snapshot, and
    /// an admission permit for which others may wait. And a fence by the lock would fail if
    /// anything was committed between the snapshot and the grant.
    ///
    /// ```
    /// # fn main() -> percolite::Result<()> {
    /// let store = percolite::Store::in_memory()?;
    /// let guard = store.lock("migrations")?;
    /// assert!(store.try_lock("migrations")?.is_none());
    /// drop(guard);
    /// assert!(store.try_lock("migrations")?.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// [fenced]: crate::Txn::fence
    ///
    /// # Errors
    /// After any of these errors the lock is not held.
    ///
    /// - [`ErrorKind::LockNotAvailable`] after 30 seconds.
    /// - [`ErrorKind::InvalidArgument`] if the name is empty, longer than 255 bytes or has control
    ///   characters, and on a store that is read-only or on a shared engine.
    /// - [`ErrorKind::LockLost`] if [`Store::force_unlock`] ended the grant before this returns.
    /// - [`ErrorKind::Corruption`] if the lease row of the name is corrupt.
    /// - [`ErrorKind::Undetermined`], [`ErrorKind::Io`] or [`ErrorKind::Closed`] if the disk or the
    ///   store fails, or the store is closed.
    pub fn lock<'a>(&self, target: impl Into<LockTarget<'a>>) -> Result<LockGuard> {
        self.lock_with(target, LockOptions::exclusive())
    }

    /// Acquires a named lock exclusively if it is free and no request waits for it; else returns
    /// `None`. The call does not wait for the lock, but may wait for a sync: if the previous holder
    /// committed something that is not durable yet, or had a lease. A lock whose lease has expired
    /// counts as free.
    ///
    /// # Errors
    /// Those of [`Store::lock`], except [`ErrorKind::LockNotAvailable`].
    pub fn try_lock<'a>(&self, target: impl Into<LockTarget<'a>>) -> Result<Option<LockGuard>> {
        LockService::of(self)?.try_lock(&target.into(), &LockOptions::exclusive().wait(LockWaitPolicy::NoWait))
    }

    /// Acquires a named lock with options.
    ///
    /// # Errors
    /// Those of [`Store::lock`]. If the disk fails while a lease row is written, the next
    /// opening of the store may find the lock held. Besides:
    ///
    /// - [`ErrorKind::LockNotAvailable`] at the end of [`LockOptions::wait`], with the holders and
    ///   the number of requests ahead.
    /// - [`ErrorKind::Cancelled`] if the wait is cancelled.
    /// - [`ErrorKind::InvalidArgument`] for options out of [bounds](crate::option_ranges) or that
    ///   exclude each other, and if the name is in use in another mode
    ///   ([`LockOptions::semaphore`]).
    /// - [`ErrorKind::LockLost`] also if the lease expires before its row is written.
    pub fn lock_with<'a>(&self, target: impl Into<LockTarget<'a>>, options: LockOptions) -> Result<LockGuard> {
        let request = LockService::of(self)?.locks.acquire(&target.into(), &options)?;
        LockService::of(self)?.activate_guard(request)
    }
}

impl LockService<'_> {
    pub(super) fn try_lock(self, target: &LockTarget<'_>, options: &LockOptions) -> Result<Option<LockGuard>> {
        match self.locks.request(target, options, None)? {
            RequestResult::Requested(wait) => match self.locks.poll(wait, options) {
                GrantPoll::Ready(request) => self.activate_guard(request?).map(Some),
                GrantPoll::Pending(..) => Ok(None),
            },
            RequestResult::NotAvailable => Ok(None),
        }
    }
}
