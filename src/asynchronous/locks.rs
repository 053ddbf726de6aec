//! Locks for asynchronous code: a task waits for its lock without a thread.
//!
//! What comes between the grant in memory and the guard may wait for a sync; it runs on a blocking thread then, and without one where
//! there is nothing to wait for. A future that is dropped, at whatever poll, leaves nothing: while it waits its request leaves the
//! queue, and afterwards the lock is passed on.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::AsyncStore;
use super::hop::hop;
use super::transact::notified_within;
use crate::bounds;
use crate::error::{Error, Result};
use crate::locking::{LockEntry, LockTarget, LockWait, Request};
use crate::store::{Asked, Attempts, Fence, LockGuard, LockOptions, Txn, TxnOptions, Wait, Waited, check_no_lease};
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
    /// Those of [`Store::lock`](crate::Store::lock), and of [`AsyncStore::with`].
    pub async fn lock<'a>(&self, target: impl Into<LockTarget<'a>>) -> Result<AsyncLockGuard> {
        self.lock_with(target, LockOptions::exclusive()).await
    }

    /// [`Store::try_lock`](crate::Store::try_lock).
    ///
    /// # Errors
    /// Those of [`Store::try_lock`](crate::Store::try_lock), and of [`AsyncStore::with`].
    pub async fn try_lock<'a>(&self, target: impl Into<LockTarget<'a>>) -> Result<Option<AsyncLockGuard>> {
        let options = LockOptions::exclusive().wait(Wait::No);
        match self.store.ask(&target.into(), &options, None)? {
            Asked::Granted(wait) => {
                let Waited::Over(request) = self.store.step_of(wait, &options) else { return Ok(None) };
                self.settled(request?).await.map(Some)
            }
            Asked::Held => Ok(None),
        }
    }

    /// [`Store::lock_with`](crate::Store::lock_with).
    ///
    /// # Errors
    /// Those of [`Store::lock_with`](crate::Store::lock_with), and of [`AsyncStore::with`].
    pub async fn lock_with<'a>(
        &self,
        target: impl Into<LockTarget<'a>>,
        options: LockOptions,
    ) -> Result<AsyncLockGuard> {
        let request = self.take(&target.into(), &options).await?;
        self.settled(request).await
    }

    /// [`Store::lock_transact`](crate::Store::lock_transact). Dropping the future before a commit has begun releases the lock and commits
    /// nothing; what has begun goes on to its end, as in [`AsyncStore::transact`].
    ///
    /// # Errors
    /// Those of [`Store::lock_transact`](crate::Store::lock_transact) and [`AsyncStore::transact`].
    ///
    /// # Panics
    /// When the closure does.
    pub async fn lock_transact<'a, T, E, F>(
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
        let mut request = self.take(&target.into(), &lock).await?;
        if !self.store.settle_at_once(request.grant(), false)? {
            let store = self.store.clone();
            let settled;
            (request, settled) = hop(move || {
                let settled = store.settle(request.grant(), false);
                (request, settled)
            })
            .await?;
            settled?;
        }
        let under = self.store.under(request)?;
        let answer = self.run(Attempts::of_task(&self.store, txn).under(under.clone()), work).await;
        self.store.leave(&under);
        answer
    }

    async fn take(&self, target: &LockTarget<'_>, options: &LockOptions) -> Result<Request> {
        let Asked::Granted(mut wait) = self.store.ask(target, options, Some(&Waiter::of_task))? else {
            return Err(self.store.not_granted(target, options));
        };
        loop {
            match self.store.step_of(wait, options) {
                Waited::Over(request) => return request,
                Waited::Wait(waiting, waiter, at_most) => {
                    wait = waiting;
                    notified_within(&waiter, at_most).await;
                }
            }
        }
    }

    async fn settled(&self, request: Request) -> Result<AsyncLockGuard> {
        let guard = if self.store.settle_at_once(request.grant(), true)? {
            self.store.guard(request)?
        } else {
            let store = self.store.clone();
            hop(move || store.settled(request)).await??
        };
        Ok(guard.into())
    }
}

/// A [`LockGuard`] for asynchronous code. Dropping it releases the lock; that never waits, and needs no runtime.
#[must_use = "a guard that is dropped releases its lock"]
pub struct AsyncLockGuard {
    guard: LockGuard,
    /// What a conversion whose future was dropped has left to do. The mutex is for sharing the guard.
    settling: Mutex<Option<Settling>>,
}

type Settling = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

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
    /// The guard itself, whose calls may block.
    pub fn guard(&self) -> &LockGuard {
        &self.guard
    }

    /// [`LockGuard::token`].
    pub fn token(&self) -> Timestamp {
        self.guard.token()
    }

    /// [`LockGuard::fence`]; moves into the closure of [`AsyncStore::transact`].
    pub fn fence(&self) -> Fence {
        self.guard.fence()
    }

    /// [`LockGuard::info`].
    pub fn info(&self) -> LockEntry {
        self.guard.info()
    }

    /// [`LockGuard::is_held`].
    pub fn is_held(&self) -> bool {
        self.guard.is_held()
    }

    /// Waits, without a thread, until the guard is lost.
    pub async fn lost(&self) {
        let waiter = Waiter::of_task();
        let _watch = Watch { guard: &self.guard, waiter: &waiter };
        self.guard.watch(&waiter);
        while self.guard.is_held() {
            waiter.rearm();
            if !self.guard.is_held() {
                break;
            }
            let left = self.guard.until_it_may_be_lost();
            notified_within(&waiter, Some(left).filter(|left| *left < Duration::MAX)).await;
        }
    }

    /// [`LockGuard::renew`]. A renewal that has begun goes on when the future is dropped.
    ///
    /// # Errors
    /// Those of [`LockGuard::renew`], and of [`AsyncStore::with`].
    pub async fn renew(&self, lease: Duration) -> Result<()> {
        bounds::LEASE.check(lease.as_nanos())?;
        let (store, grant) = (self.guard.store()?, Arc::clone(self.guard.grant()));
        let locks = Arc::clone(self.guard.locks());
        hop(move || store.renew_lease(&locks, &grant, Some(lease))).await?
    }

    /// [`LockGuard::upgrade`]. A future that is dropped while it waits leaves the shared lock as it was. One that is dropped after the grant
    /// leaves the guard exclusive; its token is 0 until what was begun has ended, or `upgrade` is called once more, which does the rest.
    ///
    /// # Errors
    /// Those of [`LockGuard::upgrade`], and of [`AsyncStore::with`].
    pub async fn upgrade(&mut self, wait: Wait) -> Result<()> {
        self.settle().await?;
        let store = self.guard.store()?;
        let options = LockOptions::exclusive().wait(wait);
        let waiting = self.guard.begin_upgrade(&store, &options, &Waiter::of_task)?;
        let mut upgrade = Upgrade { guard: &mut self.guard, waiting };
        while let Some(waiting) = upgrade.waiting.take() {
            match store.step_of(waiting, &options) {
                Waited::Over(request) => upgrade.guard.converted(request?),
                Waited::Wait(waiting, waiter, at_most) => {
                    upgrade.waiting = Some(waiting);
                    notified_within(&waiter, at_most).await;
                }
            }
        }
        drop(upgrade);
        self.settle().await
    }

    /// [`LockGuard::downgrade`]. A future that is dropped leaves the guard shared; its token is 0 until what was begun has ended, or
    /// `downgrade` is called once more, which does the rest.
    ///
    /// # Errors
    /// Those of [`LockGuard::downgrade`], and of [`AsyncStore::with`].
    pub async fn downgrade(&mut self) -> Result<()> {
        self.settle().await?;
        self.guard.begin_downgrade()?;
        self.settle().await
    }

    async fn settle(&mut self) -> Result<()> {
        let store = self.guard.store()?;
        let grant = Arc::clone(self.guard.grant());
        let settling = self.settling.get_mut();
        if settling.is_none() {
            if grant.is_settled() {
                return self.guard.check();
            }
            if store.settle_at_once(&grant, true)? {
                return Ok(());
            }
        }
        let settled = settling.get_or_insert_with(|| {
            let store = store.clone();
            Box::pin(async move { hop(move || store.settle(&grant, true)).await? })
        });
        let settled = settled.await;
        *settling = None;
        settled
    }

    /// [`LockGuard::into_token`].
    ///
    /// # Errors
    /// Those of [`LockGuard::into_token`].
    #[allow(clippy::result_large_err, reason = "the guard is what the caller had")]
    pub fn into_token(self) -> Result<Timestamp, Self> {
        self.guard.into_token().map_err(Self::from)
    }

    /// [`LockGuard::release`]. A release that has begun goes on when the future is dropped.
    ///
    /// # Errors
    /// Those of [`LockGuard::release`]; [`ErrorKind::Stopped`](crate::ErrorKind::Stopped) when the runtime was shut down: the lock is released in memory.
    pub async fn release(self) -> Result<()> {
        if !self.guard.grant().has_lease() {
            return self.guard.release();
        }
        hop(move || self.guard.release()).await?
    }
}

/// An upgrade whose future may be dropped at any moment: the guard is shared as before, or exclusive.
struct Upgrade<'a> {
    guard: &'a mut LockGuard,
    waiting: Option<LockWait>,
}

impl Drop for Upgrade<'_> {
    fn drop(&mut self) {
        if let Some(request) = self.waiting.take().and_then(|waiting| waiting.into_request().withdraw()) {
            self.guard.converted(request);
        }
    }
}

/// A guard that is watched until this is dropped.
struct Watch<'a> {
    guard: &'a LockGuard,
    waiter: &'a Arc<Waiter>,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.guard.unwatch(self.waiter);
    }
}
