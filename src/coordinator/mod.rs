//! Coordinators: which protocol steps a transaction runs, in which order, and what it waits for.
//!
//! [`protocol`](crate::protocol) decides about single rows, without I/O. A coordinator runs the
//! protocol's steps for whole transactions, and resolves the locks that readers and writers find.
//! The store above uses the [`Coordinator`] trait alone.
//!
//! Two-phase commit is Percolator's:
//!
//! 1. *Prewrite* locks every row and stores in each lock what the row will be. Each lock names the
//!    *primary*, which is one row of the transaction.
//! 2. *Commit point*: one atomic change turns the primary's lock into a version.
//! 3. The other rows, the *secondaries*, follow.
//!
//! If the process dies before all rows have followed, the locks that are left are *orphan locks*. A
//! lock does not show whether its transaction is committed; the primary does. So any reader or
//! writer that finds an orphan lock can resolve it: first it reads the primary and, if the primary
//! is not committed, rolls the primary back, which is final; then it rolls the orphan lock forward
//! or back to the same status.
//!
//! The primary may be rolled back only once the owner of the lock has ended. How that is detected
//! is one of the differences between a process that has the engine to itself and processes that
//! share one:
//!
//! | | [`embedded`] | [`shared`] |
//! |---|---|---|
//! | processes that use the engine | one | several |
//! | timestamps | of the process, reserved on the disk | of an oracle for all |
//! | commit | one phase if the rows fit one batch, else two | two phases, row by row |
//! | conflicts are decided by | one pipeline, for whole batches | each row |
//! | an owner has ended if | it began in an earlier incarnation | its lock's TTL has expired |
//! | reader finds a running owner's lock | ignores it | makes the owner commit later |
//! | writer finds a running owner's lock | conflict; retries after unlock | conflict; backs off |
//! | own rollback | leaves no record | leaves a record for late requests |
//! | transaction records | deleted after the last lock | not deleted |
//! | replaced versions | kept for history only | always kept |
//!
//! [`read_only`] serves a store that is opened for reading: it has one view, reads each
//! transaction's status at its primary, and writes nothing.

mod api;
pub mod embedded;
mod primary;
pub mod read_only;
mod retention;
mod retry_unknown;
pub mod shared;
pub mod shared_config;
mod step_error;

pub use api::{
    BackgroundTask, CommitProtocol, CommitRequest, Coordinator, HistoryRetention, LargeTxn, LockAuthority, Watermarks,
};
#[cfg(feature = "rocks")]
pub use primary::commit_ts_from_primary;
pub use retention::{RETENTION_KEY, Retention, check_within_retention};
