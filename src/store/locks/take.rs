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
use super::{LockGuard, LockOptions, NamedLocks, Wait};
use crate::error::{Error, ErrorKind, Result};
use crate::locking::{
    Asker, Grant, Lease, LockHeld, LockMode, LockTarget, LockWait, LostReason, NotAsked, Owner, Past, Request,
    TakenOver, Unfit, WaitStep,
};
use crate::store::Store;
use crate::store::catalog::check_name;
use crate::timestamp::Timestamp;
use crate::waiter::Waiter;

/// So many holders are named by an error.
const HOLDERS_SHOWN: usize = 8;
/// Waits that are longer are reported as warnings.
#[cfg(feature = "tracing")]
const LONG_WAIT: Duration = Duration::from_secs(1);

impl Store {
    /// Takes a lock exclusively. Waits for it at most **30 seconds**; [`Store::lock_with`] has other modes, other waits and leases.
    ///
    /// Requests are granted first come, first served. The lock is held until the [`LockGuard`] is dropped or released, the store is closed, or the
    /// process ends, and has nothing to do with keyspaces or rows of any name. It excludes only others that take it: a
    /// transaction that must not be committed without it is [fenced].
    ///
    /// **The lock first, then the snapshot.** A transaction that began before the grant may not see what the holder before has done, so
    /// begin after this returns, or use [`Store::lock_transact`]. What holders before have committed durably, fenced by the lock, is
    /// durable when this returns; what they have committed [buffered](crate::Durability::Buffered) is seen, and a power cut may take it.
    ///
    /// **Not re-entrant.** The guard is the owner, not the thread: a second call in the same thread waits like any other, and returns
    /// [`ErrorKind::LockHeld`] if the guard is not dropped meanwhile. Two threads that take two locks in opposite order wait for each other
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
    /// [`ErrorKind::LockHeld`] after 30 seconds. [`ErrorKind::InvalidArgument`] when the name is empty, longer than 255 bytes or has
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
    /// Those of [`Store::lock`], but for [`ErrorKind::LockHeld`].
    pub fn try_lock<'a>(&self, target: impl Into<LockTarget<'a>>) -> Result<Option<LockGuard>> {
        self.try_with(&target.into(), &LockOptions::exclusive().wait(Wait::No))
    }

    pub(super) fn try_with(&self, target: &LockTarget<'_>, options: &LockOptions) -> Result<Option<LockGuard>> {
        match self.ask(target, options, None)? {
            Asked::Granted(wait) => match self.step_of(wait, options) {
                Waited::Over(request) => self.settled(request?).map(Some),
                Waited::Wait(..) => Ok(None),
            },
            Asked::Held => Ok(None),
        }
    }

    /// Takes a lock with options of its own.
    ///
    /// # Errors
    /// Those of [`Store::lock`]; [`ErrorKind::LockHeld`] when [`LockOptions::wait`] is over, with the holders and how many requests were
    /// before this one; [`ErrorKind::Stopped`] when it is cancelled; [`ErrorKind::InvalidArgument`] for options out of
    /// [bounds](crate::bounds) or that do not go together, and when the name is used in another way at this moment
    /// ([`LockOptions::semaphore`]); [`ErrorKind::LockLost`] also when the lease was over before its row was written. Where the disk
    /// fails while the row of a lease is written, the next life of the store may find it held.
    pub fn lock_with<'a>(&self, target: impl Into<LockTarget<'a>>, options: LockOptions) -> Result<LockGuard> {
        let request = self.take(&target.into(), &options)?;
        self.settled(request)
    }

    /// Waits on this thread until the lock is granted in memory.
    pub(super) fn take(&self, target: &LockTarget<'_>, options: &LockOptions) -> Result<Request> {
        let runtime = &self.inner.runtime;
        let waiter = || Arc::new(Waiter::new(&**runtime));
        match self.ask(target, options, Some(&waiter))? {
            Asked::Granted(wait) => self.wait(wait, options),
            Asked::Held => Err(self.not_granted(target, options)),
        }
    }

    /// Waits on this thread until the wait is over.
    pub(super) fn wait(&self, mut wait: LockWait, options: &LockOptions) -> Result<Request> {
        loop {
            match self.step_of(wait, options) {
                Waited::Over(request) => return request,
                Waited::Wait(waiting, waiter, at_most) => {
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
    pub(crate) fn ask(
        &self,
        target: &LockTarget<'_>,
        options: &LockOptions,
        waiter: Option<&dyn Fn() -> Arc<Waiter>>,
    ) -> Result<Asked> {
        let LockTarget::Name(name) = target;
        check_name(name).map_err(|_| Error::invalid(bad_name(name)))?;
        options.check()?;
        let locks = self.lockable()?;
        let now = locks.runtime.elapsed();
        let owner = || Owner { by: asker(), why: options.why.clone(), asked: now };
        // Its time begins when its row is written.
        let lease = options.lease.map(|time| Lease {
            time,
            ends: Duration::MAX,
            since_ms: 0,
            renews: !options.once,
            has_guard: true,
            writing: 1,
            asked: Timestamp::ZERO,
        });
        let waiter = waiter.filter(|_| options.wait != Wait::No);
        match locks.heads.ask(name, options.mode, owner, lease, (now, waiter)) {
            Ok(grant) => {
                // By now it may be granted all the same.
                if grant.waiter().is_some() {
                    locks.heads.counters.begins_to_wait(options.mode);
                }
                let request = Request::new(&locks.heads, grant, false);
                Ok(Asked::Granted(LockWait::new(request, now, options.wait.at_most(), options.cancel.as_ref())))
            }
            Err(NotAsked::Busy) => {
                locks.heads.counters.timed_out(options.mode);
                Ok(Asked::Held)
            }
            Err(why) => Err(not_asked(target, why)),
        }
    }

    /// Looks whether the wait is over.
    pub(crate) fn step_of(&self, wait: LockWait, options: &LockOptions) -> Waited {
        let now = wait.now(&*self.inner.runtime);
        let step = wait.step(now);
        let waited = wait.waited(now);
        let grant = wait.request.grant();
        let heads = wait.request.heads();
        let mode = options.mode;
        Waited::Over(match step {
            WaitStep::Wait(waiter, at_most) => return Waited::Wait(wait, waiter, at_most),
            WaitStep::Granted => {
                heads.counters.acquired(mode);
                if grant.waiter().is_some() {
                    heads.counters.waited(mode, waited);
                    tell_of_wait(grant, waited);
                }
                Ok(wait.into_request())
            }
            WaitStep::TimedOut { ahead } => {
                heads.counters.timed_out(mode);
                Err(ErrorKind::LockHeld(Box::new(self.held_by(&grant.target(), (mode, grant.id), Some(ahead), waited)))
                    .into())
            }
            WaitStep::Cancelled => {
                let what = format!(
                    "the wait for lock {} was cancelled after {:.3} s; nothing of it is left",
                    grant.target(),
                    waited.as_secs_f64()
                );
                Err(ErrorKind::Stopped(what).into())
            }
            WaitStep::Closed(why) => Err(Error::closed(why)),
            WaitStep::Lost(reason) => Err(ErrorKind::LockLost(Box::new(grant.loss(reason))).into()),
        })
    }

    /// Why a request that was not to wait was not made.
    pub(crate) fn not_granted(&self, target: &LockTarget<'_>, options: &LockOptions) -> Error {
        ErrorKind::LockHeld(Box::new(self.held_by(target, (options.mode, 0), None, Duration::ZERO))).into()
    }

    /// What a request of this mode and number is refused by: a conversion not by its own shared grant.
    pub(super) fn held_by(
        &self,
        target: &LockTarget<'_>,
        (mode, id): (LockMode, u64),
        ahead: Option<usize>,
        waited: Duration,
    ) -> LockHeld {
        let LockTarget::Name(name) = target;
        let locks = self.inner.locks.as_ref();
        let (holders, waiting) = locks
            .map(|locks| locks.heads.holders(name, &locks.clock(), HOLDERS_SHOWN, |other| other.id != id))
            .unwrap_or_default();
        let ahead = ahead.unwrap_or(waiting);
        LockHeld { target: target.clone().into_owned(), mode, holders, ahead, waited }
    }

    /// A guard of what was granted in memory.
    pub(crate) fn settled(&self, request: Request) -> Result<LockGuard> {
        self.settle(request.grant(), true)?;
        self.guard(request)
    }

    /// A guard of what has its token.
    pub(crate) fn guard(&self, request: Request) -> Result<LockGuard> {
        Ok(LockGuard::new(self, self.lockable()?, request))
    }

    /// Steps 2 to 6. Without `waits` the grant does not wait for what earlier ones have committed durably. A lease is renewed from
    /// here on, also where the future is gone that had this done on another thread.
    pub(crate) fn settle(&self, grant: &Arc<Grant>, waits: bool) -> Result<()> {
        let locks = self.lockable()?;
        if grant.has_lease() {
            locks.keeper.start(self)?;
        }
        let Some(embedded) = &self.inner.embedded else { return Ok(()) };
        let pipeline = embedded.pipeline();
        if mutated!(TokenBeforeDrain) {
            grant.set_token(pipeline.timestamp()?);
        }
        if mutated!(FloorBeforeDrain) {
            grant.set_floor(pipeline.current_view().read_ts);
        }
        let mut past = locks.heads.past_of(grant);
        if past.is_under_way {
            crash_point!(LockEnded);
            if !mutated!(NoDrainAfterEnd) {
                pipeline.pass()?;
            }
            crash_point!(LockDrained);
            past = locks.heads.past_of(grant);
        }
        if !mutated!(FloorBeforeDrain) {
            grant.set_floor(pipeline.current_view().read_ts);
        }
        if !mutated!(TokenBeforeDrain) {
            grant.set_token(if mutated!(TokenReused) { pipeline.opened_at() } else { pipeline.timestamp()? });
        }
        crash_point!(LockToken);
        pipeline.extend_lease_soon();
        self.take_over(locks, grant, &past)?;
        if waits && !mutated!(GuardBeforeDurable) && pipeline.wait_durable(past.debt).is_err() {
            // What is not known is whether others have committed; this caller has not.
            return Err(Error::closed(pipeline.failure().unwrap_or(crate::pipeline::CLOSED)));
        }
        if !past.is_empty() {
            locks.heads.tidy(&grant.name, pipeline.durable_ts());
        }
        grant.set_settled();
        if grant.has_lease() {
            locks.keeper.keep(grant);
        }
        check(locks, grant)
    }

    /// [`Store::settle`] without anything that may wait; `false` when there is, and then nothing was done.
    #[cfg(feature = "tokio")]
    pub(crate) fn settle_at_once(&self, grant: &Arc<Grant>, waits: bool) -> Result<bool> {
        let locks = self.lockable()?;
        let Some(embedded) = &self.inner.embedded else { return Ok(true) };
        let pipeline = embedded.pipeline();
        let past = locks.heads.past_of(grant);
        let owes = waits && past.debt > pipeline.durable_ts();
        if grant.has_lease() || past.is_under_way || !past.leases.is_empty() || owes {
            return Ok(false);
        }
        let floor = pipeline.current_view().read_ts;
        let Some(token) = pipeline.timestamp_at_once() else { return Ok(false) };
        pipeline.extend_lease_soon();
        grant.set_floor(floor);
        grant.set_token(token);
        if !past.is_empty() {
            locks.heads.tidy(&grant.name, pipeline.durable_ts());
        }
        grant.set_settled();
        check(locks, grant).map(|()| true)
    }

    /// Takes the rows of earlier leases away, and writes that of a new one, in one durable transaction.
    fn take_over(&self, locks: &Arc<NamedLocks>, grant: &Arc<Grant>, past: &Past) -> Result<()> {
        // The newest of them was held last.
        if let Some(over) = past.leases.iter().filter(|lease| is_expired(lease)).max_by_key(|lease| lease.token()) {
            locks.heads.counters.taken_over();
            let holder = locks.clock().holder(over);
            event!(INFO, lock = %grant.name, from = %holder, "lock taken over");
            grant.set_taken_over(TakenOver { token: over.token(), holder });
        }
        crash_point!(LockHandedOver if !past.leases.is_empty());
        if !grant.has_lease() && (past.leases.is_empty() || mutated!(LeaseReturnedEarly)) {
            return Ok(());
        }
        let gone: Vec<Timestamp> = past.leases.iter().map(|lease| lease.token()).collect();
        let now = locks.runtime.elapsed();
        let row = grant.lease().map(|lease| LeaseRow::new(locks, grant, lease.time));
        let since_ms = row.as_ref().map(|row| row.since_ms);
        if grant.has_lease() {
            grant.set_row(true);
        }
        // Fenced by itself: once the grant has ended, and the next one may have looked for its row, none is written.
        let changed =
            self.change_leases(&grant.name, &gone, (row.as_ref(), false), Some(grant).filter(|_| row.is_some()));
        // Of a store that closes meanwhile that is the reason.
        changed
            .or_else(|why| if locks.heads.closed().is_some() { check(locks, grant).and(Err(why)) } else { Err(why) })?;
        for lease in &past.leases {
            lease.set_row(false);
        }
        grant.with_lease(|lease| {
            (lease.ends, lease.since_ms) = (now.saturating_add(lease.time), since_ms.unwrap_or_default());
            lease.writing -= 1;
        });
        crash_point!(LockLeased if grant.has_lease());
        if grant.has_lease() {
            locks.heads.lease_written(grant);
        }
        Ok(())
    }
}

/// What became of asking.
pub(crate) enum Asked {
    /// There is a request: granted at once, or waiting.
    Granted(LockWait),
    /// It was not to wait, and would have to.
    Held,
}

/// How far a wait is.
pub(crate) enum Waited {
    Over(Result<Request>),
    Wait(LockWait, Arc<Waiter>, Option<Duration>),
}

fn is_expired(grant: &Grant) -> bool {
    grant.lost(Duration::ZERO) == Some(LostReason::Expired)
}

/// Whether the new grant still stands.
fn check(locks: &NamedLocks, grant: &Grant) -> Result<()> {
    let lost = grant.lost_by(&*locks.runtime);
    // Looked at afterwards: closing says so first, and then ends the grants.
    if let Some(why) = locks.heads.closed() {
        return Err(Error::closed(why));
    }
    match lost {
        Some(reason) => Err(ErrorKind::LockLost(Box::new(grant.loss(reason))).into()),
        None => Ok(()),
    }
}

fn asker() -> Asker {
    #[cfg(feature = "tokio")]
    let task = tokio::task::try_id().map(|id| id.to_string().into_boxed_str());
    #[cfg(not(feature = "tokio"))]
    let task = None;
    Asker::Here { thread: std::thread::current(), task }
}

pub(super) fn not_asked(target: &LockTarget<'_>, why: NotAsked) -> Error {
    match why {
        NotAsked::Unfit(Unfit::Semaphore(most)) => {
            Error::invalid(format!("lock {target} is used as a semaphore of {most} at this moment"))
        }
        NotAsked::Unfit(Unfit::Shared) => {
            Error::invalid(format!("lock {target} is shared at this moment, so it cannot be used as a semaphore"))
        }
        NotAsked::Damaged(what) => ErrorKind::Corruption(what.to_string()).into(),
        NotAsked::Closed(why) => Error::closed(why),
        NotAsked::Busy => Error::invalid(format!("lock {target} is held")),
    }
}

pub(super) fn bad_name(name: &str) -> String {
    format!("a lock's name has 1 to {} bytes and no control characters: {name:?}", crate::KEYSPACE_NAME_MAX_BYTES)
}

#[cfg_attr(
    not(feature = "tracing"),
    allow(unused_variables, clippy::needless_pass_by_value, reason = "for the event alone")
)]
fn tell_of_wait(grant: &Grant, waited: Duration) {
    #[cfg(feature = "tracing")]
    if waited > LONG_WAIT {
        event!(WARN, lock = %grant.name, mode = %grant.mode, waited_ms = waited.as_millis(), "lock waited");
    } else {
        event!(DEBUG, lock = %grant.name, mode = %grant.mode, waited_ms = waited.as_millis(), "lock waited");
    }
}
