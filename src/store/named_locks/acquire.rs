//! Acquiring a named lock: the request, the wait and the grant. [`activate`](super::activate) leads
//! from the grant to the guard. (Row locks are another mechanism.)

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::lock_manager::{
    Grant, Lease, LockMode, LockNotAvailable, LockTarget, LockWait, RequestError, RequestHandle, RequestOrigin,
    Requester, WaitPoll,
};
use crate::store::catalog::entries::check_name;
use crate::store::handle::Store;
use crate::store::named_locks::errors::{invalid_name_error, request_error};
use crate::store::named_locks::guard::LockGuard;
use crate::store::named_locks::options::{LockOptions, LockWaitPolicy};
use crate::timestamp::Timestamp;
use crate::waiter::Waiter;

/// An error names at most this number of holders.
const HOLDERS_IN_ERROR_MAX: usize = 8;
/// Longer waits are logged as warnings.
#[cfg(feature = "tracing")]
const LOG_WAIT_AFTER: Duration = Duration::from_secs(1);

impl Store {
    /// Acquires a named lock exclusively. Waits at most **30 seconds**; [`Store::lock_with`] has
    /// other modes, other timeouts and leases.
    ///
    /// Requests are granted first come, first served. The lock is held until the [`LockGuard`] is
    /// dropped or released, the store is closed, or the process ends. Its name is unrelated to
    /// names of keyspaces and to rows. It excludes only other requests for the same name. A
    /// transaction that must not commit without the lock must be [fenced].
    ///
    /// **First the lock, then the snapshot.** A transaction that began before the grant may not see
    /// the changes of the previous holder. Begin after this returns, or use
    /// [`Store::transact_with_lock`].
    ///
    /// **Durability.** Durable commits that earlier holders fenced by the lock are durable when
    /// this returns. Their [buffered](crate::Durability::Buffered) commits are visible, and a power
    /// cut may take them back.
    ///
    /// **Not re-entrant.** The guard is the owner, not the thread. A second call in the same thread
    /// waits like any other, and returns [`ErrorKind::LockNotAvailable`] unless the guard is
    /// dropped in time. Two threads that take two locks in opposite order wait for each other until
    /// a timeout ends; until then [`Store::lock_table`] shows the cycle.
    ///
    /// **Not in a closure of [`transact`](Store::transact).** The wait would keep a snapshot and an
    /// admission permit, which others may wait for. A fence by the lock would fail as soon as
    /// anything was committed since the snapshot.
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
    /// `None`. It does not wait for the lock, but may wait for a sync: if the previous holder
    /// committed something that is not durable yet, or had a lease. No request is made if the lock
    /// is held, unless its lease has expired.
    ///
    /// # Errors
    /// Those of [`Store::lock`], except [`ErrorKind::LockNotAvailable`].
    pub fn try_lock<'a>(&self, target: impl Into<LockTarget<'a>>) -> Result<Option<LockGuard>> {
        self.try_lock_with(&target.into(), &LockOptions::exclusive().wait(LockWaitPolicy::NoWait))
    }

    pub(in crate::store) fn try_lock_with(
        &self,
        target: &LockTarget<'_>,
        options: &LockOptions,
    ) -> Result<Option<LockGuard>> {
        match self.request_lock(target, options, None)? {
            RequestResult::Requested(wait) => match self.poll_wait(wait, options) {
                GrantPoll::Ready(request) => self.activate_guard(request?).map(Some),
                GrantPoll::Pending(..) => Ok(None),
            },
            RequestResult::NotAvailable => Ok(None),
        }
    }

    /// Acquires a named lock with options.
    ///
    /// # Errors
    /// Those of [`Store::lock`]. If the disk fails while a lease row is written, the next
    /// incarnation of the store may find the lock held. Besides:
    ///
    /// - [`ErrorKind::LockNotAvailable`] at the end of [`LockOptions::wait`], with the holders and
    ///   the number of requests ahead.
    /// - [`ErrorKind::Cancelled`] if the wait is cancelled.
    /// - [`ErrorKind::InvalidArgument`] for options out of [bounds](crate::option_ranges) or that
    ///   exclude each other, and if the name is in use in another mode
    ///   ([`LockOptions::semaphore`]).
    /// - [`ErrorKind::LockLost`] also if the lease expires before its row is written.
    pub fn lock_with<'a>(&self, target: impl Into<LockTarget<'a>>, options: LockOptions) -> Result<LockGuard> {
        let request = self.acquire_request(&target.into(), &options)?;
        self.activate_guard(request)
    }

    /// Blocks this thread until the lock is granted in memory.
    pub(in crate::store) fn acquire_request(
        &self,
        target: &LockTarget<'_>,
        options: &LockOptions,
    ) -> Result<RequestHandle> {
        let env = &self.inner.env;
        let waiter = || Arc::new(Waiter::new(&**env));
        match self.request_lock(target, options, Some(&waiter))? {
            RequestResult::Requested(wait) => self.wait_for_grant(wait, options),
            RequestResult::NotAvailable => Err(self.lock_not_available(target, options)),
        }
    }

    /// Blocks this thread until the wait ends.
    pub(in crate::store) fn wait_for_grant(&self, mut wait: LockWait, options: &LockOptions) -> Result<RequestHandle> {
        loop {
            match self.poll_wait(wait, options) {
                GrantPoll::Ready(request) => return request,
                GrantPoll::Pending(waiting, waiter, at_most) => {
                    wait = waiting;
                    match at_most {
                        Some(at_most) => waiter.wait_at_most(&*self.inner.env, at_most),
                        None => waiter.wait(),
                    }
                }
            }
        }
    }

    /// Makes a request, without waiting.
    pub(crate) fn request_lock(
        &self,
        target: &LockTarget<'_>,
        options: &LockOptions,
        waiter: Option<&dyn Fn() -> Arc<Waiter>>,
    ) -> Result<RequestResult> {
        let LockTarget::Name(name) = target;
        check_name(name).map_err(|_| Error::invalid(invalid_name_error(name)))?;
        options.check()?;
        let locks = self.lock_manager()?;
        let now = locks.env.elapsed();
        let owner = || Requester { origin: asker(), reason: options.reason.clone(), requested_at: now };
        // The time to live starts when the row is written.
        let lease = options.lease.map(|time| Lease {
            duration: time,
            expires_at: Duration::MAX,
            renewed_at_ms: 0,
            auto_renew: options.auto_renew,
            has_guard: true,
            row_writes_in_flight: 1,
            last_explicit_renewal_ts: Timestamp::ZERO,
        });
        let waiter = waiter.filter(|_| options.wait != LockWaitPolicy::NoWait);
        match locks.manager.request(name, options.mode, owner, lease, (now, waiter)) {
            Ok(grant) => {
                // Counts as a wait even if it has been granted since.
                if grant.waiter().is_some() {
                    locks.manager.metrics.wait_started(options.mode);
                }
                let request = RequestHandle::new(&locks.manager, grant, false);
                Ok(RequestResult::Requested(LockWait::new(
                    request,
                    now,
                    options.wait.timeout(),
                    options.cancel_token.as_ref(),
                )))
            }
            Err(RequestError::WouldBlock) => {
                locks.manager.metrics.timed_out(options.mode);
                Ok(RequestResult::NotAvailable)
            }
            Err(why) => Err(request_error(target, why)),
        }
    }

    /// Checks whether the wait has ended, and counts its result.
    pub(crate) fn poll_wait(&self, wait: LockWait, options: &LockOptions) -> GrantPoll {
        let now = wait.started_or_now(&*self.inner.env);
        let step = wait.poll(now);
        let waited = wait.elapsed(now);
        let grant = wait.request.grant();
        let heads = wait.request.manager();
        let mode = options.mode;
        GrantPoll::Ready(match step {
            WaitPoll::Wait(waiter, at_most) => return GrantPoll::Pending(wait, waiter, at_most),
            WaitPoll::Granted => {
                heads.metrics.acquired(mode);
                if grant.waiter().is_some() {
                    heads.metrics.wait_granted(mode, waited);
                    log_wait(grant, waited);
                }
                Ok(wait.into_request())
            }
            WaitPoll::TimedOut { ahead } => {
                heads.metrics.timed_out(mode);
                Err(ErrorKind::LockNotAvailable(Box::new(self.held_by(
                    &grant.target(),
                    (mode, grant.id),
                    Some(ahead),
                    waited,
                )))
                .into())
            }
            WaitPoll::Cancelled => {
                let what = format!(
                    "the wait for lock {} was cancelled after {:.3} s; the request has left the queue",
                    grant.target(),
                    waited.as_secs_f64()
                );
                Err(ErrorKind::Cancelled(what).into())
            }
            WaitPoll::Closed(why) => Err(Error::closed(why)),
            WaitPoll::GrantEnded(reason) => Err(ErrorKind::LockLost(Box::new(grant.lost_error(reason))).into()),
        })
    }

    /// The error of a request with [`LockWaitPolicy::NoWait`] that was not granted immediately.
    pub(crate) fn lock_not_available(&self, target: &LockTarget<'_>, options: &LockOptions) -> Error {
        ErrorKind::LockNotAvailable(Box::new(self.held_by(target, (options.mode, 0), None, Duration::ZERO))).into()
    }

    /// The error of a request with this mode and id. Its own grant is not among the holders, which
    /// matters for a conversion.
    pub(in crate::store) fn held_by(
        &self,
        target: &LockTarget<'_>,
        (mode, id): (LockMode, u64),
        ahead: Option<usize>,
        waited: Duration,
    ) -> LockNotAvailable {
        let LockTarget::Name(name) = target;
        let locks = self.inner.locks.as_ref();
        let (holders, waiting) = locks
            .map(|locks| locks.manager.holders(name, &locks.clock(), HOLDERS_IN_ERROR_MAX, |other| other.id != id))
            .unwrap_or_default();
        let ahead = ahead.unwrap_or(waiting);
        LockNotAvailable { target: target.clone().into_owned(), mode, holders, queue_position: ahead, waited }
    }
}

/// The result of a request.
pub(crate) enum RequestResult {
    /// The request was made: granted immediately, or waiting.
    Requested(LockWait),
    /// The request would have to wait, but must not.
    NotAvailable,
}

/// The state of a wait.
pub(crate) enum GrantPoll {
    Ready(Result<RequestHandle>),
    Pending(LockWait, Arc<Waiter>, Option<Duration>),
}

fn asker() -> RequestOrigin {
    #[cfg(feature = "tokio")]
    let task = tokio::task::try_id().map(|id| id.to_string().into_boxed_str());
    #[cfg(not(feature = "tokio"))]
    let task = None;
    RequestOrigin::Here { thread: std::thread::current(), task }
}

#[cfg_attr(
    not(feature = "tracing"),
    allow(unused_variables, clippy::needless_pass_by_value, reason = "for the event alone")
)]
fn log_wait(grant: &Grant, waited: Duration) {
    #[cfg(feature = "tracing")]
    if waited > LOG_WAIT_AFTER {
        event!(WARN, lock = %grant.name, mode = %grant.mode, waited_ms = waited.as_millis(), "lock acquired after wait");
    } else {
        event!(DEBUG, lock = %grant.name, mode = %grant.mode, waited_ms = waited.as_millis(), "lock acquired after wait");
    }
}
