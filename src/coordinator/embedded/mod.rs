//! The coordinator of a store that one process has for itself.
//!
//! Everything that changes rows goes through the [pipeline](crate::pipeline). The
//! [fate](crate::pipeline::Fate) of a lock's transaction is known in memory, or is that of an orphan,
//! which its primary decides.
//!
//! | file | what |
//! |---|---|
//! | [`one_phase`], [`two_phase`], [`large`] | how a transaction commits |
//! | [`prewrite`] | locking rows, for the last two |
//! | [`blocker`] | a lock in the way, or a conflict |
//! | [`resolve`], [`resolve_locks`] | the status of a lock's transaction; applying it |
//! | [`cleanup`], [`sweep`], [`gc`] | work in pages, on the [`background`] thread |
//! | [`history`] | the versions that are kept, and the GC horizon |
//! | [`rows`] | what all of these write with |

mod background;
mod blocker;
mod cleanup;
#[allow(clippy::module_inception, reason = "the folder is named after what it holds, and so is the file")]
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
