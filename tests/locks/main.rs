//! Named locks through the public interface. The tables of `cases.md` list the cases.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::pedantic, clippy::result_large_err, reason = "style of a library, not of its tests")]

mod bad_input;
mod commits;
mod documented_corner_cases;
mod documented_tests;
mod fences;
#[allow(dead_code, reason = "other tests use more of it")]
#[path = "../support/hooked_engine.rs"]
mod hooked_engine;
mod hooked_store;
mod leases;
mod modes;
mod support;
mod table;
#[cfg(feature = "tokio")]
mod tasks;
mod waiting;
