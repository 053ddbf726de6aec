//! The end of a pipeline: a failure, or an orderly close. Either is permanent.
//!
//! Any error of a write or a sync fails the pipeline before a waiting call is woken (fail-stop).
//! From then on, until the store is opened again, no transaction begins or commits, and no sync
//! succeeds: a sync after a failed one would prove nothing about the pages that the failed one has
//! lost.

use std::sync::{Arc, OnceLock};

use crate::env::Watermark;
use crate::error::{CLOSED_BY_USER, Error, ErrorKind, Result};
use crate::lock_manager::LockManager;

/// Records why the pipeline has failed or was closed.
pub struct Failure {
    reason: OnceLock<String>,
    named_locks: Arc<LockManager>,
    /// Number of syncs that have ended. A failure or a close raises it to `u64::MAX`, so that all
    /// waits for a sync end.
    syncs: Arc<dyn Watermark>,
}

impl Failure {
    pub fn new(named_locks: Arc<LockManager>, syncs: Arc<dyn Watermark>) -> Self {
        Self { reason: OnceLock::new(), named_locks, syncs }
    }

    /// Why the pipeline is closed or has failed; `None` while it is open.
    pub fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }

    pub fn check_open(&self) -> Result<()> {
        self.reason().map_or(Ok(()), |reason| Err(Error::closed(reason)))
    }

    /// Why a pipeline that is not open any more was closed or has failed.
    pub fn ended_by(&self) -> &str {
        let Some(reason) = self.reason() else { unreachable!("invariant: a pipeline that has ended has a reason") };
        reason
    }

    /// Fails the pipeline permanently; the first reason is kept. Returns the error for a call that
    /// has committed nothing.
    pub fn poison(&self, error: Error) -> Error {
        Error::closed(self.record(&error))
    }

    /// [`Failure::poison`] for a call that may have committed something, or whose commit may not be
    /// durable.
    pub fn poison_undetermined(&self, error: Error) -> Error {
        undetermined(self.record(&error))
    }

    /// Closes the pipeline; returns whether it was open.
    pub fn close(&self) -> bool {
        let closed_well = self.reason.set(CLOSED_BY_USER.into()).is_ok();
        self.syncs.advance_to(u64::MAX);
        closed_well
    }

    fn record(&self, error: &Error) -> &str {
        if self.reason.set(format!("the store has failed and must be reopened: {error}")).is_ok() {
            event!(ERROR, error = %error, "store failed");
            self.named_locks.close(self.ended_by());
        }
        self.syncs.advance_to(u64::MAX);
        self.ended_by()
    }
}

/// The error of a commit that may or may not have taken effect.
pub fn undetermined(reason: &str) -> Error {
    ErrorKind::Undetermined(reason.into()).into()
}
