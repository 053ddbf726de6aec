//! Errors of named locks.

use crate::error::{Error, ErrorKind};
use crate::lock_manager::{LockTarget, ModeMismatch, RequestError};
use crate::store::limits::MAX_KEYSPACE_NAME_BYTES;

pub(in crate::store) fn request_error(target: &LockTarget<'_>, error: RequestError) -> Error {
    match error {
        RequestError::ModeMismatch(ModeMismatch::Semaphore(most)) => Error::invalid(format!(
            "lock {target} is in use as a semaphore of {most}; use that number, or wait until it is free"
        )),
        RequestError::ModeMismatch(ModeMismatch::Shared) => Error::invalid(format!(
            "lock {target} is in use as a shared lock; wait until it is free to use it as a semaphore"
        )),
        RequestError::Corrupt(what) => ErrorKind::Corruption(what.to_string()).into(),
        RequestError::Closed(reason) => Error::closed(reason),
        RequestError::WouldBlock => Error::invalid(format!("lock {target} is not available")),
    }
}

pub(in crate::store) fn invalid_name_error(name: &str) -> String {
    format!("invalid lock name {name:?}: expected 1 to {MAX_KEYSPACE_NAME_BYTES} bytes without control characters")
}

pub(in crate::store) fn locks_unsupported_error() -> Error {
    Error::invalid("not supported on a shared engine: named locks")
}

/// Whether background work on leases can be repeated after this error, because the error does not
/// mean the end of the store or of a lease. If so, the error is logged.
pub(in crate::store) fn is_transient(error: &Error) -> bool {
    let ends = matches!(error.kind(), ErrorKind::Closed(_) | ErrorKind::Undetermined(_) | ErrorKind::LockLost(_));
    if !ends {
        event!(WARN, task = "leases", error = %error, "background work failed");
    }
    !ends
}
