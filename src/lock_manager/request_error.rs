//! Why a request for a named lock is rejected.

use std::sync::Arc;

use super::queue::ModeMismatch;

/// Why a request was rejected.
#[derive(Debug)]
pub enum RequestError {
    ModeMismatch(ModeMismatch),
    /// The lease row of the name is corrupt.
    Corrupt(Arc<str>),
    /// The store is closed or has failed.
    Closed(String),
    /// The lock is not available now, and the request is one that does not wait.
    WouldBlock,
}
