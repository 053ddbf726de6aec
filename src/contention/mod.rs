//! Contention: what an attempt waits for before it begins, while there are conflicts.
//!
//! An attempt that is retried immediately after a conflict usually conflicts again. So a retry
//! waits before it takes its snapshot:
//!
//! 1. in the [queue of each row](row_queue) that the failed attempt wrote, so retries on a row run
//!    one after the other;
//! 2. for the [release of the lock](unlock) that the failed attempt conflicted with, if there was
//!    one.
//!
//! While there are conflicts, first attempts and retries also wait for a [permit](admission), so
//! that only as many attempts run at once as can make progress.
//!
//! # No deadlock, and not needed for correctness
//!
//! These waits cannot deadlock among themselves. An attempt queues for all its rows before it
//! begins, in the order of their hashes, and then for the permit. A commit waits neither for a row
//! queue nor for a permit. But the closure of a transaction may wait for another thread that needs
//! a ticket or a permit. So each wait has a timeout, after which the attempt runs without the
//! ticket or permit.
//!
//! Correctness does not depend on these waits: the preconditions of a commit detect every conflict.

mod admission;
mod admission_wait;
mod row_queue;
mod unlock;

pub use admission::AdmissionController;
#[cfg(feature = "tokio")]
pub use admission_wait::WaitAction;
pub use admission_wait::{AdmissionWait, AttemptGuard, WaitTimes};
pub use row_queue::RowQueues;
pub use unlock::UnlockWaiters;
