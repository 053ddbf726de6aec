//! What the documentation promises at the edges: waiting, closing, opening, dropping, refusing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::pedantic, missing_docs, reason = "style of a library, not of its tests")]

#[path = "promises/backup.rs"]
mod backup;
#[path = "promises/closing.rs"]
mod closing;
#[path = "promises/dropping.rs"]
mod dropping;
#[path = "promises/errors.rs"]
mod errors;
#[path = "promises/figures.rs"]
mod figures;
#[path = "support/folders.rs"]
#[cfg(feature = "rocks")]
mod folders;
#[path = "promises/increments.rs"]
mod increments;
#[path = "promises/lost_logs.rs"]
#[cfg(feature = "rocks")]
mod lost_logs;
#[path = "promises/opening.rs"]
#[cfg(feature = "rocks")]
mod opening;
#[path = "promises/operations.rs"]
mod operations;
#[path = "support/orphans.rs"]
#[cfg(feature = "rocks")]
mod orphans;
#[path = "promises/publishing.rs"]
#[cfg(feature = "rocks")]
mod publishing;
#[path = "promises/read_only.rs"]
#[cfg(feature = "rocks")]
mod read_only;
#[path = "promises/repairing.rs"]
#[cfg(feature = "rocks")]
mod repairing;
#[path = "promises/reviewed.rs"]
mod reviewed;
#[path = "promises/verifying.rs"]
mod verifying;
#[path = "promises/views_of_keyspaces.rs"]
mod views_of_keyspaces;
#[path = "promises/waiting.rs"]
mod waiting;
