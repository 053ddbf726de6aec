//! Options of requests for named locks.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::lock_manager::{CancelToken, LockMode};
use crate::option_ranges;

/// How long a request waits for the lock at most, by default.
pub(in crate::store) const DEFAULT_LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// The maximum length of [`LockOptions::reason`], in bytes.
pub const MAX_LOCK_REASON_BYTES: usize = 255;

/// How long a request waits in the queue. The default is at most 30 seconds, as for
/// [`Store::lock`](crate::Store::lock).
///
/// A wait for a sync may follow, which the policy does not limit: if the previous holder committed
/// something that is not durable yet, or if the request or the previous holder has a lease, because
/// a lease is stored and removed durably.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockWaitPolicy {
    /// Not at all: granted immediately, or
    /// [`ErrorKind::LockNotAvailable`](crate::ErrorKind::LockNotAvailable).
    NoWait,
    /// At most this duration, from the call on.
    Timeout(Duration),
    /// Until the lock is granted, or the store is closed or fails.
    Forever,
}

impl Default for LockWaitPolicy {
    fn default() -> Self {
        Self::Timeout(DEFAULT_LOCK_TIMEOUT)
    }
}

impl LockWaitPolicy {
    pub(in crate::store) fn timeout(self) -> Option<Duration> {
        match self {
            Self::NoWait => Some(Duration::ZERO),
            Self::Timeout(time) => Some(time),
            Self::Forever => None,
        }
    }
}

/// Options of a request for a named lock: [`Store::lock_with`](crate::Store::lock_with).
///
/// ```
/// # fn main() -> percolite::Result<()> {
/// use percolite::{LockOptions, LockWaitPolicy, Store};
/// use std::time::Duration;
/// let store = Store::in_memory()?;
/// let wait = LockWaitPolicy::Timeout(Duration::from_secs(2));
/// let options = LockOptions::semaphore(4).wait(wait).reason("thumbnails");
/// let permit = store.lock_with("workers", options)?;
/// # drop(permit);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct LockOptions {
    pub(in crate::store) mode: LockMode,
    pub(in crate::store) wait: LockWaitPolicy,
    pub(in crate::store) cancel_token: Option<CancelToken>,
    pub(in crate::store) reason: Option<Box<str>>,
    pub(in crate::store) lease: Option<Duration>,
    pub(in crate::store) auto_renew: bool,
}

impl Default for LockOptions {
    fn default() -> Self {
        Self {
            mode: LockMode::default(),
            wait: LockWaitPolicy::default(),
            cancel_token: None,
            reason: None,
            lease: None,
            auto_renew: true,
        }
    }
}

impl LockOptions {
    /// One holder, and no other of any mode. The default.
    pub fn exclusive() -> Self {
        Self::default()
    }

    /// Any number of holders, all of them shared. A shared request that comes while an exclusive
    /// request waits is queued behind the exclusive one.
    pub fn shared() -> Self {
        Self { mode: LockMode::Shared, ..Self::default() }
    }

    /// At most `permits` holders; `permits` is at least 1. A name cannot be a semaphore and a
    /// shared lock at once, nor have two numbers of permits: while requests of one kind hold the
    /// name or wait for it, one of the other kind, or with another number, fails with
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument). Exclusive requests are
    /// possible at any time, and exclude all others.
    pub fn semaphore(permits: u32) -> Self {
        Self { mode: LockMode::Semaphore(permits), ..Self::default() }
    }

    /// How long to wait. Default: at most 30 seconds.
    pub fn wait(self, wait: LockWaitPolicy) -> Self {
        Self { wait, ..self }
    }

    /// A token that cancels the wait, with [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled). A
    /// lock that is free is granted even if the token is cancelled.
    pub fn cancel_token(self, token: &CancelToken) -> Self {
        Self { cancel_token: Some(token.clone()), ..self }
    }

    /// The purpose of the lock, for the lock table and for errors of other requests. At most 255
    /// bytes.
    pub fn reason(self, reason: impl Into<String>) -> Self {
        Self { reason: Some(reason.into().into_boxed_str()), ..self }
    }

    /// Makes the lock outlast its process: it is held until it is released, or until `duration` has
    /// passed since the grant or the last renewal. `duration` is from 100 milliseconds to 366 days;
    /// on disk it is in whole milliseconds. While the guard exists, a background thread renews the
    /// lease when half of the time has passed. A semaphore cannot have a lease.
    ///
    /// A lease is a row on disk, so its grant, renewal and release take a durable commit each.
    ///
    /// The process that was granted the lock measures the time by the monotonic clock, which does
    /// not advance while the machine sleeps. On Linux, later processes measure it by the same
    /// clock, whatever the wall clock shows. After a restart of the machine, the first process that
    /// opens the store computes once how much time is left by the wall clock: never more than
    /// `duration`, and too little only if the wall clock was set ahead.
    ///
    /// The time starts before the row is written. If the write takes longer than the lease, the
    /// call returns [`ErrorKind::LockLost`](crate::ErrorKind::LockLost).
    pub fn lease(self, duration: Duration) -> Self {
        Self { lease: Some(duration), ..self }
    }

    /// Whether the store renews the lease while the guard exists; it does by default. Without
    /// renewal, the lease expires, and the next request is granted the lock. A transaction that was
    /// [fenced](crate::Txn::fence) before the expiry can commit until the grant ends, for example
    /// by such a request: see [`Txn::fence`](crate::Txn::fence).
    pub fn auto_renew(self, renew: bool) -> Self {
        Self { auto_renew: renew, ..self }
    }

    pub(in crate::store) fn check(&self) -> Result<()> {
        if let LockMode::Semaphore(most) = self.mode {
            option_ranges::SEMAPHORE_PERMITS.check(most.into())?;
        }
        if let Some(reason) = self.reason.as_ref().filter(|reason| reason.len() > MAX_LOCK_REASON_BYTES) {
            let what =
                format!("the reason of a lock has {} bytes, the maximum is {MAX_LOCK_REASON_BYTES}", reason.len());
            return Err(Error::invalid(what));
        }
        match self.lease {
            None if !self.auto_renew => Err(Error::invalid("auto_renew(false) requires a lease")),
            None => Ok(()),
            Some(_) if matches!(self.mode, LockMode::Semaphore(_)) => {
                Err(Error::invalid("a semaphore cannot be leased"))
            }
            Some(time) => Ok(option_ranges::LOCK_LEASE.check(time.as_nanos())?),
        }
    }
}
