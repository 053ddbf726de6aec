//! Named locks (not row locks) for asynchronous code: a task waits for its lock without a thread.
//!
//! Once the lock is granted in memory, some steps are left until the guard is returned. If one of
//! them has to wait, for example for a sync, they run on a blocking thread, otherwise in the task.
//! If the future of a request is dropped, at whatever time, nothing is left behind: a waiting
//! request is removed from the queue, and a granted lock goes to the next request.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::AsyncStore;
use super::blocking::run_blocking;
use super::transact::notified_timeout;
use crate::error::{Error, Result};
use crate::lock_manager::{LockEntry, LockTarget, LockWait, RequestHandle};
use crate::option_ranges;
use crate::store::{
    Fence, GrantPoll, LeaseRows, LockGuard, LockOptions, LockService, LockWaitPolicy, RequestResult, RetryLoop, Txn,
    TxnLock, TxnOptions, check_no_lease,
};
use crate::sync::Mutex;
use crate::timestamp::Timestamp;
use crate::waiter::Waiter;

impl AsyncStore {
    /// [`Store::lock`](crate::Store::lock): waits at most **30 seconds**, without a thread.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> percolite::Result<()> {
    /// # let store = percolite::AsyncStore::from(percolite::Store::in_memory()?);
    /// # let state = store.keyspace("state").await?;
    /// let guard = store.lock("nightly").await?;
    /// let fence = guard.fence();
    /// store
    ///     .transact(move |txn| {
    ///         txn.fence(&fence)?;
    ///         txn.put(&state, "last run", "2026-11-24")
    ///     })
    ///     .await?;
    /// guard.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Store::lock`](crate::Store::lock), and of [`AsyncStore::run_blocking`].
    pub async fn lock<'a>(&self, target: impl Into<LockTarget<'a>>) -> Result<AsyncLockGuard> {
        self.lock_with(target, LockOptions::exclusive()).await
    }

    /// Acquires a named lock exclusively if it is free; else returns `None`: see
    /// [`Store::try_lock`](crate::Store::try_lock).
    ///
    /// # Errors
    /// Those of [`Store::try_lock`](crate::Store::try_lock), and of [`AsyncStore::run_blocking`].
    pub async fn try_lock<'a>(&self, target: impl Into<LockTarget<'a>>) -> Result<Option<AsyncLockGuard>> {
        let options = LockOptions::exclusive().wait(LockWaitPolicy::NoWait);
        let LockService { locks, .. } = LockService::of(&self.store)?;
        match locks.request(&target.into(), &options, None)? {
            RequestResult::Requested(wait) => {
                let GrantPoll::Ready(request) = locks.poll(wait, &options) else { return Ok(None) };
                self.activate_guard(request?).await.map(Some)
            }
            RequestResult::NotAvailable => Ok(None),
        }
    }

    /// Acquires a named lock with options: see [`Store::lock_with`](crate::Store::lock_with).
    ///
    /// # Errors
    /// Those of [`Store::lock_with`](crate::Store::lock_with), and of [`AsyncStore::run_blocking`].
    pub async fn lock_with<'a>(
        &self,
        target: impl Into<LockTarget<'a>>,
        options: LockOptions,
    ) -> Result<AsyncLockGuard> {
        let request = self.acquire_request(&target.into(), &options).await?;
        self.activate_guard(request).await
    }

    /// [`Store::transact_with_lock`](crate::Store::transact_with_lock). Dropping the future before
    /// a commit has begun releases the lock and commits nothing. A commit that has begun completes,
    /// as in [`AsyncStore::transact`].
    ///
    /// # Errors
    /// Those of [`Store::transact_with_lock`](crate::Store::transact_with_lock) and
    /// [`AsyncStore::transact`].
    ///
    /// # Panics
    /// If the closure does.
    pub async fn transact_with_lock<'a, T, E, F>(
        &self,
        target: impl Into<LockTarget<'a>>,
        lock: LockOptions,
        txn: TxnOptions,
        work: F,
    ) -> Result<T, E>
    where
        F: FnMut(&mut Txn) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        check_no_lease(&lock)?;
        let mut request = self.acquire_request(&target.into(), &lock).await?;
        if !LockService::of(&self.store)?.try_activate_now(request.grant(), false)? {
            let store = self.store.clone();
            let activated;
            (request, activated) = run_blocking(move || {
                let activated =
                    LockService::of(&store).and_then(|service| service.activate_grant(request.grant(), false));
                (request, activated)
            })
            .await?;
            activated?;
        }
        let under = TxnLock::new(LockService::of(&self.store)?.locks, request);
        let answer = self.run_attempts(RetryLoop::for_task(&self.store, txn).with_lock(under.clone()), work).await;
        under.release(&self.store);
        answer.map(|(answer, _)| answer)
    }

    async fn acquire_request(&self, target: &LockTarget<'_>, options: &LockOptions) -> Result<RequestHandle> {
        let LockService { locks, .. } = LockService::of(&self.store)?;
        let RequestResult::Requested(mut wait) = locks.request(target, options, Some(&Waiter::of_task))? else {
            return Err(locks.not_available_error(target, options));
        };
        loop {
            match locks.poll(wait, options) {
                GrantPoll::Ready(request) => return request,
                GrantPoll::Pending(waiting, waiter, at_most) => {
                    wait = waiting;
                    notified_timeout(&waiter, at_most).await;
                }
            }
        }
    }

    async fn activate_guard(&self, request: RequestHandle) -> Result<AsyncLockGuard> {
        let guard = if LockService::of(&self.store)?.try_activate_now(request.grant(), true)? {
            LockService::of(&self.store)?.make_guard(request)
        } else {
            let store = self.store.clone();
            run_blocking(move || LockService::of(&store)?.activate_guard(request)).await??
        };
        Ok(guard.into())
    }
}

/// A [`LockGuard`] for asynchronous code. Dropping the guard releases the lock, without waiting and
/// without a runtime.
#[must_use = "a guard that is dropped releases its lock"]
pub struct AsyncLockGuard {
    guard: LockGuard,
    /// The unfinished work of an upgrade or downgrade whose future was dropped. The mutex makes the
    /// guard `Sync`; the boxed future alone is not `Sync`.
    settling: Mutex<Option<PendingActivation>>,
}

type PendingActivation = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

impl fmt::Debug for AsyncLockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

impl From<LockGuard> for AsyncLockGuard {
    fn from(guard: LockGuard) -> Self {
        Self { guard, settling: Mutex::new(None) }
    }
}

impl AsyncLockGuard {
    /// The synchronous guard; its calls may block.
    pub fn guard(&self) -> &LockGuard {
        &self.guard
    }

    /// The fencing token: see [`LockGuard::token`].
    pub fn token(&self) -> Timestamp {
        self.guard.token()
    }

    /// [`LockGuard::fence`]. It can be moved into the closure of [`AsyncStore::transact`].
    pub fn fence(&self) -> Fence {
        self.guard.fence()
    }

    /// The entry of this grant in the lock table: see [`LockGuard::entry`].
    pub fn entry(&self) -> LockEntry {
        self.guard.entry()
    }

    /// Whether the grant is valid in this process: see [`LockGuard::is_held`].
    pub fn is_held(&self) -> bool {
        self.guard.is_held()
    }

    /// Waits, without a thread, until the grant has ended.
    pub async fn wait_lost(&self) {
        let waiter = Waiter::of_task();
        let _watch = WatchGuard { guard: &self.guard, waiter: &waiter };
        self.guard.watch(&waiter);
        loop {
            // `rearm` clears the last notification, so it comes before the look: an end after the
            // look notifies the waiter again.
            waiter.rearm();
            if !self.guard.is_held() {
                return;
            }
            let left = self.guard.until_it_may_be_lost();
            yield_point!();
            notified_timeout(&waiter, Some(left).filter(|left| *left < Duration::MAX)).await;
        }
    }

    /// [`LockGuard::renew`]. A renewal that has begun completes even if the future is dropped.
    ///
    /// # Errors
    /// Those of [`LockGuard::renew`], and of [`AsyncStore::run_blocking`].
    pub async fn renew(&self, lease: Duration) -> Result<()> {
        option_ranges::LOCK_LEASE.check(lease.as_nanos())?;
        let (store, grant) = (self.guard.store()?, Arc::clone(self.guard.grant()));
        let locks = Arc::clone(self.guard.locks());
        run_blocking(move || locks.renew_lease(LeaseRows::new(&store), &grant, lease)).await?
    }

    /// [`LockGuard::upgrade`]. If the future is dropped during the wait, the guard keeps its shared
    /// lock. If it is dropped after the grant, the guard is exclusive, but its token is 0 until the
    /// rest of the upgrade is done: by a blocking thread if that has begun, else by another call of
    /// `upgrade` or `downgrade`.
    ///
    /// # Errors
    /// Those of [`LockGuard::upgrade`], and of [`AsyncStore::run_blocking`].
    pub async fn upgrade(&mut self, wait: LockWaitPolicy) -> Result<()> {
        self.activate().await?;
        self.guard.store()?;
        let options = LockOptions::exclusive().wait(wait);
        let locks = Arc::clone(self.guard.locks());
        let waiting = self.guard.begin_upgrade(&options, &Waiter::of_task)?;
        let mut upgrade = PendingUpgrade { guard: &mut self.guard, waiting };
        while let Some(waiting) = upgrade.waiting.take() {
            match locks.poll(waiting, &options) {
                GrantPoll::Ready(request) => upgrade.guard.replace_request(request?),
                GrantPoll::Pending(waiting, waiter, at_most) => {
                    upgrade.waiting = Some(waiting);
                    notified_timeout(&waiter, at_most).await;
                }
            }
        }
        drop(upgrade);
        self.activate().await
    }

    /// [`LockGuard::downgrade`]. If the future is dropped after the lock has become shared, the
    /// token is 0 until a blocking thread has done the rest of the downgrade, or another call of
    /// `upgrade` or `downgrade` completes it.
    ///
    /// # Errors
    /// Those of [`LockGuard::downgrade`], and of [`AsyncStore::run_blocking`].
    pub async fn downgrade(&mut self) -> Result<()> {
        self.activate().await?;
        self.guard.begin_downgrade()?;
        self.activate().await
    }

    async fn activate(&mut self) -> Result<()> {
        let store = self.guard.store()?;
        let grant = Arc::clone(self.guard.grant());
        let pending = self.settling.get_mut();
        if pending.is_none() {
            if grant.is_ready() {
                return self.guard.check();
            }
            if LockService::of(&store)?.try_activate_now(&grant, true)? {
                return Ok(());
            }
        }
        let activation = pending.get_or_insert_with(|| {
            let store = store.clone();
            Box::pin(async move { run_blocking(move || LockService::of(&store)?.activate_grant(&grant, true)).await? })
        });
        let activated = activation.await;
        *pending = None;
        activated
    }

    /// Ends the guard but not the lease, and returns the token: see [`LockGuard::detach`].
    ///
    /// # Errors
    /// Those of [`LockGuard::detach`].
    #[allow(clippy::result_large_err, reason = "the guard is what the caller had")]
    pub fn detach(self) -> Result<Timestamp, Self> {
        self.guard.detach().map_err(Self::from)
    }

    /// [`LockGuard::release`]. A release that has begun completes even if the future is dropped.
    ///
    /// # Errors
    /// Those of [`LockGuard::release`]. [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) if
    /// the runtime is shut down: the lock is released in memory.
    pub async fn release(self) -> Result<()> {
        if !self.guard.grant().has_lease() {
            return self.guard.release();
        }
        run_blocking(move || self.guard.release()).await?
    }
}

/// An upgrade whose future may be dropped at any time. If the request is still waiting, the drop
/// cancels the request, and the guard stays shared. If the request was granted already, the guard
/// becomes exclusive.
struct PendingUpgrade<'a> {
    guard: &'a mut LockGuard,
    waiting: Option<LockWait>,
}

impl Drop for PendingUpgrade<'_> {
    fn drop(&mut self) {
        if let Some(request) = self.waiting.take().and_then(|waiting| waiting.into_request().cancel()) {
            self.guard.replace_request(request);
        }
    }
}

/// Ends, when dropped, the watch of a grant that `wait_lost` has begun: the future of `wait_lost`
/// may be dropped at any time.
struct WatchGuard<'a> {
    guard: &'a LockGuard,
    waiter: &'a Arc<Waiter>,
}

impl Drop for WatchGuard<'_> {
    fn drop(&mut self) {
        self.guard.unwatch(self.waiter);
    }
}
