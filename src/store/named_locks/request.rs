//! Requests of named locks, in memory: the request, the wait and the grant. [`activate`] leads from
//! the grant to the guard.
//!
//! [`activate`]: super::activate

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::lock_manager::{
    Grant, Lease, LockMode, LockNotAvailable, LockTarget, LockWait, RequestError, RequestHandle, RequestOrigin,
    Requester, WaitPoll,
};
use crate::store::catalog::entries::check_name;
use crate::store::named_locks::errors::{invalid_name_error, request_error};
use crate::store::named_locks::options::{LockOptions, LockWaitPolicy};
use crate::store::named_locks::state::NamedLocks;
use crate::timestamp::Timestamp;
use crate::waiter::Waiter;

/// An error names at most this number of holders.
const HOLDERS_IN_ERROR_MAX: usize = 8;
/// Waits that were longer than this are logged as warnings, others as debug events.
#[cfg(feature = "tracing")]
const LOG_WAIT_AFTER: Duration = Duration::from_secs(1);

impl NamedLocks {
    /// Blocks this thread until the lock is granted in memory.
    pub fn acquire(&self, target: &LockTarget<'_>, options: &LockOptions) -> Result<RequestHandle> {
        let waiter = || Arc::new(Waiter::new(&*self.env));
        match self.request(target, options, Some(&waiter))? {
            RequestResult::Requested(wait) => self.wait_for_grant(wait, options),
            RequestResult::NotAvailable => Err(self.not_available_error(target, options)),
        }
    }

    /// Blocks this thread until the wait ends.
    pub fn wait_for_grant(&self, mut wait: LockWait, options: &LockOptions) -> Result<RequestHandle> {
        loop {
            match self.poll(wait, options) {
                GrantPoll::Ready(request) => return request,
                GrantPoll::Pending(waiting, waiter, at_most) => {
                    wait = waiting;
                    match at_most {
                        Some(at_most) => waiter.wait_at_most(&*self.env, at_most),
                        None => waiter.wait(),
                    }
                }
            }
        }
    }

    /// Makes a request, without waiting.
    pub fn request(
        &self,
        target: &LockTarget<'_>,
        options: &LockOptions,
        waiter: Option<&dyn Fn() -> Arc<Waiter>>,
    ) -> Result<RequestResult> {
        let LockTarget::Name(name) = target;
        check_name(name).map_err(|_| Error::invalid(invalid_name_error(name)))?;
        options.check()?;
        let now = self.env.elapsed();
        let owner = || Requester { origin: request_origin(), reason: options.reason.clone(), requested_at: now };
        // `expires_at` and `renewed_at_ms` are set when the lease row has been written.
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
        match self.manager.request(name, options.mode, owner, lease, (now, waiter)) {
            Ok(grant) => {
                // A request with a waiter had to wait, even if it has been granted since.
                if grant.waiter().is_some() {
                    self.manager.metrics.wait_started(options.mode);
                }
                let request = RequestHandle::new(&self.manager, grant, false);
                Ok(RequestResult::Requested(LockWait::new(
                    request,
                    now,
                    options.wait.timeout(),
                    options.cancel_token.as_ref(),
                )))
            }
            Err(RequestError::WouldBlock) => {
                self.manager.metrics.timed_out(options.mode);
                Ok(RequestResult::NotAvailable)
            }
            Err(error) => Err(request_error(target, error)),
        }
    }

    /// Checks whether the wait has ended. If so, a grant or a timeout is counted in the metrics.
    pub fn poll(&self, wait: LockWait, options: &LockOptions) -> GrantPoll {
        let now = wait.started_or_now(&*self.env);
        let step = wait.poll(now);
        let waited = wait.elapsed(now);
        let grant = wait.request.grant();
        let mode = options.mode;
        GrantPoll::Ready(match step {
            WaitPoll::Wait(waiter, at_most) => return GrantPoll::Pending(wait, waiter, at_most),
            WaitPoll::Granted => {
                self.manager.metrics.acquired(mode);
                if grant.waiter().is_some() {
                    self.manager.metrics.wait_granted(mode, waited);
                    log_wait(grant, waited);
                }
                Ok(wait.into_request())
            }
            WaitPoll::TimedOut { ahead } => {
                self.manager.metrics.timed_out(mode);
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
            WaitPoll::Closed(reason) => Err(Error::closed(reason)),
            WaitPoll::GrantEnded(reason) => Err(ErrorKind::LockLost(Box::new(grant.lost_error(reason))).into()),
        })
    }

    /// The error of a request with [`LockWaitPolicy::NoWait`] that was not granted immediately.
    pub fn not_available_error(&self, target: &LockTarget<'_>, options: &LockOptions) -> Error {
        ErrorKind::LockNotAvailable(Box::new(self.held_by(target, (options.mode, 0), None, Duration::ZERO))).into()
    }

    /// The error of a request that was not granted; `mode` is what it requested. The error names
    /// the present holders except the grant with this `id`: an upgrade has the same id as the
    /// shared grant that it would replace.
    pub fn held_by(
        &self,
        target: &LockTarget<'_>,
        (mode, id): (LockMode, u64),
        ahead: Option<usize>,
        waited: Duration,
    ) -> LockNotAvailable {
        let LockTarget::Name(name) = target;
        let (holders, waiting) =
            self.manager.holders(name, &self.clock(), HOLDERS_IN_ERROR_MAX, |other| other.id != id);
        let ahead = ahead.unwrap_or(waiting);
        LockNotAvailable { target: target.clone().into_owned(), mode, holders, queue_position: ahead, waited }
    }
}

pub(crate) enum RequestResult {
    /// The request was made: granted immediately, or waiting.
    Requested(LockWait),
    /// The request would have to wait, but must not.
    NotAvailable,
}

/// Whether a wait has ended. `Pending`: it has not. The caller must poll the returned wait again
/// when the waiter is notified, at the latest after the returned duration, if there is one.
pub(crate) enum GrantPoll {
    Ready(Result<RequestHandle>),
    Pending(LockWait, Arc<Waiter>, Option<Duration>),
}

fn request_origin() -> RequestOrigin {
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
