//! Named locks, not row locks: locks on a name that a user takes, as PostgreSQL's advisory locks.
//! This module is in memory, below the commit pipeline.
//!
//! ```text
//!   request ──> lock queue (one a name) ──> grant ──> ended grant, kept as a predecessor until its
//!                                                     fenced commits are durable and its lease row
//!                                                     is removed
//! ```
//!
//! The [lock queue](queue::LockQueue) decides which requests are granted. It is plain code without
//! I/O, clock or randomness. The [`LockManager`] is a sharded map from names to queues. It makes
//! each request a [`Grant`], whose state is one atomic word.
//!
//! The steps from one grant to the next are in the [store](crate::store)'s `locks::take`: end,
//! drain, smallest `read_ts`, token, durable, check.

mod cancel;
mod metrics;
mod info;
mod fence;
mod grant;
mod queue;
mod manager;
mod leases;
mod mode;
mod named_lock;
mod request;
mod table;

pub use cancel::CancelToken;
pub use metrics::{LockMetrics, LockModeStats, LockStats};
pub use info::{ExpiredLease, LockEntry, LockHolder, LockLost, LockNotAvailable, LockState, LockTable, LockTarget};
pub use fence::{FenceCondition, Fences, InFlightFences};
pub use grant::{Grant, Lease, LockLostReason, RequestOrigin, Requester};
pub use queue::{ModeMismatch, UpgradeResult};
pub use manager::{LockManager, RequestError};
pub use mode::LockMode;
pub use named_lock::Predecessors;
pub use request::{LockWait, RequestHandle, WaitPoll};
pub use table::LockTableContext;
#[cfg(feature = "metrics")]
pub use table::Totals;
