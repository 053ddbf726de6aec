//! Locks by name: queues of requests, grants, and what a grant leaves for the next one. In memory, below the commit pipeline.
//!
//! ```text
//!   request ──> head (one a name) ──> grant ──> ended ──> past, until its fenced commits are durable and its row is gone
//! ```
//!
//! The [head](head::Head) decides which requests are granted: plain code without I/O, clock or randomness. [`Heads`] is the map of them, in
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

pub use cancel::Cancel;
pub use counters::{LockCounters, LockModeStats, LockStats};
pub use entry::{LockEntry, LockHeld, LockHolder, LockLost, LockState, LockTable, LockTarget, TakenOver};
pub use fence::{Entered, FencedBy, Fences};
pub use grant::{Asker, Grant, Lease, LostReason, Owner};
pub use head::{Conversion, Unfit};
pub use heads::{Heads, NotAsked};
pub use mode::LockMode;
pub use name::Past;
pub use request::{LockWait, Request, WaitStep};
pub use table::Clock;
