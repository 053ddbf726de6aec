//! Coordinators: who runs the protocol's steps, in which order, and waits for what.
//!
//! | coordinator | engine | orphan locks |
//! |---|---|---|
//! | [`embedded`] | its own: one pipeline orders all commits | their owner has ended for certain |
//! | [`shared`] | one of several clients: it reads rows, timestamps come from a common oracle | by TTL |
//! | [`read_only`] | opened for reading: one view, taken at opening | read, not resolved |
//!
//! The store above uses the [`Coordinator`] trait alone.

mod api;
pub mod embedded;
mod primary;
pub mod read_only;
mod retention;
pub mod shared;
mod step_error;

pub use api::{
    BackgroundTask, CommitProtocol, CommitRequest, Coordinator, HistoryRetention, LargeTxn, LockAuthority, Watermarks,
};
pub use primary::commit_ts_from_primary;
pub use retention::{RETENTION_KEY, Retention, check_within_retention};
