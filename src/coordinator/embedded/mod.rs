//! The coordinator of a store whose engine is exclusive to one process.
//!
//! All row changes pass through the [pipeline](crate::pipeline). Its leader checks their
//! preconditions, allocates commit timestamps in commit order, and publishes one view of everything
//! applied. So three things are simpler than in Percolator:
//!
//! - A transaction whose rows fit one atomic batch commits [without locks](one_phase). Two phases
//!   are for larger transactions.
//! - A reader ignores the locks of running transactions, because these commit above the reader's
//!   timestamp.
//! - Locks have no time to live, because the process has the [fate](crate::pipeline::Fate) of each
//!   transaction of its incarnation in memory. A lock whose `start_ts` is below the first timestamp
//!   of the incarnation is an orphan lock: only one process can open the engine, so the lock's
//!   owner has ended. For an orphan lock [the primary](resolve) determines the status.
//!
//! Opening does not wait for orphan locks. Readers and writers resolve those that they find, and
//! the [`sweep`] resolves the others.
//!
//! | file | contents |
//! |---|---|
//! | [`one_phase`], [`two_phase`], [`large`] | the three ways to commit |
//! | [`prewrite`] | locks rows, for the last two |
//! | [`blocker`] | what prevents a commit: a lock to resolve, or a conflict |
//! | [`resolve`], [`resolve_locks`] | the status of a lock's transaction; applying it |
//! | [`cleanup`], [`sweep`], [`gc`] | work in pages, on the [`background`] thread |
//! | [`history`] | the versions that are kept, and the GC horizon |
//! | [`rows`] | row changes and their errors, for all of these |

mod background;
mod blocker;
mod cleanup;
#[allow(clippy::module_inception, reason = "the directory is named after its contents, and so is the file")]
mod embedded;
mod gc;
mod history;
mod large;
mod lock_authority;
mod one_phase;
mod prewrite;
mod resolve;
mod resolve_locks;
mod rows;
mod sweep;
mod two_phase;
mod waker;

pub use embedded::EmbeddedCoordinator;
