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
    ended: OnceLock<Ended>,
    named_locks: Arc<LockManager>,
    /// Number of syncs that have ended. A failure or a close raises it to `u64::MAX`, so that all
    /// waits for a sync end.
    syncs: Arc<dyn Watermark>,
}

struct Ended {
    reason: String,
    /// Whether stored data is damaged.
    is_damage: bool,
}

impl Ended {
    fn by(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Corruption(text) => Self {
                reason: format!("the store has failed, and must be repaired or restored from a backup: {text}"),
                is_damage: true,
            },
            _ => Self { reason: format!("the store has failed and must be reopened: {error}"), is_damage: false },
        }
    }

    /// The error of a call that has committed nothing.
    fn error(&self) -> Error {
        if self.is_damage { ErrorKind::Corruption(self.reason.clone()).into() } else { Error::closed(&self.reason) }
    }
}

impl Failure {
    pub fn new(named_locks: Arc<LockManager>, syncs: Arc<dyn Watermark>) -> Self {
        Self { ended: OnceLock::new(), named_locks, syncs }
    }

    /// Why the pipeline is closed or has failed; `None` while it is open.
    pub fn reason(&self) -> Option<&str> {
        self.ended.get().map(|ended| ended.reason.as_str())
    }

    /// The error of a call that has committed nothing; `None` while the pipeline is open.
    pub fn error(&self) -> Option<Error> {
        self.ended.get().map(Ended::error)
    }

    pub fn check_open(&self) -> Result<()> {
        self.error().map_or(Ok(()), Err)
    }

    /// The error of a call that has committed nothing, on a pipeline that is not open any more.
    pub fn ended_error(&self) -> Error {
        self.ended().error()
    }

    /// Why a pipeline that is not open any more was closed or has failed.
    pub fn ended_by(&self) -> &str {
        &self.ended().reason
    }

    /// Fails the pipeline permanently; the first reason is kept. Returns the error for a call that
    /// has committed nothing.
    pub fn poison(&self, error: Error) -> Error {
        self.record(&error).error()
    }

    /// [`Failure::poison`] for a call that may have committed something, or whose commit may not be
    /// durable.
    pub fn poison_undetermined(&self, error: Error) -> Error {
        undetermined(&self.record(&error).reason)
    }

    /// Closes the pipeline; returns whether it was open.
    pub fn close(&self) -> bool {
        let closed = Ended { reason: CLOSED_BY_USER.into(), is_damage: false };
        let closed_well = self.ended.set(closed).is_ok();
        self.syncs.advance_to(u64::MAX);
        closed_well
    }

    fn record(&self, error: &Error) -> &Ended {
        let ended = Ended::by(error);
        if self.ended.set(ended).is_ok() {
            event!(ERROR, error = %error, "store failed");
            self.named_locks.close(&self.ended().reason);
        }
        self.syncs.advance_to(u64::MAX);
        self.ended()
    }

    fn ended(&self) -> &Ended {
        let Some(ended) = self.ended.get() else { unreachable!("invariant: a pipeline that has ended has a reason") };
        ended
    }
}

/// The error of a commit that may or may not have taken effect.
pub fn undetermined(reason: &str) -> Error {
    ErrorKind::Undetermined(reason.into()).into()
}

/// The error of a call that may have left commits that are not durable, because of this failure.
pub fn undetermined_by(error: &Error) -> Error {
    undetermined(&Ended::by(error).reason)
}
