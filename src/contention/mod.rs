//! Contention: who may begin an attempt after a conflict.
//!
//! An attempt that conflicts and is repeated immediately mostly conflicts again. So a retry waits
//! before it takes its snapshot:
//!
//! 1. in the [queue of each row](row_queue) that the attempt before it wrote, so retries on a row run
//!    one after the other;
//! 2. for the [release of the lock](unlock) that it met, if it met one;
//! 3. for a [permit](admission), while there are conflicts, so that no more attempts run at once than
//!    make progress.
//!
//! These waits cannot deadlock among themselves: rows are queued for in the order of their hashes, all
//! at once and before the permit, and a commit waits for none of them. But a closure may wait for
//! another thread that needs one. So each wait has a timeout, after which the attempt runs without;
//! correctness never depends on them, the commit's preconditions decide.

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
