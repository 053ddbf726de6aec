//! What the documentation promises for edge cases: opening, closing and read-only stores,
//! keyspaces, errors, dumps and checkpoints, damage, repair and verification.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::pedantic, missing_docs, reason = "style of a library, not of its tests")]

mod backup;
mod closing;
#[path = "../support/directories.rs"]
#[cfg(feature = "rocks")]
mod directories;
mod dropping;
mod errors;
mod handles;
mod increments;
mod keyspace_stats;
#[cfg(feature = "rocks")]
mod lost_logs;
#[cfg(feature = "rocks")]
mod older_copies;
#[cfg(feature = "rocks")]
mod opening;
mod operations;
#[path = "../support/orphans.rs"]
#[cfg(feature = "rocks")]
mod orphans;
#[cfg(feature = "rocks")]
mod publishing;
#[cfg(feature = "rocks")]
mod read_only;
mod regressions;
#[cfg(feature = "rocks")]
mod repairing;
mod restarts;
mod results;
mod sequences;
mod verifying;
mod views_of_keyspaces;
mod waiting;
