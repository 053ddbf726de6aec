//! Named locks through the public interface. The tables of `cases.md` list the cases.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::pedantic, clippy::result_large_err, reason = "style of a library, not of its tests")]

mod bad_input;
mod claims;
mod commits;
mod fences;
mod leases;
mod letters;
mod modes;
mod stops;
mod support;
mod table;
#[allow(dead_code, reason = "other tests use more of it")]
#[path = "../support/tap.rs"]
mod tap;
#[cfg(feature = "tokio")]
mod tasks;
mod waiting;
