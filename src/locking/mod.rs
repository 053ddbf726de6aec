//! Locks by name: queues of requests, grants, and what a grant leaves for the next one. In memory, below the commit pipeline.
//!
//! ```text
//!   request ──> head (one a name) ──> grant ──> ended ──> past, until its fenced commits are durable and its row is gone
//! ```
//!
//! The [head](head::LockQueue) decides which requests are granted: plain code without I/O, clock or randomness. [`LockManager`] is the map of them, in
//! shards, and makes of each request a [`Grant`] with its one atomic word. What happens between one grant and the next is in the
//! [store](crate::store)'s `locks::take`: end, drain, floor, token, durable, check.

mod cancel;
mod counters;
mod entry;
mod fence;
mod grant;
mod head;
mod heads;
mod leases;
mod mode;
mod name;
mod request;
mod table;

pub use cancel::CancelToken;
pub use counters::{LockMetrics, LockModeStats, LockStats};
pub use entry::{ExpiredLease, LockEntry, LockHolder, LockLost, LockNotAvailable, LockState, LockTable, LockTarget};
pub use fence::{FenceCondition, Fences, InFlightFences};
pub use grant::{Grant, Lease, LockLostReason, RequestOrigin, Requester};
pub use head::{ModeMismatch, UpgradeResult};
pub use heads::{LockManager, RequestError};
pub use mode::LockMode;
pub use name::Predecessors;
pub use request::{LockWait, RequestHandle, WaitPoll};
pub use table::LockTableContext;
