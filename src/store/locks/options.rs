//! How a lock is asked for.

use std::time::Duration;

use crate::bounds;
use crate::error::{Error, Result};
use crate::locking::{CancelToken, LockMode};

/// How long a request waits that does not say: see [`LockWaitPolicy`].
pub(super) const DEFAULT_LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest [`LockOptions::reason`], in bytes.
pub const MAX_LOCK_REASON_BYTES: usize = 255;

/// How long to wait for a lock. By default 30 seconds at most, as [`Store::lock`](crate::Store::lock) does.
///
/// It is the time in the queue. A call may take a sync longer: where the holder before has committed something that is not durable yet,
/// and for the row of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockWaitPolicy {
    /// Not at all: granted at once, or [`ErrorKind::LockNotAvailable`](crate::ErrorKind::LockNotAvailable).
    NoWait,
    /// So long at most, from the call on.
    Timeout(Duration),
    /// Until it is granted, or the store ends.
    Forever,
}

impl Default for LockWaitPolicy {
    fn default() -> Self {
        Self::Timeout(DEFAULT_LOCK_TIMEOUT)
    }
}

impl LockWaitPolicy {
    pub(super) fn timeout(self) -> Option<Duration> {
        match self {
            Self::NoWait => Some(Duration::ZERO),
            Self::Timeout(time) => Some(time),
            Self::Forever => None,
        }
    }
}

/// How a lock is asked for: [`Store::lock_with`](crate::Store::lock_with).
///
/// ```
/// # fn main() -> percolite::Result<()> {
/// use percolite::{LockOptions, Store, Wait};
/// use std::time::Duration;
/// let store = Store::in_memory()?;
/// let options = LockOptions::semaphore(4).wait(Wait::AtMost(Duration::from_secs(2))).why("thumbnails");
/// let permit = store.lock_with("workers", options)?;
/// # drop(permit);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct LockOptions {
    pub(super) mode: LockMode,
    pub(super) wait: LockWaitPolicy,
    pub(super) cancel_token: Option<CancelToken>,
    pub(super) reason: Option<Box<str>>,
    pub(super) lease: Option<Duration>,
    pub(super) once: bool,
}

impl LockOptions {
    /// One holder, and no other of any mode. The default.
    pub fn exclusive() -> Self {
        Self::default()
    }

    /// Any number of holders, as long as all of them are shared. One that comes while an exclusive request waits, waits behind it.
    pub fn shared() -> Self {
        Self { mode: LockMode::Shared, ..Self::default() }
    }

    /// So many holders at most, at least 1. All requests that hold or wait for a name must say the same number, and none may be shared:
    /// others are refused with [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument). An exclusive one excludes all of them.
    pub fn semaphore(most: u32) -> Self {
        Self { mode: LockMode::Semaphore(most), ..Self::default() }
    }

    /// How long to wait. Default: at most 30 seconds.
    pub fn wait(self, wait: LockWaitPolicy) -> Self {
        Self { wait, ..self }
    }

    /// What may end the wait with [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled). A lock that is free is granted even so.
    pub fn cancel_token(self, by: &CancelToken) -> Self {
        Self { cancel_token: Some(by.clone()), ..self }
    }

    /// What the lock is for: shown in the lock table and in errors of requests that find it held. At most 255 bytes.
    pub fn reason(self, why: impl Into<String>) -> Self {
        Self { reason: Some(why.into().into_boxed_str()), ..self }
    }

    /// Has the lock outlive its process: held until it is released or this time is over, from 100 milliseconds to 366 days, of which
    /// whole milliseconds count. While the guard lives it is renewed at half of it, by a background thread. Not for semaphores.
    ///
    /// A lease is a row on the disk, so granting, renewing and releasing it take a durable commit each. In the process that was granted
    /// it, time is the monotonic clock's, which stands still while the machine sleeps. A later process counts what is left by the wall
    /// clock, once, when it opens the store: never more than the whole time, and less than is left only if that clock was set ahead.
    /// Time begins before the row is written. If writing takes longer than the lease lasts, the call returns
    /// [`ErrorKind::LockLost`](crate::ErrorKind::LockLost).
    pub fn lease(self, time: Duration) -> Self {
        Self { lease: Some(time), ..self }
    }

    /// Does not renew the lease: when its time is over the lock is free for the next request, however long the guard lives. A
    /// transaction that was [fenced](crate::Txn::fence) before still commits until there is such a request.
    pub fn once(self) -> Self {
        Self { once: true, ..self }
    }

    pub(super) fn check(&self) -> Result<()> {
        if let LockMode::Semaphore(most) = self.mode {
            bounds::SEMAPHORE_PERMITS.check(most.into())?;
        }
        if let Some(why) = self.reason.as_ref().filter(|why| why.len() > MAX_LOCK_REASON_BYTES) {
            let what =
                format!("what a lock is for takes at most {MAX_LOCK_REASON_BYTES} bytes, this has {}", why.len());
            return Err(Error::invalid(what));
        }
        match self.lease {
            None if self.once => Err(Error::invalid("`once` is about a lease, and there is none")),
            None => Ok(()),
            Some(_) if matches!(self.mode, LockMode::Semaphore(_)) => {
                Err(Error::invalid("a semaphore cannot be leased"))
            }
            Some(time) => Ok(bounds::LOCK_LEASE.check(time.as_nanos())?),
        }
    }
}
