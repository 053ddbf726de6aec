//! Taking a lock: from asking to the guard.
//!
//! The lock head grants in memory, at once when the grant before ends. Then, on the way from one grant to the next, the order is the
//! proof that a later holder sees what earlier ones have committed, and that they commit nothing after it:
//!
//! 1. *End.* The old grant's word says that it has ended, before the new one is granted. The leader of the commit pipeline looks at the
//!    word when it decides a fenced commit: none is decided from here on.
//! 2. *Drain.* If fenced commits are under way, which were decided before, one pass through the pipeline publishes them.
//! 3. *Floor.* Everything visible now is what a fenced transaction has to see.
//! 4. *Token.* A new timestamp: greater than every commit decided before the end, smaller than every one under the new grant.
//! 5. *Durable.* What earlier conflicting grants have committed durably survives a power cut, and so does the end of their leases,
//!    whose rows go in the transaction that writes the new lease.
//! 6. *Check.* The new grant may have been taken away meanwhile.

use std::sync::Arc;
use std::time::Duration;

use super::leases::LeaseRow;
use super::{LockGuard, LockOptions, LockWaitPolicy, NamedLocks};
use crate::error::{Error, ErrorKind, Result};
use crate::locking::{
    ExpiredLease, Grant, Lease, LockLostReason, LockMode, LockNotAvailable, LockTarget, LockWait, ModeMismatch,
    Predecessors, RequestError, RequestHandle, RequestOrigin, Requester, WaitPoll,
};
use crate::store::Store;
use crate::store::catalog::check_name;
use crate::timestamp::Timestamp;
use crate::waiter::Waiter;

/// So many holders are named by an error.
const HOLDERS_IN_ERROR_MAX: usize = 8;
/// Waits that are longer are reported as warnings.
#[cfg(feature = "tracing")]
const LOG_WAIT_AFTER: Duration = Duration::from_secs(1);

impl Store {
    /// Takes a lock exclusively. Waits for it at most **30 seconds**; [`Store::lock_with`] has other modes, other waits and leases.
    ///
    /// Requests are granted first come, first served. The lock is held until the [`LockGuard`] is dropped or released, the store is closed, or the
    /// process ends, and has nothing to do with keyspaces or rows of any name. It excludes only others that take it: a
    /// transaction that must not be committed without it is [fenced].
    ///
    /// **The lock first, then the snapshot.** A transaction that began before the grant may not see what the holder before has done, so
    /// begin after this returns, or use [`Store::transact_with_lock`]. What holders before have committed durably, fenced by the lock, is
    /// durable when this returns; what they have committed [buffered](crate::Durability::Buffered) is seen, and a power cut may take it.
    ///
    /// **Not re-entrant.** The guard is the owner, not the thread: a second call in the same thread waits like any other, and returns
    /// [`ErrorKind::LockNotAvailable`] if the guard is not dropped meanwhile. Two threads that take two locks in opposite order wait for each other
    /// until their patience is over; [`Store::lock_table`] shows the cycle meanwhile.
    ///
    /// **Not in a closure of [`transact`](Store::transact)**: it would wait with a snapshot and a permit in hand, others might wait for
    /// those, and a fence of the transaction by it is refused as soon as anything was committed since the snapshot.
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
    /// [`ErrorKind::LockNotAvailable`] after 30 seconds. [`ErrorKind::InvalidArgument`] when the name is empty, longer than 255 bytes or has
    /// control characters, and where the store is read-only or others share its engine. [`ErrorKind::LockLost`] when
    /// [`Store::force_unlock`] took it away before this returns. [`ErrorKind::Corruption`] when the row of the name's leases is damaged.
    /// [`ErrorKind::Undetermined`], [`ErrorKind::Io`], [`ErrorKind::Closed`] when the disk or the store fails, or is closed: the lock is
    /// not held then.
    pub fn lock<'a>(&self, target: impl Into<LockTarget<'a>>) -> Result<LockGuard> {
        self.lock_with(target, LockOptions::exclusive())
    }

    /// Takes a lock exclusively if it is free at this moment and no request waits for it; `None` if not. Does not wait for the lock, but may
    /// for a sync, when the holder before has committed something that is not durable yet, or had a lease. Where the lock is held and no
    /// lease of it is over, no request is made.
    ///
    /// # Errors
    /// Those of [`Store::lock`], but for [`ErrorKind::LockNotAvailable`].
    pub fn try_lock<'a>(&self, target: impl Into<LockTarget<'a>>) -> Result<Option<LockGuard>> {
        self.try_lock_with(&target.into(), &LockOptions::exclusive().wait(LockWaitPolicy::NoWait))
    }

    pub(super) fn try_lock_with(&self, target: &LockTarget<'_>, options: &LockOptions) -> Result<Option<LockGuard>> {
        match self.request_lock(target, options, None)? {
            RequestResult::Requested(wait) => match self.poll_wait(wait, options) {
                GrantPoll::Ready(request) => self.activate_guard(request?).map(Some),
                GrantPoll::Pending(..) => Ok(None),
            },
            RequestResult::NotAvailable => Ok(None),
        }
    }

    /// Takes a lock with options of its own.
    ///
    /// # Errors
    /// Those of [`Store::lock`]; [`ErrorKind::LockNotAvailable`] when [`LockOptions::wait`] is over, with the holders and how many requests were
    /// before this one; [`ErrorKind::Cancelled`] when it is cancelled; [`ErrorKind::InvalidArgument`] for options out of
    /// [bounds](crate::bounds) or that do not go together, and when the name is used in another way at this moment
    /// ([`LockOptions::semaphore`]); [`ErrorKind::LockLost`] also when the lease was over before its row was written. Where the disk
    /// fails while the row of a lease is written, the next life of the store may find it held.
    pub fn lock_with<'a>(&self, target: impl Into<LockTarget<'a>>, options: LockOptions) -> Result<LockGuard> {
        let request = self.acquire_request(&target.into(), &options)?;
        self.activate_guard(request)
    }

    /// Waits on this thread until the lock is granted in memory.
    pub(super) fn acquire_request(&self, target: &LockTarget<'_>, options: &LockOptions) -> Result<RequestHandle> {
        let runtime = &self.inner.runtime;
        let waiter = || Arc::new(Waiter::new(&**runtime));
        match self.request_lock(target, options, Some(&waiter))? {
            RequestResult::Requested(wait) => self.wait_for_grant(wait, options),
            RequestResult::NotAvailable => Err(self.lock_not_available(target, options)),
        }
    }

    /// Waits on this thread until the wait is over.
    pub(super) fn wait_for_grant(&self, mut wait: LockWait, options: &LockOptions) -> Result<RequestHandle> {
        loop {
            match self.poll_wait(wait, options) {
                GrantPoll::Ready(request) => return request,
                GrantPoll::Pending(waiting, waiter, at_most) => {
                    wait = waiting;
                    match at_most {
                        Some(at_most) => waiter.wait_at_most(&*self.inner.runtime, at_most),
                        None => waiter.wait(),
                    }
                }
            }
        }
    }

    /// Makes a request. It waits for nothing yet.
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
        let now = locks.runtime.elapsed();
        let owner = || Requester { origin: asker(), reason: options.reason.clone(), requested_at: now };
        // Its time begins when its row is written.
        let lease = options.lease.map(|time| Lease {
            duration: time,
            expires_at: Duration::MAX,
            renewed_at_ms: 0,
            auto_renew: !options.once,
            has_guard: true,
            row_writes_in_flight: 1,
            last_explicit_renewal_ts: Timestamp::ZERO,
        });
        let waiter = waiter.filter(|_| options.wait != LockWaitPolicy::NoWait);
        match locks.heads.request(name, options.mode, owner, lease, (now, waiter)) {
            Ok(grant) => {
                // By now it may be granted all the same.
                if grant.waiter().is_some() {
                    locks.heads.metrics.wait_started(options.mode);
                }
                let request = RequestHandle::new(&locks.heads, grant, false);
                Ok(RequestResult::Requested(LockWait::new(
                    request,
                    now,
                    options.wait.timeout(),
                    options.cancel_token.as_ref(),
                )))
            }
            Err(RequestError::WouldBlock) => {
                locks.heads.metrics.timed_out(options.mode);
                Ok(RequestResult::NotAvailable)
            }
            Err(why) => Err(request_error(target, why)),
        }
    }

    /// Looks whether the wait is over.
    pub(crate) fn poll_wait(&self, wait: LockWait, options: &LockOptions) -> GrantPoll {
        let now = wait.started_or_now(&*self.inner.runtime);
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
                    "the wait for lock {} was cancelled after {:.3} s; nothing of it is left",
                    grant.target(),
                    waited.as_secs_f64()
                );
                Err(ErrorKind::Cancelled(what).into())
            }
            WaitPoll::Closed(why) => Err(Error::closed(why)),
            WaitPoll::GrantEnded(reason) => Err(ErrorKind::LockLost(Box::new(grant.lost_error(reason))).into()),
        })
    }

    /// Why a request that was not to wait was not made.
    pub(crate) fn lock_not_available(&self, target: &LockTarget<'_>, options: &LockOptions) -> Error {
        ErrorKind::LockNotAvailable(Box::new(self.held_by(target, (options.mode, 0), None, Duration::ZERO))).into()
    }

    /// What a request of this mode and number is refused by: a conversion not by its own shared grant.
    pub(super) fn held_by(
        &self,
        target: &LockTarget<'_>,
        (mode, id): (LockMode, u64),
        ahead: Option<usize>,
        waited: Duration,
    ) -> LockNotAvailable {
        let LockTarget::Name(name) = target;
        let locks = self.inner.locks.as_ref();
        let (holders, waiting) = locks
            .map(|locks| locks.heads.holders(name, &locks.clock(), HOLDERS_IN_ERROR_MAX, |other| other.id != id))
            .unwrap_or_default();
        let ahead = ahead.unwrap_or(waiting);
        LockNotAvailable { target: target.clone().into_owned(), mode, holders, queue_position: ahead, waited }
    }

    /// A guard of what was granted in memory.
    pub(crate) fn activate_guard(&self, request: RequestHandle) -> Result<LockGuard> {
        self.activate_grant(request.grant(), true)?;
        self.make_guard(request)
    }

    /// A guard of what has its token.
    pub(crate) fn make_guard(&self, request: RequestHandle) -> Result<LockGuard> {
        Ok(LockGuard::new(self, self.lock_manager()?, request))
    }

    /// Steps 2 to 6. Without `waits` the grant does not wait for what earlier ones have committed durably. A lease is renewed from
    /// here on, also where the future is gone that had this done on another thread.
    pub(crate) fn activate_grant(&self, grant: &Arc<Grant>, waits: bool) -> Result<()> {
        let locks = self.lock_manager()?;
        if grant.has_lease() {
            locks.keeper.start(self)?;
        }
        let Some(embedded) = &self.inner.embedded else { return Ok(()) };
        let pipeline = embedded.pipeline();
        if mutated!(TokenBeforeDrain) {
            grant.set_token(pipeline.next_timestamp()?);
        }
        if mutated!(MinReadTsBeforeDrain) {
            grant.set_min_read_ts(pipeline.visible_view().read_ts);
        }
        let mut past = locks.heads.predecessors_of(grant);
        if past.has_in_flight {
            crash_point!(LockGrantEnded);
            if !mutated!(NoDrainAfterEnd) {
                pipeline.drain()?;
            }
            crash_point!(LockDrained);
            past = locks.heads.predecessors_of(grant);
        }
        if !mutated!(MinReadTsBeforeDrain) {
            grant.set_min_read_ts(pipeline.visible_view().read_ts);
        }
        if !mutated!(TokenBeforeDrain) {
            grant.set_token(if mutated!(TokenReused) { pipeline.first_ts() } else { pipeline.next_timestamp()? });
        }
        crash_point!(LockToken);
        pipeline.request_reservation();
        self.replace_leases(locks, grant, &past)?;
        if waits && !mutated!(GuardBeforeDurable) && pipeline.wait_durable(past.unsynced_commit_ts).is_err() {
            // What is not known is whether others have committed; this caller has not.
            return Err(Error::closed(pipeline.failure().unwrap_or(crate::pipeline::CLOSED_MESSAGE)));
        }
        if !past.is_empty() {
            locks.heads.prune(&grant.name, pipeline.durable_ts());
        }
        grant.set_ready();
        if grant.has_lease() {
            locks.keeper.watch(grant);
        }
        check(locks, grant)
    }

    /// [`Store::activate_grant`] without anything that may wait; `false` when there is, and then nothing was done.
    #[cfg(feature = "tokio")]
    pub(crate) fn try_activate_now(&self, grant: &Arc<Grant>, waits: bool) -> Result<bool> {
        let locks = self.lock_manager()?;
        let Some(embedded) = &self.inner.embedded else { return Ok(true) };
        let pipeline = embedded.pipeline();
        let past = locks.heads.predecessors_of(grant);
        let owes = waits && past.unsynced_commit_ts > pipeline.durable_ts();
        if grant.has_lease() || past.has_in_flight || !past.leases.is_empty() || owes {
            return Ok(false);
        }
        let floor = pipeline.visible_view().read_ts;
        let Some(token) = pipeline.try_next_timestamp() else { return Ok(false) };
        pipeline.request_reservation();
        grant.set_min_read_ts(floor);
        grant.set_token(token);
        if !past.is_empty() {
            locks.heads.prune(&grant.name, pipeline.durable_ts());
        }
        grant.set_ready();
        check(locks, grant).map(|()| true)
    }

    /// Takes the rows of earlier leases away, and writes that of a new one, in one durable transaction.
    fn replace_leases(&self, locks: &Arc<NamedLocks>, grant: &Arc<Grant>, past: &Predecessors) -> Result<()> {
        // The newest of them was held last.
        if let Some(over) = past.leases.iter().filter(|lease| is_expired(lease)).max_by_key(|lease| lease.token()) {
            locks.heads.metrics.taken_over();
            let holder = locks.clock().holder(over);
            event!(INFO, lock = %grant.name, from = %holder, "lock taken over");
            grant.set_expired_lease(ExpiredLease { token: over.token(), holder });
        }
        crash_point!(LockHandedOver if !past.leases.is_empty());
        if !grant.has_lease() && (past.leases.is_empty() || mutated!(LeaseReturnedEarly)) {
            return Ok(());
        }
        let gone: Vec<Timestamp> = past.leases.iter().map(|lease| lease.token()).collect();
        let now = locks.runtime.elapsed();
        let row = grant.lease().map(|lease| LeaseRow::new(locks, grant, lease.duration));
        let since_ms = row.as_ref().map(|row| row.since_ms);
        if grant.has_lease() {
            grant.set_lease_row(true);
        }
        // Fenced by itself: once the grant has ended, and the next one may have looked for its row, none is written.
        let changed =
            self.update_leases(&grant.name, &gone, (row.as_ref(), false), Some(grant).filter(|_| row.is_some()));
        // Of a store that closes meanwhile that is the reason.
        changed
            .or_else(|why| if locks.heads.closed().is_some() { check(locks, grant).and(Err(why)) } else { Err(why) })?;
        for lease in &past.leases {
            lease.set_lease_row(false);
        }
        grant.with_lease(|lease| {
            (lease.expires_at, lease.renewed_at_ms) =
                (now.saturating_add(lease.duration), since_ms.unwrap_or_default());
            lease.row_writes_in_flight -= 1;
        });
        crash_point!(LockLeaseDurable if grant.has_lease());
        if grant.has_lease() {
            locks.heads.on_lease_renewed(grant);
        }
        Ok(())
    }
}

/// What became of asking.
pub(crate) enum RequestResult {
    /// There is a request: granted at once, or waiting.
    Requested(LockWait),
    /// It was not to wait, and would have to.
    NotAvailable,
}

/// How far a wait is.
pub(crate) enum GrantPoll {
    Ready(Result<RequestHandle>),
    Pending(LockWait, Arc<Waiter>, Option<Duration>),
}

fn is_expired(grant: &Grant) -> bool {
    grant.end_reason_at(Duration::ZERO) == Some(LockLostReason::Expired)
}

/// Whether the new grant still stands.
fn check(locks: &NamedLocks, grant: &Grant) -> Result<()> {
    let lost = grant.end_reason_now(&*locks.runtime);
    // Looked at afterwards: closing says so first, and then ends the grants.
    if let Some(why) = locks.heads.closed() {
        return Err(Error::closed(why));
    }
    match lost {
        Some(reason) => Err(ErrorKind::LockLost(Box::new(grant.lost_error(reason))).into()),
        None => Ok(()),
    }
}

fn asker() -> RequestOrigin {
    #[cfg(feature = "tokio")]
    let task = tokio::task::try_id().map(|id| id.to_string().into_boxed_str());
    #[cfg(not(feature = "tokio"))]
    let task = None;
    RequestOrigin::Here { thread: std::thread::current(), task }
}

pub(super) fn request_error(target: &LockTarget<'_>, why: RequestError) -> Error {
    match why {
        RequestError::ModeMismatch(ModeMismatch::Semaphore(most)) => {
            Error::invalid(format!("lock {target} is used as a semaphore of {most} at this moment"))
        }
        RequestError::ModeMismatch(ModeMismatch::Shared) => {
            Error::invalid(format!("lock {target} is shared at this moment, so it cannot be used as a semaphore"))
        }
        RequestError::Corrupt(what) => ErrorKind::Corruption(what.to_string()).into(),
        RequestError::Closed(why) => Error::closed(why),
        RequestError::WouldBlock => Error::invalid(format!("lock {target} is held")),
    }
}

pub(super) fn invalid_name_error(name: &str) -> String {
    format!("a lock's name has 1 to {} bytes and no control characters: {name:?}", crate::MAX_KEYSPACE_NAME_BYTES)
}

#[cfg_attr(
    not(feature = "tracing"),
    allow(unused_variables, clippy::needless_pass_by_value, reason = "for the event alone")
)]
fn log_wait(grant: &Grant, waited: Duration) {
    #[cfg(feature = "tracing")]
    if waited > LOG_WAIT_AFTER {
        event!(WARN, lock = %grant.name, mode = %grant.mode, waited_ms = waited.as_millis(), "lock waited");
    } else {
        event!(DEBUG, lock = %grant.name, mode = %grant.mode, waited_ms = waited.as_millis(), "lock waited");
    }
}
