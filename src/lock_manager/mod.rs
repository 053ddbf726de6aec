//! Named locks, not row locks: a user takes a lock on a name, as with PostgreSQL's advisory locks.
//! All state of this module is in memory. The commit pipeline uses this module, not the reverse.
//!
//! ```text
//!   request ──> lock queue (one a name) ──> grant ──> ended grant, kept as a predecessor until its
//!                                                     fenced commits are durable and its lease row
//!                                                     is removed
//! ```
//!
//! The [lock queue](queue::LockQueue) decides which requests are granted. It is plain code without
//! I/O, clock or randomness. The [`LockManager`] is a sharded map from names to queues. Each
//! request becomes a [`Grant`], whose state is one atomic word.
//!
//! The steps from the end of one grant to the use of the next are in the [store](crate::store)'s
//! `named_locks::activate`. That file also has the reason for their order.

mod cancel;
mod fence;
mod grant;
mod info;
mod inspect;
mod leases;
mod manager;
mod metrics;
mod mode;
mod named_lock;
mod queue;
mod request;
mod request_error;
mod table;

pub use cancel::CancelToken;
pub use fence::{FenceCondition, Fences, InFlightFences};
pub use grant::{Grant, Lease, RequestOrigin, Requester};
pub use info::{
    ExpiredLease, LockEntry, LockHolder, LockLost, LockLostReason, LockNotAvailable, LockState, LockTable, LockTarget,
};
pub use manager::LockManager;
pub use metrics::{LockMetrics, LockModeStats, LockStats};
pub use mode::LockMode;
pub use named_lock::Predecessors;
pub use queue::{ModeMismatch, UpgradeResult};
pub use request::{LockWait, RequestHandle, WaitPoll};
pub use request_error::RequestError;
pub use table::LockTableContext;
#[cfg(feature = "metrics")]
pub use table::LockTotals;
